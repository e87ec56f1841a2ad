"""A real PostgreSQL of the tests' own: in a temporary folder, on a socket in it, stopped at the end."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING

import psycopg

from support.waiting import poll

if TYPE_CHECKING:
    from collections.abc import Sequence


def _bin_dir() -> str:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda path: int(path.split("/")[4]))
    if found:
        return os.path.dirname(found[-1])
    initdb = shutil.which("initdb")
    if initdb is None:
        raise RuntimeError("PostgreSQL is not installed: run `make test`, which installs it")
    return os.path.dirname(os.path.realpath(initdb))


class PostgresServer:
    """PostgreSQL refuses to run as root, so root runs it as the user `postgres`."""

    def __init__(self, *, address: str = "", prefix: Sequence[str] = ()) -> None:
        """`address`: also reachable there, by everybody; `prefix` runs it as who it should
        be, in another network for example."""
        self._address = address
        self._prefix = list(prefix)
        self._bin = _bin_dir()
        self.folder = tempfile.mkdtemp(prefix="baton-pg-", dir="/tmp")
        self._as_user = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._data = os.path.join(self.folder, "data")
        self._process: subprocess.Popen[bytes] | None = None
        self._log = open(os.path.join(self.folder, "log"), "a+b")  # noqa: SIM115  closed in remove()
        self._schemas = 0
        subprocess.run(
            [f"{self._bin}/initdb", "-D", self._data, "-U", "baton", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._as_user,
        )
        with open(os.path.join(self._data, "pg_hba.conf"), "a") as file:
            file.write("host all all samenet trust\n")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://baton@/postgres?host={self.folder}"

    def new_url(self) -> str:
        """A url with a schema that nobody used before."""
        self._schemas += 1
        return f"{self.url}&schema=test_{os.getpid()}_{self._schemas}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *self._prefix,
                f"{self._bin}/postgres",
                "-D",
                self._data,
                "-k",
                self.folder,
                "-c",
                f"listen_addresses={self._address}",
                "-c",
                "max_connections=100",
                "-c",
                "shared_buffers=32MB",
            ],
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            cwd=self.folder,
            **({} if self._prefix else self._as_user),
        )
        if not poll(lambda: self._answers() or self._process.poll() is not None, 30) or not self._answers():
            self._log.seek(0)
            raise RuntimeError("PostgreSQL did not start: " + self._log.read()[-2000:].decode())

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, how: int = signal.SIGINT) -> None:
        """SIGINT: fast shutdown; SIGQUIT: immediate, as after a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def remove(self) -> None:
        self.stop()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
