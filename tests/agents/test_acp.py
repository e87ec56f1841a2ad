"""Real programs that speak ACP, each as an agent of the config file: a permission by `baton approve`, and a key that is
refused."""

from __future__ import annotations

import pytest

from agents.homes import ASK
from truth.scripted_model import Fail, Say, Shell

COMMANDS = {
    "gemini": ["gemini", "--acp"],
    "qwen": ["qwen", "--acp"],
    "copilot": ["copilot", "--acp"],
    "opencode": ["opencode", "acp"],
}
AGENTS = pytest.mark.parametrize("agent", COMMANDS)
PATIENCE_SEC = 180


def begin(world, agent: str, *options: str, prompt: str = "write out.txt") -> str:
    config = world.home / ".config" / "baton" / "baton.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    words = "\n[agents.one.output]\nfailed = 'Error: '\ntrouble = 'Info: .*Retrying'\n" if agent == "copilot" else "\n"
    config.write_text(f"[agents.one]\nacp = {COMMANDS[agent]!r}{words}")
    world.set_up(shell=ASK)
    job = world.job(prompt, *options, agent="one")
    world.baton("session", "create", "s", "--job", job)
    return job


def question(world, job: str) -> dict:
    """What the agent asks, once it does."""

    def look():
        record = world.record(job)
        assert record["status"] in ("pending", "running"), record["reason"]
        return world.baton("requests", "--json").json

    [asked] = world.until(look, "the agent to ask", PATIENCE_SEC)
    return asked


@AGENTS
def test_a_permission_is_given_and_a_result_that_is_missing_is_made(world, agent):
    world.model.will(Shell("echo hello > out.txt"), Say("I wrote it."), Shell("echo two > two.txt"), Say("And two."))
    job = begin(world, agent, "--expect", "out.txt", "--expect", "two.txt")
    for name in ("out.txt", "two.txt"):
        asked = question(world, job)
        assert name in asked["call"]["command"]
        assert asked["exact"] is (agent != "gemini")
        assert not (world.work / name).exists()
        world.baton("approve", asked["request_id"], *([] if asked["exact"] else ["--inexact"]))
        world.until((world.work / name).exists, "the tool to run", PATIENCE_SEC)
    ended = world.ended(job, within_sec=PATIENCE_SEC)
    assert (ended["status"], ended["detail"]) == ("completed", "And two."), world.events(job)
    world.session_ended("s")


@AGENTS
def test_a_key_that_is_refused_is_the_reason(world, agent):
    world.model.will(*[Fail(401, "no such key", kind="authentication_error")] * 20)
    ended = world.ended(begin(world, agent), within_sec=PATIENCE_SEC)
    assert ended["status"] == "error"
    assert "no such key" in ended["reason"] or "401" in ended["reason"], ended["reason"]
