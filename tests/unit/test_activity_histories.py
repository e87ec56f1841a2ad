"""Random histories of an agent: signals that come late, twice and out of order never complete a job too early."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core import signal as s
from baton.core.activity import DONE, Facts, Limits, activity, fold, verdict
from baton.core.clock import SECOND_NS

MARK, OTHER_MARK = "This is job 1", "This is job 2"
LIMITS = Limits(idle_sec=10**6, background_sec=10**6)


class Agent:
    """An agent with two jobs and a person. It does what it is asked to if that is possible, and says so by signals."""

    def __init__(self):
        self.said, self.count = [], 0
        self.turn, self.owner, self.is_prompt, self.gone = None, None, True, False
        self.tools, self.questions = {}, {}  # by id: the turn, or the subagent
        self.tasks, self.ended_tasks = {}, []  # by id: whose, kind
        self.ends = []  # of turns: whose, whether some one prompted it, how

    def say(self, signal):
        self.said.append(signal)

    def name(self):
        self.count += 1
        return f"n{self.count}"

    def possible(self):
        """Return what the agent may do now; what is likely, several times."""
        if self.gone:
            return []
        has_subagent = any(kind == "subagent" for _, kind in self.tasks.values())
        calls = (*self.tools.values(), *self.questions.values())
        found = (
            ["job", "job", "job", "person", "other_job"] if self.turn is None else ["start_tool", "start_tool", "ask"]
        )
        found += ["talk", "retry", "limit", "use"]
        found += ["notice"] * 4 if self.turn is None and self.ended_tasks else []
        found += ["end_task"] * 4 if self.tasks else []
        found += ["end_tool"] * 4 if self.tools else []
        found += ["settle"] * 4 if self.questions else []
        found += ["start_tool_of_subagent", "ask_by_subagent"] if has_subagent else []
        if self.turn is not None:
            found += ["start_shell", "start_subagent", "fail", "interrupt", "clear"]
            found += ["end_well"] * 6 if all(of in self.tasks for of in calls) else []
        return [*found, "exit"] if self.turn is None else found

    def _begin(self, owner, **more):
        self.turn, self.owner, self.is_prompt = self.name(), owner, "origin" not in more
        self.say(s.TurnStarted(turn=self.turn, **more))

    def job(self):
        self._begin("job", prompt=f"{MARK}: work")

    def other_job(self):
        self._begin("other", prompt=f"{OTHER_MARK}: work")

    def person(self):
        self._begin("other", prompt="work")

    def notice(self):
        task, owner = self.ended_tasks.pop(0)
        self._begin(owner, origin=s.BACKGROUND, prompt=f"<task-id>{task}</task-id>")

    def _drop_calls(self):
        """Forget the calls of turns and subagents that are over."""
        self.tools = {each: of for each, of in self.tools.items() if of in (self.turn, *self.tasks)}
        self.questions = {each: of for each, of in self.questions.items() if of in (self.turn, *self.tasks)}

    def _end(self, how, signal=None):
        self.ends.append((self.owner, self.is_prompt, how))
        if how == s.WELL:
            self._list()
        self.say(signal or s.TurnEnded(turn=self.turn, how=how))
        self.turn = self.owner = None
        self._drop_calls()

    def end_well(self):
        self._end(s.WELL)

    def fail(self):
        self._end(s.FAILED)

    def interrupt(self):
        self._end(s.INTERRUPTED)

    def _list(self):
        tasks = [s.BackgroundTask(task_id=each, kind=kind, what="") for each, (_, kind) in self.tasks.items()]
        self.say(s.BackgroundWork(tasks=tuple(tasks)))

    def _start_task(self, kind):
        self.tasks[self.name()] = (self.owner, kind)
        self._list()

    def start_shell(self):
        self._start_task("shell")

    def start_subagent(self):
        self._start_task("subagent")

    def end_task(self):
        task = next(iter(self.tasks))
        owner, _ = self.tasks.pop(task)
        self.ended_tasks.append((task, owner))
        self._drop_calls()
        self._list()

    def _subagent(self):
        return next(each for each, (_, kind) in self.tasks.items() if kind == "subagent")

    def _start_tool(self, of, **more):
        tool = self.name()
        self.tools[tool] = of
        self.say(s.ToolStarted(tool_id=tool, name="Bash", call={}, **more))

    def start_tool(self):
        self._start_tool(self.turn, turn=self.turn)

    def start_tool_of_subagent(self):
        self._start_tool(self._subagent(), agent_ref=self._subagent())

    def end_tool(self):
        tool = next(iter(self.tools))
        del self.tools[tool]
        self.say(s.ToolEnded(tool_id=tool))

    def _ask(self, of, **more):
        key = self.name()
        self.questions[key] = of
        self.say(s.Asked(key=key, kind="tool", tool="Bash", call={}, **more))

    def ask(self):
        self._ask(self.turn)

    def ask_by_subagent(self):
        self._ask(self._subagent(), agent_ref=self._subagent())

    def settle(self):
        key = next(iter(self.questions))
        del self.questions[key]
        self.say(s.Settled(key=key, decision=s.ALLOW))

    def talk(self):
        self.say(s.Said(text=""))

    def retry(self):
        self.say(s.Retrying(number=1, most=2, why=""))

    def limit(self):
        self.say(s.Limited(until_ns=None, why=""))

    def use(self):
        self.say(s.Usage(message_id=self.name()))

    def clear(self):
        self._end(s.INTERRUPTED, s.Conversation(conversation_id="c", ended="clear"))

    def exit(self):
        self.gone = True
        self.say(s.Gone(why="", ok=True))

    def is_done(self):
        """Return whether the job is done, as the agent knows it: its last turns ended well, and nothing is open."""
        ends = [(is_prompt, how) for owner, is_prompt, how in self.ends if owner == "job"]
        prompted = [how for is_prompt, how in ends if is_prompt]
        went_well = bool(prompted) and prompted[-1] == s.WELL and ends[-1][1] == s.WELL
        own_tasks = [task for task, (owner, _) in self.tasks.items() if owner == "job"]
        return went_well and self.turn is None and not (own_tasks or self.tools or self.questions)


HISTORIES = st.lists(st.integers(0, 10**6), max_size=30)


def play(numbers):
    """Yield the agent after each of its actions, and how many signals it had said before."""
    agent = Agent()
    for number in numbers:
        before = len(agent.said)
        possible = agent.possible()
        if possible:
            getattr(agent, possible[number % len(possible)])()
        yield agent, before


def is_done_by(heard):
    """Return whether what was heard allows that the job is done: it looks at all signals, without folding them."""

    def of(kind):
        return [(at, each) for at, each in heard if type(each) is kind]

    ends = [each for _, each in of(s.TurnEnded)]
    ended_at = {each.turn: at for at, each in reversed(of(s.TurnEnded))}
    first = {each.turn: (min(at, ended_at.get(each.turn, at)), each) for at, each in reversed(of(s.TurnStarted))}
    starts = list(first.values())
    marked = [(at, each.turn) for at, each in starts if MARK in each.prompt]
    cleared = [at for at, each in of(s.Conversation) if each.ended]
    if not marked:
        return False
    last_at, last = max(marked)
    if s.WELL not in [each.how for each in ends if each.turn == last]:
        return False
    _, newest = max((at, each.turn) for at, each in starts)
    is_gone = bool(of(s.Gone))
    if newest not in [each.turn for each in ends] and not is_gone and not any(at > last_at for at in cleared):
        return False
    lists = of(s.BackgroundWork)
    running = {task.task_id for task in max(lists, key=lambda each: each[0])[1].tasks} if lists else set()
    over = {each.tool_id for _, each in of(s.ToolEnded)} | {each.key for _, each in of(s.Settled)}
    calls = [(each.tool_id, each.agent_ref) for _, each in of(s.ToolStarted)]
    calls += [(each.key, each.agent_ref) for _, each in of(s.Asked)]
    return is_gone or not any(key not in over and ref in running for key, ref in calls if ref is not None)


def look_at(facts, now_ns):
    return activity(facts, now_ns=now_ns, limits=LIMITS), verdict(facts, now_ns=now_ns, limits=LIMITS)


@settings(max_examples=200, deadline=None)
@given(HISTORIES, st.data())
def test_signals_late_repeated_and_out_of_order_complete_no_job_too_early(numbers, data):
    signals = [signal for agent, before in play(numbers) for signal in agent.said[before:]]
    delays = data.draw(st.lists(st.integers(0, 6), min_size=2 * len(signals), max_size=2 * len(signals)))
    is_stamped_early = data.draw(st.booleans())
    first = [(number + delays[number], number) for number in range(len(signals))]
    again = [(number + delays[len(signals) + number], number) for number in range(len(signals)) if delays[number] > 3]
    facts, heard = Facts.of_job(MARK, 0), []
    for order, (_, number) in enumerate(sorted([*first, *again])):
        at_ns = (number if is_stamped_early else order) * SECOND_NS
        facts = fold(facts, s.Heard(signal=signals[number], source="hook", at_ns=at_ns))
        heard.append((at_ns, signals[number]))
        doing, found = look_at(facts, at_ns + 3600 * SECOND_NS)
        assert found.outcome != DONE or is_done_by(heard)
        assert facts.gone is None or doing.kind == "idle"


@settings(max_examples=200, deadline=None)
@given(HISTORIES, st.lists(st.integers(0, 30)))
def test_a_job_is_done_exactly_when_its_agent_is_and_repeated_signals_change_nothing(numbers, repeated):
    facts = Facts.of_job(MARK, 0)
    for agent, before in play(numbers):
        for number in range(before, len(agent.said)):
            again = [repeated.pop()] if repeated else []
            for each in (number, *(old for old in again if old <= number)):
                facts = fold(facts, s.Heard(signal=agent.said[each], source="hook", at_ns=each * SECOND_NS))
        if not agent.gone:
            _, found = look_at(facts, (len(agent.said) + 3600) * SECOND_NS)
            assert (found.outcome == DONE) is agent.is_done()
