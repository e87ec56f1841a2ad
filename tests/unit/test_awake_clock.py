"""Time as a process sees it that looks again and again: what it missed while it stood still is left out."""

from __future__ import annotations

import pytest

from baton.core.awake_clock import AwakeClock
from baton.core.clock import SECOND_NS
from support.clock import FakeClock


@pytest.fixture
def real():
    return FakeClock()


@pytest.fixture
def clock(real):
    return AwakeClock(real)


def sec(clock):
    return clock.monotonic_ns() / SECOND_NS


def test_time_passes_while_it_is_read_when_it_was_said(clock, real):
    began = sec(clock)
    for pause in (0.02, 0.9, 1, 2, 30):
        clock.will_read_in(pause)
        real.advance(pause + 0.5)
    assert sec(clock) - began == pytest.approx(0.02 + 0.9 + 1 + 2 + 30 + 5 * 0.5)
    assert not clock.take_wake()
    assert clock.missed_ns(0) == 0


def test_what_lies_before_a_late_reading_is_left_out(clock, real):
    clock.will_read_in(1)
    began = sec(clock)
    real.advance(3600)
    assert sec(clock) - began <= 0.25
    assert clock.take_wake()
    assert not clock.take_wake(), "once"
    real.advance(0.5)
    assert sec(clock) - began <= 0.75
    assert clock.wall_ns() == pytest.approx(real.wall, abs=10_000), "the date is the date"


def test_a_limit_comes_even_if_every_reading_is_late(clock, real):
    began = sec(clock)
    for _ in range(40):
        real.advance(5)
        clock.monotonic_ns()
    assert sec(clock) - began >= 10


def test_a_machine_that_slept_has_missed_what_the_date_says(clock, real):
    """Its monotonic clock stops meanwhile."""
    before, slept_at = sec(clock), real.wall
    real.wall += 3600 * SECOND_NS
    assert sec(clock) == before
    assert clock.take_wake()
    assert clock.missed_ns(slept_at) == pytest.approx(3600 * SECOND_NS, abs=10**7)


def test_of_a_pause_only_what_came_after_the_date_was_missed(clock, real):
    began = real.wall
    for _ in range(3):
        real.advance(1)
        clock.will_read_in(0)
        real.advance(100)
        clock.monotonic_ns()
    missed = [clock.missed_ns(began + since * SECOND_NS) / SECOND_NS for since in (-9, 0, 60, 101, 150, 303, 999)]
    assert missed == pytest.approx([300, 300, 241, 200, 152, 0, 0], abs=1)


def test_a_date_that_is_set_back_makes_no_lease_longer(clock, real):
    real.advance(3600)
    assert clock.missed_ns(0)
    real.wall -= 86400 * SECOND_NS
    assert clock.missed_ns(0) == 0


def test_a_lease_that_ended_in_a_pause_has_as_long_as_before_and_a_later_one_no_longer(clock, real):
    ends = real.wall + 20 * SECOND_NS
    real.advance(3600)
    assert clock.lease_ns(ends) < ends
    for _ in range(21):
        real.advance(1)
        clock.monotonic_ns()
    assert clock.lease_ns(ends) > ends
    # One that another process gave meanwhile, to a holder that died: at most a minute from the wake on.
    given = real.wall - 30 * 60 * SECOND_NS
    assert clock.lease_ns(given) < given + 60 * SECOND_NS
    for _ in range(45):
        real.advance(1)
        clock.monotonic_ns()
    assert clock.lease_ns(given) > given
    assert clock.lease_ns(real.wall + 61 * SECOND_NS) == pytest.approx(real.wall, abs=10_000), "given after the pause"


def test_a_sleep_notices_a_pause(clock, real, monkeypatch):
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        real.advance(seconds + (50 if len(pauses) == 2 else 0))

    monkeypatch.setattr("baton.core.awake_clock.time.sleep", sleep)
    began = sec(clock)
    clock.sleep(60)
    assert clock.take_wake()
    assert len(pauses) == 10, "the sleep ends when it should, by the clock of the machine"
    assert sec(clock) - began == pytest.approx(9, abs=1)


def test_a_pause_of_what_it_watches_is_left_out_too(clock, real):
    began = sec(clock)
    for _ in range(5):
        clock.will_read_in(1)
        real.advance(1)
        clock.leave_out()
    assert sec(clock) == began
    assert clock.missed_ns(0) / SECOND_NS == pytest.approx(5, abs=0.1)
    assert not clock.take_wake()


def test_it_remembers_so_many_pauses_and_no_more(clock, real):
    for _ in range(3000):
        real.advance(10)
        clock.monotonic_ns()
    assert 9_000 < clock.missed_ns(0) / SECOND_NS < 10_000
