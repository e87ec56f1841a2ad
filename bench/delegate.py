"""Holds delegation to its limits of speed: submit, worker, monitor.

    python bench/delegate.py              everything, in about two minutes
    python bench/delegate.py monitor      only this part; `--help` names them

Exit code 1 when a limit is missed. The agent is a shell that sleeps 50 ms, in real tmux on a server of its own; what a
raw tmux takes for the same is measured in turns with it. The monitor sweeps over 1,000 running jobs and 200 sessions
whose panes are real (each a `sleep`); jobs and sessions are written straight into the stores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

from baton.adapters.contract import Mode
from baton.core.clock import format_time
from baton.core.drafts import new_job
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.processes import started_at
from baton.sessions.session import Session, State
from baton.storage.homes import load_settings
from table import ROOT, Folder, Row, chosen_parts, in_turns, ms, run_parts, size, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

BATON = os.path.join(os.path.dirname(sys.executable), "baton")
WORK = "sleep 0.05"
TIMES = size(10, 1)
JOBS, CONCURRENCY = size(50, 2), size(8, 2)
RUNNING, SESSIONS = size(1000, 4), size(200, 2)
SWEEPS_SEC = size(5, 1)
_END_SEC = 20


class Place:
    """A home, a state folder and a tmux server of one part. `baton` is the command of another installation."""

    def __init__(self, folder: str, baton: str = BATON) -> None:
        self.folder = folder
        self.baton = baton
        self._sockets = tempfile.mkdtemp(prefix="baton-b-", dir="/tmp")  # a socket's path must be short
        self.socket = os.path.join(self._sockets, "s")
        self.env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": folder,
            "LANG": "C.UTF-8",
            "BATON_AGENT": "shell",
            "BATON_TMUX_SOCKET": self.socket,
        }
        self.settings = load_settings(env=self.env, here=folder)

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.baton, *arguments], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"bench: baton {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-f", "/dev/null", "-S", self.socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=self.env).stdout

    def wait(self) -> None:
        """Wait until the last session has ended, which ends the tmux server."""
        deadline = time.monotonic() + _END_SEC
        command = ["tmux", "-S", self.socket, "has-session"]
        while not subprocess.run(command, capture_output=True, check=False).returncode and time.monotonic() < deadline:
            time.sleep(0.05)

    def close(self) -> None:
        self("broker", "down")
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True, check=False)
        shutil.rmtree(self._sockets)


@contextmanager
def place(folder: Folder, name: str, baton: str = BATON) -> Iterator[Place]:
    made = Place(folder.new(name), baton)
    try:
        yield made
    finally:
        made.close()


def submits(folder: Folder) -> Iterator[Row]:
    """submit with an agent that sleeps 50 ms, cold and warm"""
    with place(folder, "submit") as here:
        here.tmux("new-session", "-d", "-s", "open", "sleep", "600")  # so that raw tmux is not measured cold

        def raw() -> None:
            here.tmux("new-session", "-d", "-s", "raw", f"{WORK}; tmux -S {here.socket} wait-for -S over")
            here.tmux("wait-for", "over")

        here("submit", WORK)
        warm, bare = in_turns(TIMES, lambda: here("submit", WORK), raw)
        cold = []
        for _ in range(TIMES):
            here("broker", "down")
            cold.append(timed(lambda: here("submit", WORK)))
    yield Row("submit, the broker running", ms(warm), f"raw tmux: {ms(bare)}", "", "<= 1,200 ms", warm <= 1.2)
    yield Row("submit, the broker started by it", ms(median(cold)), "", "", "<= 2,000 ms", median(cold) <= 2.0)
    yield Row("what baton adds to raw tmux", ms(warm - bare))


def queue(folder: Folder) -> Iterator[Row]:
    """50 jobs through one worker, 8 at a time"""
    with place(folder, "queue") as here:
        with open_jobs(here.settings) as jobs:
            now = time.time_ns()
            work = [
                new_job(WORK, now_ns=now, agent="shell", agent_session="q", workdir=here.folder) for _ in range(JOBS)
            ]
            jobs.register_many(work)
        here("broker", "up")
        took = timed(lambda: here("worker", "--agent-session", "q", "--concurrency", str(CONCURRENCY), "--until-empty"))
        with open_jobs(here.settings) as jobs:
            done = jobs.stats()["completed"]
    rate = f"{JOBS * 60 / took:,.0f} a minute"
    yield Row(f"{JOBS} jobs, worker of {CONCURRENCY}", rate, f"{took:.1f} s", f"{done} completed", "all", done == JOBS)


def sweep(folder: Folder) -> Iterator[Row]:
    """a sweep of the monitor over 1,000 running jobs and 200 sessions"""
    with place(folder, "monitor") as here:
        _fill(here)
        here("monitor", "--once")  # what is to be done at first is done
        took, empty = in_turns(size(7, 1), lambda: here("monitor", "--once"), lambda: here("version"))
        memory = _memory(here)
    sweeping = took - empty
    yield Row("monitor --once, the whole command", ms(took), f"baton version: {ms(empty)}")
    yield Row("one sweep", ms(sweeping), "", "", "<= 500 ms", sweeping <= 0.5)
    yield Row("memory of the monitor", f"{memory:.0f} MB", "", "", "<= 60 MB", memory <= 60)


def _fill(here: Place) -> None:
    now = format_time(time.time_ns())
    inventory = Inventory(here.settings)
    with open_jobs(here.settings) as jobs:
        drafts = [new_job("x", now_ns=time.time_ns(), agent="shell", agent_session="q") for _ in range(RUNNING)]
        registered = jobs.register_many(drafts)
        for _ in registered:
            jobs.registry.pick_pending("q", holder=f"{here.settings.host}:bench", lease_sec=3600)
        commands = []
        for number in range(SESSIONS):
            commands += [
                "new-session",
                "-d",
                "-P",
                "-F",
                "#{pane_id} #{pane_pid}",
                "-s",
                f"s{number}",
                "sleep",
                "600",
                ";",
            ]
        panes = here.tmux(*commands[:-1]).splitlines()
    for number, (pane, job) in enumerate(zip(panes, registered[:SESSIONS], strict=True)):
        pane_id, pid = pane.split()
        session = {
            "name": f"s{number}", "session_id": os.urandom(8).hex(), "state": State.RUNNING, "agent": "shell",
            "mode": Mode.INTERACTIVE, "workdir": "/tmp", "yolo": False, "agent_name": f"HOUMAO-s{number}",
            "agent_id": f"s{number}", "generation_id": "g", "host": here.settings.host, "socket": here.socket,
            "pane_id": pane_id, "pane_pid": int(pid), "pane_started": started_at(int(pid)), "created_at": now,
            "updated_at": now, "made_for": job.job_id, "job_id": job.job_id,
        }  # fmt: skip
        inventory.add(Session.parse(session))


def _memory(here: Place) -> float:
    """The most it ever held, after a few sweeps, in MB."""
    command = [here.baton, "monitor", "--interval", "0.05", "--json"]
    with subprocess.Popen(
        command, cwd=here.folder, env=here.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        time.sleep(SWEEPS_SEC)
        with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
            peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
        process.terminate()
    return peak / 1024


def codex(folder: Folder) -> Iterator[Row]:
    """a headless Codex job, by turns with a bare `codex exec`; the model is a stand-in on this machine"""
    what = f"what baton adds to `codex exec`, median of {TIMES}"
    if shutil.which("codex") is None:
        yield Row(what, "not measured", "no program codex on the PATH", "", "<= 1,000 ms")
        return
    sys.path.insert(0, os.path.join(ROOT, "tests"))
    from agents.homes import CONSTANTS, Home, environment, files  # type: ignore[import-not-found]
    from truth.scripted_model import ScriptedModel  # type: ignore[import-not-found]

    model = ScriptedModel()
    with place(folder, "codex") as here:
        home = Home(here.folder, here.folder, model.url)
        here.env |= CONSTANTS | environment(home)
        for name, text in files(home).items():
            if name.startswith(".codex/"):
                os.makedirs(os.path.dirname(os.path.join(here.folder, name)), exist_ok=True)
                with open(os.path.join(here.folder, name), "w", encoding="utf-8") as file:
                    file.write(text)

        def bare() -> None:
            """Run it until its turn is over: the program ends some seconds later."""
            command = ["codex", "exec", "--json", "--skip-git-repo-check", "Say that this is all."]
            with subprocess.Popen(
                command,
                cwd=here.folder,
                env=here.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as process:
                assert process.stdout is not None
                if not any(b"turn.completed" in line for line in process.stdout):
                    raise SystemExit("bench: codex exec completed no turn")
                process.terminate()  # it passes that on

        def job() -> None:
            here("submit", "--agent", "codex", "--headless", "Say that this is all.")

        bare()
        job()
        ours, alone = in_turns(TIMES, job, bare)
        here.wait()
    model.close()
    yield Row("submit of a headless Codex job", ms(ours), f"codex exec, its turn: {ms(alone)}")
    yield Row(what, ms(ours - alone), "", "", "<= 1,000 ms", ours - alone <= 1.0)


PARTS = {"submit": submits, "worker": queue, "monitor": sweep, "codex": codex}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sys.exit(run_parts(PARTS, chosen_parts(parser, PARTS).part))
