"""Every tmux call there is: argv, never a shell string; exact targets; a server of our own unless told otherwise."""

from __future__ import annotations

import os
import subprocess

from baton.errors import TmuxUnavailable
from baton.model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

DEFAULT_SOCKET = "baton"
_TIMEOUT_SEC: Final = 10
_PANE_FIELDS: Final = ("pane_id", "pane_pid", "pane_dead", "session_name")


class NoServer(TmuxUnavailable):
    """Nothing answers at that socket."""


class Pane(Value):
    __slots__ = ("dead", "pane_id", "pid", "session_name")

    pane_id: str
    pid: int
    dead: bool
    session_name: str


class Tmux:
    """One tmux server. `socket` is a name (as for -L), or a path (as for -S) when it begins with a slash."""

    def __init__(self, socket: str = DEFAULT_SOCKET) -> None:
        self.socket = socket

    def command(self, *arguments: str) -> list[str]:
        return ["tmux", "-S" if self.socket.startswith("/") else "-L", self.socket, *arguments]

    def run(self, *arguments: str, stdin: bytes | None = None) -> str:
        try:
            done = subprocess.run(
                self.command(*arguments),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                timeout=_TIMEOUT_SEC,
                check=False,
                env=os.environ | {"LC_ALL": "C.UTF-8"},
            )
        except FileNotFoundError:
            raise TmuxUnavailable("tmux is not installed; install it with your package manager") from None
        except subprocess.TimeoutExpired:
            raise TmuxUnavailable(f"tmux does not answer at socket {self.socket} within {_TIMEOUT_SEC} s") from None
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip()
            # "no server running on ..." and "error connecting to ...", by version and state of the socket
            if reason.startswith(("no server", "error connecting")):
                raise NoServer(f"tmux has no server at socket {self.socket}: {reason}")
            raise TmuxUnavailable(f"tmux {arguments[0]} failed: {reason or f'exit {done.returncode}'}")
        return done.stdout.decode(errors="replace")

    def panes(self) -> list[Pane]:
        """All panes of all sessions, in one call; none when there is no server to ask."""
        # The name comes last: it may contain spaces.
        listed = self.run("list-panes", "-a", "-F", " ".join(f"#{{{field}}}" for field in _PANE_FIELDS))
        found = []
        for line in listed.splitlines():
            pane_id, pid, dead, name = line.split(" ", len(_PANE_FIELDS) - 1)
            found.append(Pane(pane_id=pane_id, pid=int(pid), dead=dead == "1", session_name=name))
        return found

    def socket_path(self) -> str:
        """Where the server listens: the same for whoever asks, unlike a name."""
        return self.run("display-message", "-p", "#{socket_path}").strip()
