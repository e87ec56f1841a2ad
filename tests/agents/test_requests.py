"""What the real Claude Code on the terminal asks is answered from outside, or at its own screen."""

from __future__ import annotations

import time

import pytest

from truth.scripted_model import Say, bash

ASKS = bash("echo hello > out.txt")


def begin(world, *options):
    """Start a job whose agent may use nothing without asking, and return it once it asks."""
    world.allow()
    world.model.will(ASKS, Say("I wrote it."))
    job = world.job("write out.txt", *options, agent="claude-code")
    world.baton("session", "create", "s", "--job", job)
    return job, world.until(lambda: requests(world), "the agent to ask")[0]


def requests(world):
    return world.baton("requests", "--json").json


def test_a_permission_is_given_from_outside(world):
    job, asked = begin(world, "--expect", "out.txt")
    assert (asked["kind"], asked["tool"], asked["call"]["command"]) == ("tool", "Bash", ASKS.command)
    assert not (world.work / "out.txt").exists()
    world.baton("approve", asked["request_id"])
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert requests(world) == []


def test_a_denial_reaches_the_model_with_its_reason(world):
    job, asked = begin(world)
    world.baton("deny", asked["request_id"], "--reason", "not in this folder")
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert "not in this folder" in world.model.asked_last
    assert not (world.work / "out.txt").exists()


@pytest.mark.parametrize("key", ["Enter", "Escape"])
def test_a_person_answers_at_the_screen(world, key):
    job, _ = begin(world)
    world.until(lambda: "Do you want to proceed?" in world.screen("s"), "the dialog")
    world.baton("session", "send", "s", "--key", key)
    start = time.monotonic()
    world.until(lambda: requests(world) == [], "the request to close", 10)
    assert time.monotonic() - start < 4  # 2 s, and the time of the commands
    if key == "Enter":
        assert world.ended(job)["status"] == "completed", world.events(job)
        assert (world.work / "out.txt").exists()
    else:
        idle = world.until(
            lambda: (world.record(job).get("activity") or {}).get("kind") == "idle", "the agent to idle", 10
        )
        assert idle
        assert not (world.work / "out.txt").exists()
