"""The walks of docs/explanation/architecture.md, traced in the processes of the installed command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import BATON, Baton
from support.ports import free_port
from support.sessions import SessionDesk
from support.tracing import Trace
from support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"

# Calls its hooks as Claude Code does, then waits at its prompt.
CLAUDE = """#!/usr/bin/env {python}
import json, subprocess, sys, time
settings = json.load(open(sys.argv[sys.argv.index("--settings") + 1]))
command = settings["hooks"]["SessionStart"][0]["hooks"][0]["command"]
about = {{"session_id": sys.argv[sys.argv.index("--session-id") + 1], "prompt_id": "1"}}
for event, more in (
    ("SessionStart", {{"source": "startup"}}),
    ("UserPromptSubmit", {{"prompt": sys.argv[-1]}}),
    ("Stop", {{"last_assistant_message": "done", "background_tasks": []}}),
):
    message = {{"hook_event_name": event}} | about | more
    subprocess.run(command, shell=True, input=json.dumps(message), text=True)
time.sleep(60)
"""


def walk(title):
    """The steps below a heading of the page: process and function."""
    section = PAGE.read_text().split(f"\n### {title}\n")[1].split("\n## ")[0].split("\n### ")[0]
    steps = re.findall(r"^\| (\w+) \| `([\w.]+)` \|", section, re.MULTILINE)
    assert len(steps) > 5
    return steps


def compare(steps, calls):
    """Find the steps among the calls, in their order, all of a process in the same one."""
    reached = []

    def find(number, start, pids):
        reached.append(number)
        if number == len(steps):
            return True
        process, function = steps[number]
        for place in range(start, len(calls)):
            call = calls[place]
            if call.function == function and pids.get(process, call.pid) == call.pid:
                if process in pids:
                    return find(number + 1, place + 1, pids)
                if call.pid not in pids.values() and find(number + 1, place + 1, pids | {process: call.pid}):
                    return True
        return False

    assert find(0, 0, {}), f"no call of {steps[max(reached)]} after the steps before it"


@pytest.fixture
def trace(tmp_path):
    def begin(title):
        return Trace(str(tmp_path), [function for _, function in walk(title)])

    return begin


@pytest.fixture
def claude(tmp_path):
    """The folder of a program that acts as Claude Code."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "claude").write_text(CLAUDE.format(python=sys.executable))
    (programs / "claude").chmod(0o755)
    return programs


def test_submit_with_claude_code(trace, claude, tmp_path):
    title = "`baton submit` with Claude Code, to its verdict"
    traced = trace(title)
    folder = tmp_path / "work"
    folder.mkdir()
    desk = SessionDesk(str(folder), **traced.env, PATH=f"{claude}:{os.environ['PATH']}")
    try:
        desk.tmux.start("other")
        for name, value in traced.env.items():  # a tmux server that baton starts inherits none of it
            desk.tmux("set-environment", "-g", name, value)
        assert "completed" in desk("submit", "do it", "--agent", "claude-code", "--timeout", "60").out
    finally:
        desk.close()
    compare(walk(title), traced.calls())


def test_submit_loads_only_its_agent_and_no_other_surface(claude, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    code = (
        "import sys; from baton.cli.main import main; code = main(sys.argv[1:])\n"
        "loaded = [m for name, m in sys.modules.items() if name.startswith('baton.') and not hasattr(m, '__path__')]\n"
        "print(*sorted(m.__name__ for m in loaded), sep='\\n', file=sys.stderr); sys.exit(code)"
    )
    desk = SessionDesk(str(folder), PATH=f"{claude}:{os.environ['PATH']}")
    submit = ["submit", "do it", "--agent", "claude-code", "--timeout", "60"]
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *submit], cwd=folder, env=desk.env, capture_output=True, text=True, check=True
        )
    finally:
        desk.close()
    assert "completed" in done.stdout
    loaded = [line for line in done.stderr.splitlines() if line.startswith("baton.")]
    assert {"baton.delegation.submit", "baton.sessions.launch", "baton.transport.subscription"} <= set(loaded)
    agents = {name for name in loaded if name.startswith(("baton.adapters.", "baton.channels."))}
    assert [name for name in agents if re.search("codex|copilot|gemini|opencode|qwen|acp", name)] == []
    assert [name for name in loaded if name.startswith(("baton.board.", "baton.mcp.", "baton.sessions.runner"))] == []


def test_publish_to_subscribe(trace, tmp_path):
    title = "`baton publish --event completed`, to a line of `baton subscribe`"
    traced = trace(title)
    folder = tmp_path / "work"
    folder.mkdir()
    baton = Baton(str(folder), **traced.env)
    try:
        for tries_left in reversed(range(8)):
            job = baton("register", "x", "--expect", "result.md").text
            (folder / "result.md").write_text(job)
            listening = subprocess.Popen(
                [BATON, "subscribe", job, "--json"], cwd=folder, env=baton.env, stdout=subprocess.PIPE, text=True
            )
            baton("publish", job, "--event", "started")
            assert json.loads(listening.stdout.readline())["event"] == "started"
            baton("publish", job, "--event", "completed")
            out, _ = listening.communicate(timeout=30)
            assert json.loads(out)["event"] == "completed"
            try:
                compare(walk(title), traced.calls())
            except AssertionError:  # the listener read the registry first
                if tries_left == 0:
                    raise
            else:
                break
    finally:
        baton("broker", "down")


def test_a_lease_that_expires(trace, tmp_path):
    title = "A lease that expires, to its requeue"
    traced = trace(title)
    folder = tmp_path / "work"
    folder.mkdir()
    baton = Baton(str(folder), **traced.env, MQTT_BROKER="127.0.0.1", MQTT_PORT=str(free_port()))
    job = baton("register", "x", "--max-attempts", "2").text
    baton("pick", "--lease", "0.01")
    wait_until(lambda: "the lease" in baton("monitor", "--once").out)
    assert baton("status", job).text == "pending"
    compare(walk(title), traced.calls())
