"""R10: somebody sets the clock, an hour or a day, forward or back. No lease ends early, none lives for ever."""

from __future__ import annotations

import glob
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from baton.history.verify import verify_log
from baton.jobs.verbs import open_jobs
from support.command import Baton
from support.homes import settings_in

if TYPE_CHECKING:
    from baton.jobs.verbs import Jobs

JUMPS = ("+1h", "-1h", "+1d", "-1d")
SHORT_LEASE_SEC = 1
PATIENCE_SEC = 20


def set_clock(jump: str) -> dict[str, str]:
    """The environment in which the date is wrong by that much. What moves when somebody sets the date is the
    wall clock only: neither the monotonic clock nor the times of files."""
    (library,) = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    return {
        "LD_PRELOAD": library,
        "FAKETIME": jump,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


NOW: dict[str, str] = {}
CLOCKS = (NOW, *map(set_clock, JUMPS))


@pytest.fixture
def baton(url, tmp_path):
    """The real command, whose clock is set for each call."""
    return Baton(tmp_path, BATON_REGISTRY=url)


@pytest.fixture
def jobs(url, tmp_path):
    """The same registry under the right date, for what is not to be tested."""
    with open_jobs(settings_in(tmp_path, {"HOME": str(tmp_path), "BATON_REGISTRY": url})) as jobs:
        yield jobs


def register(jobs: Jobs, count: int) -> None:
    for _ in range(count):
        jobs.register_job("work", agent="claude-code", max_attempts=99)


EXPIRE = (
    "import baton\nwith baton.open_jobs() as jobs: print(*(change.after.job_id for change in jobs.expire_leases()))"
)


def rescued(baton: Baton, clock: dict[str, str]) -> list[str]:
    """The jobs whose lease has expired, as a process with that date sees it. They are requeued."""
    done = subprocess.run(
        [sys.executable, "-c", EXPIRE],
        cwd=baton.folder,
        env=baton.env | clock,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("jump", JUMPS)
def test_the_tool_moves_the_date_and_nothing_else(jump, tmp_path):
    file = tmp_path / "file"
    file.touch()
    code = "import os, sys, time; print(time.time_ns(), time.monotonic_ns(), os.stat(sys.argv[1]).st_mtime_ns)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], env=set_clock(jump), capture_output=True, text=True, check=True
    )
    wall, monotonic, modified = map(int, done.stdout.split())
    expected = {"h": 3600, "d": 86400}[jump[-1]] * int(jump[:-1])
    assert abs(wall - time.time_ns() - expected * 10**9) < 60 * 10**9
    assert abs(monotonic - time.monotonic_ns()) < 60 * 10**9
    assert modified == file.stat().st_mtime_ns


def test_no_early_takeover(baton, jobs, backend, figure):
    """A holder whose lease lasts keeps its job, whatever the date was when it picked and is when one looks."""
    register(jobs, len(CLOCKS))
    held = [baton("pick", "--lease", "60", **clock).text for clock in CLOCKS]
    taken = [job for clock in CLOCKS for job in rescued(baton, clock)]
    assert jobs.stats()["running"] == len(held) - len(taken)
    text = f"{len(held)} leases of 60 s looked at under {len(CLOCKS)} dates, {len(taken)} taken early"
    figure(f"R10 no early takeover ({backend})", text, held=not taken)


def test_no_immortal_lease(baton, jobs, backend, figure):
    """A lease given under a wrong date ends when its time is over, whatever the date then is, and not before."""
    early, immortal, leases = 0, 0, 0
    for jumps, looked_at in ((JUMPS, NOW), (("-1d", "+1d"), set_clock("+1d")), (("-1d", "+1d"), set_clock("-1d"))):
        register(jobs, len(jumps))
        asked_at: dict[str, float] = {}
        for jump in jumps:
            before = time.monotonic()
            asked_at[baton("pick", "--lease", str(SHORT_LEASE_SEC), **set_clock(jump)).text] = before
        leases += len(asked_at)
        until = time.monotonic() + PATIENCE_SEC
        while asked_at and time.monotonic() < until:
            for job in rescued(baton, looked_at):
                early += time.monotonic() - asked_at.pop(job) < SHORT_LEASE_SEC
                jobs.update_status(job, "cancelled")
            if asked_at:
                left = max(asked_at.values()) + SHORT_LEASE_SEC - time.monotonic()
                time.sleep(max(0, left))  # a lease ends by the clock, which is what is tested here
        immortal += len(asked_at)
    text = f"{leases} leases of {SHORT_LEASE_SEC} s under wrong dates, {early} ended early, {immortal} immortal"
    figure(f"R10 no immortal lease ({backend})", text, held=not early and not immortal)


def test_jobs_of_a_wrong_date_are_jobs(baton, jobs, backend, figure):
    """Registered under one wrong date, picked under another, and finished under the right one."""
    registered = {baton("register", "work", **set_clock(jump)).text for jump in JUMPS}
    assert {job.job_id for job in jobs.list_jobs().jobs} == registered
    picked = {baton("pick", **set_clock(jump)).text for jump in reversed(JUMPS)}
    assert picked == registered
    complaints = []
    for job in picked:
        assert jobs.update_status(job, "completed").status == "completed"
        verdict = verify_log(job, jobs.logs_dir)
        assert verdict.lines == 3
        complaints += verdict.damage + verdict.notes
    text = f"{len(registered)} jobs registered, picked and finished, {len(complaints)} complaints about their logs"
    figure(f"R10 jobs of a wrong date ({backend})", text, held=not complaints)
