"""Call tmux: with argument lists, never a shell string, and with exact targets."""

import os
import re
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from baton.core.errors import InvalidValue, NameInUse, SessionGone, TmuxUnavailable, UsageError, describe_shortage
from baton.core.value import Value
from baton.origin import obeyed_environment
from baton.own_files import why_replaceable
from baton.sessions.session import SESSION_NAME, TMUX_SOCKET, Session, State

_OLDEST = (3, 2)  # new-session -e, and arguments that are not joined for a shell
_TIMEOUT_SEC = 10
_TRIES = 5
_SHOWN_SEC = 1.0
_WIDTH, _HEIGHT = 200, 50
_PANE_FIELDS = "#{pane_id} #{pane_pid} #{pane_dead} #{session_name}"  # the name comes last: it may contain spaces
_OWN_SERVER = "@baton"  # an option of tmux servers that baton started
_NO_SUCH_FLAG = (b"command paste-buffer: unknown flag -S", b"usage: paste-buffer")
_LOW = "check the path, and the limits of this shell (ulimit -a)"
_PASTE_END = "\x1b[201~"  # tmux would type what follows it as keys
# tmux would type the name of a key that it does not know.
_KEY = re.compile(
    r"(?:[CMS]-){0,3}(?:[A-Za-z0-9]|Enter|Escape|Space|Tab|BTab|BSpace|Up|Down|Left|Right|Home|End|PageUp|PageDown"
    r"|PPage|NPage|PgUp|PgDn|IC|DC|Insert|Delete|F(?:[1-9]|1[0-2]))",
    re.ASCII,
)
# A tmux server inherits nothing else: every session on it can read the environment of the server.
_SERVER_ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMUX_TMPDIR", "USER")


class NoServer(TmuxUnavailable):
    """No server answers at the socket."""


class NoSocket(NoServer):
    """The socket does not exist, was moved, or is hidden from this process."""


class SocketRefused(NoServer):
    """This process may not use the socket, so its server is unknown."""


def check_session_name(name: str) -> str:
    """Return a valid name of a session; raise InvalidValue."""
    if SESSION_NAME.fullmatch(name):
        return name
    shown = repr(name[:40]) + ("..." if len(name) > 40 else "")
    raise InvalidValue("session name", f"must be 1 to 64 of A-Z a-z 0-9 _ -, begin with a letter or digit; not {shown}")


def check_keys(keys: Sequence[str]) -> None:
    """Raise UsageError for a name that is not a key of tmux."""
    for key in keys:
        if not _KEY.fullmatch(key):
            known = "Enter, Escape, Tab, Space, BSpace, Up, Down, Left, Right, Home, End, PageUp, PageDown, F1 to F12"
            raise UsageError(f"there is no key {key[:40]!r}; keys are letters, digits, {known}, also as C-c or M-x")


class Pane(Value):
    pane_id: str
    pid: int  # 0: tmux names no process, as newer versions do for every dead pane
    dead: bool  # no process runs in it
    session_name: str


class Tmux:
    """One tmux server. `socket` is a path (-S) when it begins with a slash, otherwise a name (-L)."""

    def __init__(self, socket: str) -> None:
        self.socket = socket

    def command(self, *arguments: str) -> list[str]:
        check_socket(self.socket)
        # The user's tmux.conf is for sessions of the user.
        server = ["-S" if self.socket.startswith("/") else "-L", self.socket]
        return ["tmux", "-f", os.devnull, *server, *map(_one_argument, arguments)]

    def run(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run a tmux command and return its output. Raise TmuxUnavailable, NameInUse or SessionGone."""
        return self._run_all(arguments, stdin=stdin)

    def _run_all(self, *commands: Sequence[str], stdin: bytes = b"") -> str:
        """Run commands by one call of tmux, until one fails; the last one names the error."""
        done = self._call(self._command_of_all(*commands), stdin)
        if done.returncode:
            self._fail(commands[-1][0], done.stderr.decode(errors="replace").strip() or _silent_end(done.returncode))
        return done.stdout.decode(errors="replace")

    def _command_of_all(self, *commands: Sequence[str]) -> list[str]:
        first, *others = commands
        return [*self.command(*first), *(word for each in others for word in (";", *map(_one_argument, each)))]

    def _call(self, argv: list[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        given = obeyed_environment()
        env = {name: given[name] for name in _SERVER_ENVIRONMENT if name in given} | {"LC_ALL": "C.UTF-8"}
        try:
            return subprocess.run(argv, input=stdin, capture_output=True, timeout=_TIMEOUT_SEC, check=False, env=env)
        except FileNotFoundError:
            raise TmuxUnavailable("tmux is not installed; install it with your package manager") from None
        except OSError as error:
            raise TmuxUnavailable(f"tmux cannot be started: {describe_shortage(error) or error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise TmuxUnavailable(f"tmux does not answer at socket {self.socket} within {_TIMEOUT_SEC} s") from None

    def _fail(self, verb: str, reason: str) -> NoReturn:
        # Versions of tmux use different words.
        if reason.startswith(("no server", "no current target", "error connecting", "server exited", "lost server")):
            kind = NoServer if not reason.startswith("error connecting") else SocketRefused
            kind = NoSocket if reason.endswith("(No such file or directory)") else kind
            raise kind(f"tmux has no server at socket {self.socket}: {reason}")
        if reason.startswith("duplicate session"):
            raise NameInUse(
                f"tmux at socket {self.socket} has a session of that name already, perhaps from another folder; "
                f"choose another name ({reason})"
            )
        if reason.startswith(("can't find", "no such", "target pane has exited")):
            raise SessionGone(f"tmux at socket {self.socket}: {reason}")
        raise TmuxUnavailable(f"tmux {verb} failed: {reason}")

    def check_version(self) -> str:
        """Return the version. Raise TmuxUnavailable when tmux is not installed, cannot run, or is too old."""
        done = self._call(["tmux", "-V"])
        printed = (done.stdout + done.stderr).decode(errors="replace").strip()
        version = printed.partition("\n")[0]
        found = re.search(r"(\d+)\.(\d+)", version)
        runs = not done.returncode and version.startswith("tmux ")
        if runs and (found is None or (int(found[1]), int(found[2])) >= _OLDEST):
            return version
        from shutil import which

        path = which("tmux")
        if runs:
            wanted = ".".join(map(str, _OLDEST))
            raise TmuxUnavailable(f"{version} at {path} is too old: baton needs tmux {wanted} or newer")
        why = version or (f"exit code {done.returncode}" if done.returncode else "`tmux -V` prints nothing")
        raise TmuxUnavailable(f"{path} cannot run: {why}; install tmux with your package manager")

    def panes(self) -> list[Pane]:
        """Return the panes of all sessions. Raise NoServer when no server runs."""
        listed = self.run("list-panes", "-a", "-F", _PANE_FIELDS)
        found = []
        for line in listed.removesuffix("\n").split("\n") if listed else ():
            pane_id, pid_or_nothing, dead, name = line.split(" ", 3)
            pid = int(pid_or_nothing or 0)
            found.append(Pane(pane_id=pane_id, pid=pid, dead=dead == "1" or not pid, session_name=name))
        return found

    def socket_path(self) -> str:
        """Return the path of the server's socket. Unlike a name it is valid for every process."""
        return self.run("display-message", "-p", "#{socket_path}").strip()

    def capture(self, pane_id: str, lines: int | None = None) -> str:
        """Return what the pane shows, and up to `lines` lines that have scrolled out of it."""
        history = [] if lines is None else ["-S", f"-{lines}"]
        return self.run("capture-pane", "-p", "-J", "-t", pane_id, *history).expandtabs()  # newer servers keep tabs

    def capture_of(self, pane_id: str, pid: int | None) -> str | None:
        """Return what the pane shows, by one call of tmux; None if another process has the pane."""
        shown = self._run_all(
            ["display-message", "-p", "-t", pane_id, "#{pane_pid}"], ["capture-pane", "-p", "-J", "-t", pane_id]
        )
        owner, _, screen = shown.partition("\n")
        return screen.expandtabs() if owner == str(pid) else None

    def changed_at(self, pane_id: str) -> int:
        """Return when the window of the pane last changed, in seconds since 1970."""
        return int(self.run("display-message", "-p", "-t", pane_id, "#{window_activity}").strip() or 0)

    def is_watched(self, pane_id: str) -> bool:
        """Return whether a client shows the session of the pane."""
        return self.run("display-message", "-p", "-t", pane_id, "#{session_attached}").strip() not in ("", "0")

    def copy_output(self, pane_id: str, fd: int) -> None:
        """Copy what the pane shows from now on to a pipe of this process, of which `fd` is the end to write to."""
        self.run("pipe-pane", "-t", pane_id, f"cd / && exec cat >/proc/{os.getpid()}/fd/{fd}")

    def new_session(
        self, name: str, argv: Sequence[str], *, workdir: str, environment: Mapping[str, str] | None = None
    ) -> Pane:
        """Start a program in a new session, and return its pane. Raise NameInUse when the name is taken. Every process
        of the user may read these variables."""
        check_session_name(name)
        if len(argv) < 2:
            raise ValueError("tmux passes a single argument to a shell")
        command = [
            "new-session", "-d", "-P", "-F", "#{pane_id} #{pane_pid}", "-s", name,
            *(word for each in (environment or {}).items() for word in ("-e", "=".join(each))),
            # guard: tmux-format-characters
            "-x", str(_WIDTH), "-y", str(_HEIGHT), "-c", workdir.replace("#", "##"), "--", *argv,
        ]  # fmt: skip
        for tries_left in reversed(range(_TRIES)):
            try:
                answer = self.run(*command).split()
                if len(answer) != 2:
                    raise TmuxUnavailable(f"tmux cannot create a session at socket {self.socket}; {_LOW}")
                pane_id, pid = answer
                break
            except NoServer:
                # The server was ending with its last session: the next try starts a new one.
                if not tries_left:
                    raise
                time.sleep(0.05)
        return Pane(pane_id=pane_id, pid=int(pid), dead=False, session_name=name)

    def mark(self, name: str, variables: dict[str, str]) -> None:
        """Give these variables to every further program that tmux starts in the session, for example `run-shell`. If
        baton started the server, also to the sessions that a client with these variables creates."""
        pieces = [["set-environment", "-t", f"={name}", *each] for each in variables.items()]
        passed_on = [f"set -g update-environment[{90 + index}] {each}" for index, each in enumerate(variables)]
        is_first = "#{==:#{session_id},$0}"  # of this server
        pieces.append(
            ["if-shell", "-F", "-t", f"={name}:", is_first, f"set -s {_OWN_SERVER} 1 ; {' ; '.join(passed_on)}"]
        )
        self._run_all(*pieces)

    def marked(self, name: str, variable: str) -> str | None:
        """Return the value that `mark` gave a variable in this session; None if there is none."""
        try:
            found, _, value = self.run("show-environment", "-t", f"={name}", variable).rstrip("\n").partition("=")
        except TmuxUnavailable:
            return None
        return value if found == variable else None

    def own_server(self) -> int | None:
        """Return the process of the server, if baton started it; None if not, or if there is none."""
        try:
            pid, own = self.run("display-message", "-p", f"#{{pid}} #{{{_OWN_SERVER}}}").rstrip("\n").split(" ", 1)
        except TmuxUnavailable:
            return None
        return int(pid) if own else None

    def paste(self, pane_id: str, text: str, *, enter: bool) -> None:
        """Type a text as one paste, whatever it contains, and then press Enter."""
        if _PASTE_END in text:  # guard: paste-end-sequence
            raise InvalidValue("text", "contains an escape sequence that would end the paste early")
        if text:
            before = self._times_shown(pane_id, text) if enter else 0
            self._paste_buffer(pane_id, text.encode())
            # Wait until the text is shown: a program that reads both at once may apply Enter to an empty line.
            deadline = time.monotonic() + _SHOWN_SEC
            while enter and time.monotonic() < deadline and self._times_shown(pane_id, text) <= before:
                time.sleep(0.02)
        if enter:
            self.press(pane_id, ["Enter"])

    def _paste_buffer(self, pane_id: str, content: bytes) -> None:
        """Write these bytes to the pane, unchanged, by a buffer that is gone afterwards. Raise SessionGone if the pane
        is dead: tmux 3.3 crashes when it pastes into one."""
        buffer = f"baton-{os.urandom(4).hex()}"
        load = ["load-buffer", "-b", buffer, "-"]
        paste = ["if-shell", "-F", "-t", pane_id, "#{pane_dead}", "display-message -p dead"]
        how = f"paste-buffer -p -r -d -b {buffer} -t {pane_id}"
        # Newer servers write control characters as ^C, unless -S is given, which older ones refuse.
        done = self._call(self._command_of_all(load, [*paste, f"{how} -S"]), content)
        if done.returncode and done.stderr.startswith(_NO_SUCH_FLAG):
            done = self._call(self.command(*paste, how))
        if done.returncode or done.stdout:
            self._call(self.command("delete-buffer", "-b", buffer))
            self._fail("paste-buffer", done.stderr.decode(errors="replace").strip() or "no such process in the pane")

    def _times_shown(self, pane_id: str, text: str) -> int:
        """Return how often the end of a text is on the screen, however the lines are broken."""
        return "".join(self.capture(pane_id).split()).count("".join(text.split())[-20:])

    def press(self, pane_id: str, keys: Sequence[str]) -> None:
        """Press keys by their tmux names. Use it for dialogs: they ignore pasted text."""
        check_keys(keys)
        # While a person scrolls back, keys would go to that mode of tmux and not to the program.
        send = [["copy-mode", "-q", "-t", pane_id], ["send-keys", "-t", pane_id, "--", *keys]]
        done = self._call(self._command_of_all(*send))
        if done.stderr.startswith(b"client is read-only"):
            # Newer servers take this call for one of a person who looks on, unless it names a client.
            send[1][1:1] = ["-c", "no-client"]
            done = self._call(self._command_of_all(*send))
        if done.returncode:
            self._fail("send-keys", done.stderr.decode(errors="replace").strip())

    def kill_session(self, name: str) -> None:
        """End exactly this session, if it exists."""
        try:
            self.run("kill-session", "-t", f"={name}")  # guard: exact-tmux-target
        except (NoServer, SessionGone):
            pass  # it has ended


def _silent_end(code: int) -> str:
    how = f"signal {-code} ended it" if code < 0 else f"it ended with exit code {code}"
    return f"{how} and said nothing; {_LOW}"


def check_socket(socket: str) -> None:
    """Refuse a socket that is not the user's own: what answers there could show and run anything."""
    if not TMUX_SOCKET.fullmatch(socket):
        raise TmuxUnavailable(f"tmux socket {socket[:80]!r} is neither a plain name nor an absolute path")
    if not socket.startswith("/"):
        return  # tmux keeps it in a folder that belongs to the user, and checks that
    try:
        found = os.lstat(socket)
    except OSError:
        return  # tmux says that there is no server, or creates the socket
    is_own = stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()
    why = why_replaceable(socket) if is_own else "is not a socket of this user"
    if why is not None:  # guard: tmux-socket
        raise TmuxUnavailable(f"tmux socket {socket} is not used: it {why}")


class TmuxSnapshot:
    """The panes of several tmux servers. Each server is asked once, when it is first needed."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[str, Pane] | TmuxUnavailable] = {}

    def panes(self, socket: str) -> dict[str, Pane]:
        """Return the panes of a server by their ids. Raise TmuxUnavailable, each time, when it did not answer."""
        if socket not in self._answers:
            try:
                self._answers[socket] = {pane.pane_id: pane for pane in Tmux(socket).panes()}
            except TmuxUnavailable as error:
                self._answers[socket] = error
        answer = self._answers[socket]
        if isinstance(answer, TmuxUnavailable):
            raise answer
        return answer

    def pane_of(self, session: Session) -> Pane | None:
        """Return the live pane of a session; None when it is gone. Raise TmuxUnavailable when that is unknown."""
        try:
            pane = self.panes(session.socket).get(session.pane_id or "")
        except NoServer:
            return None
        return pane if pane is not None and pane.pid == session.pane_pid and not pane.dead else None

    def is_gone(self, session: Session) -> bool:
        """Return whether the pane of a session is gone; False also when its server does not answer."""
        try:
            return self.pane_of(session) is None
        except TmuxUnavailable:
            return False


def live_pane(session: Session) -> tuple[Tmux, str]:
    """Return the tmux server of a session that runs, and its pane; SessionGone when it does not run."""
    name = session.name
    if session.state is not State.RUNNING:
        raise SessionGone(f"session {name!r} is {session.state}; `baton session resume {name}` starts it again")
    pane = TmuxSnapshot().pane_of(session)
    if pane is None:
        raise SessionGone(f"session {name!r} is gone from tmux; `baton monitor --once` records how it ended")
    return Tmux(session.socket), pane.pane_id


def _one_argument(argument: str) -> str:
    """Escape a semicolon at the end of an argument: tmux would read it as the end of the command."""
    return argument[:-1] + r"\;" if argument.endswith(";") else argument
