"""Keep the open questions of Codex: what was answered, and what became of it."""

from __future__ import annotations

from baton.channels import codex_calls as calls
from baton.channels.codex_calls import Question
from baton.core.clock import SECOND_NS
from baton.core.fields import UNEXPECTED_SHAPE
from baton.core.signal import ALLOW, DENY, Settled
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from baton.core.clock import Clock
    from baton.core.request import Answer
    from baton.core.signal import Asked

# A tool call that is refused ends at once. One that is open so long after its question was closed, was allowed.
_ALLOWED_NS = SECOND_NS // 2
_AGAIN_NS = 2 * SECOND_NS  # after a new connection Codex asks open questions again
_MAX_DECLINED = 10  # that are remembered


class Questions:
    """The questions of one conversation and its subagents. `items` are the open tool calls. `is_shared`: a person may
    answer at the pane, too; the first answer counts."""

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], bool],
        items: Mapping[str, Mapping[str, Any]],
        clock: Clock,
        *,
        is_shared: bool,
    ) -> None:
        self._send, self._items, self._clock, self._is_shared = send, items, clock, is_shared
        self._open: dict[str, Question] = {}
        self.declined: list[str] = []  # methods of requests that were declined unseen

    def ask(self, request_id: Any, method: str, params: Mapping[str, Any], thread: str | None) -> Asked | None:
        """Take a request of the server. Return what is asked; None if it is known already, or cannot be asked."""
        key = f"{params.get('itemId') or params.get('turnId') or method}#{request_id}"
        known, question = self._open.get(key), Question(key=key, request_id=request_id, method=method, params=params)
        if known is not None and not self._is_same(known, question):  # guard: codex-question-id
            self._open[key] = known.replace(resolved_ns=self._clock.monotonic_ns(), again_ns=None)
            self._decline_unseen(question)
            return None
        if known is not None:  # after a new connection
            self._open[key] = known.replace(again_ns=None)
            if known.response is not None:
                self._send({"id": request_id, "result": known.response})
            return None
        if method not in calls.ASKING or calls.is_secret(question):
            self._decline_unseen(question)
            return None
        agent_ref = None if params.get("threadId") == thread else str(params.get("threadId"))
        try:
            asked = calls.read_question(question, self._items.get(question.item_id or ""), agent_ref)
        except UNEXPECTED_SHAPE:
            self._decline_unseen(question)
            return None
        self._open[key] = question
        return asked

    def _is_same(self, one: Question, other: Question) -> bool:
        """Return whether two questions under one id are about the same call."""
        item = self._items.get(one.item_id or "")
        return one.method == other.method and (
            calls.read_question(one, item, None) == calls.read_question(other, item, None)
        )

    def _decline_unseen(self, question: Question) -> None:
        """Decline what cannot be asked elsewhere, unless a person can be asked at the pane."""
        self.declined = [*self.declined, question.method][-_MAX_DECLINED:]
        if self._is_shared:
            return
        if question.method in calls.ASKING:
            self._send({"id": question.request_id, "result": calls.refusal(question)})
        else:
            error = {"code": -32601, "message": f"baton does not know the request {question.method}"}
            self._send({"id": question.request_id, "error": error})

    def find(self, key: str) -> Question | None:
        """Return the question if it can be answered."""
        question = self._open.get(key)
        is_asked = question is not None and question.answer is None and question.resolved_ns is None
        return question if is_asked else None

    def answer(self, question: Question, answer: Answer) -> bool:
        response = calls.response_to(question, answer)
        if response is None or not self._send({"id": question.request_id, "result": response}):
            return False
        self._open[question.key] = question.replace(answer=answer.answer, response=response)
        return True

    def release(self, key: str) -> None:
        """Leave a question to the person at the pane. Without one, refuse."""
        question = self.find(key)
        if question is None or self._is_shared:
            return
        response = calls.refusal(question)
        self._open[key] = question.replace(answer=DENY, response=response)
        self._send({"id": question.request_id, "result": response})

    def expect_again(self) -> None:
        """Note a new connection: Codex asks again what is still open."""
        again_ns = self._clock.monotonic_ns() + _AGAIN_NS
        self._open = {key: each.replace(again_ns=again_ns) for key, each in self._open.items()}

    def resolved(self, request_id: Any) -> Iterator[Settled]:
        """Note that Codex closed a question."""
        for question in [each for each in self._open.values() if each.request_id == request_id]:
            yield from self._resolve(question, self._clock.monotonic_ns())

    def _resolve(self, question: Question, now_ns: int) -> Iterator[Settled]:
        """Close a question. What was decided about a tool call shows in what becomes of the call, and about text in
        whether it is typed."""
        if question.is_typed or (question.is_of_item and question.item_id in self._items):
            self._open[question.key] = question.replace(resolved_ns=now_ns, again_ns=None)
        else:
            yield self._settle(question, question.answer)

    def tick(self) -> Iterator[Settled]:
        """Yield what the time that has passed means."""
        now_ns = self._clock.monotonic_ns()
        for question in list(self._open.values()):
            if question.again_ns is not None and now_ns >= question.again_ns:
                yield from self._resolve(question, now_ns)
            elif question.resolved_ns is None or now_ns - question.resolved_ns < _ALLOWED_NS:
                continue
            elif question.is_typed:
                yield from self._settle_typed(question)
            else:
                is_running = question.item_id in self._items
                yield self._settle(question, ALLOW if is_running else question.answer)

    def _settle_typed(self, question: Question) -> Iterator[Settled]:
        """Close a question about typed text some time after Codex closed it. The model waits for what the terminal
        prints, if nothing else: then the text was typed."""
        if self._items.keys() == {question.item_id}:
            yield self._settle(question, ALLOW)
        elif question.answer is None or question.item_id not in self._items:  # nothing tells it apart: unknown
            yield self._settle(question, None)

    def note_typed(self, item_id: str, text: str) -> Iterator[Settled]:
        """Note that a text was typed into the terminal that this tool call began."""
        for question in self._typed_questions():
            if question.item_id == item_id and calls.types(question, text):
                yield self._settle(question, ALLOW)
                return

    def note_answer_of_model(self, turn_id: str) -> Iterator[Settled]:
        """Note that the model goes on: text about which Codex asked before was typed by now, or was refused."""
        for question in self._typed_questions():
            if question.resolved_ns is not None and question.params.get("turnId") == turn_id:
                yield self._settle(question, DENY)

    def _typed_questions(self) -> list[Question]:
        return [each for each in self._open.values() if each.is_typed]

    def end_item(self, item_id: str, item: Mapping[str, Any]) -> Iterator[Settled]:
        """Close the questions about a tool call that is over."""
        found = [each for each in self._open.values() if each.item_id == item_id]
        for question in [each for each in found if not each.is_typed]:
            yield self._settle(question, calls.decision_of(item) if question.is_of_item else question.answer)

    def end_turn(self, turn_id: str) -> Iterator[Settled]:
        """Close the questions of a turn that is over."""
        for question in [each for each in self._open.values() if each.params.get("turnId") == turn_id]:
            yield self._settle(question, question.answer if question.resolved_ns is not None else None)

    def _settle(self, question: Question, decision: str | None) -> Settled:
        self._open.pop(question.key, None)
        by = "agent" if question.answer == decision else "screen"
        return Settled(key=question.key, decision=decision, by=by)
