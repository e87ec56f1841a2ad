"""`baton logs`: following the audit logs of jobs to their ends, several at once, and the list of all logs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time

import pytest

from support.command import BATON, Baton
from support.waiting import wait_until

QUEUES = ("first", "second")


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path)


@pytest.fixture
def jobs(baton):
    return [baton("register", f"work of {queue}", "--agent-session", queue).text for queue in QUEUES]


class Following:
    """`baton logs ... -f` beside the test."""

    def __init__(self, baton, *arguments):
        self.path = os.path.join(baton.folder, "shown")
        with open(self.path, "w") as out:
            self.process = subprocess.Popen(
                [BATON, "logs", "-f", *arguments], cwd=baton.folder, env=baton.env, stdout=out, stderr=subprocess.PIPE
            )

    @property
    def lines(self):
        with open(self.path) as file:
            return file.read().splitlines()

    def shows(self, text):
        wait_until(lambda: any(text in line for line in self.lines), f"for {text!r}")

    def end(self):
        err = self.process.communicate(timeout=20)[1].decode()
        return self.process.returncode, err


@pytest.fixture
def follow(baton):
    started = []

    def start(*arguments):
        started.append(Following(baton, *arguments))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


def test_a_log_is_followed_until_its_job_ends(baton, jobs, follow):
    job, _ = jobs
    shown = follow(job)
    shown.shows("registered")
    baton("pick", "--agent-session", "first")
    shown.shows("pending → running")
    assert shown.process.poll() is None
    baton("status", job, "--set", "completed")
    assert shown.end() == (0, "")
    assert shown.lines == baton("logs", job).out.splitlines()
    assert "running → completed" in shown.lines[-1]
    ended = follow(job, "--tail", "1", "--json")  # of a job that has ended, it ends at once
    assert ended.end() == (0, "")
    assert [json.loads(line)["to"] for line in ended.lines] == ["completed"]


def test_several_logs_are_followed_until_all_jobs_end(baton, jobs, follow):
    shown = follow(*jobs)
    shown.shows(f"{jobs[1]}  ")
    baton("cancel", jobs[0])
    shown.shows("pending → cancelled")
    assert shown.process.poll() is None
    baton("cancel", jobs[1])
    assert shown.end()[0] == 0
    for job in jobs:
        expected = [f"{job}  {line}" for line in baton("logs", job).out.splitlines()]
        assert [line for line in shown.lines if line.startswith(job)] == expected
    stored = [json.loads(line) for line in baton("logs", *jobs, "--json").out.splitlines()]
    assert [line["job_id"] for line in stored] == [jobs[0]] * 2 + [jobs[1]] * 2


def test_it_stops_after_a_time_or_without_a_reader(baton, jobs, follow):
    code, err = follow(jobs[0], "--timeout", "0.3").end()
    assert (code, err) == (2, "baton: timed out: 0.3 s have passed\n")
    process = subprocess.Popen(
        [BATON, "logs", "-f", jobs[0]], cwd=baton.folder, env=baton.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert b"registered" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_change_that_its_process_could_not_log_is_shown_all_the_same(baton, jobs, follow, tmp_path):
    job = jobs[0]
    shown = follow(job)
    shown.shows("registered")
    with open(tmp_path / ".hermes" / "delegate_job_logs" / job / "events.ndjson") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        canceller = subprocess.Popen([BATON, "cancel", job], cwd=baton.folder, env=baton.env, stderr=subprocess.DEVNULL)
        wait_until(lambda: baton("status", job).text == "cancelled", "for the change in the registry")
        canceller.kill()
        canceller.wait()
    assert shown.end()[0] == 0
    assert "cancelled" in shown.lines[-1]


def test_since(baton, jobs, tmp_path):
    job, other = jobs
    logs = tmp_path / ".hermes" / "delegate_job_logs"
    old = time.time() - 7200
    os.utime(logs / job / "events.ndjson", (old, old))
    rows = [line.split("\t") for line in baton("logs", "--list").out.splitlines()]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        (job, "pending", "work of first"), (other, "pending", "work of second"),
    ]  # fmt: skip
    assert rows[0][2] == time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(old)) + rows[0][2][19:]
    assert [line.split()[0] for line in baton("logs", "--list", "--since", "1h").out.splitlines()] == [other]
    at = baton("logs", other, "--json").json["ts"]
    assert [line.split()[0] for line in baton("logs", "--list", "--since", at).out.splitlines()] == [other]
    (listed,) = [json.loads(line) for line in baton("logs", "--list", "--json", "--since", "1h").out.splitlines()]
    assert (listed["job_id"], listed["status"], listed["changed_at"][-1]) == (other, "pending", "Z")
    baton("cancel", other)
    after = json.loads(baton("logs", other, "--json").out.splitlines()[-1])["ts"]
    assert len(baton("logs", other, "--since", after).out.splitlines()) == 1
    assert len(baton("logs", other, "--since", "1h").out.splitlines()) == 2
    assert "--since must be a duration such as" in baton.refused("logs", "--list", "--since", "yesterday", code=None)


def test_several_logs_are_verified_and_each_damage_is_named(baton, jobs, tmp_path):
    assert baton("logs", *jobs, "--verify").out.count("unbroken") == 2
    path = tmp_path / ".hermes" / "delegate_job_logs" / jobs[0] / "events.ndjson"
    path.write_text(path.read_text().replace("registered", "registereD"))
    done = baton("logs", *jobs, "--verify", code=1)
    assert f"the audit log of {jobs[0]} was tampered with" in done.err
    assert done.text == f"{jobs[1]}: 1 line, unbroken"


def test_options_that_do_not_go_together_are_refused(baton):
    for arguments in (
        ["--list", "-f"],
        ["x", "--verify", "-f"],
        ["x", "--verify", "--since", "1h"],
        ["--list", "x"],
        [],
    ):
        baton.refused("logs", *arguments, code=64)
