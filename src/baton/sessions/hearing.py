"""Collect the signals of a session's agent, from any thread, for the main thread of the runner."""

from __future__ import annotations

from collections import deque
from threading import Lock

from baton.core.signal import Asked, Conversation, Heard, Said, ToolStarted, TurnStarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.core.clock import Clock

MAX_WAITING = 1000
_BEGINNINGS = (TurnStarted, ToolStarted, Asked)


class Ear:
    """A queue of signals. `hear` returns at once, whatever the main thread waits for. A full queue drops what the agent
    said, but no turn, tool, request or decision. Each signal was heard when it came here, by the clock of the runner:
    that of a channel does not know when the runner stood still."""

    def __init__(self, wake: Callable[[], None], clock: Clock) -> None:
        self._wake = wake
        self._clock = clock
        self._waiting: deque[Heard] = deque()
        self._lock = Lock()
        # Turns, tools and requests that have begun, and conversations that have ended: a verification during which it
        # changes is void.
        self.begun = 0
        self.dropped = 0

    def hear(self, heard: Heard) -> None:
        """Take a signal, in any thread, and wake the main thread."""
        with self._lock:
            if isinstance(heard.signal, Said) and len(self._waiting) >= MAX_WAITING:
                self.dropped += 1
                return
            ends = isinstance(heard.signal, Conversation) and heard.signal.ended is not None
            self.begun += ends or isinstance(heard.signal, _BEGINNINGS)
            self._waiting.append(heard.replace(at_ns=self._clock.monotonic_ns()))
        self._wake()

    def take(self) -> list[Heard]:
        """Return the signals that were heard since the last call, in order."""
        with self._lock:
            heard = list(self._waiting)
            self._waiting.clear()
        return heard
