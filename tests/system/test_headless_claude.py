"""A headless Claude Code in a session: the test plays it with a program that speaks its JSON lines."""

from __future__ import annotations

import json
import os
import sys

import pytest

from support.claude import install_program
from support.sessions import SessionDesk
from support.waiting import wait_until

PROGRAM = f"""#!{sys.executable}
import json, os, sys, time

def say(kind, subtype=None, **more):
    print(json.dumps({{"type": kind, "subtype": subtype, "session_id": sys.argv[sys.argv.index("--session-id") + 1], **more}}), flush=True)

def hear(name):
    with open(name + ".part", "w") as file:
        file.write(sys.stdin.readline())
    os.rename(name + ".part", name)

def part(**content):
    return {{"message": {{"id": "m", "content": [content]}}}}

CALL = {{"command": "make"}}
hear("prompt.json")
say("system", "init")
say("assistant", **part(type="tool_use", id="t1", name="Bash", input=CALL))
say("control_request", request_id="r1", request={{"subtype": "can_use_tool", "tool_name": "Bash", "input": CALL, "tool_use_id": "t1",
    "permission_suggestions": [{{"type": "addRules"}}]}})
hear("answer.json")
say("user", **part(type="tool_result", tool_use_id="t1", content="made"))
say("result", "success", is_error=False, result="Done!")
hear("again.json")
say("system", "init")
with open("out.txt", "w") as file:
    file.write("x")
say("system", "task_started", task_id="b1", task_type="local_bash", description="a long one")
say("result", "success", is_error=False, result="It runs.")
while not os.path.exists("go"):
    time.sleep(0.02)
say("system", "task_updated", task_id="b1", patch={{"status": "completed"}})
say("system", "init")
say("result", "success", is_error=False, result="It is over.")
hear("end.json")
"""
OLD_PROGRAM = """#!/bin/sh
echo "error: unknown option '--permission-prompt-tool'" >&2
exit 1
"""


def read_text(path) -> str:
    with open(path) as file:
        return file.read()


@pytest.fixture
def desk(tmp_path):
    desk = SessionDesk(str(tmp_path))
    yield desk
    desk.close()


def test_it_asks_is_sent_back_works_in_the_background_and_ends_with_its_job(desk, tmp_path):
    install_program(desk, tmp_path, PROGRAM)
    job = desk.register("do it", "--expect", "out.txt", agent="claude-code")
    desk("session", "create", "gpu", "--job", job, "--headless")
    wait_until(lambda: (desk.job(job)["activity"] or {}).get("kind") == "waiting")
    assert json.loads((tmp_path / "prompt.json").read_text())["message"]["content"].startswith("do it\n")
    assert not (tmp_path / "answer.json").exists()
    [asked] = desk("requests", "--json").json
    desk("approve", asked["request_id"], code=None)  # 1 on a machine that is slow
    wait_until((tmp_path / "again.json").exists)
    given = json.loads((tmp_path / "answer.json").read_text())["response"]
    assert given["response"] == {"behavior": "allow", "updatedInput": {"command": "make"}}
    assert "out.txt is missing" in json.loads((tmp_path / "again.json").read_text())["message"]["content"]
    about = os.path.join(desk.home, "sessions", desk.row("gpu")["session_id"], "activity.json")
    wait_until(lambda: "a long one" in read_text(about))
    assert not (tmp_path / "end.json").exists(), "its input is open"
    (tmp_path / "go").write_text("")
    record = desk.until_over(job)
    assert (record["status"], record["detail"]) == ("completed", "It is over."), desk.story(job)
    wait_until((tmp_path / "end.json").exists)
    assert (tmp_path / "end.json").read_text() == "", "it was closed"
    assert [event for event, _ in desk.story(job)].count("started") == 1


def test_a_program_that_cannot_ask_is_an_error_in_its_words(desk, tmp_path):
    install_program(desk, tmp_path, OLD_PROGRAM)
    job = desk.register("do it", agent="claude-code")
    desk("session", "create", "gpu", "--job", job, "--headless")
    record = desk.until_over(job)
    assert record["status"] == "error"
    assert "unknown option '--permission-prompt-tool'" in record["reason"]
