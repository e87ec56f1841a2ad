"""Holds what requests and activity cost to their limits of speed.

    python bench/requests.py              everything, in about a minute
    python bench/requests.py hooks        what the hooks of Claude Code cost
    python bench/requests.py answers      how long an answer takes to the agent
    python bench/requests.py idle         what a runner costs that has nothing to do

Exit code 1 when a limit is missed. For `hooks`, the real Claude Code is needed on the PATH (`make .agents/.installed`).
It talks to a stand-in for its model on this machine. For `answers`, a stand-in for Claude Code asks in a session with a
real runner; each request is answered by `baton approve`, a process of its own, as soon as the registry has it. For
`idle`, the same stand-in works in silence, or waits for an answer that does not come.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from baton.adapters.claude_code import SETTINGS, ClaudeCode
from baton.adapters.contract import Mode, Task
from baton.channels.claude_hooks import ClaudeHooks
from baton.channels.claude_settings import TOKEN
from baton.core.signal import TurnEnded
from baton.jobs.verbs import open_jobs
from baton.storage.homes import load_settings
from delegate import place
from table import ROOT, SMALLEST, Folder, Row, chosen_parts, ms, run_parts, size, timed

sys.path.insert(0, os.path.join(ROOT, "tests"))
from truth.scripted_model import Say, ScriptedModel, bash, cue  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton.core.signal import Heard
    from baton.jobs.verbs import Jobs
    from delegate import Place

CALLS = size(50, 5)
RUNS = 3
LIMIT_SEC = 0.005
ANSWERS = size(20, 1)
ANSWER_SEC, ANSWER_FAR_SEC = 0.3, 1.0
IDLE_SEC, SETTLE_SEC = size(15, 1), size(4, 0)
IDLE_SHARE, IDLE_MB = 0.003, 22
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

    def close(self) -> None:
        self.channel.close()


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
        # By turns, so that whatever else runs here meets all.
        kinds = (Listening, Answering, None)
        runs = [[median(_run_claude(folder, model, kind)) for kind in kinds] for _ in range(RUNS)]
    finally:
        model.close()
    ours, smallest, bare = (min(run[number] for run in runs) for number in range(len(kinds)))
    cost = ours - smallest
    yield Row(
        f"hooks and telemetry, a tool call (median of {CALLS}, best of {RUNS})", ms(ours),
        f"smallest server: {ms(smallest)}", f"{cost * 1000:+.2f} ms", f"<= {LIMIT_SEC * 1000:g} ms more",
        cost <= LIMIT_SEC,
    )  # fmt: skip
    # Claude Code needs about 5 ms for each http hook, whoever answers it. baton cannot change that.
    yield Row("the same without hooks", ms(ours), f"without: {ms(bare)}", f"{(ours - bare) * 1000:+.2f} ms")


class Answering(Listening):
    """The same with the smallest server that hooks can have: it reads what comes, and answers at once."""

    def __init__(self, folder: str, conversation_id: str) -> None:
        super().__init__(folder, conversation_id)
        self._server = socket.create_server(("127.0.0.1", 0))
        old, new = (f"http://127.0.0.1:{port}/" for port in (_port(self), self._server.getsockname()[1]))
        with open(self.settings, "w", encoding="utf-8") as file:
            file.write(self.setup.files[SETTINGS].replace(old, new))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as messages:
            while head := list(iter(messages.readline, b"\r\n")):
                if not head[0]:
                    return
                length = next(int(line.split(b":")[1]) for line in head if line.lower().startswith(b"content-length:"))
                self.heard += b'"hook_event_name"' in messages.read(length)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    def close(self) -> None:
        super().close()
        self._server.close()


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
        listening.close()


def _port(listening: Listening) -> int:
    url = json.loads(listening.setup.files[SETTINGS])["hooks"]["Stop"][0]["hooks"][0]["url"]
    return int(url.split(":")[2].split("/")[0])


def _run_claude(folder: Folder, model: ScriptedModel, kind: type[Listening] | None) -> list[float]:
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
    listening = None if kind is None else kind(folder.new("session"), conversation_id)
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
            listening.close()
    asked = [each for each in model.log[before:] if each.script == "calls"]
    if len(asked) != CALLS + 1 or (listening is not None and listening.heard < 2 * CALLS):
        raise SystemExit(f"bench: {len(asked) - 1} tool calls and {listening and listening.heard} hooks")
    return [after.at - (first.answered_at or 0) for first, after in pairwise(asked)]


# -- answers -----------------------------------------------------------------------------------------------


# Asks so many times for a permission, one after the other, and writes down how long each answer took. Without a number,
# it works in silence.
_STAND_IN = """#!{python} -SE
import json, sys, time
number, path = {number}, {path!r}
def say(**message):
    print(json.dumps(message), flush=True)
    return time.monotonic()
say(type="system", subtype="init", session_id=sys.argv[sys.argv.index("--session-id") + 1])
sys.stdin.readline()
if not number:
    say(type="assistant", message=dict(content=[dict(type="tool_use", id="x", name="Bash", input=dict(command="x"))]))
    sys.stdin.read()
for each in range(number):
    call, tool = {{"command": f"echo {{each}}"}}, f"tool{{each}}"
    say(type="assistant", message=dict(content=[dict(type="tool_use", id=tool, name="Bash", input=call)]))
    asked = say(type="control_request", request_id=f"r{{each}}",
                request=dict(subtype="can_use_tool", tool_name="Bash", input=call, tool_use_id=tool))
    while "control_response" not in (line := sys.stdin.readline()):
        pass
    with open(path, "a") as file:
        print(time.monotonic() - asked if '"allow"' in line else "denied", file=file)
    say(type="user", message=dict(content=[dict(type="tool_result", tool_use_id=tool, content="ok")]))
say(type="result", subtype="success", is_error=False, result="done")
sys.stdin.read()
"""


def answers(folder: Folder) -> Iterator[Row | str]:
    """how long it takes from a question to the tool, with `baton approve` in between"""
    seconds = _answer_all(folder, {})
    ok = median(seconds) <= ANSWER_SEC
    what = f"ask, baton approve, the tool runs (median of {len(seconds)})"
    yield Row(f"{what}, one host", ms(median(seconds)), "", "", f"<= {ANSWER_SEC * 1000:g} ms", ok)
    if SMALLEST:
        return
    from support.postgres import PostgresServer

    try:
        server = PostgresServer()
    except OSError as error:
        yield f"postgresql was not measured: {error}"
        return
    try:
        seconds = _answer_all(folder, {"BATON_REGISTRY": server.new_url()})
    finally:
        server.remove()
    ok = median(seconds) <= ANSWER_FAR_SEC
    yield Row(f"{what}, PostgreSQL", ms(median(seconds)), "", "", f"<= {ANSWER_FAR_SEC * 1000:g} ms", ok)


def _answer_all(folder: Folder, environment: dict[str, str]) -> list[float]:
    """Return how long each answer took, in seconds."""
    with place(folder, "answers") as here:
        path = os.path.join(here.folder, "seconds")
        _install_stand_in(here, ANSWERS, path)
        here.env |= environment
        if "BATON_REGISTRY" in environment:
            here("register", "--agent", "shell", "makes the registry")
        job_id = here("submit", "--detach", "--agent", "claude-code", "--headless", "go").split()[0]
        with open_jobs(load_settings(env=here.env, here=here.folder)) as jobs:
            for _ in range(ANSWERS):
                request = _next_request(jobs, job_id)
                here("approve", request)
            _until(lambda: jobs.get_job(job_id).status == "completed", "the end of the job")
        _until(lambda: '"running"' not in here("session", "list", "--json"), "the end of the session")
        with open(path, encoding="utf-8") as file:
            return [float(line) for line in file]


def _install_stand_in(here: Place, number: int, path: str = "") -> None:
    programs = os.path.join(here.folder, "bin")
    os.mkdir(programs)
    with open(os.path.join(programs, "claude"), "w", encoding="utf-8") as file:
        file.write(_STAND_IN.format(python=sys.executable, number=number, path=path))
    os.chmod(file.name, 0o755)
    here.env |= {"PATH": f"{programs}:{here.env['PATH']}"}


def _next_request(jobs: Jobs, job_id: str) -> str:
    _until(lambda: jobs.registry.list_requests(job_id=job_id), "a request")
    return jobs.registry.list_requests(job_id=job_id)[0].request_id


def _until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"bench: waited in vain for {what}")
        time.sleep(0.002)


# -- idle --------------------------------------------------------------------------------------------------


def idle(folder: Folder) -> Iterator[Row]:
    """what a runner costs that has nothing to do"""
    for number, what in ((0, "whose agent works in silence"), (1, "with a request open")):
        share, memory = _idle(folder, number)
        wanted = f"<= {IDLE_SHARE:.1%}"
        yield Row(f"CPU of a runner {what}, of a core", f"{share:.2%}", "", "", wanted, share <= IDLE_SHARE)
        yield Row("  its memory", f"{memory:.1f} MB", "", "", f"<= {IDLE_MB} MB", memory <= IDLE_MB)


def _idle(folder: Folder, requests: int) -> tuple[float, float]:
    """Return which share of a core the runner takes, and its memory in MB."""
    with place(folder, "idle") as here:
        _install_stand_in(here, requests)
        job_id = here("submit", "--detach", "--agent", "claude-code", "--headless", "go").split()[0]
        with open_jobs(load_settings(env=here.env, here=here.folder)) as jobs:
            if requests:
                _next_request(jobs, job_id)
            else:
                _until(lambda: (jobs.get_job(job_id).activity or {}).get("kind") == "working", "the agent's work")
            (session,) = json.loads(here("session", "list", "--json"))
            time.sleep(SETTLE_SEC)  # what follows on the beginning is over
            before = _cpu_ns(session["pane_pid"])
            took = timed(lambda: time.sleep(IDLE_SEC))
            share = (_cpu_ns(session["pane_pid"]) - before) / 1e9 / took
            memory = _memory_mb(session["pane_pid"])
            assert jobs.get_job(job_id).status == "running"
        here("cancel", job_id)
        _until(lambda: '"running"' not in here("session", "list", "--json"), "the end of the session")
    return share, memory


def _cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads. The clock ticks of `stat` are too coarse for so little."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total


def _memory_mb(pid: int) -> float:
    """Return the proportional share: the interpreter's own pages are shared with every other Python program."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024


PARTS = {"hooks": hooks, "answers": answers, "idle": idle}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sys.exit(run_parts(PARTS, chosen_parts(parser, PARTS).part))
