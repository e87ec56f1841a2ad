"""Every tmux call there is: argv, never a shell string; exact targets; a server of our own unless told otherwise."""

from __future__ import annotations

import os
import re
import subprocess
import time

from baton.core.errors import InvalidValue, NameInUse, SessionGone, TmuxUnavailable
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final, NoReturn

_OLDEST: Final = (3, 2)  # new-session -e, and arguments that are not joined for a shell
_TIMEOUT_SEC: Final = 10
_TRIES: Final = 5
_SHOWN_SEC: Final = 1.0
_WIDTH, _HEIGHT = 200, 50
_PANE_FIELDS: Final = ("pane_id", "pane_pid", "pane_dead", "window_activity", "session_name")
_PASTE_END: Final = "\x1b[201~"  # what follows it would be keys, not text
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_KEY: Final = re.compile(r"[A-Za-z0-9-]{1,16}", re.ASCII)
# All that a server of ours inherits: what it is given stays in its environment for everybody to read.
_SERVER_ENVIRONMENT: Final = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMUX_TMPDIR", "USER")


class NoServer(TmuxUnavailable):
    """Nothing answers at that socket."""


class NoSocket(NoServer):
    """There is no such socket to be seen from here: nobody has made it, or it was moved, or hidden from us."""


class SocketRefused(NoServer):
    """The socket is there, but not for us: who is behind it cannot be told."""


def check_session_name(name: str) -> str:
    if _NAME.fullmatch(name):
        return name
    shown = repr(name[:40]) + ("..." if len(name) > 40 else "")
    raise InvalidValue("session name", f"must be 1 to 64 of A-Z a-z 0-9 _ -, begin with a letter or digit; not {shown}")


class Pane(Value):
    """`active_at` is when something was last written to its window, in seconds since 1970."""

    pane_id: str
    pid: int
    dead: bool
    active_at: int
    session_name: str


class Tmux:
    """One tmux server. `socket` is a name (as for -L), or a path (as for -S) when it begins with a slash."""

    def __init__(self, socket: str) -> None:
        self.socket = socket

    def command(self, *arguments: str) -> list[str]:
        # Whatever the user's tmux.conf says about sessions is about those of a person.
        server = ["-S" if self.socket.startswith("/") else "-L", self.socket]
        return ["tmux", "-f", os.devnull, *server, *map(_one_argument, arguments)]

    def run(self, *arguments: str, stdin: bytes | None = None) -> str:
        try:
            done = subprocess.run(
                self.command(*arguments),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                timeout=_TIMEOUT_SEC,
                check=False,
                env=_environment(),
            )
        except FileNotFoundError:
            raise TmuxUnavailable("tmux is not installed; install it with your package manager") from None
        except subprocess.TimeoutExpired:
            raise TmuxUnavailable(f"tmux does not answer at socket {self.socket} within {_TIMEOUT_SEC} s") from None
        if done.returncode:
            self._fail(arguments[0], done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}")
        return done.stdout.decode(errors="replace")

    def _fail(self, verb: str, reason: str) -> NoReturn:
        # In the words of several versions of tmux, and by the state of the socket.
        if reason.startswith(("no server", "no current target", "error connecting", "server exited", "lost server")):
            kind = NoServer if not reason.startswith("error connecting") else SocketRefused
            kind = NoSocket if reason.endswith("(No such file or directory)") else kind
            raise kind(f"tmux has no server at socket {self.socket}: {reason}")
        if reason.startswith("duplicate session"):
            raise NameInUse(
                f"tmux at socket {self.socket} has a session of that name already, perhaps from another folder; "
                f"choose another ({reason})"
            )
        if reason.startswith(("can't find", "no such")):
            raise SessionGone(f"tmux at socket {self.socket}: {reason}")
        raise TmuxUnavailable(f"tmux {verb} failed: {reason}")

    # -- looking ---------------------------------------------------------------------------------------------

    def check_version(self) -> None:
        """TmuxUnavailable when there is none, or one that cannot do what we need."""
        try:
            told = subprocess.run(["tmux", "-V"], capture_output=True, text=True, timeout=_TIMEOUT_SEC, check=False)
        except FileNotFoundError:
            raise TmuxUnavailable("tmux is not installed; install it with your package manager") from None
        found = re.search(r"(\d+)\.(\d+)", told.stdout)
        if found is not None and (int(found[1]), int(found[2])) < _OLDEST:
            wanted = ".".join(map(str, _OLDEST))
            raise TmuxUnavailable(f"{told.stdout.strip()} is too old: baton needs tmux {wanted} or newer")

    def panes(self) -> list[Pane]:
        """All panes of all sessions, in one call. NoServer when there is none to ask."""
        # The name comes last: it may contain spaces.
        listed = self.run("list-panes", "-a", "-F", " ".join(f"#{{{field}}}" for field in _PANE_FIELDS))
        found = []
        for line in listed.removesuffix("\n").split("\n") if listed else ():
            pane_id, pid, dead, active_at, name = line.split(" ", len(_PANE_FIELDS) - 1)
            found.append(
                Pane(pane_id=pane_id, pid=int(pid), dead=dead == "1", active_at=int(active_at or 0), session_name=name)
            )
        return found

    def socket_path(self) -> str:
        """Where the server listens: the same for whoever asks, unlike a name."""
        return self.run("display-message", "-p", "#{socket_path}").strip()

    def capture(self, pane_id: str, lines: int | None = None) -> str:
        """What the pane shows; `lines` more from above its first line."""
        history = [] if lines is None else ["-S", f"-{lines}"]
        return self.run("capture-pane", "-p", "-J", "-t", pane_id, *history)

    # -- doing -----------------------------------------------------------------------------------------------

    def new_session(self, name: str, argv: Sequence[str], *, workdir: str) -> Pane:
        """Starts a program in a session of its own, detached. NameInUse when the name is taken: of two that try at
        once, one gets it."""
        check_session_name(name)
        if len(argv) < 2:
            raise ValueError("tmux hands a single argument to a shell")
        command = [
            "new-session", "-d", "-P", "-F", "#{pane_id} #{pane_pid}", "-s", name,
            # guard: tmux-format-characters
            "-x", str(_WIDTH), "-y", str(_HEIGHT), "-c", workdir.replace("#", "##"), "--", *argv,
        ]  # fmt: skip
        for tries_left in reversed(range(_TRIES)):
            try:
                told = self.run(*command).split()
                if len(told) != 2:
                    raise TmuxUnavailable(
                        f"tmux cannot make a session at socket {self.socket}; is that a place it can be?"
                    )
                pane_id, pid = told
                break
            except NoServer:
                # The server was just ending with its last session: the next try starts another.
                if not tries_left:
                    raise
                time.sleep(0.05)
        return Pane(pane_id=pane_id, pid=int(pid), dead=False, active_at=0, session_name=name)

    def paste(self, pane_id: str, text: str, *, enter: bool) -> None:
        """Types a text, whatever is in it, as one piece; the Enter is a key of its own."""
        if _PASTE_END in text:  # guard: paste-end-sequence
            raise InvalidValue("text", "contains the escape sequence that would end the paste in the middle")
        if text:
            before = self._times_shown(pane_id, text) if enter else 0
            buffer = f"baton-{os.urandom(4).hex()}"
            self.run("load-buffer", "-b", buffer, "-", stdin=text.encode())
            self.run("paste-buffer", "-p", "-r", "-d", "-b", buffer, "-t", pane_id)
            # A program that reads both at once may take the Enter for one on a line that is still empty.
            deadline = time.monotonic() + _SHOWN_SEC
            while enter and time.monotonic() < deadline and self._times_shown(pane_id, text) <= before:
                time.sleep(0.02)
        if enter:
            self.run("send-keys", "-t", pane_id, "Enter")

    def _times_shown(self, pane_id: str, text: str) -> int:
        """How often the end of a text is on the screen, however its lines are broken there."""
        return "".join(self.capture(pane_id).split()).count("".join(text.split())[-20:])

    def press(self, pane_id: str, keys: Sequence[str]) -> None:
        """Presses keys by their tmux names. What a dialog waits for is a key: it takes no pasted text."""
        for key in keys:
            if not _KEY.fullmatch(key):
                raise InvalidValue(
                    "key", f"must be a key as tmux names it, such as 1, y, Enter, Escape or C-c; not {key!r}"
                )
        self.run("send-keys", "-t", pane_id, "--", *keys)

    def kill_session(self, name: str) -> None:
        """Ends exactly that session; one that is gone already is fine."""
        try:
            self.run("kill-session", "-t", f"={name}")  # guard: exact-tmux-target
        except (NoServer, SessionGone):
            pass

    def attach(self, name: str, *, read_only: bool = False) -> NoReturn:
        """Becomes a tmux that shows the session."""
        argv = self.command("attach-session", *(["-r"] if read_only else []), "-t", f"={name}")
        environment = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
        os.execvpe(argv[0], argv, environment)  # noqa: S606  there is no shell in this


def _one_argument(argument: str) -> str:
    """tmux takes a semicolon at the end of an argument for the end of its command."""
    return argument[:-1] + r"\;" if argument.endswith(";") else argument


def _environment() -> dict[str, str]:
    inherited = {name: os.environ[name] for name in _SERVER_ENVIRONMENT if name in os.environ}
    return inherited | {"LC_ALL": "C.UTF-8"}
