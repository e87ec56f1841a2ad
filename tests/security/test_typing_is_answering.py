"""A text that is typed into the screen of an agent may answer its question. So a web board without the right to answer
types nothing, and a client of `baton mcp` types nothing into a screen that may ask."""

from __future__ import annotations

import json
import os
import sys

import pytest

from baton.jobs.verbs import open_jobs
from baton.storage.homes import load_settings
from support import acp_agent
from support.asking import ask
from support.mcp import McpClient, allow
from support.sessions import SessionDesk
from support.waiting import wait_until
from support.web import WebBoard

ASKS = "printf 'May I deploy? '; read answer; test \"$answer\" = y && touch deployed; exec sleep 1000"
DETACHED = ("--json", "--detach")


class Desk(SessionDesk):
    @property
    def root(self) -> str:
        return self.folder

    def answered(self) -> bool:
        return os.path.exists(os.path.join(self.folder, "deployed"))


@pytest.fixture
def desk(tmp_path):
    desk = Desk(str(tmp_path))
    command = json.dumps([sys.executable, acp_agent.__file__])
    allow(desk.folder, "shell", more=f"[agents.parrot]\nacp = {command}\n")
    yield desk
    desk.close()


def asking(desk) -> str:
    """A job whose agent asks on its screen."""
    job = desk("submit", ASKS, "--agent", "shell", *DETACHED).json["job_id"]
    wait_until(lambda: "May I deploy?" in desk("session", "capture", job, code=None).out)
    return job


def ended(desk) -> str:
    """A job of an agent that keeps its conversation."""
    with open(os.path.join(desk.folder, "acp.json"), "w", encoding="utf-8") as file:
        json.dump({"turns": [[["say", "Done."], ["end", "end_turn"]]]}, file)
    job = desk("submit", "work", "--agent", "parrot", *DETACHED).json["job_id"]
    desk("wait", job)
    return job


class Board(WebBoard):
    def post(self, job: str, verb: str, **body):
        cards = self.call("/api/board").json["cards"]
        key = next(card["key"] for card in cards if card["job_id"] == job)
        return self.call(f"/api/jobs/{key}/{verb}", body)


@pytest.mark.parametrize(
    ("options", "typed", "continued"),
    [(["--rights", "view,act"], 403, 200), (["--rights", "act"], 403, 200), (["--rights", "view,answer"], 403, 403),
     (["--read-only"], 403, 403), (["--rights", "view,act,answer"], 200, 200), ([], 200, 200)],
)  # fmt: skip
def test_a_web_board_types_only_with_the_right_to_answer(desk, options, typed, continued):
    job, old = asking(desk), ended(desk)
    board = Board(desk, *options)
    try:
        board.sign_in()
        answer = board.post(job, "message", text="y")
        assert answer.status == typed, answer.json
        if typed == 200:
            wait_until(desk.answered)
        elif options == ["--rights", "view,act"]:
            assert "right to answer" in answer.json["error"]
        following = board.post(old, "message", text="go on")
        assert following.status == continued, following.json
    finally:
        assert "Traceback" not in board.stop()
    desk("cancel", job)
    assert desk.answered() == (typed == 200)
    for each in desk("list", "--json").json:
        desk("wait", each["job_id"], code=None)


def activity(desk, job: str) -> str | None:
    return (desk.job(job)["activity"] or {}).get("kind")


def test_a_client_types_into_no_screen_that_asks(desk):
    job = asking(desk)
    wait_until(lambda: activity(desk, job) == "working")
    with open_jobs(load_settings(env=desk.env, here=desk.folder)) as jobs, McpClient(desk.folder, desk.env) as client:
        request = ask(jobs.registry, jobs.get_job(job))
        refused = client.refused("message", job_id=job, text="y")
        assert request.request_id in refused
        assert "call answer" in refused
        client.call("answer", request_id=request.request_id, decision="deny")
        desk("publish", "--job", job, "--event", "permission_required", "--detail", "May I deploy?")
        assert "may answer its screen" in client.refused("message", job_id=job, text="y")
        assert not desk.answered()
        desk("publish", "--job", job, "--event", "progress", "--detail", "it goes on")
        client.call("message", job_id=job, text="y")
        wait_until(desk.answered)
        client.call("cancel", job_id=job)
