"""A hook never troubles the agent, and what went wrong is in its log."""

from __future__ import annotations

import io
import json
import os

import pytest

from baton.adapters.contract import Mode
from baton.cli.hook import run
from baton.jobs.verbs import open_jobs
from baton.sessions import hook as hook_module
from baton.sessions.inventory import Inventory
from baton.sessions.session import Session, State
from baton.storage.homes import load_settings
from support.brokers import free_port

STOP = json.dumps({"hook_event_name": "Stop", "session_id": "c", "last_assistant_message": "done"})


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MQTT_BROKER", "127.0.0.1")
    monkeypatch.setenv("MQTT_PORT", str(free_port()))
    with open_jobs(load_settings()) as jobs:
        yield jobs


@pytest.fixture
def session(jobs, monkeypatch, tmp_path):
    """A session whose job wants a file that is not there."""
    job = jobs.register_job("x", agent_session="q", workdir=str(tmp_path), expected_artifacts=["out.txt"])
    jobs.pick_pending("q")
    inventory = Inventory(load_settings())
    known = {
        "name": "gpu", "session_id": "0" * 16, "state": State.RUNNING, "mode": Mode.INTERACTIVE, "agent": "claude-code",
        "conversation_id": "c", "job_id": job.job_id, "made_for": job.job_id, "workdir": str(tmp_path), "yolo": False,
        "created_at": job.created_at, "updated_at": job.created_at, "agent_name": "HOUMAO-gpu", "agent_id": "a",
        "generation_id": "g", "host": "here", "socket": "baton",
    }  # fmt: skip
    session = Session(**dict.fromkeys(Session.fields()) | known)
    inventory.add(session)
    folder = inventory.folder_of(session)
    os.makedirs(folder)
    monkeypatch.setenv("BATON_SESSION_DIR", folder)
    monkeypatch.setenv("BATON_SESSION_ID", session.session_id)
    return session


def noted():
    with open(os.path.join(os.environ["BATON_SESSION_DIR"], "hook.log")) as file:
        return [json.loads(line)["error"] for line in file]


def test_work_that_does_not_hold_is_an_error_that_says_what_is_missing_and_no_more(session, jobs, capsys):
    for _ in range(3):
        assert run(["claude-code", STOP]) == 0
        assert "out.txt is missing" in capsys.readouterr().out
    assert run(["claude-code", STOP]) == 0
    job = jobs.get_job(session.job_id)
    assert (job.status, job.detail) == ("error", "not completed: out.txt is missing")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (TypeError("a bug"), "TypeError: a bug"),
    ],
)
def test_whatever_goes_wrong_is_noted(session, monkeypatch, capsys, error, words):
    def fail(*_):
        raise error

    monkeypatch.setattr(hook_module, "_report", fail)
    assert run(["claude-code", STOP]) == 0
    assert capsys.readouterr().out == ""
    assert noted() == [words]


def test_settings_and_messages_that_cannot_be_read_are_noted(session, monkeypatch):
    assert run(["claude-code", "{"]) == 0
    monkeypatch.setattr("sys.stdin", None)
    assert run(["claude-code"]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(STOP))
    monkeypatch.setenv("BATON_LEASE_SEC", "0")
    assert run(["claude-code"]) == 0
    assert [line.partition(":")[0] for line in noted()] == [
        "JSONDecodeError",
        "AttributeError",
        "BATON_LEASE_SEC must be at least 1, not 0",
    ]


def test_an_agent_that_is_not_ours_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATON_SESSION_DIR", raising=False)
    assert run(["claude-code", "{"]) == 0
    assert list(tmp_path.iterdir()) == []
