"""Homes written by 0.1.0 open, show what they hold, and finish their jobs. `tests/data/make_homes.py` made them."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import paho.mqtt.client as paho
import psycopg
import pytest

import baton
from baton.adapters import BUILT_IN
from support.backends import BACKENDS, registry_url
from support.brokers import Broker
from support.command import BATON
from support.homes import trust_in_place
from support.sessions import SessionDesk
from support.waiting import wait_until

HOMES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "homes-of-0.1.0")
# Of the job record, since 0.1.0.
LATER_FIELDS = {"submitter", "verified_by", "unverified", "disputed", "title", "parent", "follows", "retry_of"}
LATER_FIELDS |= {"retried_by", "reason", "ended_by", "seen_at", "idempotency_key", "start_options", "notify_due"}
LATER_FIELDS |= {"activity", "tool_timeout_sec", "background_timeout_sec", "change", "worktree", "checkout"}
LATER_FIELDS |= {"after", "waits_for", "not_before", "look_at", "followed_at", "retries", "backoff_sec"}
LATER_FIELDS |= {"failed_attempts", "lost_attempts", "on_limit", "parked", "budget_usd", "usage", "above"}
LATER_FIELDS |= {"agent_runs", "agent_version", "agent_mode", "model", "grade", "changed"}
LATER_SESSION_FIELDS = {"machine", "parent", "domain"}
ENDED = ("completed", "error", "cancelled")


class StoredHome(SessionDesk):
    """A copy of a stored home, on the host that it was written on."""

    def __init__(self, folder, name, postgres=None):
        self.stored = os.path.join(HOMES, name)
        path = os.path.dirname(BATON) + os.pathsep + os.environ["PATH"]
        state = os.path.join(folder, "state")
        super().__init__(folder, BATON_HOST="host-a", BATON_STATE_DIR=state, BATON_AGENT="shell", PATH=path)
        os.makedirs(state)
        for source, target in (("home", self.home), ("state", state)):
            if os.path.isdir(os.path.join(self.stored, source)):
                shutil.copytree(
                    os.path.join(self.stored, source), target, dirs_exist_ok=True, copy_function=shutil.copyfile
                )
                _make_private(target)
        trust_in_place(self.home, self.env)
        with open(os.path.join(self.stored, "expected.json"), encoding="utf-8") as file:
            self.expected = json.load(file)
        self.where = {"home": self.home, "state_dir": state}
        if postgres is not None:
            self.use_registry(_load(postgres, os.path.join(self.stored, "registry.sql")))

    def use_registry(self, url):
        self.env["BATON_REGISTRY"] = self.where["registry"] = url

    def old(self, case):
        """The record that 0.1.0 showed for the job with this label."""
        (found,) = (job for job in self.expected["jobs"] if case in (*job["labels"], job["job_id"]))
        return found

    def id(self, case):
        return self.old(case)["job_id"]

    def unsent(self):
        """The payloads that 0.1.0 had not sent, by job, in order."""
        found = {
            job_id: [event["payload"].encode() for event in events if not event["sent"]]
            for job_id, events in self.expected["events"].items()
        }
        return {job_id: payloads for job_id, payloads in found.items() if payloads}

    def upgrade(self):
        """Bring the registry to schema 2. Its jobs run, and their 0.1.0 processes died with the power."""
        assert self("registry", "upgrade", "--force", "--json").json["schema"] == 2

    def publish(self, case, event, *more, **settings):
        """Record an event; no broker is there to send it to."""
        return self("publish", self.id(case), "--event", event, "--attempts", "1", *more, **settings)

    def findings(self):
        """What `doctor` has to say of the home, by its verdict: not of the agent programs on this machine."""
        programs = {f"agent {name}" for name in BUILT_IN}
        found = [each for each in self("doctor", "--json").json if each["what"] not in programs]
        return {state: {each["what"] for each in found if each["state"] == state} for state in ("warning", "broken")}


def _make_private(folder):
    """Set the modes that baton gives its files; git does not keep them."""
    for path, _, names in os.walk(folder):
        os.chmod(path, 0o700)
        for name in names:
            os.chmod(os.path.join(path, name), 0o600)


def _load(postgres, dump):
    """Load the dump into schemas of this test alone, and return the registry's url."""
    url = postgres.new_url()
    schema = url.rpartition("schema=")[2]
    with open(dump, encoding="utf-8") as file, psycopg.connect(postgres.url) as connection:
        connection.execute(file.read())
        connection.execute(f"ALTER SCHEMA baton RENAME TO {schema}")
        connection.execute(f"ALTER SCHEMA baton_directory RENAME TO {schema}_directory")
    return url


@pytest.fixture
def home(backend, tmp_path, request):
    server = request.getfixturevalue("postgres") if backend == "postgresql" else None
    home = StoredHome(tmp_path, backend, server)
    yield home
    home.close()


@pytest.fixture
def upgraded(home):
    home.upgrade()
    return home


@pytest.fixture(scope="module", params=BACKENDS)
def unchanged(request, tmp_path_factory):
    """A home that several tests read, and none changes."""
    server = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    home = StoredHome(tmp_path_factory.mktemp("home"), request.param, server)
    yield home
    home.close()


class Listener:
    """An independent client that collects what a broker delivers."""

    def __init__(self, broker):
        self.received = []
        subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)
        self._client.on_message = lambda _client, _data, message: self._note(message)
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()
        self._client.subscribe("python/mqtt/jobs/+/events", qos=1)
        assert subscribed.wait(10)

    def _note(self, message):
        if message.payload:  # without one, it clears what was retained
            self.received.append((message.topic, message.payload))

    def of(self, job_id):
        return [payload for topic, payload in list(self.received) if topic == f"python/mqtt/jobs/{job_id}/events"]

    def close(self):
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def listener(home):
    """Hears what the home's commands publish: they use its broker."""
    broker = Broker("nats")
    home.env |= broker.env
    listener = Listener(broker)
    yield listener
    listener.close()
    broker.remove()


def _printed(value):
    """As baton prints it: a time has at most microseconds."""
    return re.sub(r"^(\d{4}-\d\d-\d\dT[0-9:]{8}\.\d{6})\d+Z$", r"\1Z", value) if isinstance(value, str) else value


def assert_same(shown, old, later):
    """Every field of 0.1.0 is there with its value; the only others are known additions."""
    shown, old = ({name: _printed(value) for name, value in each.items()} for each in (shown, old))
    assert {name: shown.get(name, "missing") for name in old} == old
    assert shown.keys() - old.keys() <= later


def assert_same_jobs(home):
    shown = home("list", "--json", "--show-secrets").json
    assert [job["job_id"] for job in shown] == [job["job_id"] for job in home.expected["jobs"]]
    for job, old in zip(shown, home.expected["jobs"], strict=True):
        assert_same(job, old, LATER_FIELDS)
    with baton.open_jobs(**home.where) as jobs:
        kept = {job.job_id: job for job in jobs.each_job()}
    for old in home.expected["jobs"]:
        times = {name: value for name, value in old.items() if name.endswith("_at")}
        assert {name: getattr(kept[old["job_id"]], name) for name in times} == times, "to the nanosecond"


def assert_same_events(home):
    with baton.open_jobs(**home.where) as jobs:
        for job_id, old in home.expected["events"].items():
            events = jobs.events_after(job_id)
            assert [
                {"seq": each.seq, "attempt": each.attempt, "event": each.event, "payload": each.payload.decode(),
                 "sent": each.sent}
                for each in events
            ] == old  # fmt: skip
            assert [each.seq for each in jobs.events_after(job_id, 1)] == [each["seq"] for each in old[1:]]


def test_every_state_is_there(unchanged):
    """The stored homes hold what the tests below are about."""
    jobs = unchanged.expected["jobs"]
    assert {(job["status"], job["attempt"]) for job in jobs} >= {
        ("pending", 0), ("pending", 1), ("pending", 2), ("running", 0), ("running", 1), ("running", 2),
        ("completed", 1), ("error", 1), ("cancelled", 0), ("cancelled", 1),
    }  # fmt: skip
    assert {session["state"] for session in unchanged.expected["sessions"]} == {
        "running", "stopped", "terminated", "archived"
    }  # fmt: skip
    assert unchanged.old("unknown fields")["ticket"] == {"number": 7, "tags": ["a", None, 1.5]}
    assert unchanged.old("5eed0001")["auth_token"] is None
    for case, status in (("submitted, pending", "pending"), ("submitted, running", "running")):
        assert unchanged.old(case)["agent_session"].startswith("submit:host-a:")
        assert unchanged.old(case)["status"] == status
    assert len(unchanged.unsent()) == 5


def test_every_job_is_shown_with_every_field(unchanged):
    assert_same_jobs(unchanged)
    for case in ("unknown fields", "broker with a login", "running with a lease", "5eed0002"):
        old = copy.deepcopy(unchanged.old(case))
        if old["auth_token"] is not None:
            old["auth_token"] = "***"
        if old["broker"]["password"] is not None:
            old["broker"]["password"] = "***"
        assert_same(unchanged("get", old["job_id"]).json, old, LATER_FIELDS)


def test_every_event_is_there_and_signed(unchanged):
    assert_same_events(unchanged)
    unsent = {}
    for event in baton.unsent_events(**unchanged.where):
        unsent.setdefault(event.job_id, []).append(event.payload)
    assert unsent == unchanged.unsent()
    earlier = 0
    with baton.open_jobs(**unchanged.where) as jobs:
        for job in jobs.list_jobs(limit=1000):
            for event in jobs.events_after(job.job_id):
                if event.attempt == job.attempt:
                    assert baton.verify_event(event.payload, job.auth_token).seq == event.seq
                else:
                    earlier += 1
                    with pytest.raises(baton.Rejected):
                        baton.verify_event(event.payload, job.auth_token)
    assert earlier == 1


def test_every_audit_log_is_unbroken(unchanged):
    logs = os.path.join(unchanged.home, "delegate_job_logs")
    listed = [json.loads(line) for line in unchanged("logs", "--list", "--json").out.splitlines()]
    assert {each["job_id"]: each["status"] for each in listed} == {
        job["job_id"]: job["status"] for job in unchanged.expected["jobs"] if not job["job_id"].startswith("5eed")
    }
    lines = {}
    for each in listed:
        with open(os.path.join(logs, each["job_id"], "events.ndjson"), encoding="utf-8") as file:
            lines[each["job_id"]] = [json.loads(line) for line in file]
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(lambda job_id: unchanged("logs", job_id, "--verify", "--json").json, lines))
    assert verdicts == [
        {"job_id": job_id, "lines": len(told), "foreign": 0, "damage": [], "notes": []}
        for job_id, told in lines.items()
    ]
    job_id = unchanged.id("completed")
    assert [json.loads(line) for line in unchanged("logs", job_id, "--json").out.splitlines()] == lines[job_id]
    assert {line["event"] for told in lines.values() for line in told} == {
        "registered", "status_changed", "requeued", "published", "received", "validated"
    }  # fmt: skip


def test_every_session_and_live_agent_is_shown(unchanged):
    sessions = unchanged("session", "list", "--all", "--json").json
    assert [each["name"] for each in sessions] == [each["name"] for each in unchanged.expected["sessions"]]
    for session, old in zip(sessions, unchanged.expected["sessions"], strict=True):
        assert_same(session, old, LATER_SESSION_FIELDS)
    assert "on the screen" in unchanged("session", "capture", "stopped").out.splitlines()
    by_name = {session["name"]: session for session in sessions if session["state"] != "running"}
    archived = unchanged.archived()
    assert archived.keys() == by_name.keys()
    for name, entry in archived.items():
        assert {field: by_name[name][field] for field in entry} == entry
    agents = unchanged("agent", "list", "--json").json
    assert {each["record"]["agent_name"]: each["record"] for each in agents} == unchanged.expected["agents"]
    reviewer = unchanged("agent", "resolve", "reviewer", "--json").json
    assert reviewer == unchanged.expected["agents"]["HOUMAO-reviewer"]
    manifest = reviewer["runtime"]["manifest_path"]
    assert manifest in unchanged.refused("agent", "resolve", "reviewer", "--control"), (
        "its manifest was not copied there"
    )


def test_publish_sends_what_was_left_unsent(home, listener):
    """In order within each job, and byte for byte."""
    home.upgrade()
    unsent = home.unsent()
    job = home.id("running")
    answer = home("publish", job, "--event", "progress", "--attempt", "1", "--require-broker").json
    assert answer == {"job_id": job, "seq": 4, "event": "progress", "sent": True}
    (new,) = baton.events_after(job, 3, **home.where)
    unsent[job].append(new.payload)
    wait_until(lambda: len(listener.received) >= sum(map(len, unsent.values())), what="all events")
    assert {job_id: listener.of(job_id) for job_id in unsent} == unsent
    assert len(listener.received) == sum(map(len, unsent.values()))
    assert baton.unsent_events(**home.where) == []


def test_pending_jobs_are_picked_in_order_and_finish(home):
    home.upgrade()
    first = home.id("pending first")
    assert home("pick").text == first, "its priority is higher"
    assert "result.md" in home.publish("pending first", "completed", "--attempt", "1", code=1).err
    with open(os.path.join(home.folder, "result.md"), "w") as file:
        file.write("not yet\n")
    os.mkdir(os.path.join(home.folder, "out"))
    with open(os.path.join(home.folder, "out", "page"), "w") as file:
        file.write("text\n")
    assert "validation" in home.publish("pending first", "completed", "--attempt", "1", code=1).err
    assert home("status", first).text == "running"
    with open(os.path.join(home.folder, "result.md"), "w") as file:
        file.write("done\n")
    assert home.publish("pending first", "completed", "--attempt", "1").json["seq"] == 1
    assert home("status", first).text == "completed"
    assert home("pick").text == home.id("pending")
    home("pick", code=3)
    assert home("logs", first, "--verify", "--json").json["damage"] == []


def test_a_running_job_is_finished_by_its_holder_alone(home):
    home.upgrade()
    case = "running, attempt 2"
    before = home.old(case)
    with open(os.path.join(home.folder, "result.md"), "w") as file:
        file.write("done\n")
    for attempt in ("1", "3"):
        assert "attempt" in home.publish(case, "completed", "--attempt", attempt, code=1).err
    assert baton.get_job(before["job_id"], **home.where).last_seq == before["last_seq"]
    assert home("status", before["job_id"]).text == "running"
    assert home.publish(case, "completed", "--attempt", "2").json["seq"] == before["last_seq"] + 1
    job = baton.get_job(before["job_id"], **home.where)
    assert (job.status, job.attempt) == ("completed", 2)
    assert baton.verify_event(
        baton.events_after(job.job_id, before["last_seq"], **home.where)[0].payload, job.auth_token
    )


def test_a_requeued_job_is_picked_as_its_next_attempt(home):
    home.upgrade()
    for case, attempt in (("requeued", 2), ("requeued twice", 3)):
        before = home.old(case)
        picked = home("pick", "--agent-session", before["agent_session"], "--json", "--lease", "60").json
        assert (picked["job_id"], picked["attempt"]) == (before["job_id"], attempt)
        job = baton.get_job(before["job_id"], **home.where)
        assert job.auth_token not in (None, before["auth_token"]), "the attempt before it can sign nothing any more"
        with pytest.raises(baton.StaleAttempt):
            baton.record_event(job.job_id, "progress", attempt=attempt - 1, **home.where)
        for seq, event in enumerate(("started", "completed"), before["last_seq"] + 1):
            assert baton.record_event(job.job_id, event, attempt=attempt, **home.where).seq == seq
        assert baton.get_job(job.job_id, **home.where).status == "completed"


def test_jobs_of_every_origin_finish(home):
    """Records of another tool, and jobs in the private queue of a `submit` that is gone."""
    home.upgrade()
    private = home.old("submitted, pending")["agent_session"]
    submitter = private.removeprefix("submit:").rpartition(":")[0]
    assert baton.get_job(home.id("submitted, pending"), **home.where).submitter == submitter
    assert baton.pick_pending(private, **home.where) is None
    for case, attempt in (("5eed0001", 1), ("submitted, pending", 1), ("unknown fields", 1), ("pending", 1)):
        queue = home.old(case)["agent_session"]
        if case == "pending":
            assert baton.pick_pending(queue, **home.where).job_id == home.id("pending first")
        if queue == private:
            with baton.open_jobs(**home.where) as jobs:
                picked = jobs.pick_job(home.id(case))
        else:
            picked = baton.pick_pending(queue, **home.where)
        assert (picked.job_id, picked.attempt) == (home.id(case), attempt)
        assert picked.auth_token
        event = baton.record_event(picked.job_id, "completed", attempt=attempt, **home.where)
        assert baton.verify_event(event.payload, picked.auth_token).job_id == picked.job_id
    for case in ("5eed0002", "submitted, running", "running with a lease", "running"):
        event = baton.record_event(home.id(case), "completed", **home.where)
        assert event.attempt == 1
        assert event.seq == home.old(case)["last_seq"] + 1
    record = home("get", home.id("unknown fields")).json
    assert record["status"] == "completed"
    assert {name: record[name] for name in ("ticket", "reviewer")} == {
        "ticket": {"number": 7, "tags": ["a", None, 1.5]},
        "reviewer": "정",
    }
    for case in ("completed", "error", "cancelled"):
        assert home.old(case)["status"] in home.publish(case, "progress", code=1).err
    counts = baton.stats(**home.where)
    assert (counts["completed"], counts["running"]) == (12, 2)


def test_the_monitor_deals_with_what_the_power_cut_left(home, listener):
    assert home.findings() == {"warning": {"events", "sessions", "audit"} | _expired_agents(home), "broken": set()}
    unsent = home.unsent()
    session = f"job-{home.id('submitted, running')}-1"
    home.upgrade()
    home("monitor", "--once")
    wait_until(lambda: all(set(payloads) <= set(listener.of(job_id)) for job_id, payloads in unsent.items()))
    for job_id, payloads in unsent.items():
        assert listener.of(job_id)[: len(payloads)] == payloads
    assert baton.unsent_events(**home.where) == []
    leased = baton.get_job(home.id("running with a lease"), **home.where)
    assert (leased.status, leased.attempt, leased.claimed_by) == ("pending", 1, None)
    assert baton.pick_pending(leased.agent_session, **home.where).attempt == 2
    for case in ("submitted, running", "submitted, pending"):
        assert baton.get_job(home.id(case), **home.where).status in ENDED, f"{case}: its submitter is gone"
    for case in ("running", "running, attempt 2", "5eed0002"):
        assert home.old(case)["status"] == baton.get_job(home.id(case), **home.where).status == "running"
    assert home.state(session) == "terminated"
    assert home.archived().keys() == {each["name"] for each in home.expected["sessions"]}
    for job_id in ("5eed0001", "5eed0002"):
        assert home("logs", job_id, "--tail", "1").text
    assert home.findings() == {"warning": set(), "broken": set()}


def _expired_agents(home):
    """Of the session that ran when the home was written: its name was given for a day."""
    verdicts = {each["verdict"] for each in home("agent", "list", "--json").json}
    return {"live agents"} if "expired" in verdicts else set()


def schema(home):
    with baton.open_jobs(**home.where) as jobs:
        return jobs.registry.schema()


def test_what_only_reads_leaves_the_schema_as_it_is(home):
    for command in (("list",), ("get", home.id("running")), ("registry", "stats"), ("logs", "--list"), ("doctor",)):
        home(*command, code=None)
    assert len(baton.unsent_events(**home.where)) == sum(map(len, home.unsent().values()))
    assert schema(home) == 1


def test_an_upgrade_is_refused_while_jobs_run_and_names_them(home):
    running = [job["job_id"] for job in home.expected["jobs"] if job["status"] == "running" and job["claimed_by"]]
    commands = (
        ("register", "new work"),
        ("pick",),
        ("publish", home.id("running"), "--event", "progress"),
        ("registry", "upgrade"),
    )
    for command in commands:
        refusal = home.refused(*command)
        assert all(job_id in refusal for job_id in running)
        assert "registry upgrade --force" in refusal
    assert schema(home) == 1
    assert_same_jobs(home)


@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_an_upgrade_is_refused_while_a_runner_of_0_1_0_lives_and_names_it(home, backend):
    """Also without a running job: the session waits for one. The test plays its runner."""
    cancel_running(home, backend)
    (session,) = (each for each in home.expected["sessions"] if each["state"] == "running")
    folder = os.path.join(home.home, "sessions", session["session_id"])
    runner = [sys.executable, "-c", "import time; time.sleep(600)", "baton.sessions.runner", folder]
    with subprocess.Popen(runner) as process:
        named = f"process {process.pid} (the runner of session {session['name']}); stop it (kill {process.pid})"
        wait_until(lambda: folder.encode() in command_line(process.pid))
        for command in (("register", "new work"), ("pick",), ("registry", "upgrade")):
            assert named in home.refused(*command)
        assert schema(home) == 1
        home("list")
        process.kill()
    home("register", "new work")
    assert schema(home) == 2


def command_line(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def cancel_running(home, backend):
    for job in home.expected["jobs"]:
        if job["status"] == "running":
            set_status(home, backend, job["job_id"], "cancelled")


def test_the_first_write_upgrades_when_no_job_runs(home, backend):
    cancel_running(home, backend)
    job_id = home("register", "new work").text
    assert schema(home) == 2
    assert home("get", job_id).json["prompt"] == "new work"
    shown = {job["job_id"]: job for job in home("list", "--json", "--show-secrets").json}
    for old in home.expected["jobs"]:
        changed = {"status": shown[old["job_id"]]["status"]} if old["status"] == "running" else {}
        assert_same(shown[old["job_id"]], old | changed, LATER_FIELDS)
    assert home("registry", "upgrade", "--json").json["upgraded"] is False


def set_status(home, backend, job_id, status):
    """Change a record as no version of baton does."""
    if backend == "file":
        path = os.path.join(home.home, "jobs", f"{job_id}.json")
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record | {"status": status}, file)
        return
    if backend == "sqlite":
        raw, table, mark = sqlite3.connect(os.path.join(home.home, "jobs", "registry.db")), "jobs", "?"
    else:
        server, _, name = home.where["registry"].partition("&schema=")
        raw, table, mark = psycopg.connect(server), f"{name}.jobs", "%s"
    raw.execute(f"UPDATE {table} SET status = {mark} WHERE job_id = {mark}", [status, job_id])
    raw.commit()
    raw.close()


# The sources of 0.1.0, where the history of this repository is at hand.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_SOURCES_OF_0_1_0 = subprocess.run(
    ["git", "-C", _ROOT, "archive", "0717771120bc", "src"], capture_output=True, check=False
).stdout
_OLD_PROCESS = """
import sys
import baton
registry, job, pending = sys.argv[1:]
jobs = baton.open_jobs(registry=registry)
assert jobs.get_job(job).status == "running"
jobs.registry.renew_lease(job, attempt=1, lease_sec=3600)  # opens what a writer keeps open
print("open", flush=True)
sys.stdin.readline()
for what in (
    lambda: jobs.register_job("from 0.1.0"),
    lambda: jobs.record_event(job, "progress", attempt=1),
    lambda: jobs.registry.pick_pending(pending, holder="old"),
    lambda: jobs.registry.renew_lease(job, attempt=1, lease_sec=3600),
    lambda: jobs.update_status(job, "completed"),
):
    try:
        print("done", what(), flush=True)
    except baton.BatonError as error:
        print("refused", error, flush=True)
"""

if _SOURCES_OF_0_1_0:

    def test_processes_of_0_1_0_obey_an_upgrade(home, tmp_path):
        """Also those that have the registry open when it is upgraded."""
        old = str(tmp_path / "old")
        os.mkdir(old)
        subprocess.run(["tar", "-xC", old], input=_SOURCES_OF_0_1_0, check=True)  # before 3.11.4, tarfile has no filter
        environment = home.env | {"PYTHONPATH": os.path.join(old, "src"), "BATON_HOME": home.home}
        job = home.id("running")
        with baton.open_jobs(**home.where) as jobs:
            url = jobs.registry.url
        process = subprocess.Popen(
            [sys.executable, "-c", _OLD_PROCESS, url, job, home.old("pending")["agent_session"]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=home.folder,
        )  # fmt: skip
        assert process.stdout.readline() == "open\n"
        home.upgrade()
        before = home("list", "--json", "--show-secrets").json
        output, _ = process.communicate("go on\n", timeout=60)
        answers = output.splitlines()
        assert [answer.split()[0] for answer in answers] == ["refused"] * 5, answers
        for command in (["register", "new"], ["pick"], ["publish", job, "--event", "progress"]):
            done = subprocess.run(
                [sys.executable, "-m", "baton", *command],
                capture_output=True, text=True, env=environment, cwd=home.folder, check=False,
            )  # fmt: skip
            assert done.returncode == 1
            assert "written by a newer baton (schema 2" in done.stderr
        assert home("list", "--json", "--show-secrets").json == before


def test_migration_loses_nothing(home, backend, tmp_path, request):
    new = BACKENDS[(BACKENDS.index(backend) + 1) % len(BACKENDS)]
    server = request.getfixturevalue("postgres") if new == "postgresql" else None
    url = registry_url(new, str(tmp_path / "new"), server)
    assert home("registry", "migrate", "--to", url, "--json").json["jobs"] == len(home.expected["jobs"])
    if backend == "postgresql":
        home.use_registry(url)
    assert_same_jobs(home)
    home.where["registry"] = url
    assert_same_events(home)
    assert home("pick").text == home.id("pending first")


def test_a_migrated_registry_is_found_at_its_new_place(tmp_path):
    home = StoredHome(tmp_path, "moved")
    assert_same_jobs(home)
    assert_same_events(home)
    assert "moved to" in home.refused("register", "x", "--registry", f"sqlite:{home.home}/jobs/registry.db")
    home.upgrade()
    assert home("pick").text == home.id("moved")
    home.publish("moved and running", "completed", "--attempt", "1")
    assert baton.get_job(home.id("moved and running"), **home.where).status == "completed"
    home.close()


def test_ends_from_before_the_upgrade_count_as_seen(home):
    assert home("list", "--needs-me").out == ""
    home("registry", "upgrade", "--force")
    assert home("list", "--needs-me").out == ""
