"""Show a session on the user's terminal: run a tmux client with a terminal type and an encoding that it can use."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache

from baton.core.errors import UsageError
from baton.core.value import NoReturn, Value
from baton.sessions.tmux import Tmux

_MESSAGE_MS = "4000"
_OTHER_TYPE = "set the type of yours, such as TERM=xterm-256color; `baton session capture` prints what a session shows"
# People's terminals, over ssh on machines that do not know them. Each of these also obeys what is written for the types
# beside it, but does not know every key and colour then.
_STAND_INS = (
    (
        r"(?:xterm|alacritty|contour|foot|ghostty|gnome|iterm2?|kitty|konsole|mintty|rio|st|vte|wezterm)(?:[-+.].*)?",
        ("xterm-256color", "xterm"),
    ),
    (r"(?:screen|tmux)(?:[-+.].*)?", ("screen-256color", "screen")),
)
_USUAL = ("xterm-256color", "xterm", "vt100", "linux")


class Client(Value):
    """A tmux client that shows a session. `note` is what the user should know about how it is shown."""

    argv: list[str]
    environment: dict[str, str]
    note: str | None


def attach_command(tmux: Tmux, name: str, *, read_only: bool = False) -> list[str]:
    """Return the command of a tmux client that shows the session."""
    # -E: the variables of this client do not replace those of the session.
    argv = tmux.command("attach-session", "-E", *(["-r"] if read_only else []), "-t", f"={name}")
    # The C locale says nothing about the terminal, and today's terminals are UTF-8; Python takes it in the same way.
    return [argv[0], "-u", *argv[1:]] if locale_setting()[1] in ("", "C", "POSIX") else argv


def client_of(tmux: Tmux, name: str, *, read_only: bool = False) -> Client:
    """Return a client that shows the session on this terminal. UsageError if tmux cannot draw on it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
    notes = []
    given = environment.get("TERM", "")
    if (usable := usable_terminal(given)) != given:
        environment["TERM"] = usable
        notes.append(f"this machine does not know the terminal {given}; attach treats it as {usable}")
    variable, locale = locale_setting()
    if locale not in ("", "C", "POSIX") and not is_utf8(locale):
        setting = f"{variable}={locale} is not UTF-8"
        notes.append(f"{setting}: attach shows other characters as _; if the terminal is UTF-8, set {variable}=C.UTF-8")
    argv = attach_command(tmux, name, read_only=read_only)
    return Client(argv=argv, environment=environment, note="; ".join(notes) or None)


def attach(client: Client, message: str | None = None) -> NoReturn:
    """Replace this process by the client. It first shows this message of baton itself."""
    argv = client.argv
    if message is not None:
        argv = [*argv, ";", "display-message", "-d", _MESSAGE_MS, message.replace("#", "##")]
    os.execvpe(argv[0], argv, client.environment)  # noqa: S606  there is no shell in this


def run_attached(client: Client) -> str | None:
    """Run the client until the user leaves the session. Return why it failed; None if it did not."""
    done = subprocess.run(client.argv, env=client.environment, check=False, stderr=subprocess.PIPE)
    if not done.returncode:
        return None
    return done.stderr.decode(errors="replace").strip() or f"tmux ended with exit code {done.returncode}"


def locale_setting() -> tuple[str, str]:
    """Return the variable that decides about the encoding, and its value, "" if none is set: as tmux reads them."""
    given = ((name, os.environ.get(name, "")) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next((each for each in given if each[1]), ("LANG", ""))


def is_utf8(locale: str) -> bool:
    return "UTF-8" in locale.upper() or "UTF8" in locale.upper()


def usable_terminal(name: str) -> str:
    """Return the terminal type for a tmux client: the name, or if this machine does not know it, one that it knows and
    that the terminal obeys, too. UsageError if there is none."""
    if name in ("", "dumb", "unknown"):
        what = f"TERM is {name}, a terminal on which tmux cannot draw" if name else "TERM is not set"
        raise UsageError(f"{what}; {_OTHER_TYPE}")
    usable = _find_usable(name)
    if usable is None:
        raise UsageError(
            f"this machine does not know the terminal {name[:40]} (TERM), or tmux cannot draw on it; {_OTHER_TYPE}"
        )
    return usable


@cache  # curses looks for a terminal until it finds one, and then takes every name
def _find_usable(name: str) -> str | None:
    try:
        import curses
    except ImportError:
        return name  # a Python without curses: tmux decides

    def is_known(name: str) -> bool:
        try:
            curses.setupterm(name, 2)
        except (curses.error, ValueError):
            return False
        return True

    if is_known(name):
        return name if curses.tigetstr("clear") and curses.tigetstr("cup") else None
    stand_ins = next((types for pattern, types in _STAND_INS if re.fullmatch(pattern, name)), ())
    for each in stand_ins:
        if is_known(each):
            return each
    # A Python that knows none of these does not find the descriptions of this machine: tmux decides.
    return None if any(map(is_known, _USUAL)) else name
