"""An agent that speaks ACP in a session: the test plays it with a program that follows a script."""

from __future__ import annotations

import json
import os
import sys

import pytest

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
    desk("approve", job)
    over = desk.until_over(job)
    assert (over["status"], over["detail"]) == ("completed", "It is there.")
    assert desk.heard() == [
        {"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "selected", "optionId": "yes"}}}
    ]
    first, second = desk.prompts()
    assert first.startswith("do it\n")
    assert "out.txt is missing" in second
    desk.until_state("s", "terminated")
