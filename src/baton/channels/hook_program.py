"""Talk to an agent whose hooks run a program: `baton hook` passes each message to the runner, and prints its answer."""

from __future__ import annotations

import _thread
import os
import time

from baton.channels.contract import Channel, Setup
from baton.channels.forward import HOOK_PATH
from baton.channels.gateway import Exchange, Gateway
from baton.core.fields import json_object
from baton.core.signal import Blocked, Heard, Signal, TurnEnded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.adapters.contract import Agent, Task
    from baton.channels.contract import Hear
    from baton.core.value import Any


class HookProgram(Channel):
    """The messages that the agent gives to its hook program, as its adapter reads them (`Agent.read_hook`)."""

    def __init__(self, agent: Agent, task: Task) -> None:
        self._agent, self._task = agent, task
        self._gateway = Gateway((HOOK_PATH,), self._receive, lambda _: None)
        self._hear: Hear = lambda _: None
        self._lock = _thread.allocate_lock()
        self._text = ""
        self._messages = 0

    def open(self, hear: Hear) -> Setup:
        self._hear = hear
        self._gateway.listen_in_folder(self._task.folder)
        self._gateway.start()
        blockers = self._agent.startup_blockers(self._task.workdir, os.environ)
        if blockers:
            blocked = Blocked(by=self._agent.name, what_to_do="; ".join(blockers))
            hear(Heard(signal=blocked, source="settings", at_ns=time.monotonic_ns()))
        return Setup()

    def _receive(self, exchange: Exchange) -> None:
        message = json_object(exchange.body.decode(errors="replace"))
        self._messages += 1
        for signal in self._signals(message):
            self._hear(Heard(signal=signal, source="hook", at_ns=time.monotonic_ns()))
        exchange.reply(b"")

    def _signals(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        for signal in self._agent.read_hook(message):
            yield signal
            text = (signal.message or signal.why) if isinstance(signal, TurnEnded) else ""
            with self._lock:
                self._text += f"{text}\n" if text else ""

    def take_text(self) -> str:
        with self._lock:
            text, self._text = self._text, ""
        return text

    def facts(self) -> Mapping[str, Any]:
        return {"messages": self._messages, "refused": dict(self._gateway.refused)}

    def close(self) -> None:
        self._gateway.close()
