"""R14: the registry is restored from an older copy, or its server lost commits, and the audit logs of this host know it."""

from __future__ import annotations

import os
import shutil

import psycopg
import pytest

import baton
from baton.history import position
from baton.jobs.verbs import Jobs
from baton.registry import open_url
from support.command import Baton
from support.ports import free_port

QUEUE = "tmux:shell"


def no_broker():
    return {"BATON_AGENT": "shell", "MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())}


class Store:
    """A registry that can be copied and restored behind baton's back."""

    def __init__(self, url, folder):
        self.url = url
        self.copy_path = os.path.join(folder, "copy")

    def copy(self):
        if self.url.startswith("postgres"):
            self._run("DROP SCHEMA IF EXISTS {0}_copy CASCADE", "CREATE SCHEMA {0}_copy")
            for table in ("jobs", "events"):
                self._run(f"CREATE TABLE {{0}}_copy.{table} AS SELECT * FROM {{0}}.{table}")
        else:
            shutil.copytree(os.path.dirname(self._path()), self.copy_path)

    def restore(self):
        if self.url.startswith("postgres"):
            for table in ("jobs", "events"):
                self._run(f"TRUNCATE {{0}}.{table}", f"INSERT INTO {{0}}.{table} SELECT * FROM {{0}}_copy.{table}")
        else:
            shutil.rmtree(os.path.dirname(self._path()))
            shutil.copytree(self.copy_path, os.path.dirname(self._path()))

    def _path(self):
        scheme, _, path = self.url.partition(":")
        return path if scheme == "sqlite" else os.path.join(path, "x")

    def _run(self, *statements):
        server, _, schema = self.url.partition("&schema=")
        with psycopg.connect(server) as connection:
            for statement in statements:
                connection.execute(statement.format(schema))


@pytest.fixture
def logs(tmp_path):
    return str(tmp_path / "logs")


@pytest.fixture
def command(tmp_path, url, logs):
    return Baton(tmp_path, BATON_REGISTRY=url, DELEGATE_JOB_LOGS_DIR=logs, **no_broker())


@pytest.fixture
def jobs(url, logs):
    warnings = []
    with Jobs(open_url(url), logs, warn=warnings.append) as jobs:
        jobs.warnings = warnings
        yield jobs


def named_jobs(command, advice):
    found = [each for each in command("doctor", "--json", code=None).json if each["what"] == "audit"]
    return {each["detail"].split()[1].rstrip(":") for each in found if advice in each["detail"]}


def disagreements(command):
    return named_jobs(command, "registry reconcile")


def gaps(command):
    return named_jobs(command, "adds them")


def finish(jobs, job_id, event="completed"):
    jobs.record_event(job_id, "started")
    jobs.record_event(job_id, event, detail="done")


def test_finished_work_is_not_run_again_until_the_user_settles_it(command, jobs, url, tmp_path, backend, figure):
    store = Store(url, str(tmp_path))
    names = ("completed", "error", "cancelled", "requeued", "running", "untouched", "in the copy")
    job = {name: jobs.register_job(name, agent="shell").job_id for name in names}
    jobs.pick_job(job["in the copy"])
    finish(jobs, job["in the copy"])
    jobs.registry.close()
    store.copy()
    finish(jobs, job["completed"])
    finish(jobs, job["error"], "error")
    jobs.update_status(job["cancelled"], "cancelled")
    jobs.pick_job(job["requeued"])
    jobs.release(job["requeued"])
    jobs.pick_job(job["running"], holder="a worker")
    later = jobs.register_job("registered later", agent="shell").job_id
    assert disagreements(command) == set()
    jobs.registry.close()
    store.restore()

    lost = {job[name] for name in ("completed", "error", "cancelled", "requeued", "running")}
    named = disagreements(command)
    assert named == lost | {later}
    ran = []
    while (picked := command("pick", code=None)).code == 0:
        ran.append(picked.text)
    again = [each for each in ran if each in lost]
    figure(
        f"R14 restored registry ({backend})",
        f"{len(lost)} jobs whose end or attempt was lost: {len(again)} run again, {len(named)} of {len(lost) + 1} named",
        held=not again and named == lost | {later},
    )
    assert ran == [job["untouched"]]
    assert picked.code == 3
    for name in ("completed", "requeued"):
        refusals = (
            command.refused("publish", job[name], "--event", "progress"),
            command.refused("status", job[name], "--set", "running"),
        )
        assert all(f"baton registry reconcile {job[name]} --keep" in refusal for refusal in refusals)
    assert disagreements(command) == lost | {later}

    command("registry", "reconcile", job["completed"], "--keep", "history")
    assert command("status", job["completed"]).text == "completed"
    command("registry", "reconcile", job["error"], "--keep", "registry")
    command("registry", "reconcile", job["requeued"], "--keep", "history")
    command("registry", "reconcile", later, "--keep", "history")
    command("registry", "reconcile", job["running"], "--keep", "history")
    assert command("status", job["running"]).text == "running"
    assert disagreements(command) == {job["cancelled"]}
    picked = [command("pick", "--json").json for _ in range(3)]
    assert {each["job_id"]: each["attempt"] for each in picked} == {job["error"]: 2, job["requeued"]: 2, later: 1}
    command("pick", code=3)
    assert command("publish", job["error"], "--event", "started", "--attempts", "1").json["seq"] == 3, (
        "1 and 2 are used"
    )
    for job_id in (job["completed"], job["error"], later):
        assert command("logs", job_id, "--verify", "--json").json["damage"] == []


def test_a_registry_that_lost_a_job_can_let_it_go(command, jobs, url, tmp_path):
    store = Store(url, str(tmp_path))
    jobs.register_job("in the copy", agent="shell")
    jobs.registry.close()
    store.copy()
    lost = jobs.register_job("lost", agent="shell").job_id
    jobs.registry.close()
    store.restore()
    assert disagreements(command) == {lost}
    command("registry", "reconcile", lost, "--keep", "registry")
    assert command("status", lost).text == "cancelled"
    assert disagreements(command) == set()
    assert "no job" in command.refused("registry", "reconcile", "deadbeef", "--keep", "registry")


def test_an_agent_may_not_settle_it(command, jobs):
    job_id = jobs.register_job("x", agent="shell").job_id
    line = command.refused("registry", "reconcile", job_id, "--keep", "registry", BATON_SESSION_ID="0123456789abcdef")
    assert "refused inside a session" in line


def test_a_claim_reads_the_log_of_the_claimed_job_alone(jobs, url, tmp_path, monkeypatch):
    store = Store(url, str(tmp_path))
    old = [jobs.register_job(f"old {number}", agent="shell").job_id for number in range(20)]
    fresh = [jobs.register_job(f"fresh {number}", agent="shell").job_id for number in range(3)]
    jobs.registry.close()
    store.copy()
    for job_id in old:
        finish(jobs, job_id)
    jobs.registry.close()
    store.restore()
    read = []
    real = position.read_position
    monkeypatch.setattr(position, "read_position", lambda job_id, logs: read.append(job_id) or real(job_id, logs))
    assert jobs.pick_pending(QUEUE).job_id == fresh[0]
    assert sorted(read) == sorted([*old, fresh[0]])
    assert len(jobs.warnings) == len(old), "each is named once"
    read.clear()
    assert [jobs.pick_pending(QUEUE).job_id for _ in range(2)] == fresh[1:]
    assert read == fresh[1:], "a disputed job is not read again"
    with pytest.raises(baton.JobDisputed):
        jobs.pick_job(old[0])


def test_doctor_names_a_log_that_lacks_an_event_and_logs_adds_it(command, jobs):
    job_id = jobs.register_job("x", agent="shell").job_id
    jobs.pick_job(job_id)
    jobs.registry.record_event(job_id, baton.EventName.STARTED)  # and no line in the log
    assert gaps(command) == {job_id}
    command("logs", job_id)
    assert gaps(command) == disagreements(command) == set()
    jobs.next_seq(job_id)
    assert gaps(command) == set(), "a number without an event has no line"


def test_a_home_restored_as_a_whole_shows_nothing(tmp_path):
    command = Baton(tmp_path, BATON_HOME=str(tmp_path / "home"), **no_broker())
    job_id = command("register", "x").text
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    command("publish", job_id, "--event", "completed", "--attempts", "1")
    shutil.rmtree(tmp_path / "home")
    shutil.copytree(tmp_path / "copy", tmp_path / "home")
    assert disagreements(command) == set()
    assert command("pick").text == job_id
