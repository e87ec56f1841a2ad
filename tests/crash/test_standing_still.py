"""T58: program, runner, `submit`, `wait`, `subscribe` and monitor stand still, together or some of them, for longer than
every limit, and go on. For a process that stood still itself, no limit has passed; the others apply theirs as before."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.office import Office
from support.waiting import wait_until

LIMIT_SEC = 5
LEASE_SEC = 3


@contextmanager
def still(office, pids):
    """They stand still. So does the tmux server: it would wake what it has started."""
    server = int(office.tmux("display-message", "-p", "#{pid}"))
    pids = [server, *(pid for pid in pids if pid != server)]
    wait_until(lambda: stop(office, pids), "for a moment at which no runner holds a lock")
    try:
        yield
    finally:
        go_on(pids)


def stop(office, pids):
    """Stop them all; let them go on again, and return False, if a runner holds a lock: a live process may want it."""
    signal_all(signal.SIGSTOP, pids)
    wait_until(lambda: all(is_stopped(pid) for pid in pids), "until all stand still")
    locks = Path("/proc/locks").read_text().splitlines()
    if not any(f"WRITE {pid} " in line for line in locks for pid in office.processes("baton.sessions.runner")):
        return True
    go_on(pids)
    return False


def go_on(pids):
    signal_all(signal.SIGCONT, pids[::-1])


def signal_all(number, pids):
    for pid in pids:
        with suppress(ProcessLookupError):  # a call of tmux is over soon
            os.kill(pid, number)


def is_stopped(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZ"
    except FileNotFoundError:
        return True


class Work:
    """A job whose program works until it is told to end."""

    def __init__(self, office, number, *options):
        self.begun, self.out = (office.folder / f"{name}.{number}" for name in ("begun", "out"))
        path = office.folder / f"go.{number}"
        os.mkfifo(path)
        self.pipe = os.open(path, os.O_RDWR)
        work = f"echo $$ > {self.begun.name}; read line < {path.name}; echo x > {self.out.name}"
        self.submit = office.start("submit", work, "--expect", self.out.name, *options)

    def wait_until_begun(self):
        wait_until(lambda: self.begun.exists() and self.begun.read_text().strip())
        self.pid = int(self.begun.read_text())
        self.submit.says("started")

    def let_end(self):
        os.write(self.pipe, b"\n")
        os.close(self.pipe)


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path, BATON_LEASE_SEC=str(LEASE_SEC)) as office:
        yield office


def test_a_pause_of_all_is_no_time_of_the_job(office, figure):
    """Both programs end well: one stands still, too, the other goes on."""
    limit = str(LIMIT_SEC)
    office.start("monitor", "--interval", "0.3").says("watching")
    pauses, goes_on = works = Work(office, 1, "--idle-timeout", limit), Work(office, 2, "--timeout", limit)
    for each in works:
        each.wait_until_begun()
    ids = [job["job_id"] for job in office.jobs()]
    others = [office.start("wait", *ids, "--idle-timeout", limit), office.start("subscribe", *ids, "--timeout", limit)]
    for job_id in ids:
        others[1].says(job_id)
    with still(office, office.processes().keys() - {goes_on.pid}):
        began = time.monotonic()
        goes_on.let_end()
        wait_until(goes_on.out.exists)
        wait_until(lambda: time.monotonic() - began > LIMIT_SEC, "until every limit and lease is over")
        pauses.let_end()
    for each in (pauses.submit, goes_on.submit, *others):
        ended = each.end()
        assert ended.code == 0, f"{ended}\n" + "\n".join(str(office.job(job_id)) for job_id in ids)
    assert [(job["status"], job["attempt"]) for job in office.jobs()] == [("completed", 1)] * 2
    figure("T58 all stand still for longer than limits and leases", "2 of 2 completed on attempt 1", held=True)


def test_tmux_continues_the_runner_alone_and_the_pause_is_none_of_the_jobs_time(office):
    """Only the processes of one job are stopped, so tmux wakes its runner. Of another job, the program alone is stopped:
    its runner, and `submit`, did not stand still, and apply the limit."""
    stopped, silent = Work(office, 1, "--idle-timeout", "3"), Work(office, 2, "--idle-timeout", "3")
    for each in (stopped, silent):
        each.wait_until_begun()
    (job_id,) = (job["job_id"] for job in office.jobs() if "out.1" in job["expected_artifacts"])
    runner = office.session_of(job_id)["pane_pid"]
    try:
        signal_all(signal.SIGSTOP, (stopped.submit.process.pid, runner, stopped.pid, silent.pid))
        assert silent.submit.end().code == 2
        assert is_stopped(stopped.pid)
    finally:
        signal_all(signal.SIGCONT, (stopped.pid, stopped.submit.process.pid))
    stopped.let_end()
    assert stopped.submit.end().code == 0, office.job(job_id)["reason"]
    assert [job["ended_by"] for job in office.jobs() if job["status"] == "error"] == ["idle"]


def test_a_submit_that_does_not_stand_still_applies_the_limit(office):
    office.env["BATON_LEASE_SEC"] = "60"
    work = Work(office, 1, "--timeout", "2")
    work.wait_until_begun()
    with still(office, office.processes().keys() - {work.submit.process.pid}):
        wait_until(lambda: office.the_job()["status"] == "error")
        assert office.the_job()["ended_by"] == "timeout"
    assert work.submit.end().code == 2
    wait_until(lambda: not office.sessions() and not office.agents())
