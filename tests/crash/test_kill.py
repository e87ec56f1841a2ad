"""R1: workers are killed at random moments; the registry forgets nothing and gives nothing away twice."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from itertools import count
from random import Random

import pytest

from support.backends import registry_url
from support.crew import Crew
from support.memory import folder_in_memory
from support.workload import Findings, Ledger, hire

WORKERS = 8
KILLS_A_ROUND = 50
_AT_REST = re.compile(r"\.lock|\.moved|\.schema-2\.db|registry\.db(-wal|-shm)?|[0-9a-f]{8,32}\.(json|events\.log)")


@pytest.mark.timeout(1800)
def test_a_kill_loses_nothing(backend, request, figure, full, seed):
    server = request.getfixturevalue("postgres") if backend == "postgresql" else None
    chance = Random(seed)
    findings = Findings()
    # Each round in a registry of its own: in one that grows, most kills would hit a worker that only reads.
    for _ in range(100 if full else 4):
        with folder_in_memory() as folder:
            url = registry_url(backend, os.path.join(folder, "jobs"), server)
            ledger, failures = _kill_workers(url, chance)
            findings.blame(failures)
            findings.compare(ledger, url)
            findings.damage += _damaged_or_stray_files(folder)
        if not findings.held:
            break
    figure(
        f"R1 kills ({backend})",
        f"{findings.rounds * KILLS_A_ROUND:,} kills, {findings}",
        held=findings.held,
        seed=seed,
    )


def _kill_workers(url: str, chance: Random) -> tuple[Ledger, list[str]]:
    ledger = Ledger()
    names = map(str, count())
    with Crew() as crew:
        for _ in range(WORKERS):
            hire(crew, url, next(names), chance)
        for _ in range(KILLS_A_ROUND):
            ledger.take(crew.hear(chance.uniform(0.004, 0.030)))
            crew.kill(chance.choice(crew.pids))
            hire(crew, url, next(names), chance)
        crew.kill_all()
        ledger.take(crew.hear_out())
    return ledger, crew.failures


def _damaged_or_stray_files(folder: str) -> list[str]:
    """The complaints of SQLite, and the names of files that no registry without work in progress has."""
    found = []
    for where, folders, names in os.walk(folder):
        if ".index" in folders:
            folders.remove(".index")  # may hold more than it needs
        found += [name for name in names if not _AT_REST.fullmatch(name)]
        if "registry.db" in names:
            with closing(sqlite3.connect(os.path.join(where, "registry.db"))) as database:
                try:
                    found += [said for (said,) in database.execute("PRAGMA integrity_check") if said != "ok"]
                except sqlite3.DatabaseError as error:
                    found.append(str(error))
    return found
