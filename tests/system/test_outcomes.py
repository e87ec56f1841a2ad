"""How each job ended: who ended it, why, and what the commands that wait for it say about that."""

from __future__ import annotations

import getpass
import json
import os

import pytest

from baton.core.event import EventName
from baton.jobs.report import report
from baton.jobs.verbs import open_jobs
from support.command import BATON, Baton
from support.homes import settings_in
from support.office import Office
from support.terminal import Terminal
from support.waiting import wait_until


@pytest.fixture
def baton(tmp_path):
    nowhere = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "9"}
    return Baton(tmp_path, BATON_AGENT="shell", **nowhere)


def ended(baton, job):
    record = baton("get", job).json
    return record["status"], record["ended_by"], record["reason"]


def me():
    return f"{getpass.getuser()}@{os.uname().nodename}"


def test_a_cancelled_job_says_by_whom_or_why(baton):
    job, other = baton("register", "true").text, baton("register", "true").text
    baton("cancel", job)
    assert ended(baton, job) == ("cancelled", "cancelled", f"cancelled by {me()}")
    baton("cancel", other, "--reason", "the plan in /tmp/plan.md has changed")
    assert ended(baton, other) == ("cancelled", "cancelled", "the plan in /tmp/plan.md has changed")
    baton("cancel", other, "--reason", "again")  # it was cancelled already: nothing changes
    assert ended(baton, other)[2] == "the plan in /tmp/plan.md has changed"
    log = baton("logs", other, "--json").out
    assert "the plan in <path> has changed" in log
    assert "/tmp/plan.md" not in log
    refused = baton("cancel", baton("register", "true").text, "--reason", "x" * 5000, code=None)
    assert (refused.code != 0, refused.err.count("\n")) == (True, 1)
    assert "reason" in refused.err


def test_the_reason_keeps_the_paths_and_hides_the_keys(baton):
    job = baton("register", "true").text
    key = baton("get", job, "--show-secrets").json["auth_token"]
    said = f"open /tmp/a/b.py\n\x1b[31mfailed\x1b[0m with {key}"
    baton("publish", job, "--event", "error", "--detail", said, "--attempts", "1")
    assert ended(baton, job) == ("error", "agent", "open /tmp/a/b.py\nfailed with <secret>")
    assert "/tmp/a" not in baton("logs", job, "--json").out
    assert "/tmp/a" not in baton("get", job).json["detail"]


def test_a_status_that_is_set_by_hand_says_by_whom(baton):
    job = baton("register", "true").text
    baton("status", job, "--set", "running")
    assert ended(baton, job) == ("running", None, None)
    baton("status", job, "--set", "error")
    assert ended(baton, job) == ("error", "agent", f"set to error by {me()}")


def lines_of(result):
    return [json.loads(line) for line in result.out.splitlines()]


LISTENERS = ("subscribe", "wait")


@pytest.mark.parametrize("verb", LISTENERS)
def test_a_job_that_was_cancelled_ends_a_stream_of_json_with_its_outcome(baton, verb):
    job = baton("register", "true").text
    baton("cancel", job, "--reason", "not \x1b]0;now")
    (last,) = lines_of(baton(verb, job, "--json", code=4))
    finished = baton("get", job).json["finished_at"]
    assert last == {
        "job_id": job,
        "status": "cancelled",
        "ended_by": "cancelled",
        "reason": "not \x1b]0;now",
        "finished_at": finished,
        "timed_out": None,
        "grade": None,
        "changed": None,
    }


@pytest.mark.parametrize("verb", LISTENERS)
@pytest.mark.parametrize("ended_by", ["timeout", "idle"])
def test_a_job_that_ran_out_of_time_is_exit_code_2_everywhere(baton, verb, ended_by):
    job = baton("register", "true").text
    with open_jobs(settings_in(baton.folder, baton.env)) as jobs:
        report(jobs, job, EventName.ERROR, detail="it was late", ended_by=ended_by)
    last = lines_of(baton(verb, job, "--json", code=2))[-1]
    assert (last["timed_out"], last["status"], last["ended_by"], last["reason"]) == (
        "job",
        "error",
        ended_by,
        "it was late",
    )


@pytest.mark.parametrize("verb", LISTENERS)
def test_a_listener_that_ran_out_of_time_says_that_the_job_goes_on(baton, verb):
    job = baton("register", "true").text
    last = lines_of(baton(verb, job, "--json", "--timeout", "0.1", code=2))[-1]
    assert (last["timed_out"], last["status"], last["reason"]) == ("listener", "pending", None)


def test_an_error_outweighs_a_timeout_and_a_timeout_outweighs_a_cancellation(baton):
    failed, late, gone = (baton("register", "true").text for _ in range(3))
    with open_jobs(settings_in(baton.folder, baton.env)) as jobs:
        report(jobs, failed, EventName.ERROR)
        report(jobs, late, EventName.ERROR, ended_by="timeout")
    baton("cancel", gone)
    baton("subscribe", failed, late, gone, code=1)
    baton("subscribe", late, gone, code=2)


def test_submit_prints_the_outcome_of_a_job_that_was_cancelled_or_ran_out_of_time(tmp_path):
    with Office(tmp_path) as office:
        running = office.start("submit", "--json", "sleep 1234")
        job = wait_until(lambda: office.jobs("running"))[0]["job_id"]
        running.says("started")
        office("cancel", job, "--reason", "enough")
        done = running.end()
        last = json.loads(done.out.splitlines()[-1])
        assert (done.code, last["status"], last["reason"]) == (4, "cancelled", "enough")
        late = office.submit("--json", "sleep 1234", "--timeout", "1s", code=2)
        last = json.loads(late.out.splitlines()[-1])
        assert (last["timed_out"], last["ended_by"]) == ("job", "timeout")
        assert office.job(last["job_id"])["seen_at"]


def test_the_end_of_a_job_is_seen_once(baton):
    job = baton("register", "true").text
    baton("subscribe", job, "--timeout", "0.1", code=2)
    baton("cancel", job)
    assert baton("get", job).json["seen_at"] is None
    before = baton("get", job).json["updated_at"]
    baton("wait", job, code=4)
    seen = baton("get", job).json["seen_at"]
    assert seen is not None
    baton("wait", job, code=4)
    assert baton("get", job).json["seen_at"] == seen
    assert baton("get", job).json["updated_at"] == before


def test_wait_shows_progress_on_a_terminal(baton):
    job = baton("register", "true").text
    baton("publish", job, "--event", "error", "--detail", "the tests fail", "--attempts", "1")
    with Terminal([BATON, "wait", job], cwd=baton.folder, env=baton.env) as terminal:
        assert terminal.end() == 1
        shown = terminal.shown.decode()
    assert "TITLE" in shown
    assert f"{job} failed: the tests fail" in shown
    assert "1 failed in" in shown
