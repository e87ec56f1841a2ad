"""Find the session that this process runs in, and the environment in which a person started it.

A runner keeps what it got from `baton submit` in a sealed file in its memory, which other processes of the user open
through /proc. An agent can change its own environment and folder, but not this copy. Inside a session, baton obeys the
environment in it in place of the agent's: `obeyed_environment` is the only way to the variables that decide anything.
"""

from __future__ import annotations

import json
import os

from baton.config import state_folder
from baton.core.errors import BatonError
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# In the environment of an agent and of everything it starts; the value is the id of the session.
MARKER = "BATON_SESSION_ID"
_MEMORY = "baton-runner"
_MODULE = b"baton.sessions.runner"
# What an agent may choose itself: where a job is kept, and how its own terminal shows text.
_HOME, _REGISTRY = "BATON_HOME", "BATON_REGISTRY"
_OF_THE_HOME = (_REGISTRY, "DELEGATE_JOB_LOGS_DIR")
_SHOWN_BY = ("TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR")
_OF_THE_JOB = ("BATON_JOB_ID", "BATON_ATTEMPT")
_OF_THE_STATE = ("BATON_STATE_DIR", "XDG_STATE_HOME", "HOME")


class Origin(Value):
    """With which environment, and in which folder, a session was started. `job_id` and `attempt` are its present job;
    `above` the jobs and sessions whose agents led to it, the first one first. `has_budget`: its job or one above it has
    a budget. `knows_job` is false for a runner of 0.2.0, which does not say its job."""

    environment: dict[str, str]
    workdir: str
    job_id: str | None = None
    attempt: int = 0
    above: tuple[str, ...] = ()
    has_budget: bool = False
    knows_job: bool = False

    def chain(self) -> tuple[str, ...]:
        """Return `above` of a job that an agent of this session starts: a session without a job stands for itself."""
        return (*self.above, self.job_id or self.environment.get(MARKER, ""))


_kept: dict[int, int] = {}  # this process: the descriptor of its origin


def keep_origin(origin: Origin) -> None:
    """Keep the origin of a session, in its runner, until it changes or this process ends."""
    import fcntl

    fd = os.memfd_create(_MEMORY, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "w", closefd=False) as file:
        json.dump(origin.as_dict(), file)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    before = _kept.setdefault(os.getpid(), fd)
    if before != fd:
        os.dup2(fd, before, inheritable=False)  # at once: a reader finds the old one or the new one
        os.close(fd)


def read_origin(pid: str) -> Origin | None:
    """Return the origin that a process keeps; None if it keeps none, or belongs to another user or user namespace."""
    path = _memory_of(pid)
    if path is None:
        return None
    try:
        with open(path) as file:
            kept = json.load(file)
    except (OSError, ValueError):
        return None  # it has just ended
    return Origin(**kept | {"above": tuple(kept.get("above", ()))})


def caller() -> Origin | None:
    """Return the origin of the session that this process runs in. None outside of a session, and inside of one whose
    runner cannot be read, for example in another user namespace.

    Of several runners above this process, the uppermost counts: an agent can start the others."""
    pids = _runners_here()
    return read_origin(pids[-1]) if pids else None


def is_inside_session() -> bool:
    """Return whether an agent called this process."""
    return MARKER in os.environ or any(_is_of_session(pid) for pid in ancestors())


def obeyed_environment(home: str | None = None) -> Mapping[str, str]:
    """Return the variables that baton obeys: outside of a session those of this process, inside of one those of its
    runner. An agent chooses where a job is kept: by BATON_HOME and BATON_REGISTRY, or by `home`, an option.

    Raise BatonError if the agent names another folder for the state, and no home: the job would be in the user's."""
    found = caller()
    if found is None:  # guard: agents-environment
        return os.environ
    variables = {name: value for name, value in found.environment.items() if name not in _SHOWN_BY}
    given = {name: os.environ[name] for name in (*_SHOWN_BY, _HOME, _REGISTRY) if os.environ.get(name)}
    named = home or given.get(_HOME)
    if named is None and _names_other_state(variables):  # guard: state-of-an-agent
        raise BatonError(
            "inside a session the state folder is that of the user, whatever HOME, XDG_STATE_HOME and BATON_STATE_DIR "
            "say; to keep jobs apart, name a home: --home DIR or BATON_HOME=DIR"
        )
    if named is not None and not _is_same(named, variables.get(_HOME)):
        if given.get(_REGISTRY) == variables.get(_REGISTRY):
            given.pop(_REGISTRY, None)  # the agent has it from its session: it belongs to the other home
        variables = {name: value for name, value in variables.items() if name not in _OF_THE_HOME}
    if found.knows_job:
        job = {} if found.job_id is None else dict(zip(_OF_THE_JOB, (found.job_id, str(found.attempt)), strict=True))
    else:
        job = {name: os.environ[name] for name in _OF_THE_JOB if name in os.environ}
    return variables | given | job


def adopt_environment(home: str | None) -> None:
    """Give this process the variables that baton obeys, for those that Python, libraries and programs read. Only a
    process of baton itself may call it."""
    variables = obeyed_environment(home)
    if variables is not os.environ:
        os.environ.clear()
        os.environ.update(variables)


def ancestors(start: str | None = None) -> Iterator[str]:
    """Yield a process (default: this one), the one that started it, and so on. A process of an agent cannot leave this
    line: its runner adopts it when its parent ends."""
    try:
        this = pid = start or os.readlink("/proc/self")  # /proc may be that of another process namespace
    except OSError:
        return  # this system has no /proc
    missing = ""
    while pid != "0":
        yield pid
        try:
            pid = fields_of(pid)[1].decode()
        except OSError:
            if pid == missing:
                return  # this system hides it from the user
            missing, pid = pid, this  # guard: ended-ancestor


def runners_above(pid: str | None = None) -> list[str]:
    """Return the runners above a process (default: this one), the uppermost last."""
    return list(dict.fromkeys(each for each in ancestors(pid) if _is_of_session(each) and not _is_tmux(each)))


def is_runner(pid: str) -> bool:
    """Return whether the process is seen here, and is a runner."""
    return pid.isdecimal() and _is_of_session(pid) and not _is_tmux(pid)


def runs_in_background_of_tmux() -> bool:
    """Return whether a tmux server started this process without a terminal, as `run-shell` does. It starts what a
    person types on the terminal of a pane. A process that lost its parent is still in the server's session, unless it
    began one of its own."""
    below = None
    for pid in ancestors():
        if below is not None and _is_tmux(pid):
            try:
                return fields_of(below)[4] == b"0"
            except OSError:
                return False  # it has just ended
        below = pid
    try:
        session, terminal = fields_of("self")[3:5]
    except OSError:
        return False  # this system has no /proc
    return terminal == b"0" and _is_tmux(session.decode())  # guard: orphan-of-tmux


def fields_of(pid: str) -> list[bytes]:
    """Return the fields of `stat` after the name of the program, which may contain spaces and brackets."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


_found: dict[int, list[str]] = {}


def _runners_here() -> list[str]:
    """Return the runners above this process. They stay the same as long as it lives."""
    pid = os.getpid()
    if pid not in _found:
        _found[pid] = runners_above()
    return _found[pid]


def _names_other_state(variables: Mapping[str, str]) -> bool:
    """Return whether the environment of this process names a folder for the state that is not that of the runner."""
    if not any(os.environ.get(name) for name in _OF_THE_STATE):
        return False
    return not _is_same(state_folder(os.environ), state_folder(variables))


def _is_same(path: str, other: str | None) -> bool:
    """Return whether both are the same folder; a name without a slash is not a path."""
    return other is not None and (path == other or ("/" in path and os.path.realpath(path) == os.path.realpath(other)))


def _memory_of(pid: str) -> str | None:
    """Return the path of the origin that this process keeps; None if it is not a runner of this user."""
    folder = f"/proc/{pid}/fd"
    if not pid.isdecimal() or not os.access(folder, os.R_OK | os.X_OK):
        return None
    try:
        paths = [os.path.join(folder, fd) for fd in os.listdir(folder)]
    except OSError:
        return None  # it has just ended
    return next((path for path in paths if _target(path).startswith(f"/memfd:{_MEMORY}")), None)


def _is_of_session(pid: str) -> bool:
    """Return whether the process is a runner, which a process of another user namespace recognises by its command line
    alone, or a tmux server that baton started. What the server starts, an agent asked for; a person uses another
    terminal."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            return _MODULE in command.read().split(b"\0")
    except OSError:
        return False


def _is_tmux(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/comm", "rb") as name:
            return name.read().startswith(b"tmux: server")
    except OSError:
        return False


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # it was closed meanwhile
