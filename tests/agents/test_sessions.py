"""Sessions of real agent programs: ended with everything they started, brought back with their conversation."""

from __future__ import annotations

import subprocess

import pytest

from baton.sessions.processes import started_at
from truth.scripted_model import Say, bash

CLAUDE, CODEX = "claude-code", "codex"


@pytest.mark.parametrize("agent", [CLAUDE, CODEX])
def test_a_stopped_session_comes_back_and_remembers(world, agent):
    world.model.will(Say("I shall remember the pelican."))
    world.baton("session", "create", "s", "--agent", agent, "--workdir", str(world.work), "--prompt", "Say pelican.")
    world.until(lambda: "I shall remember" in world.screen("s"), "the first answer")
    world.until(lambda: world.session("s")["conversation_id"], "the conversation's id")
    conversation = world.baton("session", "stop", "s", "--capture-id", "--reason", "lunch").text
    stopped = world.session("s")
    assert (stopped["state"], stopped["conversation_id"], stopped["reason"]) == ("stopped", conversation, "lunch")

    world.model.will(Say("It was a pelican."))
    world.baton("session", "resume", "s", "--prompt", "What was it?")
    world.until(lambda: "It was a pelican." in world.screen("s"), "the second answer")
    assert world.session("s")["conversation_id"] == conversation
    for text in ("Say pelican.", "I shall remember the pelican.", "What was it?"):
        assert text in world.model.asked_last
    world.model.will(Say("The third answer."))
    world.baton("session", "send", "s", "And now?")
    world.until(lambda: "The third answer." in world.screen("s"), "the third answer")
    assert world.baton("session", "stop", "s", "--capture-id").text == conversation


@pytest.mark.parametrize("mode", [("--headless",), ()], ids=["headless", "interactive"])
@pytest.mark.parametrize("agent", [CLAUDE, CODEX])
def test_the_conversation_of_a_finished_job_can_be_gone_on_with(world, agent, mode):
    world.model.will(Say("The pelican is fed."))
    job = world.job("Feed the pelican.", agent=agent)
    world.baton("session", "create", "s", "--job", job, *mode)
    conversation = world.session_ended("s")["conversation_id"]
    world.model.will(Say("The pelican."))
    world.baton("session", "resume", "s", "--prompt", "Who was fed?")
    world.until(lambda: "Who was fed?" in world.model.asked_last, "the question to be asked")
    assert "The pelican is fed." in world.model.asked_last
    assert world.session("s")["conversation_id"] == conversation
    assert world.record(job)["status"] == "completed"


@pytest.mark.parametrize(("agent", "options"), [(CLAUDE, ()), (CODEX, ("--yolo",))], ids=[CLAUDE, CODEX])
def test_what_a_tool_left_behind_is_ended_with_the_session(world, agent, options):
    """Codex only without its sandbox: in it, nothing outlives the command."""
    world.model.will(bash("setsid sleep 4321 > /dev/null 2>&1 & echo $! > pid"), Say("It sleeps."))
    given = ("--agent", agent, "--workdir", str(world.work), "--prompt", "Sleep.", *options)
    world.baton("session", "create", "s", *given)
    world.until(lambda: "It sleeps." in world.screen("s"), "the answer")
    sleeper = int((world.work / "pid").read_text())
    assert started_at(sleeper)
    ended = world.baton("session", "stop", "s", "--json").json["ended"]
    assert sleeper in [each["pid"] for each in ended]
    assert started_at(sleeper) is None


def test_a_job_that_is_over_leaves_no_tool_process_either(world):
    world.model.will(bash("setsid sleep 4321 > /dev/null 2>&1 & echo $! > pid"), Say("It sleeps."))
    job = world.job("Sleep.", agent=CLAUDE)
    world.baton("session", "create", "s", "--job", job, "--headless")
    world.session_ended("s")
    assert started_at(int((world.work / "pid").read_text())) is None


def test_stopping_in_the_middle_ends_the_job_and_keeps_the_conversation(world):
    world.model.will(bash("touch begun; sleep 4321"))
    job = world.job("Sleep.", agent=CLAUDE)
    world.baton("session", "create", "s", "--job", job)
    world.until((world.work / "begun").exists, "the tool to run")
    conversation = world.baton("session", "stop", "s", "--capture-id", "--reason", "no time").text
    done = world.record(job)
    assert (done["status"], done["detail"]) == ("error", "the session was stopped: no time")
    world.model.will(Say("Where were we?"))
    world.baton("session", "resume", "s", "--prompt", "Go on.")
    world.until(lambda: "Where were we?" in world.screen("s"), "the answer")
    assert world.session("s")["conversation_id"] == conversation
    assert "This is job" in world.model.asked_last


@pytest.mark.parametrize("agent", [CLAUDE, CODEX])
def test_a_job_sent_to_a_session_is_done_there(world, agent):
    world.model.will(Say("Here I am."), bash("echo hello > out.txt"), Say("I wrote it."))
    world.baton("session", "create", "s", "--agent", agent, "--workdir", str(world.work), "--prompt", "Be there.")
    world.until(lambda: "Here I am." in world.screen("s"), "the agent")
    job = world.baton("submit", "--to", "s", "--detach", "--json", "--expect", "out.txt", "Write it.").json["job_id"]
    done = world.ended(job)
    assert (done["status"], done["detail"]) == ("completed", "I wrote it."), world.events(job)
    assert world.session("s")["state"] == "running"


@pytest.mark.parametrize("agent", [CLAUDE, CODEX])
def test_a_job_sent_to_a_busy_agent_is_not_done_when_what_it_did_before_is(world, agent):
    world.model.hold()
    world.model.will(Say("First things first."), bash("echo hello > out.txt"), Say("I wrote it."))
    world.baton("session", "create", "s", "--agent", agent, "--workdir", str(world.work), "--prompt", "Think.")
    world.until(lambda: world.model.asked, "the agent to think")
    job = world.baton("submit", "--to", "s", "--detach", "--json", "Write out.txt.").json["job_id"]
    world.model.let_go()
    done = world.ended(job)
    assert (done["status"], done["detail"]) == ("completed", "I wrote it."), world.events(job)


@pytest.mark.parametrize("agent", [CLAUDE, CODEX])
def test_the_users_own_files_stay_as_they_are(world, agent):
    """An agent may note something in them itself; we do not."""
    before = {name: (world.home / name).read_text() for name in (".claude/settings.json", ".codex/config.toml")}
    job = world.job("Do it.", agent=agent)
    world.baton("session", "create", "s", "--job", job)
    assert world.ended(job)["status"] == "completed"
    world.session_ended("s")
    for name, text in before.items():
        assert (world.home / name).read_text().startswith(text)
    for name in (".claude.json", *before):
        assert "baton hook" not in (world.home / name).read_text()
        assert '"baton", "hook"' not in (world.home / name).read_text()
    assert not list(world.work.iterdir())


@pytest.mark.parametrize("agent", [CLAUDE, CODEX])
def test_no_key_is_on_a_command_line_and_without_a_terminal_no_prompt(world, agent):
    world.model.will(bash("ps -eo args > ps.txt"), Say("Listed."))
    job = world.job("Tell the pelican's secret.", agent=agent)
    world.baton("session", "create", "s", "--job", job, "--headless", *(["--yolo"] if agent == CODEX else []))
    assert world.ended(job)["status"] == "completed", world.events(job)
    listed = (world.work / "ps.txt").read_text()
    assert "baton.sessions.runner" in listed
    for secret in ("pelican", "not-a-key-of-anybody"):
        assert secret not in listed.replace(str(world.folder), "")


def test_a_folder_that_is_not_trusted_yet_is_said_to_be_in_the_way(world):
    other = world.folder / "other"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    for agent, warning in ((CLAUDE, "Claude Code will ask whether"), (CODEX, "Codex does not know whether")):
        made = world.baton("session", "create", agent, "--agent", agent, "--workdir", str(other))
        assert f"{warning} you trust {other}" in made.err
        made = world.baton("session", "create", f"{agent}-2", "--agent", agent, "--workdir", str(world.work))
        assert "trust" not in made.err


def test_codex_asks_nothing_in_a_folder_that_is_no_repository(world):
    other = world.folder / "other"
    other.mkdir()
    world.model.will(Say("I have begun."))
    given = ("--agent", CODEX, "--workdir", str(other), "--prompt", "Begin.")
    assert "trust" not in world.baton("session", "create", "s", *given).err
    world.until(lambda: "I have begun." in world.screen("s"), "the answer")
