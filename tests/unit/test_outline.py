"""What a job is doing, as the registry knows it: the activity that its runner has written, under a lease that holds."""

from __future__ import annotations

import pytest

from baton.core.clock import SECOND_NS, format_time, parse_time
from baton.core.drafts import new_job
from baton.core.event import EventName
from baton.core.job import Status
from baton.core.limits import PAUSING, Limit, pauses_idle_clock, silent_since_ns
from baton.core.outline import Outline, activity_of, is_stuck, present_activity, public_record, reason_of
from support.clock import FakeClock

NOW = 1_800_000_000 * SECOND_NS
KINDS = ("starting", "blocked", "working", "waiting", "retrying", "limited", "idle", "stalled", "unknown")


def a_job(kind="working", *, cause="why", since_sec=10, attempt=1, lease_sec=30, **more):
    activity = {"kind": kind, "since": format_time(NOW - since_sec * SECOND_NS), "cause": cause, "attempt": attempt}
    job = new_job("x", now_ns=1, agent="claude-code", **more).replace(status=Status.RUNNING, attempt=1)
    lease = format_time(NOW + lease_sec * SECOND_NS)
    return job.replace(activity=activity if kind else None, lease_expires_at=lease)


@pytest.mark.parametrize("kind", KINDS)
def test_a_running_job_does_what_its_runner_has_written(kind):
    job = a_job(kind)
    assert activity_of(Outline.of(job), now_ns=NOW) == kind
    assert public_record(job, now_ns=NOW)["activity"] == job.activity
    assert is_stuck(job, now_ns=NOW) is (kind in ("blocked", "stalled"))


@pytest.mark.parametrize(
    ("changes", "when"), [({"attempt": 2}, "another attempt"), ({"lease_sec": -1}, "past its lease")]
)
def test_what_may_not_hold_any_more_is_unknown(changes, when):
    job = a_job("working", **({"lease_sec": changes["lease_sec"]} if "lease_sec" in changes else {}))
    job = job.replace(attempt=changes.get("attempt", 1))
    assert activity_of(Outline.of(job), now_ns=NOW) == "unknown", when
    assert public_record(job, now_ns=NOW)["activity"] == {**job.activity, "kind": "unknown"}
    assert not is_stuck(job, now_ns=NOW)


@pytest.mark.parametrize("status", [Status.PENDING, Status.COMPLETED, Status.ERROR, Status.CANCELLED])
def test_a_job_that_does_not_run_has_no_activity(status):
    job = a_job().replace(status=status)
    assert present_activity(job, now_ns=NOW) is None
    assert public_record(job, now_ns=NOW)["activity"] is None
    assert activity_of(Outline.of(job), now_ns=NOW) == ""


def test_an_open_request_is_waiting_before_the_runner_has_written_it():
    outline = Outline.of(a_job("working"), None, ("Bash: rm x",))
    assert activity_of(outline, now_ns=NOW) == "waiting"


@pytest.mark.parametrize(
    ("event", "expected"),
    [(None, "starting"), (EventName.PROGRESS, "working"), (EventName.PERMISSION_REQUIRED, "waiting")],
)
def test_without_a_written_activity_the_last_event_decides_and_with_one_it_does_not(event, expected):
    assert activity_of(Outline.of(a_job(None), event), now_ns=NOW) == expected
    assert activity_of(Outline.of(a_job("retrying"), event), now_ns=NOW) == "retrying"


def test_the_cause_is_the_reason_where_a_user_wants_to_know_it():
    causes = {kind: reason_of(Outline.of(a_job(kind)), kind) for kind in KINDS}
    assert {kind for kind, cause in causes.items() if cause == "why"} == {
        "waiting", "blocked", "retrying", "limited", "stalled", "idle", "unknown",
    }  # fmt: skip
    assert Limit.TIME.describe(a_job()) == "the job took longer than 3600 s; last known: why"
    assert Limit.SILENCE.describe(a_job(cause="")) == "nothing was heard of the job for 120 s"
    assert "last known" not in Limit.TIME.describe(a_job().replace(attempt=2))


def refuse():
    raise AssertionError("the last event decides nothing where an activity is written")


@pytest.mark.parametrize("kind", KINDS)
def test_idle_clocks_pause_by_the_kind_under_a_lease_that_holds(kind):
    job = a_job(kind, since_sec=100)
    assert pauses_idle_clock(job, clock=FakeClock(NOW), last_event=refuse, idle_sec=50) is (kind in PAUSING)
    late = a_job(kind, since_sec=100, lease_sec=-1)
    assert pauses_idle_clock(late, clock=FakeClock(NOW), last_event=refuse, idle_sec=50) is False
    assert pauses_idle_clock(job.replace(attempt=2), clock=FakeClock(NOW), last_event=refuse, idle_sec=50) is False


def test_the_limit_of_the_job_itself_is_left_to_a_runner_that_lives():
    assert pauses_idle_clock(a_job("idle", since_sec=1000), clock=FakeClock(NOW), last_event=refuse)
    assert pauses_idle_clock(a_job("unknown", since_sec=1000), clock=FakeClock(NOW), last_event=refuse), (
        "an agent that says nothing"
    )
    assert not pauses_idle_clock(a_job("idle", lease_sec=-1), clock=FakeClock(NOW), last_event=refuse)


def test_an_agent_that_says_itself_that_it_waits_does():
    asks = EventName.PERMISSION_REQUIRED
    told = {kind: activity_of(Outline.of(a_job(kind), asks), now_ns=NOW) for kind in KINDS}
    assert told == {kind: kind for kind in KINDS} | {"working": "waiting", "unknown": "waiting"}
    outline = Outline.of(a_job("working", cause="the program runs").replace(detail="may I?"), asks)
    assert reason_of(outline, "waiting") == "may I?"
    late = Outline.of(a_job("working", lease_sec=-1), asks)
    assert activity_of(late, now_ns=NOW) == "unknown"


def test_a_limit_shorter_than_the_way_to_the_registry_ends_nothing_falsely():
    assert pauses_idle_clock(a_job("idle", since_sec=2), clock=FakeClock(NOW), last_event=refuse, idle_sec=0.1)
    assert not pauses_idle_clock(a_job("idle", since_sec=4), clock=FakeClock(NOW), last_event=refuse, idle_sec=0.1)


@pytest.mark.parametrize("event", [None, *EventName])
def test_a_job_that_is_worked_by_hand_waits_after_permission_required(event):
    waits = event is EventName.PERMISSION_REQUIRED
    assert pauses_idle_clock(a_job(None), clock=FakeClock(NOW), last_event=lambda: event) is waits
    pending = a_job(None).replace(status=Status.PENDING)
    assert pauses_idle_clock(pending, clock=FakeClock(NOW), last_event=lambda: event) is False


def test_the_silence_begins_with_the_last_event_or_the_last_change_of_the_activity():
    job = a_job("stalled", since_sec=10)
    assert silent_since_ns(job) == NOW - 10 * SECOND_NS
    assert silent_since_ns(job.replace(last_event_at=format_time(NOW))) == NOW
    assert silent_since_ns(a_job(None)) is None
    assert parse_time(job.activity["since"]) == silent_since_ns(job)
