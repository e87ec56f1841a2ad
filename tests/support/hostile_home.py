"""Generate a folder whose home is hostile: everything that a clone, an archive or another user may put there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
from typing import TYPE_CHECKING

from baton.sessions.inventory import _MARK, _TABLES
from support.command import Baton
from support.every_verb import JOB, SESSION
from support.processes import processes_with
from support.waiting import poll

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "here"
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
NOBODY = 65534
SESSION_ID = "0" * 16


class HostileFolder:
    """A working folder, and beside it what its home would like to reach: a program that leaves a mark, a folder that
    must stay as it is, and a socket of another user."""

    def __init__(self, base) -> None:
        self.base = str(base)
        self.folder = os.path.join(self.base, "clone")
        self.home = os.path.join(self.folder, ".hermes")
        self.canary = os.path.join(self.base, "canary")
        self.precious = os.path.join(self.base, "precious")
        for folder in (self.folder, os.path.join(self.precious, "run"), os.path.join(self.base, "bin")):
            os.makedirs(folder)
        for name in ("file", "run/file", "go", "last-screen.txt"):
            with open(os.path.join(self.precious, name), "w") as file:
                file.write("precious\n")
        self.program = os.path.join(self.base, "bin", "evil")
        with open(self.program, "w") as file:
            file.write(f'#!/bin/sh\necho "$0 $@" >> {self.canary}\n')
        os.chmod(self.program, 0o755)
        self.own = tempfile.mkdtemp(prefix="baton-t-", dir="/tmp")  # the path of a socket must be short
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        os.makedirs(os.path.join(self.base, "s"))
        self.socket_path = os.path.join(self.base, "s", "t")
        self.socket = socket.socket(socket.AF_UNIX)
        here = os.getcwd()
        os.chdir(os.path.dirname(self.socket_path))  # the path of a socket must be short
        try:
            self.socket.bind("t")
        finally:
            os.chdir(here)
        self.socket.listen()
        if os.geteuid() == 0:
            os.chown(self.socket_path, NOBODY, NOBODY)
        else:
            os.chmod(os.path.dirname(self.socket_path), 0o777)
        for each in (self.listener, self.socket):
            each.setblocking(False)

    @property
    def env(self) -> dict[str, str]:
        path = f"{os.path.join(self.base, 'bin')}:{os.environ['PATH']}"
        return {
            "PATH": path, "HOME": os.path.join(self.base, "user"), "LANG": "C.UTF-8", "BATON_HOST": HOST,
            "BATON_TMUX_SOCKET": os.path.join(self.own, "t"), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip

    @property
    def state(self) -> str:
        return os.path.join(self.base, "user", ".local", "state", "baton")

    def fill(self) -> None:
        """Make a home as baton makes it, with a job, a log and a session, in the folder itself."""
        os.makedirs(os.path.join(self.base, "user"), exist_ok=True)
        maker = Baton(os.path.join(self.base, "user"), BATON_HOST=HOST, MQTT_BROKER="127.0.0.1", MQTT_PORT="1")
        job = maker("register", "true", "--agent", "shell").text
        shutil.copytree(os.path.join(maker.folder, ".hermes"), self.home)
        shutil.rmtree(os.path.join(maker.folder, ".local"))
        os.unlink(os.path.join(maker.folder, ".hermes"))
        os.unlink(os.path.join(self.home, "home.json"))
        logs = os.path.join(self.home, "delegate_job_logs")
        os.rename(os.path.join(logs, job), os.path.join(logs, JOB))
        with self.database("jobs/registry.db") as raw:
            raw.execute(
                "UPDATE jobs SET job_id = ?, topic_prefix = ?, status = 'running', attempt = 1, claimed_by = 'here:x:1',"
                " validate = 'evil validate', agent = 'evil', lease_expires_at = 1", (JOB, f"python/mqtt/jobs/{JOB}"),
            )  # fmt: skip
        with self.database("agent-sessions.db") as raw:
            raw.executescript(f"{_TABLES} PRAGMA application_id = {_MARK}")
        self.add_session(SESSION, state="stopped", agent="shell")

    def database(self, path: str):
        return _Closing(os.path.join(self.home, path))

    def add_session(self, name: str, **changes: object) -> None:
        now = "2026-07-01T00:00:00Z"
        record = {
            "name": name, "session_id": SESSION_ID, "state": "running", "agent": "shell", "mode": "interactive",
            "workdir": self.folder, "yolo": False, "created_at": now, "updated_at": now, "host": HOST, "job_id": JOB,
            "agent_name": f"HOUMAO-{name}", "agent_id": "a", "generation_id": "g", "socket": os.path.join(self.own, "t"), "made_for": JOB,
        } | changes  # fmt: skip
        with self.database("agent-sessions.db") as raw:
            columns = (record["name"], record["session_id"], record["state"], json.dumps(record))
            raw.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)", columns)

    def was_reached(self) -> list[str]:
        """Return what of the outside was reached: nothing may be."""
        reached = [name for name, each in (("port", self.listener), ("socket", self.socket)) if _was_called(each)]
        if os.path.exists(self.canary):
            with open(self.canary) as file:
                reached.append(f"program: {file.read()}")
        names = sorted(os.path.relpath(os.path.join(at, each), self.precious) for at, _, all_ in os.walk(self.precious)
                       for each in all_)  # fmt: skip
        if names != ["file", "go", "last-screen.txt", "run/file"]:
            reached.append(f"precious: {names}")
        return reached

    def close(self) -> None:
        """End what a command has started, and remove what is not below the folder of the test."""
        self.listener.close()
        self.socket.close()
        subprocess.run(["tmux", "-S", os.path.join(self.own, "t"), "kill-server"], capture_output=True, check=False)
        user = os.path.join(self.base, "user")
        poll(lambda: not processes_with("HOME", user), 5)
        for process in processes_with("HOME", user):
            os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(self.own)


class _Closing:
    """A database that is committed, checkpointed and closed at the end of a `with` block."""

    def __init__(self, path: str) -> None:
        self._raw = sqlite3.connect(path)

    def __enter__(self) -> sqlite3.Connection:
        return self._raw

    def __exit__(self, *_: object) -> None:
        self._raw.commit()
        self._raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._raw.close()


def _was_called(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


# -- what is hostile: each changes a home that is filled ---------------------------------------------------------------


def _settings(at: HostileFolder) -> None:
    with open(os.path.join(at.home, "baton.toml"), "w") as file:
        file.write(
            f'agent = "evil"\nregistry = "postgresql://127.0.0.1:{at.port}/x"\nmqtt_host = "127.0.0.1"\n'
            f'mqtt_port = {at.port}\ndirectory = "postgresql://127.0.0.1:{at.port}/x"\ntmux_socket = "{at.socket_path}"\n'
            f'logs_dir = "{at.precious}"\nregistry_dir = "{at.precious}"\n'
            f'[agents.evil]\ninteractive = ["{at.program}"]\nheadless = ["{at.program}"]\n'
        )


def _trigger(at: HostileFolder) -> None:
    with at.database("jobs/registry.db") as raw:
        raw.execute("CREATE TRIGGER t AFTER UPDATE ON jobs BEGIN UPDATE jobs SET validate = 'evil trigger'; END")
        raw.execute("CREATE TRIGGER u AFTER INSERT ON jobs BEGIN UPDATE jobs SET validate = 'evil trigger'; END")


def _views(at: HostileFolder) -> None:
    for path, table in (("jobs/registry.db", "jobs"), ("agent-sessions.db", "sessions")):
        with at.database(path) as raw:
            columns = ", ".join(f"x AS {row[1]}" for row in raw.execute(f"PRAGMA table_info({table})"))
            raw.execute(f"ALTER TABLE {table} RENAME TO aside")
            raw.execute(f"CREATE VIEW {table} AS {ENDLESS} {columns} FROM n")


def _pipes(at: HostileFolder) -> None:
    for path in (f"delegate_job_logs/{JOB}/events.ndjson", f"delegate_job_logs/{JOB}/meta.json", "agent-sessions.yaml",
                 "monitor.lock", "agent-sessions.db", f"{JOB}.events.log", "jobs/.batch"):  # fmt: skip
        _replace(at, path, os.mkfifo)


def _pipe_registry(at: HostileFolder) -> None:
    for path in ("jobs/registry.db", "jobs/.lock", "baton.toml"):
        _replace(at, path, os.mkfifo)


def _links(at: HostileFolder) -> None:
    for path in (f"delegate_job_logs/{JOB}", f"sessions/{SESSION_ID}", "agent-sessions.yaml", "jobs/registry.db-wal"):
        _replace(at, path, lambda place: os.symlink(at.precious, place))


def _link_folders(at: HostileFolder) -> None:
    for path in ("jobs", "sessions", "delegate_job_logs"):
        _replace(at, path, lambda place: os.symlink(at.precious, place))


def _sockets(at: HostileFolder) -> None:
    at.add_session(SESSION, socket=at.socket_path, pane_id="%0", pane_pid=os.getpid(), pane_started=1)


def _ids(at: HostileFolder) -> None:
    path = os.path.relpath(at.precious, os.path.join(at.home, "sessions"))
    at.add_session(SESSION, session_id=path, state="terminated", ended_at="2020-01-01T00:00:00Z")
    at.add_session("option", session_id="1" * 16, state="stopped", conversation_id="--dangerously-skip-permissions")
    with at.database("agent-sessions.db") as raw:
        raw.execute("INSERT INTO sessions VALUES ('empty', 'x', 'running', '{}')")
    with at.database("jobs/registry.db") as raw:
        raw.execute("UPDATE jobs SET job_id = '../../../precious'")


def _journal(at: HostileFolder) -> None:
    with open(os.path.join(at.home, "jobs", "registry.db-journal"), "wb") as file:
        file.write(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0" * 504)


def _moved(at: HostileFolder) -> None:
    with open(os.path.join(at.home, "jobs", ".moved"), "w") as file:
        file.write(f"postgresql://127.0.0.1:{at.port}/x")


def _foreign(at: HostileFolder) -> None:
    for path in ("jobs/registry.db", f"delegate_job_logs/{JOB}/events.ndjson", "agent-sessions.db"):
        os.chown(os.path.join(at.home, path), NOBODY, NOBODY)


def _replace(at: HostileFolder, path: str, make: Callable[[str], None]) -> None:
    place = os.path.join(at.home, path)
    if os.path.lexists(place):
        shutil.rmtree(place) if os.path.isdir(place) else os.unlink(place)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    make(place)


KINDS: dict[str, Callable[[HostileFolder], None]] = {
    "settings": _settings, "trigger": _trigger, "views": _views, "pipes": _pipes, "pipe as registry": _pipe_registry,
    "links": _links, "links as folders": _link_folders, "sockets": _sockets, "ids": _ids, "journal": _journal,
    "moved": _moved, "foreign": _foreign,
}  # fmt: skip
