"""Bring the agent's questions to the registry, and the answers back to the agent."""

from __future__ import annotations

from baton.channels.contract import Channel, Silent
from baton.core.clock import Clock
from baton.core.facts import describe_call
from baton.core.signal import Asked, Settled
from baton.sessions.reporter import Reporter


class Asking:
    """The questions of the session's present job. They are left to the person at the agent's own screen."""

    def __init__(self, reporter: Reporter, clock: Clock) -> None:
        self._reporter = reporter
        self._clock = clock
        self.channel: Channel = Silent()

    def ask(self, asked: Asked) -> None:
        """Report the question."""
        self.channel.release(asked.key)
        self._reporter.permission_required(describe_call(asked.tool, asked.call))

    def settle(self, settled: Settled) -> None:
        """Note what was decided at the agent's own side."""

    def wait_sec(self) -> float | None:
        """Return how long until the next look for answers; None while no question is open."""
        return None

    def check(self) -> None:
        """Give the agent the answers that have come."""

    def close(self) -> None:
        """Forget the questions of a job that has ended."""
