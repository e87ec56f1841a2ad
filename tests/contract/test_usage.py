"""What every registry must keep of the usage of a job, and of a usage limit. Each test runs on each backend."""

from __future__ import annotations

import json

import pytest

from baton.core.clock import SECOND_NS, format_micros, parse_time
from baton.core.drafts import new_job, repeat_job
from baton.core.errors import InvalidValue, JobBlocked
from baton.core.event import EventName
from baton.core.job import Status
from baton.core.limits import is_at_limit, time_left_sec
from baton.core.outline import activity_of, public_record, reason_of, run_of
from baton.core.parking import is_parked, kept_conversation, parking
from baton.jobs.costs import sum_costs
from baton.jobs.verbs import Jobs
from support.clock import FakeClock

USED = {
    "attempt": 1, "input_tokens": 100, "cached_tokens": 10, "cache_write_tokens": 5, "output_tokens": 20,
    "cost_usd": 0.5, "at": "2026-01-01T00:00:00Z",
}  # fmt: skip


@pytest.fixture
def running(registry, clock):
    def claim(**fields):
        job = registry.register_job(new_job("x", now_ns=clock.wall_ns(), agent="a", **fields))
        return registry.pick_job(job.job_id, holder="me", lease_sec=30).after

    return claim


def park(registry, job, seconds: float):
    """Let the holder of a job report a usage limit that ends after so many seconds."""
    now_ns = registry._present_ns()
    about = parking(job, now_ns + int(seconds * SECOND_NS), now_ns, why="a limit", has_answered=True)
    outcome = {"ended_by": "limit", "parked": about | {"conversation_id": "c1", "host": "here"}}
    return registry.record_event(job.job_id, EventName.ERROR, detail="a limit", attempt=job.attempt, outcome=outcome)


RUN = {"attempt": 1, "agent_version": "2.1.400", "agent_mode": "auto", "model": "m"}


class TestRuns:
    def test_what_an_attempt_runs_is_kept_and_shown(self, registry, running, clock):
        job = running(max_attempts=2)
        clock.advance(5)
        assert registry.note_run(job.job_id, RUN | {"agent_mode": None}).agent_runs == (RUN | {"agent_mode": None},)
        assert registry.get_job(job.job_id).updated_at == job.updated_at
        registry.note_run(job.job_id, RUN)
        registry.requeue(job.job_id)
        registry.pick_job(job.job_id, holder="me")
        kept = registry.get_job(job.job_id)
        assert kept.agent_runs == (RUN,)
        unknown = dict.fromkeys(("agent_version", "agent_mode", "model"))
        assert run_of(kept) == unknown, "nothing is known of the new attempt"
        second = RUN | {"attempt": 2, "agent_version": "2.1.401"}
        registry.note_run(job.job_id, second)
        registry.record_event(job.job_id, EventName.COMPLETED, attempt=2)
        kept = registry.get_job(job.job_id)
        assert kept.agent_runs == (RUN, second)
        shown = {"agent_version": "2.1.401", "agent_mode": "auto", "model": "m"}
        assert run_of(registry.list_outlines().jobs[0]) == run_of(kept) == shown
        assert public_record(kept, now_ns=clock.wall_ns()).items() >= shown.items()

    def test_the_same_again_changes_nothing(self, registry, running):
        job = running()
        first = registry.note_run(job.job_id, RUN)
        assert registry.note_run(job.job_id, RUN).change == first.change

    def test_what_is_not_valid_is_refused(self, registry, running):
        job = running()
        for wrong in ({"attempt": 2}, {"agent_version": "a\nb"}, {"agent_mode": 7}, {"model": ""}):
            with pytest.raises(InvalidValue, match="agent_runs"):
                registry.note_run(job.job_id, RUN | wrong)
        assert registry.get_job(job.job_id).agent_runs == ()

    def test_a_new_job_for_the_same_work_begins_without_it(self, registry, running, clock):
        job = running()
        registry.note_run(job.job_id, RUN)
        again = registry.register_job(repeat_job(registry.get_job(job.job_id), now_ns=clock.wall_ns()))
        assert again.agent_runs == ()

    def test_it_keeps_the_newest_of_very_many_attempts(self, registry, running):
        job = running(max_attempts=200)
        for attempt in range(2, 104):
            registry.requeue(job.job_id)
            registry.pick_job(job.job_id, holder="me")
            registry.note_run(job.job_id, RUN | {"attempt": attempt})
        assert [each["attempt"] for each in registry.get_job(job.job_id).agent_runs] == list(range(4, 104))


class TestUsage:
    def test_it_is_kept_by_attempt_whatever_became_of_the_job(self, registry, running, clock):
        job = running(max_attempts=2)
        clock.advance(5)
        assert registry.note_usage(job.job_id, USED).usage == (USED,)
        assert registry.get_job(job.job_id).updated_at == job.updated_at
        registry.requeue(job.job_id)
        registry.pick_job(job.job_id, holder="me")
        registry.record_event(job.job_id, EventName.COMPLETED, attempt=2)
        more = {**USED, "attempt": 2, "cost_usd": None}
        registry.note_usage(job.job_id, more)
        registry.note_usage(job.job_id, {**USED, "input_tokens": 99, "cost_usd": 9.0})  # older than what is known
        kept = registry.get_job(job.job_id)
        assert (kept.status, kept.usage) == (Status.COMPLETED, (USED, more))
        assert registry.list_outlines().jobs[0].usage == kept.usage

    def test_the_same_again_changes_nothing(self, registry, running):
        job = running()
        first = registry.note_usage(job.job_id, USED)
        assert registry.note_usage(job.job_id, USED).change == first.change

    def test_what_is_not_valid_is_refused(self, registry, running):
        job = running()
        for wrong in ({"attempt": 2}, {"input_tokens": -1}, {"cost_usd": -1.0}, {"cost_usd": "1"}, {"at": "now"}):
            with pytest.raises(InvalidValue, match="usage"):
                registry.note_usage(job.job_id, USED | wrong)
        assert registry.get_job(job.job_id).usage == ()

    def test_a_new_job_for_the_same_work_begins_without_it(self, registry, running, clock):
        job = running(budget_usd=2.5, on_limit="fail")
        registry.note_usage(job.job_id, USED)
        again = registry.register_job(repeat_job(registry.get_job(job.job_id), now_ns=clock.wall_ns()))
        assert (again.usage, again.parked, again.budget_usd, again.on_limit) == ((), None, 2.5, "fail")

    def test_costs_are_summed_by_day_agent_and_label(self, registry, running, clock, tmp_path):
        jobs = Jobs(registry, str(tmp_path / "logs"), clock=clock)
        first, second = running(labels=["l1", "l2"]), running()
        now = format_micros(clock.wall_ns())
        registry.note_usage(first.job_id, USED | {"at": now})
        registry.note_usage(second.job_id, USED | {"at": now, "cost_usd": None})
        registry.record_event(first.job_id, EventName.STARTED)
        registry.record_event(first.job_id, EventName.ERROR)
        found = sum_costs(jobs, clock.wall_ns() - SECOND_NS)
        assert (found.total.attempts, found.total.cost_usd, found.total.unknown) == (2, 0.5, 1)
        assert list(found.by_day) == [now[:10]]
        assert {label: each.attempts for label, each in found.by_label.items()} == {"": 1, "l1": 1, "l2": 1}
        assert sum_costs(jobs, clock.wall_ns() + SECOND_NS).total.attempts == 0


class TestLimits:
    def test_the_job_waits_and_nothing_claims_it_before(self, registry, running, clock):
        job = running()
        registry.record_event(job.job_id, EventName.STARTED, attempt=1)
        recorded = park(registry, job, 97)
        waits = registry.get_job(job.job_id)
        assert (waits.status, waits.is_blocked, is_parked(waits)) == (Status.PENDING, True, True)
        payload = json.loads(recorded.event.payload)
        assert (payload["event"], payload["data"]["limited_until"]) == ("progress", waits.parked["until"])
        assert kept_conversation(waits, "here") == "c1"
        outline = registry.list_outlines().jobs[0]
        assert activity_of(outline, now_ns=clock.wall_ns()) == "limited"
        assert reason_of(outline, "limited") == "a limit"
        with pytest.raises(JobBlocked):
            registry.pick_job(job.job_id, holder="you")
        assert registry.pick_pending(job.agent_session, holder="you") is None
        assert time_left_sec(waits, clock=clock) == job.timeout_sec

    def test_it_goes_on_once_and_counts_as_neither_lost_nor_failed(self, registry, running, clock):
        job = running(retries=1)
        park(registry, job, 97)
        clock.advance(101)
        registry.advance_waiting()
        claimed = registry.pick_pending(job.agent_session, holder="you", lease_sec=30).after
        assert (claimed.attempt, claimed.lost_attempts, claimed.failed_attempts) == (2, 0, 0)
        assert claimed.activity is None
        assert kept_conversation(claimed, "here") == "c1"
        assert registry.pick_pending(job.agent_session, holder="third") is None
        left_sec = (parse_time(claimed.deadline_at) - clock.wall_ns()) / SECOND_NS
        assert left_sec == pytest.approx(job.timeout_sec, abs=0.1), "its whole time"

    def test_an_earlier_holder_can_not_park_it(self, registry, running, clock):
        job = running(max_attempts=2)
        registry.requeue(job.job_id)
        registry.pick_job(job.job_id, holder="you")
        with pytest.raises(Exception, match="attempt"):
            park(registry, job, 97)

    def test_no_clock_runs_while_the_agent_waits_in_its_session(self, registry, running):
        job, now_ns = running(), registry._present_ns()
        limited = {"kind": "limited", "since": format_micros(now_ns), "cause": "a limit"}
        job = registry.set_activity(job.job_id, limited, attempt=1)
        present, later = FakeClock(now_ns), FakeClock(now_ns + 60 * SECOND_NS)
        assert is_at_limit(job, clock=present)
        assert time_left_sec(job, clock=present) == job.timeout_sec
        assert not is_at_limit(job, clock=later), "past its lease"
