"""Measures baton beside other programs that users choose between: the same work, in one run.

    python bench/peers.py              everything, in about ten minutes; `make peers` installs what it needs
    python bench/peers.py claims       only this part; `--help` names them
    python bench/peers.py --page docs/comparison.md     also writes the result into the page

pip installs each program into an environment of its own below build/peers, which the next run uses again. The run
starts Redis and PostgreSQL on this machine and stops them. A program that cannot be measured is named with its error.
Exit code 1 when baton lost a job in the kill storm, or began one twice. The other figures have no limit. At the
smallest size, nothing is installed, and only baton is measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import textwrap
import time
from typing import TYPE_CHECKING, NamedTuple

from delegate import WORK
from peer_agents import STARTS, TIMES, measure_programs
from peer_queues import (
    KILLS,
    LEASE_SEC,
    PENDING,
    PROCESSES,
    RECOVERY_SEC,
    ROUNDS,
    Survived,
    kill_workers,
    measure_claims,
)
from peer_setup import BATON, PROGRAMS, LeftOut, Program, Servers, install, installed_mb, run, versions
from table import ROOT, SMALLEST, Folder, chosen_parts, disk_folder, ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


class Run(NamedTuple):
    """What every part gets, and where it says what it could not measure."""

    programs: list[Program]
    folder: Folder
    servers: Servers
    left_out: dict[str, str]
    seed: int
    missed: list[str]

    @property
    def queues(self) -> list[Program]:
        return [program for program in self.programs if program.module]


# -- the parts: each yields lines of Markdown --------------------------------------------------------------


def claims(of: Run) -> Iterator[str]:
    """claim and finish jobs, with few and with many pending"""
    found = measure_claims(of.queues, of.folder, of.servers, of.left_out)
    yield "### Claim and finish"
    yield ""
    yield from paragraph(
        f"Jobs a second that {PROCESSES} processes claim and finish together, one by one; the body does nothing. Median"
        f" of {ROUNDS} rounds in which the programs take turns. Every change is synced to the disk before it counts:"
        " SQLite with `synchronous=FULL`, Redis with `appendfsync always`, PostgreSQL with its default. Each stores the"
        " end of the job: huey and rq a result, procrastinate the status, baton a signed"
        " event and a line of the audit log. rq's process for each job is left out, which makes rq faster here. In"
        " brackets: compared with baton on SQLite."
    )
    headings = ["program", *(f"{pending:,} pending" for pending in PENDING)]
    rows = [[program.name, *(_rate(found[pending], program.name) for pending in PENDING)] for program in of.queues]
    yield from markdown(headings, rows)


def _rate(rates: dict[str, float], name: str) -> str:
    if name not in rates:
        return "-"
    base = rates.get(BATON.name)
    return f"{rates[name]:,.0f}" if base is None else f"{rates[name]:,.0f} ({rates[name] / base:.1f}x)"


def storm(of: Run) -> Iterator[str]:
    """kill workers at random, then count the jobs"""
    found = kill_workers(of.queues, of.folder, of.servers, of.left_out, of.seed)
    yield "### Kill storm"
    yield ""
    yield from paragraph(
        f"{PROCESSES} workers run jobs of 10 ms. {KILLS} times, a worker that has begun a job is killed by SIGKILL at a"
        " random moment, with every process that it started, and another is started. Then the others work until every"
        f" job is done, or for {RECOVERY_SEC} s. Each program runs its own worker, and what its manual asks for to find"
        " the jobs of dead workers; where retries are an option, they are on; idle workers of rq"
        " look for such jobs every 15 s, not every seven minutes. baton has no worker for Python"
        f" functions: its worker here is a loop around `pick_pending` and `record_event` with a lease of {LEASE_SEC} s,"
        " beside `baton monitor`."
    )
    yield from paragraph(
        "*Acknowledged*: the call that enqueues the job has returned. *Done*: the body ran to its end. *Failed*: not"
        " done, and the program's record says so. *Stuck*: not done, and the record has it as waiting or running."
        " *Lost*: not done, and no record is left. *Run again*: begun again after the worker that had it was killed."
        " This is on purpose; the body may have been done before. *Doubled*: begun again although the worker that had"
        " begun it was not killed, or had gone on to another job."
    )
    names = ("acknowledged", "kills", "done", "failed", "stuck", "lost", "run again", "doubled", "memory of a worker")
    yield from markdown(["program", *names], [_survived(program, found) for program in of.queues])
    for name, survived in found.items():
        bad = survived.counts.lost + survived.counts.stuck + survived.counts.doubled
        if bad and name.startswith("baton"):
            of.missed.append(f"{name}: {bad} jobs lost, stuck or doubled")


def _survived(program: Program, found: dict[str, Survived]) -> list[str]:
    if program.name not in found:
        return [program.name, *["-"] * 9]
    survived = found[program.name]
    counts = survived.counts
    figures = (
        survived.acknowledged, survived.kills, counts.done, counts.failed, counts.stuck, counts.lost, counts.run_again,
        counts.doubled,
    )  # fmt: skip
    worker = "-" if program.module == "on_baton" else f"{survived.memory_mb:.0f} MB"
    return [program.name, *(f"{figure:,}" for figure in figures), worker]


def programs(of: Run) -> Iterator[str]:
    """the start of the commands, from launch to reply, memory, size of the installation"""
    found = measure_programs(of.programs, of.folder, of.servers, of.left_out)
    yield "### Start, launch to reply, memory, size"
    yield ""
    yield from paragraph(
        f"*Start*: `--help`, and the command that lists jobs or sessions, median of {STARTS}. *New session*: from the"
        f" command to the reply of an agent that takes 50 ms (`{WORK}` in a shell), in a new tmux session, median of"
        f" {TIMES}: `baton submit`, `cao launch --headless` with its provider `mock_cli`, `tmux new-session`. *Running"
        " session*: the same in a session that is there: `baton submit --session`, `cao session send`, `tmux"
        " send-keys`; a running session of baton looks for a job once a second. *Memory*: proportional set size after a"
        " few jobs. *Installed*: what pip installs into an empty environment, without pip and setuptools. Redis,"
        " PostgreSQL and tmux are not in it."
    )
    headings = ["program", "start: `--help`", "start: list", "new session", "running session", "memory", "installed"]
    rows = []
    for name in [*(program.name for program in of.programs), "plain tmux"]:
        times = [_ms(each, name) for each in (found.help, found.list, found.new, found.again)]
        program = next((each for each in of.programs if each.name == name), None)
        server = of.servers.memory(program) if program is not None else ""
        memory = ", ".join(filter(None, (found.memory.get(name, ""), server)))
        size = f"{installed_mb(program):.0f} MB" if program is not None and not SMALLEST else "-"
        rows.append([name, *times, memory or "-", size])
    yield from markdown(headings, rows)


def _ms(seconds: dict[str, float], name: str) -> str:
    return ms(seconds[name]) if name in seconds else "-"


PARTS = {"claims": claims, "storm": storm, "programs": programs}


# -- the text ----------------------------------------------------------------------------------------------


def paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, 136, break_long_words=False, break_on_hyphens=False), ""]


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in (headings, ["---"] * len(headings), *rows):
        yield f"| {' | '.join(row)} |"
    yield ""


def describe(of: Run, kind: str) -> Iterator[str]:
    """Yield the machine, the versions of all programs, and what is not measured."""
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    servers = [run(["tmux", "-V"]).strip()]
    if not SMALLEST and (redis := shutil.which("redis-server")):
        servers.append("Redis " + run([redis, "--version"]).split("v=")[1].split()[0])
    if of.servers.postgres_version:
        servers.append(f"PostgreSQL {of.servers.postgres_version}")
    yield from paragraph(
        f"Measured {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} on {platform.system()} {platform.machine()},"
        f" {os.cpu_count()} cores, load at the end {load}, {kind}, Python {platform.python_version()}, SQLite"
        f" {sqlite3.sqlite_version}, {', '.join(servers)}; `python bench/peers.py --seed {of.seed}`."
    )
    found: dict[str, str] = {}
    for program in of.programs:
        names = [
            "tmux-baton" if each.startswith(ROOT) else each.split("==")[0].split("[")[0] for each in program.packages
        ]
        packages = versions(program)
        found |= {name: packages[name] for name in names}
    yield from paragraph("Versions: " + ", ".join(f"{name} {version}" for name, version in found.items()) + ".")


def describe_left_out(left_out: dict[str, str]) -> Iterator[str]:
    for what, error in left_out.items():
        yield f"- Not measured: {what}: {error}"
    if not left_out:
        yield "Nothing was left out."


def write_page(path: str, lines: list[str]) -> None:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([before + BEGIN, "", *lines, "", END]) + after)


def prepare(left_out: dict[str, str]) -> list[Program]:
    """Install the programs and return those that are there."""
    if SMALLEST:
        left_out |= {program.name: "not installed at the smallest size" for program in PROGRAMS if program is not BATON}
        return [BATON]
    found = []
    for program in PROGRAMS:
        print(f"... installing {program.name}", file=sys.stderr, flush=True)
        try:
            install(program)
            found.append(program)
        except LeftOut as error:
            left_out[program.name] = str(error)
    if BATON not in found:
        raise SystemExit(f"bench: baton cannot be installed: {left_out[BATON.name]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", help="also write the result into this page, between its two marks")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="repeat the moments of the kills")
    options = chosen_parts(parser, PARTS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped then, too
    start = time.monotonic()
    left_out: dict[str, str] = {}
    present = prepare(left_out)
    parent, kind = disk_folder()
    path = tempfile.mkdtemp(prefix="baton-bench-", dir=parent)
    folder = Folder(path)
    of = Run(present, folder, Servers(folder.new("servers")), left_out, options.seed, [])
    lines: list[str] = []
    try:
        for name in options.part:
            print(f"... {PARTS[name].__doc__}", file=sys.stderr, flush=True)
            lines += PARTS[name](of)
        lines = [*describe(of, kind), *lines, *describe_left_out(left_out)]
    finally:
        of.servers.remove()
        shutil.rmtree(path)
    print("\n".join(lines))
    if options.page:
        write_page(options.page, lines)
    for missed in of.missed:
        print(f"MISSED: {missed}")
    took = f"{time.monotonic() - start:.0f} s, load now {os.getloadavg()[0]:.1f}"
    print(f"\n{len(of.missed) or 'no'} limits missed; {took}")
    return 1 if of.missed and not SMALLEST else 0


if __name__ == "__main__":
    sys.exit(main())
