"""Identify, find and end processes. A pid alone is not enough: the kernel reuses it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection

from baton.core.clock import SECOND_NS
from baton.core.value import Value
from baton.origin import MARKER
from baton.storage.files import SYSTEM_FAILED

_STAT_BYTES = 4096  # a line of numbers
_KERNEL_THREAD = 0x00200000
_EXEC_SEC = 2.0
_MAX_ENVIRONMENT_BYTES = 8 * 1024 * 1024  # Linux allows 6 MiB of arguments and variables
# What baton starts for all sessions, without the marker: a command in one session may be the first that needs it.
_SERVICES = frozenset({"nats-server", "tmux: server"})
_SET_CHILD_SUBREAPER = 36  # from <linux/prctl.h>
# In the environment of an agent and of everything it starts, beside MARKER: the id of the home.
HOME_MARKER = "BATON_HOME_ID"
# An interactive shell ignores SIGTERM and ends on SIGHUP.
_STEPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
_HANG_UP_SEC = 0.5
_CALL_NS = SECOND_NS
_GIVE_UP_SEC = 5.0


class ProcessId(Value):
    """The identity of a process: the kernel reuses a pid, but never with the same start time.

    `started` is in clock ticks since boot. As text it is `pid/started`."""

    pid: int
    started: int

    @classmethod
    def current(cls) -> ProcessId:
        """Return the identity of this process."""
        return cls(pid=os.getpid(), started=started_at(os.getpid()) or 0)

    @classmethod
    def parse(cls, text: str | None) -> ProcessId | None:
        """Return the process that `str` named; None for any other text."""
        pid, _, started = (text or "").partition("/")
        return cls(pid=int(pid), started=int(started)) if pid.isdecimal() and started.isdecimal() else None

    def __str__(self) -> str:
        return f"{self.pid}/{self.started}"

    def is_alive(self) -> bool:
        """Return whether this very process runs, not another one with its pid."""
        return started_at(self.pid) == self.started  # guard: process-start-time


class Process(Value):
    """A process that was found; `command` is the name of its program, for messages."""

    id: ProcessId
    command: str

    @property
    def pid(self) -> int:
        return self.id.pid


def started_at(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None when it has ended, also as a zombie. OSError when the
    system failed, such as with too many open files: the process may live."""
    try:
        fields = _stat(str(pid))
    except OSError as error:
        if error.errno in SYSTEM_FAILED:
            raise
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process, and none has continued it."""
    try:
        return _stat(str(pid))[0] == b"T"
    except OSError:
        return False


def marked_processes(session_id: str, runner: int | None = None, *, home: str, home_id: str) -> list[Process]:
    """Return every process whose environment names the session of this home, the descendants of those and of the
    runner, except this one and the runner. A process whose parent has ended is a child of the runner, whatever its
    environment. A copy of the home has the same sessions, and another id: the processes belong to the original.

    The runner itself calls other programs, such as tmux, that end at once: of its children without the name of the
    session, only those that live longer are returned."""
    wanted = f"{MARKER}={session_id}".encode()
    found: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        parent, variables = _parent_and_variables(name)
        children.setdefault(parent, []).append(int(name))
        if wanted in variables and _is_of_home(variables, home, home_id):  # guard: process-of-this-home
            found[int(name)] = started_at(int(name)) or 0
    found.pop(os.getpid(), None)
    waiting = [*found, *([runner] if runner is not None else [])]
    while waiting:
        parent = waiting.pop()
        for child in children.get(parent, ()):
            if child not in found and child not in (os.getpid(), runner) and _name(str(child)) not in _SERVICES:
                started = started_at(child) or 0
                if parent == runner and not _outlives_a_call(child, started):
                    continue
                found[child] = started
                waiting.append(child)
    return [
        Process(id=ProcessId(pid=pid, started=started), command=_command(pid))
        for pid, started in found.items()
        if started
    ]


def _outlives_a_call(pid: int, started: int) -> bool:
    """Wait until a process has lived as long as a call of another program may take; return whether it still lives."""
    looked_ns = time.monotonic_ns()
    while started_at(pid) == started:
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started * SECOND_NS // os.sysconf("SC_CLK_TCK")
        if max(age_ns, time.monotonic_ns() - looked_ns) > _CALL_NS:
            return True
        time.sleep(0.005)
    return False


def processes_with(variable: str, value: str) -> list[Process]:
    """Return every process of this user whose environment has this variable with this value, except this one."""
    wanted = os.fsencode(f"{variable}={value}")
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        started = started_at(int(name))
        if started is not None and int(name) != os.getpid() and wanted in _parent_and_variables(name)[1]:
            found.append(Process(id=ProcessId(pid=int(name), started=started), command=_command(int(name))))
    return found


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can leave the tree of this process."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):  # guard: adopt-orphans
        raise OSError(ctypes.get_errno(), "the runner cannot adopt the processes of its agent")


def ended_children() -> set[int]:
    """Return the children of this process that have ended and that it has not waited for."""
    try:
        children = _read(f"self/task/{os.getpid()}", "children").split()
    except FileNotFoundError:
        return set()  # this kernel does not list them: they stay until this process ends
    return {int(pid) for pid in children if started_at(int(pid)) is None}


def unproven_processes(workdir: str, since: int, parents: Collection[int], *, orphans: bool) -> list[Process]:
    """Return the processes of this user that may be an agent's, without a mark that proves it: they run in its work
    folder, began after its session, and are children of `parents`; with `orphans`, also of process 1 or systemd."""
    base = os.path.join(os.path.realpath(workdir), "")
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        started = started_at(int(name))
        if started is not None and started >= since and _may_be_in(name, base, parents, orphans=orphans):
            found.append(Process(id=ProcessId(pid=int(name), started=started), command=_command(int(name))))
    return found


def _may_be_in(pid: str, base: str, parents: Collection[int], *, orphans: bool) -> bool:
    try:
        parent = _stat(pid)[1].decode()
        is_child = int(parent) in parents or (orphans and (parent == "1" or _name(parent) == "systemd"))
        is_own = os.stat(f"/proc/{pid}").st_uid == os.getuid()
        if not is_child or not is_own or not os.path.join(os.readlink(f"/proc/{pid}/cwd"), "").startswith(base):
            return False
        is_marked = any(each.startswith(f"{MARKER}=".encode()) for each in _environment(pid).split(b"\0"))
        is_of_baton = _name(pid) in _SERVICES or b"baton.sessions.runner" in _read(pid, "cmdline")
    except OSError:
        return False  # it has just ended
    return not is_marked and not is_of_baton


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None when the process has ended."""
    try:
        return int(_stat(str(pid))[1])
    except OSError:
        return None


def _is_of_home(variables: list[bytes], home: str, home_id: str) -> bool:
    """Return whether these variables name the home: by its id, or by its path where 0.1.0 started the agent."""
    mark = f"{HOME_MARKER}=".encode()
    ids = [each.removeprefix(mark) for each in variables if each.startswith(mark)]
    return home_id.encode() in ids if ids else os.fsencode(f"BATON_HOME={home}") in variables


def command_line(process: ProcessId) -> list[str]:
    """Return the words of the command line of a process; none if it has ended."""
    try:
        words = [os.fsdecode(word) for word in _read(str(process.pid), "cmdline").split(b"\0")]
    except OSError as error:
        if error.errno in SYSTEM_FAILED:
            raise
        return []
    return words if process.is_alive() else []


def _parent_and_variables(pid: str) -> tuple[int, list[bytes]]:
    """Return the parent and the environment; no environment for a process that has ended or is another user's."""
    parent = 0
    try:
        parent = int(_stat(pid)[1])
        return parent, _environment(pid).split(b"\0")
    except OSError:
        return parent, []


def _stat(pid: str) -> list[bytes]:
    """Return the fields after the name of the program, which may contain spaces and brackets."""
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _STAT_BYTES).rpartition(b")")[2].split()
    finally:
        os.close(fd)


def _environment(pid: str) -> bytes:
    """Return the environment of a process. Each exec hides it for a moment, so an empty one is read again until the
    kernel says that there is none."""
    deadline = time.monotonic() + _EXEC_SEC
    while True:
        content = _read(pid, "environ")
        if content or _has_no_environment(pid) or time.monotonic() > deadline:
            return content
        time.sleep(0.0005)


def _read(pid: str, name: str) -> bytes:
    """Return a file of a process, read by one system call: when the process calls exec between two of them, the
    second finds the end of the file."""
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read(_MAX_ENVIRONMENT_BYTES)


def _has_no_environment(pid: str) -> bool:
    """Return whether this is a zombie, a thread of the kernel or a program that was started without variables."""
    fields = _stat(pid)
    state, flags, end_code, env_start, env_end = (fields[index] for index in (0, 6, 24, 47, 48))
    # In the middle of exec the environment looks empty, too. The kernel sets end_code after env_end.
    is_empty = end_code != b"0" and env_start == env_end
    return is_empty or state in (b"Z", b"X") or bool(int(flags) & _KERNEL_THREAD)


def end_processes(find: Callable[[], list[Process]], *, grace_sec: float) -> list[Process]:
    """End every process that `find` returns, also those that appear meanwhile, and return them all.

    Each gets SIGTERM, then SIGHUP, and SIGKILL after the grace period."""
    ended: dict[int, Process] = {}
    last_step: dict[int, int] = {}
    from baton.core.awake_clock import AwakeClock

    clock = AwakeClock()
    began_ns = clock.monotonic_ns()

    def remaining() -> list[Process]:
        """Return also those that `find` no longer finds because their parent has ended."""
        found = {process.pid: process for process in find()}
        return [*found.values(), *(each for each in ended.values() if each.pid not in found and each.id.is_alive())]

    # Look twice: a process that is being forked while its parent ends may be in neither listing.
    while left := remaining() or _again(remaining):
        step = _step((clock.monotonic_ns() - began_ns) / SECOND_NS, grace_sec)
        if step is None:
            break  # even SIGKILL does not end it
        for process in left:
            ended[process.pid] = process
            if last_step.get(process.pid) != step:
                last_step[process.pid] = step
                _signal(process.id, _STEPS[step])
        time.sleep(0.02)
    return list(ended.values())


def _again(find: Callable[[], list[Process]]) -> list[Process]:
    time.sleep(0.01)
    return find()


def _step(passed_sec: float, grace_sec: float) -> int | None:
    if passed_sec >= grace_sec + _GIVE_UP_SEC:
        return None
    if passed_sec >= grace_sec:
        return 2
    return 1 if passed_sec >= _HANG_UP_SEC else 0


def _signal(process: ProcessId, number: signal.Signals) -> None:
    try:
        if process.is_alive():
            os.kill(process.pid, number)
            os.kill(process.pid, signal.SIGCONT)  # a stopped process handles the signal only after this
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended, or belongs to another user


def _name(pid: str) -> str:
    try:
        return _read(pid, "comm").decode(errors="replace").rstrip("\n")
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        return os.path.basename(_read(str(pid), "cmdline").split(b"\0")[0].decode(errors="replace")) or "?"
    except OSError:
        return "?"
