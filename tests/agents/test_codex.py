"""What only the real Codex shows: its app-server, which the runner and the program on the pane use at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time

import pytest

from truth.scripted_model import Call, Fail, Say, bash

CODEX = "codex"
MODES = pytest.mark.parametrize("mode", [("--headless",), ()], ids=["headless", "interactive"])


def begin(world, *options, mode=(), steps=None):
    """Start a job whose agent wants to leave its sandbox, and return it once it asks."""
    world.model.will(*(steps or (bash("echo hello > out.txt", ask=True), Say("I wrote it."))))
    job = world.job("write out.txt", *options, agent=CODEX)
    world.baton("session", "create", "s", "--job", job, *mode)
    return job, world.until(lambda: requests(world), "the agent to ask")[0]


def requests(world):
    return world.baton("requests", "--json").json


def activity(world, job):
    return (world.record(job).get("activity") or {}).get("kind")


def server_pids(world):
    """Return the processes of the app-servers that belong to this test."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
            with open(f"/proc/{pid}/environ", "rb") as file:
                mine = f"HOME={world.home}".encode() in file.read()
        except OSError:
            continue
        if mine and b"app-server" in command:
            found.append(int(pid))
    return found


# -- permissions -------------------------------------------------------------------------------------------------------


@MODES
def test_a_permission_is_given_from_outside(world, mode):
    job, asked = begin(world, "--expect", "out.txt", mode=mode)
    assert (asked["kind"], asked["tool"], asked["exact"]) == ("tool", "shell", True)
    assert asked["call"] == {"command": "echo hello > out.txt", "cwd": str(world.work)}
    assert world.until(lambda: activity(world, job) == "waiting", "the activity", 5)
    assert not (world.work / "out.txt").exists()
    world.baton("approve", asked["request_id"])
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert (world.work / "out.txt").read_text() == "hello\n"
    assert requests(world) == []
    shown = world.baton("requests", asked["request_id"], "--json").json
    assert (shown["state"], shown["answer"], shown["applied"]) == ("answered", "allow", "yes")


@MODES
def test_a_denial_reaches_the_model_with_its_reason(world, mode):
    job, asked = begin(world, mode=mode)
    world.baton("deny", asked["request_id"], "--reason", "not in this folder")
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert "not in this folder" in world.model.asked_last
    assert not (world.work / "out.txt").exists()
    assert world.baton("requests", asked["request_id"], "--json").json["applied"] == "yes"


def test_a_question_is_on_the_screen_and_elsewhere_until_the_first_answer(world):
    job, asked = begin(world, "--expect", "out.txt")
    world.until(lambda: "echo hello" in world.screen("s") and "Yes" in world.screen("s"), "the dialog")
    world.baton("approve", asked["request_id"])
    assert world.ended(job)["status"] == "completed", world.events(job)


@pytest.mark.parametrize(("key", "answer"), [("y", "allow"), ("Escape", "deny")])
def test_a_person_answers_at_the_screen(world, key, answer):
    steps = (bash("echo hello > out.txt; sleep 5", ask=True), Say("I wrote it."))
    job, asked = begin(world, steps=steps)
    world.until(lambda: "Yes" in world.screen("s"), "the dialog")
    stayed_sec = world.answer_at_screen(job, key)
    assert max(stayed_sec.values()) < 2, stayed_sec
    assert requests(world) == []
    shown = world.baton("requests", asked["request_id"], "--json").json
    assert (shown["state"], shown["answer"], shown["via"]) == ("elsewhere", answer, "agent")
    if answer == "allow":
        assert activity(world, job) == "working"
        assert world.ended(job)["status"] == "completed", world.events(job)
        assert (world.work / "out.txt").exists()
    else:
        assert world.until(lambda: activity(world, job) == "idle", "the agent to idle", 10)
        assert not (world.work / "out.txt").exists()


@pytest.mark.parametrize(("what", "applied"), [("approve", "hello\nrm -rf x\n"), ("deny", "")])
@MODES
def test_text_for_a_running_terminal_is_typed_text_and_no_command(world, mode, what, applied):
    """The rule would allow the text, were it a command."""
    rules = world.home / ".config" / "baton" / "rules.toml"
    rules.parent.mkdir(parents=True)
    rules.write_text('[[rule]]\ndecision = "allow"\ncommand = ["write_stdin", "*"]\n', "utf-8")
    rules.chmod(0o600)

    def types_text():
        terminal = re.search(r"session ID (\d+)", world.model.asked_last)
        return Call("write_stdin", {"session_id": int(terminal[1]), "chars": "hello\nrm -rf x\n", "yield_time_ms": 500})

    about = {"tty": True, "yield_time_ms": 500, "sandbox_permissions": "require_escalated", "justification": "I type."}
    begins = Call("exec_command", {"cmd": "cat > typed.txt"} | about)
    world.model.will(begins, types_text, bash("sleep 1"), Say("I typed."))
    job = world.job("type it", "--background-timeout", "1s", agent=CODEX)
    world.baton("session", "create", "s", "--job", job, *mode)
    begun = world.until(lambda: requests(world), "the agent to ask for the terminal")[0]
    world.baton("approve", begun["request_id"])
    asked = world.until(lambda: [each for each in requests(world) if each["tool"] != "shell"], "the text")[0]
    assert (asked["tool"], asked["call"]["typed"]) == ("typed text", "hello\nrm -rf x\n")
    assert asked["call"]["runs"] == "cat > typed.txt"
    assert world.until(lambda: activity(world, job) == "waiting", "the activity", 5)
    world.baton(what, asked["request_id"])
    decided = world.until(
        lambda: shown if (shown := world.baton("requests", asked["request_id"], "--json").json)["applied"] != "unknown" else None,
        "evidence",
    )  # fmt: skip
    assert (decided["state"], decided["applied"], decided["overridden_by"]) == ("answered", "yes", None)
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert (world.work / "typed.txt").read_text() == applied


# -- trust -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("yolo", [(), ("--yolo",)], ids=["asks", "yolo"])
@MODES
def test_a_repository_that_is_not_trusted_stays_so_and_is_not_written(world, mode, yolo):
    """With a folder, Codex would note in the user's settings that it is trusted, and load the settings in there."""
    other = world.folder / "other"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    (other / ".codex").mkdir()
    (other / ".codex" / "config.toml").write_text('model = "the-model-of-the-folder"\n')
    settings = world.home / ".codex" / "config.toml"
    settings.write_text('sandbox_mode = "workspace-write"\n' + settings.read_text())
    before = settings.read_text()
    world.model.will(bash("echo hello > out.txt"), Say("I tried."))
    given = ("--agent", CODEX, "--workdir", str(other))
    made = world.baton("submit", "Write.", *given, *mode, *yolo, "--detach")
    job = made.text
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert (other / "out.txt").exists() == bool(yolo)
    assert settings.read_text().startswith(before)
    assert str(other) not in settings.read_text()
    assert "the-model-of-the-folder" not in {request["model"] for request in world.model.asked}


# -- the first run -----------------------------------------------------------------------------------------------------


@MODES
def test_a_user_without_a_login_is_told_so_at_once(world, mode):
    (world.home / ".codex" / "config.toml").write_text("check_for_update_on_startup = false\n")
    begun = time.monotonic()
    world.baton("submit", "Write.", "--agent", CODEX, "--workdir", str(world.work), *mode, code=1)
    assert time.monotonic() - begun < 10
    job = world.baton("list", "--json").json[0]
    assert (job["status"], "codex login" in (job["reason"] or job["detail"])) == ("error", True), job


@MODES
def test_a_first_run_without_its_folder_quotes_the_line_that_says_why(world, mode):
    missing = world.home / "nowhere"
    env = {"CODEX_HOME": str(missing), "RUST_BACKTRACE": "1"}
    world.baton("submit", "Write.", "--agent", CODEX, "--workdir", str(world.work), *mode, code=1, **env)
    job = world.baton("list", "--json").json[0]
    reason = job["reason"] or job["detail"]
    assert f'Error: CODEX_HOME points to "{missing}", but that path does not exist' in reason, job
    assert "backtrace" not in reason.lower()
    assert "<unknown>" not in reason


# -- turns -------------------------------------------------------------------------------------------------------------


@MODES
def test_codex_is_sent_back_until_its_result_is_there(world, mode):
    world.model.will(Say("Done!"), bash("echo hello > out.txt"), Say("Now it is there."))
    job = world.job("write out.txt", "--expect", "out.txt", agent=CODEX)
    world.baton("session", "create", "s", "--job", job, *mode)
    done = world.ended(job)
    assert (done["status"], done["detail"]) == ("completed", "Now it is there."), world.events(job)
    for text in ("write out.txt", "Done!", "out.txt is missing"):
        assert text in world.model.asked_last
    assert [event for event, _ in world.events(job)].count("started") == 1


def test_a_session_without_a_prompt_takes_jobs_one_after_the_other(world):
    world.baton("session", "create", "s", "--agent", CODEX, "--workdir", str(world.work))
    world.until(lambda: "Ask Codex" in world.screen("s"), "the program")
    assert world.session("s")["conversation_id"] is None
    for number in ("one", "two"):
        world.model.will(Say(f"This is {number}."))
        job = world.baton("submit", "--session", "s", "--detach", f"Say {number}.").text
        done = world.ended(job)
        assert (done["status"], done["detail"]) == ("completed", f"This is {number}."), world.events(job)
    assert world.session("s")["conversation_id"]
    assert "Say one." in world.model.asked_last


def test_a_session_that_never_had_a_turn_is_not_resumed(world):
    world.baton("session", "create", "s", "--agent", CODEX, "--workdir", str(world.work))
    world.until(lambda: "Ask Codex" in world.screen("s"), "the program")
    world.baton("session", "stop", "s")
    assert "cannot resume it" in world.baton.refused("session", "resume", "s")


def test_a_session_is_stopped_and_resumed_and_goes_on(world):
    world.model.will(Say("Here I am."))
    world.baton("session", "create", "s", "--agent", CODEX, "--workdir", str(world.work), "--prompt", "Be there.")
    world.until(lambda: "Here I am." in world.screen("s"), "the answer")
    world.until(lambda: world.session("s")["conversation_id"], "the conversation")
    world.baton("session", "stop", "s")
    assert server_pids(world) == []
    world.baton("session", "resume", "s")
    world.until(lambda: "Here I am." in world.screen("s"), "the conversation on the screen")
    world.model.will(Say("The pelican is fed."))
    job = world.baton("submit", "--session", "s", "--detach", "Feed the pelican.").text
    assert world.ended(job)["detail"] == "The pelican is fed.", world.events(job)
    assert "Be there." in world.model.asked_last


def test_words_that_are_sent_reach_the_agent_at_work_in_the_same_turn(world):
    world.model.will(bash("touch begun; while ! test -e go; do sleep 0.1; done"), Say("Both are fed."))
    job = world.baton("submit", "Feed it.", "--agent", CODEX, "--workdir", str(world.work), "--detach").text
    world.until((world.work / "begun").exists, "the tool to run")
    world.until(lambda: "Working" in world.screen(job) or "Feed it." in world.screen(job), "the screen")
    world.baton("send", job, "--", "also the heron")
    world.until(lambda: "the heron" in world.screen(job), "the words on the screen")
    (world.work / "go").touch()
    assert world.ended(job)["status"] == "completed", world.events(job)
    assert "also the heron" in world.model.asked_last


def test_an_interrupted_turn_is_idle_and_its_tool_ends_with_the_session(world):
    """Codex lets the command of an interrupted turn run on."""
    command = {"cmd": "touch begun; sleep 4321", "yield_time_ms": 60_000}  # else the model goes on after 10 s
    world.model.will(Call("exec_command", command), Say("It is over."))
    job = world.job("wait", agent=CODEX)
    world.baton("session", "create", "s", "--job", job, "--yolo")
    world.until((world.work / "begun").exists, "the tool to run")
    world.until(lambda: "esc to interrupt" in world.screen("s"), "the screen")
    world.baton("session", "send", "s", "--key", "Escape")
    assert world.until(lambda: activity(world, job) == "idle", "the agent to idle", 10)
    world.baton("session", "stop", "s")
    assert world.record(job)["status"] != "completed"
    left = subprocess.run(["pgrep", "-f", "^sleep 4321$"], capture_output=True, text=True, check=False).stdout.split()
    assert not [pid for pid in left if f"HOME={world.home}" in _environment(pid)]


def _environment(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().decode(errors="replace")


@MODES
def test_background_work_ends_before_the_job(world, mode):
    """Codex goes on after 10 s, or what the model wishes, and leaves the command to run."""
    command = {"cmd": "sleep 4; echo late > out.txt", "yield_time_ms": 300}
    world.model.will(Call("exec_command", command), Say("It runs."))
    job = world.job("write out.txt", agent=CODEX)
    world.baton("session", "create", "s", "--job", job, "--yolo", *mode)
    assert world.ended(job)["detail"].startswith("It runs."), world.events(job)
    assert (world.work / "out.txt").read_text() == "late\n"


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_a_server_that_dies_ends_the_job_and_the_session(world):
    world.model.will(bash("touch begun; sleep 60"), Say("It is over."))
    job = world.job("wait", agent=CODEX)
    world.baton("session", "create", "s", "--job", job)
    world.until((world.work / "begun").exists, "the tool to run")
    for pid in server_pids(world):
        os.kill(pid, signal.SIGKILL)
    done = world.ended(job, within_sec=15)
    assert (done["status"], done["detail"]) == ("error", "Codex's server was ended by signal 9")
    world.session_ended("s")


def test_a_server_that_dies_ends_a_session_without_a_job(world):
    world.baton("session", "create", "s", "--agent", CODEX, "--workdir", str(world.work))
    world.until(lambda: "Ask Codex" in world.screen("s"), "the program")
    for pid in server_pids(world):
        os.kill(pid, signal.SIGTERM)
    world.session_ended("s")


@MODES
@pytest.mark.parametrize(
    ("fail", "said"),
    [(Fail(429, "too many"), "429"), (Fail(401, "no such key"), "401"), (Fail(500, "broken"), "high demand")],
    ids=["429", "401", "500"],
)
def test_a_service_that_fails_is_an_error_in_its_words(world, mode, fail, said):
    world.model.will(*[fail] * 20)
    job = world.job("do it", "--timeout", "90", agent=CODEX)
    world.baton("session", "create", "s", "--job", job, *mode)
    done = world.ended(job, within_sec=90)
    assert done["status"] == "error"
    assert said in done["detail"], done["detail"]


def test_a_dead_service_is_retried_and_named(world, dead_url):
    world.point_at(dead_url)
    job = world.job("do it", "--timeout", "12", agent=CODEX)
    world.baton("session", "create", "s", "--job", job)
    world.until(lambda: activity(world, job) == "retrying", "the activity", 10)
    done = world.ended(job, within_sec=30)
    assert done["status"] == "error"
    assert "onnect" in done["detail"] or "network" in done["detail"], done["detail"]


def test_explain_names_the_server_as_the_source(world):
    job, asked = begin(world)
    rows = world.baton("explain", job, "--json").json
    assert "server" in json.dumps(rows)
    world.baton("deny", asked["request_id"])
    world.ended(job)
