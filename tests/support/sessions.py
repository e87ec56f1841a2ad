"""The `baton` command with a tmux server and a folder of its own, and nothing left of either afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from typing import TYPE_CHECKING

import yaml

from support.command import Baton
from support.ports import free_port
from support.processes import processes_with
from support.tmux import TmuxServer
from support.waiting import poll, wait_until

if TYPE_CHECKING:
    from baton.sessions.processes import Process


class SessionDesk(Baton):
    """Jobs' events go nowhere (their broker's port is closed) unless the test names a broker."""

    def __init__(self, folder, **env: str) -> None:
        self.tmux = TmuxServer()
        nowhere = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())}
        own = {"BATON_TMUX_SOCKET": self.tmux.socket, "BATON_HOST": "here", "SHELL": "/bin/sh", "PS1": "$ ", "ENV": ""}
        super().__init__(folder, **nowhere | own | env)
        self.home = os.path.join(folder, ".hermes")

    def close(self) -> None:
        """Ends the tmux server; everything that was in it must end by itself then."""
        self.tmux.remove()
        poll(lambda: not self.processes(), 15)
        left = self.processes()
        for process in left:
            os.kill(process.pid, signal.SIGKILL)
        assert not left, f"left behind: {[process.command for process in left]}"

    def processes(self) -> list[Process]:
        """Every process that was started from our commands, wherever it has put itself: they share our HOME."""
        return processes_with("HOME", str(self.folder))

    def runners(self) -> list[Process]:
        return [
            each
            for each in self.processes()
            if re.search(r"-m baton.sessions.runner \S+ $", each.command) and "new-session" not in each.command
        ]

    def create(self, name: str, *more: str, agent: str = "shell", **settings) -> dict:
        return self("session", "create", name, "--agent", agent, "--json", *more, **settings).json

    def show(self, name: str) -> dict:
        return self("session", "show", name).json

    def state(self, name: str) -> str:
        return self.show(name)["state"]

    def until_state(self, name: str, state: str) -> dict:
        wait_until(lambda: self.row(name)["state"] == state, what=f"session {name} {state}")
        return self.show(name)

    def row(self, name: str) -> dict:
        """The inventory's row, without the cost of a command."""
        with sqlite3.connect(os.path.join(self.home, "agent-sessions.db")) as connection:
            found = connection.execute("SELECT record FROM sessions WHERE name = ?", (name,)).fetchone()
        connection.close()
        return json.loads(found[0])

    def archived(self) -> dict[str, dict]:
        """The YAML archive, by name."""
        try:
            with open(os.path.join(self.home, "agent-sessions.yaml"), encoding="utf-8") as file:
                return {entry["name"]: entry for entry in yaml.safe_load(file)["sessions"]}
        except OSError:
            return {}

    def screen(self, name: str) -> str:
        return self("session", "capture", name, "--lines", "2000").out

    def until_shown(self, name: str, text: str) -> str:
        pane = self.row(name)["pane_id"]
        wait_until(lambda: text in self.tmux("capture-pane", "-p", "-J", "-t", pane), what=f"{text!r} on screen")
        return self.screen(name)

    def register(self, prompt: str, *more: str, agent: str = "shell") -> str:
        return self("register", "-", "--agent", agent, *more, stdin=prompt).text

    def job(self, job_id: str) -> dict:
        return self("get", job_id).json

    def until_over(self, job_id: str) -> dict:
        return wait_until(lambda: job if (job := self.job(job_id))["status"] not in ("pending", "running") else None)

    def story(self, job_id: str) -> list[tuple[str, str]]:
        """What was said about a job: event and detail."""
        lines = [json.loads(line) for line in self("logs", job_id, "--json").out.splitlines()]
        return [(line["payload"]["event"], line["payload"]["detail"]) for line in lines if line["event"] == "published"]
