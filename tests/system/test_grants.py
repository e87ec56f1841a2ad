"""`baton registry grants`: PostgreSQL logins that may only submit, only work, or only read, on a real server."""

from __future__ import annotations

import json
import re

import psycopg
import pytest
from psycopg import errors

from baton.core.errors import RegistryUnavailable
from baton.core.job import JOB_FIELDS
from baton.live_agents import postgres as directory
from baton.registry import open_url
from baton.registry.grants import REGISTRY_RIGHTS
from baton.registry.schema import POSTGRES_2
from support.command import Baton
from support.ports import free_port
from support.writing_verbs import YES, question

LOGINS = ("submit", "work", "read")


@pytest.fixture
def desks(postgres, tmp_path):
    """The owner of the tables, and one login for each role, all on one registry."""
    url = postgres.new_url()
    schema = url.rpartition("=")[2]
    nowhere = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": str(free_port())}
    owner = Baton(tmp_path, BATON_REGISTRY=url, **nowhere)
    script = owner("registry", "grants").out
    with psycopg.connect(postgres.url, autocommit=True) as server:
        server.execute(script)
        server.execute(script)  # again: it changes nothing
        for role in LOGINS:
            server.execute(f"CREATE ROLE {schema}_{role}_login LOGIN")
            server.execute(f"GRANT {schema}_{role} TO {schema}_{role}_login")
    found = {"owner": owner}
    for role in LOGINS:
        (tmp_path / role).mkdir()
        own = url.replace("baton@", f"{schema}_{role}_login@")
        found[role] = Baton(tmp_path / role, BATON_REGISTRY=own, **nowhere)
    yield found
    with psycopg.connect(postgres.url, autocommit=True) as server:
        for role in LOGINS:
            server.execute(f"DROP OWNED BY {schema}_{role}")
            server.execute(f"DROP ROLE {schema}_{role}_login, {schema}_{role}")


def refused(desk, *arguments) -> None:
    message = desk.refused(*arguments)
    assert "permission denied" in message
    assert "baton registry grants" in message


def test_a_login_that_submits_registers_reads_and_cancels_and_does_no_work(desks):
    submit = desks["submit"]
    job, other = submit("register", "true", "--agent", "shell").text, submit("register", "x").text
    assert submit("list", "--json").json[0]["job_id"] == other
    assert submit("status", job).text == "pending"
    refused(submit, "pick", "--agent", "shell")
    refused(submit, "publish", job, "--event", "progress")
    refused(submit, "status", job, "--set", "running")
    assert submit("cancel", other).text == "cancelled"
    refused(submit, "registry", "prune", "--older-than", "0s")
    desks["owner"]("pick", "--agent", "shell")
    refused(submit, "publish", job, "--event", "completed")
    assert submit("cancel", job).text == "cancelled"
    again = submit("retry", job, "--detach").text
    assert (submit("get", again).json["retry_of"], submit("get", job).json["retried_by"]) == (job, again)


def test_a_login_that_works_takes_and_ends_jobs_and_makes_none(desks):
    work = desks["work"]
    job, second = (desks["submit"]("register", "true", "--agent", "shell").text for _ in range(2))
    refused(work, "register", "rm -rf /", "--agent", "shell")
    assert work("pick", "--agent", "shell", "--lease", "60").text == job
    work("renew", job, "--attempt", "1", "--lease", "60")
    for event in ("started", "progress", "completed"):
        work("publish", job, "--event", event, "--attempts", "1")
    assert work("status", job).text == "completed"
    assert work("pick", "--agent", "shell").text == second
    work("release", second)
    assert work("pick", "--agent", "shell").text == second
    work("publish", second, "--event", "error", "--attempts", "1")
    work("monitor", "--once")
    assert desks["read"]("status", second).text == "error"


def test_a_login_that_works_cannot_change_what_another_worker_runs(desks, postgres):
    job = desks["submit"]("register", "true", "--agent", "shell", "--validate", "true").text
    url = desks["work"].env["BATON_REGISTRY"]
    schema = url.rpartition("=")[2]
    with psycopg.connect(url.partition("&schema")[0], autocommit=True) as login:
        work = ("prompt", "validate", "workdir", "agent", "agent_session", "broker", "topic_prefix", "job_id")
        for column in (*work, "start_options"):
            with pytest.raises(errors.InsufficientPrivilege):
                login.execute(f"UPDATE {schema}.jobs SET {column} = 'rm -rf /'")
        for statement in ("DELETE FROM", "TRUNCATE"):
            with pytest.raises(errors.InsufficientPrivilege):
                login.execute(f"{statement} {schema}.jobs")
        others = json.dumps(
            {"prompt": "rm -rf /", "validate": "touch pwned", "workdir": "/", "own": 1, "start_options": {"yolo": True}}
        )
        login.execute(f"UPDATE {schema}.jobs SET other_fields = %s", [others])
    stored = desks["read"]("get", job).json
    assert (stored["prompt"], stored["validate"], stored["own"]) == ("true", "true", 1)
    assert (stored["workdir"] != "/", stored["start_options"]) == (True, {})


def test_a_login_that_reads_changes_nothing(desks):
    read = desks["read"]
    job = desks["submit"]("register", "true", "--agent", "shell").text
    assert read("get", job).json["prompt"] == "true"
    assert read("registry", "stats").out.count("pending        1") == 1
    refused(read, "register", "x")
    refused(read, "pick", "--agent", "shell")
    refused(read, "publish", job, "--event", "progress")
    refused(read, "cancel", job)
    desks["work"]("publish", job, "--event", "completed", "--attempts", "1", "--detail", "all done")
    assert "all done" in read("subscribe", job, "--timeout", "20").out
    assert read("wait", job, "--timeout", "20").text.startswith(f"{job}\tcompleted")


def test_only_a_login_that_works_asks_and_answers(desks):
    job = desks["submit"]("register", "true", "--agent", "shell").text
    registries = {role: open_url(desks[role].env["BATON_REGISTRY"]) for role in ("submit", "work", "read")}
    work = registries["work"]
    work.pick_job(job, holder="me")
    request_id = work.open_request(job, question("aaaa0001"), attempt=1).after.request_id
    for role in ("submit", "read"):
        assert registries[role].get_request(request_id).call == {"command": "make"}
        assert [each.job_id for each in registries[role].changes_since(0)[0]] == [job]
        with pytest.raises(RegistryUnavailable, match="permission denied"):
            registries[role].answer_request(request_id, YES)
    assert work.answer_request(request_id, YES).after.answer == "allow"
    for registry in registries.values():
        registry.close()


def test_only_a_login_that_works_publishes_live_agents(desks, tmp_path):
    words = ("agent", "publish", "gpu", "--no-tmux-check", "--manifest", str(tmp_path / "manifest.json"))
    (tmp_path / "manifest.json").write_text("{}")
    for role in ("submit", "read"):
        assert desks[role]("agent", "list").code == 0
        url = desks[role].env["BATON_REGISTRY"]
        schema = url.rpartition("=")[2]
        with (
            psycopg.connect(url.partition("&schema")[0], autocommit=True) as login,
            pytest.raises(errors.InsufficientPrivilege),
        ):
            login.execute(f"INSERT INTO {schema}_directory.live_agents VALUES ('a', 'a', 1, '{{}}')")
    assert desks["work"](*words, code=1).err  # the manifest is none; the login would do
    url = desks["work"].env["BATON_REGISTRY"]
    with psycopg.connect(url.partition("&schema")[0], autocommit=True) as login:
        login.execute(f"INSERT INTO {url.rpartition('=')[2]}_directory.live_agents VALUES ('a', 'a', 1, '{{}}')")


def test_every_table_has_its_rights():
    assert set(re.findall(r"CREATE TABLE (\w+)", POSTGRES_2)) == set(REGISTRY_RIGHTS)
    assert set(re.findall(r"CREATE TABLE (\w+)", directory.TABLES)) == set(directory.RIGHTS)
    granted = set(re.findall(r"\w+", REGISTRY_RIGHTS["jobs"]["work"])) - {"UPDATE"}
    assert granted <= {*JOB_FIELDS, "other_fields"}
    assert not granted & {"prompt", "validate", "workdir", "agent", "agent_session", "broker", "expected_artifacts"}


def test_grants_are_for_postgresql(tmp_path):
    assert "must be on PostgreSQL" in Baton(tmp_path).refused("registry", "grants", code=64)
