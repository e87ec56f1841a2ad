"""The rules by which facts decide what an agent is doing, and whether its job is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton.core import fields
from baton.core import signal as s
from baton.core.activity import (
    DONE,
    FAILED,
    IDLE,
    KINDS,
    LIMITED,
    OPEN,
    RULES,
    Facts,
    Limits,
    activity,
    activity_record,
    attention_due_ns,
    explain,
    facts_record,
    fold,
    go_on,
    open_besides,
    publisher_call,
    run_record,
    verdict,
)  # fmt: skip
from baton.core.clock import SECOND_NS, parse_time
from baton.core.job_checks import ENDED_BY, check_agent_runs
from baton.core.spending import Spent, Tokens

MARK = "This is job 0000abcd of baton"
LIMITS = Limits(idle_sec=120)
WALL_NS = parse_time("2026-06-19T09:00:00Z")


class History:
    """Signals of an agent, one second apart."""

    def __init__(self, *signals, mark=MARK, **options):
        self.now = 0
        self.facts = Facts.of_job(mark, 0, **options)
        self.hear(*signals)

    def hear(self, *signals, source="hook", at=None):
        for signal in signals:
            self.now += 1
            if signal is None:
                continue
            at_ns = int((self.now if at is None else at) * SECOND_NS)
            self.facts = fold(self.facts, s.Heard(signal=signal, source=source, at_ns=at_ns))
        return self

    def times(self, after=0):
        return {"now_ns": int((self.now + after) * SECOND_NS), "wall_ns": WALL_NS + int(after * SECOND_NS)}

    def activity(self, after=0, limits=LIMITS):
        return activity(self.facts, limits=limits, **self.times(after))

    def verdict(self, after=0, limits=LIMITS, **options):
        return verdict(self.facts, limits=limits, **self.times(after), **options)

    def kinds(self, *after):
        return [self.activity(each).kind for each in after]

    def outcomes(self, *after):
        return [self.verdict(each).outcome for each in after]


def turn(name="t1", prompt=f"{MARK}. Do it.", **more):
    return s.TurnStarted(turn=name, prompt=prompt, **more)


def persons(name="p1"):
    return turn(name, prompt="And now something else")


def about(task_id, name="t2"):
    return turn(name, prompt=f"<task-id>{task_id}</task-id>", origin=s.BACKGROUND)


def carries_on(name="t2"):
    return turn(name, prompt="Your usage limit has reset. Continue.", origin=s.CARRIED_ON)


def tool(tool_id="1", command="make", turn="t1", name="Bash", **more):
    return s.ToolStarted(tool_id=tool_id, name=name, call={"command": command}, turn=turn, **more)


def returned(tool_id="1"):
    return s.ToolEnded(tool_id=tool_id)


def ended(name="t1", **more):
    return s.TurnEnded(turn=name, **more)


def interrupted(name="t1"):
    return ended(name, how=s.INTERRUPTED)


def failed(why, name="t1"):
    return ended(name, how=s.FAILED, why=why)


def asked(key="q1", command="make", kind="tool", **more):
    return s.Asked(key=key, kind=kind, tool="Bash", call={"command": command}, **more)


def shell(task_id="b1", what="sleep 60"):
    return s.BackgroundTask(task_id=task_id, kind="shell", what=what)


def subagent(task_id="a1", what="reads the logs"):
    return s.BackgroundTask(task_id=task_id, kind="subagent", what=what)


def background(*tasks):
    return s.BackgroundWork(tasks=tasks)


GONE, KILLED = s.Gone(why="exit code 0", ok=True), s.Gone(why="signal SIGKILL", ok=False)
OVERLOADED = [s.Retrying(number=n, most=10, why="the model service answered 529") for n in range(11)]
IN_AN_HOUR = s.Limited(until_ns=WALL_NS + 3600 * SECOND_NS, why="session limit")

# Scenario (with its row in the table of scenarios): signals, then what is right: the kind of the activity, the rule that
# decides, words of its cause, the outcome, words of its reason. `after` is how many seconds after the last signal.
SCENARIOS = {
    "it has not begun": ([], "starting", "no-turn", "not begun", OPEN, "no turn of the job"),
    "it never begins": ([], "starting", "no-turn", "not begun", IDLE, "has not begun a turn", 120),
    "T1 the turn is open": ([turn()], "working", "turn", "model", OPEN, "turn of the job is open"),
    "T1 it ended well": ([turn(), tool(), returned(), ended()], "idle", "turn-over", "ended well", DONE, "well"),
    "T3 a background shell runs": (
        [turn(), background(shell()), ended()], "working", "background", "shell sleep 60", OPEN, "sleep 60", 599,
    ),
    "T3 the shell runs for too long": (
        [turn(), background(shell()), ended()], "idle", "turn-over", "ended well", DONE, "ended well", 600,
    ),
    "T3 the agent is about to hear of the shell's end": (
        [turn(), background(shell()), ended(), background()], "working", "notice", "ended just now", OPEN, "just now", 1,
    ),
    "T3 the agent hears of the shell's end": (
        [turn(), background(shell()), ended(), about("b1")], "working", "turn", "model", OPEN, "is open",
    ),
    "T3 its last turn is over": (
        [turn(), background(shell()), ended(), about("b1"), background(), ended("t2")],
        "idle", "turn-over", "well", DONE, "well",
    ),
    "T5 a background subagent works, for any time": (
        [turn(), background(subagent()), ended()], "working", "background", "reads the logs", OPEN, "reads", 9999,
    ),
    "T5 a tool of the background subagent is open": (
        [turn(), tool("2", agent_ref="a1"), background(subagent()), ended()],
        "working", "tool", "Bash: make", OPEN, "tool call is open: Bash: make", 9999,
    ),
    "T5 the subagent has ended, and its tool call with it": (
        [turn(), tool("2", agent_ref="a1"), background(subagent()), ended(), about("a1"), background(), ended("t2")],
        "idle", "turn-over", "well", DONE, "well",
    ),
    "T6 a background subagent asks": (
        [turn(), tool("2", agent_ref="a1"), background(subagent()), ended(), asked(agent_ref="a1", tool_id="2")],
        "waiting", "request", "permission: Bash: make", OPEN, "waiting for a permission: Bash: make", 9999,
    ),
    "T7 the program ends with its background shell": (
        [turn(), background(shell()), ended(), GONE], "idle", "gone", "exit code 0", FAILED, "sleep 60",
    ),
    "T7 the program had ended the shell before": (
        [turn(), background(shell()), ended(), background(), GONE], "idle", "gone", "code 0", DONE, "well", 3,
    ),
    "T8 it asks for a permission": (
        [turn(), tool(), asked(tool_id="1")], "waiting", "request", "permission: Bash: make", OPEN, "", 9999,
    ),
    "T9 it was allowed at the keyboard, and the tool runs": (
        [turn(), tool(), asked(tool_id="1"), s.Settled(key="q1", decision=s.ALLOW, by="user_temporary")],
        "working", "tool", "Bash: make", OPEN, "", 9999,
    ),
    "T10 it was refused at the keyboard": (
        [turn(), tool(), asked(tool_id="1"), s.Settled(key="q1", decision=s.DENY, by="user_reject"), interrupted()],
        "idle", "turn-over", "interrupted", OPEN, "interrupted", 119,
    ),
    "T10 no turn follows the refusal": (
        [turn(), tool(), asked(tool_id="1"), s.Settled(key="q1", decision=s.DENY), interrupted()],
        "idle", "turn-over", "interrupted", IDLE, "its turn was interrupted", 120,
    ),
    "T10 Esc closes the question, without another signal": (
        [turn(), tool(), asked(tool_id="1"), interrupted()], "idle", "turn-over", "interrupted", OPEN, "", 1,
    ),
    "T12 it asks a question": (
        [turn(), s.Asked(key="q1", kind="question", tool="AskUserQuestion",
                         call={"questions": [{"question": "Which colour?"}]})],
        "waiting", "request", "an answer: AskUserQuestion: Which colour?", OPEN, "", 9999,
    ),
    "T12 it has a plan": (
        [turn(), s.Asked(key="q1", kind="plan", tool="ExitPlanMode", call={"plan": "1. Read\n2. Write"})],
        "waiting", "request", "the approval of a plan: ExitPlanMode: 1. Read 2. Write", OPEN, "", 9999,
    ),
    "T13 Esc in a tool": ([turn(), tool(), interrupted()], "idle", "turn-over", "interrupted", OPEN, "", 1),
    "T14 a person works on something else": (
        [turn(), interrupted(), persons()], "idle", "other-turn", "not the job's", OPEN, "interrupted", 1,
    ),
    "T14 the person's turn ended well": (
        [turn(), interrupted(), persons(), ended("p1")], "idle", "turn-over", "interrupted", OPEN, "interrupted", 1,
    ),
    "T14 the interruption is heard after the person's turn began": (
        [turn(), persons(), interrupted(), ended("p1")], "idle", "turn-over", "interrupted", OPEN, "interrupted", 1,
    ),
    "T14 the interruption is never heard": (
        [turn(), persons(), ended("p1")], "idle", "turn-over", "another turn began", OPEN, "interrupted", 1,
    ),
    "T14 after Esc, the end of background work completes nothing": (
        [turn(), background(subagent()), interrupted(), about("a1"), background(), ended("t2")],
        "idle", "turn-over", "well", OPEN, "interrupted", 1,
    ),
    "T15 /clear in a turn": (
        [s.Conversation(conversation_id="c1"), turn(), tool(), s.Conversation(conversation_id="c1", ended="clear")],
        "idle", "cleared", "cleared (/clear)", FAILED, "the conversation was cleared (/clear)",
    ),
    "T15 /clear, and a person goes on": (
        [s.Conversation(conversation_id="c1"), turn(), s.Conversation(conversation_id="c1", ended="clear"),
         s.Conversation(conversation_id="c2"), persons(), ended("p1")],
        "idle", "cleared", "cleared", FAILED, "cleared",
    ),
    "T16 compaction is a sign of work": (
        [turn(), *[s.Said(text="compacts the conversation")] * 100], "working", "turn", "model", OPEN, "", 119,
    ),
    "T17 the service fails": (
        [turn(), *OVERLOADED[1:3]], "retrying", "retry", "answered 529, try 2 of 10", OPEN, "",
    ),
    "T17 a title is made meanwhile": (
        [turn(), *OVERLOADED[1:3], s.Usage(message_id="m1", of_turn=False)], "retrying", "retry", "answered 529", OPEN, "",
    ),
    "T17 then it works": (
        [turn(), *OVERLOADED[1:3], s.Usage(message_id="m1")], "working", "turn", "model", OPEN, "",
    ),
    "T18 the service stays away": (
        [turn(), *OVERLOADED[1:8]], "retrying", "retry", "", IDLE, "the model service answered 529, try 7 of 10", 120,
    ),
    "T18 the program gives up": (
        [turn(), *OVERLOADED[1:], failed("API Error: 529")], "idle", "turn-over", "529", FAILED, "API Error: 529",
    ),
    "T18 the program is killed meanwhile": (
        [turn(), *OVERLOADED[1:8], KILLED], "idle", "gone", "SIGKILL", FAILED, "SIGKILL; before that: the model service",
    ),
    "T19 the limit is over at a known time": (
        [turn(), IN_AN_HOUR, failed("You've hit your limit")],
        "limited", "limit", "until 2026-06-19T10:00:00Z: session limit", LIMITED, "limit", 3599,
    ),
    "T19 the program has ended at the limit": (
        [turn(), IN_AN_HOUR, failed("You've hit your limit"), KILLED], "idle", "gone", "", LIMITED, "until 2026-06-19T10",
    ),
    "T19 the agent itself waits": (
        [turn(), IN_AN_HOUR], "limited", "limit", "until 2026-06-19T10:00:00Z: session limit", OPEN, "open", 3599,
    ),
    "the budget is spent": (
        [turn(), s.Paused(why="2 of 1 USD")], "waiting", "budget", "waiting for a budget: 2 of 1 USD", OPEN, "", 9999,
    ),
    "the budget is spent, and the program was ended": (
        [turn(), s.Paused(why="2 of 1 USD"), KILLED], "waiting", "budget", "", OPEN, "", 9999,
    ),
    "the user has allowed more": (
        [turn(), s.Paused(why="2 of 1 USD"), s.Resumed()], "working", "turn", "", OPEN, "",
    ),
    "T19 the figures of an earlier answer come late": (
        [turn(), IN_AN_HOUR, failed("You've hit your limit"), s.Usage(message_id="m1", input_tokens=1)],
        "limited", "limit", "until 2026-06-19T10:00:00Z: session limit", LIMITED, "until 2026-06-19T10",
    ),
    "T19 a dialog about the limit": (
        [turn(), IN_AN_HOUR, failed(""), s.Attention(what="dialog open", stands=True)],
        "limited", "limit", "until 2026", LIMITED, "until 2026", 60,
    ),
    "T19 the limit has no known end": (
        [turn(), s.Limited(until_ns=None, why="weekly limit"), failed("")],
        "limited", "limit", "usage limit: weekly limit", FAILED, "weekly limit",
    ),
    "T19 the model answers again": (
        [turn(), IN_AN_HOUR, tool()], "working", "tool", "make", OPEN, "",
    ),
    "T20 the credit is used up": (
        [turn(), failed("Credit balance is too low")], "idle", "turn-over", "", FAILED, "Credit balance is too low",
    ),
    "T21 a dialog before the work": (
        [s.Blocked(by="Claude Code asks whether you trust this folder", what_to_do="run claude there once")],
        "blocked", "blocked", "trust this folder: run claude", OPEN, "", 9999,
    ),
    "T21 the dialog was answered": (
        [s.Blocked(by="login", what_to_do="log in"), turn()], "working", "turn", "", OPEN, "",
    ),
    "T21 no dialog comes after the first turn": (
        [turn(), s.Blocked(by="login", what_to_do="log in")], "working", "turn", "", OPEN, "",
    ),
    "T36 its screen asks in the middle of a turn": (
        [turn(), tool(), s.Attention(what="dialog open", stands=True)], "waiting", "attention", "its screen asks: dialog open",
        OPEN, "", 9999,
    ),
    "T36 the moment before that is known": (
        [turn(), tool(), s.Attention(what="dialog open", stands=True)], "working", "tool", "", OPEN, "", 0.99,
    ),
    "T36 its screen asks no longer": (
        [turn(), tool(), s.Attention(what="dialog open", stands=True), s.Attention(what=None)], "working", "tool", "", OPEN, "", 5,
    ),
    "T37 the question on its screen is the open request": (
        [turn(), tool(), asked(tool_id="1"), s.Attention(what="permission prompt", stands=True)],
        "waiting", "request", "Bash: make", OPEN, "", 5,
    ),
    "T41 no dialog is left before the work": (
        [s.Blocked(by="a dialog", what_to_do="attach"), s.Unblocked()], "starting", "no-turn", "", OPEN, "", 5,
    ),
    "T43 its screen asks after the turn": (
        [turn(), ended(), s.Attention(what="dialog open", stands=True)], "waiting", "attention", "dialog open", DONE, "", 5,
    ),
    "T44 it goes on by itself after the limit": (
        [turn(), IN_AN_HOUR, failed("limit"), carries_on(), ended("t2")], "idle", "turn-over", "ended well", DONE, "well",
    ),
    "T22 a quiet tool": ([turn(), tool()], "working", "tool", "Bash: make", OPEN, "", 9999),
    "T24 the agent is killed": ([turn(), tool(), KILLED], "idle", "gone", "SIGKILL", FAILED, "SIGKILL"),
    "T24 the agent ends in its turn": ([turn(), GONE], "idle", "gone", "", FAILED, "before the job was done"),
    "T25 tools were refused": (
        [turn(), ended(refused_tools=("Write", "Bash", "Write"))], "idle", "turn-over", "", FAILED, "use Bash, Write",
    ),
    "T25 what was asked and refused is a decision": (
        [turn(), asked(), s.Settled(key="q1", decision=s.DENY), ended(refused_tools=("Bash",))],
        "idle", "turn-over", "", DONE, "",
    ),
    "T30 another job's turn before it": ([persons()], "starting", "no-turn", "not the job's", OPEN, "", 1),
    "T30 another job's turn ends well": ([persons(), ended("p1")], "starting", "no-turn", "", OPEN, "", 1),
    "T30 another job's turn after it": (
        [turn(), ended(), persons("t2"), failed("error", "t2")], "idle", "turn-over", "", DONE, "",
    ),
    "T31 a turn of another run ends": (
        [turn(), tool(), ended("nested")], "working", "tool", "", OPEN, "turn of the job is open",
    ),
    "T31 the beginning of the turn was not heard": (
        [ended("t1")], "unknown", "unknown-turn", "not heard", OPEN, "no turn of the job", 1,
    ),
    "T33 no sign of work within the limit": (
        [turn()], "stalled", "silence", "since a turn began", IDLE, "heard of the job for 120 s; last known: no sign", 120,
    ),
    "T35 the context is full": (
        [turn(), s.Said(text="compacts"), failed("Prompt is too long")], "idle", "turn-over", "too long", FAILED, "too long",
    ),
    "a tool that the user's own hook started after the turn's end": (
        [turn(), ended(), tool()], "working", "tool", "make", OPEN, "",
    ),
    "that turn has to end again": ([turn(), ended(), tool(), returned()], "working", "turn", "", OPEN, "is open"),
    "the background work of a person does not count before the job": (
        [background(shell(), subagent()), turn(), ended()], "idle", "turn-over", "", DONE, "ended well",
    ),
    "a person's tool pauses the clock": (
        [turn(), interrupted(), persons(), tool("9", turn="p1")], "idle", "other-turn", "", OPEN, "", 9999,
    ),
    "of two questions, one is left": (
        [turn(), asked("q1"), asked("q2", "make clean"), s.Settled(key="q1", decision=s.ALLOW)],
        "waiting", "request", "make clean", OPEN, "",
    ),
    "two questions": ([turn(), asked("q1"), asked("q2")], "waiting", "request", "make (and 1 more)", OPEN, ""),
    "the tool returned, so its question is over": (
        [turn(), tool(), asked(tool_id="1"), returned()], "working", "turn", "", OPEN, "",
    ),
}  # fmt: skip


def look(signals, after):
    history = History(*signals)
    return history.activity(after), history.verdict(after)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_rule_for(name):
    signals, kind, rule, cause, outcome, why, *after = SCENARIOS[name]
    doing, found = look(signals, *after or [0])
    assert (doing.kind, doing.rule, found.outcome) == (kind, rule, outcome)
    assert cause in doing.cause
    assert why in found.why
    assert doing.kind in KINDS
    assert found.ended_by in ENDED_BY


def test_each_rule_has_a_scenario():
    rules = {rule for _, _, rule, *_ in SCENARIOS.values()}
    assert RULES.keys() - rules == {"tool-timeout", "program"}  # which have tests of their own, with other limits


# No rule reads these.
@pytest.mark.parametrize("kind", [kind for kind in s.Signal.__args__ if kind not in (s.Noted, s.Stated)])
def test_without_one_kind_of_signal_a_scenario_is_wrong(kind):
    wrong = []
    for name, (signals, activity_kind, rule, _, outcome, _, *after) in SCENARIOS.items():
        doing, found = look([None if type(each) is kind else each for each in signals], *after or [0])
        if (doing.kind, doing.rule, found.outcome) != (activity_kind, rule, outcome):
            wrong.append(name)
    assert wrong


# -- what the agent says about itself ------------------------------------------------------------------------------------


def stated_after(*signals):
    """Return what is known after these signals, each a second after the one before, or (seconds, signal)."""
    facts = Facts.of_job("", 0)
    for second, each in enumerate(signals):
        at, signal = each if isinstance(each, tuple) else (second, each)
        facts = fold(facts, s.Heard(signal=signal, source="hook", at_ns=at * SECOND_NS))
    return facts


def test_what_the_running_agent_says_holds_against_what_its_program_said():
    asked, running = s.Stated(release="1.0", assumed=True), s.Stated(release="1.1", mode="auto")
    for order in ((asked, running), (running, asked)):
        found = run_record(stated_after(*order), attempt=2)
        assert found == {"attempt": 2, "agent_version": "1.1", "agent_mode": "auto", "model": None}
    assert run_record(stated_after(asked), attempt=1)["agent_version"] == "1.0"
    assert run_record(stated_after(), attempt=1) is None


def test_the_mode_is_the_newest_and_a_late_signal_only_adds():
    late = (0, s.Stated(mode="default", model="m"))
    found = run_record(stated_after((5, s.Stated(mode="plan")), late, (7, s.Stated(mode="auto"))), attempt=1)
    assert (found["agent_mode"], found["model"]) == ("auto", "m")


def test_what_an_agent_says_about_itself_is_one_short_line():
    found = run_record(stated_after(s.Stated(release="1\n2\x1b[31m" + "x" * 1000, model="\ud800")), attempt=1)
    assert len(found["agent_version"]) <= 200
    assert found["agent_version"].isprintable()
    assert check_agent_runs([found])


def test_a_program_that_lives_says_it_for_its_next_job_and_a_new_one_says_it_anew():
    facts = stated_after(s.Stated(release="1.0"))
    assert run_record(Facts.of_job("next", 1, after=facts), attempt=1) is not None
    gone = fold(facts, s.Heard(signal=s.Gone(why="it ended", ok=True), source="process", at_ns=SECOND_NS))
    assert run_record(Facts.of_job("next", 1, after=gone), attempt=1) is None


# -- limits and conditions ---------------------------------------------------------------------------------------------


def test_a_tool_that_never_returns_is_stalled_after_its_limit_and_then_the_idle_clock_runs():
    history = History(turn(), tool(command="make"))
    limits = Limits(idle_sec=10, tool_sec=60)
    assert history.activity(59, limits).kind == "working"
    stalled = history.activity(60, limits)
    assert (stalled.kind, stalled.rule, stalled.since_ns) == ("stalled", "tool-timeout", 62 * SECOND_NS)
    assert history.verdict(69, limits).outcome == OPEN
    late = history.verdict(70, limits)
    assert (late.outcome, late.ended_by) == (IDLE, "idle")
    assert late.why == "nothing was heard of the job for 10 s; last known: Bash: make has run for longer than 60 s"


def test_the_time_of_a_question_is_not_the_time_of_its_tool():
    history = History(turn(), tool(), asked(tool_id="1"))
    history.now += 500
    history.hear(s.Settled(key="q1", decision=s.ALLOW))
    assert history.activity(59, Limits(idle_sec=10, tool_sec=60)).kind == "working"


def test_a_subagent_that_works_in_the_foreground_does_not_stall_the_tool_that_runs_it():
    history = History(turn(), tool("1", name="Task"))
    limits = Limits(idle_sec=10, tool_sec=60)
    for number in range(2, 100):
        history.hear(tool(str(number), agent_ref="a1"), returned(str(number)))
    assert history.activity(59, limits).kind == "working"
    assert history.activity(60, limits).kind == "stalled"


def test_an_idle_limit_shorter_than_any_look_is_honoured():
    limits = Limits(idle_sec=0.05)
    history = History(turn(), tool())
    assert history.verdict(3600, limits).outcome == OPEN
    history.hear(returned())
    assert history.verdict(0.049, limits).outcome == OPEN
    assert history.verdict(0.05, limits).outcome == IDLE


def test_the_idle_clock_pauses_and_starts_as_the_activity_says():
    history = History(turn())
    assert history.activity().idle_since_ns == SECOND_NS
    assert history.hear(tool()).activity().idle_since_ns is None
    assert history.hear(asked(tool_id="1")).activity().idle_since_ns is None
    assert history.hear(returned()).activity().idle_since_ns == 4 * SECOND_NS
    assert history.hear(background(subagent()), ended()).activity().idle_since_ns is None
    assert history.hear(background()).activity(5).idle_since_ns == 7 * SECOND_NS


def test_a_sign_of_life_does_not_feed_the_idle_clock():
    history = History(turn())
    for _ in range(200):
        history.hear(s.Said(text="bytes on the screen", is_work=False), source="pane")
    assert history.verdict().outcome == IDLE


def test_the_same_try_again_is_no_new_sign_of_work():
    history = History(turn(), *OVERLOADED[1:3])
    for _ in range(200):
        history.hear(OVERLOADED[2])
    assert (history.activity().kind, history.verdict().outcome) == ("retrying", IDLE)


def test_conditions_may_prove_the_work_although_tools_were_refused_or_a_shell_was_ended():
    refused = History(turn(), ended(refused_tools=("Bash",)))
    assert refused.verdict(has_conditions=True).outcome == DONE
    ended_with_program = History(turn(), background(shell()), ended(), GONE)
    assert ended_with_program.verdict(has_conditions=True).outcome == DONE
    assert ended_with_program.verdict(has_conditions=True).left == "still in the background: shell sleep 60"
    unfinished = History(turn(), tool(), GONE)
    assert unfinished.verdict(has_conditions=True).outcome == FAILED


def test_a_job_that_is_done_names_the_shell_that_runs_for_too_long():
    done = History(turn(), background(shell()), ended(message="Started.")).verdict(600)
    assert (done.outcome, done.message, done.left) == (DONE, "Started.", "still in the background: shell sleep 60")
    assert History(turn(), ended()).verdict().left == ""


def test_the_message_of_the_last_turn_is_the_message_of_the_job():
    history = History(turn(), background(shell()), ended(message="Started."), about("b1"), background())
    assert history.hear(ended("t2", message="Done.")).verdict().message == "Done."


# -- programs without turns, and programs that end by themselves -------------------------------------------------------


def test_the_exit_code_of_a_program_without_turns_is_the_verdict():
    history = History(turn_expected=False)
    assert (history.activity().kind, history.activity().rule, history.verdict().outcome) == ("working", "program", OPEN)
    assert history.verdict(120).outcome == IDLE
    assert History(GONE, turn_expected=False).verdict().outcome == DONE
    failure = History(s.Gone(why="exit code 3", ok=False), turn_expected=False).verdict()
    assert (failure.outcome, failure.why) == (FAILED, "exit code 3")


def test_the_exit_code_of_a_program_counts_although_its_turn_ended_well():
    assert History(turn(), ended(message="Done."), GONE).verdict().outcome == DONE
    broken = History(turn(), ended(), s.Gone(why="exit code 1", ok=False))
    assert (broken.verdict().outcome, broken.verdict().why) == (FAILED, "exit code 1")


def test_every_turn_is_of_the_job_where_the_program_has_only_this_work():
    assert History(turn("1", prompt=""), ended("1"), mark="").verdict().outcome == DONE
    assert History(ended(""), mark="").verdict().outcome == DONE
    assert History(ended("", how=s.FAILED, why="no"), mark="").verdict().outcome == FAILED


def test_the_next_job_of_a_session_does_not_count_what_was_there_before():
    first = History(s.Conversation(conversation_id="c1"), turn(), background(subagent()), ended())
    first.hear(s.Usage(message_id="m1", input_tokens=5, cost_usd=0.5))
    second = History()
    second.now = first.now
    second.facts = Facts.of_job("This is job 2", first.now * SECOND_NS, after=first.facts)
    assert (second.facts.conversation_id, second.facts.spent) == ("c1", Spent())
    second.hear(s.Usage(message_id="m1", input_tokens=5, cost_usd=0.5))  # heard twice: it is of the job before
    assert second.facts.spent == Spent()
    assert second.activity().kind == "starting"
    second.hear(about("a1", "t2"), ended("t2"))  # of the job before
    assert (second.activity().kind, second.outcomes(0, 1)) == ("starting", [OPEN, OPEN])
    second.hear(turn("t3", prompt="This is job 2"), background(subagent()), ended("t3"))
    assert second.verdict().outcome == DONE


def test_the_next_job_of_a_session_knows_that_the_agent_is_still_at_work():
    first = History(turn(), tool("p", "baton publish --event completed"), tool("2"), asked("q2", tool_id="2"))
    second = History()
    second.now = first.now
    second.facts = Facts.of_job("This is job 2", first.now * SECOND_NS, after=first.facts)
    assert (second.facts.open_turn.whose, len(second.facts.open_tools)) == ("other", 2)
    assert (second.activity().kind, second.facts.job_turn) == ("waiting", None)
    second.hear(returned("p"), returned("2"), ended("t1"))
    assert (second.activity().kind, second.facts.open_turn, second.verdict().outcome) == ("starting", None, OPEN)


def test_a_shell_that_the_agent_ended_in_its_turn_was_not_lost_with_the_program():
    history = History(turn(), background(shell()), background(), ended(), GONE)
    assert history.verdict().outcome == DONE
    lost = History(turn(), background(shell()), ended(), background(), GONE)
    assert (lost.verdict().outcome, lost.verdict(has_conditions=True).outcome) == (FAILED, DONE)


def test_the_facts_of_a_program_that_is_gone_leave_no_background_work_to_the_next():
    gone = History(turn(), background(shell()), ended(), GONE)
    assert Facts.of_job(MARK, 0, after=gone.facts).tasks == ()


# -- the agent is sent back --------------------------------------------------------------------------------------------


def test_an_agent_that_is_sent_back_has_to_end_its_turn_again():
    history = History(turn(), ended(held=True))
    assert history.verdict().outcome == DONE
    begun = history.facts.begun
    history.facts = go_on(history.facts, "t1", history.now * SECOND_NS)
    assert history.facts.begun > begun
    assert (history.activity().kind, history.verdict().outcome) == ("working", OPEN)
    assert history.hear(ended(), at=1).verdict().outcome == OPEN  # the first end again
    assert history.hear(ended()).verdict().outcome == DONE


def test_an_agent_that_is_sent_back_by_a_new_prompt_is_not_done_before_that_turn_begins():
    history = History(turn("1", prompt="work"), ended("1"), mark="")
    history.facts = go_on(history.facts, "", history.now * SECOND_NS)
    assert history.verdict().outcome == OPEN
    history.hear(turn("2", prompt="fix it"))
    assert (history.activity().kind, history.verdict().outcome) == ("working", OPEN)
    assert history.hear(ended("2")).verdict().outcome == DONE


def test_a_turn_that_is_not_the_last_or_not_known_is_not_opened_again():
    history = History(turn(), ended(), persons())
    assert all(go_on(history.facts, name, 0) == history.facts for name in ("", "t1", "p1", "unknown"))
    assert go_on(History().facts, "", 0) == History().facts
    assert go_on(History(turn(), ended(), GONE).facts, "t1", 0).open_turn is None


@pytest.mark.parametrize("signal", [persons(), tool(), asked()])
def test_what_begins_during_a_verification_changes_the_count(signal):
    history = History(turn(), ended())
    assert history.verdict().outcome == DONE
    begun = history.facts.begun
    assert history.hear(signal).facts.begun > begun
    assert history.verdict().outcome == OPEN


# -- the agent publishes the end of its job by itself ------------------------------------------------------------------


def besides(history, job_id="0000abcd"):
    tool_id = publisher_call(history.facts, job_id)
    return open_besides(history.facts, now_ns=history.now * SECOND_NS, limits=LIMITS, tool_id=tool_id)


@pytest.mark.parametrize(
    "command",
    [
        "baton publish --event completed --detail done",
        "cd x && python -m baton publish --job 0000abcd --attempt 1 --event completed",
        ["baton", "publish", "--event", "completed"],
    ],
)
def test_the_tool_call_that_publishes_completed_is_not_open(command):
    history = History(turn(), tool("p", command))
    assert publisher_call(history.facts, "0000abcd") == "p"
    assert besides(history) is None


@pytest.mark.parametrize(
    "command", ["make", "baton publish --job 11111111 --event completed", "baton publish --event progress"]
)
def test_another_tool_call_is(command):
    history = History(turn(), tool("1", command))
    assert publisher_call(history.facts, "0000abcd") is None
    assert besides(history).startswith("a tool call is open: Bash: ")


def test_anything_else_that_is_open_refuses_what_is_published():
    publishing = tool("p", "baton publish --event completed")
    assert besides(History(turn(), tool("1"), publishing)) == "a tool call is open: Bash: make"
    assert besides(History(turn(), background(shell()), publishing)) == "work goes on in the background: shell sleep 60"
    assert "permission: Bash: make" in besides(History(turn(), asked(agent_ref="a1"), publishing))
    assert besides(History(turn(), tool("1"), publishing, returned("1"))) is None


# -- late, repeated and reordered signals ------------------------------------------------------------------------------


def test_a_tool_that_ended_before_it_began_is_over():
    assert History(turn(), returned(), tool()).activity().rule == "turn"


def test_a_question_that_was_settled_before_it_was_asked_is_over():
    history = History(turn(), s.Settled(key="q1", decision=s.ALLOW), asked())
    assert history.activity().rule == "turn"
    assert History(turn(), returned(), asked(tool_id="1")).activity().rule == "turn"


def test_a_question_that_is_not_known_is_settled_without_an_effect():
    assert History(turn(), asked(), s.Settled(key="other", decision=s.ALLOW)).activity().kind == "waiting"


def test_a_turn_that_ended_before_it_began_is_over():
    history = History(ended("t1"), turn("t1"))
    assert (history.activity().kind, history.verdict().outcome) == ("idle", DONE)


def test_the_end_of_a_turn_counts_once():
    history = History(turn(), ended(message="first"), ended(message="second"), ended("", message="third"))
    assert history.verdict().message == "first"
    history.hear(turn("t2"), ended("t1"), ended("t1", how=s.INTERRUPTED))
    assert (history.activity().kind, history.verdict().outcome) == ("working", OPEN)


def test_an_error_in_a_turn_counts_although_it_also_ended_well():
    assert History(turn(), ended(), failed("529")).verdict().outcome == FAILED
    assert History(turn(), failed("529"), ended()).verdict().outcome == FAILED


def test_an_end_without_a_name_is_that_of_the_open_turn():
    history = History(turn(), ended(""))
    assert history.verdict().outcome == DONE
    history.hear(turn("t2")).hear(ended(""), at=2)
    assert history.verdict().outcome == OPEN  # it was stamped before this turn began


def test_a_turn_that_began_before_the_present_one_is_heard_late():
    history = History(turn("t2")).hear(persons("t1"), at=0.5)
    assert (history.facts.open_turn.turn, history.activity().kind) == ("t2", "working")
    assert history.hear(ended("t1"), ended("t2")).verdict().outcome == DONE


def test_a_tool_of_an_earlier_turn_is_heard_late():
    history = History(turn(), interrupted(), persons(), tool("1", turn="t1"))
    assert history.facts.open_tools == []
    assert History(turn(), ended()).hear(tool(), at=1.5).verdict().outcome == DONE


def test_an_older_list_of_background_work_changes_nothing():
    history = History(turn(), background(shell())).hear(background(), at=1.5)
    assert [task.task_id for task in history.facts.tasks] == ["b1"]


def test_the_list_of_background_work_may_follow_the_end_of_its_turn():
    history = History(turn(), tool("2", agent_ref="a1"), ended(), background(subagent()))
    assert (history.activity().rule, history.verdict().outcome) == ("tool", OPEN)
    history.hear(returned("2"), about("a1"), ended("t2"), background())
    assert history.verdict().outcome == DONE  # at once: the agent has begun a turn about it


def test_the_turn_about_background_work_is_the_jobs_also_after_a_turn_of_a_person():
    history = History(turn(), background(subagent()), ended(), persons(), ended("p1"), about("a1"))
    assert (history.activity().rule, history.verdict().outcome) == ("turn", OPEN)
    assert history.hear(background(), failed("529", "t2")).verdict().outcome == FAILED


def test_background_work_that_a_person_started_has_no_turn_of_the_job():
    history = History(turn(), interrupted(), persons(), background(subagent()), ended("p1"), about("a1"))
    assert history.activity().rule == "other-turn"


def test_a_late_try_again_changes_nothing_after_the_turn():
    history = History(turn(), ended(), OVERLOADED[3])
    assert (history.activity().kind, history.verdict().outcome) == ("idle", DONE)
    assert History(turn(), tool()).hear(OVERLOADED[1], at=1.5).activity().kind == "working"


def test_each_message_is_counted_once_and_can_only_rise():
    history = History(turn())
    for tokens, cost in [(1, None), (10, 0.5), (10, 0.5), (3, 0.1), (10, None), (10, float("nan")), (10, -1.0)]:
        history.hear(s.Usage(message_id="m1", input_tokens=tokens, output_tokens=2 * tokens, cost_usd=cost))
    assert (history.facts.spent.tokens, history.facts.spent.cost_usd) == (Tokens(input=10, output=20), 0.5)
    history.hear(s.Usage(message_id="m2", input_tokens=1, cost_usd=0.25))
    assert (history.facts.spent.tokens.input, history.facts.spent.cost_usd) == (11, 0.75)


def test_a_job_that_does_not_wait_fails_at_a_limit():
    at_once = LIMITS.replace(waits_at_limit=False)
    for signals in ([turn(), IN_AN_HOUR], [turn(), IN_AN_HOUR, failed("You've hit your limit")]):
        history = History(*signals)
        found = verdict(history.facts, limits=at_once, **history.times())
        assert (found.outcome, found.ended_by) == (FAILED, "limit")


def test_a_conversation_that_is_not_the_jobs_ends_without_an_effect():
    history = History(s.Conversation(conversation_id="c1"), turn())
    history.hear(
        s.Conversation(conversation_id="nested", ended="clear"), s.Conversation(conversation_id="c1", ended="other")
    )
    assert history.activity().kind == "working"
    new = History(s.Conversation(conversation_id="c1"), s.Conversation(conversation_id="c1", ended="clear"), turn())
    assert new.activity().kind == "working"  # it was cleared before the job began
    late = History(s.Conversation(conversation_id="c1"), turn(), s.Conversation(conversation_id="c2"))
    assert late.hear(s.Conversation(conversation_id="c1", ended="clear")).verdict().outcome == FAILED


def test_a_job_goes_on_in_a_new_conversation_and_the_end_of_the_old_one_comes_late():
    clear = s.Conversation(conversation_id="c1", ended="clear")
    history = History(turn(), clear, turn("t2")).hear(clear, at=2)
    assert (history.activity().kind, history.verdict().outcome) == ("working", OPEN)
    assert history.hear(ended("t2")).verdict().outcome == DONE


def test_a_job_whose_turn_ended_well_is_done_although_the_conversation_is_cleared_then():
    history = History(turn(), ended(), s.Conversation(conversation_id="c1", ended="clear"))
    assert (history.activity().kind, history.verdict().outcome) == ("idle", DONE)


def test_after_the_program_is_gone_nothing_begins():
    late = [
        persons("t2"),
        tool("2"),
        asked("q2"),
        background(shell()),
        OVERLOADED[1],
        s.Said(text="hello"),
        s.Blocked(by="", what_to_do=""),
    ]
    history = History(turn(), ended(), GONE)
    begun = history.facts.begun
    history.hear(*late, *late)
    assert (history.activity().rule, history.verdict().outcome, history.facts.begun) == ("gone", DONE, begun)
    history.hear(s.Gone(why="another", ok=False))
    assert history.verdict().outcome == DONE


def test_a_turn_of_the_job_that_is_heard_after_the_end_of_the_program_has_not_ended_well():
    history = History(turn(), ended(), GONE, turn("t2"))
    assert (history.activity().rule, history.verdict().outcome) == ("gone", FAILED)
    assert History(turn(), ended(), failed("529", "t2"), GONE, turn("t2")).verdict().outcome == FAILED


def test_the_end_of_a_turn_may_be_heard_after_the_end_of_the_program():
    assert History(turn(), GONE, ended()).verdict().outcome == DONE


def test_facts_stay_small():
    history = History(turn(), interrupted())
    for number in range(1000):
        history.hear(
            persons(f"p{number}"), tool(f"x{number}", turn=f"p{number}"), returned(f"x{number}"), ended(f"p{number}")
        )
        history.hear(s.Usage(message_id=f"m{number}", input_tokens=1), background(shell(f"b{number}")))
    facts = history.facts
    assert facts.job_turn.turn == "t1"
    assert facts.spent.tokens.input == 1000
    sizes = [len(getattr(facts, name)) for name in ("turns", "tools", "ended_ids", "owners", "noticed")]
    assert max(sizes) <= 257
    assert len(facts.messages) == 1000


# -- attention ---------------------------------------------------------------------------------------------------------


DIALOG, NO_DIALOG = s.Attention(what="permission prompt", stands=True), s.Attention(what=None)


def allowed(key="q1"):
    return s.Settled(key=key, decision=s.ALLOW, by="runner")


def test_a_waiting_period_belongs_to_the_request_that_opened_during_it():
    history = History(turn(), tool(), DIALOG).hear(asked(tool_id="1"), at=3.4)
    assert [history.activity(after).rule for after in (0.5, 1, 60)] == ["request"] * 3


def test_after_an_approval_the_screen_asks_only_if_the_agent_still_waits_a_second_later():
    history = History(turn(), tool(), asked(tool_id="1"), DIALOG)
    history.now += 60
    history.hear(allowed())
    assert history.kinds(0, 0.99, 1) == ["working", "working", "waiting"]
    later = history.activity(1)
    assert (later.rule, later.since_ns, later.idle_since_ns) == ("attention", 65 * SECOND_NS, None)
    assert history.hear(NO_DIALOG, at=65.5).kinds(0, 1, 60) == ["working"] * 3


def test_a_request_that_was_answered_before_the_agent_said_that_it_waits_is_no_attention():
    history = History(turn(), tool()).hear(asked(tool_id="1"), at=3).hear(allowed(), at=3.1).hear(DIALOG, at=3.3)
    history.now = 3
    assert history.kinds(0.4, 1.2, 1.4) == ["working", "working", "waiting"]
    assert history.hear(NO_DIALOG, at=3.6).kinds(5) == ["working"]


def test_the_next_work_of_the_turn_ends_attention_until_the_agent_still_says_so_a_second_later():
    history = History(turn(), tool(), DIALOG)
    assert history.kinds(1) == ["waiting"]
    history.now += 10
    history.hear(returned())
    assert history.kinds(0, 0.99, 1) == ["working", "working", "waiting"]


def test_the_next_work_of_the_turn_ends_the_attention_of_a_notification():
    history = History(turn(), tool(), s.Attention(what="Claude needs your permission"))
    assert history.activity(1).cause.startswith("its screen asks: Claude needs your permission")
    history.now += 10
    assert history.hear(returned()).kinds(0, 5, 60) == ["working"] * 3


def test_the_work_of_a_subagent_in_the_background_is_not_work_of_the_turn():
    history = History(turn(), background(subagent()), tool(), DIALOG)
    for number in range(2, 9):
        history.hear(tool(str(number), agent_ref="a1"), returned(str(number)))
        assert history.activity().rule == "attention"


def test_a_notification_about_an_open_request_adds_nothing():
    history = History(turn(), tool(), asked(tool_id="1"), s.Attention(what="Claude needs your permission"))
    assert history.activity().rule == "request"
    assert history.hear(allowed()).kinds(0, 5) == ["working", "working"]


def test_the_words_of_a_notification_say_more_and_do_not_end_what_stands():
    history = History(turn(), tool(), DIALOG).hear(s.Attention(what="needs your choice"), at=9)
    found = history.activity(6)
    assert (found.since_ns, "needs your choice" in found.cause) == (3 * SECOND_NS, True)
    history.hear(returned(), at=20)
    assert history.activity(60).kind == "waiting"


def test_attention_says_what_to_do_and_is_in_the_record_of_the_activity():
    history = History(turn(), tool(), s.Attention(what="dialog \x1b[31mopen\n" + "x" * 5000, stands=True))
    found = history.activity(1)
    assert "`baton attach`" in found.cause
    assert found.cause.isprintable()
    record = activity_record(found, now_ns=0, wall_ns=WALL_NS, attempt=1)
    assert record["at_screen"] is True
    waits = activity_record(History(turn(), asked()).activity(), now_ns=0, wall_ns=WALL_NS, attempt=1)
    assert "at_screen" not in waits


@pytest.mark.parametrize(
    ("begin", "end"),
    [([turn(), DIALOG], NO_DIALOG), ([s.Blocked(by="a dialog", what_to_do="attach")], s.Unblocked())],
)
def test_the_idle_clock_begins_when_the_dialog_is_closed(begin, end):
    history = History(*begin)
    history.now += 500
    history.hear(end)
    assert history.outcomes(0, 119, 120) == [OPEN, OPEN, IDLE]
    assert "dialog" in history.facts.last_work


def test_attention_is_due_at_a_known_time():
    history = History(turn(), tool())
    assert attention_due_ns(history.facts) is None
    assert attention_due_ns(history.hear(DIALOG).facts) == 4 * SECOND_NS
    assert attention_due_ns(history.hear(asked(tool_id="1")).facts) is None  # while a request is open
    assert attention_due_ns(history.hear(allowed()).facts) == 6 * SECOND_NS
    assert attention_due_ns(history.hear(GONE).facts) is None


def test_the_agent_carries_on_only_with_the_work_of_its_last_turn():
    of_person = History(turn(), ended(), persons(), IN_AN_HOUR, failed("limit", "p1"), carries_on(), ended("t2"))
    assert of_person.facts.find_turn("t2").whose == "other"
    assert of_person.verdict().outcome == DONE
    unfinished = History(turn(), IN_AN_HOUR, failed("limit"), carries_on())
    assert (unfinished.activity().kind, unfinished.verdict().outcome) == ("working", OPEN)
    again = unfinished.hear(IN_AN_HOUR, failed("limit", "t2"))
    assert (again.activity().kind, again.verdict().outcome) == ("limited", LIMITED)


def test_what_the_agent_says_about_itself_is_a_fact_that_no_rule_reads():
    history = History(turn(), tool())
    before = history.activity(5), history.verdict(5)
    history.hear(s.Noted(fact="its own status", value="idle"), source="registry")
    history.hear(s.Noted(fact="its own status", value="busy"), source="registry")
    assert (history.activity(3), history.verdict(3)) == before
    rows = [row for row in explain(history.facts, 9 * SECOND_NS) if row[0] == "its own status"]
    assert rows == [("its own status", "busy", "registry", 5 * SECOND_NS)]


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_every_fact_is_shown_with_its_source_and_its_age():
    history = History(s.Conversation(conversation_id="c1"), turn(), tool(), asked(tool_id="1"), background(shell()))
    history.hear(OVERLOADED[1], IN_AN_HOUR, source="telemetry")
    rows = explain(history.facts, 10 * SECOND_NS, limits=LIMITS)
    assert ("tool call open", "Bash: make", "hook", 7 * SECOND_NS) in rows
    assert ("request open", "Bash: make", "hook", 6 * SECOND_NS) in rows
    assert ("background work", "shell sleep 60", "hook", 5 * SECOND_NS) in rows
    assert ("retrying", "the model service answered 529", "telemetry", 4 * SECOND_NS) in rows
    assert ("limited", "session limit", "telemetry", 3 * SECOND_NS) in rows
    assert ("conversation", "c1", "hook", 9 * SECOND_NS) in rows
    assert ("turn", "t1 began, of the job", "hook", 8 * SECOND_NS) in rows
    assert ("last sign of work", "the agent tried again", "telemetry", 4 * SECOND_NS) in rows
    assert rows[-1] == ("rule", f"request: {RULES['request']}", "", 6 * SECOND_NS)
    assert len(explain(history.facts, 10 * SECOND_NS)) == len(rows) - 1


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_state_of_the_facts_can_be_shown_and_written(name):
    history = History(*SCENARIOS[name][0])
    written = json.loads(json.dumps(facts_record(history.facts, limits=LIMITS, **history.times())))
    assert written["rule"] == history.activity().rule
    assert all(set(fact) == {"fact", "value", "source", "since"} for fact in written["facts"])


def test_an_activity_is_written_with_the_time_of_day():
    history = History(turn(), tool())
    record = activity_record(history.activity(30), attempt=2, **history.times(30))
    assert record == {"kind": "working", "since": "2026-06-19T09:00:00Z", "cause": "Bash: make", "attempt": 2}


def test_a_cause_is_one_line_of_limited_length():
    history = History(
        turn(), tool(command="echo\n" + "x" * 1000), s.ToolStarted(tool_id="2", name="", call=None, turn="t1")
    )
    assert history.hear(returned("2")).activity().cause == "Bash: echo " + "x" * 148 + "…"


@pytest.mark.parametrize("text", ["half of \ud83d", "\0", "\x1b[2J"])
def test_a_cause_in_the_words_of_an_agent_can_be_stored(text):
    """The lease of the job is renewed with its activity."""
    history = History(turn(), s.Retrying(number=1, most=2, why=text))
    record = activity_record(history.activity(30), attempt=2, **history.times(30))
    assert fields.text(record["cause"]).isprintable()


def test_the_documentation_has_every_kind_and_every_rule():
    text = (Path(__file__).parents[2] / "docs" / "explanation" / "activity.md").read_text()
    kinds = [line.split("`")[1] for line in text.partition("## From signals")[0].splitlines() if line.startswith("| `")]
    rules = [line for line in text.partition("## The rules")[2].splitlines() if line.startswith("| `")]
    assert kinds == list(KINDS)
    assert rules == [f"| `{name}` | {sentence} |" for name, sentence in RULES.items()]


@pytest.mark.parametrize("killed", [False, True])
def test_a_good_turn_does_not_complete_the_job_of_an_agent_that_is_being_ended(killed):
    """At SIGTERM, Claude ends its tools, gets the model's word about that, and says a second later that it ends."""
    job = History(turn(), tool(), s.ToolEnded(tool_id="1", ok=False, killed=killed), ended())
    assert job.outcomes(0, 2) == [OPEN if killed else DONE, DONE], "it may have been the tool alone"
    job.hear(s.Conversation(conversation_id="c", ended="other"))
    assert job.outcomes(2) == [OPEN]
    job.hear(KILLED, source="process")
    assert (job.verdict().outcome, job.verdict().why) == (FAILED, "signal SIGKILL")


def test_a_conversation_after_one_that_ended_goes_on():
    first = s.Conversation(conversation_id="c")
    job = History(first, turn(), first.replace(ended="other"), s.Conversation(conversation_id="d"), ended())
    assert job.outcomes(0) == [DONE]
