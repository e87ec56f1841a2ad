"""Read Copilot's log of a conversation, `events.jsonl`, which it writes while it works.

The log has an order: what an event means is decided in it, also for a hook, which the log announces (`hook.start`).
A part of a turn ends with `assistant.turn_end`, also before an error or an interruption: only the hook agentStop says
that a turn ended well. Events of subagents carry an `agentId`.
"""

from __future__ import annotations

import os
import re
import time

from baton.channels.reset_time import reset_time
from baton.core.fields import json_object, one_line
from baton.core.signal import (
    ALLOW,
    BACKGROUND,
    DENY,
    FAILED,
    INTERRUPTED,
    PROMPT,
    Asked,
    BackgroundTask,
    BackgroundWork,
    Limited,
    Retrying,
    Said,
    Settled,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    Usage,
    stated,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from baton.channels.gateway import Exchange
    from baton.core.signal import Signal
    from baton.core.value import Any

ON_SCREEN = {"ask_user": "question", "exit_plan_mode": "plan"}  # tools that ask at Copilot's own screen alone
_BY_ABORT = "user_reject"
_SHELL = re.compile(r"shellId: ([\w.-]{1,100})")
_WHY = 300  # characters
_MAX_ASKS = 200


class Ask:
    """A question of the agent. `exchange` is the hook that waits for the answer; None: it is asked on the screen.
    `answered` is what was sent to the agent. `request_id` is Copilot's own."""

    def __init__(self, key: str, tool: str, call: Any, tool_id: str | None, exchange: Exchange | None) -> None:
        self.key, self.tool, self.call, self.tool_id, self.exchange = key, tool, call, tool_id, exchange
        self.request_id: str | None = None
        self.answered: str | None = None
        self.is_announced = False
        self.is_exact = True


class _Call:
    """A tool call that is not over."""

    def __init__(self, name: str, given: Any, agent_ref: str | None) -> None:
        self.name, self.given, self.agent_ref = name, given, agent_ref


class CopilotLog:
    """What the log of one conversation says. `turn` is the one that is open."""

    def __init__(self) -> None:
        self.turn: str | None = None
        self.words = ""  # what the agent said last in this turn
        self.asks: dict[str, Ask] = {}
        self.is_over = False  # the conversation
        self._interaction = ""
        self._sent_back: str | None = None
        self._turns = 0
        self._notice = ""
        self._tries = 0
        self._calls: dict[str, _Call] = {}
        self._background: dict[str, BackgroundTask] = {}
        self._handlers: dict[str, Callable[[Mapping[str, Any], str | None], Iterator[Signal]]] = {
            "session.start": self._session_started,
            "user.message": self._prompt,
            "assistant.turn_start": self._step,
            "assistant.message": self._message,
            "tool.execution_start": self._tool_started,
            "tool.execution_complete": self._tool_ended,
            "permission.requested": self._permission_requested,
            "permission.completed": self._permission_completed,
            "subagent.started": self._subagent_started,
            "subagent.completed": self._subagent_ended,
            "subagent.failed": self._subagent_ended,
            "system.notification": self._notification,
            "session.usage_record": self._usage,
            "session.compaction_start": self._compacts,
            "session.compaction_complete": self._compacts,
            "session.error": self._error,
            "session.shutdown": self._shutdown,
            "hook.start": self._hook,
            "abort": self._abort,
        }

    def read(self, event: Mapping[str, Any]) -> Iterator[Signal]:
        """Yield what an event means."""
        handle = self._handlers.get(event["type"])
        return iter(()) if handle is None else handle(event["data"], event.get("agentId"))

    def _session_started(self, about: Mapping[str, Any], _agent_ref: str | None) -> Iterator[Signal]:
        yield from stated(release=about.get("copilotVersion"), model=about.get("selectedModel"))

    def announce(self) -> Iterator[Signal]:
        """Yield the questions that are on the screen since the last call, and have not been decided at once."""
        for ask in self.asks.values():
            if not ask.is_announced:
                yield self._asked(ask)

    # -- hooks ----------------------------------------------------------------------------------------------------

    def ask(self, message: Mapping[str, Any], exchange: Exchange) -> Asked:
        """Note a permission that a hook asks for, and that is not on the screen while the hook waits."""
        tool, given = str(message["toolName"]), message.get("toolInput")
        tool_id = self._call_of(tool, given)
        call = given if tool_id is None else self._calls[tool_id].given
        ask = Ask(os.urandom(6).hex(), tool, call, tool_id, exchange)
        ask.is_exact = tool_id is not None
        if len(self.asks) >= _MAX_ASKS:
            raise ValueError("too many questions")
        self.asks[ask.key] = ask
        return self._asked(ask)

    def end_turn(self) -> TurnEnded:
        """Note that the turn ended well, as the hook agentStop says; the hook waits."""
        turn, self.turn = self.turn, None
        return TurnEnded(turn=turn or "", message=self.words, held=True)

    def send_back(self, turn: str, text: str) -> None:
        """Note that the hook agentStop made the agent go on in this turn: Copilot takes the text as a prompt."""
        self.turn, self._sent_back, self.words = turn, text, ""

    def _asked(self, ask: Ask) -> Asked:
        ask.is_announced = True
        call = self._calls.get(ask.tool_id or "")
        agent_ref = self._asker() if call is None else call.agent_ref
        return Asked(
            key=ask.key, kind=ON_SCREEN.get(ask.tool, "tool"), tool=ask.tool, call=ask.call, tool_id=ask.tool_id,
            agent_ref=agent_ref, options=_questions(ask), exact=ask.is_exact,
        )  # fmt: skip

    def _asker(self) -> str | None:
        """Return who asks about a call that the log does not have yet: between turns, a subagent."""
        subagents = [each.task_id for each in self._background.values() if each.kind == "subagent"]
        return subagents[0] if self.turn is None and subagents else None

    def _call_of(self, tool: str, given: Any) -> str | None:
        """Return the call that a hook asks about: it names the tool and some of the arguments. None if several calls
        fit, or none: the log may have the call of a subagent only later."""
        taken = {ask.tool_id for ask in self.asks.values()}
        free = {key: call for key, call in self._calls.items() if key not in taken and call.name == tool}
        same = [key for key, call in free.items() if _contains(call.given, given)]
        is_clear = all(free[key].given == free[same[0]].given for key in same)
        return same[0] if same and is_clear else None

    # -- turns ----------------------------------------------------------------------------------------------------

    def _begin(self, origin: str, prompt: str) -> TurnStarted:
        self._turns += 1
        self.turn, self.words, self._notice = f"{self._interaction}.{self._turns}", "", ""
        return TurnStarted(turn=self.turn, origin=origin, prompt=prompt)

    def _go_on(self, agent_ref: str | None) -> Iterator[Signal]:
        """Begin a turn that no prompt began: background work has ended."""
        if agent_ref is None and self.turn is None:
            yield self._begin(BACKGROUND, self._notice)

    def _prompt(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        if agent_ref is not None:
            return
        prompt, interaction = str(data["content"]), str(data.get("interactionId") or "")
        if self.turn is not None and (prompt == self._sent_back or interaction == self._interaction):
            yield Said(text="")  # it goes on in the turn that is open
        else:
            self._interaction = interaction
            yield self._begin(PROMPT, prompt)
        self._interaction, self._sent_back = interaction, None

    def _step(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        yield from self._go_on(agent_ref)

    def _message(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        yield from self._go_on(agent_ref)
        content = data.get("content")
        if isinstance(content, str) and content and agent_ref is None:
            self.words = content
            yield Said(text=content)

    def _error(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        if agent_ref is not None:
            return
        why = one_line(str(data.get("message") or data.get("errorType") or "the model service failed"), _WHY)
        until_ns = reset_time(why, time.time_ns())
        if until_ns is not None and (data.get("statusCode") == 429 or data.get("errorType") in ("quota", "rate_limit")):
            yield Limited(until_ns=until_ns, why=why)
        yield from self._end(FAILED, why)

    def _abort(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        if agent_ref is None:
            yield from self._end(INTERRUPTED, "a person interrupted it")

    def _end(self, how: str, why: str) -> Iterator[Signal]:
        """End the turn, its calls and its questions. Subagents go on."""
        ended = [key for key, call in self._calls.items() if call.agent_ref is None]
        of_subagents = {key for key, call in self._calls.items() if call.agent_ref is not None}
        for ask in [ask for ask in self.asks.values() if ask.tool_id not in of_subagents]:
            yield from self._settle(ask, DENY, _BY_ABORT if how == INTERRUPTED else "")
        for key in ended:
            del self._calls[key]
            yield ToolEnded(tool_id=key, ok=False, why=why)
        if self.turn is not None:
            turn, self.turn = self.turn, None
            yield TurnEnded(turn=turn, how=how, why=why, message=self.words or None)

    def _shutdown(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        self.is_over = True
        yield Said(text="", is_work=False)

    # -- tools ----------------------------------------------------------------------------------------------------

    def _tool_started(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        yield from self._go_on(agent_ref)
        tool_id, name, given = str(data["toolCallId"]), str(data["toolName"]), data.get("arguments")
        self._calls[tool_id] = _Call(name, given, agent_ref)
        yield ToolStarted(tool_id=tool_id, name=name, call=given, turn=self.turn or "", agent_ref=agent_ref)
        if name in ON_SCREEN:
            ask = Ask(f"{name} {tool_id}"[:200], name, given, tool_id, None)
            self.asks[ask.key] = ask

    def _tool_ended(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        tool_id, ok = str(data["toolCallId"]), data.get("success") is True
        call = self._calls.pop(tool_id, None)
        for ask in [ask for ask in self.asks.values() if ask.tool_id == tool_id]:
            yield from self._settle(ask, ALLOW if ok else DENY, "")
        yield ToolEnded(tool_id=tool_id, ok=ok, why=str((data.get("error") or {}).get("message") or ""))
        if call is not None and call.name in ("bash", "powershell", "stop_bash", "read_bash"):
            yield from self._shell(call, str((data.get("result") or {}).get("content") or ""))

    def _shell(self, call: _Call, result: str) -> Iterator[Signal]:
        """Note a command that goes on in the background, or one that has ended there."""
        named = _SHELL.search(result)
        if call.name in ("stop_bash", "read_bash"):
            if call.name == "stop_bash" or "completed with exit code" in result:
                yield from self._forget(str((call.given or {}).get("shellId")))
        elif named is not None and "completed with exit code" not in result:
            what = str((call.given or {}).get("command") or "")
            self._background[named[1]] = BackgroundTask(task_id=named[1], kind="shell", what=what)
            yield self._background_work()

    # -- permissions ----------------------------------------------------------------------------------------------

    def _permission_requested(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        """Tie Copilot's request to the question of the hook, which is over. Without one, it is a new question."""
        request = data["permissionRequest"]
        tool_id = str(request.get("toolCallId") or "")
        call = self._calls.get(tool_id)
        name = str(request.get("kind")) if call is None else call.name
        waiting = [ask for ask in self.asks.values() if ask.request_id is None and ask.tool not in ON_SCREEN]
        of_tool = [ask for ask in waiting if ask.tool_id == tool_id]
        others = [ask for ask in waiting if ask.tool_id is None and ask.tool == name]
        ask = next(iter([*of_tool, *others]), None)
        if ask is None:
            given = request.get("fullCommandText")
            what = {"command": given} if given else request
            ask = Ask(os.urandom(6).hex(), name, what if call is None else call.given, tool_id or None, None)
            self.asks[ask.key] = ask
        ask.request_id, ask.tool_id = str(data["requestId"]), tool_id or ask.tool_id
        yield Said(text="")

    def _permission_completed(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        kind = str(data["result"]["kind"])
        for ask in [ask for ask in self.asks.values() if ask.request_id == data["requestId"]]:
            decision = ALLOW if kind.startswith("approved") else DENY
            yield from self._settle(ask, decision, str(data.get("decisionSource") or kind))

    def _settle(self, ask: Ask, decision: str, by: str) -> Iterator[Signal]:
        self.asks.pop(ask.key, None)
        if ask.exchange is not None:
            ask.exchange.reply(b"")
        if ask.is_announced:
            yield Settled(key=ask.key, decision=decision, by=by)

    # -- background work, model service ---------------------------------------------------------------------------

    def _subagent_started(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        if agent_ref is not None and data.get("executionMode") == "background":
            what = str(data.get("agentDescription") or data.get("agentName") or "")
            self._background[agent_ref] = BackgroundTask(task_id=agent_ref, kind="subagent", what=what)
            yield self._background_work()

    def _subagent_ended(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        for key in [key for key, call in self._calls.items() if call.agent_ref == agent_ref and agent_ref is not None]:
            del self._calls[key]
            yield ToolEnded(tool_id=key, ok=False, why="its subagent has ended")
        yield from self._forget(agent_ref or "")

    def _notification(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        self._notice = str(data.get("content") or "")
        yield from self._forget(str(data["kind"].get("shellId")))

    def _forget(self, task_id: str) -> Iterator[Signal]:
        if self._background.pop(task_id, None) is not None:
            yield self._background_work()

    def _background_work(self) -> BackgroundWork:
        return BackgroundWork(tasks=tuple(self._background.values()))

    def _usage(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        used = data["usage"]
        self._tries = 0
        yield Usage(
            message_id=str(used["apiCallId"]), input_tokens=_number(used.get("inputTokens")),
            output_tokens=_number(used.get("outputTokens")), cached_tokens=_number(used.get("cacheReadTokens")),
            cache_write_tokens=_number(used.get("cacheWriteTokens")), model=str(used.get("model") or ""),
            of_turn=str(used.get("interactionType") or "").startswith("conversation"),
        )  # fmt: skip

    def _compacts(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        yield Said(text="")

    def _hook(self, data: Mapping[str, Any], agent_ref: str | None) -> Iterator[Signal]:
        if data.get("hookType") == "errorOccurred" and agent_ref is None and self.turn is not None:
            self._tries += 1
            yield Retrying(number=self._tries, most=0, why=reason_of(str(data["input"]["error"]["message"])))


def reason_of(text: str) -> str:
    """Return in words: {"message":"Overloaded","type":"x"}"""
    return one_line(str(json_object(text).get("message") or text).strip('"'), _WHY)


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else 0


def _contains(given: Any, part: Any) -> bool:
    """Return whether the arguments of a call have all that a hook says of them."""
    if not isinstance(given, dict) or not isinstance(part, dict):
        return bool(given == part)
    return all(name in given and given[name] == value for name, value in part.items())


def _questions(ask: Ask) -> tuple[Mapping[str, Any], ...]:
    """Return the questions of the tool ask_user with their choices."""
    if ask.tool != "ask_user" or not isinstance(ask.call, dict):
        return ()
    text = str(ask.call.get("message") or ask.call.get("question") or "")
    schema = ask.call.get("requestedSchema")
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(fields, dict) or not fields:
        choices = [str(each) for each in ask.call.get("choices") or ()]
        return ({"question": text, "choices": choices, "several": False},)
    return tuple(_question(text, field) for field in fields.values() if isinstance(field, dict))


def _question(text: str, field: Mapping[str, Any]) -> Mapping[str, Any]:
    several = field.get("type") == "array"
    items = field.get("items") if several else field
    items = items if isinstance(items, dict) else {}
    choices = [str(each) for each in items.get("enum") or ()]
    choices += [str(each.get("const")) for each in items.get("oneOf") or items.get("anyOf") or ()]
    asked = str(field.get("title") or field.get("description") or "")
    return {"question": f"{text} {asked}".strip(), "choices": choices, "several": several}
