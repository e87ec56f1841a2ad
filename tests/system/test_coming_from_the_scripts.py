"""docs/coming-from-the-scripts.md: every name that it maps exists, no name of the seeds is left out, and taking over
a folder works as it says."""

from __future__ import annotations

import glob
import importlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import baton as package
from baton.cli import options
from baton.cli.main import VERBS, describe
from baton.config import DEFAULT_AGENT_NAME_PREFIX, KNOWN
from baton.core.drafts import new_job
from baton.core.job import DEFAULT_IDLE_TIMEOUT_SEC, DEFAULT_TIMEOUT_SEC
from baton.transport import publisher_connection
from support.command import Baton
from support.office import Office
from unit.test_model import SEED_RECORD

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "coming-from-the-scripts.md"
SCRIPTS = ROOT / "skills" / "tmux-agent-orchestrate-delegate-job" / "scripts"

# Everything that the documents baton comes from name, and a reader may look for.
_SEEDS = """
registry.py publish_event.py job_subscriber.py mqtt_common tmux-agent-orchestrate-delegate-job
tmux-agent-orchestrate-create tmux-agent-orchestrate-stop tmux-agent-orchestrate-resume tmux-agent-orchestrate-status
tmux-agent-orchestrate-monitor reconcile.sh watchdog.sh validate.sh lib.sh houmao-mgr --registry-dir --agent-def-dir
register_job pick_pending update_status next_seq registry_lock _atomic_write_record LOGS_DIR job_log_path init_job_log
append_event update_logged_status read_logged_meta read_logged_status iter_logged_events list_logged_jobs
update_job_status TERMINAL_EVENTS with_retry setup_logging broker_config_from_job atomic_dump_yaml
AGENT_SESSIONS_MUTATION resolve_live_agent_record .hermes/ .mam/ .json .events.log .lock .subscriber.out meta.json
events.ndjson status.json agent-sessions.db agent-sessions.yaml agent-sessions.yaml.bak record.json mosquitto.conf
.agents/skills/ requirements.txt MQTT_BROKER MQTT_PORT MQTT_TLS MQTT_CA_CERTS MQTT_CERTFILE MQTT_KEYFILE MQTT_USERNAME
MQTT_PASSWORD DELEGATE_JOB_LOGS_DIR TIMEOUT timeout_sec idle_timeout_sec broker.hivemq.com auth_token topic_prefix
agent_session CONNECT_ACK_TIMEOUT PUBLISH_ACK_TIMEOUT --attempts --grace-seconds HOUMAO- hermes claude-worker
register list get status pick cancel logs submit
"""


def rows(heading):
    """The cells of the table under a heading, without its head."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert len(found) > 2, heading
    return found[2:]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def mapped(heading):
    """Each name of baton in a table. A cell without one says that there is none, and the notes say why."""
    for seed, own, notes in rows(heading):
        assert names(seed) or seed, seed
        if own == "none":
            assert notes, seed
        else:
            assert names(own), seed
            yield from names(own)


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(SCRIPTS))
    dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield {name: importlib.import_module(name) for name in ("registry", "mqtt_common", "publish_event")}
    finally:
        sys.path.remove(str(SCRIPTS))
        sys.dont_write_bytecode = dont_write
        for name in ("registry", "mqtt_common", "publish_event"):
            sys.modules.pop(name, None)


def check_command(command):
    _, verb, *rest = command.split()
    assert verb in VERBS, command
    usage = describe(verb)
    if usage.actions:
        usage = usage.actions[rest.pop(0)]
    known = {name for option in usage.options for name in option.names}
    assert set(rest) <= known, command


def test_no_name_of_the_seeds_is_left_out():
    page = "\n".join(
        row[0] for heading in ("Scripts and commands", "Functions", "Files", "Variables", "Defaults and names")
        for row in rows(heading)
    )  # fmt: skip
    assert [
        name for name in _SEEDS.split() if not re.search(rf"(?<![\w-]){re.escape(name)}(?!\w)|{re.escape(name)}`", page)
    ] == []


@pytest.mark.parametrize("heading", ["Scripts and commands", "Functions", "Files"])
def test_every_command_that_the_page_names_is_there(heading):
    commands = [name for name in mapped(heading) if name.startswith("baton ")]
    assert commands
    for command in commands:
        check_command(command)


def test_every_function_that_the_page_names_is_there(scripts):
    functions = [name for name in mapped("Functions") if not name.startswith("baton ")]
    assert len(functions) > 20
    for name in functions:
        module, _, attribute = name.partition(".")
        getattr(package if module == "baton" else scripts[module], attribute)


def test_every_variable_that_the_page_names_is_read():
    variables = {variable for variable, _, _ in KNOWN.values()}
    assert {*mapped("Variables")} <= variables


def test_every_default_on_the_page_is_the_default(tmp_path):
    job = new_job("x", now_ns=1, agent="claude-code")
    assert len(job.auth_token) == 43  # of secrets.token_urlsafe(32)
    baton = Baton(tmp_path)
    baton("broker", "init", "--mosquitto", "set", "--host", "localhost")
    users = re.findall(r"^user (.+)", (tmp_path / "set" / "acl").read_text(), re.MULTILINE)
    actual = [
        str(DEFAULT_TIMEOUT_SEC), str(DEFAULT_IDLE_TIMEOUT_SEC), "127.0.0.1", "secrets.token_urlsafe(32)",
        job.topic_prefix.replace(job.job_id, "<job_id>"), job.agent_session,
        f"{publisher_connection.CONNACK_TIMEOUT_SEC:g}", f"{publisher_connection.PUBACK_TIMEOUT_SEC:g}",
        "3", options.NAME_LEASE.settings["default"], options.GRACE_SECONDS.settings["default"],
        DEFAULT_AGENT_NAME_PREFIX, *users,
    ]  # fmt: skip
    assert sorted(mapped("Defaults and names")) == sorted(actual)


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path, BATON_STATE_DIR=str(tmp_path / "state")) as office:
        yield office


def test_every_file_on_the_page_is_written(office):
    """By one job of each kind, in a registry of files."""
    office("register", "x")  # makes the home and its link
    office.env["BATON_REGISTRY"] = "file:.hermes/jobs"
    office.submit("true", "--json")
    for name in ("one", "two"):
        office("session", "create", name, "--agent", "shell")
    written = {pattern: found(office, pattern) for pattern in mapped("Files") if not pattern.startswith("baton ")}
    office("session", "stop", "one")
    office("session", "stop", "two")
    written |= {pattern: found(office, pattern) for pattern in written if not written[pattern]}
    assert [pattern for pattern, paths in written.items() if not paths] == []


def found(office, pattern):
    path = re.sub(r"<(?:job|agent)_id>", "*", pattern).replace("<state>", office.env["BATON_STATE_DIR"])
    return glob.glob(os.path.join(office.folder, path), include_hidden=True)


# -- taking over -----------------------------------------------------------------------------------------------------


@pytest.fixture
def baton(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    return Baton(work, HOME=str(tmp_path), BATON_STATE_DIR=str(tmp_path / "state"), BATON_AGENT="shell")


def leave_home(folder, name):
    """What the scripts leave: records, a log, sessions."""
    home = Path(folder) / name
    logs = home / "delegate_job_logs"
    (home / "jobs").mkdir(parents=True)
    for job_id, status in (("abc12345", "running"), ("abc12346", "pending"), ("abc12347", "completed")):
        record = SEED_RECORD | {"job_id": job_id, "status": status, "topic_prefix": f"python/mqtt/jobs/{job_id}"}
        record["broker"] = {"host": "127.0.0.1", "port": 9, "tls": False, "username": None, "password": None}
        (home / "jobs" / f"{job_id}.json").write_text(json.dumps(record))
    (home / "jobs" / ".lock").touch()
    (logs / "abc12345").mkdir(parents=True)
    lines = [
        {"event": "registered", "status": "pending"},
        {"event": "status_changed", "from": "pending", "to": "running"},
    ]
    (logs / "abc12345" / "events.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (logs / "abc12345" / "status.json").write_text('{"status": "running"}')
    (home / "agent-sessions.yaml").write_text("sessions:\n  claude: {status: terminated}\n")
    with sqlite3.connect(home / "agent-sessions.db") as database:
        database.execute("CREATE TABLE agents (name TEXT, status TEXT)")
        database.execute("INSERT INTO agents VALUES ('claude', 'running')")
    database.close()


@pytest.mark.parametrize("name", [".hermes", ".mam"])
@pytest.mark.parametrize("in_place", [[], ["--in-place"]])
def test_a_folder_of_the_scripts_is_taken_over(baton, name, in_place):
    leave_home(baton.folder, name)
    named = {} if name == ".hermes" else {"BATON_HOME": ".mam"}
    assert "baton trust" in baton.refused("list", **named)
    if name == ".mam":
        assert "BATON_HOME=.mam baton trust" in baton("list").err
    shown = baton("trust", "--yes", *in_place, **named).out
    assert "1 running" in shown and "1 pending" in shown
    if not in_place:
        named = {}  # the home serves the folder, whatever its link is called
    assert {job["job_id"]: job["status"] for job in baton("list", "--json", **named).json} == {
        "abc12345": "running", "abc12346": "pending", "abc12347": "completed",
    }  # fmt: skip
    assert (Path(baton.folder) / name / "jobs" / "abc12345.json").exists()

    quick = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "9"} | named
    baton("publish", "abc12345", "--event", "progress", "--attempts", "1", **quick)
    assert baton("get", "abc12345", "--show-secrets", **named).json["auth_token"]
    baton("publish", "abc12345", "--event", "completed", "--no-verify", "--attempts", "1", **quick)
    verdict = baton("logs", "abc12345", "--verify", **named)
    assert "lines 1-2 were written by another tool, chained from 3" in verdict.err
    assert baton("pick", "--agent-session", SEED_RECORD["agent_session"], **named).text == "abc12346"

    listed = baton("session", "list", **named)
    assert "agent-sessions.db and agent-sessions.yaml are of another tool" in listed.err
    home = Path(baton.folder) / name
    assert (home / "agent-sessions.yaml").read_text() == "sessions:\n  claude: {status: terminated}\n"
    with sqlite3.connect(home / "agent-sessions.db") as database:
        assert database.execute("SELECT * FROM agents").fetchall() == [("claude", "running")]
    database.close()


def test_the_scripts_of_the_skill_work_on_it(baton):
    leave_home(baton.folder, ".hermes")
    baton("trust", "--yes")
    script = [sys.executable, str(SCRIPTS / "registry.py")]
    done = subprocess.run(
        [*script, "list", "--json"], cwd=baton.folder, env=baton.env, capture_output=True, text=True, check=True
    )
    assert len(json.loads(done.stdout)) == 3
    assert shutil.which("baton", path=os.path.dirname(sys.executable))


def test_scripts_write_nothing_into_a_folder_that_is_not_trusted(baton):
    """The functions of the audit log are best effort; the others raise."""
    leave_home(baton.folder, ".hermes")
    code = """
import baton, mqtt_common, registry
assert not mqtt_common.append_event("abc12345", {"event": "note"})
assert not mqtt_common.update_logged_status("abc12345", "completed")
try:
    registry.pick_pending("tmux:claude")
except baton.BatonError as error:
    print(error)
"""
    before = {path: path.read_bytes() for path in Path(baton.folder).rglob("*") if path.is_file()}
    environment = baton.env | {"PYTHONPATH": str(SCRIPTS), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=baton.folder, env=environment, capture_output=True, text=True, check=True
    )
    assert "baton trust" in done.stdout
    assert [line.startswith("baton: warning: the audit log of job abc12345") for line in done.stderr.splitlines()] == [
        True
    ] * 2
    assert {path: path.read_bytes() for path in Path(baton.folder).rglob("*") if path.is_file()} == before
