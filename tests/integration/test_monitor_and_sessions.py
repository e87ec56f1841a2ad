"""The monitor with real sessions in tmux and real brokers: it sees to what is ours, and touches nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from baton.adapters.contract import Mode
from baton.config import Settings
from baton.core.clock import SystemClock, format_time
from baton.core.job import Status
from baton.delegation.monitor import Monitor
from baton.jobs.verbs import open_jobs
from baton.live_agents import open_directory, ownership
from baton.sessions import tmux as tmux_module
from baton.sessions.inventory import Inventory
from baton.sessions.manifest import Manifest
from baton.sessions.processes import started_at
from baton.sessions.session import Session, State
from baton.sessions.stop import StopMode, stop_session
from support.backends import spoil
from support.homes import settings_in
from support.office import Office
from support.ports import free_port
from support.waiting import wait_until

BURIED = "terminated, 1 left-over process ended"


class Time(SystemClock):
    """A clock whose date is ahead."""

    ahead_sec = 0.0

    def wall_ns(self):
        return super().wall_ns() + int(self.ahead_sec * 10**9)


class Watch:
    """A monitor over an office, in this process."""

    def __init__(self, office, clock):
        self.clock = clock
        self.settings = settings_in(office.folder, office.env)
        self.inventory = Inventory(self.settings)
        self.jobs = open_jobs(self.settings)

    def sweep(self, **options):
        monitor = Monitor(
            self.settings, self.jobs, self.inventory, **({"confirm_sec": 0, "clock": self.clock} | options)
        )
        return [(each.what, each.why, each.done) for each in monitor.sweep()]

    def status(self, job_id):
        return str(self.jobs.get_job(job_id).status)

    def add(self, tmux, name, **changes):
        """A session of ours as the inventory knows it, in a tmux where a process that only sleeps is its runner."""
        session_id = os.urandom(8).hex()
        marks = (f"BATON_SESSION_ID={session_id}", f"BATON_HOME_ID={self.settings.home_id}")
        folder = os.path.join(self.inventory.home, "sessions", session_id)
        pid = tmux.start(name, "env", *marks, sys.executable, "-c", "import time; time.sleep(600)", folder)
        pane_id = tmux("list-panes", "-t", f"={name}", "-F", "#{pane_id}")
        now = format_time(time.time_ns())
        session = Session(
            **dict.fromkeys(Session.fields())
            | {
                "name": name, "session_id": session_id, "state": State.RUNNING, "agent": "shell",
                "mode": Mode.INTERACTIVE, "workdir": "/tmp", "yolo": False, "agent_name": f"HOUMAO-{name}",
                "agent_id": f"id-{name}", "generation_id": "g", "host": self.settings.host, "socket": tmux.socket,
                "pane_id": pane_id, "pane_pid": pid, "pane_started": started_at(pid), "created_at": now,
                "updated_at": now,
            }
            | changes
        )  # fmt: skip
        self.inventory.add(session)
        return session


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office


@pytest.fixture
def watch(office, clock):
    watch = Watch(office, clock)
    yield watch
    watch.jobs.registry.close()


@pytest.fixture
def clock():
    return Time()


def test_a_session_that_is_gone_is_buried_with_what_its_agent_left_and_its_job_is_an_error(office, watch):
    job_id = office.detached("setsid sleep 1234 & echo x > ready; sleep 1235")
    wait_until((office.folder / "ready").exists)
    os.kill(office.session_of(job_id)["pane_pid"], signal.SIGKILL)
    wait_until(lambda: not office.tmux("list-panes", "-a"))
    name = f"session job-{job_id}-1"
    assert watch.sweep(dry_run=True)[0] == (
        name, "its session is gone from tmux", "would be terminated, and its job failed",
    )  # fmt: skip
    assert (watch.status(job_id), len(office.sessions())) == ("running", 1)
    found = watch.sweep()
    assert found[0][:2] == (name, "its session is gone from tmux")
    assert found[0][2].startswith("terminated, ")
    assert (watch.status(job_id), office.sessions()) == ("error", [])
    wait_until(lambda: not office.agents())
    assert office.session_of(job_id)["state"] == "terminated"
    assert watch.sweep() == []


@pytest.mark.parametrize(("made_for_it", "attempts"), [(True, 2), (True, 1), (False, 2)])
def test_the_job_of_a_dead_session_is_requeued_while_it_has_attempts_left(watch, tmux, made_for_it, attempts):
    job_id = watch.jobs.register_job("x", agent_session="q", max_attempts=attempts).job_id
    name = f"job-{job_id}-1"
    watch.jobs.pick_pending("q", holder=f"{watch.settings.host}:{name}:1")
    watch.add(tmux, name, job_id=job_id, made_for=job_id if made_for_it else None)
    tmux.start("other")
    tmux.end(name)
    requeued = made_for_it and attempts == 2
    found = (f"session {name}", "its session is gone from tmux")
    done = f"would be terminated, and its job {'requeued' if requeued else 'failed'}"
    assert watch.sweep(dry_run=True)[0] == (*found, done)
    assert watch.status(job_id) == "running"
    assert (*found, "terminated") in watch.sweep()
    assert watch.status(job_id) == ("pending" if requeued else "error")


def test_another_session_of_the_same_name_on_the_same_socket_is_left_alone(watch, tmux):
    mine = watch.add(tmux, "work")
    tmux.start("other")
    tmux.end("work")
    stranger = tmux.start("work")
    assert watch.sweep() == [("session work", "its session is gone from tmux", "terminated")]
    assert started_at(stranger) is not None
    assert "work" in tmux("list-sessions", "-F", "#{session_name}").split()
    assert watch.inventory.get("work").state is State.TERMINATED
    assert mine.pane_pid != stranger


def test_a_stop_leaves_another_session_of_the_same_name_alone(watch, tmux):
    watch.add(tmux, "work")
    tmux.start("other")
    tmux.end("work")
    stranger = tmux.start("work")
    stop_session(watch.settings, watch.inventory, watch.jobs, "work", mode=StopMode.HARD)
    assert started_at(stranger) is not None
    assert "work" in tmux("list-sessions", "-F", "#{session_name}").split()
    assert watch.inventory.get("work").state is State.TERMINATED


def test_a_process_that_got_the_number_of_ours_is_left_alone(watch, tmux):
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        watch.add(tmux, "work", pane_pid=stranger.pid, pane_started=1)
        watch.add(tmux, "done", made_for=ended(watch), pane_started=1)
        assert [done for what, _, done in watch.sweep() if what == "session work"] == [BURIED]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def ended(watch, status="error"):
    job = watch.jobs.register_job("x", agent_session="q")
    watch.jobs.pick_pending("q")
    watch.jobs.record_event(job.job_id, status)
    return job.job_id


def test_a_session_of_another_machine_or_of_a_server_that_does_not_answer_is_left_alone(watch, tmux, monkeypatch):
    watch.add(tmux, "far", host="build-7", pane_id="%99")
    watch.add(tmux, "near", pane_id="%98", pane_started=1)
    server = int(tmux("display-message", "-p", "#{pid}"))
    monkeypatch.setattr(tmux_module, "_TIMEOUT_SEC", 0.5)
    os.kill(server, signal.SIGSTOP)
    try:
        assert watch.sweep() == []
    finally:
        os.kill(server, signal.SIGCONT)
    assert {session.state for session in watch.inventory.all()} == {State.RUNNING}
    assert [what for what, _, _ in watch.sweep()] == ["session near"]


def test_a_session_whose_runner_lives_is_not_dead_because_tmux_cannot_be_seen(watch, tmux):
    session = watch.add(tmux, "work")
    os.rename(session.socket, session.socket + ".moved")
    try:
        assert watch.sweep() == []
    finally:
        os.rename(session.socket + ".moved", session.socket)
    assert watch.inventory.get("work").state is State.RUNNING


def test_a_session_that_is_being_made_is_given_time(watch, tmux, clock):
    watch.add(tmux, "work", pane_id=None, pane_pid=None, pane_started=None)
    assert watch.sweep() == []
    clock.ahead_sec = 31
    assert watch.sweep() == [("session work", "its session is gone from tmux", BURIED)]


def test_a_session_that_was_brought_back_between_two_looks_lives(watch, tmux):
    session = watch.add(tmux, "work", pane_id="%77", pane_pid=1)

    def meanwhile(_seconds):
        pane_id, pid = tmux("list-panes", "-t", "=work", "-F", "#{pane_id} #{pane_pid}").split()
        watch.inventory.change(session, lambda current: current.replace(pane_id=pane_id, pane_pid=int(pid)))

    assert watch.sweep(sleep=meanwhile) == []
    assert watch.sweep() == []
    assert watch.inventory.get("work").state is State.RUNNING


def test_a_session_that_the_second_look_finds_lives(watch, tmux):
    """Its process cannot be told from another, so that tmux alone decides; and tmux was hidden for a moment."""
    session = watch.add(tmux, "work", pane_started=1)
    os.rename(session.socket, session.socket + ".moved")
    assert watch.sweep(sleep=lambda _seconds: os.rename(session.socket + ".moved", session.socket)) == []
    assert watch.inventory.get("work").state is State.RUNNING


def test_a_session_that_outlives_its_job_is_stopped_after_a_while(watch, tmux, clock):
    job_id = ended(watch)
    session = watch.add(tmux, "work", made_for=job_id)
    watch.add(tmux, "free")
    assert [each for each in watch.sweep() if "session" in each[0]] == []
    clock.ahead_sec = 40
    why = "the job it was made for is error"
    assert ("session work", why, "would be stopped") in watch.sweep(dry_run=True)
    assert started_at(session.pane_pid) is not None
    assert ("session work", why, "stopped") in watch.sweep()
    assert started_at(session.pane_pid) is None
    assert [each.name for each in watch.inventory.all(State.RUNNING)] == ["free"]


def test_a_session_whose_job_is_at_work_elsewhere_is_stopped(watch, tmux):
    job = watch.jobs.register_job("x", agent_session="q", max_attempts=5)
    watch.jobs.pick_pending("q")
    watch.jobs.release(job.job_id)
    watch.jobs.pick_pending("q")
    old = watch.add(tmux, f"job-{job.job_id}-1", made_for=job.job_id)
    new = watch.add(tmux, f"job-{job.job_id}-2", made_for=job.job_id)
    found = watch.sweep()
    assert (f"session {old.name}", "attempt 2 of its job is at work elsewhere", "stopped") in found
    assert [each.name for each in watch.inventory.all(State.RUNNING)] == [new.name]
    assert watch.jobs.get_job(job.job_id).status is Status.RUNNING


def test_a_session_whose_job_is_in_no_registry_is_told_and_keeps_nobody_from_the_others(watch, tmux, clock):
    watch.add(tmux, "a", made_for="00000000")
    watch.add(tmux, "b", made_for=ended(watch))
    clock.ahead_sec = 40
    found = {what: done for what, _, done in watch.sweep() if what.startswith("session")}
    assert found == {"session a": None, "session b": "stopped"}


def test_a_job_whose_runner_lives_is_not_ended_by_a_clock_that_jumped(office, watch, clock):
    job_id = office.detached("sleep 1234")
    clock.ahead_sec = 86400
    for _ in range(2):
        assert [each for each in watch.sweep() if job_id in each[0] and "sent" not in each[1]] == []
    assert watch.status(job_id) == "running"
    office("cancel", job_id)
    wait_until(lambda: not office.sessions())


def test_the_lease_of_a_live_agent_is_kept_up_and_that_of_a_dead_one_is_not(office, watch):
    office("session", "create", "gpu")
    session = watch.inventory.get("gpu")
    directory = open_directory(watch.settings)
    ownership.refresh(directory, session.agent_id, session.generation_id, lease_ns=3600 * 10**9)
    told = ("agent HOUMAO-gpu", "its lease is half over")
    assert watch.sweep(dry_run=True) == [(*told, "would be refreshed")]
    assert left_sec(directory, session) < 3601
    assert watch.sweep() == [(*told, "refreshed")]
    assert left_sec(directory, session) > 23 * 3600
    assert watch.sweep() == []
    ownership.refresh(directory, session.agent_id, session.generation_id, lease_ns=3600 * 10**9)
    watch.inventory.change(session, lambda current: current.replace(pane_started=1))  # another has its number
    assert watch.sweep() == []
    directory.close()
    watch.inventory.change(session, lambda current: current.replace(pane_started=session.pane_started))
    office("session", "stop", "gpu")


def test_what_is_left_over_in_the_directory_goes_and_what_cannot_go_is_told(office, watch):
    state = watch.settings.state_dir
    for name in ("a", "b"):
        folder = os.path.join(state, "registry", "live_agents", name)
        os.makedirs(folder)
        os.utime(folder, (1, 1))
    os.makedirs(os.path.join(state, "registry", "locks", "b"))
    path = os.path.join(state, "manifests", "gpu.g1.json")
    os.makedirs(os.path.dirname(path))
    Manifest(
        agent_name="HOUMAO-gpu", agent_id="gpu", generation_id="g1", backend="tmux", tool="shell", session_name="gpu",
        socket=None, host=watch.settings.host, workdir=None, pane_pid=os.getpid(), pane_started=1,
    ).write(path)  # fmt: skip
    os.utime(path, (1, 1))
    manifest = (f"manifest {path}", "it is of no agent")
    assert [each for each in watch.sweep(dry_run=True) if each[0] in ("agent a", manifest[0])] == [
        ("agent a", "its record is missing", "would be removed"),
        (*manifest, "would be removed"),
    ]
    found = {what: (why, done) for what, why, done in watch.sweep()}
    assert found["agent a"] == ("its record is missing", "removed")
    assert found["agent b"][0].startswith("could not remove it: ")
    assert found["agent b"][1] is None
    assert found[manifest[0]] == (manifest[1], "removed")
    assert not os.path.exists(path)


def left_sec(directory, session):
    return (directory.get(session.agent_id).record.expires_ns() - directory.now_ns()) / 10**9


# -- brokers -------------------------------------------------------------------------------------------------


@pytest.fixture
def sending(tmp_path, broker, clock):
    settings = Settings({"home": str(tmp_path / "home")}, env={"HOME": str(tmp_path)} | broker.env)
    with open_jobs(settings) as jobs:
        yield jobs, Monitor(settings, jobs, Inventory(settings), clock=clock)


def heard(broker, topic, seconds, *options):
    """What mosquitto_sub, an independent client, hears there."""
    done = subprocess.run(
        ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(broker.port), "-t", topic, "-W", str(seconds), *options],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    return done.stdout


def test_what_is_unsent_is_sent_in_order(sending, broker):
    jobs, monitor = sending
    job_id = ended_with_progress(jobs)
    found = [(each.what, each.why, each.done) for each in monitor.sweep()]
    assert found == [(f"job {job_id}", "4 events not sent yet", "sent")]
    assert jobs.unsent_events() == []
    payload = heard(broker, jobs.get_job(job_id).events_topic, 5, "-C", "1")
    assert '"seq":4' in payload.replace(" ", "")  # the last word stays with the broker


def test_a_broker_that_is_gone_and_a_record_that_does_not_fit_keep_nobody_elses_events(sending, broker, clock):
    jobs, monitor = sending
    away = {"host": "127.0.0.1", "port": free_port(), "tls": False}
    lost = [ended_with_progress(jobs, broker=away) for _ in range(2)]
    bad, good = ended_with_progress(jobs), ended_with_progress(jobs)
    spoil(jobs.registry.url, bad)
    found = {each.what: each.done for each in monitor.sweep()}
    assert found == {f"job {lost[0]}": None, f"job {bad}": None, f"job {good}": "sent"}
    assert {event.job_id for event in jobs.unsent_events()} == {*lost, bad}
    clock.ahead_sec = 8 * 86400
    assert {each.what: each.done for each in monitor.sweep()}.items() >= {
        ("broker", "cleared of their last messages"),
        ("retained", None),
    }
    assert heard(broker, jobs.get_job(good).events_topic, 1) == ""


def ended_with_progress(jobs, **fields):
    job_id = jobs.register_job("x", agent="a", **fields).job_id
    for event in ("started", "progress", "progress", "completed"):
        jobs.record_event(job_id, event)
    return job_id


def test_the_last_words_of_old_jobs_are_cleared_from_the_broker(sending, broker, clock):
    jobs, monitor = sending
    job_id = ended_with_progress(jobs)
    list(monitor.sweep())
    clock.ahead_sec = 8 * 86400
    found = [(each.what, each.why, each.done) for each in monitor.sweep()]
    assert found == [("broker", "1 job ended long ago", "cleared of their last messages")]
    assert heard(broker, jobs.get_job(job_id).events_topic, 1) == ""
    clock.ahead_sec += 60
    assert list(monitor.sweep()) == []
