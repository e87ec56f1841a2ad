"""Keep the questions of opencode's session: permissions for tool calls, and questions with choices.

A question is asked once, also when the server is asked again for what is pending. It is over when opencode says so, or
when the call or the turn that waits for it is over.
"""

from __future__ import annotations

from baton.channels.choices import read_questions
from baton.core.clock import SECOND_NS, Clock
from baton.core.request import RequestKind
from baton.core.signal import ALLOW, DENY, Asked, Settled
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from baton.core.request import Answer
    from baton.core.signal import Signal

MAX_KNOWN = 1000  # ids that are remembered
_CALL_NS = SECOND_NS  # so long a question waits for the event with the arguments of its call
_BY = {"once": "user_temporary", "always": "user_permanent", "reject": "user_reject"}
_BESIDES = ("external_directory", "doom_loop")  # permissions for something that a call touches, not for the call
_REFUSED = "This was not allowed. Do not do it another way."


class Question(Value):
    """What opencode waits for. `is_choice`: it is a question with choices, no permission."""

    asked: Asked
    session: str
    is_choice: bool = False

    def reply(self, answer: Answer) -> tuple[str, dict[str, Any] | None]:
        """Return the path and the body of the request that answers. A permission is never given for more than this
        call."""
        if not self.is_choice:
            path = f"/permission/{self.asked.key}/reply"
            if answer.answer == ALLOW:
                return path, {"reply": "once"}
            return path, {"reply": "reject", "message": answer.reason or _REFUSED}
        if answer.answer != ALLOW:
            return f"/question/{self.asked.key}/reject", None
        chosen = [_chosen(option, answer.choices.get(option["question"], "")) for option in self.asked.options]
        return f"/question/{self.asked.key}/reply", {"answers": chosen}


class Questions:
    """The questions of a session and of its subagents. `calls` has the arguments of open tool calls, by id; `over` the
    ids of tool calls that are over."""

    def __init__(
        self, sessions: Collection[str], calls: Mapping[str, tuple[str, Any]], over: Collection[str], clock: Clock
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._over = over
        self._clock = clock
        self.open: dict[str, Question] = {}
        self._waiting: dict[str, tuple[int, Mapping[str, Any]]] = {}  # permissions whose call is not known yet
        self._closed: dict[str, None] = {}
        self._sent: dict[str, str] = {}  # what baton has answered
        self.allowed_by_others: list[str] = []
        """The tools of questions that were allowed, and not by baton."""

    def ask_permission(self, main: str, about: Mapping[str, Any]) -> Iterator[Signal]:
        """Read a permission that opencode asks for. `main` is the session that is no subagent's. The event with the
        arguments of the call may come after it."""
        call = _call_id(about)
        if not self._is_new(about, call):
            return
        if call is not None and call not in self._calls:
            self._waiting[str(about["id"])] = (self._clock.monotonic_ns(), about)
        else:
            yield self._asked(main, about)

    def know_call(self, main: str, call: str) -> Iterator[Signal]:
        """Ask what has waited for the arguments of this call."""
        for _, about in [each for each in self._waiting.values() if _call_id(each[1]) == call]:
            yield self._asked(main, about)

    def tick(self, main: str) -> Iterator[Signal]:
        """Ask, with what is known, what has waited too long for the arguments of its call."""
        now_ns = self._clock.monotonic_ns()
        for _, about in [each for each in self._waiting.values() if now_ns - each[0] >= _CALL_NS]:
            yield self._asked(main, about)

    def ask_choice(self, main: str, about: Mapping[str, Any]) -> Iterator[Signal]:
        call = _call_id(about)
        if not self._is_new(about, call):
            return
        session = str(about["sessionID"])
        asked = Asked(
            key=str(about["id"]),
            kind=RequestKind.QUESTION,
            tool="question",
            call={"questions": about["questions"]},
            tool_id=call if call in self._calls else None,
            agent_ref=None if session == main else session,
            options=read_questions(about, "multiple"),
        )
        self.open[asked.key] = Question(asked=asked, session=session, is_choice=True)
        yield asked

    def _is_new(self, about: Mapping[str, Any], call: str | None) -> bool:
        """Return whether a question is of this session, was not heard before, and is of a call that is not over."""
        key = str(about["id"])
        is_known = key in self.open or key in self._waiting or key in self._closed or call in self._over
        return about["sessionID"] in self._sessions and not is_known

    def _asked(self, main: str, about: Mapping[str, Any]) -> Asked:
        key, permission, session = str(about["id"]), str(about["permission"]), str(about["sessionID"])
        self._waiting.pop(key, None)
        call = _call_id(about)
        given = {"patterns": about.get("patterns"), **(about.get("metadata") or {})}
        is_known = call in self._calls
        arguments = self._calls[call][1] if call is not None and is_known else given
        is_exact = is_known and not _differs(about.get("metadata"), arguments)
        if is_known and (permission in _BESIDES or not is_exact):
            arguments = {"permission": permission, **given, "input": arguments}
        asked = Asked(
            key=key,
            kind=RequestKind.TOOL,
            tool=permission,
            call=arguments,
            tool_id=call if is_known else None,
            agent_ref=None if session == main else session,
            exact=is_exact,
        )
        self.open[key] = Question(asked=asked, session=session)
        return asked

    def read_reply(self, about: Mapping[str, Any]) -> Iterator[Signal]:
        reply = str(about["reply"])
        yield from self.close(str(about["requestID"]), DENY if reply == "reject" else ALLOW, _BY.get(reply, reply))

    def read_choice(self, about: Mapping[str, Any], *, rejected: bool) -> Iterator[Signal]:
        decision, by = (DENY, _BY["reject"]) if rejected else (ALLOW, _BY["once"])
        yield from self.close(str(about["requestID"]), decision, by)

    def close(self, key: str, decision: str | None, by: str = "agent") -> Iterator[Signal]:
        """Close a question once: opencode has its answer, or waits for it no longer."""
        question = self.open.pop(key, None)
        waiting = self._waiting.pop(key, (0, {}))[1]
        if key not in self._closed:
            if decision == ALLOW and self._sent.get(key) != ALLOW:
                tool = question.asked.tool if question is not None else str(waiting.get("permission", "a question"))
                self.allowed_by_others.append(tool)
            remember(self._closed, key)
            yield Settled(key=key, decision=decision, by=by)

    def end_call(self, call: str, decision: str | None) -> Iterator[Signal]:
        """Close the question of a tool call that is over."""
        for key in [key for key, each in self.open.items() if each.asked.tool_id == call]:
            yield from self.close(key, decision)

    def settle(self, session: str | None) -> Iterator[Signal]:
        """Close the questions of a session that waits for them no longer; None: of all."""
        found = [key for key, each in self.open.items() if session in (None, each.session)]
        found += [key for key, (_, about) in self._waiting.items() if session in (None, about["sessionID"])]
        for key in found:
            yield from self.close(key, None)

    def take(self, key: str, decision: str) -> Question | None:
        """Return an open question that baton answers now. What becomes of the answer, opencode says."""
        question = self.open.pop(key, None)
        if question is not None:
            remember(self._sent, key, decision)
        return question

    def keep_only(self, pending: Collection[str]) -> Iterator[Signal]:
        """Close the questions that are pending no longer."""
        for key in [key for key in (*self.open, *self._waiting) if key not in pending]:
            yield from self.close(key, None)


def _call_id(about: Mapping[str, Any]) -> str | None:
    tool = about.get("tool")
    return call_name(tool) if isinstance(tool, dict) and isinstance(tool.get("callID"), str) else None


def call_name(about: Mapping[str, Any]) -> str:
    """Return a name for a tool call. Its id comes from the model service, and some repeat ids in each message."""
    return f"{about.get('messageID')} {about['callID']}"


def _differs(known: Any, arguments: Any) -> bool:
    """Return whether what opencode says of a call is not what its arguments say."""
    if not isinstance(known, dict) or not isinstance(arguments, dict):
        return False
    return any(name in arguments and arguments[name] != value for name, value in known.items())


def _chosen(option: Mapping[str, Any], text: str) -> list[str]:
    """Return what was chosen as a list: several choices come as one text."""
    choices = option["choices"]
    if text in choices or not option["several"]:
        return [text] if text else []
    parts = text.split(", ")
    return parts if all(part in choices for part in parts) else [text]


def remember(known: dict[str, Any], key: str, value: Any = None) -> None:
    """Keep an id, and forget the oldest one of too many."""
    known[key] = value
    if len(known) > MAX_KNOWN:
        del known[next(iter(known))]
