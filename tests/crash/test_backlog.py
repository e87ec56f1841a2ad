"""R3: many processes, one backlog: every job is done once, and the oldest first.

What can be said about order, when only the processes themselves saw their claims:

- In one process, the claims of one label rise: nothing becomes pending again here, so a job that was passed
  over was being claimed by another at that moment.
- Between processes, a claim that returned before another began was of the older job. CLOCK_MONOTONIC is one
  clock for all processes of a machine. Claims that overlap in time may come either way.
- Where one lock is around every verb, a claim also has its place among all others: `deadline_at` holds the
  time read under that lock. PostgreSQL has no such lock (SKIP LOCKED), so there this is not asserted.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from contextlib import closing
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest

from baton.core.clock import parse_time
from baton.core.drafts import new_job
from baton.core.job import Status
from baton.registry import open_url
from support.backends import registry_url
from support.crew import Crew
from support.memory import folder_in_memory

PROCESSES = 16
LABELS = ("tmux:one", "tmux:two", "tmux:three")


class Claim(NamedTuple):
    process: int
    called_ns: int
    returned_ns: int
    label: str
    job_id: str
    created_at: str
    attempt: int
    outcome: str


@pytest.mark.timeout(1200)
def test_a_backlog_is_done_once_and_oldest_first(backend, request, figure, full, seed):
    server = request.getfixturevalue("postgres") if backend == "postgresql" else None
    size = 20_000 if full else 2_000
    with folder_in_memory() as folder:
        url = registry_url(backend, os.path.join(folder, "jobs"), server)
        _register_in_a_process(url, size, seed)
        claims, failures = _drain(url, seed)
        with closing(open_url(url)) as registry:
            jobs = {job.job_id: job for job in registry.list_jobs(limit=size + 1).jobs}

    times_claimed = Counter(claim.job_id for claim in claims)
    twice = sum(count > 1 for count in times_claimed.values())
    undone = size - len(times_claimed.keys() & jobs.keys())
    told = {claim.job_id: (claim.outcome, claim.attempt) for claim in claims}
    differing = sum(told.get(job.job_id) != (job.status.value, 1) for job in jobs.values())
    early = _out_of_order_in_a_process(claims) + _out_of_order_between_processes(claims)
    if backend != "postgresql":
        early += _out_of_order_under_the_lock(jobs.values())
    figure(
        f"R3 backlog ({backend})",
        f"{len(jobs):,} jobs, {PROCESSES} processes, {twice} done twice, {undone} undone, "
        f"{differing} with another outcome, {early} out of order"
        + "".join(f"\n{trace.strip().splitlines()[-1]}" for trace in failures[:3]),
        held=len(jobs) == size and not (twice or undone or differing or early or failures),
        seed=seed,
    )


def _register_in_a_process(url: str, size: int, seed: int) -> None:
    """In a process of its own, so that none is forked from one that has the registry open."""

    def register(say) -> None:
        chance = Random(seed)
        with closing(open_url(url)) as registry:
            moment = time.time_ns()
            drafts = (
                new_job("x", now_ns=moment, agent="crash", agent_session=chance.choice(LABELS)) for _ in range(size)
            )
            say("registered", len(registry.register_many(drafts)))

    with Crew() as crew:
        crew.fork(register)
        assert crew.hear_word("registered", seconds=300) == ["registered", size]


def _drain(url: str, seed: int) -> tuple[list[Claim], list[str]]:
    def work(say, number: int) -> None:
        chance = Random(f"{seed} {number}")
        with closing(open_url(url)) as registry:
            labels = list(LABELS)
            while labels:
                label = chance.choice(labels)
                called_ns = time.monotonic_ns()
                change = registry.pick_pending(label, holder=str(number))
                returned_ns = time.monotonic_ns()
                if change is None:
                    labels.remove(label)
                    continue
                job = change.after
                status = chance.choice((Status.COMPLETED, Status.ERROR))
                registry.update_status(job.job_id, status, attempt=job.attempt)
                say("done", number, called_ns, returned_ns, label, job.job_id, job.created_at, job.attempt, status)

    with Crew() as crew:
        for number in range(PROCESSES):
            crew.fork(work, number)
        claims = [Claim(*words[1:]) for words in crew.hear_out(600)]
    return claims, crew.failures


def _out_of_order_in_a_process(claims: list[Claim]) -> int:
    sequences = defaultdict(list)
    for claim in claims:
        sequences[claim.process, claim.label].append(parse_time(claim.created_at))
    return sum(later <= earlier for ages in sequences.values() for earlier, later in pairwise(ages))


def _out_of_order_between_processes(claims: list[Claim]) -> int:
    """How many claims began after a younger job of the same label had been claimed."""
    found = 0
    for label in LABELS:
        mine = [claim for claim in claims if claim.label == label]
        returns = sorted((claim.returned_ns, parse_time(claim.created_at)) for claim in mine)
        youngest, position = 0, 0
        for claim in sorted(mine, key=lambda claim: claim.called_ns):
            while position < len(returns) and returns[position][0] < claim.called_ns:
                youngest = max(youngest, returns[position][1])
                position += 1
            found += parse_time(claim.created_at) < youngest
    return found


def _out_of_order_under_the_lock(jobs) -> int:
    found = 0
    for label in LABELS:
        mine = sorted((job for job in jobs if job.agent_session == label), key=lambda job: parse_time(job.created_at))
        claimed = [parse_time(job.deadline_at) for job in mine]
        found += sum(later < earlier for earlier, later in pairwise(claimed))
    return found
