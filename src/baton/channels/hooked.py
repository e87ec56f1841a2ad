"""Talk to an agent on the terminal whose hooks run a program: what the channels of such agents have in common.

`baton hook` passes each message to the runner and prints its answer. The messages name no turn: the channel numbers the
turns by the prompts that begin them.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod

from baton.channels.contract import Setup
from baton.channels.gateway import Exchange
from baton.channels.gateway_channel import GatewayChannel
from baton.channels.tail import Tail
from baton.core.fields import UNEXPECTED_SHAPE, json_object
from baton.core.signal import (
    DENY,
    FAILED,
    INTERRUPTED,
    Conversation,
    Said,
    Settled,
    Signal,
    ToolEnded,
    TurnEnded,
    TurnStarted,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.adapters.contract import Agent, Task
    from baton.channels.contract import Hear
    from baton.core.value import Any

LOOK_SEC = 0.25  # at files, while a turn is open
LOOK_ON_SEC = 2.0  # after that
HOOK_SEC = 5
HELD_SEC = 900  # the runner answers the end of a turn after the job's validation
INTERRUPTED_WHY = "interrupted at the keyboard"


class Hooked(GatewayChannel):
    """An agent with hooks. A subclass says what a message means (`_handle`), and what to look at besides (`_look`)."""

    def __init__(self, agent: Agent, task: Task) -> None:
        super().__init__(agent, task, task.environment or None)
        self._conversation = task.conversation_id
        self._is_over = False  # the conversation; the next one that starts is taken
        self._turns = 0
        self._turn: str | None = None  # the one that is open
        self._sent_back: str | None = None  # the text with which the open turn goes on
        self._tools: dict[str, tuple[str, Any]] = {}  # open calls: name and input, by id
        self._asks: dict[str, str | None] = {}  # open questions: the tool call, by key
        self._transcript: Tail | None = None
        self._looked = self._look_until = 0.0

    # -- the runner's side ----------------------------------------------------------------------------------------

    def open(self, hear: Hear) -> Setup:
        self._hear = hear
        setup = self._prepare()
        self._gateway.listen_in_folder(self._task.folder)
        self._gateway.start()
        self._say_blockers()
        return setup

    def _prepare(self) -> Setup:
        """Return what the program needs to call the hooks."""
        return Setup()

    def end_turn(self, turn: str, send_back: str | None) -> bool:
        with self._lock:
            held = self._held.pop(turn or next(iter(self._held), ""), None)
            if held is None:
                return False
            if send_back is None:
                return held.reply(b"")
            self._turn, self._sent_back = turn, send_back
            return held.reply(json.dumps({"decision": "block", "reason": send_back}).encode())

    # -- the gateway's side ---------------------------------------------------------------------------------------

    def _receive(self, exchange: Exchange) -> None:
        with self._lock:
            try:
                message = json_object(exchange.body.decode(errors="replace"))
                if not self._is_ours(message):  # guard: conversation-of-hook
                    self._count("of another conversation")
                    exchange.reply(b"")
                    return
                self._count("hooks")
                self._say_itself(message)
                self._follow(str(message.get("transcript_path") or ""))
                self._say_all(self._handle(str(message.get("hook_event_name")), message, exchange), "hook")
            except UNEXPECTED_SHAPE:
                self._count("of an unknown form")
            if exchange not in self._held.values() and not self._waits(exchange):
                exchange.reply(b"")

    def _is_ours(self, message: Mapping[str, Any]) -> bool:
        """Return whether a message is of the session's conversation. The same program in a tool has another one."""
        found = message.get("session_id")
        if found == self._conversation:
            return True
        starts = message.get("hook_event_name") == "SessionStart"
        if not starts or not isinstance(found, str) or not self._agent.is_conversation(found):
            return False
        # A person leaves a conversation between turns. The same program in a tool may continue one, too.
        leaves = message.get("source") in ("clear", "resume") and not self._tools  # guard: conversation-of-tool
        if self._conversation is None or self._is_over or leaves:
            self._conversation, self._is_over = found, False
            return True
        return False

    def _follow(self, path: str) -> None:
        """Read this transcript from now on. A subclass says where it may be."""

    def _waits(self, exchange: Exchange) -> bool:
        """Return whether this message gets its reply later."""
        return False

    @abstractmethod
    def _handle(self, event: str, message: Mapping[str, Any], exchange: Exchange) -> Iterator[Signal]:
        """Yield what a message of a hook means. Hold the exchange, or let it be answered."""

    def _tick(self) -> float | None:
        with self._lock:
            now = time.monotonic()
            if self._turn is not None or self._asks or self._held:
                self._look_until = now + LOOK_ON_SEC
            if now >= self._look_until:
                return None
            if now >= self._looked + LOOK_SEC:
                self._looked = now
                try:
                    self._look(now)
                except UNEXPECTED_SHAPE:
                    self._count("of an unknown form")
            return max(0.0, self._looked + LOOK_SEC - now)

    def _look(self, now: float) -> None:
        """Look at what no hook says."""

    # -- turns and calls ------------------------------------------------------------------------------------------

    def _begin_turn(self, prompt: str) -> Iterator[Signal]:
        """Begin a turn. A turn that was sent back goes on with the text that was sent."""
        sent, self._sent_back = self._sent_back, None
        if self._turn is not None and sent is not None and sent.strip() in prompt:
            yield Said(text="")
            return
        self._turns += 1
        self._turn = str(self._turns)
        yield TurnStarted(turn=self._turn, prompt=prompt)

    def _hold_turn(self, message: str, exchange: Exchange) -> Iterator[Signal]:
        """End the open turn well. The agent waits for `end_turn`."""
        turn, self._turn = self._turn or "", None
        yield from self._end_calls(None)
        if turn in self._held:
            self._held[turn].reply(b"")
        self._held[turn] = exchange
        yield TurnEnded(turn=turn, message=message, held=True)

    def _fail_turn(self, why: str) -> Iterator[Signal]:
        yield from self._end_calls("the turn failed")
        turn, self._turn = self._turn or "", None
        yield TurnEnded(turn=turn, how=FAILED, why=why)

    def _interrupt(self, why: str = INTERRUPTED_WHY) -> Iterator[Signal]:
        yield from self._end_calls(why)
        turn, self._turn = self._turn or "", None
        yield TurnEnded(turn=turn, how=INTERRUPTED, why=why)

    def _end_calls(self, why: str | None) -> Iterator[Signal]:
        """End all calls and questions that are open. `why`: they did not come to their end."""
        for key in list(self._asks):
            yield from self._settle(key, DENY, "its dialog was closed")
        for tool_id in list(self._tools):
            del self._tools[tool_id]
            yield ToolEnded(tool_id=tool_id, ok=why is None, why=why or "")

    def _settle(self, key: str, decision: str | None, by: str) -> Iterator[Signal]:
        if key in self._asks:
            del self._asks[key]
            yield Settled(key=key, decision=decision, by=by)

    def _session_started(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        yield Conversation(conversation_id=str(message["session_id"]))

    def _session_ended(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Note the end of the conversation. Other reasons than these mean that the program ends, which the runner sees
        by itself."""
        reason = str(message.get("reason") or "")
        if reason not in ("clear", "resume"):
            yield Said(text=f"the program ends: {reason}", is_work=False)
            return
        self._is_over = True
        yield Conversation(conversation_id=str(message["session_id"]), ended=reason)
        yield from self._end_calls("the conversation ended")
        self._turn = None
