"""Find out whether a process was started by an agent, and with which environment the agent's session was started.

A runner keeps the environment that it got from `baton submit` in a sealed file in its memory, which other processes of
the user open through /proc. An agent can change its own environment and folder, but not this copy.
"""

from __future__ import annotations

import json
import os

from baton.core.errors import BatonError
from baton.core.fields import JOB_ID
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.core.job import Job

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
