"""The installed command with a tmux server, a broker and everything else of its own: agents at work, as a user sees
them, and at the end the proof that nothing of it is left."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from baton.core.job import Status
from baton.history.log import iter_logged_events
from baton.jobs.verbs import open_jobs
from baton.registry.contract import JobFilter
from baton.sessions.inventory import Inventory
from baton.sessions.session import State
from support.command import BATON, Baton, Result, interruptible
from support.homes import settings_in
from support.waiting import poll, wait_until

if TYPE_CHECKING:
    from baton.config import Settings

PATIENCE_SEC = 40.0
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])")


def together(number: int, wanted: int) -> str:
    """Work that waits until so many are at it at once, and writes down how many it saw."""
    count = "ls -d run.* | wc -l"
    return (
        f"mkdir run.{number}; echo {number} >> order; {count} >> counts; "
        f"while ! test -e met && test $({count}) -lt {wanted}; do sleep 0.05; done; touch met; {count} >> counts; "
        f"rmdir run.{number}"
    )


class Office(Baton):
    """`folder` is home and working directory. Every process that was started from here has it in its environment, and
    is found by that: at the end there must be none."""

    def __init__(self, folder, **env: str) -> None:
        # A socket's path must be short; pytest's folders are not.
        self._sockets = tempfile.mkdtemp(prefix="baton-t-", dir="/tmp")
        self.socket = os.path.join(self._sockets, "s")
        super().__init__(folder, BATON_TMUX_SOCKET=self.socket, BATON_AGENT="shell", **env)
        self._mark = f"HOME={folder}".encode()
        self._started: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *arguments: str, terminal: bool = False, **env: str) -> Running:
        """Runs the command beside the test."""
        running = (Terminal if terminal else Running)(self, arguments, env)
        self._started.append(running)
        return running

    def submit(self, *arguments: str, code: int | None = 0, **more) -> Result:
        return self("submit", *arguments, code=code, **more)

    def detached(self, *arguments: str, **env: str) -> str:
        """The id of a job that is at work now."""
        return self("submit", "--detach", *arguments, **env).text

    @property
    def settings(self) -> Settings:
        return settings_in(self.folder, self.env)

    # What is asked for again and again is read here; only from another network it takes the command.

    def job(self, job_id: str) -> dict:
        if self.prefix:
            return self("get", job_id).json
        with open_jobs(self.settings) as jobs:
            return jobs.get_job(job_id).public()

    def jobs(self, *statuses: str) -> list[dict]:
        """Newest first."""
        with open_jobs(self.settings) as jobs:
            found = jobs.list_jobs(JobFilter(statuses=[Status(each) for each in statuses] or None), limit=100)
            return [job.public() for job in found.jobs]

    def the_job(self) -> dict:
        found = self.jobs()
        assert len(found) == 1, found
        return found[0]

    def wait_for_status(self, job_id: str, *statuses: str) -> dict:
        return wait_until(lambda: (job := self.job(job_id))["status"] in statuses and job, f"for {statuses}")

    def sessions(self) -> list[dict]:
        """Those that run."""
        return [session.record() for session in Inventory(self.settings).all(State.RUNNING)]

    def session_of(self, job_id: str) -> dict:
        found = Inventory(self.settings).all()
        return next(each for each in found if job_id in (each.job_id, each.made_for)).record()

    def audit(self, job_id: str) -> list[dict]:
        return list(iter_logged_events(job_id, os.path.join(self.folder, ".hermes", "delegate_job_logs")))

    def unsent(self) -> int:
        with open_jobs(self.settings) as jobs:
            return jobs.stats()["unsent"]

    def tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self.socket, *arguments], capture_output=True, text=True, timeout=20, check=False
        )
        return done.stdout.strip()

    def processes(self, also: str = "") -> dict[int, str]:
        """Everything alive that came from here, by the environment it has; `also` must be in its command line."""
        found = {}
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if self._mark not in file.read().split(b"\0"):
                        continue
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if command and also in command and int(name) != os.getpid():
                found[int(name)] = command
        return found

    def agents(self) -> dict[int, str]:
        """What agents run, and what they have started."""
        return {pid: command for pid, command in self.processes().items() if _environ(pid, "BATON_SESSION_ID")}

    def close(self) -> None:
        """Ends what the test itself started, then sees whether anything else is left: that fails the test."""
        for running in self._started:
            running.kill()
        try:
            # The broker last: a runner that is about to end would start it again.
            self._gone_within(5, "nats-server")
            self("broker", "down", code=None)
            left = self._gone_within(5)
            for pid in left:
                with suppress(ProcessLookupError):  # it has ended with one that was killed before it
                    os.kill(pid, signal.SIGKILL)
            assert not left, f"left behind: {left}"
        finally:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def _gone_within(self, seconds: float, but: str | None = None) -> dict[int, str]:
        left: dict[int, str] = {}

        def none_is_left() -> bool:
            nonlocal left
            left = {pid: command for pid, command in self.processes().items() if but is None or but not in command}
            return not left

        poll(none_is_left, seconds)
        return left


def _environ(pid: int, name: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(each.startswith(f"{name}=".encode()) for each in file.read().split(b"\0"))
    except OSError:
        return False


class Running:
    """A command beside the test; what it prints goes to files, so that it never waits for us."""

    def __init__(self, office: Office, arguments: tuple[str, ...], env: dict[str, str]) -> None:
        base = tempfile.mktemp(prefix="running-", dir=office._sockets)
        self._paths = (f"{base}.out", f"{base}.err")
        with open(self._paths[0], "wb") as out, open(self._paths[1], "wb") as err:
            self.process = subprocess.Popen(
                [*office.prefix, BATON, *arguments], cwd=office.folder, env=office.env | env, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, preexec_fn=interruptible,
            )  # fmt: skip

    @property
    def out(self) -> str:
        with open(self._paths[0]) as file:
            return file.read()

    @property
    def err(self) -> str:
        with open(self._paths[1]) as file:
            return file.read()

    def says(self, text: str, patience_sec: float = PATIENCE_SEC) -> str:
        wait_until(lambda: text in self.out + self.err, f"for {text!r}", patience_sec)
        return self.out

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, patience_sec: float = PATIENCE_SEC) -> Result:
        try:
            self.process.wait(patience_sec)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended after {patience_sec:g} s; it said: {self.out}{self.err}") from None
        return Result(subprocess.CompletedProcess([], self.process.returncode, self.out, self.err))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Terminal(Running):
    """The same on a terminal: `screen` is all it ever showed, escape sequences left out."""

    def __init__(self, office: Office, arguments: tuple[str, ...], env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self._shown = b""

        def on_this_terminal() -> None:
            interruptible()
            os.login_tty(slave)

        self.process = subprocess.Popen(
            [BATON, *arguments], cwd=office.folder, env=office.env | {"TERM": "xterm-256color", "COLUMNS": "150"} | env,
            preexec_fn=on_this_terminal, pass_fds=(slave,),
        )  # fmt: skip
        os.close(slave)

    @property
    def raw(self) -> str:
        while select.select([self._master], [], [], 0)[0]:
            try:
                piece = os.read(self._master, 65536)
            except OSError:
                break  # its other end is closed
            if not piece:
                break
            self._shown += piece
        return self._shown.decode(errors="replace")

    @property
    def screen(self) -> str:
        return _ESCAPES.sub("", self.raw)

    out = screen
    err = property(lambda _: "")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self, patience_sec: float = PATIENCE_SEC) -> Result:
        wait_until(lambda: self.raw is not None and self.process.poll() is not None, "for its end", patience_sec)
        return Result(subprocess.CompletedProcess([], self.process.returncode, self.screen, ""))

    def hang_up(self) -> None:
        """As when the window is closed."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def kill(self) -> None:
        super().kill()
        self.hang_up()
