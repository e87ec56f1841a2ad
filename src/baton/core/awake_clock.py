"""Measure time as one process sees it: while the process itself stands still, no time passes for it.

It stands still when it is stopped (SIGSTOP, Ctrl-Z), when its container is frozen or its virtual machine paused, and
while a laptop sleeps. What it watches may have stood still with it, or may have ended meanwhile: by this clock, a
process that goes on first looks at what has happened, and has as much time left until a limit as it had before.
"""

from __future__ import annotations

import time
from threading import Lock

from baton.core.clock import SECOND_NS, Clock, SystemClock

# A reading that comes later than this was not delayed by load alone.
_LATE_NS = SECOND_NS
# What counts of the time before a late reading, so that a limit is exceeded even if every reading is late.
_LEAST_NS = SECOND_NS // 4
_MOST_GAPS = 1000
FOREVER_SEC = 10.0**9


class AwakeClock(Clock):
    """The clock of a process that watches jobs. It finds out that the process stood still by its own readings: a
    process reads it at every look, and says by `will_read_in` when it looks next. May be read in any thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._wall_ns = self._clock.wall_ns()
        self._real_ns = self._until_ns = self._awake_ns = self._clock.monotonic_ns()
        self._gaps: list[tuple[int, int]] = []  # from when to when the process stood still, by the date
        self._woke = False

    def monotonic_ns(self) -> int:
        with self._lock:
            self._read()
            return self._awake_ns

    def wall_ns(self) -> int:
        with self._lock:
            self._read()
            return self._wall_ns

    def boot_id(self) -> str | None:
        return self._clock.boot_id()

    def will_read_in(self, sec: float) -> None:
        with self._lock:
            self._read()
            self._until_ns = self._real_ns + int(sec * SECOND_NS)

    def sleep(self, sec: float) -> None:
        """Sleep for so long, and notice if the process stands still meanwhile."""
        ends_ns = self._clock.monotonic_ns() + int(sec * SECOND_NS)
        while (left_ns := ends_ns - self._clock.monotonic_ns()) > 0:
            pause_sec = min(left_ns, _LATE_NS) / SECOND_NS
            self.will_read_in(pause_sec)
            time.sleep(pause_sec)
        self.will_read_in(0)

    def missed_ns(self, since_ns: int) -> int:
        with self._lock:
            self._read()
            missed_ns = 0
            for began_ns, ended_ns in reversed(self._gaps):
                if ended_ns <= since_ns:
                    break
                missed_ns += ended_ns - max(began_ns, since_ns)
            return missed_ns

    def leave_out(self) -> None:
        """Leave out the time since the last reading: what this process watches stands still."""
        with self._lock:
            wall_ns, self._real_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
            if wall_ns > self._wall_ns:
                self._note_gap(self._wall_ns, wall_ns)
            self._wall_ns, self._until_ns = wall_ns, self._real_ns

    def take_wake(self) -> bool:
        """Return whether the process has stood still since the last call."""
        with self._lock:
            self._read()
            woke, self._woke = self._woke, False
            return woke

    def _read(self) -> None:
        wall_ns, real_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
        passed_ns = real_ns - self._real_ns
        if real_ns > max(self._until_ns, self._real_ns) + _LATE_NS:  # guard: standing-still
            passed_ns, self._woke = _LEAST_NS, True
        # The monotonic clock of a machine stops while the machine sleeps; its date goes on. So does a date that is set.
        missed_ns = wall_ns - self._wall_ns - passed_ns
        if missed_ns > _LATE_NS:
            self._note_gap(wall_ns - missed_ns, wall_ns)
            self._woke = True
        elif missed_ns < -_LATE_NS:
            self._gaps = []  # the date was set back: they are of another time
        self._wall_ns, self._real_ns = wall_ns, real_ns
        self._awake_ns += passed_ns

    def _note_gap(self, began_ns: int, ended_ns: int) -> None:
        self._gaps = [*self._gaps[1 - _MOST_GAPS :], (began_ns, ended_ns)]
