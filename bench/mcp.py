"""Hold `baton mcp` to its limits: how soon an agent has the tools, how long a call takes, how much memory it needs.

    python bench/mcp.py            everything, in about half a minute
    python bench/mcp.py start      from the start of the process to the answer to tools/list
    python bench/mcp.py calls      list with 1,000 jobs, and the memory after every kind of call

Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from table import Folder, Row, Runner, at_most, chosen_parts, in_turns, ms, run_parts, size, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

BATON = os.path.join(os.path.dirname(sys.executable), "baton")
RUNS, CALLS, JOBS = size(60, 2), size(300, 3), size(1000, 5)
START_LIMIT, LIST_SEC, MEMORY_MB = 4.0, 0.005, 25
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
# Jobs as people leave them: most have ended, some failed, a few run.
_FILL = """
import sys, time, baton
from baton.core.drafts import new_job
from baton.core.event import EventName
with baton.open_jobs() as jobs:
    prompt = "Fix the login page of the shop, and add tests for it. " * 5
    drafts = [new_job(prompt, now_ns=time.time_ns(), agent="shell", title=f"Fix page {number}", labels=["shop"])
              for number in range(int(sys.argv[1]))]
    made = jobs.register_many(drafts)
    for number, job in enumerate(made):
        jobs.registry.record_event(job.job_id, EventName.STARTED)
        if number % 50:
            end = EventName.ERROR if number % 10 == 0 else EventName.COMPLETED
            jobs.registry.record_event(job.job_id, end, outcome={"reason": "the validation failed: 2 tests"})
    print(made[0].job_id, made[1].job_id)
"""


class Client:
    """A running `baton mcp`, and a client of the generation without `initialize`."""

    def __init__(self, run: Runner) -> None:
        self.process = subprocess.Popen(
            [BATON, "mcp"], cwd=run.folder, env=run.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": META}}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        if "error" in answer or answer["result"].get("isError"):
            raise SystemExit(f"bench: {method} was refused: {answer}")
        return answer

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.ask("tools/call", name=tool, arguments=arguments)["result"]["structuredContent"]

    def peak_mb(self) -> float:
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024

    def close(self) -> None:
        self.process.communicate()


def start(folder: Folder) -> Iterator[Row]:
    """the start of the server, until it has listed its tools"""
    run = Runner(folder.new("start"))

    def list_tools() -> None:
        client = Client(run)
        client.ask("tools/list")
        seconds.append(client)

    seconds: list[Client] = []
    list_tools()  # compiles the modules
    ours, python = in_turns(RUNS, list_tools, lambda: run([sys.executable, "-c", "pass"]))
    for client in seconds:
        client.close()
    ratio = at_most(START_LIMIT, ours, python)
    yield Row(f"start to tools/list, median of {RUNS}", ms(ours), f"python -c pass {ms(python)}", *ratio)


def calls(folder: Folder) -> Iterator[Row]:
    """calls of a running server, and its memory"""
    run = Runner(folder.new("calls"))
    filled = subprocess.run(
        [sys.executable, "-c", _FILL, str(JOBS)],
        cwd=run.folder,
        env=run.env,
        capture_output=True,
        text=True,
        check=True,
    )
    running, ended = filled.stdout.split()
    others: list[tuple[str, dict[str, Any]]] = [
        ("result", {"job_id": ended}), ("requests", {}), ("agents", {}),
        ("wait", {"job_ids": [running], "timeout_sec": size(6, 0)}),
    ]  # fmt: skip
    before = Client(run)  # compiles the modules, which takes memory
    for tool, arguments in others:
        before.call(tool, **arguments)
    before.close()
    client = Client(run)
    client.ask("tools/list")
    first = timed(lambda: client.call("list"))
    seconds = [timed(lambda: client.call("list")) for _ in range(CALLS)]
    middle, slow = median(seconds), quantiles(seconds, n=20)[-1]
    yield Row(
        f"list with {JOBS:,} jobs, median of {CALLS}", ms(middle), "", "", f"<= {ms(LIST_SEC)}", middle <= LIST_SEC
    )
    yield Row("  of 100, 5 take longer than", ms(slow))
    yield Row("  the first one, which loads the modules", ms(first))
    failed = timed(lambda: client.call("list", status="error", limit=200))
    yield Row("  200 failed ones", ms(failed))
    for tool, arguments in others:
        client.call(tool, **arguments)
    peak = client.peak_mb()
    client.close()
    yield Row("memory after all of these, at most", f"{peak:.1f} MB", "", "", f"<= {MEMORY_MB} MB", peak <= MEMORY_MB)


PARTS = {"start": start, "calls": calls}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sys.exit(run_parts(PARTS, chosen_parts(parser, PARTS).part))
