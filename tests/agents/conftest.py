"""Real agent programs, each test with a home, a tmux server, a broker and a model service of its own; nothing leaves
the machine."""

from __future__ import annotations

import json
import os

import pytest

from baton.config import Settings
from baton.jobs.verbs import open_jobs
from support.brokers import Broker, free_port
from support.command import Baton
from support.tmux import TmuxServer
from support.waiting import poll
from truth.scripted_model import ScriptedModel

_KEY = "not-a-key-of-anybody-0123456789"
_PATIENCE_SEC = 60


class World:
    """What a test needs: `baton` is the command, `model` what the agents talk to, `work` where they work."""

    def __init__(self, folder, tmux: TmuxServer, broker: Broker, model: ScriptedModel) -> None:
        self.folder, self.tmux, self.model = folder, tmux, model
        self.home = folder / "home"
        self.work = folder / "work"
        for each in (self.home, self.work):
            each.mkdir()
        self.baton = Baton(folder, **self._environment(), **broker.env)
        self.point_at(model.url)
        self._set_up_claude()
        self._set_up_gemini()

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "BATON_HOME": str(self.folder / "state"),
            "BATON_TMUX_SOCKET": self.tmux.socket,
            "ANTHROPIC_API_KEY": _KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CODEX_HOME": str(self.home / ".codex"),
            "CODEX_KEY": _KEY,
            "GEMINI_API_KEY": _KEY,
            "GEMINI_CLI_DISABLE_AUTO_UPDATE": "1",
        }

    def point_at(self, url: str) -> None:
        """Where the agents look for their models."""
        self.baton.env |= {"ANTHROPIC_BASE_URL": url, "GOOGLE_GEMINI_BASE_URL": url}
        self._write(
            ".codex/config.toml",
            f"""\
model = "m"
model_provider = "stand-in"
check_for_update_on_startup = false
[model_providers.stand-in]
name = "stand-in"
base_url = "{url}/v1"
env_key = "CODEX_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
[analytics]
enabled = false
[projects."{self.work}"]
trust_level = "trusted"
""",
        )

    def _set_up_claude(self) -> None:
        """As somebody who has used it before, and trusts the folder."""
        known = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [_KEY[-20:]]},
            "projects": {str(self.work): {"hasTrustDialogAccepted": True}},
        }
        self._write(".claude.json", json.dumps(known))
        self.allow("Bash")

    def allow(self, *tools: str, deny: tuple[str, ...] = ()) -> None:
        """What claude may use without asking, and what it may not use, by its user's own settings."""
        permissions = {"allow": list(tools), "deny": list(deny)}
        self._write(".claude/settings.json", json.dumps({"permissions": permissions}))

    def _set_up_gemini(self) -> None:
        settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "general": {"disableAutoUpdate": True},
                    "privacy": {"usageStatisticsEnabled": False}}  # fmt: skip
        self._write(".gemini/settings.json", json.dumps(settings))
        self._write(".gemini/trustedFolders.json", json.dumps({str(self.work): "TRUST_FOLDER"}))

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
