"""Decide from facts what an agent is doing, and whether its job is done: pure functions, the rules in one place.

`baton.core.fold` folds signals into facts. Times are of the runner's monotonic clock, except `wall_ns`.
"""

from __future__ import annotations

from baton.core.clock import SECOND_NS, duration_text, format_micros
from baton.core.facts import CALL_CHARS, JOB, Call, Facts, Task, Turn, cleared_text
from baton.core.fields import one_line
from baton.core.fold import fold, go_on
from baton.core.job import ATTACH
from baton.core.limits import Limit
from baton.core.parking import end_of_limit
from baton.core.signal import BACKGROUND, INTERRUPTED, WELL
from baton.core.signal import FAILED as TURN_FAILED
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.core.signal import Stated

__all__ = [
    "DONE", "FAILED", "IDLE", "KINDS", "LIMITED", "OPEN", "RULES", "Activity", "Facts", "Limits", "Verdict", "activity",
    "activity_record", "attention_due_ns", "explain", "facts_record", "fold", "go_on", "open_besides", "publisher_call",
    "run_record", "verdict",
]  # fmt: skip

KINDS = ("starting", "blocked", "working", "waiting", "retrying", "limited", "idle", "stalled", "unknown")
# Outcomes of a verdict. DONE: verify the work now. LIMITED: it goes on after a usage limit.
OPEN, DONE, FAILED, IDLE, LIMITED = "open", "done", "failed", "idle", "limited"
# The agent begins a turn of its own when background work has ended. So long the job is not done without it.
NOTICE_NS = 3 * SECOND_NS
KILLED_NS = 2 * SECOND_NS  # in which a program that is ended says so, or is gone
# A question on the agent's screen is that of a request which opens, or was answered, within this time: its registry and
# its hooks do not speak at the same moment.
ATTENTION_NS = SECOND_NS
MAX_CAUSE = 300  # characters
_MAX_ASKED = 200  # characters of what a screen asks

RULES = {
    "gone": "The agent's program has ended.",
    "budget": "The budget of the job is spent: it goes on when you allow more. No idle clock runs.",
    "request": "The agent waits for a decision. No idle clock runs.",
    "blocked": "A dialog is open before the first turn. No idle clock runs.",
    "cleared": "The conversation of the job is over, and the agent's program goes on.",
    "limit": "A usage limit is reached, and the model has not answered since. No idle clock runs until it is over.",
    "attention": "The agent calls for a person at its own screen, and no request is known. No idle clock runs.",
    "retry": "The model service failed in the open turn, and has not answered since.",
    "tool": "A tool call is open. No idle clock runs.",
    "tool-timeout": "A tool call is open for longer than --tool-timeout, without a sign of work. The idle clock runs.",
    "turn": "A turn of the job is open, with a sign of work within the idle limit.",
    "silence": "A turn of the job is open, without a sign of work for longer than the idle limit.",
    "no-turn": "No turn of the job has begun.",
    "unknown-turn": "A turn has ended whose beginning was not heard: it may be of the job.",
    "program": "The program's exit code is the verdict, and it runs.",
    "background": "The turn is over, and background work of the job runs. No idle clock runs.",
    "notice": "Background work has ended just now: the agent begins a turn about it.",
    "other-turn": "The job's turn is over; a turn that is not the job's is open.",
    "turn-over": "The job's last turn is over, and nothing of it is open.",
}


class Limits(Value):
    """How long an agent may be without a sign of work, a tool call may last (None: no limit), and a background shell
    keeps a job open after its last good turn. `waits_at_limit`: a usage limit with a known end does not fail the
    job."""

    idle_sec: float
    tool_sec: float | None = None
    background_sec: float = 600
    waits_at_limit: bool = True


class Activity(Value):
    """What an agent is doing. `kind` is one of KINDS, `cause` says it in words, `rule` is the one of RULES that has
    decided. `idle_since_ns` is when the idle clock began; None while it pauses."""

    kind: str
    since_ns: int
    cause: str
    rule: str
    idle_since_ns: int | None = None


class Verdict(Value):
    """What is to become of the job: OPEN, DONE (verify the work now), FAILED, IDLE (the idle limit is exceeded), or
    LIMITED (its turn ended at a usage limit, and may go on at `until_ns`, in wall-clock time). `ended_by` is for the
    record of the job, `message` the agent's last one. `left` names background work that has not
    ended although the job is DONE."""

    outcome: str
    why: str = ""
    ended_by: str = "agent"
    message: str | None = None
    left: str = ""
    until_ns: int | None = None


def activity(facts: Facts, *, now_ns: int, limits: Limits, wall_ns: int | None = None) -> Activity:
    """Return what the agent is doing. `wall_ns` is the time since 1970, for limits that end at a known time."""
    found = (
        _paused(facts)
        or _gone(facts)
        or _waiting(facts)
        or _cleared(facts)
        or _limited(facts, now_ns, wall_ns)
        or _attention(facts, now_ns)
        or _retrying(facts)
        or _in_program(facts, now_ns, limits)
        or _in_turn(facts, now_ns, limits)
        or _before_first_turn(facts)
    )
    return found or _after_turn(facts, now_ns, limits)


def _activity(kind: str, since_ns: int, cause: str, rule: str, idle_since_ns: int | None = None) -> Activity:
    text = one_line(cause, MAX_CAUSE)
    return Activity(kind=kind, since_ns=since_ns, cause=text, rule=rule, idle_since_ns=idle_since_ns)


def _paused(facts: Facts) -> Activity | None:
    if facts.paused is None:
        return None
    return _activity("waiting", facts.paused.at_ns, f"waiting for a budget: {facts.paused.signal.why}", "budget")


def _gone(facts: Facts) -> Activity | None:
    if facts.gone is None:
        return None
    at_ns = facts.gone.at_ns
    return _activity("idle", at_ns, f"the agent's program has ended: {facts.gone.signal.why}", "gone", at_ns)


def _waiting(facts: Facts) -> Activity | None:
    """Return the activity of an agent that waits for a person, in its work or before it."""
    asked = facts.open_requests
    if asked:
        return _activity("waiting", asked[0].since_ns, _waiting_text(asked), "request")
    if facts.blocked is None or facts.turns:
        return None
    by = facts.blocked.signal
    return _activity("blocked", facts.blocked.at_ns, f"{by.by}: {by.what_to_do}", "blocked")


def _attention(facts: Facts, now_ns: int) -> Activity | None:
    """Return the activity of an agent whose screen asks something that no request asks."""
    due_ns = attention_due_ns(facts)
    if facts.attention is None or due_ns is None or now_ns < due_ns:
        return None
    asks = one_line(facts.attention.signal.what, _MAX_ASKED)
    cause = f"its screen asks: {asks}; no command answers that: {ATTACH} and answer there"
    return _activity("waiting", due_ns - ATTENTION_NS, cause, "attention")


def attention_due_ns(facts: Facts) -> int | None:
    """Return from when on the agent's screen asks something that no request asks; None while it asks nothing, or while
    a request is open."""
    if facts.attention is None or facts.gone is not None or facts.open_requests:
        return None
    return max(facts.attention.at_ns, facts.settled_ns, facts.step_ns) + ATTENTION_NS


def _cleared(facts: Facts) -> Activity | None:
    if facts.cleared is None:
        return None
    return _activity("idle", facts.cleared.at_ns, cleared_text(facts), "cleared", facts.last_work_ns)


def _waiting_text(asked: list[Call]) -> str:
    first = asked[0]
    what = {"plan": "the approval of a plan", "question": "an answer", "budget": "a budget"}
    more = f" (and {len(asked) - 1} more)" if len(asked) > 1 else ""
    return f"waiting for {what.get(first.kind, 'a permission')}: {first.what}{more}"


def _limited(facts: Facts, now_ns: int, wall_ns: int | None) -> Activity | None:
    """Return the activity under a usage limit; None without one, or when its time is over."""
    note = facts.limited
    if note is None or not _is_limited(facts):
        return None
    until_ns = note.signal.until_ns
    if until_ns is None:
        return _activity("limited", note.at_ns, _limit_text(facts), "limit", facts.last_work_ns)
    cause = _limit_text(facts)
    left_ns = end_of_limit(until_ns) - wall_ns if wall_ns is not None else 1
    idle_since_ns = None if left_ns > 0 else max(facts.last_work_ns, now_ns + left_ns)
    return _activity("limited", note.at_ns, cause, "limit", idle_since_ns)


def _limit_text(facts: Facts) -> str:
    assert facts.limited is not None
    until_ns, why = facts.limited.signal.until_ns, facts.limited.signal.why
    return f"usage limit: {why}" if until_ns is None else f"usage limit until {format_micros(until_ns)}: {why}"


def _is_limited(facts: Facts) -> bool:
    return facts.limited is not None and facts.limited.at_ns > facts.model_ns


def _in_program(facts: Facts, now_ns: int, limits: Limits) -> Activity | None:
    if facts.turn_expected:
        return None
    return _running(facts, "program", "the program runs", facts.began_ns, now_ns, limits)


def _retrying(facts: Facts) -> Activity | None:
    """Return the activity while the model service fails: in a turn of the job, or before a turn is known."""
    turn, retry = facts.open_turn, facts.retrying
    if retry is None or (turn.whose != JOB if turn is not None else facts.job_turn is not None):
        return None
    began_ns = facts.began_ns if turn is None else turn.since_ns
    if retry.at_ns <= max([began_ns, facts.model_ns, *(tool.since_ns for tool in facts.open_tools)]):
        return None
    tries = f", try {retry.signal.number}" if retry.signal.number else ""
    tries += f" of {retry.signal.most}" if tries and retry.signal.most else ""
    kind = "stalled" if retry.signal.assumed else "retrying"
    return _activity(kind, retry.at_ns, f"{retry.signal.why}{tries}", "retry", facts.last_work_ns)


def _in_turn(facts: Facts, now_ns: int, limits: Limits) -> Activity | None:
    turn, tools = facts.open_turn, facts.open_tools
    if turn is None or turn.whose != JOB:
        return None
    if tools:
        return _in_tool(facts, tools, now_ns, limits)
    return _running(facts, "turn", "the model is at work", turn.since_ns, now_ns, limits)


def _in_tool(facts: Facts, tools: list[Call], now_ns: int, limits: Limits) -> Activity:
    newest = tools[-1]
    if limits.tool_sec is not None:
        over_ns = max(facts.last_work_ns, newest.since_ns) + int(limits.tool_sec * SECOND_NS)
        if now_ns >= over_ns:
            oldest = tools[0]
            cause = f"{oldest.what} has run for longer than {limits.tool_sec:g} s"
            return _activity("stalled", over_ns, cause, "tool-timeout", over_ns)
    return _activity("working", newest.since_ns, newest.what, "tool")


def _running(facts: Facts, rule: str, cause: str, since_ns: int, now_ns: int, limits: Limits) -> Activity:
    last_ns = facts.last_work_ns
    if now_ns - last_ns >= limits.idle_sec * SECOND_NS:
        return _activity("stalled", last_ns, f"no sign of work since {facts.last_work}", "silence", last_ns)
    return _activity("working", since_ns, cause, rule, last_ns)


def _before_first_turn(facts: Facts) -> Activity | None:
    if facts.job_turn is not None:
        return None
    last_ns = facts.last_work_ns
    tools = facts.open_tools
    idle_since_ns = None if tools else last_ns
    if facts.open_turn is not None:
        cause = "the agent works on a turn that is not the job's"
        return _activity("starting", facts.began_ns, cause, "no-turn", idle_since_ns)
    if tools:
        return _activity("working", tools[-1].since_ns, tools[-1].what, "tool")
    if facts.unknown_ends:
        cause = "a turn has ended that may be the job's: its beginning was not heard"
        return _activity("unknown", facts.unknown_ends[-1].since_ns, cause, "unknown-turn", last_ns)
    return _activity("starting", facts.began_ns, "the agent has not begun a turn of the job", "no-turn", last_ns)


def _after_turn(facts: Facts, now_ns: int, limits: Limits) -> Activity:
    """Return the activity after the last turn of the job has ended."""
    turn = facts.job_turn
    assert turn is not None
    assert turn.ended_ns is not None
    other = facts.open_turn
    tools = [tool for tool in facts.open_tools if other is None or tool.turn != other.turn]
    if tools:
        return _in_tool(facts, tools, now_ns, limits)
    tasks = _counting_tasks(facts, now_ns, limits)
    if tasks:
        return _activity("working", tasks[0].since_ns, _background_text(tasks), "background")
    if _notice_until_ns(facts) > now_ns:
        return _activity("working", turn.ended_ns, "background work has ended just now", "notice", facts.last_work_ns)
    how = {WELL: "its turn ended well", INTERRUPTED: "its turn was interrupted", TURN_FAILED: "its turn failed"}
    cause = how[turn.how or WELL] + (f": {turn.why}" if turn.why else "")
    if other is not None:
        idle_since_ns = None if facts.open_tools else facts.last_work_ns
        cause += "; a turn that is not the job's is open"
        return _activity("idle", turn.ended_ns, cause, "other-turn", idle_since_ns)
    return _activity("idle", turn.ended_ns, cause, "turn-over", max(turn.ended_ns, facts.last_work_ns))


def _counting_tasks(facts: Facts, now_ns: int, limits: Limits) -> list[Task]:
    """Return the background work that keeps the job open: shells for a time after the last turn, others always."""
    turn = facts.job_turn
    begin_ns = facts.began_ns if turn is None else turn.ended_ns if turn.ended_ns is not None else now_ns
    over_ns = begin_ns + int(limits.background_sec * SECOND_NS)
    return [task for task in facts.tasks if task.whose == JOB and (task.kind != "shell" or now_ns < over_ns)]


def _background_text(tasks: list[Task]) -> str:
    return "in the background: " + ", ".join(one_line(f"{task.kind} {task.what}", CALL_CHARS) for task in tasks)


def _notice_until_ns(facts: Facts) -> int:
    """Return until when a turn about background work that has ended may begin; 0 if none is expected. None begins after
    the program has ended: then only work that ended after the last turn was lost with it."""
    turn = facts.job_turn
    if facts.vanished_ns is None or turn is None or turn.ended_ns is None:
        return 0
    if facts.gone is not None and facts.vanished_ns <= turn.ended_ns:
        return 0
    return max(facts.vanished_ns, turn.ended_ns) + NOTICE_NS


def open_besides(facts: Facts, *, now_ns: int, limits: Limits, tool_id: str | None = None) -> str | None:
    """Return what is open besides the tool call `tool_id`, as a reason why the job is not completed; None if nothing
    is. A turn may be open: the agent says by `baton publish` that its work is done, before its turn is over."""
    tools = [tool for tool in facts.open_tools if tool.key != tool_id]
    if facts.open_requests:
        return _waiting_text(facts.open_requests)
    if tools:
        return f"a tool call is open: {tools[-1].what}"
    tasks = _counting_tasks(facts, now_ns, limits)
    return f"work goes on {_background_text(tasks)}" if tasks else None


def publisher_call(facts: Facts, job_id: str) -> str | None:
    """Return the tool call in which `baton publish` runs for this job: the newest open one whose command says so, and
    names no other job."""
    for tool in reversed(facts.open_tools):
        command = tool.call.get("command") if isinstance(tool.call, dict) else None
        text = " ".join(command) if isinstance(command, list) else command
        is_other = isinstance(text, str) and "--job" in text and job_id not in text
        if isinstance(text, str) and "publish" in text and "completed" in text and not is_other:
            return tool.key
    return None


def verdict(  # noqa: PLR0911  one for each outcome
    facts: Facts, *, now_ns: int, limits: Limits, wall_ns: int | None = None, has_conditions: bool = False
) -> Verdict:
    """Return what is to become of the job. `has_conditions`: --expect or --validate prove the work."""
    doing = activity(facts, now_ns=now_ns, limits=limits, wall_ns=wall_ns)
    if facts.paused is not None:  # guard: budget-pause
        return Verdict(outcome=OPEN, why=doing.cause)
    obstacle = _obstacle(facts, now_ns, limits) or _end_from_outside(facts, now_ns)
    turn = facts.job_turn
    message = None if turn is None else turn.message
    if turn is not None and turn.how == TURN_FAILED:
        return _after_failed_turn(facts, turn, limits)
    if facts.gone is not None:
        return _after_gone(facts, obstacle, message, has_conditions)
    if obstacle is None:
        return _done(facts, message, has_conditions)
    if facts.cleared is not None:
        return _failed(cleared_text(facts), message)
    if doing.rule == "limit" and not limits.waits_at_limit:
        return _failed(doing.cause, message, "limit")
    if doing.idle_since_ns is not None and now_ns - doing.idle_since_ns >= limits.idle_sec * SECOND_NS:
        why = Limit.SILENCE.describe_sec(limits.idle_sec, doing.cause)
        return Verdict(outcome=IDLE, why=why, ended_by="idle", message=message)
    return Verdict(outcome=OPEN, why=obstacle)


def _end_from_outside(facts: Facts, now_ns: int) -> str | None:
    """Return why a good turn may not be the end of the work: the agent is being ended. A program ends its tools first,
    and a fast model may have a last word about that before the program says that it ends."""
    if facts.gone is not None:
        return None  # its exit code says more
    if facts.ending is not None:
        return "the agent's program is being ended"
    if facts.killed_ns is not None and now_ns - facts.killed_ns < KILLED_NS:
        return "a tool was killed a moment ago: the agent may be ended, too"
    return None


def _after_failed_turn(facts: Facts, turn: Turn, limits: Limits) -> Verdict:
    """Return the verdict on a job whose last turn failed. At a usage limit, it goes on when that is over, if the agent
    has named the time: baton does not guess it."""
    if facts.limited is None or not _is_limited(facts):
        return _failed(turn.why or "its turn failed", turn.message)
    until_ns = facts.limited.signal.until_ns
    if until_ns is None or not limits.waits_at_limit:
        return _failed(turn.why or _limit_text(facts), turn.message, "limit")
    return Verdict(outcome=LIMITED, why=_limit_text(facts), ended_by="limit", until_ns=until_ns)


def _failed(why: str, message: str | None, ended_by: str = "agent") -> Verdict:
    return Verdict(outcome=FAILED, why=why, ended_by=ended_by, message=message)


def _obstacle(facts: Facts, now_ns: int, limits: Limits) -> str | None:
    """Return why the job is not done; None if its last turn ended well and nothing is open."""
    unfinished = _unfinished_turn(facts)
    if unfinished is not None:
        return unfinished
    if _notice_until_ns(facts) > now_ns:
        return "background work has ended just now"
    return open_besides(facts, now_ns=now_ns, limits=limits)


def _unfinished_turn(facts: Facts) -> str | None:
    """Return which turn keeps the job from being done; None if the job's last turn, and the last that it was prompted
    for, ended well, and no other turn is open."""
    turn = facts.job_turn
    if not facts.turn_expected or turn is None:
        return "no turn of the job has ended"
    prompted = next((each for each in reversed(facts.turns) if each.whose == JOB and each.origin != BACKGROUND), turn)
    for each in (turn, prompted):
        if each.how != WELL:
            return "a turn of the job is open" if each.how is None else f"its turn was interrupted: {each.why}"
    return None if facts.open_turn is None else "a turn that is not the job's is open"


def _done(facts: Facts, message: str | None, has_conditions: bool) -> Verdict:
    refused = facts.refused_tools
    if refused and not has_conditions:
        return _failed(f"the agent was not allowed to use {', '.join(refused)}", message)
    shells = [task for task in facts.tasks if task.whose == JOB]
    left = f"still {_background_text(shells)}" if shells else ""
    return Verdict(outcome=DONE, why="its turn ended well", message=message, left=left)


def _after_gone(facts: Facts, obstacle: str | None, message: str | None, has_conditions: bool) -> Verdict:
    assert facts.gone is not None
    end = facts.gone.signal
    if not end.ok:
        before = _trouble(facts)
        return _failed(f"{end.why}; before that: {before}" if before else end.why, message)
    if not facts.turn_expected:
        return Verdict(outcome=DONE, why=end.why, message=message)
    if obstacle is None or (has_conditions and _unfinished_turn(facts) is None):
        return _done(facts, message, has_conditions)
    return _failed(f"{end.why} before the job was done: {_trouble(facts) or obstacle}", message)


def _trouble(facts: Facts) -> str:
    """Return the trouble that the agent was in last; "" if it was in none, or if the model has answered since."""
    notes = [note for note in (facts.retrying, facts.limited) if note is not None and note.at_ns > facts.model_ns]
    return "" if not notes else max(notes, key=lambda note: note.at_ns).signal.why


def explain(
    facts: Facts, now_ns: int, *, limits: Limits | None = None, wall_ns: int | None = None
) -> list[tuple[str, str, str, int]]:
    """Return every fact as (fact, value, source, age in nanoseconds), and with `limits` the rule that decided."""
    found = [*_turn_rows(facts), *_call_rows(facts), *_note_rows(facts), *_stated_rows(facts)]
    source, at_ns = ("process", now_ns) if facts.gone is None else (facts.gone.source, facts.gone.at_ns)
    found.append(("program", "runs" if facts.gone is None else facts.gone.signal.why, source, at_ns))
    found.append(("last sign of work", facts.last_work, facts.last_work_source, facts.last_work_ns))
    if limits is not None:
        doing = activity(facts, now_ns=now_ns, limits=limits, wall_ns=wall_ns)
        found.append(("rule", f"{doing.rule}: {RULES[doing.rule]}", "", doing.since_ns))
    return [(fact, value, source, max(now_ns - at_ns, 0)) for fact, value, source, at_ns in found]


def _turn_rows(facts: Facts) -> Iterator[tuple[str, str, str, int]]:
    for turn in facts.turns[-3:]:
        whose = {JOB: "of the job", None: "unknown"}.get(turn.whose, "not of the job")
        yield "turn", f"{turn.turn} began, {whose}", turn.source, turn.since_ns
        if turn.ended_ns is not None:
            why = f": {turn.why}" if turn.why else ""
            yield "turn ended", f"{turn.turn} {turn.how}{why}", turn.ended_source or turn.source, turn.ended_ns


def _call_rows(facts: Facts) -> Iterator[tuple[str, str, str, int]]:
    for call in facts.open_tools:
        yield "tool call open", call.what, call.source, call.since_ns
    for call in facts.open_requests:
        yield "request open", call.what, call.source, call.since_ns
    for task in facts.tasks:
        yield "background work", f"{task.kind} {task.what}", task.source, task.since_ns


def _stated_rows(facts: Facts) -> Iterator[tuple[str, str, str, int]]:
    note = facts.stated
    if note is not None:
        known = ((name, text) for name, text in _named(note.signal).items() if text is not None)
        yield from ((name.replace("_", " "), text, note.source, note.at_ns) for name, text in known)


def _named(stated: Stated) -> dict[str, str | None]:
    """Return what an agent says about itself by the names that surfaces use; None: it does not say it."""
    found = {"agent_version": stated.release, "agent_mode": stated.mode, "model": stated.model}
    return {name: text or None for name, text in found.items()}


def _note_rows(facts: Facts) -> Iterator[tuple[str, str, str, int]]:
    for fact, note, field in (
        ("retrying", facts.retrying, "why"),
        ("limited", facts.limited, "why"),
        ("blocked", facts.blocked, "by"),
        ("conversation", facts.conversation, "conversation_id"),
        ("conversation ended", facts.cleared, "ended"),
        ("its screen asks", facts.attention, "what"),
        *((fact, note, "value") for fact, note in facts.noted.items()),
    ):
        if note is not None:
            yield fact, str(getattr(note.signal, field)), note.source, note.at_ns


def activity_record(doing: Activity, *, now_ns: int, wall_ns: int, attempt: int) -> dict[str, Any]:
    """Return an activity as the registry keeps it: kind, since (RFC 3339), cause, attempt; `at_screen`, if only a
    person at the agent's own screen can answer."""
    since = format_micros(wall_ns - max(now_ns - doing.since_ns, 0))
    record = {"kind": doing.kind, "since": since, "cause": doing.cause, "attempt": attempt}
    return record | ({"at_screen": True} if doing.rule == "attention" else {})


def run_record(facts: Facts, *, attempt: int) -> dict[str, Any] | None:
    """Return what runs in an attempt, as the registry keeps it; None if the agent has said nothing about itself."""
    return None if facts.stated is None else {"attempt": attempt, **_named(facts.stated.signal)}


def facts_record(
    facts: Facts, *, now_ns: int, wall_ns: int, limits: Limits, doing: Activity | None = None
) -> dict[str, Any]:
    """Return the facts for the session's `activity.json`. `doing`: what the runner makes of them, if it knows more."""
    doing = doing or activity(facts, now_ns=now_ns, limits=limits, wall_ns=wall_ns)
    rows = explain(facts, now_ns, limits=limits, wall_ns=wall_ns)
    return {
        "at": format_micros(wall_ns),
        "kind": doing.kind,
        "since": format_micros(wall_ns - max(now_ns - doing.since_ns, 0)),
        "cause": doing.cause,
        "rule": doing.rule,
        "idle_for": None if doing.idle_since_ns is None else duration_text(now_ns - doing.idle_since_ns),
        "facts": [
            {"fact": fact, "value": value, "source": source, "since": format_micros(wall_ns - age_ns)}
            for fact, value, source, age_ns in rows
        ],
    }
