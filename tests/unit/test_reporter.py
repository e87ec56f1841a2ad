"""What the runner reports for an agent, and how often."""

from __future__ import annotations

import pytest

from baton.config import Settings
from baton.core.drafts import new_job
from baton.core.errors import NotVerified, RegistryUnavailable
from baton.core.limits import Limit
from baton.jobs.verbs import open_jobs
from baton.sessions import reporter as reporter_module
from baton.sessions.reporter import MAX_REFUSALS, PROGRESS_EVERY_SEC, Reporter
from support.clock import FakeClock


@pytest.fixture
def jobs(tmp_path):
    with open_jobs(Settings({"home": str(tmp_path / "home")}, env={"HOME": str(tmp_path)})) as jobs:
        yield jobs


@pytest.fixture
def desk(jobs, tmp_path):
    return Desk(jobs, tmp_path)


class Desk:
    """Makes reporters of one session, with a clock that the test sets."""

    def __init__(self, jobs, folder) -> None:
        self.jobs = jobs
        self.folder = folder
        self.clock = FakeClock()
        self.sent = []
        self.slept = []

    def job(self, **fields):
        draft = new_job("x", now_ns=1, agent="shell", agent_session="q", workdir=str(self.folder), **fields)
        self.jobs.register_many([draft])
        return self.jobs.pick_pending("q")

    def reporter(self, job, **more):
        return Reporter(self.jobs, self.sent.append, job=job, clock=self.clock, sleep=self._sleep, **more)

    def _sleep(self, seconds):
        self.slept.append(seconds)
        self.clock.advance(seconds)

    def events(self, job):
        return [event.event for event in self.jobs.events_after(job.job_id, 0)]


def test_progress_is_reported_once_in_an_interval(desk):
    job = desk.job()
    reporter = desk.reporter(job)
    reporter.progress("one")
    desk.clock.advance(PROGRESS_EVERY_SEC - 1)
    reporter.progress("too early")
    desk.clock.advance(1)
    reporter.progress("two")
    desk.clock.wall -= 86400 * 10**9
    desk.clock.advance(PROGRESS_EVERY_SEC)
    reporter.progress("three, after the date was set back")
    assert desk.events(job) == ["progress"] * 3


def test_refusals_are_counted_for_each_job(desk):
    job = desk.job(expected_artifacts=["out.txt"])
    reporter = desk.reporter(job)
    answers = []
    for _ in range(MAX_REFUSALS + 1):
        with pytest.raises(NotVerified, match=r"out\.txt is missing"):
            reporter.completed("done", message=None)
        answers.append(reporter.may_try_again())
    assert answers == [True] * MAX_REFUSALS + [False]
    reporter.begin(job.replace(attempt=job.attempt + 1))
    assert reporter.may_try_again(), "each attempt is counted anew"


def test_completed_is_not_recorded_when_the_runner_does_not_confirm_it(desk):
    job = desk.job()

    def refuse():
        raise NotVerified("the agent works again")

    with pytest.raises(NotVerified, match="works again"):
        desk.reporter(job).completed("done", message=None, confirm=refuse)
    assert desk.events(job) == []


def test_the_limits_follow_the_clock_and_the_idle_clock(desk):
    job = desk.job(timeout_sec=100, idle_timeout_sec=10)
    reporter = desk.reporter(job)
    since_ns = desk.clock.monotonic_ns()
    desk.clock.advance(60)
    assert reporter.exceeded_limit(None, 0) is None, "the idle clock pauses"
    assert reporter.exceeded_limit(since_ns + 51 * 10**9, 0) is None
    assert reporter.exceeded_limit(since_ns + 50 * 10**9, 5) is Limit.SILENCE
    desk.clock.advance(40)
    assert reporter.exceeded_limit(None, 5) is None, "slack"
    assert reporter.exceeded_limit(None, 0) is Limit.TIME
    reporter.begin(None)
    assert reporter.exceeded_limit(since_ns, 0) is None


def test_a_silence_as_long_as_the_whole_time_is_no_limit_of_its_own(desk):
    """The slack of the time limit would let it come first, and be the reason."""
    job = desk.job(timeout_sec=50, idle_timeout_sec=50)
    reporter = desk.reporter(job)
    since_ns = desk.clock.monotonic_ns()
    desk.clock.advance(52)
    assert reporter.exceeded_limit(since_ns, 5) is None
    desk.clock.advance(3)
    assert reporter.exceeded_limit(since_ns, 5) is Limit.TIME


def test_events_of_others_are_news_once(desk):
    job = desk.job()
    reporter = desk.reporter(job)
    reporter.progress("mine")
    assert (reporter.status(), reporter.take_news()) == ("running", False)
    desk.jobs.record_event(job.job_id, "progress", attempt=job.attempt)
    assert not reporter.take_news(), "it was not looked for"
    assert (reporter.status(), reporter.take_news(), reporter.take_news()) == ("running", True, False)


@pytest.mark.parametrize(("event", "tries"), [("failed", 4), ("permission_required", 4), ("progress", 1)])
def test_what_must_not_be_lost_is_tried_again_while_the_registry_is_away(desk, monkeypatch, event, tries):
    job = desk.job()
    tried = []

    def away(*_, **__):
        tried.append(1)
        raise RegistryUnavailable("away")

    monkeypatch.setattr(reporter_module, "report", away)
    reporter = desk.reporter(job, patience_sec=1.5)
    with pytest.raises(RegistryUnavailable):
        getattr(reporter, event)("x")
    assert len(tried) == tries
    monkeypatch.undo()
    getattr(reporter, event)("x")
    assert len(desk.events(job)) == (0 if event == "progress" else 1), "that progress came too early"


def test_an_attempt_that_lost_the_job_reports_and_sends_nothing(desk):
    job = desk.job(max_attempts=2)
    desk.jobs.release(job.job_id, attempt=job.attempt)
    desk.jobs.pick_pending("q")
    desk.reporter(job).failed("mine")
    assert (desk.events(job), desk.sent) == ([], [])


def test_events_of_an_ended_job_are_sent_and_none_is_added(desk):
    job = desk.job()
    desk.jobs.record_event(job.job_id, "completed", attempt=job.attempt)
    desk.reporter(job).failed("too late")
    assert desk.events(job) == ["completed"]
    assert [each.job_id for each in desk.sent] == [job.job_id]


def test_without_a_job_there_is_nothing_to_report(desk):
    reporter = desk.reporter(None)
    reporter.progress("x")
    reporter.failed("x")
    assert (reporter.status(), reporter.environment(), desk.sent) == (None, {}, [])
    assert not reporter.may_try_again()
