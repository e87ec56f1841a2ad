"""Workers that live the whole life of jobs, the ledger of what they were told, and the comparison of it with
what the registry holds."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING

import baton.wire.payload  # noqa: F401  # before the forks: a worker may live for a few milliseconds only
from baton.core.drafts import new_job
from baton.core.errors import BatonError, EventRefused, RegistryUnavailable, StaleAttempt
from baton.core.event import EventName
from baton.core.job import TERMINAL, Job, Status
from baton.registry import open_url
from baton.registry.contract import JobFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from baton.core.event import StoredEvent
    from baton.registry.verbs import Registry
    from support.crew import Crew

LABELS = ("tmux:one", "tmux:two", "tmux:three")
LEASE_SEC = 0.5
BATCH = 8
PATIENCE_SEC = 60.0
ALL = 10**6


def hire(crew: Crew, url: str, name: str, chance: Random, *, outages: bool = False) -> None:
    """Forks a worker. With `outages`, a registry that is not available is part of its life."""
    crew.fork(lambda say, seed: _Worker(say, url, name, seed, outages).run(), chance.random())


class _Worker:
    """Registers, claims, reports and finishes jobs until it is killed. It says so only after the verb has
    returned: that is what acknowledged means."""

    def __init__(self, say: Callable[..., None], url: str, name: str, seed: float, outages: bool) -> None:
        self._say = say
        self._name = name
        self._chance = Random(seed)
        self._outages = outages
        self._registry = open_url(url)
        self._mine: list[str] = []

    def run(self) -> None:
        turns = {
            self._register: 10,
            self._register_batch: 10,
            self._carry_a_job_through: 60,
            self._look_at_one_of_mine: 3,
            self._publish: 3,
            self._expire_leases: 4,
            self._open_again: 10,
        }
        turn = self._open_again
        while True:
            try:
                turn()
            except RegistryUnavailable:
                if not self._outages:
                    raise
                time.sleep(0.005)  # the server is away; asking again at once only slows its return
            (turn,) = self._chance.choices(list(turns), list(turns.values()))

    def _open_again(self) -> None:
        """Whoever closes last has work to do, and nearly every program begins with reading."""
        self._registry.close()
        if self._chance.random() < 0.9:
            self._publish()

    def _draft(self, *labels: str) -> Job:
        return new_job(
            "work",
            now_ns=time.time_ns(),
            agent="crash",
            agent_session=self._chance.choice(LABELS),
            max_attempts=10**6,
            labels=labels,
        )

    def _register(self) -> None:
        job = self._registry.register_job(self._draft())
        self._say("registered", job.job_id)
        self._mine.append(job.job_id)

    def _register_batch(self) -> None:
        batch = f"batch {self._name} {self._chance.random()}"
        jobs = self._registry.register_many([self._draft(batch) for _ in range(BATCH)])
        self._say("registered", *[job.job_id for job in jobs])
        self._mine += [job.job_id for job in jobs]

    def _carry_a_job_through(self) -> None:
        called = time.monotonic()
        change = self._registry.pick_pending(self._chance.choice(LABELS), holder=self._name, lease_sec=LEASE_SEC)
        if change is None:
            return
        job = change.after
        self._say("claimed", job.job_id, job.attempt)
        try:
            self._record(job, EventName.STARTED)
            if self._chance.random() < 0.3:
                self._record(job, EventName.PROGRESS)
            self._finish(job)
        except (StaleAttempt, EventRefused):
            if time.monotonic() - called < 0.9 * LEASE_SEC:
                raise  # nobody may take a job whose lease still lasts

    def _record(self, job: Job, event: EventName) -> None:
        stored = self._registry.record_event(job.job_id, event, attempt=job.attempt).event
        self._say("event", job.job_id, stored.seq, job.attempt, event)

    def _finish(self, job: Job) -> None:
        status = self._chance.choice((Status.COMPLETED, Status.ERROR))
        if self._chance.random() < 0.5:
            self._registry.update_status(job.job_id, status, attempt=job.attempt)
        else:
            self._record(job, EventName(status.value))
        self._say("ended", job.job_id, job.attempt, status)

    def _look_at_one_of_mine(self) -> None:
        if self._mine:
            self._registry.get_job(self._chance.choice(self._mine))  # JobNotFound fails the worker

    def _publish(self) -> None:
        for event in self._registry.unsent_events(limit=2):
            self._registry.mark_sent(event.job_id, [event.seq])
            self._say("sent", event.job_id, event.seq)

    def _expire_leases(self) -> None:
        self._registry.expire_leases()


class Ledger:
    """What was acknowledged."""

    def __init__(self) -> None:
        self.registered: set[str] = set()
        self.claims: set[tuple[str, int]] = set()
        self.events: dict[tuple[str, int], tuple[int, str]] = {}
        self.sent: set[tuple[str, int]] = set()
        self.outcomes: dict[str, tuple[int, str]] = {}
        self.double = 0

    def take(self, lines: Iterable[list]) -> None:
        for kind, *words in lines:
            getattr(self, f"_{kind}")(*words)

    def _registered(self, *job_ids: str) -> None:
        self.double += len(self.registered.intersection(job_ids))
        self.registered.update(job_ids)

    def _claimed(self, job_id: str, attempt: int) -> None:
        self.double += (job_id, attempt) in self.claims
        self.claims.add((job_id, attempt))

    def _event(self, job_id: str, seq: int, attempt: int, event: str) -> None:
        self.double += (job_id, seq) in self.events
        self.events[job_id, seq] = (attempt, event)

    def _sent(self, job_id: str, seq: int) -> None:
        self.sent.add((job_id, seq))

    def _ended(self, job_id: str, attempt: int, status: str) -> None:
        self.double += job_id in self.outcomes
        self.outcomes[job_id] = (attempt, status)


class Findings:
    """What is not as it was acknowledged, over one or more registries."""

    def __init__(self) -> None:
        self.rounds = 0
        self.jobs = 0
        self.counts = Counter(dict.fromkeys(("lost", "double", "unreadable", "stranded", "gaps", "halves"), 0))
        self.damage: list[str] = []
        self.unusable = ""

    @property
    def held(self) -> bool:
        return not self.unusable and not self.damage and not self.counts.total()

    def __str__(self) -> str:
        if self.unusable:  # counts of a comparison that never took place would read as if nothing was lost
            return "\n".join([f"not compared, the registry is unusable: {self.unusable}", *self.damage[:3]])
        counts = "{lost} lost, {double} double, {unreadable} unreadable, {stranded} stranded".format(**self.counts)
        more = "{gaps} gaps in events, {halves} half batches".format(**self.counts)
        return "\n".join([f"{self.jobs:,} jobs, {counts}, {more}", *self.damage[:3]])

    def compare(self, ledger: Ledger, url: str) -> None:
        """Does the work that is left, as whoever comes after the crash would, then compares."""
        self.rounds += 1
        with closing(open_url(url)) as registry:
            try:
                self._compare(ledger, registry)
            except BatonError as error:
                self.unusable = str(error)

    def blame(self, failures: Iterable[str]) -> None:
        for trace in failures:
            print(trace)
            self.damage.append(f"a worker failed: {trace.strip().splitlines()[-1]}")

    def _compare(self, ledger: Ledger, registry: Registry) -> None:
        bad = registry.list_jobs(limit=ALL).bad
        self.counts["stranded"] += _drain(registry, ledger)
        page = registry.list_jobs(limit=ALL)
        jobs = {job.job_id: job for job in page.jobs}
        events = {(job_id, event.seq): event for job_id in jobs for event in registry.events_after(job_id, limit=ALL)}
        # No worker takes a number without an event, so every number up to the last has one.
        numbers = {(job.job_id, seq) for job in jobs.values() for seq in range(1, job.last_seq + 1)}
        batches = Counter(job.labels for job in jobs.values() if job.labels)
        self.jobs += len(jobs)
        self.counts["lost"] += _lost(ledger, jobs, events)
        self.counts["double"] += ledger.double
        self.counts["unreadable"] += len({error.job_id for error in (*bad, *page.bad)})
        self.counts["gaps"] += len(numbers ^ events.keys())
        self.counts["halves"] += sum(size != BATCH for size in batches.values())


def _drain(registry: Registry, ledger: Ledger) -> int:
    """Ends every job; returns how many cannot be ended. Its claims count: none may repeat an attempt."""
    until = time.monotonic() + PATIENCE_SEC
    while True:
        registry.expire_leases()
        for label in LABELS:
            while change := registry.pick_pending(label, holder="drain", lease_sec=PATIENCE_SEC):
                job = change.after
                ledger.take([["claimed", job.job_id, job.attempt]])
                registry.record_event(job.job_id, EventName.COMPLETED, attempt=job.attempt)
        left = registry.list_jobs(JobFilter(statuses=set(Status) - TERMINAL), limit=ALL).jobs
        if not left or time.monotonic() > until:
            return len(left)
        time.sleep(0.05)  # the leases of the killed have not run out yet


def _lost(ledger: Ledger, jobs: dict[str, Job], events: dict[tuple[str, int], StoredEvent]) -> int:
    """How many acknowledged things are not so. That a claim was kept shows in the attempt: it only grows."""
    attempts = {job_id: job.attempt for job_id, job in jobs.items()}
    outcomes = {job_id: (job.attempt, job.status.value) for job_id, job in jobs.items()}
    told = {key: (event.attempt, event.event.value) for key, event in events.items()}
    sent = {key for key, event in events.items() if event.sent}
    return (
        len(ledger.registered - jobs.keys())
        + sum(attempts.get(job_id, 0) < attempt for job_id, attempt in ledger.claims)
        + len(ledger.events.items() - told.items())
        + len(ledger.sent - sent)
        + len(ledger.outcomes.items() - outcomes.items())
    )
