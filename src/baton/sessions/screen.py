"""Ask tmux about the runner's own pane. baton never reads the screen for its meaning."""

from __future__ import annotations

from baton.core.clock import SECOND_NS, Clock
from baton.core.errors import BatonError
from baton.sessions.session import Session
from baton.sessions.tmux import Tmux

_LIFE_SEC = 10.0
_LINES = 500
_TRIES = 3


class Screen:
    def __init__(self, session: Session, clock: Clock) -> None:
        self._pane_id = session.pane_id
        self._tmux = Tmux(session.socket)
        self._clock = clock
        self._life_until_ns = 0

    def shows_life(self, within_sec: float) -> bool:
        """Return whether the screen has changed within so many seconds; True while tmux does not answer."""
        if self._pane_id is None:
            return False
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._life_until_ns:
            try:
                changed_sec = self._tmux.changed_at(self._pane_id)
            except BatonError:
                return True
            missed_sec = self._clock.missed_ns(int(changed_sec * SECOND_NS)) / SECOND_NS
            if self._clock.wall_ns() / SECOND_NS - changed_sec - missed_sec >= within_sec:
                return False
            self._life_until_ns = now_ns + int(min(within_sec, _LIFE_SEC) * SECOND_NS)
        return True

    def is_watched(self) -> bool:
        """Return whether a person may look at it."""
        return self._pane_id is not None and self._tmux.is_watched(self._pane_id)

    def text(self) -> str:
        """Return its last lines; "" if the pane is gone."""
        if self._pane_id is None:
            return ""
        # A call may fail because `session stop` ended it with the processes of the agent: make it again.
        return next(filter(None, (self._capture(self._pane_id) for _ in range(_TRIES))), "")

    def _capture(self, pane_id: str) -> str | None:
        try:
            return self._tmux.capture(pane_id, _LINES)
        except BatonError:
            return None
