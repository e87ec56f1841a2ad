"""Holds worktrees to their limit of speed: what a worktree adds to a submit, beside `git worktree add` alone.

    python bench/worktrees.py

Exit code 1 when the limit is missed. The agent is a shell that does nothing, in real tmux on a server of its own. The
three commands are measured in turns: submit, submit --worktree, and git alone on the same repository.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from itertools import count
from typing import TYPE_CHECKING

from delegate import place
from table import Folder, Row, chosen_parts, in_turns, ms, run_parts, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delegate import Place

TIMES = size(7, 1)
FILES = size(1000, 3)
SMALL = size(10, 3)


def _commit(here: Place, files: int) -> None:
    for number in range(files):
        folder = os.path.join(here.folder, f"part-{number // 100}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"file-{number}.py"), "w", encoding="utf-8") as file:
            file.write(f"# {number}\n" * 40)
    for command in (("init", "-q"), ("add", "-A", "--", ":!.local"), ("commit", "-q", "-m", "first")):
        _git(here, *command)


def _git(here: Place, *arguments: str) -> None:
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    subprocess.run(["git", *identity, *arguments], cwd=here.folder, env=here.env, check=True, capture_output=True)


def _measure(folder: Folder, name: str, files: int) -> tuple[float, float, float]:
    """Return how long a submit takes, with a worktree and without, and git alone."""
    with place(folder, name) as here:
        here.env["XDG_DATA_HOME"] = folder.new(f"{name}-data")
        _commit(here, files)
        numbers = count()

        def alone() -> None:
            number = next(numbers)
            _git(
                here, "worktree", "add", "-q", "-b", f"b{number}", os.path.join(here.env["XDG_DATA_HOME"], f"w{number}")
            )

        plain = ("submit", "true")
        here(*plain)
        found = in_turns(TIMES, lambda: here("submit", "--worktree", "true"), lambda: here(*plain), alone)
    return found[0], found[1], found[2]


def submits(folder: Folder) -> Iterator[Row]:
    """what a worktree adds to a submit"""
    with_tree, without, alone = _measure(folder, "large", FILES)
    ratio = (with_tree - without) / alone
    beside = f"git worktree add: {ms(alone)}"
    yield Row(f"submit --worktree, {FILES:,} files", ms(with_tree), f"submit: {ms(without)}")
    yield Row("what the worktree adds", ms(with_tree - without), beside, f"{ratio:.2f}x", "<= 1.5x", ratio <= 1.5)
    with_tree, without, alone = _measure(folder, "small", SMALL)
    yield Row(f"what it adds, {SMALL} files", ms(with_tree - without), f"git worktree add: {ms(alone)}")


PARTS = {"submit": submits}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sys.exit(run_parts(PARTS, chosen_parts(parser, PARTS).part))
