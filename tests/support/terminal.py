"""A person at a terminal: a command in a pseudo-terminal, typed into and looked at."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Terminal:
    """Leaving the `with` block ends the command and closes the terminal."""

    def __init__(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], rows: int = 24) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
        self.process = subprocess.Popen(
            argv, cwd=cwd, env={"TERM": "xterm"} | dict(env), stdin=slave, stdout=slave, stderr=slave,
            preexec_fn=self._own_terminal,
        )  # fmt: skip
        os.close(slave)
        self.shown = b""

    @staticmethod
    def _own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        os.close(self._master)

    def type(self, *keys: str) -> None:
        """Each with a pause before it: what comes faster than a person types is a paste to tmux."""
        for each in keys:
            time.sleep(0.05)  # the pace of a person
            os.write(self._master, each.encode())

    def write(self, text: str) -> None:
        """Type without a pause."""
        os.write(self._master, text.encode())

    def settle(self, seconds: float = 0.0) -> None:
        """Read what comes for so long, and until nothing has come for a moment; forget it."""
        deadline = time.monotonic() + seconds
        while self._read(0.1) or time.monotonic() < deadline:
            pass
        self.shown = b""

    def see(self, text: str, seconds: float = 20.0) -> None:
        """Waits until the text has been shown, since it was last looked for."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} was not shown: {self.shown[-2000:]!r}"
            self._read(0.1)
        self.shown = self.shown.partition(text.encode())[2]

    def end(self, seconds: float = 20.0) -> int:
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it has not ended: {self.shown[-2000:]!r}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self._master, 65536)
        except OSError:
            return False  # the other side is closed
        self.shown += piece
        return bool(piece)
