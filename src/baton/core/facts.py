"""Define facts: what is known about the work of an agent on one job, from which source and since when."""

from __future__ import annotations

from baton.core.fields import one_line
from baton.core.spending import Message, Spent
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Whose turn, or background work, it is. BEFORE: it was there before the first turn of the job.
JOB, OTHER, BEFORE = "job", "other", "before"
CALL_CHARS = 160  # of a call, where it is shown in a line
OUTSIDE = "other"  # why a conversation is over whose program was ended from outside
# Why a conversation is over although the agent's program goes on.
CLEARED = {"clear": "the conversation was cleared (/clear)", "resume": "the conversation was left (/resume)"}


class Turn(Value):
    """A turn of the agent. `whose` is JOB or OTHER; None: its beginning was not heard. `how` is None while it is open.
    `assumed`: its end was not heard, but a later turn has begun. `resumed_ns` is when it was last opened again."""

    turn: str
    whose: str | None
    origin: str
    since_ns: int
    source: str
    how: str | None = None
    ended_ns: int | None = None
    ended_source: str = ""
    assumed: bool = False
    resumed_ns: int = -1
    why: str = ""
    message: str | None = None
    held: bool = False
    refused_tools: tuple[str, ...] = ()


class Call(Value):
    """A tool call, or a question, that the agent waits for. `what` is one line for people. `turn` is "" if unknown."""

    key: str
    name: str
    what: str
    call: Any
    turn: str
    agent_ref: str | None
    since_ns: int
    source: str
    kind: str = ""
    tool_id: str | None = None


class Task(Value):
    """Background work that runs. `whose` is JOB, OTHER or BEFORE."""

    task_id: str
    kind: str
    what: str
    whose: str
    since_ns: int
    source: str


class Note(Value):
    """A fact that is one signal."""

    signal: Any
    source: str
    at_ns: int


class Facts(Value):
    """What is known about the work of an agent on one job. Make it with `of_job`, change it with `fold` and `go_on`.

    `begun` counts the turns, calls and questions that began: a verification during which it changed is void.
    `unknown_ends` are ends of turns whose beginning was not heard. `last_work_ns` is the last sign of work, `model_ns`
    the last proof that the model service answers. `owners` says whose work each background task is, or was;
    `noticed` are those about which a turn has begun, and `vanished_ns` is when one of the job ended without it.
    `ending`: the agent said that its program ends; `killed_ns` is when a signal of the system last ended a tool.
    `attention`: the agent calls for a person at its own screen; its time is that of the beginning. `step_ns` is when
    the turn itself last went on, not a subagent in the background; `settled_ns` is when a question was settled."""

    mark: str
    began_ns: int
    turn_expected: bool
    turns: tuple[Turn, ...] = ()
    unknown_ends: tuple[Turn, ...] = ()
    tools: Mapping[str, Call] = {}
    requests: Mapping[str, Call] = {}
    ended_ids: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    tasks_ns: int = -1
    tasks_source: str = ""
    owners: Mapping[str, str] = {}
    noticed: tuple[str, ...] = ()
    vanished_ns: int | None = None
    asked_tools: frozenset[str] = frozenset()
    retrying: Note | None = None
    limited: Note | None = None
    paused: Note | None = None
    blocked: Note | None = None
    attention: Note | None = None
    noted: Mapping[str, Note] = {}
    cleared: Note | None = None
    ending: Note | None = None
    killed_ns: int | None = None
    gone: Note | None = None
    said: Note | None = None
    conversation: Note | None = None
    stated: Note | None = None
    conversations: tuple[str, ...] = ()
    messages: Mapping[str, Message] = {}
    spent: Spent = Spent()
    last_work_ns: int = 0
    last_work_source: str = ""
    last_work: str = ""
    model_ns: int = -1
    step_ns: int = -1
    settled_ns: int = -1
    begun: int = 0

    @classmethod
    def of_job(
        cls,
        mark: str,
        now_ns: int,
        *,
        turn_expected: bool = True,
        after: Facts | None = None,
    ) -> Facts:
        """Return the facts at the beginning of a job.

        `mark` is the text by which a prompt is recognised as one of the job; with "", every turn is of the job: for a
        program that has only this work. `turn_expected` is False for a program whose exit code is the verdict.
        `after` are the facts of the session before: its conversation, the messages that were counted and, while the
        program lives, its open turn and its background work are carried over, as not the job's, and so are what it
        shows at its screen and a dialog before the first turn."""
        new = cls(
            mark=mark,
            began_ns=now_ns,
            last_work_ns=now_ns,
            last_work_source="runner",
            last_work="the job began",
            turn_expected=turn_expected,
        )
        if after is None:
            return new
        same = ("conversation", "conversations", "messages")
        new = new.replace(**{name: getattr(after, name) for name in same})
        if after.gone is not None:
            return new
        tasks = tuple(task.replace(whose=BEFORE) for task in after.tasks)
        owners = dict.fromkeys(after.owners, BEFORE)
        turn = after.open_turn
        return new.replace(
            turns=() if turn is None else (turn.replace(whose=OTHER),),
            tools={each.key: each for each in after.open_tools},
            requests={each.key: each for each in after.open_requests},
            ended_ids=after.ended_ids,
            tasks=tasks,
            owners=owners,
            stated=after.stated,
            tasks_ns=after.tasks_ns,
            tasks_source=after.tasks_source,
            blocked=None if after.turns else after.blocked,
            attention=after.attention,
            noted=after.noted,
        )

    @property
    def conversation_id(self) -> str | None:
        return None if self.conversation is None else self.conversation.signal.conversation_id

    @property
    def open_turn(self) -> Turn | None:
        """Return the turn that the agent works on."""
        last = self.turns[-1] if self.turns else None
        return last if last is not None and last.how is None and self.gone is None else None

    @property
    def job_turn(self) -> Turn | None:
        """Return the last turn of the job, open or ended."""
        return next((turn for turn in reversed(self.turns) if turn.whose == JOB), None)

    @property
    def open_tools(self) -> list[Call]:
        """Return the tool calls that run, oldest first."""
        return [each for each in self.tools.values() if self._is_open(each)]

    @property
    def open_requests(self) -> list[Call]:
        """Return the questions that the agent waits for, oldest first. One that is gone without a Settled has ended
        with its turn, its tool call, its subagent or the program."""
        return [each for each in self.requests.values() if self._is_open(each)]

    @property
    def refused_tools(self) -> list[str]:
        """Return the tools that the agent was not allowed to use in turns of the job, without that it could ask."""
        found = [name for turn in self.turns if turn.whose == JOB for name in turn.refused_tools]
        return sorted(set(found) - self.asked_tools)

    def find_turn(self, turn: str) -> Turn | None:
        return next((each for each in self.turns if each.turn == turn), None)

    def _is_open(self, call: Call) -> bool:
        """Return whether this call goes on: it ends with its turn, unless a subagent in the background made it."""
        if self.gone is not None:
            return False
        turn = self.find_turn(call.turn)
        if turn is not None and turn.how is None:
            return True
        ended = [each.ended_ns for each in ([turn] if turn is not None else self.turns) if each.ended_ns is not None]
        last_end_ns = max(ended, default=-1)
        if call.agent_ref is None:
            return turn is None and call.since_ns > last_end_ns
        is_running = any(task.task_id == call.agent_ref for task in self.tasks)
        return is_running or call.since_ns > max(last_end_ns, self.tasks_ns)


def describe_call(name: str, call: Any) -> str:
    """Return a tool call in one line: its name and what it works on."""
    if isinstance(call, dict):
        known = (
            "command",
            "typed",
            "checkpoint",
            "file_path",
            "path",
            "url",
            "pattern",
            "description",
            "plan",
            "prompt",
        )
        found = next((call[key] for key in known if isinstance(call.get(key), str) and call[key].strip()), None)
        questions = call.get("questions")
        if found is None and isinstance(questions, list) and questions and isinstance(questions[0], dict):
            found = str(questions[0].get("question", ""))
        if found:
            return one_line(f"{name}: {found}", CALL_CHARS)
    return one_line(name, CALL_CHARS)


def cleared_text(facts: Facts) -> str:
    """Return why the conversation of the job is over; "" if it is not."""
    return "" if facts.cleared is None else CLEARED[facts.cleared.signal.ended]
