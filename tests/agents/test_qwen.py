"""The real Qwen Code: on the terminal by its hooks and its events, headless by ACP; both can be answered from outside."""

from __future__ import annotations

import json
import time

import pytest

from agents.homes import ASK
from truth.scripted_model import Fail, Say, bash

ASKS = bash("python3 -c 'import time; time.sleep(6)'; echo hello > out.txt")  # Qwen refuses `sleep 6`


def start(world, *steps, options=(), mode=()):
    world.set_up(shell=ASK)
    world.model.will(*steps)
    job = world.job("write out.txt", *options, agent="qwen")
    world.baton("session", "create", "s", "--job", job, *mode)
    return job


def requests(world):
    return world.baton("requests", "--json").json


def activity(world, job):
    return (world.record(job).get("activity") or {}).get("kind")


def asked(world):
    found = world.until(lambda: requests(world), "the agent to ask")[0]
    assert (found["tool"], found["call"]["command"]) == ("run_shell_command", ASKS.command)
    return found


def closed_within(world, seconds: float) -> None:
    begin = time.monotonic()
    world.until(lambda: requests(world) == [], "the request to close", 20)
    assert time.monotonic() - begin < seconds + 2  # and the time of the commands


def test_works_on_the_terminal_and_leaves_the_users_settings_as_they_were(world):
    settings = world.home / ".qwen" / "settings.json"
    world.set_up(shell=ASK)
    before = json.loads(settings.read_text())
    job = start(world, Say("All done."))
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert "hooks" not in settings.read_text()
    assert json.loads(settings.read_text()).items() >= before.items()
    assert "All done." in world.baton("result", job).out


def test_a_permission_is_given_from_outside(world):
    job = start(world, ASKS, Say("I wrote it."), options=("--expect", "out.txt"))
    request = asked(world)
    assert activity(world, job) == "waiting"
    world.baton("approve", request["request_id"])
    closed_within(world, 2)
    assert activity(world, job) == "working"
    assert world.ended(job)["status"] == "completed", world.events(job)


def test_a_denial_reaches_the_model_with_its_reason(world):
    job = start(world, ASKS, Say("Then I leave it."))
    world.baton("deny", asked(world)["request_id"], "--reason", "not in this folder")
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert "not in this folder" in world.model.asked_last
    assert not (world.work / "out.txt").exists()


@pytest.mark.parametrize("key", ["Enter", "Escape"])
def test_a_person_answers_at_the_screen(world, key):
    job = start(world, ASKS, Say("I wrote it."))
    asked(world)
    world.until(lambda: "Allow execution" in world.screen("s"), "the dialog")
    world.baton("session", "send", "s", "--key", key)
    closed_within(world, 2)
    if key == "Enter":
        assert world.ended(job)["status"] == "completed", world.events(job)
        assert (world.work / "out.txt").exists()
    else:
        world.until(lambda: activity(world, job) == "idle", "the agent to idle", 10)
        assert not (world.work / "out.txt").exists()


def test_a_turn_that_is_interrupted_does_not_complete_the_job(world):
    job = start(world, Say("I begin, and will say more.", sec=60))
    world.until(lambda: activity(world, job) == "working", "the turn")
    world.until(lambda: "esc to cancel" in world.screen("s"), "the screen")
    world.baton("session", "send", "s", "--key", "Escape")
    world.until(lambda: activity(world, job) == "idle", "the agent to idle", 10)
    assert world.record(job)["status"] == "running"


def test_work_that_lacks_its_file_is_sent_back(world):
    job = start(
        world, Say("Done."), bash("echo hello > out.txt"), Say("Now it is there."), options=("--expect", "out.txt")
    )
    world.baton("approve", world.until(lambda: requests(world), "the agent to ask")[0]["request_id"])
    assert world.ended(job)["status"] == "completed", world.events(job)


def test_a_wrong_key_is_the_reason_on_the_terminal(world):
    job = start(world, Fail(401, "the key is wrong"))
    record = world.ended(job)
    assert record["status"] == "error"
    assert "the key is wrong" in json.dumps(record), record


@pytest.mark.parametrize("mode", [(), ("--headless",)], ids=["terminal", "headless"])
def test_a_cloned_folder_does_not_switch_the_questions_off(world, mode):
    (world.work / ".qwen").mkdir()
    (world.work / ".qwen" / "settings.json").write_text('{"tools": {"approvalMode": "yolo"}}')
    job = start(world, ASKS, Say("It is written."), mode=mode)
    request = world.until(lambda: requests(world), "the agent to ask")[0]
    assert request["call"]["command"] == ASKS.command
    world.baton("approve", request["request_id"])
    assert world.ended(job)["status"] == "completed", world.events(job)


def test_the_secret_in_its_file_of_the_session_stays_there(world):
    """Qwen keeps a token for its own clients in a file by process id."""
    job = start(world, ASKS, Say("I wrote it."))
    request = asked(world)
    files = world.until(lambda: list((world.home / ".qwen" / "sessions").glob("*.json")), "its file")
    secrets = [json.loads(file.read_text()).get("ipcToken") for file in files]
    assert all(secrets), "this release keeps none"
    shown = [world.baton(*verb, "--json").out for verb in (("explain", job), ("get", job), ("list",), ("requests",))]
    world.baton("approve", request["request_id"])
    world.ended(job)
    shown += [world.baton("logs", job, "--json").out, world.baton("result", job, "--json").out]
    kept = [path for path in world.folder.rglob("*") if path.is_file() and world.home / ".qwen" not in path.parents]
    texts = [*(path.read_bytes() for path in kept), *(text.encode() for text in shown)]
    assert not [secret for secret in secrets for text in texts if secret.encode() in text]


# -- headless ----------------------------------------------------------------------------------------------------------


def test_a_headless_permission_is_given_from_outside(world):
    steps = bash("echo hello > out.txt"), Say("I wrote it.")
    job = start(world, *steps, options=("--expect", "out.txt"), mode=("--headless",))
    request = world.until(lambda: requests(world), "the agent to ask")[0]
    assert "echo hello > out.txt" in request["summary"]
    world.baton("approve", request["request_id"])
    assert world.ended(job)["status"] == "completed", world.events(job)


@pytest.mark.parametrize("mode", ["default", "auto"])
def test_two_ways_to_allow_are_a_permission(world, mode):
    """In its auto mode Qwen offers to allow once, and to allow once and change the mode."""
    world.set_up(shell=ASK)
    settings = world.home / ".qwen" / "settings.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"tools": {"approvalMode": mode}}))
    world.model.will(bash("echo hello > out.txt"), Say("I wrote it."), Say("I wrote it."))
    job = world.job("write out.txt", "--expect", "out.txt", agent="qwen")
    world.baton("session", "create", "s", "--job", job, "--headless")
    request = world.until(lambda: requests(world), "the agent to ask")[0]
    assert (request["kind"], request["options"]) == ("tool", [])
    assert world.record(job)["agent_mode"] == mode
    world.baton("approve", request["request_id"])
    assert world.ended(job)["status"] == "completed", world.events(job)


def test_a_wrong_key_is_the_reason_of_a_headless_job(world):
    job = start(world, Fail(401, "the key is wrong"), mode=("--headless",))
    record = world.ended(job)
    assert record["status"] == "error"
    assert "the key is wrong" in json.dumps(record), record
