"""The entries of docs/agents.md for programs without an adapter of their own, with the real programs.

Each fails in its own way with exit code 0: the entries say by which words their success is known."""

from __future__ import annotations

import os
import re
import tomllib
from shutil import which

import pytest

from truth.scripted_model import Fail, Say, Shell

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
AIDER_EDIT = "Here it is.\n\nout.txt\n```\nhello\n```\n"
PROGRAMS = {"aider": "aider", "goose": "goose", "goose-run": "goose"}
WORK = {"aider": (Say(AIDER_EDIT),)} | dict.fromkeys(
    ("goose", "goose-run"), (Shell("echo hello > out.txt"), Say("Made."))
)


def documented_agents() -> dict[str, str]:
    """Return the entries of docs/agents.md as text, by name."""
    with open(os.path.join(ROOT, "docs", "agents.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```toml\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    return {name: block for block in blocks for name in tomllib.loads(block)["agents"]}


@pytest.fixture(params=PROGRAMS)
def agent(request, world):
    name = request.param
    if which(PROGRAMS[name]) is None:
        pytest.skip(f"{PROGRAMS[name]} could not be installed here")
    config = world.folder / "other.toml"
    config.write_text(documented_agents()[name])
    world.model.work_without_tools = name == "aider"
    world.baton.env |= {
        "BATON_CONFIG": str(config),
        "OPENAI_API_KEY": "none",
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": "m",
        "GOOSE_DISABLE_KEYRING": "1",
        "AIDER_MODEL": "openai/m",
        "AIDER_EDIT_FORMAT": "whole",
        "AIDER_GIT": "false",
        "AIDER_CHECK_UPDATE": "false",
        "AIDER_ANALYTICS": "false",
        "AIDER_SHOW_MODEL_WARNINGS": "false",
        "AIDER_SHOW_RELEASE_NOTES": "false",
    }
    point_at(world, world.model.url)
    return name


def point_at(world, url: str) -> None:
    world.baton.env |= {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_HOST": url}


def begin(world, agent: str, *options: str) -> str:
    job = world.job("make out.txt", *options, agent=agent)
    world.baton("session", "create", "s", "--job", job, "--headless")
    return job


def test_it_works(world, agent):
    world.model.will(*WORK[agent])
    job = begin(world, agent, "--expect", "out.txt")
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert (world.work / "out.txt").read_text() == "hello\n"


def test_it_is_sent_back_in_its_conversation(world, agent):
    world.model.will(Say("It is done."), *WORK[agent])
    job = begin(world, agent, "--expect", "out.txt")
    assert world.ended(job, within_sec=180)["status"] == "completed", world.events(job)
    assert "make out.txt" in world.model.asked_last
    assert "out.txt is missing" in world.model.asked_last


def test_a_wrong_key_is_an_error_that_says_so(world, agent):
    world.model.will(*[Fail(401, "wrong key")] * 5)
    record = world.ended(begin(world, agent))
    assert record["status"] == "error", world.events(record["job_id"])
    assert re.search("401|Authentication", record["detail"]), record["detail"]


def test_a_service_that_is_down_is_never_success(world, agent, dead_url):
    point_at(world, dead_url)
    job = begin(world, agent)
    if agent == "aider":  # it tries for a minute
        world.until(lambda: (world.record(job)["activity"] or {}).get("kind") == "retrying", "aider to retry")
        assert "Connection" in world.record(job)["activity"]["cause"]
        world.baton("cancel", job)
        return
    record = world.ended(job)
    assert record["status"] == "error", world.events(job)
    assert "connect" in record["detail"], record["detail"]


@pytest.mark.parametrize("agent", ["goose"], indirect=True)
def test_goose_asks_for_a_permission_that_is_given_from_outside(world, agent):
    world.baton.env["GOOSE_MODE"] = "approve"
    world.model.will(*WORK[agent])
    job = begin(world, agent, "--expect", "out.txt")
    (asked,) = world.until(lambda: world.baton("requests", "--json").json, "goose to ask")
    assert not (world.work / "out.txt").exists()
    world.baton("approve", asked["request_id"], *([] if asked["exact"] else ["--inexact"]))
    assert world.ended(job)["status"] == "completed", world.events(job)
