from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.clock import SystemClock, format_micros, format_time, lease_expired, lease_mark, parse_time
from support.clock import FakeClock

SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("2026-06-19T09:30:00Z", "2026-06-19T09:30:00Z"),
        ("2026-06-19T09:30:00.5Z", "2026-06-19T09:30:00.500Z"),
        ("2026-06-19T09:30:00.123456Z", "2026-06-19T09:30:00.123456Z"),
        ("2026-06-19T09:30:00.123456789Z", "2026-06-19T09:30:00.123456789Z"),
        ("2026-06-19T18:30:00+09:00", "2026-06-19T09:30:00Z"),
        ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
    ],
)
def test_times_are_written_in_one_form(text, canonical):
    assert format_time(parse_time(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "2026-06-19T09:30:00",
        "2026-06-19 09:30:00Z",
        "2026-06-19",
        "2026-13-01T00:00:00Z",
        "now",
        "",
        "\uff12026-06-19T09:30:00Z",
        "2026-06-19T09:30:00.1234567890Z",
        "2026-06-19T09:30:00z",
        "9999-12-31T23:59:59Z",
        "0001-01-01T00:00:00+23:59",
    ],
)
def test_what_is_not_a_time_with_a_zone_is_refused(text):
    with pytest.raises(ValueError, match="is "):
        parse_time(text)


@given(st.integers(-8 * 10**18, 8 * 10**18))
def test_every_nanosecond_survives(ns):
    text = format_time(ns)
    assert parse_time(text) == ns
    assert datetime.fromisoformat(text).astimezone(UTC).timestamp() == pytest.approx(ns / SECOND, abs=1e-3)


class TestLease:
    def test_it_ends_when_its_time_has_passed(self):
        clock = FakeClock()
        mark = lease_mark(clock, 30 * SECOND)
        clock.advance(30)
        assert not lease_expired(clock, mark, format_time(clock.wall))
        clock.advance(0.001)
        assert lease_expired(clock, mark, format_time(clock.wall))

    @pytest.mark.parametrize("jump", [-86400, -3600, 3600, 86400])
    def test_setting_the_date_neither_ends_nor_prolongs_it(self, jump):
        clock = FakeClock()
        expires = format_time(clock.wall + 30 * SECOND)
        mark = lease_mark(clock, 30 * SECOND)
        clock.wall += jump * SECOND
        assert not lease_expired(clock, mark, expires)
        clock.monotonic += 31 * SECOND
        assert lease_expired(clock, mark, expires)

    def test_a_reboot_ends_it(self):
        clock = FakeClock()
        mark = lease_mark(clock, 30 * SECOND)
        clock.boot = "boot-2"
        assert lease_expired(clock, mark, format_time(clock.wall + 30 * SECOND))

    def test_without_a_mark_the_date_decides(self):
        clock = FakeClock()
        assert not lease_expired(clock, None, format_time(clock.wall + SECOND))
        assert lease_expired(clock, None, format_time(clock.wall - SECOND))

    def test_a_system_without_boot_ids_gives_no_mark(self):
        clock = FakeClock()
        clock.boot = None
        assert lease_mark(clock, SECOND) is None


def test_the_system_clock_runs():
    clock = SystemClock()
    assert clock.wall_ns() > parse_time("2026-01-01T00:00:00Z")
    assert clock.monotonic_ns() <= clock.monotonic_ns()
    assert clock.boot_id() == SystemClock().boot_id()


def test_printed_times_have_at_most_microseconds():
    assert format_micros(parse_time("2026-06-19T09:30:00.123456789Z")) == "2026-06-19T09:30:00.123456Z"
    assert format_micros(parse_time("2026-06-19T09:30:00.123000999Z")) == "2026-06-19T09:30:00.123Z"
    assert format_micros(parse_time("2026-06-19T09:30:00Z")) == "2026-06-19T09:30:00Z"
