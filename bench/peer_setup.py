"""What `bench/peers.py` measures: the programs, each in an environment of its own, and the servers that some of them
need. Whatever cannot be set up raises LeftOut with the error."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from table import ROOT, SMALLEST

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE = os.path.join(ROOT, "build", "peers")
QUEUES = os.path.join(ROOT, "bench", "queues")
INSTALL_SEC = 900


class LeftOut(Exception):
    """A program cannot be measured; the message is its error."""


class Program(NamedTuple):
    name: str
    packages: tuple[str, ...]  # what pip installs; the first is the program
    module: str = ""  # in bench/queues; empty: it is no queue
    store: str = ""  # sqlite, redis or postgresql

    @property
    def environment(self) -> str:
        if SMALLEST:
            return os.path.dirname(os.path.dirname(sys.executable))
        return os.path.join(CACHE, self.name.replace(" ", "-").strip("()").replace("(", ""))

    def path(self, command: str) -> str:
        return os.path.join(self.environment, "bin", command)


BATON = Program("baton (SQLite)", (ROOT,), "on_baton", "sqlite")
CAO = Program("CLI Agent Orchestrator", ("cli-agent-orchestrator==2.5.4",))
PROGRAMS = (
    BATON,
    Program("baton (PostgreSQL)", (f"{ROOT}[postgres]",), "on_baton", "postgresql"),
    Program("huey (SQLite)", ("huey==3.5.4",), "on_huey", "sqlite"),
    Program("huey (Redis)", ("huey==3.5.4", "redis==8.1.0"), "on_huey", "redis"),
    Program("rq", ("rq==2.12.0", "redis==8.1.0"), "on_rq", "redis"),
    Program("procrastinate", ("procrastinate==3.10.0", "psycopg[binary]==3.3.9"), "on_procrastinate", "postgresql"),
    CAO,
)


# -- environments ------------------------------------------------------------------------------------------


def install(program: Program) -> None:
    """Install the program, unless it is there already: this one anew each time, for its sources change."""
    wanted = "\n".join((sys.version, *program.packages))
    note = os.path.join(program.environment, "installed")
    if ROOT not in wanted and os.path.exists(note):
        with open(note, encoding="utf-8") as file:
            if file.read() == wanted:
                return
    shutil.rmtree(program.environment, ignore_errors=True)
    os.makedirs(CACHE, exist_ok=True)
    python = program.path("python")
    run([sys.executable, "-m", "venv", program.environment], INSTALL_SEC)
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *program.packages], INSTALL_SEC)
    with open(note, "w", encoding="utf-8") as file:
        file.write(wanted)


def versions(program: Program) -> dict[str, str]:
    """Return the version of each package in the environment."""
    script = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    found: dict[str, str] = json.loads(run([program.path("python"), "-c", script]))
    return found


def installed_mb(program: Program) -> float:
    """Return the size of what pip installed, compiled modules included, without pip and setuptools."""
    top = os.path.join(program.environment, "lib")
    leave_out = ("pip", "pip-", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
    total = 0
    for folder, folders, files in os.walk(top):
        if os.path.basename(folder) == "site-packages":
            folders[:] = [each for each in folders if not each.startswith(leave_out)]
        total += sum(os.lstat(os.path.join(folder, each)).st_size for each in files)
    return total / 1e6


def run(command: list[str], timeout_sec: float = 60, **options: object) -> str:
    """Run a command and return its output; raise LeftOut with the end of its errors if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_sec, check=False, **options)  # type: ignore[call-overload]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LeftOut(f"{os.path.basename(command[0])}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise LeftOut(f"{os.path.basename(command[0])} {command[1]} ended with {done.returncode}: {last[:300]}")
    output: str = done.stdout
    return output


# -- servers -----------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class RedisServer:
    """A Redis on loopback that syncs every change to the disk before it answers."""

    def __init__(self, folder: str) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise LeftOut("no program redis-server on the PATH")
        self._port = free_port()
        self._database = 0
        settings = {
            "port": str(self._port), "bind": "127.0.0.1", "dir": folder, "appendonly": "yes", "appendfsync": "always",
            "save": "", "databases": "64", "auto-aof-rewrite-percentage": "0", "logfile": os.path.join(folder, "log"),
        }  # fmt: skip
        arguments = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self.process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        self.remove()
        raise LeftOut("redis-server did not start")

    def new_url(self) -> str:
        self._database += 1
        return f"redis://127.0.0.1:{self._port}/{self._database}"

    def remove(self) -> None:
        self.process.terminate()
        self.process.wait(30)


class Servers:
    """Start a server when a program first needs it, and stop all of them at the end."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._redis: RedisServer | None = None
        self._postgres: object = None
        self._databases = 0
        self.postgres_version = ""  # of the server, once it was needed

    def new_store(self, program: Program, folder: str) -> str:
        """Return the place of an empty store: a file in the folder, a database of a server."""
        if program.store == "sqlite":
            return os.path.join(folder, "queue.db")
        if program.store == "redis":
            if self._redis is None:
                self._redis = RedisServer(self._folder)
            return self._redis.new_url()
        return self._new_database()

    def _new_database(self) -> str:
        sys.path.insert(0, os.path.join(ROOT, "tests"))
        import psycopg

        from support.postgres import PostgresServer

        try:
            if self._postgres is None:
                self._postgres = PostgresServer()
            self._databases += 1
            with psycopg.connect(self._postgres.url, autocommit=True) as connection:  # type: ignore[attr-defined]
                connection.execute(f"create database bench{self._databases}")
                self.postgres_version = str(connection.info.server_version // 10_000)
        except (OSError, RuntimeError, KeyError, subprocess.SubprocessError, psycopg.Error) as error:
            raise LeftOut(f"PostgreSQL: {error}") from error
        url: str = self._postgres.url  # type: ignore[attr-defined]
        return url.replace("/postgres?", f"/bench{self._databases}?")

    def memory(self, program: Program) -> str:
        """Return the memory of the server that the program needs, if it needs one."""
        if program.store == "redis" and self._redis is not None:
            return f"Redis {memory_mb([self._redis.process.pid]):.0f} MB"
        if program.store == "postgresql" and self._postgres is not None:
            return f"PostgreSQL {memory_mb([self._postgres._process.pid]):.0f} MB"  # type: ignore[attr-defined]
        return ""

    def remove(self) -> None:
        for server in (self._redis, self._postgres):
            if server is not None:
                server.remove()  # type: ignore[attr-defined]


# -- processes ---------------------------------------------------------------------------------------------


def _processes() -> Iterator[tuple[int, int, int]]:
    """Yield the id, the parent and the session of each process that runs."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    words = file.read().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if words[0] != "Z":
                yield int(name), int(words[1]), int(words[3])


def in_session(session: int) -> list[int]:
    """Return the processes of a session: the process that began it, and those that it started."""
    return [pid for pid, _, its in _processes() if its == session]


def memory_mb(pids: list[int]) -> float:
    """Return the memory of these processes and their children. Pages that several share are counted once (PSS)."""
    everything = list(_processes())
    found: list[int] = []
    wanted = list(pids)
    while wanted:
        pid = wanted.pop()
        found.append(pid)
        wanted += [child for child, parent, _ in everything if parent == pid and child not in found]
    total = 0
    for pid in found:
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            continue  # it has ended
    return total / 1024
