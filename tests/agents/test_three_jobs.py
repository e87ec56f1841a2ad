"""Claude Code in its own default mode, behind a service that checks no call: three jobs, as a person sees and answers
them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from support.board import BoardTerminal
from support.waiting import wait_until
from support.web import WebBoard, answer, chromium
from truth.scripted_model import Say, bash, cue, plan, write

CLAUDE = "claude-code"
PLAN = "# The plan\n1. Write it."
_WITHIN_SEC = 2.0


@pytest.fixture
def board(world):
    board = WebBoard(SimpleNamespace(root=str(world.folder), env=world.baton.env))
    yield board
    board.stop()


def begin(world, name, script, **settings):
    """Start a job in a folder of its own, whose settings for Claude Code are these."""
    folder = world.folder / name
    (folder / ".claude").mkdir(parents=True)
    (folder / ".claude" / "settings.json").write_text(json.dumps(settings))
    known = json.loads((world.home / ".claude.json").read_text())
    known["projects"] = known.get("projects", {}) | {str(folder): {"hasTrustDialogAccepted": True}}
    (world.home / ".claude.json").write_text(json.dumps(known))
    world.model.scripts[name] = script
    given = ("--agent", CLAUDE, "--workdir", str(folder), "--title", name, "--detach")
    return world.baton("submit", f"Do your part. {cue(name)}", *given).text


def planned(world, name):
    """Start a job that makes a plan; return it once that waits."""
    writes = [bash(f"echo {name} > {world.folder}/{name}/out.txt")]
    script = [[lambda: write(world.model.plan_file(), PLAN)], [plan(PLAN)], writes, [Say("Done.")]]
    job = begin(world, name, script, permissions={"defaultMode": "plan", "allow": ["Bash"]})

    def asked():
        return [each for each in world.baton("requests", "--json").json if each["job_id"] == job]

    return job, world.until(asked, f"the plan of {name}")[0]


def test_a_person_sees_what_waits_and_answers_from_a_board(world, board):
    (world.home / ".claude" / "settings.json").write_text("{}")  # its own default mode
    script = world.folder / "keep"
    script.write_text(f'#!/bin/sh\nline=$(cat)\nprintf "%s\\n" "$line" >> {world.folder}/told\n')
    script.chmod(0o700)
    config = world.home / ".config" / "baton" / "baton.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[notify]\ncommand = [{json.dumps(str(script))}]\n")

    dialog = begin(world, "dialog", [[bash("curl -s http://127.0.0.1:9/; touch made")], [Say("Done.")]])
    session = world.until(lambda: world.baton("session", "list", "--json").json, "the session")[0]["name"]
    world.until(lambda: "can't check actions" in world.screen(session), "the dialog")

    def row():
        return next(line.split("\t") for line in world.baton("list").out.splitlines() if line.startswith(dialog))

    wait_until(lambda: row()[2] == "waiting", "list to say so", _WITHIN_SEC)
    assert "baton attach" in row()[8]
    assert dialog in world.baton("list", "--needs-me", "--columns", "id").out.split()
    told = world.until(
        lambda: (world.folder / "told").exists() and (world.folder / "told").read_text(), "the notification", 5
    )
    assert [(each["kind"], each["job_id"]) for each in map(json.loads, told.splitlines())] == [("waiting", dialog)]

    approved, request = planned(world, "approved")
    denied, refused = planned(world, "denied")
    needed = world.baton("list", "--needs-me", "--columns", "id").out.split()
    assert set(needed) == {dialog, approved, denied}
    with BoardTerminal(world.folder, world.baton.env, width=140, height=40) as terminal:
        terminal.sees("dialog", "approved", "denied", "its screen asks")
    with chromium() as browser:
        browser.get(board.address)
        find = "return document.body.innerText"
        wait_until(lambda: "its screen asks" in browser.execute_script(find), "the web board to say so")
        answer(
            browser, "Approve", f"#ask-{request['request_id']}",
            lambda: world.baton("requests", request["request_id"], "--json").json["state"] == "answered",
        )  # fmt: skip
    assert world.ended(approved)["status"] == "completed", world.events(approved)
    assert (world.folder / "approved" / "out.txt").read_text() == "approved\n"
    world.model.scripts["denied"][2] = [Say("Then not.")]
    world.baton("deny", refused["request_id"], "--reason", "not on a Monday")
    assert world.ended(denied)["status"] == "completed", world.events(denied)
    assert "not on a Monday" in json.dumps(world.model.asked)
    assert not (world.folder / "denied" / "out.txt").exists()
    assert row()[2] == "waiting"
    world.baton("cancel", dialog)
