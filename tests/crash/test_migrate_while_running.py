"""R15: `registry migrate` while jobs run is refused, or waits for them; nothing is lost and nothing runs twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest

from baton.core.clock import SECOND_NS, SystemClock
from baton.core.drafts import new_job
from baton.core.errors import RegistryBusy
from baton.core.event import EventName
from baton.core.job import Status
from baton.registry import open_url
from support.backends import BACKENDS, registry_url
from support.command import BATON, Baton
from support.ports import free_port
from support.waiting import wait_until

QUEUE = "q"
# Takes jobs until the registry was moved away, and says what it began and what it finished.
WORKER = """
import os, random, sys, time
from baton.core.errors import BatonError, RegistryBusy
from baton.core.event import EventName
from baton.registry import open_url
registry, seed = open_url(sys.argv[1]), random.Random(int(sys.argv[2]))
registry.stats()  # opens it: one that opens a database after the migration finds no registry there
print("ready", flush=True)
while True:
    try:
        change = registry.pick_pending("q", holder=f"{sys.argv[3]}:{os.getpid()}")
    except RegistryBusy:
        time.sleep(0.02)
        continue
    except BatonError as error:
        print("ended", error, flush=True)
        break
    if change is None:
        time.sleep(0.02)
        continue
    job = change.after
    print("began", job.job_id, job.attempt, flush=True)
    time.sleep(seed.uniform(0, 0.6))
    registry.record_event(job.job_id, EventName.COMPLETED, attempt=job.attempt)
    print("finished", job.job_id, flush=True)
"""


class DaysAgo(SystemClock):
    def wall_ns(self):
        return time.time_ns() - 3 * 86400 * SECOND_NS


@pytest.fixture
def places(backend, tmp_path, request):
    """A registry and the one to move it to, of another backend."""
    other = BACKENDS[(BACKENDS.index(backend) + 1) % len(BACKENDS)]
    server = request.getfixturevalue("postgres") if "postgresql" in (backend, other) else None
    return registry_url(backend, str(tmp_path / "old"), server), registry_url(other, str(tmp_path / "new"), server)


def command_for(folder, url):
    return Baton(folder, BATON_REGISTRY=url, BATON_HOST="here", MQTT_BROKER="127.0.0.1", MQTT_PORT=str(free_port()))


def fill(url, count):
    registry = open_url(url)
    drafts = [new_job(f"job {n}", now_ns=time.time_ns(), agent="x", agent_session=QUEUE) for n in range(count)]
    ids = {job.job_id for job in registry.register_many(drafts)}
    registry.close()
    return ids


def start_worker(url, seed):
    command = [sys.executable, "-c", WORKER, url, str(seed), "here"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_it_is_refused_while_a_holder_lives_and_names_it(places, tmp_path):
    old, new = places
    (job_id,) = fill(old, 1)
    registry = open_url(old)
    registry.pick_pending(QUEUE, holder=f"here:{os.getpid()}")
    command = command_for(tmp_path, old)
    line = command.refused("registry", "migrate", "--to", new)
    assert f"{job_id} (held by here:{os.getpid()})" in line
    assert "--drain" in line
    waited = command("registry", "migrate", "--to", new, "--drain", "0.2", code=1).err.splitlines()
    assert [f"{job_id} (held by" in line for line in waited] == [True, True]
    assert registry.get_job(job_id).status is Status.RUNNING
    registry.record_event(job_id, EventName.COMPLETED, attempt=1)
    registry.close()
    assert command("registry", "migrate", "--to", new, "--json").json["jobs"] == 1


@pytest.mark.parametrize("lease", [None, 3600.0])
def test_a_holder_elsewhere_or_with_a_lease_counts_as_alive(places, tmp_path, lease):
    old, new = places
    fill(old, 1)
    registry = open_url(old)
    holder = "there:999999999" if lease is None else "here:999999999"
    registry.pick_pending(QUEUE, holder=holder, lease_sec=lease)
    assert holder in command_for(tmp_path, old).refused("registry", "migrate", "--to", new)
    registry.close()


def test_a_dead_holder_does_not_keep_it_from_moving(places, tmp_path):
    old, new = places
    (job_id,) = fill(old, 1)
    registry = open_url(old)
    registry.pick_pending(QUEUE, holder="here:999999999")
    registry.close()
    assert command_for(tmp_path, old)("registry", "migrate", "--to", new, "--json").json["jobs"] == 1
    moved = open_url(new)
    assert moved.get_job(job_id).claimed_by == "here:999999999"
    moved.close()


def test_a_later_process_with_the_pid_of_a_dead_holder_is_not_the_holder(tmp_path):
    """The kernel reuses pids: this process began days after the claim."""
    old = registry_url("sqlite", str(tmp_path / "old"), None)
    registry = open_url(old, clock=DaysAgo())
    draft = new_job("job", now_ns=DaysAgo().wall_ns(), agent="x", agent_session=QUEUE)
    registry.register_many([draft])
    registry.pick_pending(QUEUE, holder=f"here:{os.getpid()}")
    registry.close()
    new = registry_url("file", str(tmp_path / "new"), None)
    assert command_for(tmp_path, old)("registry", "migrate", "--to", new, "--json").json["jobs"] == 1


def test_no_job_is_claimed_while_it_waits(places, tmp_path):
    old, new = places
    fill(old, 3)
    registry = open_url(old)
    held = registry.pick_pending(QUEUE, holder=f"here:{os.getpid()}").after
    waiting = subprocess.Popen(
        [BATON, "registry", "migrate", "--to", new, "--drain"],
        cwd=tmp_path, env=command_for(tmp_path, old).env, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert held.job_id in waiting.stderr.readline()
    pending = next(job for job in registry.list_jobs().jobs if job.status is Status.PENDING)
    for claim in (
        lambda: registry.pick_pending(QUEUE, holder="me"),
        lambda: registry.pick_job(pending.job_id, holder="me"),
        lambda: registry.update_status(pending.job_id, Status.RUNNING),
        lambda: registry.record_event(pending.job_id, EventName.PROGRESS),
    ):
        with pytest.raises(RegistryBusy, match="drained"):
            claim()
    registry.record_event(held.job_id, EventName.PROGRESS, attempt=1)
    registry.record_event(held.job_id, EventName.COMPLETED, attempt=1)
    registry.close()
    assert waiting.wait(30) == 0
    waiting.stderr.close()
    moved = open_url(new)
    assert moved.stats()["pending"] == 2
    assert moved.pick_pending(QUEUE, holder="me") is not None
    moved.close()


def test_a_killed_drain_lets_jobs_be_claimed_again(tmp_path):
    url = f"sqlite:{tmp_path}/old/registry.db"
    fill(url, 2)
    registry = open_url(url)
    registry.pick_pending(QUEUE, holder=f"here:{os.getpid()}")
    waiting = subprocess.Popen(
        [BATON, "registry", "migrate", "--to", f"file:{tmp_path}/new", "--drain"],
        cwd=tmp_path, env=command_for(tmp_path, url).env, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "no job is claimed" in waiting.stderr.readline()
    with pytest.raises(RegistryBusy):
        registry.pick_pending(QUEUE, holder="me")
    waiting.kill()
    waiting.wait()
    waiting.stderr.close()
    assert registry.pick_pending(QUEUE, holder="me") is not None
    registry.close()


def has(registry):
    """The statuses that jobs have now."""
    return {status for status, number in registry.stats().items() if number}


def test_nothing_is_lost_and_nothing_runs_twice(places, tmp_path, backend, full, seed, figure):
    rounds = 100 if full else 5
    old, new = places
    chance = random.Random(seed)
    lost = twice = refused = 0
    for _ in range(rounds):
        ids = fill(old, 6)
        workers = [start_worker(old, chance.randrange(10**6)) for _ in range(2)]
        assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 2
        watched = open_url(old)
        wait_until(lambda watched=watched: {"running", "completed"} & has(watched), what="a job at work")
        watched.close()
        time.sleep(chance.uniform(0, 0.5))  # the migration begins at a random moment of their work
        drain = ("--drain",) if chance.random() < 0.5 else ()
        done = command_for(tmp_path, old)("registry", "migrate", "--to", new, *drain, code=None)
        assert done.code in (0, 1), done
        refused += done.code
        place = open_url(new if done.code == 0 else old)
        if done.code == 1:
            wait_until(lambda place=place: place.stats()["completed"] == 6, what="the work")
        output = []
        for worker in workers:
            if done.code == 1:
                worker.kill()
            output += worker.communicate(timeout=30)[0].splitlines()
        began = [line.split()[1] for line in output if line.startswith("began")]
        finished = {line.split()[1] for line in output if line.startswith("finished")}
        twice += len(began) - len(set(began))
        while (change := place.pick_pending(QUEUE, holder="last")) is not None:
            twice += change.after.job_id in began
            place.record_event(change.after.job_id, EventName.COMPLETED)
        jobs = {job.job_id: job for job in place.list_jobs(limit=100).jobs}
        lost += len(ids - jobs.keys()) + sum(jobs[job_id].status is not Status.COMPLETED for job_id in finished)
        lost += sum(job.status is not Status.COMPLETED for job in jobs.values())
        place.prune(time.time_ns() + 10**12)
        for job in jobs.values():
            place.mark_sent(job.job_id, range(1, 9))
        place.prune(time.time_ns() + 10**12)
        place.close()
        if done.code == 0:
            old, new = new, old
    figure(
        f"R15 migration while jobs run ({backend})",
        f"{rounds} migrations, {refused} refused: {lost} jobs lost, {twice} run twice",
        held=not lost and not twice,
        seed=seed,
    )
