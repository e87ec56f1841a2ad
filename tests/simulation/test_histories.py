"""Thousands of histories of the whole, each from one seed; and proof that they would find a bug."""

from __future__ import annotations

import time

import pytest

from baton.core import lifecycle, request
from baton.core.clock import parse_time
from baton.core.job import TERMINAL, Job, Status
from baton.registry import recording
from simulation.world import history, play, shortest, told


def run(seed, count):
    """The first seed whose history breaks something, or None."""
    for each in range(seed, seed + count):
        if play(each, history(each)) is not None:
            return each
    return None


def test_no_history_breaks_a_promise(full, seed, figure):
    count = 10_000 if full else 500
    began = time.monotonic()
    broken = run(seed, count)
    story = "" if broken is None else "\n" + told(broken, shortest(broken, history(broken)))
    figure(
        "simulation",
        f"{count:,} histories of 61 steps in {time.monotonic() - began:.0f} s, {'0' if broken is None else 'one'} broken{story}",
        held=broken is None,
        seed=seed,
    )


def plant_leaving_the_end(monkeypatch):
    """A completed job may still be cancelled."""
    monkeypatch.setitem(lifecycle._FOLLOWS, Status.COMPLETED, frozenset({Status.CANCELLED}))


def plant_stale_writes(monkeypatch):
    monkeypatch.setattr(lifecycle, "check_attempt", lambda job, attempt: None)


def plant_no_numbers_remembered(monkeypatch):
    from baton.transport.followed_jobs import JobCursor

    real = JobCursor.advance

    def forgetful(self, event):
        skipped = real(self, event)
        self.last_seq = max(0, self.last_seq - 1) if event.seq % 3 == 0 else self.last_seq
        return skipped

    monkeypatch.setattr(JobCursor, "advance", forgetful)


def plant_leases_by_the_date(monkeypatch):
    monkeypatch.setattr(recording, "lease_expired", lambda clock, mark, end: clock.wall_ns() > parse_time(end))


def plant_leases_that_end_at_once(monkeypatch):
    monkeypatch.setattr(recording, "lease_expired", lambda clock, mark, end: True)


def plant_leases_that_never_end(monkeypatch):
    monkeypatch.setattr(recording, "lease_expired", lambda clock, mark, end: False)


def plant_no_signature_check(monkeypatch):
    from baton.transport import followed_jobs

    monkeypatch.setattr(followed_jobs, "check_signature", lambda event, token: None)


def plant_a_second_answer(monkeypatch):
    monkeypatch.setattr(request, "refuse_closed", lambda it: None)


def plant_requests_that_outlive_their_attempt(monkeypatch):
    monkeypatch.setattr(request, "_is_asked", lambda it, job: job.status is Status.RUNNING)


def plant_jobs_that_do_not_wait(monkeypatch):
    monkeypatch.setattr(Job, "is_blocked", False)


def plant_a_failed_predecessor_that_counts(monkeypatch):
    monkeypatch.setattr(lifecycle, "is_met", lambda job: True if job.status in TERMINAL else None)


def plant_ends_that_are_forgotten(monkeypatch):
    """The end of a job leaves no mark: those after it wait for ever."""
    real = lifecycle._end
    monkeypatch.setattr(lifecycle, "_end", lambda *args: real(*args).replace(look_at=None))


def plant_retries_without_end(monkeypatch):
    monkeypatch.setattr(lifecycle, "may_retry", lambda job, ended_by: job.retries > 0)


@pytest.mark.parametrize(
    "plant",
    [
        plant_jobs_that_do_not_wait,
        plant_a_failed_predecessor_that_counts,
        plant_ends_that_are_forgotten,
        plant_retries_without_end,
        plant_leaving_the_end,
        plant_stale_writes,
        plant_no_numbers_remembered,
        plant_leases_by_the_date,
        plant_leases_that_end_at_once,
        plant_leases_that_never_end,
        plant_no_signature_check,
        plant_a_second_answer,
        plant_requests_that_outlive_their_attempt,
    ],
)
def test_a_planted_bug_is_found_within_a_thousand_histories(monkeypatch, figure, plant):
    plant(monkeypatch)
    found = run(1, 1000)
    steps = [] if found is None else shortest(found, history(found))
    figure(
        f"simulation, {plant.__name__.replace('_', ' ')}",
        f"found in history {found}, cut down from 61 steps to {len(steps)}",
        held=found is not None and len(steps) < 20,
    )
