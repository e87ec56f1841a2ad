"""Holds sessions in tmux to their limits of speed.

    python bench/sessions.py              everything, in about a minute

Exit code 1 when a limit is missed. tmux runs on a socket of its own, with a server that ends with this.
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
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from baton.adapters.contract import Mode
from baton.config import process_domain
from baton.delegation.looking import Look, Looked
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.processes import started_at
from baton.sessions.session import Session, State, session_name
from baton.storage.homes import load_settings
from table import Folder, Row, at_most, chosen_parts, in_turns, ms, run_parts, size, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.core.job import Job

CREATED = size(15, 1)
MANY = size(200, 3)
LOOKED_AT, LOOK_SEC = size(50, 3), 0.002
BATON = os.path.join(os.path.dirname(sys.executable), "baton")


class Server:
    """A tmux server, and the environment of commands that use it."""

    def __init__(self, folder: str, socket: str) -> None:
        self.folder = folder
        self.socket = socket
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "BATON_HOME": os.path.join(folder, "home"),
            "BATON_TMUX_SOCKET": socket,
            "SHELL": "/bin/sh",
            # A port that nobody listens at: what the broker costs is not measured here.
            "MQTT_BROKER": "127.0.0.1",
            "MQTT_PORT": "1",
        }
        self.settings = load_settings(env=self.env)

    def tmux(self, *arguments: str) -> str:
        argv = ["tmux", "-f", os.devnull, "-S", self.socket, *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True, env=self.env).stdout

    def baton(self, *arguments: str, **env: str) -> str:
        return subprocess.run(
            [BATON, *arguments], check=True, capture_output=True, text=True, env=self.env | env, cwd=self.folder
        ).stdout


@contextmanager
def server(folder: Folder) -> Iterator[Server]:
    short = tempfile.mkdtemp(prefix="baton-bench-", dir="/tmp")  # a socket's path must be short
    made = Server(folder.new("sessions"), os.path.join(short, "s"))
    made.tmux("new-session", "-d", "-s", "keep", "sleep", "600")  # so that no side pays for the server's start
    try:
        yield made
    finally:
        made.tmux("kill-server")
        shutil.rmtree(short)


def creation(folder: Folder) -> Iterator[Row]:
    """from `baton session create` to the agent's `started` in the registry"""
    with server(folder) as tmux, open_jobs(tmux.settings) as jobs:
        seconds, raw = [], []
        for number in range(CREATED):
            job = jobs.register_job("sleep 60", agent="shell", workdir=tmux.folder)
            raw.append(timed(partial(tmux.tmux, "new-session", "-d", "-s", f"raw{number}", "sleep", "60")))
            start = time.perf_counter()
            creating = subprocess.Popen(
                [BATON, "session", "create", f"s{number}", "--job", job.job_id],
                env=tmux.env, cwd=tmux.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            while not jobs.events_after(job.job_id):
                time.sleep(0.001)
            seconds.append(time.perf_counter() - start)
            if creating.wait():
                raise SystemExit("bench: `baton session create` failed")
        for number in range(CREATED):
            tmux.baton("session", "stop", f"s{number}", "--mode", "hard")
    ours = median(seconds)
    yield Row(
        "create -> `started` in the registry: median",
        ms(ours),
        f"tmux new-session: {ms(median(raw))}",
        f"{ours / median(raw):.0f}x",
        "<= 1 s",
        ours <= 1,
    )
    yield Row("the same: slowest", ms(max(seconds)), f"of {CREATED}")


def listing(folder: Folder) -> Iterator[Row | str]:
    """listing 200 sessions"""
    with server(folder) as tmux:
        _fill(tmux)
        fields = "#{pane_id} #{pane_pid} #{pane_dead} #{session_name}"
        raw_argv = ["tmux", "-f", os.devnull, "-S", tmux.socket, "list-panes", "-a", "-F", fields]
        inventory = Inventory(tmux.settings)
        from baton.sessions.tmux import TmuxSnapshot

        def ours() -> None:
            snapshot = TmuxSnapshot()
            assert sum(snapshot.pane_of(session) is not None for session in inventory.all(State.RUNNING)) == MANY

        def raw() -> None:
            assert subprocess.run(raw_argv, check=True, capture_output=True, text=True).stdout.count("\n") == MANY + 1

        whole, nothing, mine, bare = in_turns(
            size(21, 1),
            lambda: tmux.baton("session", "list", "--json"),
            lambda: tmux.baton("version"),
            ours,
            raw,
        )
        calls = _calls(tmux)
    ratio = at_most(3, mine, bare)
    yield Row(f"list {MANY} sessions", ms(mine), f"tmux list-panes -a: {ms(bare)}", *ratio)
    yield Row("tmux calls of `baton session list`", str(len(calls)), f"{MANY} sessions", "", "1", len(calls) == 1)
    yield Row("`baton session list`, the whole command", ms(whole), f"baton version: {ms(nothing)}")


def _fill(tmux: Server) -> None:
    """Sessions that are real to tmux and to the inventory; what runs in them does not matter for a listing."""
    inventory = Inventory(tmux.settings)
    for number in range(MANY):
        name = f"many{number}"
        shown = tmux.tmux("new-session", "-d", "-P", "-F", "#{pane_id} #{pane_pid}", "-s", name, "sleep", "600")
        pane_id, pid = shown.split()
        record = {
            "name": name, "session_id": f"{number:016x}", "state": State.RUNNING, "agent": "shell",
            "mode": Mode.INTERACTIVE, "workdir": tmux.folder, "yolo": False, "agent_name": f"HOUMAO-{name}",
            "agent_id": name, "generation_id": "g", "host": tmux.settings.host, "socket": tmux.socket,
            "pane_id": pane_id, "pane_pid": int(pid),
            "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        inventory.add(Session.parse(record))


def _calls(tmux: Server) -> list[str]:
    """Every tmux that one `baton session list` starts: counted by a program of that name, in front on the PATH."""
    folder = os.path.join(tmux.folder, "bin")
    log = os.path.join(tmux.folder, "calls")
    os.mkdir(folder)
    program = os.path.join(folder, "tmux")
    with open(program, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\necho "$*" >> {log}\nexec {shutil.which("tmux")} "$@"\n')
    os.chmod(program, 0o755)
    assert tmux.baton("session", "list", PATH=f"{folder}:{tmux.env['PATH']}").count("\trunning\t") == MANY
    with open(log, encoding="utf-8") as file:
        return file.read().splitlines()


def looking(folder: Folder) -> Iterator[Row]:
    """the check for killed sessions, which each look at jobs makes"""
    env = {"PATH": os.environ["PATH"], "HOME": folder.new("looking")}
    settings = load_settings(env=env, here=env["HOME"])
    runners = [subprocess.Popen(["sleep", "600"]) for _ in range(LOOKED_AT)]
    try:
        with open_jobs(settings) as jobs:
            inventory = Inventory(settings)
            for runner in runners:
                job = jobs.register_job("work", agent="shell", workdir=env["HOME"])
                inventory.add(_session_of(jobs.pick_job(job.job_id), runner.pid, settings.host))
            assert Look(settings).settle(jobs) == Looked()
            kept = Look(settings)
            first, again = in_turns(size(101, 3), lambda: Look(settings).settle(jobs), lambda: kept.settle(jobs))
            shared = median(timed(lambda: jobs.list_jobs(limit=LOOKED_AT)) for _ in range(size(21, 1)))
            runners[0].kill()
            runners[0].wait()
            lost = inventory.lost()
            assert len(lost) == 1
    finally:
        for runner in runners:
            runner.kill()
            runner.wait()
    what = f"look for killed sessions, {LOOKED_AT} running jobs"
    limit = f"<= {ms(LOOK_SEC)}"
    yield Row(f"{what}: the first", ms(first), f"list these jobs: {ms(shared)}", "", limit, first <= LOOK_SEC)
    yield Row(f"{what}: each later one", ms(again), "", "", limit, again <= LOOK_SEC)


def _session_of(job: Job, pid: int, host: str) -> Session:
    name = session_name(job)
    record = {
        "name": name, "session_id": f"{pid:016x}", "state": State.RUNNING, "agent": "shell",
        "mode": Mode.INTERACTIVE, "workdir": job.workdir, "yolo": False, "agent_name": f"HOUMAO-{name}",
        "agent_id": name, "generation_id": "g", "host": host, "socket": "none", "pane_id": "%1", "pane_pid": pid,
        "pane_started": started_at(pid), "domain": process_domain(), "made_for": job.job_id, "job_id": job.job_id,
        "created_at": job.created_at, "updated_at": job.created_at,
    }  # fmt: skip
    return Session.parse(record)


PARTS = {"create": creation, "list": listing, "look": looking}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sys.exit(run_parts(PARTS, chosen_parts(parser, PARTS).part))
