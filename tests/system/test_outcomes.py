"""How each job ended: who ended it, why, and what the commands that wait for it say about that."""

from __future__ import annotations

import getpass
import os

import pytest

from support.command import Baton


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
