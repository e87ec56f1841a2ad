"""A machine that gets another name keeps its sessions."""

from __future__ import annotations

import os
import signal

import pytest

from support.office import Office
from support.waiting import wait_until

pytestmark = pytest.mark.as_root
RENAMED = ["unshare", "--uts", "sh", "-c", 'hostname renamed; exec "$@"', "sh"]


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office


def renamed(office, *arguments, **more):
    office.prefix, before = RENAMED, office.prefix
    try:
        return office(*arguments, **more)
    finally:
        office.prefix = before


def test_a_session_is_stopped_under_the_new_name(office):
    office("session", "create", "mine")
    renamed(office, "session", "stop", "mine")
    assert not office.sessions()


def test_a_live_agent_is_found_under_the_new_name(office, tmp_path):
    office("session", "create", "mine")
    assert "renamed" in renamed(office, "session", "show", "mine").out
    renamed(office, "agent", "resolve", "mine", "--control")
    job = renamed(office, "submit", "touch done", "--to", "mine", "--detach").text
    office.wait_for_status(job, "completed")
    assert (tmp_path / "done").exists()
    renamed(office, "session", "stop", "mine")


def test_a_session_that_died_is_found_under_the_new_name(office):
    job = office.detached("sleep 1000")
    session = office.session_of(job)
    os.kill(session["pane_pid"], signal.SIGKILL)
    renamed(office, "monitor", "--once")
    assert office.job(job)["status"] == "error"
    assert office.session_of(job)["state"] == "terminated"


def test_a_job_whose_submitter_died_is_found_under_the_new_name(office, tmp_path):
    batch = '{"prompt": "touch begun; sleep 1000"}\n{"prompt": "true"}\n'
    (tmp_path / "batch").write_text(batch)
    submitted = office.start("submit", "--batch", "batch", "--parallel", "1")
    wait_until((tmp_path / "begun").exists)
    submitted.kill()
    (waiting,) = office.jobs("pending")
    done = renamed(office, "worker", "--until-empty")
    assert office.job(waiting["job_id"])["status"] == "completed", done
    for job in office.jobs("running"):
        office("cancel", job["job_id"])


def test_a_name_that_the_user_gave_decides_alone(office):
    office("session", "create", "mine")
    assert "is on" in office.refused("session", "stop", "mine", BATON_HOST="another")
    office("session", "stop", "mine")
