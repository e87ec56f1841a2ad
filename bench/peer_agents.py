"""The parts of `bench/peers.py` about programs that run agents: from the command to the reply, and memory. The agent is
a shell that sleeps 50 ms: for CLI Agent Orchestrator in the form that its provider `mock_cli` expects."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from delegate import WORK, place
from peer_setup import BATON, CAO, LeftOut, Program, Servers, free_port, memory_mb, run
from table import Folder, in_turns, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from delegate import Place

TIMES = size(7, 1)
STARTS = size(15, 1)
WAIT_SEC = 60

# The prompt and the reply have the form that the provider looks for on the screen.
MOCK_AGENT = f"""#!/bin/sh
printf '\u276f '
while IFS= read -r line; do
    if [ -n "$line" ]; then
        {WORK}
        printf '> MOCK: %s\\n' "$line"
    fi
    printf '\u276f '
done
"""


class CaoServer:
    """The server of CLI Agent Orchestrator on loopback, with a home and a tmux server of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._sockets = tempfile.mkdtemp(prefix="baton-c-", dir="/tmp")  # a socket's path must be short
        programs = os.path.join(folder, "programs")
        os.mkdir(programs)
        agent = os.path.join(programs, "mock_cli")
        with open(agent, "w", encoding="utf-8") as file:
            file.write(MOCK_AGENT)
        os.chmod(agent, 0o700)
        path = f"{programs}:{CAO.path('')}:{os.environ.get('PATH', os.defpath)}"
        with open(os.path.join(folder, ".profile"), "w", encoding="utf-8") as file:
            file.write(f"PATH='{path}'\n")  # the shell in the pane is a login shell
        self._env = {
            "PATH": path, "HOME": folder, "LANG": "C.UTF-8", "SHELL": "/bin/sh", "TMUX_TMPDIR": self._sockets,
            "CAO_HOME_DIR": os.path.join(folder, "cao"), "CAO_API_PORT": str(free_port()),
        }  # fmt: skip
        self._log = open(os.path.join(folder, "log"), "wb")  # noqa: SIM115  closed in close()
        self.process: subprocess.Popen[bytes] | None = None
        with ExitStack() as undo:
            undo.callback(self.close)
            self("init")
            self.process = subprocess.Popen(
                [CAO.path("cao-server")], cwd=folder, env=self._env, stdout=self._log, stderr=self._log
            )
            self._wait()
            undo.pop_all()

    def _wait(self) -> None:
        end = time.monotonic() + WAIT_SEC
        while True:
            try:
                self("session", "list")
                return
            except LeftOut:
                if time.monotonic() > end:
                    raise
            time.sleep(0.2)

    def __call__(self, *arguments: str) -> str:
        return run([CAO.path("cao"), *arguments], WAIT_SEC, env=self._env, cwd=self._folder)

    def launch(self) -> str:
        """Start an agent with a message, wait for its reply and return the name of its session."""
        shown = self(
            "launch", "--agents", "developer", "--provider", "mock_cli", "--headless", "--auto-approve", "hello"
        )
        if shown.split()[-1] != "hello":
            raise LeftOut(f"no reply of the agent: {shown!r}")
        return shown.split("Session created:")[1].split()[0]

    def memory_mb(self) -> float:
        assert self.process is not None
        return memory_mb([self.process.pid])

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        subprocess.run(["tmux", "kill-server"], env=self._env, capture_output=True, check=False)
        self._log.close()
        shutil.rmtree(self._sockets)


class Figures(NamedTuple):
    """Median seconds by program, and memory."""

    help: dict[str, float]  # `--help`
    list: dict[str, float]  # the command that lists jobs or sessions
    new: dict[str, float]  # from the command to the reply, in a new session
    again: dict[str, float]  # in a session that runs already
    memory: dict[str, str]


Actions = dict[str, "Callable[[], object]"]


def measure_programs(
    programs: Sequence[Program], folder: Folder, servers: Servers, left_out: dict[str, str]
) -> Figures:
    memory: dict[str, str] = {}
    cao = None
    with place(folder, "agents", BATON.path("baton")) as here:
        try:
            try:
                cao = CaoServer(folder.new("cao")) if CAO in programs else None
            except LeftOut as error:
                left_out[f"{CAO.name}, server"] = str(error)
            _prepare(here)
            helps = _in_turns(STARTS, _help_commands(programs, here), "start of --help", left_out)
            lists = _in_turns(STARTS, _list_commands(programs, here, servers, cao), "start of the list", left_out)
            new = _in_turns(TIMES, _new_sessions(here, cao), "launch to reply", left_out)
            again = _in_turns(TIMES, _old_sessions(here, cao), "message to reply", left_out)
            memory[BATON.name] = _baton_memory(here)
            if cao is not None:
                memory[CAO.name] = f"server {cao.memory_mb():.0f} MB"
            # Its runner writes until it has ended, which tmux does not wait for.
            here("session", "stop", "running", "--mode", "hard")
        finally:
            if cao is not None:
                cao.close()
    return Figures(helps, lists, new, again, memory)


def _in_turns(times: int, actions: Actions, what: str, left_out: dict[str, str]) -> dict[str, float]:
    """Return the median seconds of each action that works, measured in turns."""
    working: Actions = {}
    for name, action in actions.items():
        try:
            action()  # compiles the modules
            working[name] = action
        except LeftOut as error:
            left_out[f"{name}, {what}"] = str(error)
    return dict(zip(working, in_turns(times, *working.values()), strict=True))


def _prepare(here: Place) -> None:
    """Open the sessions that are there before anything is measured."""
    here.tmux("new-session", "-d", "-s", "waiting", "sh")  # also, so that raw tmux is not measured cold
    here("session", "create", "running", "--agent", "shell")


def _help_commands(programs: Sequence[Program], here: Place) -> Actions:
    commands = {"on_baton": "baton", "on_huey": "huey_consumer", "on_rq": "rq", "on_procrastinate": "procrastinate"}
    return {
        program.name: partial(run, [program.path(commands.get(program.module, "cao")), "--help"], env=here.env)
        for program in programs
    }


def _list_commands(programs: Sequence[Program], here: Place, servers: Servers, cao: CaoServer | None) -> Actions:
    """Return the commands of those programs that have one."""
    actions: Actions = {BATON.name: lambda: here("list"), "plain tmux": lambda: here.tmux("list-sessions")}
    for program in programs:
        if program.module == "on_rq":
            command = [program.path("rq"), "info", "--url", servers.new_store(program, here.folder)]
            actions[program.name] = partial(run, command, env=here.env)
    if cao is not None:
        actions[CAO.name] = lambda: cao("session", "list")
    return actions


def _new_sessions(here: Place, cao: CaoServer | None) -> Actions:
    def in_new_pane() -> None:
        here.tmux("new-session", "-d", "-s", "raw", f"{WORK}; tmux -S {here.socket} wait-for -S over")
        here.tmux("wait-for", "over")

    actions: Actions = {BATON.name: lambda: here("submit", WORK), "plain tmux": in_new_pane}
    return actions if cao is None else actions | {CAO.name: cao.launch}


def _old_sessions(here: Place, cao: CaoServer | None) -> Actions:
    def in_old_pane() -> None:
        here.tmux("send-keys", "-t", "waiting", f"{WORK}; tmux -S {here.socket} wait-for -S over", "Enter")
        here.tmux("wait-for", "over")

    actions: Actions = {
        BATON.name: lambda: here("submit", WORK, "--session", "running"), "plain tmux": in_old_pane,
    }  # fmt: skip
    if cao is not None:
        name = cao.launch()
        actions[CAO.name] = lambda: cao("session", "send", name, "hello")
    return actions


def _baton_memory(here: Place) -> str:
    """Return the memory of a worker after a few jobs, of the broker and of a monitor."""
    here("register", "true", "--agent", "shell")
    here("worker", "--agent", "shell", "--until-empty")  # the queue that the next worker finds empty
    command = [here.baton, "worker", "--agent", "shell"]
    monitor = [here.baton, "monitor", "--interval", "0.5"]
    processes = [
        subprocess.Popen(each, cwd=here.folder, env=here.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for each in (command, monitor)
    ]
    try:
        for _ in range(size(3, 1)):
            job = here("register", "true", "--agent", "shell").strip()
            here("wait", job)
        broker = json.loads(here("broker", "status", "--json"))["pid"]
        sizes = [memory_mb([pid]) for pid in (processes[0].pid, processes[1].pid, broker)]
    finally:
        for process in processes:
            process.terminate()
            process.wait(60)
    return "worker {:.0f} MB, monitor {:.0f} MB, broker {:.0f} MB".format(*sizes)
