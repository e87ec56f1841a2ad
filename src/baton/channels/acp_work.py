"""Turn the updates of an agent that speaks ACP into signals: text, tool calls, usage, and how a turn ended."""

from __future__ import annotations

from baton.channels import acp_messages as messages
from baton.core.clock import SECOND_NS, Clock
from baton.core.facts import describe_call
from baton.core.fields import one_line
from baton.core.signal import (
    ALLOW,
    DENY,
    FAILED,
    INTERRUPTED,
    WELL,
    Retrying,
    Said,
    Settled,
    ToolEnded,
    ToolStarted,
    Usage,
    stated,
)
from baton.core.spending import NONE, Tokens
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.adapters.acp_agent import AcpAgent
    from baton.core.request import Answer
    from baton.core.signal import Signal

_MOST_CALLS = 1000  # tool calls of a turn that are remembered
_MESSAGE_CHARS = 1 << 20  # of the last message
_LINE_CHARS = 10_000  # of a line that has no end yet
_SAID_LINES = 1000  # of one message, the last ones
_PARTIAL_EVERY_NS = SECOND_NS
_REASON = 400  # characters
_UPDATES = {
    "agent_message_chunk": "_text_chunk",
    "agent_thought_chunk": "_thought",
    "tool_call": "_tool",
    "tool_call_update": "_tool",
    "plan": "_plan",
    "usage_update": "_cost",
    "session_info_update": "_info",
    "current_mode_update": "_mode",
}


class Call:
    """A tool call of the open turn. `key` is that of its question, `answer` what was answered."""

    def __init__(self, tool_id: str) -> None:
        self.tool_id = tool_id
        self.about: dict[str, Any] = {}  # the fields of its messages
        self.began = self.is_over = False
        self.key: str | None = None
        self.answer: str | None = None

    @property
    def name(self) -> str:
        return messages.tool_name(self.about) or "tool"


class Question:
    """A permission that the agent waits for. `number` is the id of its message."""

    def __init__(
        self, number: Any, tool: str, tool_id: str | None, offered: list[messages.Option], once: str | None = None
    ) -> None:
        """`once` is the id of the option that allows this call and changes nothing else, if the agent has one."""
        self.number = number
        self.tool = tool
        self.tool_id = tool_id
        is_plain = any(each.kind == "allow_once" and each.option_id == once for each in offered)
        wider = [each for each in offered if each.kind == "allow_once" and each.option_id != once]
        self.offered = [each for each in offered if not is_plain or each not in wider]  # guard: acp-wider-option
        self.allowing = [each.name for each in self.offered if each.kind == "allow_once"]

    def option_for(self, answer: Answer) -> str | None:
        """Return the id of the option that means this answer; None if there is none. It is never one that allows or
        rejects more than this call, and never one of the other direction."""
        wanted = "allow_once" if answer.answer == ALLOW else "reject_once"
        is_choice = wanted == "allow_once" and len(self.allowing) > 1
        for each in self.offered:
            if each.kind != wanted:  # guard: acp-option
                continue
            if not is_choice or each.name in answer.choices.values():
                return each.option_id
        return None


class Turn:
    """The turn that is open: from a prompt to the answer. `error` is what the agent said about its model service."""

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.error: str | None = None
        self.retries = 0
        self.has_words = False
        self.is_cancelled = False
        self.refused: list[str] = []  # tools
        self.barred: dict[str, None] = {}  # tools that the agent's own settings do not allow
        self.reasons: list[str] = []  # that the agent was not given yet: the protocol has no place for them
        self.explained = 0
        self.calls: dict[str, Call] = {}


class AcpWork:
    """What the agent does in a session. `turn` is the open turn, `questions` its open questions by key, `text` the
    output for people since it was taken last, `message` the last message of the agent. `word` is what it was heard of
    last, at `word_ns`: an agent that says nothing for long is `is_silent`."""

    def __init__(self, agent: AcpAgent, clock: Clock, prefix: str) -> None:
        self._agent = agent
        self._clock = clock
        self._prefix = prefix
        self.turn: Turn | None = None
        self.questions: dict[str, Question] = {}
        self.text: list[str] = []
        self.message = ""
        self.word, self.word_ns, self.is_silent = "it was started", clock.monotonic_ns(), False
        self._line = ""  # of the agent's text, without an end yet
        self._pieces: list[str] = []  # of the present message
        self._chars = 0
        self._message_id: object = None
        self._plan_text = ""
        self.model = ""  # of the session
        self._tokens: dict[str, Tokens] = {}  # by model, so far
        self._cost_usd = 0.0
        self._answers = 0  # of the model
        self._partial_ns = 0
        self._uses: dict[str, int] = {}  # how often the agent has used an id for a tool call

    def note_word(self, word: str) -> None:
        """Begin the time anew after which the agent counts as silent."""
        self.word, self.word_ns, self.is_silent = word, self._clock.monotonic_ns(), False

    def open_calls(self) -> list[Call]:
        calls = self.turn.calls.values() if self.turn is not None else ()
        return [call for call in calls if call.began and not call.is_over]

    def read(self, update: Mapping[str, Any]) -> Iterator[Signal]:
        """Yield what an update means."""
        name = _UPDATES.get(str(update["sessionUpdate"]))
        if name is not None:
            yield from getattr(self, name)(update)

    def _text_chunk(self, update: Mapping[str, Any]) -> Iterator[Signal]:
        # JSON can hold halves of characters.
        text = messages.text_of(update["content"]).encode(errors="replace").decode()
        meta = update.get("_meta")
        used = messages.tokens(meta.get("usage")) if isinstance(meta, dict) else None
        if used is not None:
            self.note_word("the model answered")
            self._answers += 1
            name = f"{self._prefix}-answer-{self._answers}"
            yield self._usage(name, used, of_turn=True)
        if not text:
            return
        turn = self.turn
        if turn is not None and self._agent.acp_retry is not None and self._agent.acp_retry.match(text):
            turn.retries += 1
            yield from self.end_message()
            yield from self._trouble(messages.Trouble(why=one_line(text, _REASON), number=turn.retries))
            return
        if turn is not None and self._agent.acp_error is not None and self._agent.acp_error.match(text):
            yield from self.end_message()
        if update.get("messageId") != self._message_id:
            yield from self.end_message()
            self._message_id = update.get("messageId")
        if turn is not None:
            turn.has_words = True
        self.note_word("the agent said something")
        yield from self._add_text(text)

    def _add_text(self, text: str) -> Iterator[Signal]:
        self.text.append(text)
        if self._chars < _MESSAGE_CHARS:
            self._pieces.append(text)
            self._chars += len(text)
        *lines, self._line = (self._line + text).split("\n")
        if len(self._line) > _LINE_CHARS:
            lines.append(self._line)
            self._line = ""
        shown = [each for each in lines[-_SAID_LINES:] if each.strip()]
        yield from (Said(text=each) for each in shown)
        if not shown:
            yield from self._partial()

    def end_message(self) -> Iterator[Signal]:
        """End the text before something else."""
        if self._line.strip():
            yield Said(text=self._line)
        if self._pieces and not self._pieces[-1].endswith("\n"):
            self.text.append("\n")
        text = "".join(self._pieces).strip()
        error = self._agent.acp_error
        if self.turn is not None and error is not None and error.match(text):
            self.turn.error = self.turn.error or one_line(text, _REASON)
        self.message = text or self.message
        self._line, self._pieces, self._chars = "", [], 0

    def _partial(self) -> Iterator[Signal]:
        """Take pieces of a message for a sign of work: a long one may take minutes."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._partial_ns >= _PARTIAL_EVERY_NS:
            self._partial_ns = now_ns
            yield Said(text="")

    def _thought(self, _update: Mapping[str, Any]) -> Iterator[Signal]:
        self.note_word("the model thought")
        yield from self._partial()

    def _plan(self, update: Mapping[str, Any]) -> Iterator[Signal]:
        self.note_word("the agent said its plan")
        text = messages.plan_text(update)
        if text != self._plan_text:
            self._plan_text = text
            yield from self.end_message()
            self.text.append(text + "\n")
            yield Said(text=text)

    def _mode(self, update: Mapping[str, Any]) -> Iterator[Signal]:
        yield from stated(mode=messages.mode_of(update))

    def _info(self, update: Mapping[str, Any]) -> Iterator[Signal]:
        trouble = messages.codex_trouble(update)
        if trouble is not None and self.turn is not None:
            if trouble.is_final:
                self.turn.error = self.turn.error or trouble.why
            else:
                yield from self._trouble(trouble)

    def _trouble(self, trouble: messages.Trouble) -> Iterator[Signal]:
        self.note_word("it tried again")
        self.text.append(trouble.why + "\n")
        yield Retrying(number=trouble.number, most=trouble.most, why=trouble.why)

    def _tool(self, update: Mapping[str, Any]) -> Iterator[Signal]:
        call = self.call(update["toolCallId"], update, begins=update["sessionUpdate"] == "tool_call")
        if call is None:
            return
        self.note_word("a tool call")
        status = update.get("status")
        is_over = status in ("completed", "failed")
        given, _ = messages.arguments(call.about)
        if is_over or status == "in_progress" or messages.says_what(call.name, call.about.get("rawInput")):
            yield from self.begin_call(call, given)
        if not is_over:
            if status == "in_progress" and call.key is not None and call.answer == ALLOW:
                key, call.key = call.key, None
                yield Settled(key=key, decision=ALLOW, by="agent")  # the tool runs
            yield from self._partial()
            return
        text = messages.text_of(update.get("content"))
        if text:
            self.text.append(text + "\n")
        if status == "failed" and self.turn is not None and self._agent.acp_barred.search(text[:_REASON]):
            self.turn.barred[call.name] = None
        yield from self.end_call(call, ok=status == "completed", why=text if status == "failed" else "")

    def call(self, tool_id: object, about: Mapping[str, Any], *, begins: bool) -> Call | None:
        """Return the call of this id, with what is new about it; None outside of a turn, or when there are too many.
        `begins`: it is not over. Some model services repeat ids: a call that is over is another one then."""
        turn = self.turn
        if turn is None or not isinstance(tool_id, str):
            return None
        call = turn.calls.get(tool_id)
        if call is None or (begins and call.is_over):
            if len(turn.calls) >= _MOST_CALLS:
                turn.calls = {key: each for key, each in turn.calls.items() if not each.is_over}
            if len(turn.calls) >= _MOST_CALLS:
                return None
            call = turn.calls[tool_id] = Call(self._new_name(tool_id))
        known = ("name", "kind", "title", "rawInput", "locations", "_meta")
        call.about |= {key: about[key] for key in known if about.get(key)}
        return call

    def _new_name(self, tool_id: str) -> str:
        """Return a name for a call that no earlier one of the conversation has."""
        uses = self._uses.pop(tool_id, 0) + 1
        self._uses[tool_id] = uses
        if len(self._uses) > _MOST_CALLS:
            del self._uses[next(iter(self._uses))]
        return tool_id if uses == 1 else f"{tool_id} ({uses})"

    def find_call(self, name: str | None) -> Call | None:
        """Return the call of the open turn by its name."""
        calls = self.turn.calls.values() if self.turn is not None else ()
        return next((call for call in calls if call.tool_id == name), None)

    def begin_call(self, call: Call, given: Any) -> Iterator[Signal]:
        if call.began or self.turn is None:
            return
        call.began = self.turn.has_words = True
        yield from self.end_message()
        self.text.append(describe_call(call.name, given) + "\n")
        yield ToolStarted(tool_id=call.tool_id, name=call.name, call=given, turn=self.turn.turn)

    def end_call(self, call: Call, *, ok: bool, why: str) -> Iterator[Signal]:
        if call.key is not None:
            key, call.key = call.key, None
            if self.questions.pop(key, None) is not None:
                yield Settled(key=key, decision=None, by="agent")
            elif call.answer is not None:
                # A tool that was refused fails; a tool that failed was not always refused.
                used = DENY if call.answer == DENY and not ok else ALLOW
                yield Settled(key=key, decision=used, by="agent")
        if not call.is_over:
            call.is_over = True
            yield ToolEnded(tool_id=call.tool_id, ok=ok, why=why)

    # -- usage -------------------------------------------------------------------------------------------------------

    def used(self, turn: Turn, used: Mapping[str, Tokens] | None) -> Iterator[Signal]:
        for model, each in (used or {}).items():
            more = each
            if self._agent.acp_total_usage:
                more = each.plus(self._tokens.get(model, NONE), -1).highest(NONE)
                self._tokens[model] = each
            if more != NONE:
                yield self._usage(f"{turn.turn}-{turn.explained}-{model}", more, model=model, of_turn=False)

    def _usage(self, name: str, used: Tokens, *, of_turn: bool, model: str = "") -> Usage:
        return Usage(
            message_id=name, input_tokens=used.input, cached_tokens=used.cached, cache_write_tokens=used.written,
            output_tokens=used.output, model=model or self.model, of_turn=of_turn,
        )  # fmt: skip

    def _cost(self, update: Mapping[str, Any]) -> Iterator[Signal]:
        """Yield what was spent since the last message: an agent says the sum over the conversation."""
        cost = messages.cost_usd(update)
        if cost is not None and self._cost_usd < cost < 1e9:
            name = f"{self._prefix}-cost-{cost}"
            yield Usage(message_id=name, cost_usd=cost - self._cost_usd, covers_all=True, of_turn=False)
            self._cost_usd = cost


def ending(  # noqa: PLR0911  one for each way to end
    turn: Turn, result: Mapping[str, Any], why: str | None, *, left: int, used: Mapping[str, Tokens] | None, said: str
) -> tuple[str, str]:
    """Return how a turn ended, and why if not well. Only "end_turn" without any error is well."""
    stop = result.get("stopReason")
    if turn.is_cancelled:
        return INTERRUPTED, "baton cancelled it"
    if why is not None:
        return FAILED, why
    if turn.error is not None:
        return FAILED, turn.error or one_line(said, _REASON) or "its model service failed"
    if stop == "cancelled":
        tools = ", ".join(sorted(set(turn.refused)))
        return FAILED, f"it ended its turn when it was not allowed to use {tools}" if tools else "it cancelled its turn"
    if stop != "end_turn":
        shown = one_line(str(stop), 40)
        return FAILED, messages.STOPS.get(str(stop), f"its turn ended with {shown}, which is not a good end")
    if left:
        return FAILED, "it ended its turn while it waited for a permission"
    if "usage" in result and result["usage"] is None:
        return FAILED, f"no model has answered: {one_line(said, _REASON)}" if said else "no model has answered"
    if not turn.has_words and not any(each.total for each in (used or {}).values()):
        return FAILED, "it ended its turn without a word of its model"
    return WELL, ""
