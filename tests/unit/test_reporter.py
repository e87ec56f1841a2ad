"""What the runner and the hooks report for an agent, and how often."""

from __future__ import annotations

import pytest

from baton.config import Settings
from baton.core.errors import NotVerified, RegistryUnavailable
from baton.core.job import new_job
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
        return Reporter(
            self.jobs, str(self.folder), self.sent.append, job=job, clock=self.clock, sleep=self._sleep, **more
        )

    def _sleep(self, seconds):
        self.slept.append(seconds)
        self.clock.advance(seconds)

    def events(self, job):
        return [event.event for event in self.jobs.events_after(job.job_id, 0)]


def test_runner_and_hooks_share_the_interval_of_progress(desk):
    job = desk.job()
    runner, hook = desk.reporter(job), desk.reporter(job)
    runner.progress("one")
    hook.progress("too early")
    desk.clock.advance(PROGRESS_EVERY_SEC - 1)
    runner.progress("too early")
    desk.clock.advance(1)
    hook.progress("two")
    assert desk.events(job) == ["progress", "progress"]


def test_progress_goes_on_after_the_date_was_set_back(desk):
    job = desk.job()
    desk.reporter(job).progress("one")
    desk.clock.wall -= 86400 * 10**9
    desk.reporter(job).progress("two")
    assert desk.events(job) == ["progress", "progress"]


def test_runner_and_hooks_share_the_number_of_refusals(desk):
    job = desk.job(expected_artifacts=["out.txt"])
    answers = []
    for _ in range(MAX_REFUSALS + 1):
        each = desk.reporter(job)
        with pytest.raises(NotVerified, match=r"out\.txt is missing"):
            each.completed("done", message=None)
        answers.append(each.may_try_again())
    assert answers == [True] * MAX_REFUSALS + [False]
    assert desk.reporter(job.replace(attempt=job.attempt + 1)).may_try_again(), "each attempt is counted anew"


def test_the_limits_follow_the_clock_and_the_events(desk):
    job = desk.job(timeout_sec=100, idle_timeout_sec=10)
    reporter = desk.reporter(job)
    reporter.permission_required("may I?")
    assert reporter.status() == "running"
    desk.clock.advance(60)
    assert reporter.exceeded_limit(0) is None, "it waits for a permission"
    assert not reporter.is_silent(1)
    desk.jobs.record_event(job.job_id, "progress", attempt=job.attempt)
    assert reporter.status() == "running"
    desk.clock.advance(10)
    assert reporter.is_silent(10)
    assert reporter.exceeded_limit(5) is None, "slack"
    assert reporter.exceeded_limit(0) is Limit.SILENCE
    assert Limit.SILENCE.describe(job) == "nothing was heard of the job for 10 s"
    desk.clock.advance(30)
    assert reporter.exceeded_limit(0) is Limit.TIME
    assert Limit.TIME.describe(job) == "the job took longer than 100 s"
    reporter.begin(None)
    assert reporter.exceeded_limit(0) is None
    assert not reporter.is_silent(0)


@pytest.mark.parametrize(("event", "tries"), [("failed", 4), ("permission_required", 4), ("progress", 1)])
def test_what_must_not_be_lost_is_tried_again_while_the_registry_is_away(desk, monkeypatch, event, tries):
    job = desk.job()
    tried = []

    def away(*_, **__):
        tried.append(1)
        raise RegistryUnavailable("away")

    monkeypatch.setattr(reporter_module, "report", away)
    with pytest.raises(RegistryUnavailable):
        getattr(desk.reporter(job, patience_sec=1.5), event)("x")
    assert len(tried) == tries
    monkeypatch.undo()
    getattr(desk.reporter(job, patience_sec=1.5), event)("x")
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
