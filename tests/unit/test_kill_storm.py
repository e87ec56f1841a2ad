"""The counts of the kill storm in bench/peers.py: what is lost, what is run again on purpose, and what is doubled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "queues"))
from ledger import count, parse_notes

JOBS = ("1", "2")
TWO_DONE = "begin 1 a 10\nend 1 a 20\nbegin 2 a 30\nend 2 a 40\n"


def counted(text, killed=None, **undone):
    return count(JOBS, parse_notes(text), killed or {}, {key.strip("_"): value for key, value in undone.items()})


def test_jobs_that_ran_once_are_done():
    counts = counted(TWO_DONE)
    assert counts.done == 2
    assert counts[1:] == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(("state", "field"), [("failed", "failed"), ("listed", "stuck"), ("gone", "lost")])
def test_a_job_without_an_end_is_what_the_record_says(state, field):
    counts = counted("begin 1 a 10\nend 1 a 20\nbegin 2 a 30\n", {"a": 35}, _2=state)
    assert counts.done == 1
    assert getattr(counts, field) == 1


@pytest.mark.parametrize("end", ["", "end 2 a 34\n"])
def test_a_job_is_run_again_after_its_worker_was_killed(end):
    counts = counted(f"begin 1 a 10\nend 1 a 20\nbegin 2 a 30\n{end}begin 2 b 50\nend 2 b 60\n", {"a": 35})
    assert (counts.done, counts.run_again, counts.doubled) == (2, 1, 0)


@pytest.mark.parametrize(
    ("killed", "why"),
    [({}, "its worker lives"), ({"a": 60}, "its worker was killed later"), ({"b": 35}, "another worker was killed")],
)
def test_a_job_that_is_begun_again_without_a_kill_is_doubled(killed, why):
    counts = counted("begin 1 c 1\nend 1 c 2\nbegin 2 a 30\nbegin 2 b 50\nend 2 a 55\nend 2 b 60\n", killed)
    assert (counts.run_again, counts.doubled) == (0, 1), why


def test_a_job_that_its_worker_had_finished_before_it_was_killed_is_doubled():
    counts = counted(TWO_DONE + "begin 1 b 60\nend 1 b 70\n", {"a": 45})
    assert (counts.run_again, counts.doubled) == (0, 1)


def test_a_job_that_nothing_enqueued_is_refused():
    with pytest.raises(AssertionError, match="not enqueued"):
        counted(TWO_DONE + "begin 3 a 50\nend 3 a 60\n")
