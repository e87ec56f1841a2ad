"""What an agent starts ends with its session, however it was started; what cannot be proved to be the agent's is named."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from support.office import Office
from support.waiting import poll, wait_until

# As far away from its agent as a process gets without help: no environment, a session of its own, no parent.
FAR = "env -i setsid sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 1000' &"
LATER = f"({FAR}) ; until test -e pid; do sleep 0.05; done; "


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office
        end_what_is_left(tmp_path)


def end_what_is_left(folder):
    if (folder / "pid").exists() and lives(folder):
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def lives(folder):
    pid = (folder / "pid").read_text().strip()
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            return b"sleep" in cmdline.read()
    except OSError:
        return False


def running_job(office, folder, *more):
    job = office.detached(LATER + "sleep 1000", *more)
    wait_until(lambda: (folder / "pid").exists() and lives(folder))
    return job


def test_a_process_without_environment_and_parent_ends_with_cancel(office, tmp_path):
    job = running_job(office, tmp_path)
    office("cancel", job)
    wait_until(lambda: not lives(tmp_path))


@pytest.mark.parametrize("mode", ["graceful", "hard"])
def test_a_process_without_environment_and_parent_ends_with_the_session(office, tmp_path, mode):
    job = running_job(office, tmp_path)
    stopped = office("session", "stop", office.session_of(job)["name"], "--mode", mode)
    assert not lives(tmp_path)
    assert "sleep" in stopped.out + stopped.err


def test_a_process_without_environment_and_parent_ends_with_its_agent(office, tmp_path):
    office.submit(LATER)
    wait_until(lambda: not lives(tmp_path))


def test_processes_that_were_adopted_and_have_ended_do_not_pile_up(office, tmp_path):
    job = office.detached("for i in 1 2 3 4 5; do (setsid true &); done; touch begun; sleep 1000")
    wait_until((tmp_path / "begun").exists)
    runner = office.session_of(job)["pane_pid"]

    def zombies():
        listed = subprocess.run(
            ["ps", "-o", "stat=", "--ppid", str(runner)], capture_output=True, text=True, check=False
        ).stdout
        return listed.split().count("Z") + listed.split().count("Zs")

    assert poll(lambda: zombies() == 0, 15)
    office("cancel", job)


def test_the_local_broker_outlives_the_session_whose_agent_started_it(office, tmp_path):
    office("broker", "down", code=None)
    job = office.detached("baton broker down; baton broker up; touch up; sleep 1000")
    wait_until((tmp_path / "up").exists)
    office("cancel", job)
    wait_until(lambda: not office.sessions())
    assert office("broker", "status").code == 0
