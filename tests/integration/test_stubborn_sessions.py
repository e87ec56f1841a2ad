"""What an attacker found in sessions: each of these once broke a promise."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from baton.adapters.contract import Mode
from baton.config import Settings
from baton.core.drafts import new_job
from baton.core.errors import RunnerDied, TmuxUnavailable
from baton.jobs.verbs import open_jobs
from baton.sessions import env_pipe
from baton.sessions.ending import fail_job
from baton.sessions.inventory import Inventory
from baton.sessions.launch import RUNNER_LOG, read_begun
from baton.sessions.processes import HOME_MARKER, MARKER, ProcessId, end_processes, marked_processes
from baton.sessions.session import Session, State
from baton.sessions.tmux import Tmux
from baton.storage.files import read_file
from support.homes import trust_in_place
from support.office import Office
from support.waiting import wait_until


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office


def test_a_process_that_threw_its_environment_away_is_ended_with_its_parent():
    session = "f00d" * 4
    parent = subprocess.Popen(
        ["/bin/sh", "-c", "env -i /bin/sleep 1238 & env -i setsid /bin/sleep 1239 & wait"],
        env=os.environ | {MARKER: session, HOME_MARKER: session},
    )

    def of_session():
        return marked_processes(session, home="", home_id=session)

    # A child is called sh until it has become the program.
    wait_until(lambda: sorted(each.command for each in of_session()) == ["sh", "sleep", "sleep"])
    ended = end_processes(of_session, grace_sec=5)
    parent.wait(10)
    assert sorted(each.command for each in ended) == ["sh", "sleep", "sleep"]
    assert not any(each.id.is_alive() for each in ended)


def test_a_socket_where_none_can_be_is_said_to_be_that(tmp_path):
    with pytest.raises(TmuxUnavailable):
        Tmux("/nonexistent/sock").new_session("x", ["sleep", "1"], workdir=str(tmp_path))


def test_a_runner_that_does_not_listen_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(env_pipe, "WAIT_SEC", 1.0)
    env_pipe.prepare(str(tmp_path))
    deaf = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os, time; os.open({str(tmp_path / 'go')!r}, os.O_RDONLY | os.O_NONBLOCK); time.sleep(60)",
        ]
    )
    try:
        began = time.monotonic()
        with pytest.raises(RunnerDied, match="stopped reading"):
            env_pipe.send(str(tmp_path), {"X": "y" * 300_000}, deaf.pid)
        assert time.monotonic() - began < 10
    finally:
        deaf.kill()
        deaf.wait()


def test_a_job_that_was_handed_back_can_still_be_ended(tmp_path):
    settings = Settings({"home": str(tmp_path)}, env={"HOME": str(tmp_path)})
    with open_jobs(settings) as jobs:
        draft = new_job("x", now_ns=time.time_ns(), agent="shell", agent_session="q", max_attempts=2)
        job = jobs.register_many([draft])[0]
        jobs.pick_pending("q")
        jobs.release(job.job_id)
        assert fail_job(settings, jobs, job, None, "nobody begins it again", ended_by="lost", notify=False)
        assert jobs.get_job(job.job_id).status == "error"
        (said,) = jobs.events_after(job.job_id, 0)
        assert b"nobody begins it again" in said.payload


def test_whoever_held_a_job_that_was_handed_back_cannot_end_it(tmp_path):
    settings = Settings({"home": str(tmp_path)}, env={"HOME": str(tmp_path)})
    with open_jobs(settings) as jobs:
        draft = new_job("x", now_ns=time.time_ns(), agent="shell", agent_session="q", max_attempts=2)
        job = jobs.register_many([draft])[0]
        held = jobs.pick_pending("q").attempt
        jobs.release(job.job_id)
        assert not fail_job(settings, jobs, job, held, "my session died", ended_by="lost", notify=False)
        assert jobs.get_job(job.job_id).status == "pending"
        assert not jobs.events_after(job.job_id, 0)


@pytest.mark.parametrize(
    ("env", "why", "logged"),
    [
        ({"BATON_LEASE_SEC": "0"}, "BATON_LEASE_SEC must be at least 1, not 0", None),
        ({}, "launch.json: No such file or directory; see ", "Traceback"),
    ],
)
def test_a_runner_that_cannot_begin_says_why(tmp_path, env, why, logged):
    home = {"HOME": str(tmp_path), "BATON_HOME": str(tmp_path)}
    trust_in_place(tmp_path, home)
    inventory = Inventory(Settings({}, home))
    known = {"name": "gpu", "session_id": "0" * 16, "state": State.RUNNING, "mode": Mode.INTERACTIVE, "agent": "shell"}
    now = "2026-07-01T00:00:00Z"
    known |= {"workdir": "/", "yolo": False, "created_at": now, "updated_at": now, "host": "here", "socket": "baton"}
    known |= {"agent_name": "HOUMAO-gpu", "agent_id": "a", "generation_id": "g"}
    session = Session(**dict.fromkeys(Session.fields()) | known)
    inventory.add(session)
    folder = inventory.folder_of(session)
    os.makedirs(folder)
    env_pipe.prepare(folder)
    runner = subprocess.Popen([sys.executable, "-P", "-m", "baton.sessions.runner", folder], stdout=subprocess.DEVNULL)
    env_pipe.send(folder, home | env, runner.pid)
    assert runner.wait(30) == 1
    assert why in read_begun(folder)["failed"]
    log = os.path.join(folder, RUNNER_LOG)
    assert not os.path.exists(log) if logged is None else logged in read_file(log).decode()


def test_a_stop_that_is_killed_leaves_no_immortal_session(office):
    """The agent does not heed SIGTERM; whoever was to kill it is killed itself."""
    job = office("submit", "trap '' TERM HUP; while :; do sleep 0.1; done", "--timeout", "5", "--detach").text
    wait_until(lambda: office("status", job).text == "running")
    name = office("session", "list", "--json").json[0]["name"]
    stop = office.start("session", "stop", name, "--grace", "60")
    wait_until(lambda: office("session", "show", name).json["stopper"])
    stop.kill()
    wait_until(lambda: office("status", job).text == "error", seconds=60)
    wait_until(lambda: office.sessions() == [], seconds=60)


def test_the_stopper_of_a_session_is_told_from_whoever_has_its_number_later():
    assert ProcessId.parse(str(ProcessId.current())).is_alive()
    assert not ProcessId.parse(f"{os.getpid()}/1").is_alive()
    assert ProcessId.parse(None) is None
    assert ProcessId.parse("12") is ProcessId.parse("a/b") is None


def test_a_worker_without_tmux_touches_no_job(office):
    job = office("register", "true", "--agent", "shell").text
    os.mkdir(os.path.join(office.folder, "bin"))
    os.symlink("/bin/sh", os.path.join(office.folder, "bin", "sh"))
    env = {"PATH": os.path.join(office.folder, "bin")}
    assert "tmux" in office("worker", "--until-empty", code=1, **env).err
    assert office("status", job).text == "pending"


def test_a_text_that_cannot_be_typed_fails_its_job_and_not_the_session(office):
    with open(os.path.join(office.folder, "agents.toml"), "w") as file:
        file.write('[agents.echo]\ninteractive = ["cat"]\n')
    office.env["BATON_CONFIG"] = os.path.join(office.folder, "agents.toml")
    office("session", "create", "u", "--agent", "echo")
    refused = office("submit", "a\x1b[201~b", "--session", "u", "--timeout", "10", code=1)
    assert (
        "typed" in refused.out + refused.err
        or "paste" in refused.out + refused.err
        or "201" in refused.out + refused.err
    )
    assert [each["name"] for each in office.sessions()] == ["u"]
    office("session", "stop", "u")
