"""The work that every queue gets in `bench/peers.py`, the ledger of what was done, and the counts of a kill storm.

This module, the driver and the `on_NAME` modules run in the environments of the other programs: they import the
standard library and that program, nothing else.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BODY_SEC = 0.01


def run_body(job: str) -> bool:
    """Do the work of a job: note its begin and its end in the ledger, with the worker that does it."""
    _note("begin", job)
    time.sleep(BODY_SEC)
    _note("end", job)
    return True  # a result, so that every program stores the end of the job


def _note(what: str, job: str) -> None:
    """Append one line by one write, which a SIGKILL leaves whole or undone."""
    line = f"{what} {job} {os.environ['STORM_WORKER']} {time.monotonic_ns()}\n"
    ledger = os.open(os.environ["STORM_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, line.encode())
    finally:
        os.close(ledger)


class Note(NamedTuple):
    what: str
    job: str
    worker: str
    at_ns: int


def parse_notes(text: str) -> list[Note]:
    notes = []
    for line in text.splitlines():
        what, job, worker, at_ns = line.split()
        notes.append(Note(what, job, worker, int(at_ns)))
    return notes


class Counts(NamedTuple):
    """What became of the acknowledged jobs. Each is in one of the first four."""

    done: int  # the body ran to its end
    failed: int  # not done, and the program's own record says that it failed
    stuck: int  # not done, and the record still has it as waiting or running after the time for recovery
    lost: int  # not done, and no record of it is left
    run_again: int  # begun again after the worker that had begun it was killed: on purpose
    doubled: int  # begun again although the worker that had begun it was not killed while it had the job


def count(
    acknowledged: Iterable[str], notes: list[Note], killed_ns: Mapping[str, int], undone: Mapping[str, str]
) -> Counts:
    """Compare the acknowledged jobs with the ledger. `killed_ns`: when each killed worker was killed; `undone`: what
    the record says about each job that has no end in the ledger (failed, listed or gone)."""
    known = set(acknowledged)
    ended = {note.job for note in notes if note.what == "end"}
    begins = sorted((note for note in notes if note.what == "begin"), key=lambda note: note.at_ns)
    last_of_worker = {note.worker: note for note in begins}
    last_of_job: dict[str, Note] = {}
    again: set[str] = set()
    doubled: set[str] = set()
    for begin in begins:
        earlier = last_of_job.get(begin.job)
        if earlier is not None:
            # A worker that has gone on to another job had finished this one.
            had_it = last_of_worker[earlier.worker] == earlier
            was_killed = killed_ns.get(earlier.worker, begin.at_ns) < begin.at_ns
            (again if had_it and was_killed else doubled).add(begin.job)
        last_of_job[begin.job] = begin
    assert ended <= known, "a job is done that was not enqueued"
    states = [undone[job] for job in known - ended]
    assert set(states) <= {"failed", "listed", "gone"}, "a job is done in the record and not in the ledger"
    return Counts(
        done=len(known & ended),
        failed=states.count("failed"),
        stuck=states.count("listed"),
        lost=states.count("gone"),
        run_again=len(again),
        doubled=len(doubled),
    )
