"""Clocks that the test sets."""

from __future__ import annotations

from baton.core.clock import SECOND_NS, Clock, SystemClock


class FakeClock(Clock):
    def __init__(self, wall_ns: int = 1_800_000_000 * 10**9) -> None:
        self.wall = wall_ns
        self.monotonic = 5_000 * 10**9
        self.boot = "boot-1"

    def wall_ns(self) -> int:
        self.wall += 1000  # two readings are never the same moment
        return self.wall

    def monotonic_ns(self) -> int:
        return self.monotonic

    def boot_id(self) -> str | None:
        return self.boot

    def advance(self, seconds: float) -> None:
        self.wall += int(seconds * 10**9)
        self.monotonic += int(seconds * 10**9)


class LaterClock(SystemClock):
    """The clocks of this machine, later by what the test says."""

    passed_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.passed_ns

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.passed_ns

    def advance(self, seconds: float) -> None:
        self.passed_ns += int(seconds * SECOND_NS)
