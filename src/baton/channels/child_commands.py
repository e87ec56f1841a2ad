"""Look at processes below another one: which they are, and whether a command runs there."""

from __future__ import annotations

import os
import time

_MOST = 500  # processes that are looked at
_BYTES = 256 * 1024  # of a command line


def seconds_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def runs_below(pid: int, command: str, since: float) -> bool:
    """Return whether a shell below this process runs this command, and began after `since` (`seconds_since_boot`). A
    program whose arguments only quote the command, such as an agent that was given it in a prompt, does not count."""
    wanted = command.strip().encode(errors="replace")
    waiting, seen = [pid], 0
    while waiting and seen < _MOST:
        children = children_of(waiting.pop())
        seen += len(children)
        waiting += children
        for child in children:
            words = _words(child)
            if wanted and len(words) > 2 and words[1] == b"-c" and wanted in words[2] and _began(child) >= since:
                return True
    return False


def children_of(pid: int) -> list[int]:
    """Return the processes that this one started; none if it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except (OSError, ValueError):
        return found  # it has ended, or the system does not say
    return found


def _words(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(_BYTES).split(b"\0")
    except OSError:
        return []


def _began(pid: int) -> float:
    """Return when a process began, in seconds since the system did; rounded up."""
    try:
        return (int(stat_fields(pid)[19]) + 1) / os.sysconf("SC_CLK_TCK")
    except (ValueError, IndexError):
        return 0.0


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name of the program; none if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
