"""Turn the events of opencode's server into signals.

A turn begins with a prompt and ends when its session is idle. Idle alone is no success: the last message of the model
says how the turn ended. Sessions of subagents have no turns of the job; their tool calls, questions and costs count.
"""

from __future__ import annotations

from baton.channels.opencode_questions import Questions, call_name, remember
from baton.core.clock import SECOND_NS, Clock
from baton.core.facts import describe_call
from baton.core.fields import UNEXPECTED_SHAPE
from baton.core.signal import (
    ALLOW,
    BACKGROUND,
    FAILED,
    INTERRUPTED,
    PROMPT,
    WELL,
    BackgroundTask,
    BackgroundWork,
    Limited,
    Retrying,
    Said,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    Usage,
)
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from baton.core.signal import Signal

_ALIVE_EVERY_NS = SECOND_NS
_ERROR_NS = SECOND_NS  # so long the error of a turn that could not begin comes after its end
_LIMIT_MS = 60_000  # a service that is tried again only after this long has named a time
_LIMIT_WORDS = ("limit", "quota", "too many requests", "429")
# How opencode words a tool call that was refused: at its own screen, and by its configuration.
_REFUSED_THERE = ("rejected permission", "dismissed this question")
_REFUSED_BY_RULE = "specified a rule which prevents"
# opencode does not offer a tool that its configuration denies. If the model calls it, that is a call of "invalid".
_MAY_BE_DENIED = frozenset({"bash", "edit", "write", "apply_patch", "patch", "webfetch", "websearch", "task", "read"})

# Which method reads which event.
_READERS = {
    "session.created": "_session_created",
    "session.status": "_status",
    "session.idle": "_idle",
    "session.error": "_failed",
    "message.updated": "_message_updated",
    "message.part.updated": "_part_updated",
    "message.part.delta": "_delta",
    "permission.asked": "_permission_asked",
    "permission.replied": "_permission_replied",
    "question.asked": "_question_asked",
    "question.replied": "_question_replied",
    "question.rejected": "_question_rejected",
}


class _Prompt(Value):
    """A message of a user, with the texts of its parts by id. `synthetic`: opencode itself wrote it."""

    texts: Mapping[str, str] = {}
    synthetic: bool = True

    @property
    def text(self) -> str:
        return "\n".join(self.texts.values())


class OpencodeEvents:
    """What is known of one session. `session` is its id; `before` are the messages of earlier runs. `show` gets lines
    for people. `sent` is a prompt of baton whose turn has not begun, `sent_back` one that continues the last turn."""

    def __init__(self, session: str, clock: Clock, *, before: set[str], show: Callable[[str], None]) -> None:
        self.session = session
        self.sent: str | None = None
        self.sent_back: str | None = None
        self._clock = clock
        self._before = before
        self._show = show
        self._sessions = {session}  # and those of its subagents
        self._turn: _Prompt | None = None  # the open one
        self._name = ""  # of the open turn, or of the last one
        self._prompts: dict[str, _Prompt] = {}  # by message: those that wait for their turn
        self._begun: dict[str, None] = {}  # messages whose turn has begun
        self._of_turn: set[str] = set()  # messages to which the open turn is an answer
        self._roles: dict[str, str] = {}  # by message
        self._models: dict[str, str] = {}  # by message
        self._answer: Mapping[str, Any] = {}  # the last message of the model in this turn
        self._error: Mapping[str, Any] = {}  # of this turn
        self._trouble = ""  # why the model service is tried again
        self._message = ""  # what the model said last
        self._said: dict[str, None] = {}  # parts that were shown
        self._calls: dict[str, tuple[str, Any]] = {}  # session and arguments of open tool calls, by id
        self._over: dict[str, None] = {}  # tool calls that are over
        self._refused_there: list[str] = []  # tools, in this turn
        self._refused_by_rule: set[str] = set()
        self._background: dict[str, BackgroundTask] = {}
        self.questions = Questions(self._sessions, self._calls, self._over, clock)
        self._alive_ns = 0
        self._idle_ns: int | None = None  # since when a turn without an answer waits for its error
        self.unknown = 0  # events of an unknown shape

    def read(self, event: Mapping[str, Any]) -> list[Signal]:
        """Return what an event means. One of an unexpected shape means nothing."""
        found: list[Signal] = []
        try:
            name, about = _READERS.get(str(event.get("type"))), event.get("properties")
            if name is not None and isinstance(about, dict):
                found.extend(getattr(self, name)(about))
        except UNEXPECTED_SHAPE:
            self.unknown += 1
        return found

    def tick(self) -> list[Signal]:
        """Return what time alone brings."""
        found = list(self.questions.tick(self.session))
        if self._idle_ns is not None and self._clock.monotonic_ns() - self._idle_ns >= _ERROR_NS:
            found += self._end()
        return found

    def compare(
        self,
        messages: list[Mapping[str, Any]],
        status: Mapping[str, Any],
        permissions: list[Mapping[str, Any]],
        choices: list[Mapping[str, Any]],
    ) -> list[Signal]:
        """Return what the state of the server says that no event said: the connection was lost meanwhile."""
        found: list[Signal] = []
        for message in messages:
            found += self.read({"type": "message.updated", "properties": message})
            for part in message.get("parts") or ():
                found += self.read({"type": "message.part.updated", "properties": {"part": part}})
        found += self.questions.keep_only({str(each.get("id")) for each in (*permissions, *choices)})
        now = status.get(self.session) or {"type": "idle"}
        if now.get("type") != "idle" or self._background:  # else what is listed is of calls that were interrupted
            for about in permissions:
                found += self.read({"type": "permission.asked", "properties": about})
            for about in choices:
                found += self.read({"type": "question.asked", "properties": about})
        return [
            *found,
            *self.read({"type": "session.status", "properties": {"sessionID": self.session, "status": now}}),
        ]

    def lose(self, why: str) -> list[Signal]:
        """Return what the end of the server means: the open turn failed, or that of the prompt that was sent."""
        found: list[Signal] = [*self.questions.settle(None)]
        if self._turn is None and self.sent is None:
            return [*found, Said(text=why, is_work=False)]
        if self._turn is None and self.sent is not None:
            self._name = "lost"
            found.append(TurnStarted(turn="lost", prompt=self.sent))
        self._turn = self.sent = None
        return [*found, TurnEnded(turn=self._name, how=FAILED, why=why)]

    # -- turns -------------------------------------------------------------------------------------------------------

    def _message_updated(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        info = about["info"]
        message, role = str(info["id"]), str(info["role"])
        if info["sessionID"] in self._sessions and info.get("modelID"):
            remember(self._models, message, f"{info.get('providerID')}/{info['modelID']}")
        if info["sessionID"] != self.session or message in self._before:
            return
        remember(self._roles, message, role)
        if role == "user" and message not in self._begun and message not in self._prompts:
            self._prompts[message] = _Prompt()
        elif role == "assistant":
            yield from self._answered(info)

    def _answered(self, info: Mapping[str, Any]) -> Iterator[Signal]:
        """Read a message of the model, as far as it is known yet."""
        parent = str(info.get("parentID"))
        if parent in self._prompts:
            yield from self._begin()
        if self._turn is None or parent not in self._of_turn:
            return  # of a turn that is over
        if info.get("error"):
            self._error = _error(info["error"])
        elif info.get("id") != self._answer.get("id") and self._error.get("name") == "ContextOverflowError":
            self._error = {}  # opencode has made room, and goes on
        if not info.get("summary"):
            self._answer = info

    def _begin(self) -> Iterator[Signal]:
        """Begin the turn of the prompts that wait. While a turn is open that the model has not finished, it works on
        the old prompt and the new ones: that is one turn."""
        waiting = list(self._prompts)
        texts: dict[str, str] = {}
        for prompt in self._prompts.values():
            texts.update(prompt.texts)
        synthetic = all(prompt.synthetic for prompt in self._prompts.values())
        self._prompts.clear()
        for message in waiting:
            remember(self._begun, message)
        if self._turn is not None and synthetic:
            self._of_turn.update(waiting)
            return  # opencode's own words in the middle of a turn
        if self._turn is not None and self._how()[0] == WELL:
            yield from self._end()
        if self._turn is not None:
            texts = {**self._turn.texts, **texts}
        self._of_turn = set(waiting)
        self._turn = _Prompt(texts=texts, synthetic=synthetic)
        self._answer, self._error, self._message = {}, {}, ""
        self._refused_there, self._refused_by_rule = [], set()
        self.sent = None
        text = self._turn.text
        if self.sent_back is not None and self.sent_back.strip() == text.strip():
            self.sent_back = None
            return  # the runner has opened the last turn again
        self._name = waiting[-1]
        is_notice = synthetic and "<task id=" in text
        yield TurnStarted(turn=self._name, origin=BACKGROUND if is_notice else PROMPT, prompt=text)

    def _status(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        if about["sessionID"] != self.session:
            return
        status = about["status"]
        if status["type"] == "idle":
            yield from self._end()
            return
        if self._turn is None and self._prompts:
            yield from self._begin()
        self._trouble, self._idle_ns = "", None
        if status["type"] == "retry":
            yield self._retry(status)

    def _retry(self, status: Mapping[str, Any]) -> Signal:
        why = str(status.get("message") or "the model service failed")
        until_ms, attempt = status.get("next"), status.get("attempt")
        self._trouble = why
        self._show(f"{why}; trying again\n")
        is_limit = any(word in why.lower() for word in _LIMIT_WORDS)
        if is_limit and isinstance(until_ms, int) and until_ms - self._clock.wall_ns() // 10**6 >= _LIMIT_MS:
            return Limited(until_ns=until_ms * 10**6, why=why)
        return Retrying(number=attempt if isinstance(attempt, int) else 0, most=0, why=why)

    def _idle(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        session = str(about["sessionID"])
        if session == self.session:
            yield from self._end()
        elif session in self._sessions:
            yield from self._end_calls(session)
            if self._background.pop(session, None) is not None:
                yield BackgroundWork(tasks=tuple(self._background.values()))

    def _failed(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        if about.get("sessionID") != self.session:
            return
        error = _error(about.get("error"))
        self._show(f"{describe_error(error)}\n")
        if self._turn is None and self._prompts:  # it could not begin
            yield from self._begin()
        elif self._turn is None and self.sent is not None:  # the prompt was refused
            self._turn, self._name = _Prompt(), f"refused {self._clock.monotonic_ns()}"
            yield TurnStarted(turn=self._name, prompt=self.sent)
            self.sent, self._idle_ns = None, 0
        self._error = error
        if self._idle_ns is not None:
            yield from self._end()

    def _end(self) -> Iterator[Signal]:
        """End the open turn: its session is idle."""
        if self._turn is None:
            return
        if not self._answer and not self._error and self._idle_ns is None:
            self._idle_ns = self._clock.monotonic_ns()
            return
        if not self._answer and not self._error and self._clock.monotonic_ns() - (self._idle_ns or 0) < _ERROR_NS:
            return
        self._idle_ns = None
        how, why = self._how()
        yield from self._end_calls(self.session)
        self._turn = None
        yield TurnEnded(
            turn=self._name,
            how=how,
            why=why,
            message=self._message if how == WELL else None,
            refused_tools=tuple(sorted(self._refused_by_rule)),
        )

    def _how(self) -> tuple[str, str]:  # noqa: PLR0911  one for each way to end
        """Return how the turn ended, and why if not well. Only a complete message of the model is a good end."""
        if self._error.get("name") == "MessageAbortedError":
            return INTERRUPTED, "it was interrupted"
        if self._error:
            return FAILED, describe_error(self._error)
        finish = self._answer.get("finish")
        if finish == "stop":
            return WELL, ""
        if self._refused_there:
            return INTERRUPTED, f"{', '.join(self._refused_there)} was refused at opencode's own screen"
        if self._trouble:  # opencode names no error then
            return INTERRUPTED, f"it was interrupted while the model service failed: {self._trouble}"
        if finish == "length":
            return FAILED, "the answer of the model was cut off at its length limit"
        return FAILED, f"opencode ended its turn without an answer of the model (finish: {finish or 'none'})"

    # -- parts of messages -------------------------------------------------------------------------------------------

    def _part_updated(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        part = about["part"]
        session, message, kind = str(part["sessionID"]), str(part["messageID"]), part["type"]
        if session not in self._sessions or message in self._before:
            return
        if kind == "step-finish":
            yield _usage(part, self._models.get(message, ""), of_turn=session == self.session)
        elif kind == "tool":
            yield from self._tool(session, part)
        elif session == self.session and kind == "text" and self._roles.get(message) == "user":
            self._add_to_prompt(message, part)
        elif session == self.session and kind == "text" and self._roles.get(message) == "assistant":
            yield from self._text(part)
        else:
            yield from self._alive()

    def _add_to_prompt(self, message: str, part: Mapping[str, Any]) -> None:
        prompt = self._prompts.get(message)
        if prompt is not None:
            texts = {**prompt.texts, str(part["id"]): str(part["text"])}
            synthetic = prompt.synthetic and bool(part.get("synthetic"))
            self._prompts[message] = prompt.replace(texts=texts, synthetic=synthetic)

    def _text(self, part: Mapping[str, Any]) -> Iterator[Signal]:
        text, key = str(part.get("text") or ""), str(part["id"])
        if not (part.get("time") or {}).get("end") or key in self._said or not text.strip():
            yield from self._alive()
            return
        remember(self._said, key)
        self._message = text
        self._show(f"{text}\n")
        yield Said(text=text)

    def _delta(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        if about["sessionID"] in self._sessions:
            yield from self._alive()

    def _alive(self) -> Iterator[Signal]:
        """Take pieces of a message for a sign of work, once in a while."""
        now_ns = self._clock.monotonic_ns()
        if self._turn is not None and now_ns - self._alive_ns >= _ALIVE_EVERY_NS:
            self._alive_ns = now_ns
            yield Said(text="")

    def _tool(self, session: str, part: Mapping[str, Any]) -> Iterator[Signal]:
        call, name, state = call_name(part), str(part["tool"]), part["state"]
        status, given = state["status"], state.get("input")
        child = (state.get("metadata") or {}).get("sessionId")
        if name == "task" and isinstance(child, str):
            self._sessions.add(child)  # the event of its beginning may be lost
        if call in self._over or status == "pending":
            yield from self._alive()
            return
        if call in self._calls:
            yield from self._alive()
        else:
            self._calls[call] = (session, given)
            self._show(f"{describe_call(name, given)}\n")
            agent_ref = None if session == self.session else session
            yield ToolStarted(tool_id=call, name=name, call=given, turn=self._name, agent_ref=agent_ref)
            yield from self.questions.know_call(self.session, call)
        if name == "invalid" and isinstance(given, dict) and "unavailable" in str(given.get("error")):
            self._refused_by_rule |= {str(given.get("tool"))} & _MAY_BE_DENIED
        if status == "completed":
            self._show(_whole_lines(str(state.get("output") or "")))
            yield from self._begin_background(state)
            yield from self._end_call(call, ok=True, why="")
        elif status == "error":
            why = str(state.get("error") or "")
            self._show(_whole_lines(why))
            if _REFUSED_BY_RULE in why:
                self._refused_by_rule.add(name)
            elif any(words in why for words in _REFUSED_THERE):
                self._refused_there.append(name)
            yield from self._end_call(call, ok=False, why=why)

    def _end_call(self, call: str, *, ok: bool, why: str) -> Iterator[Signal]:
        self._calls.pop(call, None)
        remember(self._over, call)
        yield from self.questions.end_call(call, ALLOW if ok else None)
        yield ToolEnded(tool_id=call, ok=ok, why=why)

    def _end_calls(self, session: str) -> Iterator[Signal]:
        """End what is open of a session that is idle."""
        for call in [call for call, (of, _) in self._calls.items() if of == session]:
            yield from self._end_call(call, ok=False, why="the turn ended before it")
        yield from self.questions.settle(session)

    def _begin_background(self, state: Mapping[str, Any]) -> Iterator[Signal]:
        about = state.get("metadata") or {}
        child = about.get("sessionId")
        if about.get("background") is True and isinstance(child, str):
            what = str(state.get("title") or "")
            self._background[child] = BackgroundTask(task_id=child, kind="subagent", what=what)
            yield BackgroundWork(tasks=tuple(self._background.values()))

    def _session_created(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        if about["info"].get("parentID") in self._sessions:
            self._sessions.add(str(about["info"]["id"]))
        yield from ()

    # -- questions ---------------------------------------------------------------------------------------------------

    def _permission_asked(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self.questions.ask_permission(self.session, about)

    def _permission_replied(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self.questions.read_reply(about)

    def _question_asked(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self.questions.ask_choice(self.session, about)

    def _question_replied(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self.questions.read_choice(about, rejected=False)

    def _question_rejected(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self.questions.read_choice(about, rejected=True)


def _error(given: object) -> Mapping[str, Any]:
    """Return an error that opencode names, whatever its shape is: it is an error."""
    return given if isinstance(given, dict) and given else {"name": str(given or "an error")}


def describe_error(error: Mapping[str, Any]) -> str:
    """Return an error of opencode in words: what the model service answered, or what opencode says itself."""
    about = error.get("data")
    about = about if isinstance(about, dict) else {}
    message, status = str(about.get("message") or error.get("name") or "an error"), about.get("statusCode")
    return f"the model service answered {status}: {message}" if isinstance(status, int) else message


def _usage(part: Mapping[str, Any], model: str, *, of_turn: bool) -> Usage:
    tokens, cost = part.get("tokens") or {}, part.get("cost")
    cache = tokens.get("cache") or {}
    cached, written = _number(cache.get("read")), _number(cache.get("write"))
    given = _number(tokens.get("input")) + cached + written
    made = _number(tokens.get("output")) + _number(tokens.get("reasoning"))
    price = float(cost) if isinstance(cost, int | float) and cost > 0 else None  # 0: it knows no price
    return Usage(
        message_id=str(part["id"]), input_tokens=given, output_tokens=made, cached_tokens=cached,
        cache_write_tokens=written, cost_usd=price, model=model, of_turn=of_turn,
    )  # fmt: skip


def _whole_lines(text: str) -> str:
    return f"{text.rstrip()}\n" if text.strip() else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0
