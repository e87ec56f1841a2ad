"""The limits of a job, decided without a clock."""

from __future__ import annotations

import pytest

from baton.core.activity import KINDS
from baton.core.limits import Limit, exceeded_limit, is_paused


def limit(now, *, deadline=100, silent_since=0, idle_timeout=50, **more):
    return exceeded_limit(now, deadline=deadline, silent_since=silent_since, idle_timeout=idle_timeout, **more)


@pytest.mark.parametrize(
    ("now", "expected"), [(0, None), (49.9, None), (50, Limit.SILENCE), (99, Limit.SILENCE), (100, Limit.TIME)]
)
def test_a_limit_is_exceeded_from_its_moment_on_and_time_comes_before_silence(now, expected):
    assert limit(now) is expected


def test_each_event_starts_the_silence_anew_and_moves_no_deadline():
    assert limit(99, silent_since=60) is None
    assert limit(100, silent_since=99) is Limit.TIME


def test_slack_is_added_to_both_limits():
    assert limit(54, slack=5) is None
    assert limit(55, slack=5) is Limit.SILENCE
    assert limit(104, slack=5, silent_since=60) is None
    assert limit(105, slack=5, silent_since=60) is Limit.TIME


@pytest.mark.parametrize("missing", ["silent_since", "idle_timeout"])
def test_a_limit_that_is_not_set_is_never_exceeded(missing):
    assert limit(99, **{missing: None}) is None
    assert limit(10**9, deadline=None, **{missing: None}) is None


def test_an_idle_clock_that_pauses_is_no_silence_but_takes_time():
    assert limit(60, pauses=lambda: True) is None
    assert limit(60, pauses=lambda: False) is Limit.SILENCE
    assert limit(100, pauses=lambda: True) is Limit.TIME


def test_whether_the_clock_pauses_is_read_only_after_a_silence():
    def read():
        raise AssertionError("read without need")

    assert limit(49, pauses=read) is None
    assert limit(100, pauses=read) is Limit.TIME


@pytest.mark.parametrize("kind", [*KINDS, "something of a later version"])
def test_only_a_fresh_activity_of_this_attempt_pauses_the_clocks_of_listeners(kind):
    activity = {"kind": kind, "attempt": 2}
    pausing = kind in ("blocked", "limited", "retrying", "waiting", "working")
    assert is_paused(activity, attempt=2, lease_is_fresh=True) is pausing
    assert not is_paused(activity, attempt=3, lease_is_fresh=True)
    assert not is_paused(activity, attempt=2, lease_is_fresh=False)
    assert not is_paused(None, attempt=2, lease_is_fresh=True)


def test_the_reason_names_the_last_known_cause():
    cause = "waiting for a permission: Bash: make"
    assert Limit.TIME.describe_sec(60, cause) == f"the job took longer than 60 s; last known: {cause}"
    assert Limit.SILENCE.describe_sec(0.5) == "nothing was heard of the job for 0.5 s"
