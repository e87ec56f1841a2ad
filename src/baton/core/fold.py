"""Fold signals into facts.

Signals come late, twice and in another order than they happened. A fact therefore rests on the time and the id of its
signal, not on the order in which signals arrive, wherever both are known.
"""

from __future__ import annotations

import re

from baton.core import signal as s
from baton.core.facts import BEFORE, CLEARED, JOB, OTHER, OUTSIDE, Call, Facts, Note, Task, Turn, describe_call
from baton.core.fields import one_line
from baton.core.spending import count
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_WORD = re.compile(r"[\w-]+")
_MAX_TURNS = 32  # that are remembered
_ABOUT_ITSELF = ("release", "mode", "model")
_STATED = 200  # characters of what an agent says about itself
_MAX_IDS = 256  # of ended calls and settled questions, against late and repeated signals
_MAX_NOTED = 16


def fold(facts: Facts, heard: s.Heard) -> Facts:
    """Return the facts after a signal. It never fails: a signal that is late, repeated or of something unknown changes
    no more than it proves."""
    after = _FOLDS[type(heard.signal)](facts, heard.signal, heard.source, heard.at_ns)
    if after.last_work_ns == facts.last_work_ns:
        return after
    return after.replace(last_work_source=heard.source, last_work=_WORK[type(heard.signal)])


def go_on(facts: Facts, turn: str, at_ns: int) -> Facts:
    """Return the facts after the runner has sent the agent back: its last turn, which `turn` or "" names, is open.
    If the agent begins a new turn for that, the text that it was sent contains the mark of the job."""
    last = facts.turns[-1] if facts.turns else None
    if last is None or turn not in ("", last.turn) or last.whose != JOB or facts.gone is not None:
        return facts
    facts = _work(_reopen(facts, at_ns), at_ns)
    return facts.replace(last_work_source="runner", last_work="the agent was sent back")


def _work(facts: Facts, at_ns: int, *, model: bool = False) -> Facts:
    """Return the facts with a sign of work; `model`: it proves that the model service answers, too."""
    model_ns = max(facts.model_ns, at_ns) if model else facts.model_ns
    return facts.replace(last_work_ns=max(facts.last_work_ns, at_ns), model_ns=model_ns)


def _step(facts: Facts, at_ns: int) -> Facts:
    """Return the facts after the turn itself went on. The agent's screen does not ask any more, unless the agent says
    otherwise."""
    note = facts.attention
    ends = note is not None and not note.signal.stands and at_ns > note.at_ns
    return facts.replace(step_ns=max(facts.step_ns, at_ns), attention=None if ends else note)


def _is_of_turn(facts: Facts, agent_ref: str | None) -> bool:
    """Return whether a call is of the turn itself: of the agent, or of a subagent that it waits for."""
    return agent_ref is None or all(task.task_id != agent_ref for task in facts.tasks)


def _put_turn(facts: Facts, turn: Turn) -> Facts:
    """Return the facts with this turn, new or changed; turns are in the order in which they began."""
    others = [each for each in facts.turns if each.turn != turn.turn]
    place = next((index for index, each in enumerate(others) if each.since_ns > turn.since_ns), len(others))
    turns = [*others[:place], turn, *others[place:]]
    for index, each in enumerate(turns[:-1]):
        if each.how is None:
            ended_ns = turns[index + 1].since_ns
            why = "another turn began"
            turns[index] = each.replace(how=s.INTERRUPTED, assumed=True, ended_ns=ended_ns, why=why)
    if len(turns) > _MAX_TURNS:
        turns.remove(next((each for each in turns[:-1] if each.whose != JOB), turns[0]))
    return facts.replace(turns=tuple(turns))


def _reopen(facts: Facts, at_ns: int) -> Facts:
    """Return the facts with the last turn open again."""
    last = facts.turns[-1]
    same = {name: getattr(last, name) for name in ("turn", "whose", "origin", "since_ns", "source")}
    return facts.replace(turns=(*facts.turns[:-1], Turn(**same, resumed_ns=at_ns)), begun=facts.begun + 1)


def _turn_started(facts: Facts, signal: s.TurnStarted, source: str, at_ns: int) -> Facts:
    name = signal.turn or f"at {at_ns}"
    if facts.find_turn(name) is not None:
        return facts
    named = set() if signal.origin == s.PROMPT else facts.owners.keys() & set(_WORD.findall(signal.prompt))
    new = Turn(turn=name, whose=_whose(facts, signal, named), origin=signal.origin, since_ns=at_ns, source=source)
    if signal.origin == s.BACKGROUND:
        facts = facts.replace(noticed=(*facts.noticed, *sorted(named))[-_MAX_IDS:], vanished_ns=None)
    ended = next((each for each in facts.unknown_ends if each.turn == name), None)
    if ended is not None:
        new = ended.replace(whose=new.whose, origin=new.origin, since_ns=min(ended.since_ns, at_ns), source=source)
        facts = facts.replace(unknown_ends=tuple(each for each in facts.unknown_ends if each is not ended))
    elif facts.gone is not None:  # heard late: the end of the program has ended it
        why = "the program ended"
        new = new.replace(how=s.INTERRUPTED, assumed=True, ended_ns=at_ns, why=why)
    facts = _put_turn(facts, new)
    if facts.gone is not None or facts.turns[-1] is not new:
        return facts  # a later turn is known already
    if new.whose == JOB and new.origin == s.PROMPT:
        facts = facts.replace(cleared=None)  # the job goes on in the new conversation
    if new.origin == s.CARRIED_ON:
        facts = facts.replace(limited=None)  # the agent says that it is over
    open_tools = {each.key: each for each in facts.open_tools}
    open_requests = {each.key: each for each in facts.open_requests}
    facts = _step(facts, at_ns)
    return _work(facts.replace(tools=open_tools, requests=open_requests, begun=facts.begun + 1), at_ns)


def _whose(facts: Facts, signal: s.TurnStarted, named: set[str]) -> str:
    """Return whose turn begins; `named` is the background work that it is about."""
    if facts.mark in signal.prompt:
        return JOB
    if signal.origin == s.PROMPT or facts.job_turn is None:
        return OTHER
    if signal.origin == s.CARRIED_ON:
        return facts.turns[-1].whose or OTHER
    if named:
        return JOB if any(facts.owners[each] == JOB for each in named) else OTHER
    return JOB if facts.turns[-1].whose == JOB else OTHER  # work that was never listed


def _turn_ended(facts: Facts, signal: s.TurnEnded, source: str, at_ns: int) -> Facts:
    same = {name: getattr(signal, name) for name in ("how", "why", "message", "held", "refused_tools")}
    end = {"ended_ns": at_ns, "ended_source": source, "assumed": False, **same}
    last = facts.turns[-1] if facts.turns else None
    known = facts.find_turn(signal.turn) if signal.turn else last
    if known is None:
        if any(each.turn == signal.turn for each in facts.unknown_ends) or (facts.mark and not signal.turn):
            return facts
        new = Turn(turn=signal.turn, whose=None, origin=s.PROMPT, since_ns=at_ns, source=source, **end)
        if not facts.mark:
            return _work(_put_turn(facts, new.replace(whose=JOB)), at_ns)
        return facts.replace(unknown_ends=(*facts.unknown_ends, new)[-_MAX_TURNS:])
    if at_ns < known.resumed_ns or (not signal.turn and at_ns < known.since_ns):
        return facts  # of the time before the turn was opened
    if known.how is not None and not known.assumed:
        is_worse = bool(signal.turn) and signal.how == s.FAILED and known.how == s.WELL
        return _put_turn(facts, known.replace(how=s.FAILED, why=signal.why)) if is_worse else facts
    return _work(_put_turn(facts, known.replace(**end)), at_ns, model=signal.how == s.WELL)


def _begin_call(facts: Facts, name: str, call: Call) -> Facts:
    """Return the facts with a tool call or a question that began, unless it is over already or of a turn that is."""
    known: Mapping[str, Call] = getattr(facts, name)
    if facts.gone is not None or call.key in known or f"{name} {call.key}" in facts.ended_ids:
        return facts
    last = facts.turns[-1] if facts.turns else None
    if last is not None and not call.turn:
        call = call.replace(turn=last.turn)
    is_of_last = last is not None and call.turn == last.turn
    if last is not None and is_of_last and last.ended_ns is not None and call.agent_ref is None:
        if call.since_ns <= last.ended_ns:
            return facts
        facts = _reopen(facts, call.since_ns)  # the agent goes on: a hook of the user's own has sent it back
    facts = facts.replace(**{name: {**known, call.key: call}}, begun=facts.begun + 1)
    return _work(facts, call.since_ns, model=True)


def _end_call(facts: Facts, name: str, key: str) -> Facts:
    known: Mapping[str, Call] = getattr(facts, name)
    left = {each: call for each, call in known.items() if each != key}
    entry = f"{name} {key}"
    ids = facts.ended_ids if entry in facts.ended_ids else (*facts.ended_ids, entry)[-_MAX_IDS:]
    return facts.replace(**{name: left}, ended_ids=ids)


def _tool_started(facts: Facts, signal: s.ToolStarted, source: str, at_ns: int) -> Facts:
    call = Call(
        key=signal.tool_id,
        name=signal.name,
        what=describe_call(signal.name, signal.call),
        call=signal.call,
        turn=signal.turn,
        agent_ref=signal.agent_ref,
        since_ns=at_ns,
        source=source,
    )
    after = _begin_call(facts, "tools", call)
    return _step(after, at_ns) if after is not facts and _is_of_turn(facts, signal.agent_ref) else after


def _tool_ended(facts: Facts, signal: s.ToolEnded, source: str, at_ns: int) -> Facts:
    ended = facts.tools.get(signal.tool_id)
    facts = _end_call(facts, "tools", signal.tool_id)
    for key in [key for key, each in facts.requests.items() if each.tool_id == signal.tool_id]:
        facts = _end_call(facts, "requests", key).replace(settled_ns=max(facts.settled_ns, at_ns))
    if ended is not None and _is_of_turn(facts, ended.agent_ref):
        facts = _step(facts, at_ns)
    if signal.killed:
        facts = facts.replace(killed_ns=at_ns)
    return facts if facts.gone is not None else _work(facts, at_ns)


def _asked(facts: Facts, signal: s.Asked, source: str, at_ns: int) -> Facts:
    if signal.tool_id is not None and f"tools {signal.tool_id}" in facts.ended_ids:
        return facts
    tool = None if signal.tool_id is None else facts.tools.get(signal.tool_id)
    call = Call(
        key=signal.key,
        name=signal.tool,
        what=describe_call(signal.tool, signal.call),
        call=signal.call,
        turn="" if tool is None else tool.turn,
        agent_ref=signal.agent_ref,
        since_ns=at_ns,
        source=source,
        kind=str(signal.kind),
        tool_id=signal.tool_id,
    )
    facts = facts.replace(asked_tools=facts.asked_tools | {signal.tool})
    return _begin_call(facts, "requests", call)


def _settled(facts: Facts, signal: s.Settled, source: str, at_ns: int) -> Facts:
    was_open = signal.key in facts.requests
    facts = _end_call(facts, "requests", signal.key)
    if was_open:
        facts = facts.replace(settled_ns=max(facts.settled_ns, at_ns))
    return _work(facts, at_ns) if was_open and facts.gone is None else facts


def _worker(facts: Facts, at_ns: int) -> str:
    """Return whose background work it is that is listed at this time for the first time: it began in the last turn."""
    begun = [turn.whose or JOB for turn in facts.turns if turn.since_ns <= at_ns]
    return BEFORE if JOB not in begun else begun[-1]


def _background_work(facts: Facts, signal: s.BackgroundWork, source: str, at_ns: int) -> Facts:
    if facts.gone is not None or at_ns < facts.tasks_ns:
        return facts
    before = {task.task_id: task for task in facts.tasks}
    whose = _worker(facts, at_ns)
    now = {each.task_id: each for each in signal.tasks}
    owners = {**facts.owners, **{name: whose for name in now if name not in facts.owners}}
    tasks = tuple(
        before.get(name)
        or Task(task_id=name, kind=each.kind, what=each.what, whose=owners[name], since_ns=at_ns, source=source)
        for name, each in now.items()
    )
    ended = {task.task_id for task in facts.tasks if task.whose == JOB} - now.keys()
    if ended - set(facts.noticed):
        facts = facts.replace(vanished_ns=at_ns)
    if now.keys() != before.keys():
        facts = _work(facts, at_ns)
    owners = dict(list(owners.items())[-_MAX_IDS:]) | {task.task_id: task.whose for task in tasks}
    return facts.replace(tasks=tasks, owners=owners, tasks_ns=at_ns, tasks_source=source)


def _retrying(facts: Facts, signal: s.Retrying, source: str, at_ns: int) -> Facts:
    last = facts.retrying
    if facts.gone is not None or (last is not None and at_ns < last.at_ns):
        return facts
    is_news = last is None or last.at_ns <= facts.model_ns or signal.number > last.signal.number
    if is_news and not signal.assumed:
        facts = _work(facts, at_ns)
    return facts.replace(retrying=Note(signal=signal, source=source, at_ns=at_ns))


def _usage(facts: Facts, signal: s.Usage, source: str, at_ns: int) -> Facts:
    spent, messages = count(facts.spent, facts.messages, signal)
    if messages is facts.messages:
        return facts
    facts = facts.replace(spent=spent, messages=messages)
    if facts.gone is not None or not signal.of_turn:
        return facts
    # Figures may come late. Between two turns, they are of an answer before the usage limit.
    return _work(facts, at_ns, model=facts.limited is None or facts.open_turn is not None)


def _conversation(facts: Facts, signal: s.Conversation, source: str, at_ns: int) -> Facts:
    note = Note(signal=signal, source=source, at_ns=at_ns)
    if signal.ended is None:
        last = facts.conversation
        if last is not None and (signal.conversation_id == facts.conversation_id or at_ns < last.at_ns):
            return facts
        seen = (*facts.conversations, signal.conversation_id)[-_MAX_TURNS:]
        return facts.replace(conversation=note, conversations=seen, ending=None)
    is_known = not facts.conversations or signal.conversation_id in facts.conversations
    if signal.ended == OUTSIDE and is_known:
        return facts.replace(ending=note)
    why = CLEARED.get(signal.ended)
    is_late = facts.job_turn is None or at_ns < facts.job_turn.since_ns
    if why is None or not is_known or is_late or facts.gone is not None:
        return facts
    if facts.open_turn is not None and at_ns >= facts.open_turn.since_ns:
        end = {"how": s.INTERRUPTED, "ended_ns": at_ns, "ended_source": source, "why": why}
        facts = _put_turn(facts, facts.open_turn.replace(**end))
    return facts.replace(cleared=note)


def _stated(facts: Facts, signal: s.Stated, source: str, at_ns: int) -> Facts:
    """Take over what the agent says about itself. What the running program says holds against what is assumed."""
    known, since_ns = (s.Stated(), -1) if facts.stated is None else (facts.stated.signal, facts.stated.at_ns)
    said = {name: one_line(getattr(signal, name), _STATED) for name in _ABOUT_ITSELF}
    is_proven = bool(known.release) and not known.assumed
    changed = {name: text for name, text in said.items() if text and (at_ns >= since_ns or not getattr(known, name))}
    if signal.assumed and is_proven:
        changed.pop("release", None)
    elif said["release"] and not signal.assumed and not is_proven:
        changed["release"] = said["release"]  # it was only assumed until now
    new = known.replace(**changed)
    if "release" in changed:
        new = new.replace(assumed=signal.assumed)
    return facts if new == known else facts.replace(stated=Note(signal=new, source=source, at_ns=max(at_ns, since_ns)))


def _blocked(facts: Facts, signal: s.Blocked, source: str, at_ns: int) -> Facts:
    if facts.turns or facts.gone is not None:
        return facts
    return facts.replace(blocked=Note(signal=signal, source=source, at_ns=at_ns))


def _unblocked(facts: Facts, _signal: s.Unblocked, _source: str, at_ns: int) -> Facts:
    if facts.blocked is None or facts.gone is not None or at_ns < facts.blocked.at_ns:
        return facts
    return _work(facts.replace(blocked=None), at_ns)


def _attention(facts: Facts, signal: s.Attention, source: str, at_ns: int) -> Facts:
    """Begin, rename or end what the agent's screen asks. A notification about an open request says nothing new."""
    note = facts.attention
    if facts.gone is not None or (note is not None and at_ns < note.at_ns):
        return facts
    if signal.what is None:
        return facts if note is None else _work(facts.replace(attention=None), at_ns)
    if note is None and not signal.stands and facts.open_requests:
        return facts
    begun = Note(signal=signal, source=source, at_ns=at_ns) if note is None else note
    stands = signal.stands or begun.signal.stands
    return facts.replace(attention=begun.replace(signal=signal.replace(stands=stands)))


def _noted(facts: Facts, signal: s.Noted, source: str, at_ns: int) -> Facts:
    last = facts.noted.get(signal.fact)
    if facts.gone is not None or (last is not None and (at_ns < last.at_ns or last.signal == signal)):
        return facts
    others = {fact: note for fact, note in facts.noted.items() if fact != signal.fact}
    kept = dict(list(others.items())[-_MAX_NOTED + 1 :])
    return facts.replace(noted={**kept, signal.fact: Note(signal=signal, source=source, at_ns=at_ns)})


def _limited(facts: Facts, signal: s.Limited, source: str, at_ns: int) -> Facts:
    if facts.limited is not None and (facts.gone is not None or at_ns < facts.limited.at_ns):
        return facts
    return facts.replace(limited=Note(signal=signal, source=source, at_ns=at_ns))


def _paused(facts: Facts, signal: s.Paused, source: str, at_ns: int) -> Facts:
    return facts.replace(paused=Note(signal=signal, source=source, at_ns=at_ns))


def _resumed(facts: Facts, signal: s.Resumed, source: str, at_ns: int) -> Facts:
    return _work(facts.replace(paused=None), at_ns)


def _said(facts: Facts, signal: s.Said, source: str, at_ns: int) -> Facts:
    if facts.gone is not None:
        return facts
    facts = facts.replace(said=Note(signal=signal, source=source, at_ns=at_ns))
    return _work(facts, at_ns, model=True) if signal.is_work else facts


def _gone(facts: Facts, signal: s.Gone, source: str, at_ns: int) -> Facts:
    return facts if facts.gone is not None else facts.replace(gone=Note(signal=signal, source=source, at_ns=at_ns))


# Signs of work, in words.
_WORK: dict[type, str] = {
    s.TurnStarted: "a turn began",
    s.TurnEnded: "a turn ended",
    s.ToolStarted: "a tool call began",
    s.ToolEnded: "a tool call ended",
    s.Asked: "the agent asked",
    s.Settled: "a question was settled",
    s.BackgroundWork: "background work began or ended",
    s.Retrying: "the agent tried again",
    s.Usage: "the model answered",
    s.Unblocked: "the dialog before the work was closed",
    s.Attention: "the dialog on its screen was closed",
    s.Said: "the agent said something",
    s.Resumed: "the user let the work go on",
}
_FOLDS: dict[type, Callable[[Facts, Any, str, int], Facts]] = {
    s.TurnStarted: _turn_started,
    s.TurnEnded: _turn_ended,
    s.ToolStarted: _tool_started,
    s.ToolEnded: _tool_ended,
    s.Asked: _asked,
    s.Settled: _settled,
    s.BackgroundWork: _background_work,
    s.Retrying: _retrying,
    s.Limited: _limited,
    s.Usage: _usage,
    s.Paused: _paused,
    s.Resumed: _resumed,
    s.Conversation: _conversation,
    s.Stated: _stated,
    s.Blocked: _blocked,
    s.Unblocked: _unblocked,
    s.Attention: _attention,
    s.Noted: _noted,
    s.Said: _said,
    s.Gone: _gone,
}
