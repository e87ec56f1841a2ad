"""What the benchmarks share: measuring by turns, commands as fresh processes, a table of limits kept and missed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Part = Callable[[Any], Iterator["Row | str"]]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# For the tests: every benchmark runs once, as small as it can be, and no limit is held.
SMALLEST = "--smallest" in sys.argv


def size(full: int, smallest: int) -> int:
    return smallest if SMALLEST else full


class Row(NamedTuple):
    what: str
    ours: str
    against: str = ""
    ratio: str = ""
    limit: str = ""
    ok: bool | None = None  # None: for information


class Folder:
    """The temporary folder of a run."""

    def __init__(self, path: str) -> None:
        self.path = path

    def new(self, name: str) -> str:
        return tempfile.mkdtemp(prefix=f"{name}-", dir=self.path)


# -- measuring ---------------------------------------------------------------------------------------------


def timed(action: Callable[[], object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def in_turns(times: int, *actions: Callable[[], object]) -> list[float]:
    """The median seconds of each action, measured by turns."""
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(times):
        for action, measured in zip(actions, seconds, strict=True):
            measured.append(timed(action))
    return [median(measured) for measured in seconds]


def ms(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.3f} ms" if abs(value) < 1 else f"{value:.2f} ms" if value < 100 else f"{value:,.0f} ms"


def at_most(limit: float, ours: float, base: float) -> tuple[str, str, bool]:
    """Ratio, limit and verdict of a time that may be so many times another."""
    return f"{ours / base:.2f}x the time", f"<= {limit:g}x", ours <= limit * base


# -- commands ----------------------------------------------------------------------------------------------


class Runner:
    """Runs commands in a folder, with modules compiled as in an installed package, whatever the caller's
    environment says, and with settings from nowhere else."""

    def __init__(self, folder: str, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": folder,
            "PYTHONPYCACHEPREFIX": os.path.join(folder, "pycache"),
            **(env or {}),
        }
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def __call__(self, argv: list[str]) -> float:
        """Returns the CPU seconds it took, which a busy machine changes less than the time on the clock."""
        # posix_spawn, as the leanest start there is: what it costs is on both sides of the ratio.
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            pid = os.posix_spawn(argv[0], argv, self.env, file_actions=[(os.POSIX_SPAWN_DUP2, self._null, 1)])
        finally:
            os.chdir(before)
        _, ended, used = os.wait4(pid, 0)
        status = os.waitstatus_to_exitcode(ended)
        if status:
            raise SystemExit(f"bench: {' '.join(argv)} ended with {status}")
        return used.ru_utime + used.ru_stime

    def imports(self, argv: list[str]) -> dict[str, float]:
        """Modules that a command imports and `python -c pass` does not, with the median own time in ms."""
        bare = self._import_times(["-c", "pass"])
        runs = [self._import_times(argv) for _ in range(size(7, 1))]
        return {name: median(run.get(name, 0.0) for run in runs) for name in runs[0] if name not in bare}

    def import_note(self, name: str, argv: list[str]) -> str:
        modules = self.imports(argv)
        named = "  ".join(f"{each} {own:.1f}" for each, own in sorted(modules.items(), key=lambda each: -each[1]))
        return (
            f"`{name}` imports {len(modules)} modules more than `python -c pass`, {sum(modules.values()):.1f} ms"
            f" (-X importtime, which adds some; own time of each in ms):\n{named}"
        )

    def _import_times(self, argv: list[str]) -> dict[str, float]:
        result = subprocess.run(
            [sys.executable, "-X", "importtime", *argv],
            cwd=self.folder, env=self.env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found = re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s*(\S+)$", result.stderr, re.MULTILINE)
        return {name: int(own) / 1000 for own, name in found}


# -- the table ---------------------------------------------------------------------------------------------


def disk_folder() -> tuple[str, str]:
    """A folder for temporary files that is not memory, and its file system."""
    for folder in (tempfile.gettempdir(), "/var/tmp", ROOT):
        df = subprocess.run(["df", "--output=fstype", folder], capture_output=True, text=True, check=True)
        kind = df.stdout.split()[-1]
        if kind not in ("tmpfs", "ramfs"):
            return folder, kind
    raise SystemExit("bench: every folder for temporary files is in memory; set TMPDIR to one on a disk")


def machine(kind: str) -> str:
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    return (
        f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}  {platform.system()} {platform.release()} "
        f"{platform.machine()}, {os.cpu_count()} cores, load {load}, {kind}\n"
        f"python {platform.python_version()} ({sys.executable}), sqlite {sqlite3.sqlite_version}"
    )


def print_table(rows: list[Row]) -> None:
    headings = ("what", "ours", "compared with", "ratio", "limit", "")
    cells = [headings]
    for row in rows:
        verdict = "" if row.ok is None else "ok" if row.ok else "MISSED"
        cells.append((*row[:5], verdict))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if line is headings:
            print("  ".join("-" * width for width in widths).rstrip())


def missed(results: Iterable[Row | str]) -> int:
    return sum(isinstance(result, Row) and result.ok is False for result in results)


def run_parts(parts: Mapping[str, Part], chosen: Iterable[str], new_folder: Callable[[str], Folder] = Folder) -> int:
    """Runs the parts, prints the table and returns the exit code: 1 when a limit was missed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder is removed then, too
    parent, kind = disk_folder()
    print(machine(kind), flush=True)
    start = time.monotonic()
    rows: list[Row] = []
    notes: list[str] = []
    path = tempfile.mkdtemp(prefix="baton-bench-", dir=parent)
    try:
        folder = new_folder(path)
        for name in chosen:
            print(f"... {parts[name].__doc__}", file=sys.stderr, flush=True)
            results = list(parts[name](folder))
            if missed(results) and not SMALLEST:
                # Whatever else runs here can only slow things down: the better of two is nearer the truth.
                first, second = results, list(parts[name](folder))
                results = min(first, second, key=missed)
                dropped = second if results is first else first
                figures = "; ".join(
                    f"{row.what}: {row.ours} {row.ratio}".strip()
                    for row in dropped
                    if isinstance(row, Row) and row.ok is False
                )
                notes.append(f"`{name}` was measured twice; the other time it missed: {figures}")
            rows += [result for result in results if isinstance(result, Row)]
            notes += [result for result in results if isinstance(result, str)]
    finally:
        shutil.rmtree(path)
    print()
    print_table(rows)
    for note in notes:
        print("\n" + "\n".join(textwrap.fill(line, 115) for line in note.splitlines()))
    count = missed(rows)
    took = f"{time.monotonic() - start:.0f} s, load now {os.getloadavg()[0]:.1f}"
    print(f"\n{count or 'no'} limit{'' if count == 1 else 's'} missed; {took}")
    return 1 if count and not SMALLEST else 0


def chosen_parts(parser: argparse.ArgumentParser, parts: Mapping[str, Part]) -> argparse.Namespace:
    """The command line, whose `part` holds the names of the parts to run."""
    listed = "; ".join(f"{name}: {part.__doc__}" for name, part in parts.items())
    parser.add_argument("part", nargs="*", metavar="PART", help=listed)
    parser.add_argument("--smallest", action="store_true", help="run once with the smallest sizes, without limits")
    options = parser.parse_args()
    if unknown := set(options.part) - set(parts):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    options.part = options.part or list(parts)
    return options
