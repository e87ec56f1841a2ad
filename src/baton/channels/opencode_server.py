"""Run opencode's server for one session, and find its address.

The server chooses its port and prints it, so that no other program can take the port in between. Its password is random
and only in the environment.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import time

from baton.channels.http_client import HOST, Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

USER = "opencode"
_ADDRESS = re.compile(rb"listening on http://127\.0\.0\.1:(\d{1,5})\s", re.ASCII)
_LOOK_SEC = 0.02
_TERM_SEC = 3.0
_LOG_BYTES = 64 * 1024
_LINES = 3  # of the end of the log, in a reason


class ServerProcess:
    """The program of the server. `log` is the file with what it prints."""

    def __init__(self, argv: list[str], *, workdir: str, environment: Mapping[str, str], log: str) -> None:
        self._log = log
        self._password = secrets.token_urlsafe(32)
        self.server: Server | None = None
        with open(log, "wb", opener=_open_private) as file:
            self._child = subprocess.Popen(
                argv,
                cwd=workdir,
                env={**environment, **self.variables(environment)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,  # keys of the pane are not for it
            )

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables with which opencode's programs reach the server, past any proxy."""
        found = {"OPENCODE_SERVER_PASSWORD": self._password, "OPENCODE_SERVER_USERNAME": USER}
        for name in ("NO_PROXY", "no_proxy"):
            others = [each.strip() for each in environment.get(name, "").split(",")]
            found[name] = ",".join(dict.fromkeys([*filter(None, others), HOST]))
        return found

    def wait(self, deadline: float) -> str | None:
        """Wait until the server listens. Return why it does not, if it does not until then."""
        while time.monotonic() < deadline:
            is_alive = self.is_alive()
            found = _ADDRESS.search(self._printed())
            if found is not None:
                self.server = Server(int(found[1]), USER, self._password)
                return None
            if not is_alive:
                return self.why_ended()
            time.sleep(_LOOK_SEC)
        return "opencode's server did not begin to listen in time"

    def is_alive(self) -> bool:
        return self._child.poll() is None

    def why_ended(self) -> str:
        """Return how the server ended, with its last words."""
        code = self._child.poll()
        how = f"ended with exit code {code}" if code is None or code >= 0 else f"was ended by signal {-code}"
        lines = [line.strip() for line in self._printed().decode(errors="replace").splitlines() if line.strip()]
        said = "; ".join(line for line in lines[-_LINES:] if "listening on" not in line)
        return f"opencode's server {how}" + (f": {said}" if said else "")

    def _printed(self) -> bytes:
        try:
            with open(self._log, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
                return file.read(_LOG_BYTES)
        except OSError:
            return b""

    def end(self) -> None:
        """End the server, and wait for it."""
        if self.is_alive():
            self._child.terminate()
        try:
            self._child.wait(_TERM_SEC)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
