"""Play recorded messages to the parts of the channels that read them, for the agents beside Claude Code."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from baton.adapters import find_agent
from baton.channels.acp import Acp
from baton.channels.opencode_events import OpencodeEvents
from baton.config import Settings
from baton.core.signal import Heard

if TYPE_CHECKING:
    from baton.adapters.contract import Task
    from baton.channels.contract import Hear
    from baton.core.clock import Clock
    from baton.core.request import Answer


class Player:
    """Play nothing: the recording has the signals themselves."""

    def tick(self) -> None:
        """Let the time pass."""

    def answer(self, key: str, answer: Answer) -> None:
        """Play an answer of the runner."""

    def say(self, text: str) -> None:
        """Play a further prompt of the runner."""

    def end_turn(self, turn: str, text: str | None) -> None:
        """Play the end of a turn that the agent holds open: only Claude Code does."""

    def close(self) -> None:
        """Release what the player holds."""


class AcpPlayer(Player):
    """Play the lines of an agent. What the channel writes goes into a pipe that nothing reads."""

    def __init__(self, agent: str, task: Task, clock: Clock, hear: Hear) -> None:
        self._channel = Acp(find_agent(Settings(env={"HOME": "/nowhere"}), agent), task, clock=clock)
        self._channel.open(hear)
        self._end, beginning = os.pipe()
        self._channel.attach(beginning, None)
        self.answer, self.say = self._channel.answer, self._channel.say

    def line(self, message: dict[str, Any] | str) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self._channel._say(self._channel._signals(text))

    def tick(self) -> None:
        self._channel._say(self._channel._by_time())

    def close(self) -> None:
        self._channel.close()
        os.close(self._end)


class OpencodePlayer(Player):
    """Play the events of opencode's server."""

    def __init__(self, session: str, task: Task, clock: Clock, hear: Hear) -> None:
        self._clock, self._hear = clock, hear
        self._events = OpencodeEvents(session, clock, before=set(), show=lambda _: None)
        self._events.sent = task.prompt

    def event(self, event: dict[str, Any]) -> None:
        self._say(self._events.read(event))

    def tick(self) -> None:
        self._say(self._events.tick())

    def answer(self, key: str, answer: Answer) -> None:
        self._events.questions.take(key)

    def say(self, text: str) -> None:
        self._events.sent_back = self._events.sent = text

    def _say(self, signals: list) -> None:
        for signal in signals:
            self._hear(Heard(signal=signal, source="server", at_ns=self._clock.monotonic_ns()))


def make_player(recording: dict[str, Any], task: Task, clock: Clock, hear: Hear) -> Player:
    """Return the player for the messages of this recording."""
    kinds = {each[1] for each in recording["messages"]}
    if "line" in kinds:
        return AcpPlayer(recording["agent"], task, clock, hear)
    if "event" in kinds:
        found = [each[2].get("properties", {}).get("sessionID") for each in recording["messages"] if each[1] == "event"]
        return OpencodePlayer(next(filter(None, found)), task, clock, hear)
    return Player()
