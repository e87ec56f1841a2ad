"""Talk with headless Claude Code by JSON lines in both directions (`--input-format stream-json`).

Its input stays open until the job is over: permissions and questions are answered there, an agent whose results were
refused gets the next prompt there, and background work is not killed before it has ended.
"""

from __future__ import annotations

import os

from baton.adapters.claude_code import claude_folder
from baton.channels.choices import read_questions
from baton.channels.claude_calls import KINDS, was_killed
from baton.channels.claude_consent import read_consent
from baton.channels.claude_plan import CHANGED, Plan, Plans, find_transcript
from baton.channels.claude_usage import MESSAGE_NAMES, RESULT_NAMES, claude_tokens, number, usage_of
from baton.channels.contract import AnswerRefused, Setup
from baton.channels.lines import JsonLines
from baton.core.clock import SECOND_NS, Clock
from baton.core.fields import UNEXPECTED_SHAPE, json_object
from baton.core.request import RequestKind
from baton.core.signal import (
    ALLOW,
    BACKGROUND,
    DENY,
    FAILED,
    INTERRUPTED,
    WELL,
    Asked,
    BackgroundTask,
    BackgroundWork,
    Conversation,
    Limited,
    Retrying,
    Said,
    Settled,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    stated,
)
from baton.core.spending import NONE
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.adapters.contract import Agent, Task
    from baton.channels.contract import Hear
    from baton.core.request import Answer
    from baton.core.signal import Signal

_PARTIAL = '{"type":"stream_event"'
_PARTIAL_EVERY_NS = SECOND_NS
_PLAN_NS = SECOND_NS // 2  # between looks whether a plan that waits for approval has changed
# With it, Claude says on the stream that it goes on after an answer, not only when the tool is over.
_STATES = "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS"
_NOTIFICATION_NS = 5 * SECOND_NS  # Claude begins a turn about ended background work within milliseconds
_PLAN = "ExitPlanMode"
_REFUSED = "This was not allowed. Do not do it another way."
# Which method reads which message.
_READERS = {
    "system init": "_begin_turn",
    "system api_retry": "_retry",
    "system task_started": "_begin_task",
    "system task_updated": "_end_task",
    "system task_notification": "_end_task",
    "system task_progress": "_task_progress",
    "system session_state_changed": "_state",
    "assistant": "_assistant",
    "user": "_user",
    "result": "_end_turn",
    "control_request": "_question",
    "control_cancel_request": "_withdrawal",
    "rate_limit_event": "_limit",
}


class _Call(Value):
    """A tool call that is open. `asked` is the key of its question, `answer` what was answered. `is_used`: the agent
    goes on with that."""

    tool_id: str
    agent_ref: str | None
    asked: str | None = None
    answer: str | None = None
    is_used: bool = False


class _Question(Value):
    """A question that is open: the id of its message, and what it asks."""

    message_id: str
    request: Mapping[str, Any]

    @property
    def tool_id(self) -> str:
        return str(self.request.get("tool_use_id"))


class ClaudeStream(JsonLines):
    def __init__(self, agent: Agent, task: Task, *, clock: Clock | None = None) -> None:
        super().__init__(agent, task, clock=clock)
        self._turn: str | None = None  # the open one
        self._of_prompt = True  # whether a prompt began it, not background work
        self._unknown = 0  # messages of an unknown shape
        self._calls: dict[str, _Call] = {}
        self._questions_open: dict[str, _Question] = {}  # by key
        environment = task.environment or os.environ
        self._folder = claude_folder(environment)
        self._conversation = task.conversation_id
        self._plans = Plans(self._folder, lambda: find_transcript(self._folder, self._conversation))
        self._looked_ns = 0
        self._tasks: dict[str, BackgroundTask] = {}
        self._subagents: dict[str, str] = {}  # by the id of the tool call that started it
        self._task_calls: dict[str, str] = {}  # by the id of a task: the tool call that started it
        self._ended_tasks: set[str] = set()
        self._listed: tuple[BackgroundTask, ...] = ()
        self._ended_ns = 0
        self._counted: set[str] = set()
        self._cost, self._tokens = 0.0, NONE  # that were said
        self._partial_ns = 0

    # -- to Claude ---------------------------------------------------------------------------------------------------

    def open(self, hear: Hear) -> Setup:
        return super().open(hear).replace(environment={_STATES: "1"})

    def _introduce(self) -> None:
        if self._task.prompt is None:
            self.finish()
        else:
            self._write_prompt(self._task.prompt)

    def say(self, text: str) -> bool:
        if self._turn is not None or not self._write_prompt(text):
            return False
        # Nothing may seem to be over before Claude has read this.
        self._turn, self._of_prompt = os.urandom(4).hex(), True
        self._say([TurnStarted(turn=self._turn, prompt=text)])
        return True

    def end_turn(self, turn: str, send_back: str | None) -> bool:
        if send_back is None:
            return True
        if self._turn is not None or not self._write_prompt(send_back):
            return False
        self._turn, self._of_prompt = turn, True
        return True

    def answer(self, key: str, answer: Answer) -> bool:
        changed = list(self._ask_changed(key))
        if changed:  # guard: plan-that-was-shown-headless
            self._say(changed)
            raise AnswerRefused(CHANGED)
        question = self._questions_open.get(key)
        if question is None:
            return False
        response: dict[str, Any]
        if answer.answer == ALLOW:
            given = self._plans.given(key, question.request.get("input"))
            if answer.choices and isinstance(given, dict):
                given = given | {"answers": dict(answer.choices)}
            response = {"behavior": "allow", "updatedInput": given}
        else:
            response = {"behavior": "deny", "message": answer.reason or _REFUSED}
        if not self._respond(question.message_id, {"subtype": "success", "response": response}):
            return False
        self._close_question(key)
        call = self._calls.get(question.tool_id)
        if call is not None:
            self._calls[call.tool_id] = call.replace(answer=answer.answer)
        return True

    def release(self, key: str) -> None:
        question = self._close_question(key)
        if question is not None:  # there is no screen on which a person could answer
            response = {"behavior": "deny", "message": _REFUSED}
            self._respond(question.message_id, {"subtype": "success", "response": response})

    def _write_prompt(self, text: str) -> bool:
        return self._write_message({"type": "user", "message": {"role": "user", "content": text}})

    def _respond(self, request_id: str, response: dict[str, Any]) -> bool:
        return self._write_message({"type": "control_response", "response": {"request_id": request_id} | response})

    # -- from Claude -------------------------------------------------------------------------------------------------

    def read(self) -> None:
        super().read()
        idle = self._turn is None and self._ended_tasks
        now_ns = self._clock.monotonic_ns()
        if idle and now_ns - self._ended_ns > _NOTIFICATION_NS:
            self._say(self._forget_ended_tasks())  # no turn was begun about them
        if self._plans and now_ns - self._looked_ns >= _PLAN_NS:
            self._looked_ns = now_ns
            for key in list(self._questions_open):
                self._say(self._ask_changed(key))

    def _signals(self, line: str) -> list[Signal]:
        """Return what a line means. Claude's messages change monthly: one of another shape means nothing."""
        if line.startswith(_PARTIAL):
            return self._partial()
        found: list[Signal] = []
        try:
            message = json_object(line)
            kind = message.get("type")
            name = _READERS.get(f"system {message.get('subtype')}" if kind == "system" else str(kind))
            if name is not None:
                found.extend(getattr(self, name)(message))
        except UNEXPECTED_SHAPE:
            self._unknown += 1
        return found

    def _partial(self) -> list[Signal]:
        """Take pieces of a message for a sign of work: a long one may take minutes."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._partial_ns < _PARTIAL_EVERY_NS:
            return []
        self._partial_ns = now_ns
        return [Said(text="")]

    def _begin_turn(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Read the first message of each turn."""
        conversation = message["session_id"]
        self._conversation = conversation if isinstance(conversation, str) else None
        if self._agent.is_conversation(conversation):
            yield Conversation(conversation_id=conversation)
        yield from stated(message.get("claude_code_version"), message.get("permissionMode"), message.get("model"))
        if self._turn is None:  # else it was announced when the prompt was written
            self._turn, self._of_prompt, self._began = os.urandom(4).hex(), not self._began, True
            if self._of_prompt:
                yield TurnStarted(turn=self._turn, prompt=self._task.prompt or "")
            else:
                yield TurnStarted(turn=self._turn, origin=BACKGROUND, prompt=self._notice())
        yield from self._forget_ended_tasks()

    def _end_turn(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self._cost_since(message)
        for call in [each for each in self._calls.values() if each.agent_ref is None]:
            yield from self._end_call(call, ok=False, why="the turn ended before it")
        turn = self._turn or ""
        if self._of_prompt and _origin(message) == "task-notification":
            # Background work ended just before the prompt was written: the turn of the prompt is still to come.
            turn = os.urandom(4).hex()
            yield TurnStarted(turn=turn, origin=BACKGROUND, prompt=self._notice())
        else:
            self._turn = None
        self._ended_ns = self._clock.monotonic_ns()
        how, why = _ending(message)
        said = message.get("result") if how == WELL else None
        yield TurnEnded(
            turn=turn,
            how=how,
            why=why,
            message=str(said) if said is not None else None,
            held=True,
            refused_tools=_refused_tools(message.get("permission_denials")),
        )

    def _assistant(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        if message.get("error"):
            return  # the program's own words about the model service: the result has them, too
        agent_ref = self._agent_ref(message)
        body = message["message"]
        for part in _parts(body):
            if part.get("type") == "tool_use":
                yield from self._start_call(str(part["id"]), str(part["name"]), part.get("input"), agent_ref)
            elif part.get("type") == "text" and part.get("text"):
                yield Said(text=str(part["text"]))
            else:
                yield Said(text="")
        yield from self._usage(body)

    def _user(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        agent_ref = self._agent_ref(message)
        for part in _parts(message["message"]):
            if part.get("type") != "tool_result":
                continue
            call = self._calls.get(str(part.get("tool_use_id")))
            if call is not None:
                failed = bool(part.get("is_error"))
                yield from self._end_call(call, ok=not failed, why=_text(part.get("content")) if failed else "")
            # The next message of the model is an answer to the end of background work, too.
            ended = self._ended_tasks if agent_ref is None else self._tasks_of(part.get("tool_use_id"))
            yield from self._forget_ended_tasks(ended & self._ended_tasks)

    def _question(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        key, request = str(message["request_id"]), message["request"]
        if request.get("subtype") != "can_use_tool" or not isinstance(request.get("tool_name"), str):
            why = f"baton does not know the request {request.get('subtype')}"
            self._respond(key, {"subtype": "error", "error": why})
            return
        name, call, tool_id = request["tool_name"], request.get("input"), request.get("tool_use_id")
        agent_ref = request.get("agent_id")
        if isinstance(tool_id, str):
            yield from self._start_call(tool_id, name, call, agent_ref)
            self._calls[tool_id] = self._calls[tool_id].replace(asked=key)
        self._questions_open[key] = _Question(message_id=key, request=request)
        yield self._build_asked(key, request, self._plans.ask(key, call) if name == _PLAN else Plan(call=call))

    def _build_asked(self, key: str, request: Mapping[str, Any], shown: Plan) -> Asked:
        name, kind = request["tool_name"], RequestKind(KINDS.get(request["tool_name"], RequestKind.TOOL))
        options = read_questions(request.get("input")) if kind is RequestKind.QUESTION else ()
        return Asked(
            key=key, kind=kind, tool=name, call=shown.call, tool_id=request.get("tool_use_id"),
            agent_ref=request.get("agent_id"), options=options, exact=not shown.why_inexact,
            why_inexact=shown.why_inexact, consent=read_consent(request),
        )  # fmt: skip

    def _ask_changed(self, key: str) -> Iterator[Signal]:
        """Ask again if a plan is no longer what was shown. The question before is over."""
        question, new_key = self._questions_open.get(key), os.urandom(6).hex()
        plan = None if question is None else self._plans.take_change(key, new_key)
        if question is None or plan is None:
            return
        self._questions_open[new_key] = self._questions_open.pop(key)
        if question.tool_id in self._calls:
            self._calls[question.tool_id] = self._calls[question.tool_id].replace(asked=new_key)
        yield Settled(key=key, decision=None, by="agent")
        yield self._build_asked(new_key, question.request, plan)

    def _close_question(self, key: str) -> _Question | None:
        """Forget a question, and return it; None if it was not open."""
        self._plans.forget(key)
        return self._questions_open.pop(key, None)

    def _withdrawal(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        about = str(message.get("request_id"))
        for key in [key for key, each in self._questions_open.items() if each.message_id == about]:
            self._close_question(key)
            yield Settled(key=key, decision=None, by="agent")

    def _state(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Note that Claude goes on: it waits for no answer any more, so it uses those that it was given. That it uses a
        denial, the tool's refusal says."""
        if message.get("state") != "running" or self._questions_open:
            return
        for call in [each for each in self._calls.values() if each.answer == ALLOW and not each.is_used]:
            self._calls[call.tool_id] = call.replace(is_used=True)
            yield Settled(key=call.asked or "", decision=ALLOW, by="agent")

    def _limit(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        about = message["rate_limit_info"]
        if about.get("status") != "rejected":
            return
        until, which = about.get("resetsAt"), str(about.get("rateLimitType") or "usage").replace("_", " ")
        until_ns = int(until * SECOND_NS) if isinstance(until, int | float) else None
        yield Limited(until_ns=until_ns, why=f"the {which} limit is reached")

    def _retry(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        status, error = message.get("error_status"), message.get("error")
        # Without a status there was no answer: the error is "unknown" then.
        why = f"{status} {error or ''}".strip() if status else "no connection to the model service"
        yield Retrying(number=number(message.get("attempt")), most=number(message.get("max_retries")), why=why)

    # -- tools, background work, usage -------------------------------------------------------------------------------

    def _agent_ref(self, message: Mapping[str, Any]) -> str | None:
        parent = message.get("parent_tool_use_id")
        return self._subagents.get(parent, parent) if isinstance(parent, str) else None

    def _start_call(self, tool_id: str, name: str, call: Any, agent_ref: str | None) -> Iterator[Signal]:
        """Begin a tool call. Its question may come before the message that holds it."""
        if tool_id not in self._calls:
            self._calls[tool_id] = _Call(tool_id=tool_id, agent_ref=agent_ref)
            yield ToolStarted(tool_id=tool_id, name=name, call=call, turn=self._turn or "", agent_ref=agent_ref)

    def _end_call(self, call: _Call, *, ok: bool, why: str) -> Iterator[Signal]:
        del self._calls[call.tool_id]
        if call.asked is not None and self._close_question(call.asked) is not None:
            yield Settled(key=call.asked, decision=None, by="agent")
        elif call.asked is not None and call.answer is not None and not call.is_used:
            # A tool that was refused fails; a tool that failed was not always refused.
            used = DENY if call.answer == DENY and not ok else ALLOW
            yield Settled(key=call.asked, decision=used, by="agent")
        yield ToolEnded(tool_id=call.tool_id, ok=ok, why=why, killed=not ok and was_killed(why))

    def _begin_task(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        task_id, kind = str(message["task_id"]), str(message.get("task_type"))
        is_agent = "agent" in kind or "workflow" in kind
        if is_agent and isinstance(message.get("tool_use_id"), str):
            self._subagents[message["tool_use_id"]] = task_id
        if isinstance(message.get("tool_use_id"), str):
            self._task_calls[task_id] = message["tool_use_id"]
        what = str(message.get("description") or "")
        self._tasks[task_id] = BackgroundTask(task_id=task_id, kind="subagent" if is_agent else "shell", what=what)
        yield from self._changed_background()

    def _task_progress(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        yield Said(text=str(message.get("description") or ""))

    def _end_task(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Note that background work has ended. It stays in the list until the model knows of it: Claude begins a turn
        for that, and the job is not over before that turn is."""
        task_id = str(message["task_id"])
        status = (message.get("patch") or message).get("status")
        if task_id not in self._tasks or status in (None, "running", "pending"):
            return
        for call in [each for each in self._calls.values() if each.agent_ref == task_id]:
            yield from self._end_call(call, ok=False, why="the subagent ended before it")
        self._ended_tasks.add(task_id)
        self._ended_ns = self._clock.monotonic_ns()
        if status in ("killed", "stopped") and self._turn is None:
            yield from self._forget_ended_tasks()

    def _tasks_of(self, tool_id: object) -> set[str]:
        return {task_id for task_id, call in self._task_calls.items() if call == tool_id}

    def _notice(self) -> str:
        """Return the prompt with which Claude begins a turn about background work that has ended."""
        return " ".join(("task-notification", *sorted(self._ended_tasks)))

    def _forget_ended_tasks(self, ended: set[str] | None = None) -> Iterator[Signal]:
        for task_id in list(self._ended_tasks if ended is None else ended):
            self._ended_tasks.discard(task_id)
            self._tasks.pop(task_id, None)
            self._task_calls.pop(task_id, None)
        yield from self._changed_background()

    def _changed_background(self) -> Iterator[Signal]:
        """Yield the list of background work if it has changed. Claude also calls a command, or a subagent, a task while
        the tool call that runs it is open."""
        found = tuple(task for task in self._tasks.values() if self._task_calls.get(task.task_id) not in self._calls)
        if found != self._listed:
            self._listed = found
            yield BackgroundWork(tasks=found)

    def _usage(self, body: Mapping[str, Any]) -> Iterator[Signal]:
        message_id, usage = body.get("id"), body.get("usage")
        if not isinstance(message_id, str) or not isinstance(usage, dict) or message_id in self._counted:
            return
        self._counted.add(message_id)
        used = claude_tokens(usage, MESSAGE_NAMES)
        if used.total:
            self._tokens = self._tokens.plus(used)
            yield usage_of(message_id, used, model=str(body.get("model") or ""))

    def _cost_since(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Yield what was spent since the last result: Claude says the sums over its process, with those of subagents.
        Its messages say less: they are sent before their last tokens are counted."""
        cost, models = message.get("total_cost_usd"), message.get("modelUsage")
        used = NONE
        for each in models.values() if isinstance(models, dict) else ():
            used = used.plus(claude_tokens(each, RESULT_NAMES))
        more = used.plus(self._tokens, -1).highest(NONE)
        self._tokens = self._tokens.plus(more)
        usd = float(cost) - self._cost if isinstance(cost, int | float) and cost > self._cost else None
        if usd is not None or more != NONE:
            self._cost += usd or 0.0
            name, is_all = f"result-{message.get('uuid')}", usd is not None
            # It does not say that the model answers: the turn may have ended at a usage limit.
            yield usage_of(name, more, cost_usd=usd, covers_all=is_all, of_turn=False)


def _origin(message: Mapping[str, Any]) -> object:
    origin = message.get("origin")
    return origin.get("kind") if isinstance(origin, dict) else None


def _ending(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return how a turn ended, and why if not well."""
    said, kind = str(message.get("result") or ""), str(message.get("subtype") or "")
    why = said or _text(message.get("errors")) or kind or "it ended with an error"
    if kind == "error_during_execution" or str(message.get("terminal_reason")).startswith("aborted"):
        return INTERRUPTED, why
    if message.get("stop_reason") == "tool_deferred":
        return FAILED, "a hook deferred a tool call, which headless Claude Code cannot do later"
    if message.get("is_error") or kind != "success":
        return FAILED, why
    return WELL, ""


def _refused_tools(denials: object) -> tuple[str, ...]:
    found = [each for each in denials if isinstance(each, dict)] if isinstance(denials, list) else []
    return tuple(sorted({str(each.get("tool_name")) for each in found}))


def _parts(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = body.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part if isinstance(part, str) else str(part.get("text") or "") for part in parts)
