"""Real agent programs, each test with a home, a tmux server, a broker and a model service of its own; nothing leaves
the machine."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest

from agents.homes import CONSTANTS, NO_AUTO_MODE, Home, environment, files
from baton.config import Settings
from baton.core.clock import parse_time
from baton.jobs.verbs import open_jobs
from support.brokers import Broker
from support.command import BATON, Baton
from support.ports import free_port
from support.tmux import TmuxServer
from support.waiting import poll
from truth.scripted_model import ScriptedModel

_PATIENCE_SEC = 60


class World:
    """What a test needs: `baton` is the command, `model` what the agents talk to, `work` where they work."""

    def __init__(self, folder, tmux: TmuxServer, broker: Broker, model: ScriptedModel) -> None:
        self.folder, self.tmux, self.model = folder, tmux, model
        self.home = folder / "home"
        self.work = folder / "work"
        for each in (self.home, self.work):
            each.mkdir()
        own = {"BATON_HOME": str(folder / "state"), "BATON_TMUX_SOCKET": tmux.socket}
        self.baton = Baton(folder, **CONSTANTS, **own, **broker.env)
        self._settings = Home(str(self.home), str(self.work), model.url)
        self.set_up()

    def set_up(self, **changes: object) -> None:
        """Write the homes of all programs anew, with these changes of `Home`."""
        self._settings = self._settings._replace(**changes)
        self.baton.env |= environment(self._settings)
        for name, text in files(self._settings).items():
            self._write(name, text)

    def point_at(self, url: str) -> None:
        """Change where the agents look for their models."""
        self.set_up(url=url)

    def allow(self, *tools: str, deny: tuple[str, ...] = ()) -> None:
        """What claude may use without asking, and what it may not use, by its user's own settings."""
        permissions = NO_AUTO_MODE | {"allow": list(tools), "deny": list(deny)}
        self._write(".claude/settings.json", json.dumps({"permissions": permissions}))

    def _write(self, name: str, text: str) -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    # -- jobs and sessions ---------------------------------------------------------------------------------------

    def job(self, prompt: str, *options: str, agent: str, stdin: str = "") -> str:
        given = ("--agent", agent, "--workdir", str(self.work), *options, "--", prompt)
        return self.baton("register", *given, stdin=stdin).text

    def ended(self, job: str, *, within_sec: float = _PATIENCE_SEC) -> dict:
        """The job once its story is over."""
        return self.until(
            lambda: record if (record := self.record(job))["status"] not in ("pending", "running") else None,
            f"job {job} to end",
            within_sec,
        )

    def record(self, job: str) -> dict:
        return self.baton("get", job).json

    def session(self, name: str) -> dict:
        return self.baton("session", "show", name).json

    def session_ended(self, name: str) -> dict:
        return self.until(
            lambda: shown if (shown := self.session(name))["state"] != "running" else None, f"session {name} to end"
        )

    def events(self, job: str) -> list[tuple[str, str]]:
        lines = [json.loads(line) for line in self.baton("logs", job, "--json").out.splitlines()]
        told = [line["payload"] for line in lines if line["event"] == "published"]
        return [(each["event"], each["detail"]) for each in told]

    def unsent(self, job: str) -> list[int]:
        with open_jobs(Settings(env=self.baton.env)) as jobs:
            return [event.seq for event in jobs.unsent_events(job_id=job)]

    def answer_at_screen(self, job: str, key: str) -> dict[str, float]:
        """Press a key that answers the job's open request on the agent's own screen. Return how long it stayed open after
        that, in seconds: in the registry, and for a listener."""
        [asked] = self.baton("requests", "--json").json
        argv = [BATON, "subscribe", "--job", job, "--json", "--timeout", str(_PATIENCE_SEC)]
        with subprocess.Popen(
            argv, cwd=self.folder, env=self.baton.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as listener:
            assert listener.stdout is not None
            heard = (json.loads(line)["data"] for line in listener.stdout)
            assert any(data.get("request_id") == asked["request_id"] for data in heard)  # it has caught up
            pressed_ns = time.time_ns()
            self.tmux("send-keys", "-t", "=s:", key)
            assert any(data.get("request_state") == "elsewhere" for data in heard)
            told_ns = time.time_ns()
            listener.terminate()
        closed = self.baton("requests", asked["request_id"], "--json").json["answered_at"]
        return {"registry": (parse_time(closed) - pressed_ns) / 1e9, "listener": (told_ns - pressed_ns) / 1e9}

    def screen(self, name: str) -> str:
        return self.baton("session", "capture", name, code=None).out

    def until(self, look, what: str, within_sec: float = _PATIENCE_SEC):
        found = poll(look, within_sec, interval_sec=0.1)
        if not found:
            shown = "\n".join(self.screen(each["name"]) for each in self.baton("session", "list", "--json").json)
            raise AssertionError(f"waited {within_sec} s for {what}; the screens show:\n{shown}")
        return found


@pytest.fixture
def model():
    service = ScriptedModel()
    yield service
    service.close()


@pytest.fixture
def dead_url():
    """Where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def world(tmp_path, model):
    tmux, broker = TmuxServer(), Broker("nats")
    world = World(tmp_path, tmux, broker, model)
    yield world
    for each in world.baton("session", "list", "--json").json:
        world.baton("session", "stop", each["name"], "--mode", "hard", code=None)
    tmux.remove()
    broker.remove()
    assert _left_behind(str(tmp_path)) == []


def _left_behind(folder: str) -> list[str]:
    """Processes that know this test's folder."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                mine = f"HOME={folder}".encode() in file.read()
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mine and command:
            found.append(f"{pid} {command}")
    return found
