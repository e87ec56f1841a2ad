"""Run opencode's server for one session, and find its address.

The server chooses its port and prints it, so that no other program can take the port in between. Its password is random
and only in the environment.
"""

from __future__ import annotations

import os
import re
import time

from baton.channels.http_client import HOST, Server
from baton.channels.server_process import ServerProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

USER = "opencode"
_ADDRESS = re.compile(rb"listening on http://127\.0\.0\.1:(\d{1,5})\s", re.ASCII)
_LOOK_SEC = 0.02
_CONNECTIONS = "/proc/net/tcp"
_ESTABLISHED = "01"


class OpencodeProcess(ServerProcess):
    def __init__(self, argv: list[str], *, workdir: str, environment: Mapping[str, str], log: str) -> None:
        self._password = os.urandom(24).hex()
        self.server: Server | None = None
        own = {**environment, **self.variables(environment)}
        super().__init__("opencode's server", argv, workdir=workdir, environment=own, log=log)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables with which opencode's programs reach the server, past any proxy."""
        found = {"OPENCODE_SERVER_PASSWORD": self._password, "OPENCODE_SERVER_USERNAME": USER}
        for name in ("NO_PROXY", "no_proxy"):
            others = [each.strip() for each in environment.get(name, "").split(",")]
            found[name] = ",".join(dict.fromkeys([*filter(None, others), HOST]))
        return found

    def wait_until_it_listens(self, deadline: float) -> str | None:
        """Wait until the server listens. Return why it does not, if it does not until then."""
        while time.monotonic() < deadline:
            is_alive = self.is_alive()
            found = _ADDRESS.search(self.printed())
            if found is not None:
                self.server = Server(int(found[1]), USER, self._password, self.is_alive)
                return None
            if not is_alive:
                return self.why_ended()
            time.sleep(_LOOK_SEC)
        return "opencode's server did not begin to listen in time"

    def count_clients(self) -> int | None:
        """Return how many connections the server has; None where the system does not say it."""
        assert self.server is not None
        try:
            with open(_CONNECTIONS, encoding="ascii") as file:
                connections = [line.split()[2:4] for line in file]
        except OSError:
            return None
        port = f":{self.server.port:04X}"
        return sum(server.endswith(port) and state == _ESTABLISHED for server, state in connections)
