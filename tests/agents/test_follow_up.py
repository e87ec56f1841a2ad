"""What comes after a job of a real agent program: another job in the same conversation, and words in the middle of it."""

from __future__ import annotations

import pytest

from truth.scripted_model import Say, bash

CLAUDE, CODEX, GEMINI = "claude-code", "codex", "gemini"


@pytest.mark.parametrize(
    ("agent", "mode"),
    [(CLAUDE, ["--headless"]), (CLAUDE, []), (CODEX, ["--headless"]), (CODEX, []), (GEMINI, ["--headless"])],
    ids=lambda each: each if isinstance(each, str) else " ".join(each) or "interactive",
)
def test_a_follow_up_is_a_new_job_in_the_same_conversation(world, agent, mode):
    world.model.will(Say("The pelican is fed."))
    where = ("--agent", agent, "--workdir", str(world.work))
    first = world.baton("submit", "Feed the pelican.", *where, *mode, "--detach").text
    assert world.ended(first)["status"] == "completed", world.events(first)

    world.model.will(bash("echo more > out.txt"), Say("It got more."))
    words = ("Now also give it more.", "--expect", "out.txt", "--validate", "grep -q more out.txt")
    yolo = [] if agent == CLAUDE else ["--yolo"]
    second = world.baton("follow-up", first[:6], *words, *yolo, "--detach").text
    done = world.ended(second, within_sec=150)  # baton waits up to a minute before Gemini loads a new conversation
    assert (done["status"], done["detail"]) == ("completed", "It got more."), world.events(second)
    assert (done["follows"], done["agent"], done["workdir"]) == (first, agent, str(world.work))
    for text in ("Feed the pelican.", "The pelican is fed.", "Now also give it more.", f"This is job {second}"):
        assert text in world.model.asked_last
    old, new = world.session(first), world.session(second)
    assert (new["conversation_id"], new["mode"]) == (old["conversation_id"], old["mode"])


def test_a_follow_up_goes_to_the_session_that_still_runs(world):
    world.model.will(Say("Here I am."), Say("The pelican is fed."), Say("It got more."))
    world.baton("session", "create", "s", "--agent", CLAUDE, "--workdir", str(world.work), "--prompt", "Be there.")
    world.until(lambda: "Here I am." in world.screen("s"), "the agent")
    first = world.baton("submit", "--session", "s", "--detach", "Feed the pelican.").text
    assert world.ended(first)["status"] == "completed"
    second = world.baton("follow-up", first, "--detach", "Give it more.").text
    assert world.ended(second)["detail"] == "It got more."
    assert "Feed the pelican." in world.model.asked_last
    assert world.session("s")["state"] == "running"


def test_words_that_are_sent_reach_the_agent_at_work(world):
    world.model.will(bash("touch begun; while ! test -e go; do sleep 0.1; done"), Say("Both are fed."))
    job = world.baton("submit", "Feed it.", "--agent", CLAUDE, "--workdir", str(world.work), "--detach").text
    world.until((world.work / "begun").exists, "the tool to run")
    world.baton("send", job, "--", "-- also the heron\nand the stork")
    world.until(lambda: "the stork" in world.screen(job), "the words on the screen")
    (world.work / "go").touch()
    assert world.ended(job)["detail"] == "Both are fed."
    assert "-- also the heron\\nand the stork" in world.model.asked_last


def test_a_question_of_the_agent_is_answered_by_a_key(world):
    world.allow()
    world.model.will(bash("echo hello > out.txt"), Say("I wrote it."))
    job = world.baton("submit", "Write.", "--agent", CLAUDE, "--workdir", str(world.work), "--detach").text
    world.until(lambda: "permission_required" in [event for event, _ in world.events(job)], "the question")
    world.until(lambda: "1. Yes" in world.screen(job), "the dialog")
    world.baton("send", job, "--key", "1")
    assert world.ended(job)["detail"] == "I wrote it."
