"""What a user sees of activity and requests: list, get, explain, wait, watch; with a registry alone."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest

from baton.core.clock import format_micros
from baton.core.request import RequestKind
from baton.jobs.activity_file import Snapshot, write_snapshot
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.session import State
from support.asking import QUESTION, ask, running, set_activity
from support.command import BATON, Baton
from support.homes import settings_in
from support.terminal import Terminal
from support.waiting import wait_until

CAUSES = {
    "starting": "the agent has not begun a turn of the job", "working": "Bash: make", "stalled": "no sign of work",
    "blocked": "trust: open it and answer", "retrying": "529 Overloaded, try 7 of 10", "limited": "until noon",
    "idle": "its turn was interrupted", "waiting": "waiting for a permission: Bash: git push origin main",
}  # fmt: skip
NOWHERE = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "9"}


class Desk(Baton):
    """A folder whose jobs a test works on."""

    def __init__(self, folder) -> None:
        super().__init__(folder, **NOWHERE)
        self.settings = settings_in(folder, self.env)

    def __enter__(self):
        self.jobs = open_jobs(self.settings)
        self.registry = self.jobs.registry
        return self

    def __exit__(self, *_):
        self.registry.close()


@pytest.fixture
def desk(tmp_path):
    with Desk(tmp_path) as desk:
        yield desk


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    """A desk with one job for each kind of activity, and one each that is not sure any more."""
    with Desk(tmp_path_factory.mktemp("activity")) as desk:
        desk.ids = {}
        for kind, cause in CAUSES.items():
            job = running(desk.jobs, title=f"The {kind} one")
            set_activity(desk.registry, job, kind, cause, since_sec=100)
            desk.ids[kind] = job.job_id
            if kind == "waiting":
                desk.request = ask(desk.registry, job)
        lost = running(desk.jobs, title="The lost one")
        set_activity(desk.registry, lost, "working", lease_sec=0.001)
        again = running(desk.jobs, title="The second attempt", max_attempts=2)
        set_activity(desk.registry, again, "stalled", "old")
        desk.jobs.release(again.job_id, attempt=1)
        desk.jobs.pick_job(again.job_id, lease_sec=60)
        desk.ids |= {"unknown": lost.job_id, "again": again.job_id}
        yield desk


def test_list_and_get_say_what_each_agent_does_and_why(office):
    rows = {row[0]: row for row in (line.split("\t") for line in office("list").out.splitlines())}
    assert {kind: rows[job_id][2] for kind, job_id in office.ids.items() if kind != "again"} == {
        kind: kind for kind in office.ids if kind != "again"
    }
    told = {kind: rows[job_id][8] for kind, job_id in office.ids.items() if kind in CAUSES}
    shown = CAUSES | {"starting": "-", "working": "-"}
    assert told == shown | {"waiting": f"{office.request.request_id}: {office.request.summary}"}
    records = {record["job_id"]: record["activity"] for record in office("list", "--json").json}
    assert records[office.ids["retrying"]].items() >= {"kind": "retrying", "cause": CAUSES["retrying"]}.items()
    assert records[office.ids["unknown"]]["kind"] == "unknown"
    assert records[office.ids["again"]] is None, "a new attempt knows nothing of the one before"
    assert office("get", office.ids["unknown"]).json["activity"]["kind"] == "unknown"


def test_needs_me_is_what_waits_and_what_does_not_go_on(office):
    def ids(*more):
        return set(office("list", "--needs-me", "--columns", "id", *more).out.split())

    assert ids() == {office.ids[kind] for kind in ("waiting", "blocked", "stalled")}
    assert ids("--status", "error") == set()
    assert len(ids("--limit", "2")) == 2
    in_json = {record["job_id"] for record in office("list", "--needs-me", "--json").json}
    assert in_json == ids()


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("env", [{}, {"LANG": "C", "LC_ALL": "C"}])
def test_on_a_terminal_what_needs_a_person_is_on_top(office, columns, env):
    with Terminal(
        [BATON, "list"], cwd=str(office.folder), env=office.env | {"COLUMNS": str(columns), "NO_COLOR": "1"} | env
    ) as terminal:
        assert terminal.end() == 0
        lines = terminal.shown.decode().splitlines()
    assert max(map(len, lines)) <= columns
    assert {line.split()[1] for line in lines[1:4]} == {"waiting", "blocked", "stalled"}
    assert sum(line.split()[1] == "working" for line in lines) == 1


def explained(desk, job_id, *more):
    return desk("explain", job_id, "--json", *more).json


def test_explain_says_what_the_registry_knows_of_a_job_elsewhere(office):
    waiting = explained(office, office.ids["waiting"][:6])
    assert (waiting["state"], waiting["known_by"], waiting["rule"]) == ("waiting", "registry", None)
    assert [each["request_id"] for each in waiting["requests"]] == [office.request.request_id]
    assert "no session of this home runs it" in waiting["note"]
    clocks = {each["limit"]: each["clock"] for each in waiting["limits"]}
    assert clocks == {
        "timeout": "runs", "idle timeout": "pauses", "tool timeout": None, "background timeout": "after the last turn",
    }  # fmt: skip
    stalled = {each["limit"]: each for each in explained(office, office.ids["stalled"])["limits"]}["idle timeout"]
    assert stalled["clock"] == "runs"
    assert 0 < stalled["left_sec"] <= 21
    lost = explained(office, office.ids["unknown"])
    assert (lost["state"], "lease has expired" in lost["note"]) == ("unknown", True)
    shown = office("explain", office.ids["waiting"], office.ids["retrying"]).out
    assert f"request   {office.request.request_id}: Bash: git push origin main" in shown
    assert "known by  the registry alone" in shown
    assert CAUSES["retrying"] in shown
    office.refused("explain", "ffffffff")


def test_explain_shows_every_fact_of_the_runner_with_its_source_and_age(desk, tmp_path):
    job = running(desk.jobs, title="Fix it")
    set_activity(desk.registry, job, "working", "Bash: make", since_sec=61)
    inventory = Inventory(desk.settings)
    now = format_micros(time.time_ns() - 90 * 10**9)
    row = {
        "name": "fixing", "session_id": "0" * 16, "state": "running", "mode": "interactive", "yolo": False,
        "host": desk.settings.host, "created_at": now, "updated_at": now, "workdir": str(tmp_path), "agent": "shell",
        "socket": "baton", "agent_name": "HOUMAO-x", "agent_id": "a", "generation_id": "g", "job_id": job.job_id,
    }  # fmt: skip
    with inventory._writing() as tx:
        tx.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", ["fixing", "0" * 16, "running", json.dumps(row)])
    (session,) = inventory.all(State.RUNNING)
    folder = inventory.folder_of(session)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    fact = {"fact": "tool call open", "value": "Bash: make \x1b[2J\u202e", "source": "hook", "since": now}
    snapshot = Snapshot(
        job_id=job.job_id, attempt=1, at=now, kind="working", since=now, cause="Bash: make", rule="tool",
        facts=[fact, {"fact": "rule", "value": "x"}], channel={"telemetry": "none arrives", "refused": 2},
    )  # fmt: skip
    write_snapshot(folder, snapshot)
    found = explained(desk, job.job_id)
    assert (found["state"], found["known_by"], found["note"]) == ("working", "runner", None)
    assert found["rule"] == "tool: A tool call is open. No idle clock runs."
    (only,) = found["facts"]
    assert (only["fact"], only["source"]) == ("tool call open", "hook")
    assert 89 < only["age_sec"] < 120
    assert found["channel"] == {"telemetry": "none arrives", "refused": 2}
    with Terminal([BATON, "explain", job.job_id], cwd=str(tmp_path), env=desk.env | {"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        shown = terminal.shown.decode()
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "channel   telemetry: none arrives" in shown
    assert "FACT" in shown
    assert "1m" in shown
    # What it finds there may be anything.
    for spoiled in ({"facts": 7, "channel": []}, {"facts": [[1], None, {}], "at": 5}, {"since": "x", "rule": ["?"]}):
        write_snapshot(folder, snapshot.replace(**spoiled))
        assert explained(desk, job.job_id)["known_by"] == "runner"
        desk("explain", job.job_id)
    write_snapshot(folder, snapshot.replace(attempt=2))
    assert explained(desk, job.job_id)["known_by"] == "registry"


def test_explain_of_an_ended_job_says_how_it_ended(desk):
    job = running(desk.jobs)
    desk.jobs.update_status(job.job_id, "error", attempt=1)
    found = explained(desk, job.job_id)
    assert (found["state"], found["limits"], found["facts"]) == ("failed", [], [])
    assert "the job is error" in found["note"]


@pytest.mark.parametrize("kind", ["waiting", "working"])
def test_wait_does_not_end_by_silence_while_the_agent_works_or_waits(desk, kind):
    job = running(desk.jobs)
    set_activity(desk.registry, job, kind)
    waiting = subprocess.Popen(
        [BATON, "wait", job.job_id, "--idle-timeout", "0.1", "--json"], cwd=desk.folder, env=desk.env,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.communicate(timeout=1.5)
        set_activity(desk.registry, job, "idle", since_sec=100)
        assert json.loads(waiting.communicate(timeout=20)[0])["timed_out"] == "listener"
        assert waiting.returncode == 2
    finally:
        waiting.kill()
        waiting.wait()


def test_who_listens_in_a_pipe_is_told_how_to_answer(desk):
    job = running(desk.jobs)
    tool = ask(desk.registry, job)
    question = ask(
        desk.registry, job, key="k2", kind=RequestKind.QUESTION, options=(QUESTION,), summary="Which colour?"
    )
    for verb in ("wait", "watch", "subscribe"):
        said = desk(verb, job.job_id, "--timeout", "0.5", code=2).err
        assert f"`baton approve {tool.request_id}` allows it, `baton deny {tool.request_id}` denies it" in said
        assert f"`baton answer {question.request_id} CHOICE` answers" in said
    desk.jobs.update_status(job.job_id, "error", attempt=1)
    assert "baton approve" not in desk("wait", job.job_id, code=1).err  # the event is old, the request is closed


def wait_on_terminal(desk, job, rows=24):
    return Terminal([BATON, "wait", job.job_id], cwd=str(desk.folder), env=desk.env | {"NO_COLOR": "1"}, rows=rows)


def answer_of(desk, request):
    found = desk.registry.get_request(request.request_id)
    return found.state.value, found.answer, dict(found.choices), found.via


@pytest.mark.parametrize(("key", "answer"), [("y", "allow"), ("n", "deny")])
def test_a_key_answers_the_request_whose_call_is_on_the_screen(desk, key, answer):
    job = running(desk.jobs)
    request = ask(desk.registry, job, call={"command": "git push \u202e"})
    with wait_on_terminal(desk, job) as terminal:
        terminal.see("y allows it, n denies it")
        wait_until(lambda: terminal.type("x", key) or answer_of(desk, request)[0] == "answered")
        assert answer_of(desk, request)[1:] == (answer, {}, "cli")
        desk.jobs.update_status(job.job_id, "cancelled")
        assert terminal.end() == 4
        assert "\u202e" not in terminal.shown.decode()


def test_a_number_answers_a_question(desk):
    job = running(desk.jobs)
    request = ask(desk.registry, job, kind=RequestKind.QUESTION, options=(QUESTION,), summary="Which colour?")
    with wait_on_terminal(desk, job) as terminal:
        terminal.see("2. green")
        wait_until(lambda: terminal.type("y", "3", "2") or answer_of(desk, request)[0] == "answered")
        assert answer_of(desk, request)[2] == {"Which colour?": "green"}
        desk.jobs.update_status(job.job_id, "cancelled")
        terminal.end()


@pytest.mark.parametrize("changes", [{"call": {"command": "true\n" * 2000}}, {"exact": False}])
def test_no_key_answers_what_is_not_whole_on_the_screen(desk, changes):
    job = running(desk.jobs)
    request = ask(desk.registry, job, **changes)
    with wait_on_terminal(desk, job) as terminal:
        terminal.see(f"`baton approve {request.request_id}` allows it")
        terminal.type("y", "y", "y")
        desk.jobs.update_status(job.job_id, "cancelled")
        assert terminal.end() == 4
    assert answer_of(desk, request)[:2] == ("withdrawn", None)
