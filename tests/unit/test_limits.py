"""The limits of a job, decided without a clock."""

from __future__ import annotations

import pytest

from baton.core.event import EventName
from baton.core.limits import Limit, exceeded_limit


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


@pytest.mark.parametrize("event", [None, *EventName])
def test_waiting_for_a_permission_is_no_silence_but_takes_time(event):
    silent = None if event is EventName.PERMISSION_REQUIRED else Limit.SILENCE
    assert limit(60, last_event=lambda: event) is silent
    assert limit(100, last_event=lambda: event) is Limit.TIME


def test_the_last_event_is_read_only_after_a_silence():
    def read():
        raise AssertionError("read without need")

    assert limit(49, last_event=read) is None
    assert limit(100, last_event=read) is Limit.TIME
