"""What an agent is told: its prompt, and how to say what became of it."""

from __future__ import annotations

import os
import shlex
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.adapters.contract import Agent
    from baton.core.job import Job


def job_prompt(agent: Agent, job: Job) -> str:
    """What the agent gets to read. One whose exit is the verdict needs no more than the prompt."""
    return job.prompt if agent.exit_is_verdict else instructions(job)


def mark(job: Job) -> str:
    """What tells the words of this job from all others in a conversation."""
    return f"This is job {job.job_id} of baton"


def instructions(job: Job) -> str:
    with open(os.path.join(os.path.dirname(__file__), "instructions.md"), encoding="utf-8") as file:
        template = file.read()
    conditions = ""
    if job.expected_artifacts:
        conditions += " `completed` is refused until these are there: " + ", ".join(job.expected_artifacts) + "."
    if job.validate:
        conditions += f" It is refused while this fails: {job.validate}"
    # The prompt comes last: it may contain anything.
    told = template.format(
        prompt="\0", mark=mark(job), baton=_command(), job_id=job.job_id, attempt=job.attempt, conditions=conditions
    )
    return told.replace("\0", job.prompt).strip()


def _command() -> str:
    """Our own command, as it is found by a shell that an agent starts: some are login shells, which know nothing of a
    virtual environment."""
    from shutil import which

    usual = os.pathsep.join((os.path.expanduser("~/.local/bin"), "/usr/local/bin", "/usr/bin", "/bin"))
    ours = os.path.join(os.path.dirname(sys.executable), "baton")
    return "baton" if which("baton", path=usual) or not os.path.exists(ours) else shlex.quote(ours)
