"""R4: a holder that was stopped past its lease wakes up, and nothing it still writes is accepted."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from random import Random

import pytest

from baton.core.drafts import new_job
from baton.core.errors import BatonError, RegistryBusy, StaleAttempt
from baton.core.event import EventName
from baton.core.job import Status
from baton.registry import open_url
from support.crew import PATIENCE_SEC, Crew

LABEL = "tmux:claude"
LEASE_SEC = 0.05
LOCK_LIMIT_SEC = 0.3

LATE_WRITES = {
    **{
        f"update_status {status}": lambda registry, job, status=status: registry.update_status(
            job.job_id, status, attempt=job.attempt
        )
        for status in (Status.RUNNING, Status.COMPLETED, Status.ERROR, Status.CANCELLED)
    },
    **{
        f"record_event {event}": lambda registry, job, event=event: registry.record_event(
            job.job_id, event, attempt=job.attempt
        )
        for event in EventName
    },
    "renew_lease": lambda registry, job: registry.renew_lease(job.job_id, attempt=job.attempt, lease_sec=60),
    "next_seq": lambda registry, job: registry.next_seq(job.job_id, attempt=job.attempt),
    "requeue": lambda registry, job: registry.requeue(job.job_id, attempt=job.attempt),
}


@pytest.mark.timeout(600)
def test_what_a_stopped_holder_writes_late_is_refused(url, backend, figure, full, seed):
    chance = Random(seed)
    rounds = 200 if full else 10
    refused, wrong, changed = 0, [], 0
    for number in range(rounds):
        label = f"tmux:{number}"
        with Crew() as crew:
            # It speaks and then stops itself, outside of any verb: it holds the job, but not the lock.
            holder = crew.fork(_hold_stop_and_write, url, label, chance.random())
            _, job_id = crew.hear_word("holds")
            crew.wait_until_stopped(holder)
            with closing(open_url(url)) as registry:
                job = _take_over(registry, label, job_id, events=chance.randrange(3))
                story = registry.events_after(job_id)
                crew.wake(holder)
                for _, write, outcome in crew.hear_out():
                    if outcome == StaleAttempt.__name__:
                        refused += 1
                    else:
                        wrong.append(f"{write}: {outcome}")
                changed += (registry.get_job(job_id), registry.events_after(job_id)) != (job, story)
        wrong += crew.failures
    figure(
        f"R4 stopped holders ({backend})",
        f"{rounds} holders, {refused:,} stale writes refused, {len(wrong)} not, {changed} jobs changed"
        + "".join(f"\n{line}" for line in wrong[:5]),
        held=refused == rounds * len(LATE_WRITES) and not wrong and not changed,
        seed=seed,
    )


def _hold_stop_and_write(say, url: str, label: str, seed: float) -> None:
    registry = open_url(url)
    registry.register_job(_draft("work", label, max_attempts=2))
    job = registry.pick_pending(label, holder="stopped", lease_sec=LEASE_SEC).after
    say("holds", job.job_id)
    _stop_myself()
    for name, write in Random(seed).sample(list(LATE_WRITES.items()), len(LATE_WRITES)):
        try:
            write(registry, job)
            say("tried", name, "accepted")
        except BatonError as error:
            say("tried", name, type(error).__name__)


def _take_over(registry, label: str, job_id: str, *, events: int):
    until = time.monotonic() + PATIENCE_SEC
    while registry.get_job(job_id).status is Status.RUNNING:
        assert time.monotonic() < until, "the lease of the stopped holder does not run out"
        registry.expire_leases()
    job = registry.pick_pending(label, holder="successor", lease_sec=PATIENCE_SEC).after
    assert (job.job_id, job.attempt) == (job_id, 2)
    for _ in range(events):
        job = registry.record_event(job_id, EventName.PROGRESS, attempt=2).after
    return job


@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_a_lock_whose_holder_is_stopped_is_reported_and_not_waited_for_forever(url, backend, figure):
    with Crew() as crew:
        holder = crew.fork(_register_two_and_stop_between, url)
        _, known = crew.hear_word("known")
        crew.wait_until_stopped(holder)
        crew.fork(_try_verbs, url, known)
        during = crew.hear_word("tried")[1:]
        crew.wake(holder)
        crew.hear_word("registered")
        crew.fork(_try_verbs, url, known)
        after = crew.hear_word("tried")[1:]
        with closing(open_url(url)) as registry:
            prompts = sorted(job.prompt for job in registry.list_jobs().jobs)
    outcomes, seconds, readable = zip(*during, strict=True)
    figure(
        f"R4 stopped lock ({backend})",
        f"{outcomes.count(RegistryBusy.__name__)} of {len(during)} verbs busy after at most {max(seconds):.2f} s, "
        f"{[outcome for outcome, *_ in after].count('done')} done after the lock was let go",
        held=set(outcomes) == {RegistryBusy.__name__}
        and all(readable)
        and min(seconds) >= LOCK_LIMIT_SEC
        and max(seconds) < 20 * LOCK_LIMIT_SEC
        and {outcome for outcome, *_ in after} == {"done"}
        and prompts == ["first", "impatient", "known", "second"],
    )


def _register_two_and_stop_between(say, url: str) -> None:
    """Stops in the middle of a verb, while the lock is held."""
    registry = open_url(url)
    say("known", registry.register_job(_draft("known")).job_id)
    add, added = type(registry)._add, []

    def add_and_stop(tx, job):
        added.append(add(tx, job))
        if len(added) == 1:
            _stop_myself()
        return added[-1]

    registry._add = add_and_stop
    say("registered", len(registry.register_many([_draft("first"), _draft("second")])))


def _try_verbs(say, url: str, known: str) -> None:
    registry = open_url(url)
    registry._lock.timeout_sec = LOCK_LIMIT_SEC
    results = []
    for verb in (
        lambda: registry.register_job(_draft("impatient")),
        lambda: registry.pick_pending(LABEL, holder="impatient"),
        lambda: registry.record_event(known, EventName.PROGRESS),
        lambda: registry.update_status(known, Status.COMPLETED),
    ):
        began = time.monotonic()
        try:
            verb()
            outcome = "done"
        except BatonError as error:
            outcome = type(error).__name__
        seconds = time.monotonic() - began
        results.append((outcome, seconds, registry.get_job(known).job_id == known))
    say("tried", *results)


def _draft(prompt: str, label: str = LABEL, **fields):
    return new_job(prompt, now_ns=time.time_ns(), agent="crash", agent_session=label, **fields)


def _stop_myself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
