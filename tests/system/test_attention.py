"""An agent that asks at its own screen, without a request: every surface says so, with the way to that screen."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from baton.board.query import Board, Need
from baton.jobs.verbs import open_jobs
from baton.sessions.launch import read_begun
from baton.sessions.notify import find_due, send
from baton.sessions.processes import started_at
from baton.sessions.session import job_label
from support.asking import ask, running, set_activity
from support.claude import Claude, Waiting, install_program
from support.command import BATON, Baton
from support.homes import settings_in
from support.mcp import McpClient
from support.sessions import SessionDesk
from support.terminal import Terminal
from support.waiting import wait_until

ASKS = "its screen asks: dialog open; no command answers that: `baton attach` and answer there"
ENTRY = json.loads((Path(__file__).parents[1] / "data" / "claude" / "registry.json").read_text())["waiting_dialog"]


@pytest.fixture
def desk(tmp_path):
    desk = Baton(tmp_path, MQTT_BROKER="127.0.0.1", MQTT_PORT="9")
    desk.settings = settings_in(tmp_path, desk.env)
    desk.jobs = open_jobs(desk.settings)
    yield desk
    desk.jobs.registry.close()


@pytest.fixture
def asking(desk):
    """A job whose agent asks at its screen, beside one that works and one with an open request."""
    set_activity(desk.jobs.registry, running(desk.jobs), "working", "Bash: make")
    other = running(desk.jobs)
    set_activity(desk.jobs.registry, other, "waiting", "waiting for a permission: Bash: make")
    desk.request = ask(desk.jobs.registry, other)
    job = running(desk.jobs)
    set_activity(desk.jobs.registry, job, "waiting", ASKS, since_sec=100, at_screen=True)
    return job.job_id


def answer_there(job):
    return ASKS.replace("baton attach", f"baton attach {job}")


def test_list_shows_it_and_counts_it_as_needing_a_person(desk, asking):
    rows = {row[0]: row for row in (line.split("\t") for line in desk("list").out.splitlines())}
    assert rows[asking][2] == "waiting"
    assert rows[asking][8] == answer_there(asking)
    needs = desk("list", "--needs-me", "--columns", "id").out.split()
    assert set(needs) == {asking, desk.request.job_id}
    assert asking in {each["job_id"] for each in desk("list", "--needs-me", "--json").json}
    assert desk("get", asking).json["activity"]["at_screen"] is True


def test_requests_lists_it_under_at_their_screens(desk, asking):
    shown = desk("requests")
    first, second = (line.split("\t") for line in shown.out.splitlines())
    assert first[0] == desk.request.request_id
    assert (second[:2], second[3], second[-1]) == (["-", "screen"], asking, answer_there(asking))
    assert "at their screens" in shown.err
    assert [each["request_id"] for each in desk("requests", "--json").json] == [desk.request.request_id]
    assert asking in desk("requests", "--all-homes").out


def test_requests_shows_it_on_a_terminal_although_there_is_no_request(desk):
    job = running(desk.jobs).job_id
    set_activity(desk.jobs.registry, desk.jobs.get_job(job), "waiting", ASKS, at_screen=True)
    with Terminal(
        [BATON, "requests"], cwd=str(desk.folder), env=desk.env | {"COLUMNS": "200", "NO_COLOR": "1"}
    ) as shown:
        assert shown.end() == 0
        text = shown.shown.decode()
    assert "at their screens" in text
    assert f"baton attach {job}" in text


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_approve_says_that_only_the_screen_answers(desk, asking, verb):
    refused = desk(verb, asking, code=1)
    assert f"`baton attach {asking}`" in refused.err
    assert "its screen asks: dialog open" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_the_boards_put_it_where_the_user_is_needed(desk, asking):
    board = Board(desk.settings)
    board.refresh()
    [card] = [card for card in board.cards if card.job_id == asking]
    board.close()
    assert (card.state, card.need, card.reason) == ("waiting", Need.WAITING, answer_there(asking))


def test_a_lease_that_has_ended_leaves_nothing_to_attach_to(desk):
    job = running(desk.jobs)
    set_activity(desk.jobs.registry, job, "waiting", ASKS, at_screen=True, lease_sec=0.001)
    wait_until(lambda: desk("list", "--columns", "activity").out.strip() == "unknown")
    assert desk("requests").out == ""
    assert desk("list", "--needs-me").out == ""


def test_an_agent_sees_it_by_mcp(desk, asking):
    with McpClient(desk.folder, desk.env) as client:
        shown = client.call("requests")
        assert shown["at_screens"] == [f"{asking}: {answer_there(asking)}"]
        waited = client.call("wait", job_ids=[asking], timeout_sec=20)
        assert waited["jobs"][0]["state"] == "waiting"
        assert waited["next"].startswith(f"a person must attach to {asking}")


def notified(desk, job):
    """The notifications that are due, as they are sent."""
    kept = Path(desk.folder) / "kept"
    with open_jobs(desk.settings) as jobs:
        list(send(desk.settings, jobs, find_due(jobs)))
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


@pytest.fixture
def told(tmp_path):
    """A desk whose notifications are kept in a file."""
    script = tmp_path / "keep"
    script.write_text(f'#!/bin/sh\nline=$(cat)\nprintf "%s\\n" "$line" >> {tmp_path}/kept\n')
    script.chmod(0o700)
    config = tmp_path / ".config" / "baton" / "baton.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[notify]\ncommand = [{json.dumps(str(script))}]\n")
    desk = Baton(tmp_path, MQTT_BROKER="127.0.0.1", MQTT_PORT="9")
    desk.settings = settings_in(tmp_path, desk.env)
    desk.jobs = open_jobs(desk.settings)
    yield desk
    desk.jobs.registry.close()


def test_a_notification_says_it_once(told):
    job = running(told.jobs)
    for at_screen in (True, True):
        set_activity(told.jobs.registry, job, "waiting", ASKS, at_screen=at_screen)
        events = notified(told, job)
    assert [(each["kind"], each["reason"], each["request_id"]) for each in events] == [("waiting", ASKS, None)]


def test_a_notification_of_what_is_over_is_not_sent(told):
    job = running(told.jobs)
    set_activity(told.jobs.registry, job, "waiting", ASKS, at_screen=True)
    set_activity(told.jobs.registry, job, "working")
    assert notified(told, job) == []


def test_the_wait_for_a_request_is_no_notification_of_its_own(told):
    job = running(told.jobs)
    ask(told.jobs.registry, job)
    set_activity(told.jobs.registry, job, "waiting", "waiting for a permission: Bash: make")
    assert [each["kind"] for each in notified(told, job)] == ["waiting"]


# -- with a session ----------------------------------------------------------------------------------------------------


@pytest.fixture
def office(tmp_path):
    desk = SessionDesk(str(tmp_path))
    install_program(desk, tmp_path)
    yield desk
    desk.close()


class Screen(Claude):
    """Claude Code, with its entry in its registry of sessions."""

    def __init__(self, desk, name):
        super().__init__(desk, name)
        self.pid = read_begun(self.folder)["pid"]
        self.path = Path(desk.env["HOME"]) / ".claude" / "sessions" / f"{self.pid}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def says(self, status, **more):
        own = {"pid": self.pid, "procStart": str(started_at(self.pid)), "sessionId": self.conversation}
        plain = {name: value for name, value in ENTRY.items() if name not in ("pidDomain", "status", "waitingFor")}
        self.path.write_text(json.dumps(plain | own | {"status": status} | more))


def begin(desk, *options):
    job = desk.register("do it", *options, agent="claude-code")
    desk("session", "create", "gpu", "--job", job)
    claude = Screen(desk, "gpu")
    claude.says("busy")
    claude.start(f"do it\n\nThis is job {job} of baton")
    return job, claude


def activity(desk, job):
    return desk.job(job)["activity"] or {"kind": None, "cause": ""}


def test_a_dialog_in_the_middle_of_a_turn_is_waiting_until_it_is_closed(office):
    job, claude = begin(office, "--idle-timeout", "3")
    tool = claude.tool("make")
    wait_until(lambda: activity(office, job)["kind"] == "working")
    opened = time.monotonic()
    claude.says("waiting", waitingFor="dialog open")
    wait_until(lambda: activity(office, job)["kind"] == "waiting")
    took_sec = time.monotonic() - opened
    assert took_sec > 0.9
    assert activity(office, job)["cause"].startswith("its screen asks: dialog open")
    assert office("requests").out.split("\t")[3] == job
    explained = office("explain", job).out
    assert "attention" in explained
    assert "its own status" in explained
    wait_until(lambda: time.monotonic() - opened > 5)  # no idle clock runs
    assert office.job(job)["status"] == "running"
    claude.says("busy")
    wait_until(lambda: activity(office, job)["kind"] == "working")
    claude.end_tool(tool)
    assert not claude.stop("all done").answer()
    assert office.until_over(job)["status"] == "completed"


def test_a_question_with_a_request_is_that_request_and_its_approval_is_no_attention(office):
    job, claude = begin(office)
    asked = claude.ask(claude.tool("make"))
    request = wait_until(lambda: office("requests", "--json").json)[0]
    claude.says("waiting", waitingFor="permission prompt")
    approving = Waiting(lambda: office("approve", request["request_id"], code=None))
    assert asked.decision()["behavior"] == "allow"
    claude.says("busy")
    approving.answer()
    seen = set()
    until = time.monotonic() + 3
    wait_until(lambda: seen.add(activity(office, job).get("at_screen")) or time.monotonic() > until)
    assert seen == {None}
    claude.says("waiting", waitingFor="permission prompt")
    wait_until(lambda: activity(office, job).get("at_screen"))


def test_no_message_is_typed_while_the_screen_asks(office):
    job, claude = begin(office)
    claude.says("waiting", waitingFor="dialog open")
    wait_until(lambda: activity(office, job)["kind"] == "waiting")
    with McpClient(office.folder, office.env) as client:
        refused = client.refused("message", job_id=job, text="yes")
    assert "its screen asks: dialog open" in refused


def test_the_next_job_is_not_typed_into_a_dialog(office):
    """Such as one that Claude Code opens after a turn."""
    office("session", "create", "gpu", "--agent", "claude-code")
    claude = Screen(office, "gpu")
    claude.says("waiting", waitingFor="dialog open")
    queue = job_label(office.row("gpu")["agent_id"])
    job = office.register("do it", "--queue", queue, agent="claude-code")
    until = time.monotonic() + 4
    wait_until(lambda: time.monotonic() > until)
    assert office.job(job)["status"] == "pending"
    claude.says("idle")
    wait_until(lambda: office.job(job)["status"] == "running")
