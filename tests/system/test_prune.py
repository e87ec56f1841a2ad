"""`baton prune`: what jobs that ended long ago have left is removed, and nothing else."""

from __future__ import annotations

import fcntl
import os
import re
import time
from pathlib import Path

import pytest

from baton.adapters.contract import Mode
from baton.broker.local import running_broker
from baton.config import Settings
from baton.core.clock import format_time
from baton.core.job import topic_prefix
from baton.jobs.verbs import Jobs, open_jobs
from baton.registry import open_url
from baton.sessions.inventory import Inventory
from baton.sessions.session import Session, State
from baton.transport.check import _Listener, _publish
from baton.transport.listener_ids import reserve_client_id
from support.backends import registry_url
from support.clock import FakeClock
from support.command import Baton
from support.ports import free_port

DAY_NS = 86400 * 10**9


class Attic(Baton):
    """A folder with jobs in it, and what they have left."""

    def __init__(self, folder: Path, **env: str) -> None:
        nowhere = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())}
        super().__init__(folder, **nowhere | {"BATON_HOST": "here"} | env)
        self.home = folder / ".hermes"

        self("register", "the first, which makes the home")

    @property
    def settings(self) -> Settings:
        return Settings({"home": str(self.home)}, env=self.env)

    def job(self, *statuses: str) -> str:
        """A job that had these statuses one after the other, with the output that `submit` writes."""
        with open_jobs(self.settings) as jobs:
            job_id = jobs.register_job("work", agent="a").job_id
            for status in statuses:
                jobs.update_status(job_id, status)
        self.output(job_id)
        return job_id

    def ended(self, status: str = "completed") -> str:
        return self.job("running", status)

    def old_job(self, days_ago: float) -> str:
        """A job that ended so many days ago."""
        clock = FakeClock(time.time_ns() - int(days_ago * DAY_NS))
        registry = open_url(f"sqlite:{self.home}/jobs/registry.db", clock=clock)
        with Jobs(registry, str(self.home / "delegate_job_logs"), clock=clock, host="here") as jobs:
            job_id = jobs.register_job("work", agent="a").job_id
            jobs.update_status(job_id, "cancelled")
        self.output(job_id, days_ago)
        return job_id

    def output(self, job_id: str, days_ago: float = 0) -> None:
        events = self.home / "jobs" / f"{job_id}.subscriber.out"
        printed = self.home / "outputs" / job_id / "1.0.out"
        then = time.time() - days_ago * 86400
        for path in (events, printed):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}\n")
            os.utime(path, (then, then))
        os.utime(printed.parent, (then, then))

    def left_of(self, job_id: str) -> set[str]:
        """Which of the things that a job leaves are there."""
        found = {"log": self.home / "delegate_job_logs" / job_id, "output": self.home / f"jobs/{job_id}.subscriber.out"}
        left = {name for name, path in found.items() if path.exists()}
        assert (self.home / "outputs" / job_id).exists() == ("output" in left)
        with open_jobs(self.settings) as jobs:
            return left | {"job" for job in jobs.each_job() if job.job_id == job_id}

    def session(self, name: str, **fields) -> Session:
        """A session that ended 40 days ago, with its folder and its entry in the archive."""
        then = format_time(time.time_ns() - 40 * DAY_NS)
        told = {
            "name": name, "session_id": os.urandom(8).hex(), "state": State.RUNNING, "agent": "shell",
            "mode": Mode.INTERACTIVE, "workdir": "/w", "yolo": False, "host": "here", "created_at": then,
            "updated_at": then, "agent_name": f"HOUMAO-{name}", "agent_id": name, "generation_id": name, "socket": "x",
        }  # fmt: skip
        session = Session(**dict.fromkeys(Session.fields()) | told | fields)
        inventory = Inventory(self.settings)
        inventory.add(session)
        folder = Path(inventory.folder_of(session))
        folder.mkdir(parents=True)
        (folder / "exit.json").write_text("{}")
        return inventory.change(session, lambda one: one.replace(state=State.STOPPED, ended_at=then))

    def sessions(self) -> list[str]:
        return [session.name for session in Inventory(self.settings).all()]

    def archived(self) -> list[str]:
        return re.findall(r"name: (\S+)", (self.home / "agent-sessions.yaml").read_text().replace("agent_name", ""))


EVERYTHING = {"job", "log", "output"}


@pytest.fixture
def attic(tmp_path):
    return Attic(tmp_path)


def test_what_ended_jobs_have_left_is_removed(attic):
    ended = [attic.ended("completed"), attic.ended("cancelled"), attic.ended("error")]
    others = [attic.job(), attic.job("running")]
    told = attic("prune", "--older-than", "0s", "--dry-run")
    assert re.fullmatch(r"would remove 3 jobs, 3 audit logs, 6 output files: \d+ kB\n", told.out)
    assert [attic.left_of(job_id) for job_id in ended] == [EVERYTHING] * 3

    told = attic("prune", "--older-than", "0s")
    assert re.fullmatch(r"removed 3 jobs, 3 audit logs, 6 output files: \d+ kB freed\n", told.out)
    assert told.err == ""
    assert [attic.left_of(job_id) for job_id in ended] == [set()] * 3
    assert [attic.left_of(job_id) for job_id in others] == [EVERYTHING] * 2
    assert attic("logs", others[0], "--verify").text.endswith("unbroken")
    assert attic("prune", "--older-than", "0s").text == "nothing ended that long ago"


def test_how_much_is_freed_is_told_to_programs(attic):
    attic.ended()
    told = attic("prune", "--older-than", "0s", "--json").json
    assert told["bytes"] >= 8 * 1024
    assert {name: count for name, count in told.items() if name != "bytes"} == {
        "jobs": 1, "audit logs": 1, "output files": 2, "sessions": 0, "archived sessions": 0, "listener files": 0,
    }  # fmt: skip


def test_only_what_ended_that_long_ago_is_removed(attic):
    old, young, now = attic.old_job(31), attic.old_job(29), attic.ended()
    assert attic("prune", "--older-than", "30d").text.startswith("removed 1 job, 1 audit log, 2 output files:")
    assert [attic.left_of(job_id) for job_id in (old, young, now)] == [set(), EVERYTHING, EVERYTHING]


def test_a_duration_without_a_unit_is_refused(attic):
    assert "--older-than must be a duration such as" in attic.refused("prune", "--older-than", "30", code=64)
    assert attic("prune", code=64).err != ""


def test_events_that_are_not_sent_are_kept_with_everything_of_their_job(attic):
    job_id = attic.job()
    with open_jobs(attic.settings) as jobs:
        jobs.record_event(job_id, "completed")
    told = attic("prune", "--older-than", "0s")
    assert told.text == "nothing ended that long ago"
    assert told.err == "kept 1 job with events that are not sent yet; `baton monitor --once` sends them\n"
    assert attic.left_of(job_id) == EVERYTHING


def test_no_message_of_a_removed_job_stays_at_the_broker(tmp_path):
    baton = Baton(tmp_path)
    try:
        job_id = baton("register", "work").text
        baton("publish", "--job", job_id, "--event", "completed")
        assert baton("prune", "--older-than", "0s").err == ""
        broker = running_broker(os.path.join(tmp_path, ".local", "state", "baton"))
        topic = f"{topic_prefix(job_id)}/events"
        listener = _Listener(broker.address(reading=True), "a-listener", topic)
        _publish(broker.address(reading=False), topic, b"the first message", retain=False)
        assert listener.next_message() == b"the first message"
        listener.close()
    finally:
        baton("broker", "down")


def test_what_baton_did_not_write_stays(attic, tmp_path):
    job_id, linked = attic.ended(), attic.ended()
    logs = attic.home / "delegate_job_logs"
    (logs / job_id / "notes.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    (logs / linked).rename(elsewhere)
    (logs / linked).symlink_to(elsewhere)
    told = attic("prune", "--older-than", "0s", code=1)
    assert "notes.txt" in told.err
    assert "is a link" in told.err
    assert os.listdir(logs / job_id) == ["notes.txt"]
    assert sorted(os.listdir(elsewhere)) == ["events.ndjson", "meta.json", "status.json"]


def test_what_an_earlier_prune_left_is_removed_too(attic):
    """`registry prune` keeps the audit logs; an interrupted one may leave an output."""
    job_id = attic.old_job(40)
    attic("registry", "prune", "--older-than", "30d")
    assert attic.left_of(job_id) == {"log", "output"}
    assert attic("prune", "--older-than", "30d").text.startswith("removed 1 audit log, 2 output files:")
    assert attic.left_of(job_id) == set()


def test_audit_logs_that_may_be_of_another_registry_stay(attic, tmp_path):
    """They are outside of the home, or the command line names another registry than the home's."""
    job_id = attic.old_job(40)
    attic("registry", "prune", "--older-than", "30d")
    other = f"sqlite:{tmp_path}/other.db"
    attic("register", "x", "--registry", other)
    assert attic("prune", "--older-than", "30d", "--registry", other).text == "nothing ended that long ago"
    shared = str(tmp_path / "shared")
    (attic.home / "delegate_job_logs").rename(shared)
    told = attic("prune", "--older-than", "30d", DELEGATE_JOB_LOGS_DIR=shared)
    assert told.text.startswith("removed 2 output files:")
    assert os.path.isdir(os.path.join(shared, job_id))


def test_it_goes_on_where_an_interrupted_one_stopped(attic):
    job_id = attic.ended()
    for name in ("events.ndjson", "meta.json"):
        (attic.home / "delegate_job_logs" / job_id / name).unlink()
    attic("prune", "--older-than", "0s")
    assert attic.left_of(job_id) == set()


@pytest.mark.parametrize("backend", ["file", "postgresql"])
def test_every_registry(tmp_path, backend, request):
    server = request.getfixturevalue("postgres") if backend == "postgresql" else None
    attic = Attic(tmp_path, BATON_REGISTRY=registry_url(backend, str(tmp_path / ".hermes" / "jobs"), server))
    ended, other = attic.ended(), attic.job()
    assert attic("prune", "--older-than", "0s").text.startswith("removed 1 job, 1 audit log, 2 output files:")
    assert attic.left_of(ended) == set()
    assert attic.left_of(other) == EVERYTHING


# -- sessions and listeners --------------------------------------------------------------------------------------


def test_sessions_of_removed_jobs_go_and_those_of_the_user_stay(attic):
    ended, pending = attic.ended(), attic.job()
    attic.session("of-ended", made_for=ended, conversation_id="c-1")
    attic.session("of-pending", made_for=pending, conversation_id="c-2")
    attic.session("mine", conversation_id="c-3")
    attic.session("mine-without-conversation")
    told = attic("prune", "--older-than", "0s")
    assert "2 sessions, 2 archived sessions" in told.text
    assert told.err == "kept 2 sessions that can be resumed; --stopped removes them too\n"
    assert attic.sessions() == ["mine", "of-pending"]
    assert attic.archived() == ["of-pending", "mine"]
    assert len(os.listdir(attic.home / "sessions")) == 2
    told = attic("prune", "--older-than", "0s", "--stopped")
    assert (told.err, attic.sessions(), attic.archived()) == ("", [], [])


def test_the_archive_keeps_what_ended_lately(attic):
    attic.session("old")
    recent = attic.session("recent", conversation_id="c")
    Inventory(attic.settings).change(recent, lambda one: one.replace(ended_at=format_time(time.time_ns())))
    assert "1 session, 1 archived session" in attic("prune", "--older-than", "30d").text
    assert attic.archived() == ["recent"]


def test_listener_files_without_a_listener_go(attic):
    folder = Path(attic.settings.state_dir) / "listeners"
    held, _ = reserve_client_id(attic.settings.state_dir, "a broker", ["topic"])
    (folder / "0123456789abcdef-0").touch()
    (folder / "0123456789abcdef-1").touch()
    (folder / "notes").touch()
    long_ago = time.time() - 40 * 86400
    for path in folder.iterdir():
        if not path.name.endswith("-1"):
            os.utime(path, (long_ago, long_ago))
    assert attic("prune", "--older-than", "30d").text == "removed 1 listener file: 0 kB freed"
    left = {path.name for path in folder.iterdir()}
    assert {"id", "notes", "0123456789abcdef-1"} < left
    assert len(left) == 4
    os.close(held)


def test_a_listener_never_holds_a_file_that_was_removed(attic, monkeypatch):
    """Two listeners with one id would disconnect each other."""
    from baton.storage import files

    state_dir = attic.settings.state_dir
    first, name = reserve_client_id(state_dir, "a broker", ["topic"])
    os.close(first)
    path = Path(state_dir) / "listeners" / name.removeprefix("baton-sub-")
    real, calls = files._lock_at_once, []

    def removed_just_before(fd: int) -> bool:
        calls.append(fd)
        if len(calls) == 1:
            path.unlink()
        return real(fd)

    monkeypatch.setattr(files, "_lock_at_once", removed_just_before)
    held, again = reserve_client_id(state_dir, "a broker", ["topic"])
    monkeypatch.undo()
    assert again == name
    with path.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)


# -- the keep time -----------------------------------------------------------------------------------------------


def test_the_monitor_removes_only_where_a_keep_time_is_set(attic):
    old, young = attic.old_job(31), attic.old_job(29)
    attic("monitor", "--once")
    assert attic.left_of(old) == EVERYTHING
    told = attic("monitor", "--once", "--dry-run", BATON_KEEP_DAYS="30")
    assert "jobs: ended more than 30 days ago: would be removed: 1" in told.text
    assert attic.left_of(old) == EVERYTHING
    told = attic("monitor", "--once", BATON_KEEP_DAYS="30")
    assert "jobs: ended more than 30 days ago: removed: 1" in told.text
    assert attic.left_of(old) == set()
    assert attic.left_of(young) == EVERYTHING
    older = attic.old_job(40)
    assert "removed" not in attic("monitor", "--once", BATON_KEEP_DAYS="30").text, "once an hour"
    assert attic.left_of(older) == EVERYTHING


def test_a_keep_time_of_nothing_is_refused(attic):
    assert "BATON_KEEP_DAYS must be at least 1" in attic.refused("list", code=64, BATON_KEEP_DAYS="0")


def test_a_link_in_place_of_the_outputs_is_not_followed(attic, tmp_path):
    job = attic.old_job(40)
    elsewhere = tmp_path / "elsewhere"
    (attic.home / "outputs").rename(elsewhere)
    (attic.home / "outputs").symlink_to(elsewhere)
    attic("prune", "--older-than", "30d")
    assert (elsewhere / job / "1.0.out").exists()
