"""The real Gemini: on the terminal its hooks inform and the person answers; headless it speaks ACP."""

from __future__ import annotations

import json
import time

import pytest

from agents.homes import ASK
from truth.scripted_model import Fail, Say, bash


def start(world, *steps, options=(), mode=()):
    world.set_up(shell=ASK)
    world.model.will(*steps)
    job = world.job("write out.txt", *options, agent="gemini")
    world.baton("session", "create", "s", "--job", job, *mode)
    return job


def requests(world):
    return world.baton("requests", "--json").json


def activity(world, job):
    return (world.record(job).get("activity") or {}).get("kind")


def asked(world):
    found = world.until(lambda: requests(world), "the agent to ask")[0]
    world.until(lambda: "Allow execution" in world.screen("s"), "the dialog")
    return found


def closed_within(world, seconds: float) -> None:
    begin = time.monotonic()
    world.until(lambda: requests(world) == [], "the request to close", 20)
    assert time.monotonic() - begin < seconds + 2  # and the time of the commands


def test_works_on_the_terminal_and_leaves_the_users_files_as_they_were(world):
    settings = world.home / ".gemini" / "settings.json"
    before = settings.read_text()
    job = start(world, Say("All done."))
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert settings.read_text() == before
    assert "All done." in world.baton("result", job).out
    world.baton("session", "stop", "s")
    known = json.loads((world.home / ".gemini" / "projects.json").read_text())  # Gemini replaces this file
    assert str(world.work) in json.dumps(known)
    assert list((world.home / ".gemini" / "tmp").glob("*/chats/*.jsonl"))


@pytest.mark.parametrize("key", ["Enter", "Escape"])
def test_a_person_answers_at_the_screen(world, key):
    job = start(world, bash("sleep 8; echo hello > out.txt"), Say("I wrote it."))
    request = asked(world)
    assert (request["tool"], request["call"]["command"]) == ("run_shell_command", "sleep 8; echo hello > out.txt")
    refused = world.baton("approve", request["request_id"], code=1)
    assert "own screen" in refused.err
    assert activity(world, job) == "waiting"
    world.baton("session", "send", "s", "--key", key)
    closed_within(world, 2)
    if key == "Enter":
        assert activity(world, job) == "working"
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


def test_a_wrong_key_is_the_reason_on_the_terminal(world):
    job = start(world, Fail(401, "the key is wrong"))
    record = world.ended(job)
    assert record["status"] == "error"
    assert "the key is wrong" in json.dumps(record), record


# -- headless ----------------------------------------------------------------------------------------------------------


def test_a_headless_permission_is_given_from_outside(world):
    steps = bash("echo hello > out.txt"), Say("I wrote it.")
    job = start(world, *steps, options=("--expect", "out.txt"), mode=("--headless",))
    request = world.until(lambda: requests(world), "the agent to ask")[0]
    assert "echo hello > out.txt" in request["summary"]
    world.baton("approve", request["request_id"], "--inexact")
    assert world.ended(job)["status"] == "completed", world.events(job)


def test_a_wrong_key_is_the_reason_of_a_headless_job(world):
    job = start(world, Fail(401, "the key is wrong"), mode=("--headless",))
    record = world.ended(job)
    assert record["status"] == "error"
    assert "the key is wrong" in json.dumps(record), record
