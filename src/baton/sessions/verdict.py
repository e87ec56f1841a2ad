"""Decide what the end of an agent's program means for its job."""

from collections.abc import Callable
from signal import Signals

from baton.adapters.contract import Agent
from baton.core.facts import one_line
from baton.core.result import last_lines
from baton.sessions.statement import Statement

_LINES = 10
_LINES_BYTES = 2000


class AgentRun:
    """One run of an agent's program: what its output said, and its exit code once it has ended."""

    def __init__(self) -> None:
        self.finished: str | None = None
        self.failed: str | None = None
        self.trouble: str | None = None
        self.exit_code = 0

    def note(self, signal: Statement) -> None:
        """Remember what decides about the end. Progress means that an earlier trouble is over."""
        if signal.failed is not None:
            self.failed = signal.failed
        elif signal.finished is not None:
            self.finished = signal.finished
        elif signal.trouble is not None or signal.progress is not None:
            self.trouble = signal.trouble

    @property
    def exit_text(self) -> str:
        """Return how the program ended, for messages."""
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        try:
            return f"signal {Signals(-self.exit_code).name}"
        except ValueError:
            return f"signal {-self.exit_code}"  # real-time signals have no name

    def with_trouble(self, why: str) -> str:
        """Return the reason of a failure, with the last trouble before it."""
        return f"{why}; before that: {self.trouble}" if self.trouble else why


def is_success(agent: Agent, run: AgentRun) -> bool:
    """Return whether the agent claims that the work is done."""
    return run.failed is None and run.exit_code == 0 and (agent.exit_is_verdict or run.finished is not None)


def explain(agent: Agent, run: AgentRun, screen: Callable[[], str]) -> str:
    """Return why the job ended so: one line of a success, the agent's own words for a failure. `screen` is called for a
    program that ended with an error."""
    if run.failed is not None:
        return run.failed
    ended = f"{'the command' if agent.exit_is_verdict else agent.name} ended with {run.exit_text}"
    if is_success(agent, run):
        return one_line(run.finished or "", 300) or ended
    if not agent.exit_is_verdict:
        when = "before it said" if run.finished is None else "though it had said"
        ended = run.with_trouble(f"{ended} {when} that the job was done")
    lines = _last_lines(screen()) if run.exit_code else ""
    before = ":\n" if "\n" in lines else ": "
    return f"{ended}{before}{lines}" if lines else ended


def _last_lines(screen: str) -> str:
    """Return the last lines that are not empty."""
    return last_lines("\n".join(line.rstrip() for line in screen.splitlines() if line.strip()), _LINES, _LINES_BYTES)
