"""Find out whether a process was started by an agent, and with which environment the agent's session was started.

A runner keeps the environment that it got from `baton submit` in a sealed file in its memory, which other processes of
the user open through /proc. An agent can change its own environment and folder, but not this copy.
"""

from __future__ import annotations

import json
import os

from baton.core.errors import BatonError, JobNotFound
from baton.core.fields import JOB_ID
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.core.job import Job
    from baton.jobs.verbs import Jobs

# In the environment of an agent and of everything it starts; the value is the id of the session.
MARKER = "BATON_SESSION_ID"
_MEMORY = "baton-runner"


class Origin(Value):
    """With which environment, and in which folder, a session was started."""

    environment: dict[str, str]
    workdir: str


def keep_origin(origin: Origin) -> None:
    """Keep the origin of a session for `origin_of`, in its runner, as long as this process lives."""
    import fcntl

    fd = os.memfd_create(_MEMORY, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "w", closefd=False) as file:
        json.dump(origin.as_dict(), file)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)


def origin_of(job: Job) -> Origin | None:
    """Return the origin of the session that holds the job, or of the session that this process runs in; None without
    one."""
    holder = (job.claimed_by or "").rpartition(":")[2]
    for pid in (holder, *_ancestors()):
        path = _memory_of(pid)
        if path is not None:
            with open(path) as file:
                return Origin(**json.load(file))
    return None


def is_inside_session() -> bool:
    """Return whether an agent called this process."""
    return MARKER in os.environ or any(_memory_of(pid) or _is_of_session(pid) for pid in _ancestors())


def calling_job() -> str | None:
    """Return the job in whose session this process runs, as its environment names it; None outside of a session."""
    job_id = os.environ.get("BATON_JOB_ID", "")
    return job_id if JOB_ID.fullmatch(job_id) else None


def refuse_inside_session(what: str) -> None:
    """Raise BatonError if an agent called this process: `what` is for people."""
    if is_inside_session():  # guard: inside-session
        raise BatonError(f"{what} is refused inside a session; ask the user to run this command")


def answerer_here(jobs: Jobs, target: Job) -> str:
    """Return who answers a request of this job from this process: the user, or an agent that an [[answerer]] in the
    user's rules names. Raise BatonError for other agents, and always for the agent's own job and the jobs below it."""
    if not is_inside_session():
        return jobs.user_here()
    own_id = calling_job()
    try:
        own = None if own_id is None else jobs.get_job(own_id)
    except JobNotFound:
        own = None
    if own is not None and not _is_held_here(jobs, own):
        own = None  # the environment names another job than that of this session
    if own is None:  # guard: answerer-unknown
        raise BatonError("an agent does not answer requests here: its own job is not known; ask the user to answer")
    above = [target.job_id, *_jobs_above(jobs, target)]
    if own.job_id in above or _is_held_here(jobs, target):  # guard: answer-for-itself
        raise BatonError(
            f"an agent does not answer for itself or for a job that it started ({target.job_id}); "
            "ask the user to answer"
        )
    from baton.jobs.rules import read_rules

    # Not with the environment of the agent, which could name other rules.
    origin = origin_of(own)
    book = None if origin is None else read_rules(origin.environment, jobs.warn)
    named = () if book is None else book.answerers
    is_named = any(each.agent == own.agent and each.label in (None, *own.labels) for each in named)
    if not is_named:  # guard: answerer-not-named
        raise BatonError(f"no [[answerer]] in your user's rules names {own.agent}; ask the user to answer")
    return f"{own.agent} in job {own.job_id}"


def _is_held_here(jobs: Jobs, job: Job) -> bool:
    """Return whether the job runs in the session that called this process."""
    host, *_, pid = (job.claimed_by or ":").split(":")  # HOST:PID or HOST:SESSION:PID
    return host == jobs.holder_here().partition(":")[0] and pid in _ancestors()


def _jobs_above(jobs: Jobs, job: Job) -> Iterator[str]:
    """Yield the job whose agent submitted this one, the job above that, and so on."""
    seen: set[str] = set()
    while job.parent is not None and job.parent not in seen:
        seen.add(job.parent)
        yield job.parent
        try:
            job = jobs.get_job(job.parent)
        except JobNotFound:
            return  # it was pruned


def _ancestors() -> Iterator[str]:
    """Yield this process, the one that started it, and so on. A process of an agent cannot leave this line: its runner
    adopts it when its parent ends."""
    try:
        this = pid = os.readlink("/proc/self")  # not os.getpid(): /proc may be that of another process namespace
    except OSError:
        return  # this system has no /proc
    missing = ""
    while pid != "0":
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = file.read().rpartition(b")")[2].split()[1].decode()
        except OSError:
            if pid == missing:
                return  # this system hides it from the user
            missing, pid = pid, this  # guard: ended-ancestor


def _memory_of(pid: str) -> str | None:
    """Return the path of the environment that this process keeps; None if it is not a runner of this user."""
    folder = f"/proc/{pid}/fd"
    if not pid.isdecimal() or not os.access(folder, os.R_OK | os.X_OK):
        return None
    paths = (os.path.join(folder, fd) for fd in os.listdir(folder))
    return next((path for path in paths if _target(path).startswith(f"/memfd:{_MEMORY}")), None)


def _is_of_session(pid: str) -> bool:
    """Return whether the process is a runner, which a process of another user namespace recognises by its command line
    alone, or a tmux server that baton started. What the server starts, an agent asked for; a person uses another
    terminal."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            return b"baton.sessions.runner" in command.read().split(b"\0")
    except OSError:
        return False


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # it was closed meanwhile
