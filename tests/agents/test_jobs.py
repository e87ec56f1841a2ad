"""A job from its registration to its end, done by a real agent program."""

from __future__ import annotations

import os

import pytest

from support.command import BATON
from truth.scripted_model import Fail, Say, bash

CLAUDE, CODEX, GEMINI = "claude-code", "codex", "gemini"
HEADLESS = ("--headless",)


@pytest.mark.parametrize("mode", [HEADLESS, ()], ids=["headless", "interactive"])
@pytest.mark.parametrize("agent", [CLAUDE, CODEX])
def test_a_job_is_done_and_its_result_was_looked_at(world, agent, mode):
    world.model.will(bash("echo hello > out.txt"), Say("I wrote it."))
    job = world.job("write out.txt", "--expect", "out.txt", "--validate", "grep -q hello out.txt", agent=agent)
    world.baton("session", "create", "s", "--job", job, *mode)
    done = world.ended(job)
    assert (done["status"], done["detail"]) == ("completed", "I wrote it."), world.events(job)
    assert (world.work / "out.txt").read_text() == "hello\n"
    told = [event for event, _ in world.events(job)]
    assert (told[0], told[-1]) == ("started", "completed")
    assert told.count("completed") == 1
    session = world.session_ended("s")
    assert session["conversation_id"]
    assert session["state"] == ("terminated" if mode else "stopped")


@pytest.mark.parametrize("mode", [HEADLESS, ()], ids=["headless", "interactive"])
def test_claude_is_sent_back_until_its_result_is_there(world, mode):
    world.model.will(Say("Done!"), bash("echo hello > out.txt"), Say("Now it is there."))
    job = world.job("write out.txt", "--expect", "out.txt", agent=CLAUDE)
    world.baton("session", "create", "s", "--job", job, *mode)
    done = world.ended(job)
    assert (done["status"], done["detail"]) == ("completed", "Now it is there."), world.events(job)
    assert "out.txt is missing" in world.model.asked_last
    assert [event for event, _ in world.events(job)].count("started") == 1


@pytest.mark.parametrize("mode", [HEADLESS, ()], ids=["headless", "interactive"])
def test_an_agent_that_never_mends_it_is_given_up_on(world, mode):
    job = world.job("write out.txt", "--expect", "out.txt", agent=CLAUDE)
    world.baton("session", "create", "s", "--job", job, *mode)
    done = world.ended(job)
    assert done["status"] == "error"
    assert "out.txt is missing" in done["detail"]
    assert len(world.model.asked) <= 5


AWKWARD = "--version\n-- 'single' \"double\" `touch canary` $(touch canary) #(touch canary) \\ é 日本 ;\nlast line;"


@pytest.mark.parametrize("mode", [HEADLESS, ()], ids=["headless", "interactive"])
@pytest.mark.parametrize("agent", [CLAUDE, CODEX])
def test_the_prompt_arrives_as_it_is(world, agent, mode):
    job = world.job(AWKWARD, agent=agent)
    world.baton("session", "create", "s", "--job", job, *mode)
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert any(AWKWARD in text for text in world.model.texts_asked()), world.model.asked_last
    assert not list(world.folder.rglob("canary"))


@pytest.mark.parametrize(("agent", "mode"), [(CLAUDE, HEADLESS), (CODEX, HEADLESS), (CODEX, ())])
def test_a_very_long_prompt_goes_in_where_it_is_no_argument(world, agent, mode):
    prompt = "A long story. " * 30_000 + "The end."
    job = world.job("-", agent=agent, stdin=prompt)
    world.baton("session", "create", "s", "--job", job, *mode)
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert any(prompt in text for text in world.model.texts_asked())


def test_a_very_long_prompt_on_the_terminal_is_refused_before_anything_is_made(world):
    job = world.job("-", agent=CLAUDE, stdin="A long story. " * 30_000)
    assert "--headless" in world.baton.refused("session", "create", "s", "--job", job)
    assert world.record(job)["status"] == "pending"
    assert world.baton("session", "list", "--all", "--json").json == []


def test_what_codex_says_in_its_sandbox_is_sent_for_it(world):
    """In there it has no network, and a login shell that knows no virtual environment."""
    world.model.will(bash(f"{BATON} publish --event completed --detail 'from inside' > out.txt 2>&1"), Say("Done."))
    job = world.job("say it", agent=CODEX)
    world.baton("session", "create", "s", "--job", job, "--headless")
    assert world.ended(job)["detail"] == "from inside", (world.work / "out.txt").read_text()
    assert f"{BATON} publish --job {job}" in world.model.asked_last
    world.session_ended("s")
    world.until(lambda: world.unsent(job) == [], "all events to be sent", 5)


# -- trouble -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("agent", "mode"), [(CLAUDE, HEADLESS), (CLAUDE, ()), (CODEX, HEADLESS), (CODEX, ())])
def test_a_model_service_that_refuses_is_an_error_in_its_words(world, agent, mode):
    world.model.will(*[Fail(400, "the stars are not right")] * 10)
    job = world.job("do it", "--timeout", "60", agent=agent)
    world.baton("session", "create", "s", "--job", job, *mode)
    done = world.ended(job)
    assert done["status"] == "error"
    assert "the stars are not right" in done["detail"]


@pytest.mark.parametrize("agent", [CLAUDE, CODEX])
def test_a_model_service_that_is_away_is_an_error_in_bounded_time(world, agent, dead_url):
    world.point_at(dead_url)
    job = world.job("do it", "--timeout", "20", agent=agent)
    world.baton("session", "create", "s", "--job", job, "--headless")
    done = world.ended(job, within_sec=40)
    assert done["status"] == "error"
    assert "onnect" in done["detail"], done["detail"]


def test_claude_that_was_not_allowed_its_tools_says_which(world):
    world.allow("Read", deny=("Bash(echo *)",))
    world.model.will(bash("echo hello > out.txt"), Say("I was not allowed to."))
    job = world.job("write out.txt", agent=CLAUDE)
    world.baton("session", "create", "s", "--job", job, "--headless")
    done = world.ended(job)
    assert done["status"] == "error"
    assert "Bash" in done["detail"]


def test_headless_claude_asks_and_is_answered_from_another_terminal(world):
    world.allow("Read")
    world.model.will(bash("echo hello > out.txt"), Say("I wrote it."))
    job = world.job("write out.txt", "--expect", "out.txt", agent=CLAUDE)
    world.baton("session", "create", "s", "--job", job, "--headless")
    (asked,) = world.until(lambda: world.baton("requests", "--json").json, "the request")
    assert (asked["tool"], asked["call"]["command"]) == ("Bash", "echo hello > out.txt")
    assert not (world.work / "out.txt").exists()
    world.baton("approve", asked["request_id"])
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert world.baton("requests", "--json").json == []


def test_the_background_work_of_headless_claude_ends_before_its_job(world):
    world.model.will(bash("sleep 3; echo late > out.txt", background=True), Say("It runs."), Say("It is over."))
    job = world.job("write out.txt", agent=CLAUDE)
    world.baton("session", "create", "s", "--job", job, "--headless")
    assert world.ended(job)["detail"] == "It is over.", world.events(job)
    assert (world.work / "out.txt").read_text() == "late\n"
    world.session_ended("s")


def test_a_long_command_on_the_terminal_is_not_taken_for_silence(world):
    world.model.will(bash("sleep 45; echo hello > out.txt"), Say("I wrote it."))
    job = world.job("write out.txt", "--idle-timeout", "30", agent=CLAUDE)
    world.baton("session", "create", "s", "--job", job)
    tool = world.until(
        lambda: (found := world.record(job)["activity"]) and found["kind"] == "working" and found, "work"
    )
    assert world.ended(job, within_sec=80)["status"] == "completed", (tool, world.events(job))
    assert (world.work / "out.txt").read_text() == "hello\n"


# -- permissions ---------------------------------------------------------------------------------------------


def test_a_permission_that_claude_asks_for_is_an_event_and_can_be_given(world):
    world.allow("Read")
    world.model.will(bash("echo hello > out.txt"), Say("I wrote it."))
    job = world.job("write out.txt", "--expect", "out.txt", agent=CLAUDE)
    world.baton("session", "create", "s", "--job", job)
    asked = ("permission_required", "Bash: echo hello > out.txt")
    world.until(lambda: asked in world.events(job), "the question to become an event")
    world.until(lambda: "Do you want to" in world.screen("s"), "the question to be on the screen")
    assert world.record(job)["status"] == "running"
    assert not (world.work / "out.txt").exists()
    world.baton("session", "send", "s", "--key", "1")
    assert world.ended(job)["status"] == "completed", world.events(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_claude_as_root_skips_no_permissions(world):
    job = world.job("write out.txt", agent=CLAUDE)
    refused = world.baton.refused("session", "create", "s", "--job", job, "--yolo")
    assert "as root" in refused
    assert world.record(job)["status"] == "pending"


def test_codex_skips_permissions_only_with_yolo(world):
    """Its sandbox keeps the work folder's own settings read-only."""
    touch = "mkdir -p .codex && touch .codex/x"
    world.model.will(bash(touch), Say("Done."))
    job = world.job("try it", agent=CODEX)
    world.baton("session", "create", "tame", "--job", job, "--headless")
    world.ended(job)
    assert not (world.work / ".codex" / "x").exists()
    world.model.will(bash(touch), Say("Done."))
    job = world.job("try it", agent=CODEX)
    world.baton("session", "create", "wild", "--job", job, "--headless", "--yolo")
    world.ended(job)
    assert (world.work / ".codex" / "x").exists()
    assert world.session("wild")["yolo"] is True


# -- gemini --------------------------------------------------------------------------------------------------


def test_gemini_does_a_job_without_a_terminal(world):
    world.model.will(Say("Done!"), bash("echo hello > out.txt"), Say("I wrote it."))
    job = world.job("write out.txt", "--expect", "out.txt", agent=GEMINI)
    world.baton("session", "create", "s", "--job", job, "--headless", "--yolo")
    done = world.ended(job, within_sec=120)
    assert (done["status"], done["detail"]) == ("completed", "I wrote it."), world.events(job)
    assert "out.txt is missing" in world.model.asked_last


@pytest.mark.parametrize("mode", [HEADLESS, ()], ids=["headless", "interactive"])
def test_the_whole_answer_and_what_the_validation_printed_reach_whom_they_concern(world, mode):
    answer = "# Report\n\n" + "".join(f"- see /srv/project/module_{number}.py\n" for number in range(300))
    world.model.will(Say("Done!"), bash("echo hello > out.txt"), Say(answer))
    validate = "seq 150; test -e out.txt || { echo FAILED /srv/tests/test_a.py; false; }"
    job = world.job("write out.txt", "--validate", validate, agent=CLAUDE)
    world.baton("session", "create", "s", "--job", job, *mode)
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert world.baton("result", job).out.strip() == answer.strip()
    assert "FAILED /srv/tests/test_a.py" in world.model.asked_last
    assert "/srv/" not in str(world.events(job))
    printed = world.baton("result", job, "--output").out
    assert answer.strip() in printed
    assert "echo hello > out.txt" in printed
