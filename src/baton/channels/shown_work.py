"""Write the output of an agent with a screen of its own from its signals: the tools it calls, and its last words."""

from __future__ import annotations

from baton.core.facts import describe_call
from baton.core.signal import Signal, ToolStarted, TurnEnded

_LINES = 1000  # that the runner has not taken


class ShownWork:
    """Text for people. Only one thread may use it at a time: the lock is the caller's."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, signal: Signal) -> None:
        if isinstance(signal, ToolStarted):
            self._lines.append(describe_call(signal.name, signal.call))
        elif isinstance(signal, TurnEnded) and (signal.message or signal.why):
            self._lines.append(signal.message or signal.why)
        del self._lines[:-_LINES]

    def take(self) -> str:
        """Return what was added since the last call."""
        text, self._lines = "".join(f"{line}\n" for line in self._lines), []
        return text
