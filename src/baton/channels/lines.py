"""Listen to an agent whose output lines are read: what a line means, its adapter says."""

from __future__ import annotations

import json
import os

from baton.channels.contract import Channel, Setup
from baton.channels.pipes import LineReader, Writer
from baton.core.clock import Clock, SystemClock
from baton.core.request import RequestKind
from baton.core.signal import Asked, Heard, Retrying, Settled, TurnStarted, Usage
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from baton.adapters.contract import Agent, Task
    from baton.channels.contract import Hear
    from baton.core.signal import Signal

SOURCE = "stream"
# These say nothing about a question that the agent asked before.
_NO_PROGRESS = (Asked, Retrying, TurnStarted, Usage)


class Lines(Channel):
    """The program gets its prompt by its command line or by standard input, which the runner closes. It works on that
    one prompt: the turn begins with the first line."""

    def __init__(self, agent: Agent, task: Task, *, clock: Clock | None = None) -> None:
        self._agent = agent
        self._task = task
        self._clock = clock or SystemClock()
        self._output: LineReader | None = None
        self._text: list[str] = []
        self._hear: Hear = lambda _heard: None
        self._asked: list[str] = []  # keys of questions that were not settled
        self._questions = 0
        self._began = False

    def open(self, hear: Hear) -> Setup:
        self._hear = hear
        return Setup()

    def attach(self, stdin: int | None, stdout: int | None) -> None:
        self._output = LineReader(stdout) if stdout is not None else None

    @property
    def outputs(self) -> list[int]:
        return [self._output.fd] if self._output is not None and self._output.fd is not None else []

    def read(self) -> None:
        for line in self._output.read() if self._output is not None else ():
            self._text.append(self._agent.read_text(line))
            self._say(self._signals(line))

    def take_text(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        return text

    def facts(self) -> Mapping[str, Any]:
        dropped = self._output.dropped if self._output is not None else 0
        return {"lines that were too long": dropped} if dropped else {}

    def close(self) -> None:
        if self._output is not None:
            self._output.close()

    def _say(self, signals: Iterable[Signal]) -> None:
        for signal in signals:
            self._hear(Heard(signal=signal, source=SOURCE, at_ns=self._clock.monotonic_ns()))

    def _signals(self, line: str) -> Iterable[Signal]:
        """Yield what the line means. A question is one that only the agent's own terminal can answer: it is over when
        the agent goes on."""
        if not self._began:
            self._began = True
            yield TurnStarted(turn=os.urandom(4).hex(), prompt=self._task.prompt or "")
        for signal in self._agent.read_output(line):
            if isinstance(signal, Asked):
                self._questions += 1
                signal = signal.replace(key=f"{signal.key or RequestKind.TOOL}-{self._questions}")  # noqa: PLW2901
                self._asked.append(signal.key)
            elif self._asked and not isinstance(signal, _NO_PROGRESS):
                yield from (Settled(key=key, decision=None, by="agent") for key in self._asked)
                self._asked.clear()
            yield signal


class JsonLines(Lines):
    """The program talks by JSON lines in both directions. Its input stays open until `finish`."""

    stays = True

    def __init__(self, agent: Agent, task: Task, *, clock: Clock | None = None) -> None:
        super().__init__(agent, task, clock=clock)
        self._input: Writer | None = None

    def attach(self, stdin: int | None, stdout: int | None) -> None:
        super().attach(stdin, stdout)
        if stdin is not None:
            self._input = Writer(stdin)
            self._introduce()

    def _introduce(self) -> None:
        """Write the first messages, to a program that has just started."""

    def finish(self) -> None:
        if self._input is not None:
            self._input.end()

    @property
    def inputs(self) -> list[int]:
        return [self._input.fd] if self._input is not None and self._input.fd is not None and self._input.waits else []

    def write(self) -> None:
        if self._input is not None:
            self._input.flush()

    def close(self) -> None:
        super().close()
        if self._input is not None:
            self._input.close()

    def _write_message(self, message: Mapping[str, Any]) -> bool:
        """Write a message, now or as soon as the program reads. Return False if it reads no more."""
        return self._input is not None and self._input.write(json.dumps(message) + "\n")
