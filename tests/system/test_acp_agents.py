"""An agent that speaks ACP in a session: the test plays it with a program that follows a script."""

from __future__ import annotations

import json
import os
import sys

import pytest

from baton.sessions.processes import started_at
from support import acp_agent
from support.homes import home_of
from support.sessions import SessionDesk
from support.waiting import wait_until

DONE = ["end", "end_turn"]


class AcpDesk(SessionDesk):
    """Sessions of the agent `parrot`, which follows the script."""

    def configure(self, *lines: str) -> None:
        home_of(self.folder, self.env)
        command = json.dumps([sys.executable, acp_agent.__file__])
        with open(os.path.join(self.home, "baton.toml"), "w", encoding="utf-8") as file:
            file.write("\n".join(["[agents.parrot]", f"acp = {command}", *lines]))

    def script(self, *turns: list, **more) -> None:
        with open(os.path.join(self.folder, "acp.json"), "w", encoding="utf-8") as file:
            json.dump({"turns": turns, **more}, file)

    def touch(self, name: str) -> None:
        with open(os.path.join(self.folder, name), "w", encoding="utf-8"):
            pass

    def begin(self, *options: str, session: tuple[str, ...] = ()) -> str:
        job = self.register("do it", *options, agent="parrot")
        self("session", "create", "s", "--job", job, "--replace", *session)
        return job

    def heard(self, method: str | None = None) -> list[dict]:
        """What the agent heard: the requests of a method, or the answers to its own."""
        try:
            with open(os.path.join(self.folder, "heard.jsonl"), encoding="utf-8") as file:
                found = [json.loads(line) for line in file]
        except OSError:
            return []
        return [each for each in found if each.get("method") == method]

    def prompts(self) -> list[str]:
        return [each["params"]["prompt"][0]["text"] for each in self.heard("session/prompt")]

    def until_waiting(self, job: str) -> list[dict]:
        wait_until(lambda: (self.job(job)["activity"] or {}).get("kind") == "waiting")
        return self("requests", "--json").json


@pytest.fixture
def desk(tmp_path):
    desk = AcpDesk(str(tmp_path))
    desk.configure()
    yield desk
    desk.close()


def test_it_asks_is_sent_back_and_ends_with_its_job(desk):
    desk.script(
        [
            ["say", "I begin.\n", "Now "],
            ["ask", 7, "t1", "make"],
            ["answers", 1],
            ["tool_over", "t1"],
            ["say", "Done!"],
            DONE,
        ],
        [["make", "out.txt"], ["say", "It is ", "there."], DONE],
    )
    job = desk.begin("--expect", "out.txt")
    [request] = desk.until_waiting(job)
    assert (request["tool"], request["exact"]) == ("execute", True)
    assert "execute: make" in desk.job(job)["activity"]["cause"]
    desk("approve", request["request_id"], code=None)  # 1 on a machine that is slow
    over = desk.until_over(job)
    assert (over["status"], over["detail"]) == ("completed", "It is there.")
    assert desk.heard() == [
        {"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "selected", "optionId": "yes"}}}
    ]
    first, second = desk.prompts()
    assert first.startswith("do it\n")
    assert "out.txt is missing" in second
    desk.until_state("s", "terminated")


def test_a_denial_reaches_it_with_its_reason(desk):
    desk.script(
        [["ask", 1, "t1", "rm -r build"], ["answers", 1], ["tool_over", "t1", "failed"], DONE],
        [["say", "Then I leave it."], DONE],
    )
    job = desk.begin()
    desk.until_waiting(job)
    desk("deny", job, "--reason", "it is still used")
    over = desk.until_over(job)
    assert (over["status"], over["detail"]) == ("completed", "Then I leave it.")
    assert desk.heard()[0]["result"]["outcome"] == {"outcome": "selected", "optionId": "no"}
    assert "execute: it is still used" in desk.prompts()[1]
    assert desk("requests", "--all", "--json").json[0]["applied"] == "yes"


def test_a_denial_for_which_it_offers_no_option_reaches_it_as_an_error(desk):
    """Otherwise it would wait for ever, although its question is answered."""
    offered = [{"optionId": "yes", "kind": "allow_once", "name": "Yes"}]
    desk.script([["ask", 1, "t1", "rm -r build", offered], ["answers", 1], ["say", "Then not."], DONE])
    job = desk.begin()
    desk.until_waiting(job)
    desk("deny", job, code=None)
    assert desk.until_over(job)["detail"] == "Then not."
    assert [("error" in each, "result" in each) for each in desk.heard()] == [(True, False)]


def test_two_questions_at_once_get_one_answer_each(desk):
    desk.script(
        [
            ["ask", 1, "t1", "make"],
            ["ask", "x", "t2", "make install"],
            ["ask", 1, "t1", "make"],
            ["answers", 2],
            ["tool_over", "t1"],
            ["tool_over", "t2", "failed"],
            ["say", "Half."],
            DONE,
        ]
    )
    job = desk.begin()
    first, second = wait_until(lambda: found if len(found := desk("requests", "--json").json) == 2 else None)
    if first["call"]["command"] != "make":
        first, second = second, first
    desk("deny", second["request_id"])
    desk("approve", first["request_id"], code=None)  # 1 on a machine that is slow
    assert "allow" in desk("approve", first["request_id"], code=1).err
    assert desk.until_over(job)["status"] == "completed"
    assert {each["id"]: each["result"]["outcome"]["optionId"] for each in desk.heard()} == {1: "yes", "x": "no"}
    assert len(desk.heard()) == 2


def test_an_error_is_no_success(desk):
    desk.script([["say", "[API Error: 401 no key]"], DONE])
    over = desk.until_over(desk.begin())
    assert (over["status"], over["reason"]) == ("error", "[API Error: 401 no key]")


def test_the_pane_shows_what_it_does(desk):
    desk.script(
        [["print", "no message"], ["say", "First", " line.\nSecond"], ["tool", "t1", "make"], ["file", "go"], ["tool_over", "t1"], DONE]
    )  # fmt: skip
    job = desk.begin()
    shown = desk.until_shown("s", "execute: make")
    assert [line for line in shown.splitlines() if line.strip()] == [
        "no message",
        "First line.",
        "Second",
        "execute: make",
    ]
    wait_until(lambda: desk.job(job)["activity"]["kind"] == "working")
    desk.touch("go")
    desk.until_over(job)
    assert desk("result", job, "--output").out == "no message\nFirst line.\nSecond\nexecute: make\n"


def test_it_is_resumed_with_its_conversation(desk):
    desk.script([["say", "One."], DONE])
    job = desk.begin()
    desk.until_over(job)
    desk.until_state("s", "terminated")
    assert desk.row("s")["conversation_id"] == "s-1"
    desk("follow-up", job, "go on")
    [load] = desk.heard("session/load")
    assert load["params"]["sessionId"] == "s-1"


def test_one_that_stays_is_ended_with_what_it_started(desk):
    desk.script([["child", "child"], ["say", "Done."], DONE], stubborn=True)
    job = desk.begin()
    assert desk.until_over(job)["status"] == "completed"
    with open(os.path.join(desk.folder, "child"), encoding="utf-8") as file:
        child = int(file.read())
    desk("session", "stop", "s", "--mode", "hard")
    wait_until(lambda: started_at(child) is None)
    assert not [each for each in desk.processes() if "acp_agent" in each.command]
