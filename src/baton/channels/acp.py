"""Talk with an agent by ACP, the Agent Client Protocol: JSON-RPC 2.0, one message on each line, by pipes.

    initialize ──► session/new | session/load ──► session/prompt ──► … the agent's answer ends the turn

Between a prompt and its answer the agent sends what it does (`session/update`), and asks for permissions. An answer of
"end_turn" alone is not success: agents give it after errors, too.
"""

from __future__ import annotations

import os

from baton.channels import acp_messages as messages
from baton.channels.acp_work import AcpWork, Call, Question, Turn, ending
from baton.channels.lines import JsonLines
from baton.core.clock import SECOND_NS, Clock
from baton.core.fields import UNEXPECTED_SHAPE, json_object, one_line
from baton.core.request import DENIED, Answer, RequestKind
from baton.core.signal import (
    ALLOW,
    DENY,
    FAILED,
    INTERRUPTED,
    Asked,
    Conversation,
    Limited,
    Retrying,
    Said,
    Settled,
    ToolEnded,
    TurnEnded,
    TurnStarted,
    stated,
)
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.adapters.acp_agent import AcpAgent
    from baton.adapters.contract import Task
    from baton.core.signal import Signal

_VERSION = 1
_MOST_QUESTIONS = 100  # that are open at once
_REFUSAL = Answer(answer=DENY, by="", via="agent")
_REPEAT_NS = 20 * SECOND_NS  # at most, for the past of a conversation
_MOST_REASONS = 3  # prompts with the reasons of refusals, in one turn


class Acp(JsonLines):
    def __init__(self, agent: AcpAgent, task: Task, *, clock: Clock | None = None) -> None:
        super().__init__(agent, task, clock=clock)
        self._how = agent
        self._pending: dict[int, str] = {}  # by id: which request of baton the agent has not answered
        self._number = 0
        self._session: str | None = None
        self._prefix = os.urandom(4).hex()
        self._work = AcpWork(agent, self._clock, self._prefix)
        self._text = self._work.text  # what it does, and lines that are no messages
        self._unknown = 0  # messages of an unknown shape
        self._load_ns = 0  # when the conversation can be loaded; 0: it is, or there is none
        self._next_session: str | None = None  # loaded; its past may still be repeated, until `_prompt_ns`
        self._prompt_ns: int | None = None
        self._repeat_until_ns = 0

    # -- to the agent ------------------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        self._work.note_word("it was started")
        # Without these capabilities the agent uses its own tools on files and for commands.
        capabilities = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        about = {"name": "baton", "version": "1"}
        given = {"protocolVersion": _VERSION, "clientCapabilities": capabilities, "clientInfo": about}
        self._ask("initialize", given)

    def say(self, text: str) -> bool:
        if self._work.turn is not None or self._session is None or self._pending:
            return False
        if not self._prompt(text):
            return False
        assert self._work.turn is not None
        self._say([TurnStarted(turn=self._work.turn.turn, prompt=text)])
        return True

    def answer(self, key: str, answer: Answer) -> bool:
        question = self._work.questions.get(key)
        option = None if question is None else question.option_for(answer)
        if question is None or option is None or not self._select(question, option):
            return False
        del self._work.questions[key]
        self._work.note_word("its question was answered")
        call = self._work.find_call(question.tool_id)
        if call is not None:
            call.answer = answer.answer
        if answer.answer != ALLOW and self._work.turn is not None:
            self._refuse(self._work.turn, question, call, answer.reason)
        return True

    def release(self, key: str) -> None:
        question = self._work.questions.pop(key, None)
        if question is None:
            return
        # There is no screen on which a person could answer.
        option = question.option_for(_REFUSAL)
        if option is None or not self._select(question, option):
            self._refuse_request(question.number, messages.REFUSED, "the question is not decided")

    def finish(self) -> None:
        if self._input is None or not self._input.is_open:
            return
        if self._work.turn is not None and self._session is not None:
            self._work.turn.is_cancelled = True
            self._write({"method": "session/cancel", "params": {"sessionId": self._session}})
            for question in self._work.questions.values():
                self._respond(question.number, {"outcome": {"outcome": "cancelled"}})
            self._say(Settled(key=key, decision=None, by="runner") for key in self._work.questions)
            self._work.questions.clear()
        super().finish()

    def facts(self) -> Mapping[str, Any]:
        unknown = {"messages of an unknown shape": self._unknown} if self._unknown else {}
        return {**super().facts(), **unknown}

    def _ask(self, method: str, params: Mapping[str, Any]) -> bool:
        self._number += 1
        if not self._write({"id": self._number, "method": method, "params": params}):
            return False
        self._pending[self._number] = method
        return True

    def _prompt(self, text: str) -> bool:
        """Send a prompt: a turn begins, or the open one goes on."""
        given = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        if not self._ask("session/prompt", given):
            return False
        self._work.turn = self._work.turn or Turn(os.urandom(4).hex())
        self._work.note_word("the prompt was sent")
        return True

    def _select(self, question: Question, option: str) -> bool:
        return self._respond(question.number, {"outcome": {"outcome": "selected", "optionId": option}})

    def _respond(self, number: Any, result: Mapping[str, Any]) -> bool:
        return self._write({"id": number, "result": result})

    def _refuse_request(self, number: Any, code: int, why: str) -> None:
        self._write({"id": number, "error": {"code": code, "message": why}})

    def _write(self, message: Mapping[str, Any]) -> bool:
        return self._write_message({"jsonrpc": "2.0", **message})

    def _refuse(self, turn: Turn, question: Question, call: Call | None, reason: str) -> None:
        """Note a refusal. Some agents say nothing more about a call that was refused."""
        turn.refused.append(question.tool)
        if reason and reason != DENIED:  # the option says as much
            turn.reasons.append(f"{question.tool}: {reason}")
        if call is not None and not call.is_over:
            call.is_over = True
            self._say([ToolEnded(tool_id=call.tool_id, ok=False, why=reason or "it was not allowed")])

    # -- from the agent ----------------------------------------------------------------------------------------------

    def read(self) -> None:
        for line in self._output.read() if self._output is not None else ():
            self._say(self._signals(line))
        self._say(self._by_time())

    def _signals(self, line: str) -> list[Signal]:
        """Return what a line means. Agents change their messages monthly: one of another shape means nothing."""
        message = json_object(line)
        if not message:
            self._work.text.append(line + "\n")
            return [Said(text=line, is_work=False)] if line.strip() else []
        found: list[Signal] = []
        try:
            found.extend(self._read_message(message))
        except UNEXPECTED_SHAPE:
            self._unknown += 1
        return found

    def _read_message(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        method = message.get("method")
        if method is None:
            yield from self._answered(message)
        elif "id" in message:
            yield from self._request(str(method), message["id"], message.get("params"))
        elif method == "session/update":
            yield from self._update(message["params"])
        elif method == "$/cancel_request":
            number = message["params"]["requestId"]
            for key in [key for key, each in self._work.questions.items() if _is_same(each.number, number)]:
                del self._work.questions[key]
                yield Settled(key=key, decision=None, by="agent")

    def _by_time(self) -> Iterator[Signal]:
        """Yield what the passing of time means. Agents retry a model service that fails without a word."""
        now_ns = self._clock.monotonic_ns()
        if self._load_ns and now_ns >= self._load_ns:
            self._load_ns = 0
            self._load()
        if self._prompt_ns is not None and now_ns >= self._prompt_ns:
            yield from self._use_session()
        waits = self._pending and not self._work.questions and not self._work.open_calls()
        work = self._work
        if waits and not work.is_silent and now_ns - work.word_ns >= self._how.acp_silence_sec * SECOND_NS:
            work.is_silent = True
            why = f"no word from {self._how.name} since {work.word}"
            why += "; it may be retrying its model service in silence" if work.turn is not None else ""
            yield Retrying(number=0, most=0, why=why, assumed=True)

    # -- answers to baton's requests ---------------------------------------------------------------------------------

    def _answered(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        number = message.get("id")
        method = self._pending.pop(number, None) if type(number) is int else None
        if method is None:
            return
        error, result = message.get("error"), message.get("result")
        why = messages.reason(error) if error is not None else None
        self._work.note_word("its last answer")
        if method == "session/prompt":
            yield from self._end_prompt(result if isinstance(result, dict) else {}, why)
        elif why is not None:
            yield from self._fail(f"{method}: {why}")
        else:
            yield from self._go_on(method, result if isinstance(result, dict) else {})

    def _go_on(self, method: str, result: Mapping[str, Any]) -> Iterator[Signal]:
        """Take the next step towards the first prompt."""
        wanted = self._task.conversation_id if self._task.resume else None
        if method == "initialize":
            yield from stated(release=messages.release_of(result))
            version, able = result.get("protocolVersion"), result.get("agentCapabilities")
            if version != _VERSION:
                yield from self._fail(f"it speaks version {one_line(str(version), 20)} of ACP, not {_VERSION}")
            elif wanted is None:
                self._ask("session/new", {"cwd": self._task.workdir, "mcpServers": []})
            elif not isinstance(able, dict) or not able.get("loadSession"):
                yield from self._fail("it cannot continue a conversation by ACP: it has no session/load")
            else:
                yield from self._load_in_time()
            return
        if method == "session/set_mode":
            yield from stated(mode=self._how.acp_mode or "")
            yield from self._begin()
            return
        session = wanted if method == "session/load" else result.get("sessionId")
        if not isinstance(session, str):
            yield from self._fail("session/new: it did not say the id of the session")
            return
        if self._how.is_conversation(session):
            yield Conversation(conversation_id=session)
        self._next_session = session
        self._work.model = messages.model_of(result)
        yield from stated(mode=messages.mode_of(result), model=self._work.model)
        if method == "session/new":
            yield from self._use_session()
        else:  # some agents repeat the conversation after this answer
            now_ns = self._clock.monotonic_ns()
            self._repeat_until_ns = now_ns + _REPEAT_NS
            self._prompt_ns = now_ns + int(self._how.acp_repeat_sec * SECOND_NS)

    def _use_session(self) -> Iterator[Signal]:
        self._session, self._next_session, self._prompt_ns = self._next_session, None, None
        if self._how.acp_mode is None:
            yield from self._begin()
        else:
            self._ask("session/set_mode", {"sessionId": self._session, "modeId": self._how.acp_mode})

    def _begin(self) -> Iterator[Signal]:
        if self._task.prompt is not None and self._work.turn is None and self._prompt(self._task.prompt):
            assert self._work.turn is not None
            yield TurnStarted(turn=self._work.turn.turn, prompt=self._task.prompt)

    def _load_in_time(self) -> Iterator[Signal]:
        wait_sec = self._how.acp_load_wait_sec(self._task, self._clock.wall_ns() / SECOND_NS)
        if wait_sec <= 0:
            self._load()
            return
        self._load_ns = self._clock.monotonic_ns() + int(wait_sec * SECOND_NS)
        yield Retrying(number=0, most=0, why=f"the conversation is new: it can be loaded in {wait_sec:.0f} s")

    def _load(self) -> None:
        given: dict[str, Any] = {"sessionId": self._task.conversation_id, "cwd": self._task.workdir, "mcpServers": []}
        self._ask("session/load", given)

    def _fail(self, why: str) -> Iterator[Signal]:
        """End the work before the first turn: without a session there is none."""
        turn = os.urandom(4).hex()
        yield TurnStarted(turn=turn, prompt=self._task.prompt or "")
        if messages.is_limit(why):
            yield Limited(until_ns=None, why=why)
        yield TurnEnded(turn=turn, how=FAILED, why=why)

    def _end_prompt(self, result: Mapping[str, Any], why: str | None) -> Iterator[Signal]:
        turn = self._work.turn
        if turn is None:
            return
        yield from self._work.end_message()
        used = messages.turn_usage(result)
        yield from self._work.used(turn, used)
        left = len(self._work.questions)
        for key, question in self._work.questions.items():
            self._refuse_request(question.number, messages.REFUSED, "the turn is over")
            yield Settled(key=key, decision=None, by="agent")
        self._work.questions.clear()
        for call in self._work.open_calls():
            yield from self._work.end_call(call, ok=False, why="the turn ended before it")
        how, why = ending(turn, result, why, left=left, used=used, said=self._work.message)
        if turn.reasons and not turn.error and how != INTERRUPTED and turn.explained < _MOST_REASONS:
            stop = result.get("stopReason")
            if stop in ("end_turn", "cancelled") and not left and self._explain(turn):
                return
        self._work.turn = None
        if how == FAILED and messages.is_limit(why):
            yield Limited(until_ns=None, why=why)
        message, barred = self._work.message or None, tuple(turn.barred)
        yield TurnEnded(turn=turn.turn, how=how, why=why, message=message, refused_tools=barred)

    def _explain(self, turn: Turn) -> bool:
        """Give the agent the reasons of refusals with a further prompt, in the same turn."""
        text = "You were not allowed to use these tools. Do not do it another way.\n" + "\n".join(turn.reasons)
        turn.explained += 1
        turn.reasons, turn.refused, turn.calls = [], [], {}
        return self._prompt(text)

    # -- what the agent asks -----------------------------------------------------------------------------------------

    def _request(self, method: str, number: Any, params: Any) -> Iterator[Signal]:
        if method != "session/request_permission":
            self._refuse_request(number, messages.UNKNOWN_METHOD, f"baton does not know {one_line(method, 60)}")
            return
        try:
            yield from self._permission(number, params)
        except UNEXPECTED_SHAPE:
            self._refuse_request(number, messages.INVALID, "baton cannot read this request")
            raise

    def _permission(self, number: Any, params: Mapping[str, Any]) -> Iterator[Signal]:
        about, offered = dict(params["toolCall"]), messages.options(params["options"])
        if params["sessionId"] != self._session or len(self._work.questions) >= _MOST_QUESTIONS:
            self._refuse_request(number, messages.INVALID, "another session, or too many questions")
            return
        if self._work.turn is None:  # guard: acp-turn
            self._refuse_request(number, messages.INVALID, "there is no turn")
            return
        if any(_is_same(each.number, number) for each in self._work.questions.values()):
            return  # it asks twice, and gets one answer
        yield from self._work.end_message()
        tool_id = about.get("toolCallId")
        call = self._work.call(tool_id, about, begins=True)
        name = call.name if call is not None else messages.tool_name(about) or "tool"
        given, is_exact = messages.arguments(about)
        if call is not None:
            yield from self._work.begin_call(call, given)
        self._questions += 1
        key = f"{self._prefix}-{self._questions}"
        question = Question(number, name, call.tool_id if call is not None else None, offered, self._how.acp_once)
        self._work.questions[key] = question
        if call is not None:
            call.key, call.answer = key, None
        self._work.note_word("it asked")
        kind = RequestKind.TOOL
        choices: tuple[dict[str, Any], ...] = ()
        if about.get("kind") == "switch_mode":
            kind = RequestKind.PLAN
        elif len(question.allowing) > 1:
            kind = RequestKind.QUESTION
            title = str(about.get("title") or name)
            choices = ({"question": title, "choices": question.allowing, "several": False},)
        yield Asked(
            key=key, kind=kind, tool=name, call=given, tool_id=question.tool_id, options=choices, exact=is_exact
        )  # fmt: skip

    # -- what the agent does -----------------------------------------------------------------------------------------

    def _update(self, params: Mapping[str, Any]) -> Iterator[Signal]:
        if self._prompt_ns is not None:
            again_ns = self._clock.monotonic_ns() + int(self._how.acp_repeat_sec * SECOND_NS)
            self._prompt_ns = max(self._prompt_ns, min(again_ns, self._repeat_until_ns))
        if self._session is not None and params["sessionId"] == self._session:
            yield from self._work.read(params["update"])  # others are of the past: a loaded conversation is repeated


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other
