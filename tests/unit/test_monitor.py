"""What a sweep of the monitor decides about jobs. Sessions and brokers are in tests/integration."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from baton.config import Settings
from baton.core.clock import SystemClock, lease_expired
from baton.core.drafts import new_job
from baton.delegation.attempts import submitter_is_dead, this_submitter
from baton.delegation.monitor import Monitor
from baton.jobs.verbs import open_jobs
from baton.registry.schema import submitter_of_queue
from baton.sessions.inventory import Inventory
from support.asking import set_activity
from support.ports import free_port
from support.waiting import wait_until


class Time(SystemClock):
    """The monitor's clock: the date may jump by `wall` seconds, `advance` moves the monotonic clock too."""

    def __init__(self):
        self.wall = self.passed = 0.0

    def advance(self, seconds):
        self.wall += seconds
        self.passed += seconds

    def wall_ns(self):
        return super().wall_ns() + int(self.wall * 10**9)

    def monotonic_ns(self):
        return super().monotonic_ns() + int(self.passed * 10**9)


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def settings(tmp_path):
    # A broker that is away: what is unsent stays so.
    away = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port()), "BATON_HOST": "here"}
    return Settings({"home": str(tmp_path / "home")}, env={"HOME": str(tmp_path)} | away)


@pytest.fixture
def jobs(settings):
    with open_jobs(settings) as jobs:
        yield jobs


@pytest.fixture
def monitor(settings, jobs, clock):
    return Monitor(settings, jobs, Inventory(settings), clock=clock)


def sweep(monitor):
    return [(each.what, each.why, each.done) for each in monitor.sweep() if "not sent yet" not in each.why]


def running(jobs, *, holder="somebody", lease_sec=None, **fields):
    job = jobs.register_job("x", agent_session="q", **fields)
    return jobs.pick_pending("q", holder=holder, lease_sec=lease_sec) and job.job_id


def wait_for_the_end_of_the_lease(jobs, *job_ids):
    for job in map(jobs.get_job, job_ids):
        wait_until(lambda job=job: lease_expired(SystemClock(), job.lease_mark, job.lease_expires_at))


def status(jobs, job_id):
    return str(jobs.get_job(job_id).status)


def test_a_job_that_takes_too_long_is_ended_once_that_was_seen_for_a_while(monitor, jobs, clock):
    job_id = running(jobs, timeout_sec=100)
    clock.advance(110)
    assert sweep(monitor) == []  # whoever does it has some seconds to end it
    clock.advance(10)
    assert sweep(monitor) == []  # and it is not ended at first sight
    clock.advance(11)
    assert sweep(monitor) == [(f"job {job_id}", "the job took longer than 100 s", "ended as error")]
    assert status(jobs, job_id) == "error"
    assert jobs.get_job(job_id).detail == "ended by the monitor: the job took longer than 100 s"
    assert jobs.get_job(job_id).ended_by == "timeout"
    assert sweep(monitor) == []


def test_a_silent_job_is_ended_and_one_that_speaks_again_is_not(monitor, jobs, clock):
    silent, speaks = (running(jobs, idle_timeout_sec=50) for _ in range(2))
    for job_id in (silent, speaks):
        jobs.record_event(job_id, "started")
    clock.advance(70)
    assert sweep(monitor) == []
    jobs.record_event(speaks, "progress")
    clock.advance(11)
    assert sweep(monitor) == [(f"job {silent}", "nothing was heard of the job for 50 s", "ended as error")]
    assert status(jobs, speaks) == "running"


def test_a_job_that_waits_for_a_permission_is_not_silent_but_may_take_too_long(monitor, jobs, clock):
    job_id = running(jobs, idle_timeout_sec=50, timeout_sec=1000)
    jobs.record_event(job_id, "permission_required", detail="rm -rf /")
    for _ in range(3):
        clock.advance(100)
        assert sweep(monitor) == []
    clock.advance(1000)
    sweep(monitor)
    clock.advance(11)
    assert sweep(monitor) == [(f"job {job_id}", "the job took longer than 1000 s", "ended as error")]


def test_an_idle_limit_pauses_by_the_activity_and_the_reason_names_the_last_known_cause(monitor, jobs, clock):
    waits, stalls = (jobs.get_job(running(jobs, idle_timeout_sec=50, timeout_sec=1000)) for _ in range(2))
    jobs.registry._clock = clock
    set_activity(jobs.registry, waits, "waiting", "Bash: rm x", lease_sec=None)
    set_activity(jobs.registry, stalls, "stalled", "no sign of work", lease_sec=None)
    for job in (waits, stalls):
        jobs.record_event(job.job_id, "started")
    clock.advance(70)
    sweep(monitor)
    clock.advance(11)
    why = "nothing was heard of the job for 50 s; last known: no sign of work"
    assert sweep(monitor) == [(f"job {stalls.job_id}", why, "ended as error")]
    clock.advance(1000)
    sweep(monitor)
    clock.advance(11)
    why = "the job took longer than 1000 s; last known: Bash: rm x"
    assert sweep(monitor) == [(f"job {waits.job_id}", why, "ended as error")]
    assert jobs.get_job(waits.job_id).reason == f"ended by the monitor: {why}"


def test_a_clock_that_jumps_forward_ends_nothing_at_first_sight(monitor, jobs, clock):
    job_id = running(jobs, timeout_sec=3600)
    jobs.record_event(job_id, "started")
    clock.wall += 86400
    assert sweep(monitor) == []
    clock.wall -= 86400  # it is set right again
    clock.advance(60)
    assert sweep(monitor) == []
    clock.wall += 86400
    assert sweep(monitor) == []  # and what was seen before does not count any more
    assert status(jobs, job_id) == "running"


def test_a_job_somebody_holds_on_another_machine_is_left_to_that_machine(monitor, jobs, clock):
    there = running(jobs, timeout_sec=100, holder="there:job-x:1", lease_sec=10**6)
    here = running(jobs, timeout_sec=100, holder="here:4711", lease_sec=10**6)
    clock.advance(1000)
    sweep(monitor)
    clock.advance(11)
    assert [what for what, _, _ in sweep(monitor)] == [f"job {here}"]
    assert status(jobs, there) == "running"


def test_a_job_picked_here_under_another_name_of_this_machine_is_ours(monitor, jobs, clock):
    job_id = jobs.register_job("x", agent_session="q", timeout_sec=100).job_id
    assert jobs.pick_pending("q", lease_sec=10**6).claimed_by.startswith("here:")
    clock.advance(1000)
    sweep(monitor)
    clock.advance(11)
    assert [what for what, _, _ in sweep(monitor)] == [f"job {job_id}"]


def test_a_lease_that_ran_out_hands_the_job_on_or_ends_it(monitor, jobs):
    again = running(jobs, lease_sec=0.01, max_attempts=2, holder="dead")
    enough = running(jobs, lease_sec=0.01, holder="dead")
    wait_for_the_end_of_the_lease(jobs, again, enough)
    assert sorted(sweep(monitor)) == sorted([
        (f"job {again}", "the lease of dead expired", "pending"),
        (f"job {enough}", "the lease of dead expired", "error"),
    ])  # fmt: skip
    assert (status(jobs, again), status(jobs, enough)) == ("pending", "error")


def test_all_leases_that_ran_out_are_taken_back_in_one_sweep(monitor, jobs, monkeypatch):
    late = [running(jobs, lease_sec=0.01, max_attempts=2) for _ in range(3)]
    wait_for_the_end_of_the_lease(jobs, *late)
    monkeypatch.setattr(jobs.registry, "expire_leases", partial(jobs.registry.expire_leases, limit=2))
    assert len(sweep(monitor)) == 3
    assert {status(jobs, job_id) for job_id in late} == {"pending"}


def orphan(jobs, submitter=None, queue=None, **fields):
    draft = new_job(
        "x", now_ns=time.time_ns() - 10**11, agent="shell", agent_session=queue, submitter=submitter, **fields
    )
    return jobs.register_many([draft])[0].job_id


def test_a_job_whose_submitter_is_gone_is_ended_when_no_worker_takes_it(monitor, jobs, clock):
    alive = this_submitter("here")
    pid, started = alive.split(":")[1:]
    ended = {orphan(jobs, each) for each in (f"here:999999999:{started}", f"here:{pid}:1")}
    kept = [orphan(jobs, each) for each in (alive, f"there:999999999:{started}", "x", "here:x:1")]
    kept += [orphan(jobs, queue=each) for each in ("tmux:x", "q")]
    assert sweep(monitor) == []  # a worker has time to take it
    clock.advance(31)
    assert {what for what, _, done in sweep(monitor) if done == "ended as error"} == {f"job {each}" for each in ended}
    assert {status(jobs, job_id) for job_id in ended} == {"error"}
    assert {status(jobs, job_id) for job_id in kept} == {"pending"}


def test_one_look_is_enough_for_a_monitor_that_sweeps_once(settings, jobs):
    job_id = orphan(jobs, "here:999999999:1")
    assert [what for what, _, _ in sweep(Monitor(settings, jobs, Inventory(settings), confirm_sec=0))] == [
        f"job {job_id}"
    ]


def test_a_submitter_is_known_by_host_pid_and_start():
    job = new_job("x", now_ns=1, agent="shell", submitter=this_submitter("host:with:colons"))
    assert not submitter_is_dead(job, "host:with:colons")
    assert submitter_is_dead(job.replace(submitter=f"{job.submitter}1"), "host:with:colons")
    assert not submitter_is_dead(job.replace(submitter=f"{job.submitter}1"), "another host")
    assert submitter_of_queue(f"submit:{job.submitter}:1a2b3c4d") == job.submitter
    assert submitter_of_queue("submit:0123456789abcdef") is None
    assert submitter_of_queue("tmux:submit:1:2:3:4") is None


def test_a_dry_run_says_what_it_would_do_and_why_and_does_nothing(settings, jobs, clock):
    late = running(jobs, timeout_sec=10)
    jobs.record_event(late, "started")
    expired = running(jobs, lease_sec=0.01, max_attempts=3, holder="dead")
    held = running(jobs, lease_sec=100, timeout_sec=10**6)
    lost = orphan(jobs, f"{settings.host}:999999999:1")
    wait_for_the_end_of_the_lease(jobs, expired)
    clock.advance(1000)  # the registry's clock, which alone decides about leases, stands
    before = [(job.job_id, job.status, job.last_seq, job.attempt) for job in jobs.list_jobs(limit=100).jobs]
    monitor = Monitor(settings, jobs, Inventory(settings), dry_run=True, confirm_sec=0, clock=clock)
    found = {(each.what, each.done): each.why for each in monitor.sweep()}
    assert found == {
        (f"job {late}", "would be ended as error"): "the job took longer than 10 s",
        (f"job {expired}", "would be requeued"): "the lease of dead expired",
        (f"job {lost}", "would be ended as error"): "the process that submitted it ended before it began",
        (f"job {late}", "would be sent"): "1 event not sent yet",
    }
    assert before == [(job.job_id, job.status, job.last_seq, job.attempt) for job in jobs.list_jobs(limit=100).jobs]
    assert len(jobs.unsent_events()) == 1
    assert status(jobs, held) == "running"


def test_a_step_that_fails_is_told_and_the_others_go_on(monitor, settings, jobs, tmp_path):
    job_id = running(jobs, lease_sec=0.01)
    wait_for_the_end_of_the_lease(jobs, job_id)
    (tmp_path / "home" / "agent-sessions.db").write_text("no database at all" * 50)
    Path(settings.state_dir).parent.mkdir(parents=True)
    Path(settings.state_dir).touch()  # where the live agents' folder should be
    found = {what: done for what, _, done in sweep(monitor)}
    assert found == {f"job {job_id}": "error", "sessions": None, "live agents": None}
    assert monitor.registry_failed


def test_what_cannot_be_sent_is_told_once_a_sweep(monitor, jobs):
    for _ in range(3):
        jobs.record_event(running(jobs), "started")
    found = [each for each in monitor.sweep() if "not sent yet" in each.why]
    assert len(found) == 1  # the others go the same way
    assert found[0].done is None
    assert len(jobs.unsent_events()) == 3


def test_a_broker_that_is_away_is_not_asked_at_every_sweep_to_forget_old_jobs(monitor, settings, jobs, clock):
    jobs.record_event(running(jobs, broker={"host": "127.0.0.1", "port": free_port(), "tls": False}), "error")
    clock.advance(8 * 86400)
    assert [what for what, _, _ in sweep(monitor)] == ["retained"]
    assert sweep(monitor) == []
    clock.advance(3601)
    assert [what for what, _, _ in sweep(monitor)] == ["retained"]
