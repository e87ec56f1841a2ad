"""The real Claude Code and Codex hand work to other agents with the tools of `baton mcp`."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from support.command import BATON
from support.mcp import allow
from truth.scripted_model import Call, Say, bash, cue

# Codex passes few variables on to a server: these name the test's own tmux and broker, and the key of the other agent.
_VARIABLES = (
    "CODEX_KEY",
    "CODEX_HOME",
    "BATON_HOME",
    "BATON_TMUX_SOCKET",
    "MQTT_BROKER",
    "MQTT_PORT",
    "MQTT_USERNAME",
    "MQTT_PASSWORD",
)
TOOLS = ("submit", "wait", "list", "result", "message", "cancel", "requests", "answer", "agents")


class Lead:
    """An agent program that leads others, started by its user in the work folder."""

    def __init__(self, world) -> None:
        self.world = world

    def tool(self, name: str, **given) -> Call:
        raise NotImplementedError

    def argv(self, prompt: str) -> list[str]:
        raise NotImplementedError

    def start(self, prompt: str) -> subprocess.Popen:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.argv(prompt), cwd=self.world.work, env=self.world.baton.env, stdin=subprocess.DEVNULL, stdout=pipe,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, prompt: str) -> str:
        process = self.start(prompt)
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0, printed
        return printed


class Claude(Lead):
    name = "claude-code"

    def __init__(self, world) -> None:
        super().__init__(world)
        self.config = world.folder / "mcp.json"
        self.config.write_text(json.dumps({"mcpServers": {"baton": {"command": BATON, "args": ["mcp"]}}}))
        world.allow()  # nothing: what the other agent does, it asks for

    def tool(self, name: str, **given) -> Call:
        return Call(f"mcp__baton__{name}", given)

    def argv(self, prompt: str) -> list[str]:
        allowed = ",".join(f"mcp__baton__{name}" for name in TOOLS)
        return [
            "claude",
            "-p",
            prompt,
            "--mcp-config",
            str(self.config),
            "--strict-mcp-config",
            "--allowedTools",
            allowed,
        ]


class Codex(Lead):
    name = "codex"

    def __init__(self, world) -> None:
        super().__init__(world)
        path = world.home / ".codex" / "config.toml"
        path.write_text(
            path.read_text()
            + f'[mcp_servers.baton]\ncommand = {json.dumps(BATON)}\nargs = ["mcp"]\ntool_timeout_sec = 120\n'
            + f"env_vars = {json.dumps(_VARIABLES)}\n"
            + '[mcp_servers.baton.tools.submit]\napproval_mode = "approve"\n'
        )

    def tool(self, name: str, **given) -> Call:
        return Call(f"mcp__baton__{name}", given)

    def argv(self, prompt: str) -> list[str]:
        return ["codex", "exec", "--skip-git-repo-check", prompt]


@pytest.fixture(params=[Claude, Codex], ids=lambda kind: kind.name)
def lead(request, world):
    return request.param(world)


def only_job(world) -> str:
    (job,) = world.baton("list", "--json").json
    return job["job_id"]


def test_it_submits_waits_and_reads_while_a_rule_answers(lead, world):
    world.baton("rules", "add", "allow", "--command", "touch out.txt")
    ask = {"ask": True} if lead.name == "codex" else {}
    world.model.scripts = {
        "lead": [
            [lead.tool("submit", prompt=f"write out.txt {cue('work')}", agent=lead.name, title="Write", idempotency_key="k")],
            [lambda: lead.tool("wait", job_ids=[only_job(world)])],
            [lambda: lead.tool("result", job_id=only_job(world))],
            [Say("The other agent is done.")],
        ],
        "work": [[bash("touch out.txt", **ask)], [Say("I wrote it.")]],
    }  # fmt: skip
    printed = lead.run(f"Let another agent write out.txt. {cue('lead')}")
    assert "The other agent is done." in printed
    said = world.model.asked_last
    assert "I wrote it." in said
    job = world.record(only_job(world))
    assert job["status"] == "completed"
    assert (world.work / "out.txt").exists()
    lines = [json.loads(line) for line in world.baton("logs", job["job_id"], "--json").out.splitlines()]
    assert [line["via"] for line in lines if line["event"] == "request_closed"] == ["rule"]
    assert [line["via"] for line in lines if line["event"] == "action"] == ["mcp"]


def test_a_client_killed_in_wait_gets_the_result_in_its_next_call(lead, world):
    allow(str(world.home), "shell")
    task = {"prompt": "until [ -e go ]; do sleep 0.1; done; echo the-result", "agent": "shell", "title": "Wait"}
    world.model.scripts = {
        "lead": [
            [lead.tool("submit", **task, idempotency_key="k")],
            [lambda: lead.tool("wait", job_ids=[only_job(world)])],
            [Say("It has ended.")],
        ],
        "again": [
            [lead.tool("submit", **task, idempotency_key="k")],
            [lambda: lead.tool("wait", job_ids=[only_job(world)])],
            [lambda: lead.tool("result", job_id=only_job(world))],
            [Say("I have the result.")],
        ],
    }  # fmt: skip
    killed = lead.start(f"Let another agent wait. {cue('lead')}")
    world.until(lambda: world.model.find("lead", 1, answered=True), "the call of wait")
    server = world.until(lambda: _waiting_server(world), "the server to wait")
    assert world.record(only_job(world))["status"] == "running"
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    world.until(lambda: not os.path.exists(f"/proc/{server}"), "the server to end with its client")
    (world.work / "go").write_text("")
    printed = lead.run(f"Go on. {cue('again')}")
    assert "I have the result." in printed
    assert "the-result" in world.model.asked_last
    assert world.record(only_job(world))["status"] == "completed"


def _waiting_server(world) -> int | None:
    """Return the server of this test that has a call at work."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            is_here = os.readlink(f"/proc/{pid}/cwd") == str(world.work)
            if is_here and b"mcp" in words and len(os.listdir(f"/proc/{pid}/task")) > 1:
                return int(pid)
        except OSError:
            continue  # it has ended meanwhile
    return None
