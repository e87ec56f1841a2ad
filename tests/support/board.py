"""The terminal board as a person has it: the installed command in a pane of tmux, driven by keys, looked at as a screen."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Self

from support.command import BATON
from support.tmux import TmuxServer
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping


class BoardTerminal:
    """Leaving the `with` block ends the board and its tmux server."""

    def __init__(
        self, folder, env: Mapping[str, str], *, width: int = 80, height: int = 24, command=(BATON, "board")
    ) -> None:
        self._tmux = TmuxServer()
        environment = {"TERM": "tmux-256color"} | dict(env)
        self._argv = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command]
        self._folder = str(folder)
        # The pane stays when the board ends: what it left on the screen can be looked at.
        self._tmux(
            "new-session", "-d", "-s", "person", "-x", str(width), "-y", str(height), "-c", self._folder, "sleep", "600"
        )
        self._tmux("set-option", "-g", "remain-on-exit", "on")
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux.remove()

    def start(self) -> None:
        self._tmux("respawn-pane", "-k", "-t", "person", "-c", self._folder, *self._argv)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait_until_it_ended()

    def wait_until_it_ended(self) -> None:
        wait_until(lambda: self._tmux("display-message", "-p", "-t", "person", "#{pane_dead}") == "1")

    @property
    def pid(self) -> int:
        return int(self._tmux("display-message", "-p", "-t", "person", "#{pane_pid}"))

    def title(self) -> str:
        return self._tmux("display-message", "-p", "-t", "person", "#{pane_title}")

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-t", "person", "-x", str(width), "-y", str(height))

    def press(self, *keys: str) -> None:
        for key in keys:
            self._tmux("send-keys", "-t", "person", key)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-t", "person", "-l", text)

    def lines(self, *, colours: bool = False) -> list[str]:
        """Return the lines of the screen; with `colours`, with escape sequences and the spaces at their ends."""
        shown = self._tmux("capture-pane", "-p", *(["-e", "-N"] if colours else []), "-t", "person")
        return shown.split("\n")

    def sees(self, *texts: str, seconds: float = 60.0) -> list[str]:
        """Wait until all these texts are on the screen; return its lines."""

        def found() -> list[str]:
            lines = self.lines()
            return lines if all(any(text in line for line in lines) for text in texts) else []

        try:
            return wait_until(found, f"for {texts}", seconds)
        except AssertionError:
            raise AssertionError(f"{texts} are not on the screen:\n" + "\n".join(self.lines())) from None

    def sees_no(self, text: str, seconds: float = 60.0) -> None:
        """Wait until this text is not on the screen."""
        wait_until(lambda: not any(text in line for line in self.lines()), f"for no {text}", seconds)
