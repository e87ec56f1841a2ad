"""Talk with headless Codex: its app-server by JSON lines in both directions."""

from __future__ import annotations

from baton.channels.codex_protocol import Protocol
from baton.channels.lines import JsonLines
from baton.core.fields import json_object
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.adapters.contract import Agent, Task
    from baton.core.clock import Clock
    from baton.core.request import Answer
    from baton.core.signal import Signal


class CodexStream(JsonLines):
    def __init__(self, agent: Agent, task: Task, *, clock: Clock | None = None) -> None:
        super().__init__(agent, task, clock=clock)
        self._protocol = Protocol(agent, task, self._write_message, self._clock)

    def _introduce(self) -> None:
        self._protocol.begin()

    def read(self) -> None:
        super().read()
        self._say(self._protocol.questions.tick())

    def _signals(self, line: str) -> list[Signal]:
        return self._protocol.receive(json_object(line))

    def say(self, text: str) -> bool:
        return self._protocol.say(text)

    def end_turn(self, turn: str, send_back: str | None) -> bool:
        return send_back is None or self._protocol.go_on(turn, send_back)

    def answer(self, key: str, answer: Answer) -> bool:
        return self._protocol.answer(key, answer)

    def release(self, key: str) -> None:
        self._protocol.questions.release(key)

    def facts(self) -> Mapping[str, Any]:
        return {**super().facts(), **self._protocol.facts()}
