"""Each process that watches jobs, by a clock that the test sets: it stood still for an hour, and goes on. The real ones
are stopped in tests/crash/test_standing_still.py."""

from __future__ import annotations

import pytest

from baton.config import Settings
from baton.core.awake_clock import AwakeClock
from baton.core.errors import RegistryUnavailable
from baton.core.limits import Limit, pauses_idle_clock, time_left_sec
from baton.core.outline import Outline, activity_of, present_ns
from baton.core.signal import Heard, Said
from baton.delegation.monitor import Monitor
from baton.delegation.worker import Worker
from baton.jobs import verification
from baton.jobs.verbs import open_jobs
from baton.sessions.chores import Chores
from baton.sessions.hearing import Ear
from baton.sessions.inventory import Inventory
from baton.sessions.reporter import Reporter
from baton.transport.subscription import Subscription
from support.asking import set_activity
from support.clock import FakeClock, LaterClock
from support.ports import free_port

HOUR_SEC = 3600
LEASE_SEC = 30


@pytest.fixture
def real():
    return LaterClock()


@pytest.fixture
def clock(real):
    return AwakeClock(real)


@pytest.fixture
def settings(tmp_path):
    away = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port()), "BATON_HOST": "here"}
    return Settings({"home": str(tmp_path / "home")}, env={"HOME": str(tmp_path)} | away)


@pytest.fixture
def jobs(settings, real):
    """By the same clock as the watchers."""
    with open_jobs(settings) as jobs:
        jobs.registry._clock = real
        yield jobs


def running(jobs, *, lease_sec=None, holder="here:test:1", **fields):
    job = jobs.register_job("x", agent_session="q", **fields)
    return jobs.pick_job(job.job_id, holder=holder, lease_sec=lease_sec)


def go_through(clock, real, seconds, look=lambda: None):
    """Time passes, and the process looks every second."""
    for _ in range(seconds):
        clock.will_read_in(1)
        real.advance(1)
        look()
        clock.monotonic_ns()


class Following:
    """A listener whose every wait for messages is so long, by its clock, and calls `during` with its number."""

    def __init__(self, jobs, settings, job, monkeypatch, clock, real, during, **limits):
        self.waits = 0
        self.subscription = Subscription(jobs, settings, [job.job_id], clock=clock, **limits)

        def take_messages(wait_sec):
            self.waits += 1
            clock.will_read_in(min(wait_sec, 0.5))
            real.advance(min(max(wait_sec, 0.001), 0.5))
            during(self.waits)
            return []

        monkeypatch.setattr(self.subscription, "_take_messages", take_messages)
        self.seen = [payload["event"] for payload in self.subscription]


@pytest.mark.parametrize("limit", ["timeout_sec", "idle_timeout_sec"])
class TestListener:
    def test_it_looks_before_it_applies_a_limit(self, jobs, settings, monkeypatch, clock, real, limit):
        job = running(jobs)

        def stand_still(number):
            if number == 3:
                real.advance(HOUR_SEC)
                jobs.record_event(job.job_id, "completed", attempt=1)

        following = Following(jobs, settings, job, monkeypatch, clock, real, stand_still, **{limit: 8})
        assert following.seen == ["completed"]
        assert following.subscription.timed_out is None

    def test_the_limit_is_later_by_the_pause_and_no_more(self, jobs, settings, monkeypatch, clock, real, limit):
        job = running(jobs)
        following = Following(
            jobs, settings, job, monkeypatch, clock, real,
            lambda number: real.advance(HOUR_SEC if number == 3 else 0), **{limit: 8},
        )  # fmt: skip
        assert following.subscription.exit_code == 2
        assert 30 <= following.waits <= 34, "of a quarter of a second"

    def test_an_end_that_comes_with_the_limit_counts(self, jobs, settings, monkeypatch, clock, real, limit):
        """No message came, and the next look at the registry is not due."""
        job = running(jobs)

        def end(number):
            if number == 16:
                jobs.record_event(job.job_id, "completed", attempt=1)

        monkeypatch.setattr("baton.transport.subscription._POLL_WITHOUT_BROKER_SEC", 60)
        following = Following(jobs, settings, job, monkeypatch, clock, real, end, **{limit: 8})
        assert following.seen == ["completed"]


def test_a_server_that_does_not_answer_is_no_pause_of_the_listener(jobs, settings, monkeypatch, clock, real):
    subscription = Subscription(jobs, settings, [running(jobs).job_id], clock=clock)
    tries = []

    def get_job(_job_id):
        tries.append(1)
        real.advance(10)
        raise RegistryUnavailable("it does not answer")

    monkeypatch.setattr(jobs.registry, "get_job", get_job)
    monkeypatch.setattr("baton.transport.subscription._RETRY_SEC", 0)
    with pytest.raises(RegistryUnavailable):
        list(subscription)
    assert len(tries) in (7, 8), "for a minute"


def test_a_lease_that_ended_while_the_listener_stood_still_pauses_its_idle_clock(jobs, clock, real):
    job = set_activity(jobs.registry, running(jobs, lease_sec=LEASE_SEC), "working", lease_sec=LEASE_SEC)
    real.advance(HOUR_SEC)
    assert pauses_idle_clock(job, clock=clock, last_event=lambda: None, idle_sec=8)
    go_through(clock, real, LEASE_SEC + 1)
    assert not pauses_idle_clock(job, clock=clock, last_event=lambda: None, idle_sec=8), "its runner did not wake up"


def test_the_time_that_a_job_has_left_is_that_before_the_pause(jobs, clock, real):
    job = running(jobs, retries=1, timeout_sec=100)
    before = time_left_sec(job, clock=clock)
    real.advance(HOUR_SEC)
    assert time_left_sec(job, clock=clock) == pytest.approx(before, abs=1)
    go_through(clock, real, 50)
    assert time_left_sec(job, clock=clock) == pytest.approx(before - 50, abs=1)


class TestMonitor:
    @pytest.fixture
    def monitor(self, settings, jobs, clock):
        return Monitor(settings, jobs, Inventory(settings), clock=clock)

    def sweep(self, monitor):
        return [each.done for each in monitor.sweep() if "not sent yet" not in each.why]

    def test_it_lets_a_holder_renew_a_lease_that_ended_in_the_pause(self, monitor, jobs, clock, real):
        job = running(jobs, lease_sec=LEASE_SEC, max_attempts=2)
        self.sweep(monitor)
        real.advance(HOUR_SEC)
        assert self.sweep(monitor) == []
        jobs.renew_lease(job.job_id, attempt=1, lease_sec=LEASE_SEC)
        go_through(clock, real, LEASE_SEC - 1, lambda: self.sweep(monitor))
        assert jobs.get_job(job.job_id).status == "running"

    def test_it_ends_the_lease_of_a_holder_that_did_not_wake_up(self, monitor, jobs, clock, real):
        job = running(jobs, lease_sec=LEASE_SEC, max_attempts=2)
        self.sweep(monitor)
        real.advance(HOUR_SEC)
        go_through(clock, real, LEASE_SEC - 2, lambda: self.sweep(monitor))
        assert jobs.get_job(job.job_id).status == "running"
        go_through(clock, real, 4, lambda: self.sweep(monitor))
        assert jobs.get_job(job.job_id).status == "pending"

    def test_one_that_did_not_stand_still_takes_the_job_at_once(self, monitor, jobs, clock, real):
        job = running(jobs, lease_sec=LEASE_SEC, max_attempts=2)
        go_through(clock, real, LEASE_SEC + 1)
        self.sweep(monitor)
        assert jobs.get_job(job.job_id).status == "pending"

    @pytest.mark.parametrize("limit", ["timeout_sec", "idle_timeout_sec"])
    def test_a_pause_is_no_time_of_a_job_that_is_worked_by_hand(self, monitor, jobs, clock, real, limit):
        job = running(jobs, **{limit: 100})
        jobs.record_event(job.job_id, "started", attempt=1)
        go_through(clock, real, 50)
        real.advance(HOUR_SEC)
        go_through(clock, real, 50, lambda: self.sweep(monitor))
        assert jobs.get_job(job.job_id).status == "running"
        go_through(clock, real, 30, lambda: self.sweep(monitor))
        assert jobs.get_job(job.job_id).status == "error"

    def test_a_session_that_was_being_started_is_as_young_as_before(self, monitor, clock, real):
        moment = "2026-01-01T00:00:00Z"
        before = monitor._age_sec(moment)
        real.advance(HOUR_SEC)
        assert monitor._age_sec(moment) == pytest.approx(before, abs=1)


def test_a_process_that_only_looks_once_judges_by_the_date(jobs, real):
    job = set_activity(jobs.registry, running(jobs, lease_sec=LEASE_SEC), "working", lease_sec=LEASE_SEC)
    real.advance(HOUR_SEC)
    assert activity_of(Outline.of(job), now_ns=present_ns(job, real)) == "unknown"


class TestRunner:
    def test_time_and_silence_are_those_before_the_pause(self, jobs, clock, real):
        reporter = Reporter(
            jobs, lambda _job: None, job=running(jobs, timeout_sec=20, idle_timeout_sec=10), clock=clock
        )
        silent_ns = clock.monotonic_ns()
        go_through(clock, real, 5)
        real.advance(HOUR_SEC)
        assert reporter.exceeded_limit(silent_ns, 0.5) is None
        go_through(clock, real, 5)
        assert reporter.exceeded_limit(silent_ns, 0.5) is Limit.SILENCE
        go_through(clock, real, 11)
        assert reporter.exceeded_limit(silent_ns, 0.5) is Limit.TIME

    def test_what_is_heard_after_the_pause_is_heard_then(self, clock, real):
        """A channel has the time of the machine, which went on."""
        ear = Ear(lambda: None, clock)
        real.advance(HOUR_SEC)
        ear.hear(Heard(signal=Said(text="x"), source="test", at_ns=real.monotonic_ns()))
        (heard,) = ear.take()
        assert heard.at_ns <= clock.monotonic_ns()

    def test_after_the_pause_every_chore_is_due(self):
        clock, done = FakeClock(), []
        chores = Chores(clock, [(15, lambda: done.append("lease")), (1, lambda: done.append("check"))])
        chores.hurry()
        assert chores.wait_sec() == 0
        chores.run_due()
        assert done == ["lease", "check"], "the lease first"


def test_a_worker_that_stood_still_looks_before_it_requeues(settings, jobs, real, monkeypatch):
    looks = []
    worker = Worker(
        settings, jobs, "q", agent="shell", workdir=".", clock=real, drain_sec=30,
        sleep=lambda _seconds: real.advance(HOUR_SEC),
    )  # fmt: skip
    worker._running["abc"] = 1

    def check_running():
        looks.append(1)
        if len(looks) == 3:
            worker._running.clear()

    monkeypatch.setattr(worker, "_check_running", check_running)
    worker._drain()
    assert len(looks) == 3


def test_a_validation_that_stood_still_has_not_taken_too_long(jobs, tmp_path, monkeypatch, real):
    """By a clock that jumps an hour at every look, while the command runs."""

    class Jumping(LaterClock):
        def monotonic_ns(self):
            self.advance(HOUR_SEC)
            return super().monotonic_ns()

    monkeypatch.setattr("baton.core.awake_clock.SystemClock", Jumping)
    code, tail = verification._run("echo before; exec >&- 2>&-; sleep 0.1", str(tmp_path), 60, {})
    assert (code, tail) == (0, b"before\n")
    with pytest.raises(TimeoutError):
        verification._run("exec sleep 1234", str(tmp_path), 1, {})
