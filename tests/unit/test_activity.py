"""The rules by which facts decide what an agent is doing, and whether its job is done."""

from __future__ import annotations

from baton.core import signal as s
from baton.core.activity import DONE, OPEN, Facts, Limits, activity, fold, verdict
from baton.core.clock import SECOND_NS

MARK = "This is job 00000000 of baton"
LIMITS = Limits(idle_sec=120)


class History:
    """Signals of an agent, one second apart."""

    def __init__(self, *signals, **options):
        self.now = 0
        self.facts = Facts.of_job(options.pop("mark", MARK), 0, **options)
        self.hear(*signals)

    def hear(self, *signals, source="hook"):
        for signal in signals:
            self.now += 1
            self.facts = fold(self.facts, s.Heard(signal=signal, source=source, at_ns=self.now * SECOND_NS))
        return self

    def activity(self, after=0, limits=LIMITS):
        return activity(self.facts, now_ns=int((self.now + after) * SECOND_NS), limits=limits)

    def verdict(self, after=0, limits=LIMITS, **options):
        return verdict(self.facts, now_ns=int((self.now + after) * SECOND_NS), limits=limits, **options)


def turn(name="t1", prompt=f"{MARK}. Do it.", **more):
    return s.TurnStarted(turn=name, prompt=prompt, **more)


def tool(tool_id="1", name="Bash", command="make", turn="t1", **more):
    return s.ToolStarted(tool_id=tool_id, name=name, call={"command": command}, turn=turn, **more)


def ended(name="t1", **more):
    return s.TurnEnded(turn=name, **more)


def test_a_job_starts_works_in_a_tool_and_is_done_after_its_turn():
    history = History()
    assert history.activity().kind == "starting"
    assert history.hear(turn()).activity().kind == "working"
    working = history.hear(tool()).activity()
    assert (working.kind, working.cause, working.since_ns) == ("working", "Bash: make", 2 * SECOND_NS)
    assert history.verdict().outcome == OPEN
    done = history.hear(s.ToolEnded(tool_id="1"), ended(message="Made.")).verdict()
    assert (done.outcome, done.message) == (DONE, "Made.")
