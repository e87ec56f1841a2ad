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


def test_cancel_names_no_process_of_baton_itself(office):
    job = office("submit", "--detach", "--agent", "shell", "echo begun; sleep 60").text
    wait_until(lambda: "begun" in office("result", job, "--output", code=None).out, what="the output")
    assert office("cancel", job).err == ""


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


# -- after a SIGKILL of the runner ---------------------------------------------------------------------------------


def killed_runner(office, folder):
    job = running_job(office, folder)
    os.kill(office.session_of(job)["pane_pid"], signal.SIGKILL)
    return job


def test_after_a_kill_of_the_runner_cancel_ends_what_is_marked_and_names_the_rest(office, tmp_path):
    job = killed_runner(office, tmp_path)
    pid = (tmp_path / "pid").read_text().strip()
    said = office("cancel", job).err
    assert f"baton: process {pid} (sleep) may be the agent's" in said
    assert said.count("may be the agent's") == 1
    assert lives(tmp_path)
    assert not office.agents()
    assert not office.sessions()


def test_after_a_kill_of_the_runner_it_is_named_when_the_job_is_an_error_already(office, tmp_path):
    job = killed_runner(office, tmp_path)
    office("monitor", "--once")
    assert office.job(job)["status"] == "error"
    pid = (tmp_path / "pid").read_text().strip()
    refused = office("cancel", job, code=1)
    assert f"baton: process {pid} (sleep) may be the agent's" in refused.err


def test_nothing_is_named_when_the_runner_lives(office, tmp_path):
    job = running_job(office, tmp_path)
    with subprocess.Popen(["setsid", "--fork", "sleep", "3"], cwd=tmp_path):
        assert office("cancel", job).err == ""


# -- by tmux ---------------------------------------------------------------------------------------------------------

TMUX = {
    "run-shell": "tmux run-shell -b 'echo $$ > pid.new; mv pid.new pid; exec sleep 1000'",
    "new-window": "tmux new-window -d 'echo $$ > pid.new; mv pid.new pid; exec sleep 1000'",
    "new-session": "tmux new-session -d 'echo $$ > pid.new; mv pid.new pid; exec sleep 1000'",
}


@pytest.mark.parametrize("how", TMUX)
def test_what_an_agent_starts_by_tmux_ends_with_cancel(office, tmp_path, how):
    job = office.detached(f"cd {tmp_path}; {TMUX[how]}; sleep 1000")
    wait_until(lambda: (tmp_path / "pid").exists() and lives(tmp_path))
    office("cancel", job)
    wait_until(lambda: not lives(tmp_path))


def test_what_an_agent_starts_by_tmux_and_without_variables_is_named(office, tmp_path):
    hidden = f'env -i PATH="$PATH" tmux -S {office.socket} new-session -d'
    job = office.detached(f"{hidden} 'echo $$ > pid.new; mv pid.new pid; exec sleep 1000'; sleep 1000")
    wait_until(lambda: (tmp_path / "pid").exists() and lives(tmp_path))
    pid = (tmp_path / "pid").read_text().strip()
    assert f"baton: process {pid} (sleep) may be the agent's" in office("cancel", job).err
