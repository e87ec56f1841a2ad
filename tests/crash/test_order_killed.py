"""A chain of jobs over two workers, of which one at random is killed again and again: the order holds, and each job is
done once."""

from __future__ import annotations

import json
import time
from contextlib import closing
from random import Random

import pytest

from baton.core.clock import parse_time
from baton.core.drafts import new_job
from baton.core.errors import StaleAttempt
from baton.core.event import EventName
from baton.core.job import Status
from baton.registry import open_url
from support.crew import Crew
from support.office import Office
from support.waiting import wait_until

QUEUE = "tmux:chain"
PATIENCE_SEC = 240


def chain(count):
    """The drafts of a chain, in a random order: a batch may name a job before it comes."""
    drafts = []
    for number in range(count):
        after = [drafts[-1].job_id] if drafts else []
        drafts.append(
            new_job(str(number), now_ns=time.time_ns(), agent="x", agent_session=QUEUE, after=after, max_attempts=999)
        )
    return drafts


@pytest.mark.timeout(600)
def test_a_chain_is_done_in_order_by_workers_that_are_killed(url, backend, figure, full, seed):
    chance = Random(seed)
    count, every_sec, work_sec, lease_sec = (50, 1.0, 0.6, 2.0) if full else (12, 0.15, 0.02, 0.3)
    drafts = chain(count)
    with closing(open_url(url)) as registry:
        registry.register_many(chance.sample(drafts, count))
    kills = 0
    with Crew() as crew:
        workers = [crew.fork(_work, url, chance.random(), work_sec, lease_sec) for _ in range(2)]
        until = time.monotonic() + PATIENCE_SEC
        next_kill = time.monotonic() + every_sec
        while not _is_over(crew, count) and time.monotonic() < until:
            if (
                time.monotonic() >= next_kill or not kills
            ):  # the first at once: a fast machine is done before the second
                killed = chance.randrange(2)
                crew.kill(workers[killed])
                kills += 1
                workers[killed] = crew.fork(_work, url, chance.random(), work_sec, lease_sec)
                next_kill = time.monotonic() + every_sec
        failures = list(crew.failures)
    with closing(open_url(url)) as registry:
        jobs = [registry.get_job(job.job_id) for job in drafts]
        stories = [registry.events_after(job.job_id) for job in drafts]
    wrong = [repr(job) for job in jobs if job.status is not Status.COMPLETED]
    for job, events in zip(jobs, stories, strict=True):
        ends = [event for event in events if event.event is EventName.COMPLETED]
        if len(ends) != 1 or ends[0] is not events[-1] or events[0].event is not EventName.STARTED:
            wrong.append(f"{job!r}: {[event.event.value for event in events]}")
    begun = [_times(events)[0] for events in stories]
    ended = [_times(events)[1] for events in stories]
    wrong += [f"{n} began before {n - 1} had ended" for n in range(1, count) if begun[n] < ended[n - 1]]
    figure(
        f"order of a chain ({backend})",
        f"{count} jobs, {kills} workers killed, {sum(job.attempt for job in jobs)} attempts, {len(wrong)} wrong"
        + "".join(f"\n{line}" for line in [*wrong[:5], *failures[:2]]),
        held=not wrong and not failures and (kills > 0),
        seed=seed,
    )


def _times(events):
    moments = [parse_time(json.loads(event.payload)["timestamp"]) for event in events]
    return (moments[0], moments[-1]) if moments else (0, 2**63)


def _is_over(crew, count):
    """Whether the last job of the chain was completed, as far as was said within a moment."""
    return any(words[0] == "done" and words[1] == str(count - 1) for words in crew.hear(0.05))


def _work(say, url, seed, work_sec, lease_sec):
    """A worker: it claims with a short lease, works a moment, and reports; it also sweeps as a monitor does."""
    chance = Random(seed)
    registry = open_url(url)
    while True:
        registry.expire_leases()
        registry.advance_waiting()
        claim = registry.pick_pending(QUEUE, holder="worker", lease_sec=lease_sec)
        if claim is None:
            time.sleep(0.01)  # as a worker polls
            continue
        job = claim.after
        try:
            registry.record_event(job.job_id, EventName.STARTED, attempt=job.attempt)
            time.sleep(chance.random() * work_sec)  # the work
            registry.record_event(job.job_id, EventName.COMPLETED, attempt=job.attempt)
        except StaleAttempt:
            continue  # it was slower than its lease
        say("done", job.prompt)


WORK = "echo begin {n} >> log; sleep 0.1; echo end {n} >> log"


@pytest.mark.timeout(900)
def test_real_workers_that_are_killed_keep_the_order(tmp_path, figure, full, seed):
    """At full size a worker is killed every second, whatever it does; at the small one whenever a job has begun: a
    worker that is killed while it creates a session leaves a runner that waits for it for 20 seconds."""
    chance = Random(seed)
    count = 50 if full else 3
    lines = [
        json.dumps(
            {"prompt": WORK.format(n=number), "title": str(number), "queue": QUEUE, "max_attempts": 99}
            | ({"after": [str(number - 1)]} if number else {})
        )
        for number in range(count)
    ]
    with Office(tmp_path, BATON_LEASE_SEC="5") as office:
        (office.folder / "batch").write_text("\n".join(chance.sample(lines, count)))
        ids = office.submit("--batch", "batch", "--detach").text.split()
        office.start("monitor", "--interval", "0.3")
        workers = [office.start("worker", "--queue", QUEUE, "--agent", "shell") for _ in range(2)]
        kills, until, next_kill = 0, time.monotonic() + 700, time.monotonic() + 1.0
        while time.monotonic() < until and any(job["status"] in ("pending", "running") for job in office.jobs()):
            begun = sum(line.startswith("begin") for line in _lines(office))
            if (time.monotonic() >= next_kill) if full else (begun > kills):
                killed = chance.randrange(2)
                workers[killed].kill()
                kills += 1
                workers[killed] = office.start("worker", "--queue", QUEUE, "--agent", "shell")
                next_kill = time.monotonic() + 1.0
        jobs = {job["title"]: job for job in office.jobs()}
        numbers = [int(line.split()[1]) for line in _lines(office)]
        for each in workers:
            each.kill()
        wait_until(lambda: not office.processes("baton.sessions.runner"), "for the runners to end", 90)
    wrong = [f"{each['title']} is {each['status']}: {each['reason']}" for each in jobs.values() if not _is_done(each)]
    wrong += [] if numbers == [each for number in range(count) for each in (number, number)] else [f"order: {numbers}"]
    figure(
        "order of a chain (installed command)",
        f"{len(ids)} jobs, {kills} workers killed, {sum(job['attempt'] for job in jobs.values())} attempts, "
        f"{len(wrong)} wrong" + "".join(f"\n{line}" for line in wrong[:5]),
        held=not wrong and kills > 0 and len(jobs) == count,
        seed=seed,
    )


def _is_done(job):
    return job["status"] == "completed"


def _lines(office):
    log = office.folder / "log"
    return log.read_text().splitlines() if log.exists() else []
