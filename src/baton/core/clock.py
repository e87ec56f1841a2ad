"""Read clocks, and convert times between nanoseconds and text.

Code holds times as integer nanoseconds since 1970, records as RFC 3339 text in UTC. Nanoseconds keep the order of jobs
that are registered in one burst; microseconds would not.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod

from baton.core.cpython import datetime, timedelta, timezone

SECOND_NS = 1_000_000_000
# How long a holder that stood still has to renew its lease, by the clock of a process that stood still with it.
_RENEWAL_NS = 60 * SECOND_NS
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TEXT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)


def parse_time(text: str) -> int:
    """Return nanoseconds since 1970. Raise ValueError for a time without a zone or out of range."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError("is not a time with a zone, such as 2026-06-19T09:30:00Z")
    seconds, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(seconds + ("+00:00" if zone == "Z" else zone))
        whole = (moment - _EPOCH) // timedelta(seconds=1)
    except (ValueError, OverflowError):
        raise ValueError("is not a possible time") from None
    if not -9_000_000_000 < whole < 9_000_000_000:
        raise ValueError("is outside the years 1684 to 2255")
    return whole * SECOND_NS + int((fraction or "0").ljust(9, "0"))


def format_time(ns: int) -> str:
    """Return the time in UTC with `Z` and as many digits (0, 3, 6 or 9) as it needs."""
    seconds, fraction = divmod(ns, SECOND_NS)
    text = datetime.fromtimestamp(seconds, timezone.utc).isoformat()[:19]
    if fraction:
        digits = f"{fraction:09d}"
        while digits.endswith("000"):
            digits = digits[:-3]
        text += "." + digits
    return text + "Z"


def format_micros(ns: int) -> str:
    """Return the time like `format_time`, with at most microseconds: many programs can read no more digits."""
    seconds, micros = divmod(ns // 1000, 1_000_000)
    text = datetime.fromtimestamp(seconds, timezone.utc).isoformat()[:19]
    if not micros:
        return text + "Z"
    return f"{text}.{micros:06d}Z" if micros % 1000 else f"{text}.{micros // 1000:03d}Z"


def duration_text(ns: int) -> str:
    """Return a duration for people: 12s, 2m10s, 3h05m."""
    minutes, seconds = divmod(max(ns, 0) // SECOND_NS, 60)
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"


class Clock(ABC):
    """The clocks that code reads. Tests pass their own."""

    @abstractmethod
    def wall_ns(self) -> int: ...
    @abstractmethod
    def monotonic_ns(self) -> int: ...
    @abstractmethod
    def boot_id(self) -> str | None:
        """Return the id of this boot, for which monotonic times are valid; None if the system has none."""

    def will_read_in(self, sec: float) -> None:  # noqa: B027  only a clock that looks for gaps needs it
        """Note that this process reads the clock again in so many seconds at the latest."""

    def missed_ns(self, since_ns: int) -> int:
        """Return for how long this process has stood still since a date, as far as the clock knows."""
        return 0

    def lease_ns(self, expires_ns: int) -> int:
        """Return the date by which to judge a lease that ends at `expires_ns`. A lease that ended while this process
        stood still has as long as it had before: its holder may have stood still, too, and renews it now."""
        return self.wall_ns() - self.missed_ns(expires_ns - _RENEWAL_NS)


class SystemClock(Clock):
    """The machine's clocks. The monotonic one ignores changes of the date and stops while the machine sleeps, so that a
    lease neither ends early nor lasts for ever."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def boot_id(self) -> str | None:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return None


def lease_mark(clock: Clock, lease_ns: int) -> str | None:
    """Return when a lease that begins now ends, on the monotonic clock; None if there is no boot id."""
    boot = clock.boot_id()
    return f"{boot}/{clock.monotonic_ns() + lease_ns}" if boot else None


def lease_expired(clock: Clock, mark: str | None, expires_at: str) -> bool:
    """Return whether a lease has expired: by the monotonic mark, or by the date if there is none."""
    if mark is None:
        return clock.wall_ns() > parse_time(expires_at)
    boot, _, until = mark.partition("/")
    # Another boot: the holder died with the machine.
    return boot != clock.boot_id() or clock.monotonic_ns() > int(until)
