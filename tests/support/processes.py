"""Find the programs that tests have started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from baton.sessions.processes import Process, ProcessId, started_at
from support.waiting import wait_until

if TYPE_CHECKING:
    from support.command import Baton


def processes_with(name: str, value: str) -> list[Process]:
    """Return the processes other than this one whose environment has that variable: with that value, or with a path
    below it. `command` is the whole command line."""
    wanted, below = f"{name}={value}".encode(), f"{name}={value}/".encode()
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                has_it = any(each == wanted or each.startswith(below) for each in file.read().split(b"\0"))
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if has_it and int(pid) != os.getpid() and (started := started_at(int(pid))) is not None:
            found.append(Process(id=ProcessId(pid=int(pid), started=started), command=command))
    return found


def end_broker(baton: Baton) -> None:
    """Stop the local broker of a user once no runner is left: one that still sends an event would start it again."""
    home = baton.env["HOME"]
    wait_until(lambda: not any("sessions.runner" in each.command for each in processes_with("HOME", home)))
    baton("broker", "down", code=None)
