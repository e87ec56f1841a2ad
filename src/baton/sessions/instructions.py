"""Write the text that an agent gets for a job: the prompt, and how to report the result."""

import os
import shlex

from baton.adapters.contract import Agent
from baton.core.job import Job
from baton.core.parking import was_parked

_AFTER_LIMIT = "The usage limit that interrupted you is over. Go on with your task where you stopped."


def job_prompt(agent: Agent, job: Job, *, resumed: bool = False) -> str:
    """Return the text for an agent. An agent whose exit code is the verdict gets the prompt alone. `resumed`: it goes
    on in its conversation, which has the prompt already, if a usage limit has interrupted it."""
    if resumed and was_parked(job):
        job = job.replace(prompt=_AFTER_LIMIT)
    return job.prompt if agent.exit_is_verdict else instructions(job)


def go_on_prompt(job: Job, why: str) -> str:
    """Return the text with which an agent that was interrupted goes on with its job."""
    return f"{mark(job)}. {why} Go on with it where you stopped."


def mark(job: Job) -> str:
    """Return the words by which a job is recognised in a conversation."""
    return f"This is job {job.job_id} of baton"


def instructions(job: Job) -> str:
    """Return the prompt with the commands that report progress and the result."""
    with open(os.path.join(os.path.dirname(__file__), "instructions.md"), encoding="utf-8") as file:
        template = file.read()
    conditions = ""
    if job.expected_artifacts:
        conditions += " `completed` is refused until these exist: " + ", ".join(job.expected_artifacts) + "."
    if job.validate:
        conditions += f" `completed` is refused while this command fails: {job.validate}"
    # Insert the prompt last: it may contain braces.
    text = template.format(
        prompt="\0", mark=mark(job), baton=_command(), job_id=job.job_id, attempt=job.attempt, conditions=conditions
    )
    return text.replace("\0", job.prompt).strip()


def _command() -> str:
    """Return `baton`, or its full path for login shells: they may know no other folders than those of the system, and
    that of the user where the user has it on PATH."""
    from shutil import which

    from baton.storage.installation import own_program

    usual = ["/usr/local/bin", "/usr/bin", "/bin"]
    own = os.path.expanduser("~/.local/bin")
    if own in os.environ.get("PATH", "").split(os.pathsep)[:-1]:  # the last one may be what baton itself has added
        usual.append(own)
    ours = None if which("baton", path=os.pathsep.join(usual)) else own_program("baton")
    return "baton" if ours is None else shlex.quote(ours)
