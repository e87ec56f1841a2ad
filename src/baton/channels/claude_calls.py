"""Tie Claude's permission requests to its tool calls, and find out what became of each.

A PermissionRequest names no tool call. It belongs to the call before it of the same subagent, tool and input. Identical
calls that wait at once (twins) are taken in their order; the evidence that comes later says which of them it was.
"""

from __future__ import annotations

import json
import os

from baton.channels.choices import read_questions
from baton.channels.claude_consent import read_consent
from baton.channels.claude_plan import Plan
from baton.core.signal import ALLOW, DENY, Asked, Consent, Settled, ToolEnded, ToolStarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.channels.claude_plan import Plans
    from baton.channels.gateway import Exchange
    from baton.core.signal import Signal
    from baton.core.value import Any

LOST_SEC = 1.0  # after a connection closes: telemetry and transcript say why, and come a moment later
CLOSED = "its dialog was closed"
_PLAN = "plan"
KINDS = {"AskUserQuestion": "question", "ExitPlanMode": _PLAN}

_KILLED = tuple(f"Exit code {128 + number}" for number in (1, 9, 15))  # SIGHUP, SIGKILL, SIGTERM


class Call:
    """A tool call that is not over."""

    def __init__(self, tool_id: str, same: tuple[str, str, str], turn: str, agent_ref: str | None) -> None:
        self.tool_id, self.same, self.turn, self.agent_ref = tool_id, same, turn, agent_ref


class Ask:
    """A permission request. `same` is equal for twins. `answered` is what was sent to the agent. `settled`: what became
    of it is known. `lost_at` is when the agent closed the connection without an answer."""

    def __init__(
        self, key: str, same: tuple[str, str, str], turn: str, call: Any, exchange: Exchange, consent: Consent
    ) -> None:
        self.key, self.same, self.turn, self.call, self.exchange = key, same, turn, call, exchange
        self.kind = KINDS.get(same[1], "tool")
        self.consent = consent
        self.agent_ref = same[0] or None
        self.tool_id: str | None = None
        self.answered: str | None = None
        self.settled = False
        self.lost_at: float | None = None

    @property
    def is_open(self) -> bool:
        return not self.settled and self.answered is None


class Calls:
    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._calls: dict[str, Call] = {}
        self._asks: dict[str, Ask] = {}

    def has_questions(self) -> bool:
        """Return whether what became of a request is still unknown."""
        return any(not ask.settled for ask in self._asks.values())

    def start(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        tool_id, turn = str(message["tool_use_id"]), str(message.get("prompt_id") or "")
        same = _same(message)
        self._calls[tool_id] = Call(tool_id, same, turn, same[0] or None)
        yield ToolStarted(
            tool_id=tool_id, name=same[1], call=message.get("tool_input"), turn=turn, agent_ref=same[0] or None
        )

    def end(self, tool_id: str, *, ok: bool, why: str = "", ran: bool = True) -> Iterator[Signal]:
        """Note that a call is over. `ran`: the tool was started, so it was allowed."""
        yield from self.decide(tool_id, ALLOW if ran else DENY, "")
        if self._calls.pop(tool_id, None) is not None or ran:
            yield ToolEnded(tool_id=tool_id, ok=ok, why=why, killed=not ok and was_killed(why))

    def end_batch(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Note that these calls are over. One that has not ended before was refused."""
        for each in message.get("tool_calls") or ():
            if each["tool_use_id"] in self._calls:
                yield from self.end(each["tool_use_id"], ok=False, why=str(each.get("tool_response") or ""), ran=False)

    def ask(self, message: Mapping[str, Any], exchange: Exchange) -> Iterator[Signal]:
        same, call = _same(message), message.get("tool_input")
        turn = str(message.get("prompt_id") or "")
        ask = Ask(os.urandom(6).hex(), same, turn, call, exchange, read_consent(message))
        ask.tool_id = self._call_of(same)
        self._asks[ask.key] = ask
        yield self._asked(ask, self._plans.ask(ask.key, call) if ask.kind == _PLAN else Plan(call=call))

    def _asked(self, ask: Ask, shown: Plan) -> Asked:
        return Asked(
            key=ask.key, kind=ask.kind, tool=ask.same[1], call=shown.call, tool_id=ask.tool_id, agent_ref=ask.agent_ref,
            options=read_questions(ask.call) if ask.kind == "question" else (), exact=not shown.why_inexact,
            why_inexact=shown.why_inexact, consent=ask.consent,
        )  # fmt: skip

    def ask_changed(self, key: str | None = None) -> Iterator[Signal]:
        """Ask again what has changed since it was shown: of this question, or of all. The question before is over."""
        for ask in [each for each in self._asks.values() if key in (None, each.key) and each.is_open]:
            before, new_key = ask.key, os.urandom(6).hex()
            plan = self._plans.take_change(before, new_key)
            if plan is not None:
                self._asks[new_key] = self._asks.pop(before)
                ask.key = new_key
                yield Settled(key=before, decision=None, by="agent")
                yield self._asked(ask, plan)

    def _call_of(self, same: tuple[str, str, str]) -> str | None:
        """Return the first call that this can be the request of. A hook of the user may have changed the input: then
        the only call of that tool will do."""
        taken = {ask.tool_id for ask in self._asks.values()}
        free = [call for call in self._calls.values() if call.tool_id not in taken]
        exact = [call.tool_id for call in free if call.same == same]
        alike = [call.tool_id for call in free if call.same[:2] == same[:2]]
        return exact[0] if exact else alike[0] if len(alike) == 1 else None

    def answer(self, key: str, decision: str, body: bytes) -> bool:
        """Send the answer. If a twin was decided at the keyboard, it may have been on the other's connection: both get
        the answer, and the agent ignores one of them."""
        ask = self._asks.get(key)
        if ask is None or not ask.is_open:
            return False
        twins = [each for each in self._twins(ask) if each.settled]
        sent = [each.exchange.reply(body) for each in (ask, *twins)]
        if any(sent):
            ask.answered = decision
            self._plans.forget(key)
        return any(sent)

    def release(self, key: str) -> None:
        """Leave a request to the person at the screen: the dialog stays, and later evidence says what was decided."""
        ask = self._asks.get(key)
        if ask is not None:
            self._plans.forget(key)
            ask.exchange.reply()

    def input_to_repeat(self, key: str) -> Any:
        """Return the arguments that an approval must repeat: Claude drops one of a plan or a question without them.
        None for another call, and for a request that is gone."""
        ask = self._asks.get(key)
        if ask is None or ask.kind not in KINDS.values():
            return None
        return self._plans.given(key, ask.call)

    def decide(self, tool_id: str, decision: str, by: str) -> Iterator[Signal]:
        """Note what was decided about a call, as the agent says."""
        ask = next((each for each in self._asks.values() if each.tool_id == tool_id and not each.settled), None)
        if ask is None:
            return
        if ask.answered is None and not by.startswith(("user", "config")):
            ask = self._answered_twin(ask, decision)
        yield self._settle(ask, decision, by)

    def _answered_twin(self, ask: Ask, decision: str) -> Ask:
        """Return the twin whose answer this decision must be, with the ids of the calls exchanged; else the ask."""
        for twin in self._twins(ask):
            if twin.answered == decision and not twin.settled:
                ask.tool_id, twin.tool_id = twin.tool_id, ask.tool_id
                return twin
        return ask

    def lose(self, exchange: Exchange, now: float) -> None:
        """Note that the agent closed the connection: the dialog is closed. Why is not known yet."""
        for ask in self._asks.values():
            if ask.exchange is exchange:
                ask.lost_at = now

    def settle_lost(self, now: float) -> Iterator[tuple[Settled, str | None]]:
        """Take requests whose connection closed a while ago as denied. Yield with each its turn, which is over by that;
        None for one of a subagent."""
        for ask in list(self._asks.values()):
            if ask.lost_at is not None and ask.is_open and now >= ask.lost_at + LOST_SEC:
                yield self._settle(ask, DENY, CLOSED), ask.turn if ask.agent_ref is None else None

    def interrupt(self, turn: str, background: frozenset[str]) -> Iterator[Signal]:
        """End the requests and calls of an interrupted turn. Subagents in the background go on."""
        for ask in list(self._asks.values()):
            if ask.turn == turn and not ask.settled and ask.agent_ref not in background:
                yield self._settle(ask, DENY, "user_reject")
        for call in list(self._calls.values()):
            if call.turn == turn and call.agent_ref not in background:
                del self._calls[call.tool_id]
                yield ToolEnded(tool_id=call.tool_id, ok=False, why="interrupted")

    def _settle(self, ask: Ask, decision: str, by: str) -> Settled:
        ask.settled = True
        self._plans.forget(ask.key)
        group = [ask, *self._twins(ask)]
        if not any(each.is_open for each in group):
            for each in group:
                each.exchange.reply()
                if each.settled:
                    self._asks.pop(each.key, None)
        return Settled(key=ask.key, decision=decision, by=by)

    def _twins(self, ask: Ask) -> list[Ask]:
        return [each for each in self._asks.values() if each.same == ask.same and each is not ask]


def _same(message: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return what twins have in common: the subagent, the tool and the input in one form."""
    given = json.dumps(message.get("tool_input"), sort_keys=True, separators=(",", ":"))
    return str(message.get("agent_id") or ""), str(message.get("tool_name") or ""), given


def was_killed(why: str) -> bool:
    """Return whether the error of a command says that it was ended by a signal."""
    return why.startswith(_KILLED)
