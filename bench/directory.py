"""Holds the directory of live agents to its limits of speed.

    python bench/directory.py             everything, in about half a minute

Exit code 1 when a limit is missed. What is compared is measured in turns, so that a busy machine slows down both sides.
The other side of `lookup` is what its best-known design does: open every record until one of that name is found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from statistics import quantiles
from typing import TYPE_CHECKING

from baton.live_agents import ownership
from baton.live_agents.files import FileDirectory
from baton.live_agents.names import Names, derived_id
from baton.live_agents.record import new_record
from baton.live_agents.resolve import resolve
from table import SMALLEST, Folder, Row, at_most, chosen_parts, in_turns, ms, run_parts, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FEW, MANY = size(50, 8), size(5000, 12)
PUBLISHERS = size(8, 2)
PUBLISH_SEC = 0.2 if SMALLEST else 3.0


def record(directory: FileDirectory, number: int, generation: str = "g"):
    name = f"HOUMAO-agent-{number}"
    return new_record(
        name, derived_id(name), generation, now_ns=directory.now_ns(), lease_ns=10**14, tool="shell",
        manifest_path="/nowhere/manifest.json", session_name=f"agent-{number}",
    )  # fmt: skip


def filled(folder: str, count: int) -> FileDirectory:
    directory = FileDirectory(folder)
    for number in range(count):
        ownership.publish(directory, record(directory, number))
    return directory


def lookup(directory: FileDirectory, number: int) -> Callable[[], None]:
    names = Names()

    def once() -> None:
        assert resolve(directory, names, f"agent-{number}").record is not None

    return once


def scan(folder: str, number: int) -> Callable[[], None]:
    """What a lookup costs without an index: every record is opened until all matches are known."""
    agents = os.path.join(folder, "live_agents")

    def once() -> None:
        found = 0
        for name in os.listdir(agents):
            with open(os.path.join(agents, name, "record.json"), encoding="utf-8") as file:
                found += json.load(file)["agent_name"] == f"HOUMAO-agent-{number}"
        assert found == 1

    return once


def lookups(folder: Folder) -> Iterator[Row]:
    """a lookup by name among 50 and among 5,000"""
    few_folder, many_folder = folder.new("few"), folder.new("many")
    few, many = filled(few_folder, FEW), filled(many_folder, MANY)
    at_few, at_many = in_turns(size(500, 2), lookup(few, 7), lookup(many, 7))
    yield Row(f"lookup by name at {MANY:,}", ms(at_many), f"at {FEW}: {ms(at_few)}", *at_most(3, at_many, at_few))
    scanned = in_turns(3, scan(many_folder, 7))[0]
    yield Row("the same", ms(at_many), f"every record opened: {ms(scanned)}", f"{scanned / at_many:,.0f}x faster")
    missing = in_turns(size(50, 2), lambda: resolve(many, Names(), "nobody-here-by-that-name"))[0]
    yield Row("lookup of no such name", ms(missing))


PUBLISHER = """
import sys, time
from baton.live_agents import ownership
from baton.live_agents.files import FileDirectory
from directory import record
me, folder, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
directory = FileDirectory(folder)
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + seconds
while time.monotonic() < end:
    mine = record(directory, 0, me)
    start = time.perf_counter()
    ownership.publish(directory, mine, takeover=True)
    print(time.perf_counter() - start)
"""


def contention(folder: Folder) -> Iterator[Row]:
    """8 processes that publish one agent_id"""
    place = folder.new("contention")
    alone = _publish_times(place, 1)
    together = _publish_times(place, PUBLISHERS)
    p99_alone, p99 = (quantiles(times, n=100)[98] for times in (alone, together))
    yield Row("publish, alone: p99", ms(p99_alone), f"{len(alone) / PUBLISH_SEC:,.0f} a second")
    yield Row(
        f"publish, {PUBLISHERS} at one id: p99",
        ms(p99),
        f"{len(together) / PUBLISH_SEC:,.0f} a second",
        f"{p99 / p99_alone:.1f}x alone",
    )


def _publish_times(folder: str, publishers: int) -> list[float]:
    env = os.environ | {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    crew = [
        subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, f"p{number}", folder, str(PUBLISH_SEC)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )
        for number in range(publishers)
    ]  # fmt: skip
    for each in crew:
        assert each.stdout is not None
        each.stdout.readline()
    for each in crew:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    return [float(line) for each in crew for line in each.communicate(timeout=60)[0].splitlines()]


PARTS = {"lookup": lookups, "contention": contention}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sys.exit(run_parts(PARTS, chosen_parts(parser, PARTS).part))
