"""Holds what requests and activity cost to their limits of speed.

    python bench/requests.py              everything, in about a minute
    python bench/requests.py hooks        what the hooks of Claude Code cost

Exit code 1 when a limit is missed. The real Claude Code is needed on the PATH (`make .agents/.installed`). It talks to
a stand-in for its model on this machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from baton.adapters.claude_code import SETTINGS, ClaudeCode
from baton.adapters.contract import Mode, Task
from baton.channels.claude_hooks import ClaudeHooks
from baton.channels.claude_settings import TOKEN
from baton.core.signal import TurnEnded
from table import ROOT, SMALLEST, Folder, Row, chosen_parts, ms, run_parts, size, timed

sys.path.insert(0, os.path.join(ROOT, "tests"))
from truth.scripted_model import Say, ScriptedModel, bash, cue  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.core.signal import Heard

CALLS = size(50, 5)
RUNS = 3
LIMIT_SEC = 0.005
_KEY = "not-a-key-of-anybody-0123456789"


class Listening:
    """The channel of one run of the program. It lets every turn end, and answers nothing."""

    def __init__(self, folder: str, conversation_id: str) -> None:
        task = Task(
            mode=Mode.INTERACTIVE, prompt="", conversation_id=conversation_id, resume=False, yolo=False,
            folder=folder, workdir=folder, hook=["true"],
        )  # fmt: skip
        self.heard = 0
        self.channel = ClaudeHooks(ClaudeCode(), task)
        self.setup = self.channel.open(self._hear)
        self.settings = os.path.join(folder, SETTINGS)
        with open(self.settings, "w", encoding="utf-8") as file:
            file.write(self.setup.files[SETTINGS])

    def _hear(self, heard: Heard) -> None:
        self.heard += heard.source == "hook"
        if isinstance(heard.signal, TurnEnded):
            threading.Thread(target=self.channel.end_turn, args=(heard.signal.turn, None)).start()


def hooks(folder: Folder) -> Iterator[Row | str]:
    """what http hooks cost a tool call"""
    yield from _of_stand_in(folder)
    if SMALLEST:
        return
    if shutil.which("claude") is None:
        yield Row(
            f"hooks of {CALLS} tool calls", "no claude on the PATH", "", "", "", False if "CI" in os.environ else None
        )
        return
    model = ScriptedModel({"calls": [*([bash("true")] for _ in range(CALLS)), [Say("done")]]})
    try:
        # By turns, so that whatever else runs here meets both.
        runs = [
            (_run_claude(folder, model, with_hooks=True), _run_claude(folder, model, with_hooks=False))
            for _ in range(RUNS)
        ]
    finally:
        model.close()
    ours, bare = (min(median(run[which]) for run in runs) for which in (0, 1))
    cost = ours - bare
    yield Row(
        f"hooks and telemetry, a tool call (median of {CALLS}, best of {RUNS})", ms(ours), f"without: {ms(bare)}",
        f"{cost * 1000:+.2f} ms", f"<= {LIMIT_SEC * 1000:g} ms more", cost <= LIMIT_SEC,
    )  # fmt: skip


def _of_stand_in(folder: Folder) -> Iterator[Row]:
    """Measure the gateway alone, with a client in place of the program."""
    listening = Listening(folder.new("session"), str(uuid.uuid4()))
    client = http.client.HTTPConnection("127.0.0.1", _port(listening), timeout=10)
    headers = {"Authorization": f"Bearer {listening.setup.environment[TOKEN]}"}
    about = {"session_id": listening.channel._conversation, "tool_name": "Bash", "tool_input": {"command": "true"}}

    def call() -> None:
        for event in ("PreToolUse", "PostToolUse"):
            client.request("POST", "/hook", json.dumps(about | {"hook_event_name": event, "tool_use_id": "x"}), headers)
            assert client.getresponse().read() == b"{}"

    try:
        yield Row("the gateway alone, two hooks of a tool call", ms(median(timed(call) for _ in range(size(500, 20)))))
    finally:
        client.close()
        listening.channel.close()


def _port(listening: Listening) -> int:
    url = json.loads(listening.setup.files[SETTINGS])["hooks"]["Stop"][0]["hooks"][0]["url"]
    return int(url.split(":")[2].split("/")[0])


def _run_claude(folder: Folder, model: ScriptedModel, *, with_hooks: bool) -> list[float]:
    """Return how long each call took, from the model's answer that asked for it to the request with its result."""
    home = folder.new("home")
    work = os.path.join(home, "work")
    os.mkdir(work)
    known = {
        "hasCompletedOnboarding": True,
        "customApiKeyResponses": {"approved": [_KEY[-20:]]},
        "projects": {work: {"hasTrustDialogAccepted": True}},
    }
    with open(os.path.join(home, ".claude.json"), "w", encoding="utf-8") as file:
        json.dump(known, file)
    conversation_id = str(uuid.uuid4())
    environment = {
        "PATH": os.environ["PATH"], "HOME": home, "ANTHROPIC_API_KEY": _KEY, "ANTHROPIC_BASE_URL": model.url,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
    }  # fmt: skip
    argv = ["claude", "-p", "--session-id", conversation_id, "--allowedTools", "Bash"]
    listening = Listening(folder.new("session"), conversation_id) if with_hooks else None
    if listening is not None:
        environment |= listening.setup.environment
        argv += ["--settings", listening.settings]
    before = len(model.log)
    try:
        subprocess.run(
            [*argv, "--", cue("calls")], cwd=work, env=environment, check=True, stdin=subprocess.DEVNULL,
            capture_output=True, pass_fds=listening.setup.descriptors if listening is not None else (),
        )  # fmt: skip
    finally:
        if listening is not None:
            listening.channel.close()
    asked = [each for each in model.log[before:] if each.script == "calls"]
    if len(asked) != CALLS + 1 or (listening is not None and listening.heard < 2 * CALLS):
        raise SystemExit(f"bench: {len(asked) - 1} tool calls and {listening and listening.heard} hooks")
    return [after.at - (first.answered_at or 0) for first, after in pairwise(asked)]


PARTS = {"hooks": hooks}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sys.exit(run_parts(PARTS, chosen_parts(parser, PARTS).part))
