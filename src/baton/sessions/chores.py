"""Run the runner's chores, each at its interval."""

from collections.abc import Callable

from baton.core.clock import SECOND_NS, Clock
from baton.core.errors import BatonError
from baton.sessions.terminal import print_line


class Chores:
    """Actions by their interval in seconds."""

    def __init__(self, clock: Clock, chores: list[tuple[float, Callable[[], None]]]) -> None:
        self._clock = clock
        now_ns = clock.monotonic_ns()
        self._chores = [(int(every_sec * SECOND_NS), action) for every_sec, action in chores]
        self._due_ns = [now_ns + every_ns for every_ns, _ in self._chores]

    def wait_sec(self) -> float:
        """Return how long no chore is due."""
        return max(0, min(self._due_ns) - self._clock.monotonic_ns()) / SECOND_NS

    def hurry(self) -> None:
        """Make every chore due now: the process stood still."""
        self._due_ns = [self._clock.monotonic_ns()] * len(self._chores)

    def run_due(self) -> None:
        """Run the chores whose time has come."""
        for number, (every_ns, action) in enumerate(self._chores):
            if self._clock.monotonic_ns() >= self._due_ns[number]:
                self._due_ns[number] = self._clock.monotonic_ns() + every_ns
                attempt(action)


def attempt(action: Callable[[], None]) -> None:
    """Run an action. Print why it failed, and go on: the registry is unavailable, say, or the disk is full."""
    try:
        action()
    except (BatonError, OSError) as error:
        print_line(f"baton: {error}")
