"""Share what all channels with a gateway do: listen, count messages, keep the text, and pass signals on."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from threading import Lock

from baton.channels.contract import Channel
from baton.channels.forward import HOOK_PATH
from baton.channels.gateway import Exchange, Gateway
from baton.channels.shown_work import ShownWork
from baton.core.signal import Blocked, Heard, Signal, Stated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from baton.adapters.contract import Agent, Task
    from baton.channels.contract import Hear
    from baton.core.value import Any


class GatewayChannel(Channel):
    """An agent whose hooks, and perhaps other messages, reach the runner by a gateway."""

    def __init__(
        self,
        agent: Agent,
        task: Task,
        environment: Mapping[str, str] | None = None,
        paths: tuple[str, ...] = (HOOK_PATH,),
    ) -> None:
        self._agent, self._task = agent, task
        self._environment = os.environ if environment is None else environment
        self._gateway = Gateway(paths, self._receive, self._lose, self._tick)
        self._lock = Lock()
        self._hear: Hear = lambda _: None
        self._held: dict[str, Exchange] = {}  # the turns that wait for `end_turn`
        self._counts: dict[str, int] = {}
        self._work = ShownWork()
        self._stated = Stated()

    # -- the runner's side ----------------------------------------------------------------------------------------

    def take_text(self) -> str:
        with self._lock:
            return self._work.take()

    def facts(self) -> Mapping[str, Any]:
        return {"messages": dict(self._counts), "refused": dict(self._gateway.refused)}

    def close(self) -> None:
        self._gateway.close()

    # -- the gateway's side ---------------------------------------------------------------------------------------

    @abstractmethod
    def _receive(self, exchange: Exchange) -> None:
        """Handle a message of the agent, and reply now or later."""

    def _lose(self, exchange: Exchange) -> None:
        """Forget a message whose connection was closed before the reply."""
        with self._lock:
            self._held = {turn: each for turn, each in self._held.items() if each is not exchange}

    @abstractmethod
    def _tick(self) -> float | None:
        """Look at what no message says. Return after how many seconds to look again; None: after the next message."""

    def _say(self, signal: Signal, source: str) -> None:
        self._work.add(signal)
        self._hear(Heard(signal=signal, source=source, at_ns=time.monotonic_ns()))

    def _say_all(self, signals: Iterable[Signal], source: str) -> None:
        for signal in signals:
            self._say(signal, source)

    def _say_itself(self, message: Mapping[str, Any]) -> None:
        """Report the permission mode and the model that a hook names, if they have changed. Those of a subagent are its
        own."""
        found = {name: message.get(key) for name, key in (("mode", "permission_mode"), ("model", "model"))}
        known = {name: text for name, text in found.items() if isinstance(text, str) and text}
        stated = self._stated.replace(**known)
        if stated != self._stated and "agent_id" not in message:
            self._stated = stated
            self._say(stated, "hook")

    def _say_blockers(self) -> bool:
        """Report the questions that will stop the agent when it starts. Return whether there are any."""
        blockers = self._agent.startup_blockers(self._task.workdir, self._environment)
        if blockers:
            self._say(Blocked(by=self._agent.name, what_to_do="; ".join(blockers)), "settings")
        return bool(blockers)

    def _count(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1
