"""Run the server of an agent for one session."""

from __future__ import annotations

import os
import subprocess

from baton.core.result import before_backtrace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_TERM_SEC = 3.0
_LOG_BYTES = 64 * 1024
_LINES = 3  # of the end of the log, in a reason


class ServerProcess:
    """The program of a server. `log` is the file with what it prints."""

    def __init__(self, name: str, argv: list[str], *, workdir: str, environment: Mapping[str, str], log: str) -> None:
        self._name, self._log = name, log
        with open(log, "wb", opener=_open_private) as file:
            self._child = subprocess.Popen(
                argv,
                cwd=workdir,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,  # keys of the pane are not for it
            )

    def is_alive(self) -> bool:
        return self._child.poll() is None

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the server, up to so many seconds. Return its exit code; None while it lives."""
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def why_ended(self) -> str:
        """Return how the server ended; with its last words, if it ended by itself."""
        code = self._child.poll()
        if code is not None and code < 0:
            return f"{self._name} was ended by signal {-code}"
        printed = before_backtrace(self.printed().decode(errors="replace"))
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        said = "; ".join(line for line in lines[-_LINES:] if "listening on" not in line)
        return f"{self._name} ended with exit code {code}" + (f": {said}" if said else "")

    def printed(self) -> bytes:
        """Return the end of what it printed."""
        try:
            with open(self._log, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
                return file.read(_LOG_BYTES)
        except OSError:
            return b""

    def end(self) -> None:
        """End the server, and wait for it. The runner ends what is left of its tools."""
        if self.is_alive():
            self._child.terminate()
        if self.wait(_TERM_SEC) is None:
            self._child.kill()
            self._child.wait()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
