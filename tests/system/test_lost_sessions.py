"""Whatever looks at a job whose session was killed says so at once, also while no monitor runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from baton.board.query import Board, Need
from baton.core.errors import BatonError
from baton.jobs.verbs import open_jobs
from baton.sessions import stop
from baton.sessions.inventory import Inventory
from baton.sessions.processes import ProcessId, started_at
from baton.sessions.stop import StopMode, stop_session
from support.mcp import McpClient
from support.office import Office
from support.waiting import wait_until

KILLED = "the agent was killed: its tmux session is gone"


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office


def killed(office, command="sleep 600", *options, server=False):
    """A job whose runner was killed, and with it the pane. No process of baton was told."""
    job_id = office.detached(f"echo x > ready; {command}", *options)
    wait_until((office.folder / "ready").exists)
    pid = office.session_of(job_id)["pane_pid"]
    if server:
        os.kill(int(office.tmux("display-message", "-p", "#{pid}")), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: started_at(pid) is None)
    (office.folder / "ready").unlink()
    return job_id


def look_list(office, job_id):
    return office("list").text


def look_get(office, job_id):
    record = office("get", job_id).json
    assert (record["status"], record["ended_by"], record["activity"]) == ("error", "lost", None)
    return record["reason"]


def look_status(office, job_id):
    done = office("status", job_id)
    assert done.text == "error"
    return done.err


def look_explain(office, job_id):
    return office("explain", job_id).text


def look_wait(office, job_id):
    return office("wait", job_id, code=1).text


def look_result(office, job_id):
    return office("result", job_id, "--json").json["reason"]


def look_result_text(office, job_id):
    return office("result", job_id, code=None).err


def look_mcp_list(office, job_id):
    with McpClient(office.folder, office.env) as client:
        return json.dumps(client.call("list"))


def look_mcp_wait(office, job_id):
    with McpClient(office.folder, office.env) as client:
        return json.dumps(client.call("wait", job_ids=[job_id]))


def look_mcp_result(office, job_id):
    with McpClient(office.folder, office.env) as client:
        return json.dumps(client.call("result", job_id=job_id, output=True))


def look_subscribe(office, job_id):
    return office("subscribe", "--job", job_id, code=1).text


LOOKS = [value for name, value in sorted(globals().items()) if name.startswith("look_")]


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_at_a_killed_job_settles_it(office, look):
    job_id = killed(office)
    began = time.monotonic()
    assert KILLED in look(office, job_id)
    # 2 s are for the look. This is the whole command on a machine that may be busy: no look waits for a limit.
    assert time.monotonic() - began < 20
    job = office.job(job_id)
    assert (job["status"], job["ended_by"]) == ("error", "lost")
    assert office.sessions() == []
    wait_until(lambda: not office.agents())


def test_a_look_names_the_next_command(office):
    job_id = killed(office)
    assert f"baton retry {job_id}" in office("list").err
    assert f"baton retry {job_id}" not in office("list").err  # it was said


def test_a_look_finds_a_killed_tmux_server(office):
    job_id = killed(office, server=True)
    assert f"{job_id}\terror" in office("list").text


def test_a_look_requeues_a_job_that_has_attempts_left(office):
    job_id = killed(office, "sleep 600", "--max-attempts", "2")
    shown = office("list")
    assert f"{job_id}\tpending" in shown.text
    assert KILLED in shown.err
    assert "baton retry" not in shown.err
    assert office.job(job_id)["lost_attempts"] == 1
    office("cancel", job_id)


@pytest.mark.parametrize("number", [signal.SIGSTOP, None])
def test_a_job_whose_runner_lives_is_left_alone(office, number):
    job_id = office.detached("echo x > ready; sleep 600")
    wait_until((office.folder / "ready").exists)
    pid = office.session_of(job_id)["pane_pid"]
    if number is not None:
        os.kill(pid, number)
    try:
        for verb in (["list"], ["get", job_id], ["explain", job_id]):
            assert KILLED not in office(*verb).out
        assert office.job(job_id)["status"] == "running"
    finally:
        os.kill(pid, signal.SIGCONT)
        office("cancel", job_id)


@pytest.mark.parametrize("change", [{"host": "build-7"}, {"domain": "another-machine/1"}, {"domain": None}])
def test_a_session_of_another_machine_or_namespace_is_left_alone(office, change):
    job_id = killed(office)
    inventory = Inventory(office.settings)
    (session,) = inventory.all()
    # The machine of an old record is known by its host name alone, and two may have the same.
    inventory.change(session, lambda current: current.replace(machine=None, **change))
    assert f"{job_id}\trunning" in office("list").text
    assert office("get", job_id).json["status"] == "running"
    inventory.change(session, lambda _: session)
    assert f"{job_id}\terror" in office("list").text


def test_a_claim_without_a_session_is_left_alone(office):
    office("register", "x", "--queue", "q")
    job_id = office("pick", "--queue", "q", "--lease", "60", "--holder", "here:1").text
    assert f"{job_id}\trunning" in office("list").text


@pytest.mark.as_root
def test_a_home_that_cannot_be_written_says_that_it_is_unknown(office):
    job_id = killed(office)
    home = os.path.realpath(office.settings.home)
    subprocess.run(["mount", "--bind", home, home], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", home], check=True)
        assert f"{job_id}\trunning\tunknown" in office("list").text
        assert office("get", job_id).json["activity"]["kind"] == "unknown"
        shown = office("explain", job_id).text
        assert "activity  unknown" in shown
        assert "its tmux session is gone, and that could not be recorded" in shown
        with McpClient(office.folder, office.env) as client:
            assert client.call("list")["jobs"][0]["state"] == "unknown"
    finally:
        subprocess.run(["umount", home], check=True)
    assert f"{job_id}\terror" in office("list").text


@pytest.mark.as_root
def test_the_sessions_of_another_user_are_left_alone(office):
    """The system may hide the processes of others."""
    job_id = killed(office)
    path = os.path.join(office.settings.home, "agent-sessions.db")
    os.chown(path, 65534, 65534)
    try:
        assert Inventory(office.settings).lost() == []
    finally:
        os.chown(path, 0, 0)
    assert [session.job_id for session in Inventory(office.settings).lost()] == [job_id]
    assert f"{job_id}\terror" in office("list").text


def test_the_board_settles_a_killed_job(office):
    job_id = killed(office)
    board = Board(office.settings)
    try:
        board.refresh()
        wait_until(lambda: board.refresh() or office.job(job_id)["status"] == "error")
        board.refresh()
        (card,) = board.cards
        assert (card.state, card.need) == ("failed", Need.FAILED)
        assert card.reason == f"{KILLED}; `baton retry {job_id}` runs it again"
    finally:
        board.close()


def test_a_session_that_is_starting_is_left_to_the_process_that_starts_it(office):
    job_id = killed(office)
    session = office.session_of(job_id)
    begun = os.path.join(office.settings.home, "sessions", session["session_id"], "begun.json")
    os.unlink(begun)
    assert f"{job_id}\trunning" in office("list").text
    office("cancel", job_id)


def test_a_session_that_another_process_stops_is_left_to_it(office):
    job_id = killed(office)
    inventory = Inventory(office.settings)
    (session,) = inventory.all()
    inventory.change(session, lambda now: now.replace(stop_requested="enough", stopper=str(ProcessId.current())))
    assert f"{job_id}\trunning" in office("list").text
    inventory.change(session, lambda now: now.replace(stop_requested=None, stopper=None))
    assert f"{job_id}\terror" in office("list").text


@pytest.mark.parametrize("mode", [StopMode.GRACEFUL, StopMode.HARD])
def test_who_looks_while_a_session_is_stopped_hears_of_the_stop(office, monkeypatch, mode):
    job_id = office.detached("sleep 600")
    office.wait_for_status(job_id, "running")
    shown = []
    kill_pane = stop._kill_pane

    def look_meanwhile(session):
        kill_pane(session)
        shown.append(office("list").text + office("monitor", "--once", code=None).out)

    monkeypatch.setattr(stop, "_kill_pane", look_meanwhile)
    name = office.session_of(job_id)["name"]
    with open_jobs(office.settings) as jobs:
        stop_session(office.settings, Inventory(office.settings), jobs, name, mode=mode, reason="enough")
    assert len(shown) == 1
    assert KILLED not in shown[0]
    assert office.job(job_id)["detail"] == "the session was stopped: enough"


def test_a_hard_stop_ends_the_agent_although_it_cannot_be_recorded_before(office, monkeypatch):
    """For example on a disk that the agent has filled."""
    job_id = office.detached("sleep 600")
    office.wait_for_status(job_id, "running")
    session = office.session_of(job_id)
    inventory = Inventory(office.settings)

    def is_full(*_):
        raise BatonError("no space left on device")

    monkeypatch.setattr(inventory, "change", is_full)
    with open_jobs(office.settings) as jobs, pytest.raises(BatonError, match="no space left"):
        stop_session(office.settings, inventory, jobs, session["name"], mode=StopMode.HARD, reason="enough")
    assert started_at(session["pane_pid"]) is None
    assert office.job(job_id)["detail"] == "the session was stopped: enough"


def test_two_that_look_at_once_settle_a_job_once(office):
    job_id = killed(office)
    both = [office.start("list") for _ in range(2)]
    assert [running.end().code for running in both] == [0, 0]
    events = [each["event"] for each in office.audit(job_id)]
    assert office.job(job_id)["status"] == "error"
    assert len([each for each in office.audit(job_id) if each.get("to") == "error"]) == 1, events


def test_wait_starts_a_job_again_that_a_look_has_requeued(office):
    job_id = killed(office, "test -e again || sleep 600", "--max-attempts", "2")
    (office.folder / "again").touch()
    assert f"{job_id}\tpending" in office("list").text
    assert office("wait", job_id).text.startswith(f"{job_id}\tcompleted")
    assert office.job(job_id)["attempt"] == 2
