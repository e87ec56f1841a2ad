"""The real Copilot, against the scripted model as a provider of the user's own."""

from __future__ import annotations

import json
import os
import pty
import signal
import time
from contextlib import contextmanager

import pytest

from agents.homes import ASK
from truth.scripted_model import Call, Fail, Say, bash

pytestmark = pytest.mark.timeout(180)
WRITE = bash("echo hello > out.txt")
MODES = pytest.mark.parametrize("mode", [(), ("--headless",)], ids=["terminal", "headless"])


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """Where Copilot unpacks itself, 230 MB, once for all tests."""
    return tmp_path_factory.mktemp("copilot-cache")


@pytest.fixture
def copilot(world, unpacked):
    world.set_up(shell=ASK)
    world.baton.env |= {
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_CACHE_HOME": str(unpacked),
        "COPILOT_MODEL": "m",
        "COPILOT_PROVIDER_API_KEY": "not-a-key",
    }
    point_at(world, world.model.url)
    (world.home / ".copilot").mkdir(exist_ok=True)
    (world.home / ".copilot" / "config.json").write_text(json.dumps({"trustedFolders": [str(world.work)]}))
    return world


def point_at(world, url):
    world.baton.env["COPILOT_PROVIDER_BASE_URL"] = f"{url}/v1"


def begin(world, *mode, options=(), prompt="write out.txt"):
    job = world.job(prompt, *options, agent="copilot")
    world.baton("session", "create", "s", "--job", job, *mode)
    return job


def asked(world):
    return world.until(lambda: requests(world), "the agent to ask")[0]


def requests(world):
    return world.baton("requests", "--json").json


def activity(world, job):
    return world.record(job).get("activity") or {}


@contextmanager
def person(world):
    """A person who looks at the screen."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp("tmux", ["tmux", "-S", world.tmux.socket, "attach"])
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(fd)
        os.waitpid(pid, 0)


@MODES
def test_it_works(copilot, mode):
    copilot.model.will(WRITE, Say("I wrote it."))
    job = begin(copilot, *mode, "--yolo", options=("--expect", "out.txt"))
    ended = copilot.ended(job)
    assert ended["status"] == "completed", (ended, copilot.events(job))
    assert copilot.baton("result", job).text == "I wrote it."


@MODES
def test_a_permission_is_given_from_outside(copilot, mode):
    copilot.model.will(WRITE, Say("I wrote it."))
    job = begin(copilot, *mode, options=("--expect", "out.txt"))
    request = asked(copilot)
    assert (request["kind"], request["call"]["command"], request["exact"]) == ("tool", WRITE.command, True)
    assert activity(copilot, job)["kind"] == "waiting"
    assert not (copilot.work / "out.txt").exists()
    copilot.baton("approve", request["request_id"])
    assert copilot.ended(job)["status"] == "completed", copilot.events(job)
    assert requests(copilot) == []


@MODES
def test_a_denial_reaches_the_model_with_its_reason(copilot, mode):
    copilot.model.will(WRITE, Say("Then I did not."))
    job = begin(copilot, *mode)
    copilot.baton("deny", asked(copilot)["request_id"], "--reason", "not in this folder")
    ended = copilot.ended(job)
    assert not (copilot.work / "out.txt").exists()
    if not mode:
        assert ended["status"] == "completed", (ended, copilot.events(job))
        assert "not in this folder" in copilot.model.asked_last


@pytest.mark.parametrize("key", ["Enter", "Escape"])
def test_a_person_answers_at_the_screen(copilot, key):
    copilot.model.will(WRITE, Say("I wrote it."))
    job = begin(copilot)
    request = asked(copilot)
    assert "Do you want to run this command?" not in copilot.screen("s")
    with person(copilot):
        copilot.until(lambda: "Do you want to run this command?" in copilot.screen("s"), "the dialog", 10)
        assert requests(copilot)[0]["request_id"] == request["request_id"]
        copilot.baton("session", "send", "s", "--key", key)
        start = time.monotonic()
        copilot.until(lambda: requests(copilot) == [], "the request to close", 10)
        assert time.monotonic() - start < 4  # 2 s, and the time of the commands
    if key == "Enter":
        assert copilot.ended(job)["status"] == "completed", copilot.events(job)
        assert (copilot.work / "out.txt").exists()
    else:
        copilot.until(lambda: activity(copilot, job).get("kind") == "idle", "the agent to idle", 10)
        assert not (copilot.work / "out.txt").exists()


def test_what_is_asked_on_the_screen_is_not_answered_from_outside(copilot):
    copilot.model.will(WRITE, Say("I wrote it."))
    job = begin(copilot)
    request = asked(copilot)
    with person(copilot):
        copilot.until(lambda: "Do you want to run this command?" in copilot.screen("s"), "the dialog", 10)
        said = copilot.baton("approve", request["request_id"], code=1)
        assert "own screen" in said.err
        assert not (copilot.work / "out.txt").exists()
        copilot.baton("session", "send", "s", "--key", "Enter")
        assert copilot.ended(job)["status"] == "completed", copilot.events(job)


def test_a_question_of_the_agent_is_shown(copilot):
    schema = {"properties": {"colour": {"type": "string", "enum": ["red", "blue"], "title": "Colour"}}}
    copilot.model.will(Call("ask_user", {"message": "Which one?", "requestedSchema": schema}), Say("Red, then."))
    job = begin(copilot)
    request = asked(copilot)
    assert request["kind"] == "question"
    assert request["options"][0]["choices"] == ["red", "blue"]
    assert activity(copilot, job)["kind"] == "waiting"


def test_an_interrupted_turn_is_idle(copilot):
    copilot.model.will(bash("touch begun; sleep 4321"))
    job = begin(copilot, "--yolo")
    copilot.until((copilot.work / "begun").exists, "the tool to run")
    copilot.until(lambda: activity(copilot, job).get("kind") == "working", "the work to be known", 10)
    copilot.tmux("send-keys", "Escape")
    time.sleep(0.3)  # "esc esc interrupt": not too fast, not too slow
    copilot.tmux("send-keys", "Escape")
    copilot.until(lambda: activity(copilot, job).get("kind") == "idle", "the agent to idle", 10)
    assert "interrupted" in activity(copilot, job)["cause"]


@MODES
@pytest.mark.parametrize(("status", "word"), [(401, "401"), (500, "500")])
def test_a_service_that_fails_is_no_success(copilot, mode, status, word):
    copilot.model.will(*[Fail(status, "no such luck") for _ in range(10)])
    job = begin(copilot, *mode)
    ended = copilot.ended(job, within_sec=90)
    assert ended["status"] == "error"
    assert word in ended["detail"], ended


@MODES
def test_a_service_that_is_dead_is_no_success(copilot, mode, dead_url):
    point_at(copilot, dead_url)
    job = begin(copilot, *mode)
    if not mode:
        copilot.until(lambda: activity(copilot, job).get("kind") == "retrying", "the tries to be known", 30)
    ended = copilot.ended(job, within_sec=90)
    assert ended["status"] == "error"
    assert "connect" in ended["detail"].lower(), ended


@MODES
def test_a_missing_result_sends_it_back(copilot, mode):
    copilot.model.will(Say("Done."), WRITE, Say("Now it is there."))
    job = begin(copilot, *mode, "--yolo", options=("--expect", "out.txt"))
    ended = copilot.ended(job)
    assert ended["status"] == "completed", (ended, copilot.events(job))
    assert "out.txt" in copilot.model.asked_last


@MODES
def test_a_stopped_session_comes_back_and_remembers(copilot, mode):
    copilot.model.will(Say("I shall remember the pelican."))
    job = begin(copilot, *mode, prompt="Say pelican.")
    assert copilot.ended(job)["status"] == "completed", copilot.events(job)
    conversation = copilot.session_ended("s")["conversation_id"]
    copilot.model.will(Say("It was a pelican."))
    copilot.baton("session", "resume", "s", "--prompt", "What was it?")
    copilot.until(lambda: "What was it?" in copilot.model.asked_last, "the second question")
    for text in ("Say pelican.", "I shall remember the pelican."):
        assert text in copilot.model.asked_last
    assert copilot.session("s")["conversation_id"] == conversation


def test_a_folder_that_is_not_trusted_blocks_and_nothing_is_written(copilot):
    config = copilot.home / ".copilot" / "config.json"
    config.write_text("{}")
    job = begin(copilot)
    blocked = copilot.until(
        lambda: found if (found := activity(copilot, job)).get("kind") == "blocked" else None, "the dialog", 20
    )
    assert "trust" in blocked["cause"]
    assert "trustedFolders" not in json.loads(config.read_text() if config.read_text().startswith("{") else "{}")
    assert copilot.model.asked == []


def test_background_work_is_waited_for(copilot):
    shell = Call("bash", {"command": "sleep 3; echo hello > out.txt", "description": "d", "mode": "async"})
    copilot.model.will(shell, Say("It runs."), Say("It is over."))
    job = begin(copilot, "--yolo", options=("--expect", "out.txt"))
    assert copilot.ended(job)["status"] == "completed", copilot.events(job)
    assert copilot.baton("result", job).text == "It is over."
