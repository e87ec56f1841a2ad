"""What Gemini and Qwen say on the terminal, from recorded messages, and what reaches them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from baton.adapters.contract import Mode, Task
from baton.adapters.folder_trust import trusts
from baton.adapters.gemini import Gemini
from baton.adapters.qwen import Qwen
from baton.channels.agent_settings import read_settings, with_hooks
from baton.channels.child_commands import runs_below, seconds_since_boot
from baton.channels.forward import forward
from baton.channels.gemini_home import GeminiHome
from baton.channels.gemini_hooks import GeminiHooks
from baton.channels.qwen_hooks import QwenHooks
from baton.core.errors import AgentUnusable
from baton.core.request import Answer
from baton.core.signal import (
    ALLOW,
    DENY,
    FAILED,
    INTERRUPTED,
    WELL,
    Asked,
    Conversation,
    Settled,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from support.waiting import wait_until

RECORDED = Path(__file__).parents[1] / "data" / "hooks"
HOOK = ["baton", "hook"]


class Session:
    """A channel that is open, without a program."""

    def __init__(self, make, agent, folder, *, conversation: str | None = None) -> None:
        self.folder, self.heard = folder / "session", []
        self.folder.mkdir()
        self.home = folder / "home"
        self.home.mkdir(exist_ok=True)
        environment = {"HOME": str(self.home), "OPENAI_API_KEY": "k", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
        self.channel = make(
            agent,
            Task(
                mode=Mode.INTERACTIVE, prompt="x", conversation_id=conversation, resume=False, yolo=False,
                folder=str(self.folder), workdir=str(folder), hook=HOOK, environment=environment,
            ),
        )  # fmt: skip
        self.setup = self.channel.open(self.heard.append)
        self.answers: list[bytes | None] = []

    def hook(self, event: str, **more) -> None:
        self.send({"hook_event_name": event, "session_id": ID, **more})

    def send(self, message) -> None:
        forward(str(self.folder), json.dumps(message).encode())

    def hold(self, event: str, **more) -> None:
        """Send a message whose answer comes later."""
        message = json.dumps({"hook_event_name": event, "session_id": ID, **more}).encode()
        threading.Thread(target=lambda: self.answers.append(forward(str(self.folder), message)), daemon=True).start()

    def all(self, kind):
        return [each.signal for each in list(self.heard) if isinstance(each.signal, kind)]

    def ends(self):
        return [(each.turn, each.how) for each in self.all(TurnEnded)]

    def play(self, name: str) -> None:
        """Send recorded messages. The runner lets each turn end that the agent holds open."""
        for line in (RECORDED / f"{name}.jsonl").read_text().splitlines():
            message = json.loads(line)
            if message["hook_event_name"] not in ("Stop", "AfterAgent"):
                self.send(message)
                continue
            before = len(self.all(TurnEnded))
            thread = threading.Thread(target=self.send, args=(message,), daemon=True)
            thread.start()
            wait_until(lambda before=before: len(self.all(TurnEnded)) > before)
            self.channel.end_turn(self.all(TurnEnded)[-1].turn, None)
            thread.join()


ID = "b6422dcc-f718-4380-a2aa-f55ae7609cd7"


@pytest.fixture
def gemini(tmp_path):
    session = Session(GeminiHooks, Gemini(), tmp_path)
    yield session
    session.channel.close()


@pytest.fixture
def qwen(tmp_path):
    session = Session(QwenHooks, Qwen(), tmp_path)
    yield session
    session.channel.close()


# -- Gemini ------------------------------------------------------------------------------------------------------------


def test_recorded_turns_of_gemini(gemini):
    gemini.play("gemini")
    assert gemini.all(Conversation)[0].conversation_id == ID
    assert [each.prompt for each in gemini.all(TurnStarted)] == [
        "RUN[echo g1 > g1.txt]", "RUN[echo g2 > g2.txt]", "RUN[echo g3 > g3.txt]", "SLEEP20 NORUN",
    ]  # fmt: skip
    assert gemini.ends() == [("1", WELL), ("2", WELL), ("3", WELL), ("4", INTERRUPTED)]
    asked = gemini.all(Asked)
    assert [(each.tool, each.call["command"], each.screen_only) for each in asked] == [
        ("run_shell_command", "echo g1 > g1.txt", True), ("run_shell_command", "echo g2 > g2.txt", True),
    ]  # fmt: skip
    assert [each.decision for each in gemini.all(Settled)] == [ALLOW, ALLOW]
    started, ended = gemini.all(ToolStarted), gemini.all(ToolEnded)
    assert [each.tool_id for each in started] == [each.tool_id for each in ended]
    assert [each.ok for each in ended] == [True, True, False]  # a hook of the user denied the third


def begin(gemini, prompt="do it"):
    """Begin a turn; return its transcript."""
    chats = gemini.home / ".gemini" / "tmp" / "work" / "chats"
    chats.mkdir(parents=True)
    path = chats / "session-1.jsonl"
    path.touch()
    gemini.hook("SessionStart", source="startup", transcript_path=str(path))
    gemini.hook("BeforeAgent", prompt=prompt, transcript_path=str(path))
    return path


def add(path, **line):
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")


def test_a_cancelled_request_of_gemini_closes_its_question_and_ends_its_turn(gemini):
    path = begin(gemini)
    gemini.hook("BeforeTool", tool_name="run_shell_command", tool_input={"command": "make"})
    details = {"type": "exec", "title": "Confirm", "command": "make"}
    gemini.hook("Notification", notification_type="ToolPermission", details=details)
    add(path, id="1", type="info", content="Request cancelled.")
    wait_until(gemini.ends)
    assert gemini.ends() == [("1", INTERRUPTED)]
    assert [each.decision for each in gemini.all(Settled)] == [DENY]


def test_an_answer_of_gemini_after_an_error_or_a_cancellation_is_no_success(gemini):
    path = begin(gemini)
    add(path, id="1", type="error", content="[API Error: 401 the key is wrong]")
    gemini.hold("AfterAgent", prompt_response="I will do that.")
    wait_until(gemini.ends)
    assert gemini.ends() == [("1", FAILED)]
    assert "the key is wrong" in gemini.all(TurnEnded)[0].why
    gemini.hook("BeforeAgent", prompt="again", transcript_path=str(path))
    add(path, id="2", type="info", content="Request cancelled.")
    gemini.hold("AfterAgent", prompt_response="I will")
    wait_until(lambda: len(gemini.ends()) == 2)
    assert gemini.ends()[1] == ("2", INTERRUPTED)


def test_an_error_of_gemini_without_an_end_of_its_turn_ends_it(gemini):
    add(begin(gemini), id="1", type="error", content="[API Error: 500]")
    wait_until(gemini.ends)
    assert gemini.ends() == [("1", FAILED)]


def test_gemini_is_sent_back_in_its_turn(gemini):
    begin(gemini)
    gemini.hold("AfterAgent", prompt_response="Done.")
    wait_until(gemini.ends)
    assert gemini.all(TurnEnded)[0].held
    assert gemini.channel.end_turn("1", "out.txt is missing")
    wait_until(lambda: gemini.answers)
    assert json.loads(gemini.answers[0]) == {"decision": "block", "reason": "out.txt is missing"}
    gemini.hook("BeforeAgent", prompt="out.txt is missing")
    assert len(gemini.all(TurnStarted)) == 1
    gemini.hold("AfterAgent", prompt_response="Done.", stop_hook_active=True)
    wait_until(lambda: len(gemini.ends()) == 2)
    assert gemini.ends()[1] == ("1", WELL)


def test_a_gemini_in_a_tool_is_another_conversation(gemini):
    begin(gemini)
    other = "00000000-f718-4380-a2aa-f55ae7609cd7"
    for event in ("SessionStart", "BeforeAgent", "AfterAgent"):
        gemini.send({"hook_event_name": event, "session_id": other, "prompt": "x", "prompt_response": "done"})
    assert len(gemini.all(TurnStarted)) == 1
    assert gemini.channel.facts()["messages"]["of another conversation"] == 3


@pytest.mark.parametrize("source", ["resume", "clear"])
def test_a_gemini_in_a_tool_that_continues_a_conversation_is_another_conversation(gemini, source):
    """The agent runs `gemini --resume latest` in a tool: its good end is not that of the job."""
    path = begin(gemini)
    other = {"session_id": "00000000-f718-4380-a2aa-f55ae7609cd7", "transcript_path": str(path)}
    gemini.hook("BeforeTool", tool_name="run_shell_command", tool_input={"command": "gemini -r latest -p x"})
    gemini.send({"hook_event_name": "SessionStart", "source": source} | other)
    assert len(gemini.all(Conversation)) == 1
    gemini.send({"hook_event_name": "AfterAgent", "prompt_response": "Done."} | other)
    assert gemini.channel.facts()["messages"]["of another conversation"] == 2
    gemini.hook("AfterTool", tool_name="run_shell_command", tool_input={"command": "gemini -r latest -p x"})
    gemini.send({"hook_event_name": "SessionStart", "source": source} | other)
    assert gemini.all(Conversation)[-1].conversation_id == other["session_id"], "a person has left the conversation"


def test_each_end_of_a_turn_of_gemini_is_answered_and_ends_its_own_turn(gemini):
    path = begin(gemini)
    gemini.hold("AfterAgent", prompt_response="Done.")
    wait_until(lambda: gemini.channel._ended is not None)
    gemini.hook("BeforeAgent", prompt="of a person", transcript_path=str(path))
    assert gemini.ends() == [("1", WELL)]
    gemini.channel.end_turn("1", None)
    for text in ("I did", "I did it."):
        before = gemini.channel._ended
        gemini.hold("AfterAgent", prompt_response=text)
        wait_until(lambda before=before: gemini.channel._ended not in (None, before))
    wait_until(lambda: len(gemini.answers) == 2)
    wait_until(lambda: len(gemini.ends()) == 2)
    assert gemini.ends()[1] == ("2", WELL)


def test_a_line_of_gemini_of_an_unknown_form_ends_nothing(gemini):
    path = begin(gemini)
    add(path, id="1", type="gemini", tokens={"input": float("inf"), "output": 1})
    add(path, id="2", type="info", content="Request cancelled.")
    wait_until(gemini.ends)
    assert gemini.ends() == [("1", INTERRUPTED)]


def test_gemini_gets_the_users_files_and_gives_back_what_it_writes(tmp_path):
    users = tmp_path / "home" / ".gemini"
    users.mkdir(parents=True)
    for name in ("trustedFolders.json", "projects.json", "settings.json"):
        (users / name).write_text("{}")
    home = GeminiHome(str(tmp_path), {"HOME": str(tmp_path / "home")})
    home.make('{"hooks": {}}')
    own = Path(home.path) / ".gemini"
    (own / "trustedFolders.json").write_text('{"written": "through its link"}')
    (own / "x").write_text('{"replaced": 1}')
    os.replace(own / "x", own / "projects.json")
    (own / "oauth_creds.json").write_text("new")
    (own / "oauth_creds.json").chmod(0o600)
    (own / "projects.json.1.tmp").write_text("unfinished")
    (own / "settings.json").write_text('{"theme": "of this session"}')
    (own / "tmp" / "chat").write_text("a conversation")
    (own / "policies").mkdir()
    (own / "policies" / "auto.toml").write_text("a rule")
    home.return_files()
    assert "through its link" in (users / "trustedFolders.json").read_text()
    assert (users / "projects.json").read_text() == '{"replaced": 1}'
    assert (users / "oauth_creds.json").read_text() == "new"
    assert (users / "oauth_creds.json").stat().st_mode & 0o777 == 0o600
    assert (users / "tmp" / "chat").read_text() == "a conversation"
    assert (own / "projects.json").is_symlink()
    assert not (users / "projects.json.1.tmp").exists()
    home.return_files(everything=True)
    assert (users / "policies" / "auto.toml").read_text() == "a rule"
    assert (users / "settings.json").read_text() == "{}"
    home.make('{"hooks": {}}')  # as when the session is resumed
    assert (own / "policies" / "auto.toml").read_text() == "a rule"


def test_hooks_are_added_to_settings_with_comments(tmp_path):
    path = tmp_path / "settings.json"
    assert read_settings(str(path)) == {}
    path.write_text('{// mine\n"url": "http://x", /* two\n lines */ "hooks": {"Stop": [{"hooks": []}]}}')
    settings = with_hooks(read_settings(str(path)), ["baton", "hook", "a b"], {"Stop": 2, "Start": 1})
    assert settings["url"] == "http://x"
    assert settings["hooks"]["Stop"][0] == {"hooks": []}
    added = settings["hooks"]["Stop"][1]["hooks"][0]
    assert (added["command"], added["timeout"]) == ("baton hook 'a b'", 2000)
    path.write_text("[]")
    with pytest.raises(ValueError, match="no JSON object"):
        read_settings(str(path))


def test_settings_that_cannot_be_read_are_the_reason(tmp_path):
    (tmp_path / "home" / ".gemini").mkdir(parents=True)
    (tmp_path / "home" / ".gemini" / "settings.json").write_text("{")
    with pytest.raises(AgentUnusable, match=r"cannot read its settings .*settings.json"):
        Session(GeminiHooks, Gemini(), tmp_path)


def test_a_command_below_a_process_is_found_once_it_runs():
    since = seconds_since_boot()
    assert not runs_below(os.getpid(), "read x; echo 4711", since)
    with subprocess.Popen(["/bin/sh", "-c", "( read x; echo 4711 )"], stdin=subprocess.PIPE) as shell:
        wait_until(lambda: runs_below(os.getpid(), "read x; echo 4711", since))
        assert not runs_below(os.getpid(), "read x; echo 4711", seconds_since_boot() + 5)
        shell.stdin.close()
    with subprocess.Popen([sys.executable, "-c", "input()", "read x; echo 4711"], stdin=subprocess.PIPE) as quoting:
        assert not runs_below(os.getpid(), "read x; echo 4711", since)
        quoting.stdin.close()


@pytest.mark.parametrize(
    ("rules", "trusted"),
    [
        ({}, False), ({"/a": "TRUST_FOLDER"}, True), ({"/a/b": "DO_NOT_TRUST", "/a": "TRUST_FOLDER"}, False),
        ({"/a/x": "TRUST_PARENT"}, True), ({"/ab": "TRUST_FOLDER"}, False),
    ],
)  # fmt: skip
def test_a_folder_is_trusted_by_the_nearest_rule(rules, trusted, tmp_path):
    path = tmp_path / "trustedFolders.json"
    path.write_text(json.dumps(rules))
    assert trusts(str(path), "/a/b/c") is trusted


# -- Qwen --------------------------------------------------------------------------------------------------------------


def test_recorded_turns_of_qwen(qwen):
    qwen.play("qwen")
    prompts = [each.prompt for each in qwen.all(TurnStarted)]
    assert prompts == ["RUN[echo q1 > q1.txt]", "RUN[echo q2 > q2.txt]", "RUN[echo q3 > q3.txt]", "SLEEP20 NORUN"]
    wait_until(lambda: len(qwen.ends()) == 4)  # Esc: Qwen is idle, and nothing says that the turn is over
    assert qwen.ends() == [("1", WELL), ("2", WELL), ("3", WELL), ("4", INTERRUPTED)]
    assert [each.tool_id for each in qwen.all(ToolStarted)] == [each.tool_id for each in qwen.all(ToolEnded)]


def event(qwen, **message):
    path = qwen.setup.argv[qwen.setup.argv.index("--json-file") + 1]
    with open(path, "w") as pipe:
        pipe.write(json.dumps(message) + "\n")
    qwen.channel.read()


def ask(qwen, key="r-1", tool="run_shell_command", **given):
    request = {"subtype": "can_use_tool", "tool_name": tool, "tool_use_id": "c", "input": given}
    event(qwen, type="control_request", request_id=key, request=request)


def decided(qwen, allowed, key="r-1"):
    response = {"subtype": "success", "request_id": key, "response": {"allowed": allowed}}
    event(qwen, type="control_response", response=response)


def commands(qwen):
    path = qwen.setup.argv[qwen.setup.argv.index("--input-file") + 1]
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_qwen_is_answered_once(qwen):
    ask(qwen, command="make")
    (asked,) = qwen.all(Asked)
    assert (asked.key, asked.tool, asked.call, asked.screen_only) == (
        "r-1", "run_shell_command", {"command": "make"}, False,
    )  # fmt: skip
    allow = Answer(answer=ALLOW, by="me", via="cli")
    assert qwen.channel.answer("r-1", allow)
    assert not qwen.channel.answer("r-1", allow)
    assert commands(qwen) == [{"type": "confirmation_response", "request_id": "r-1", "allowed": True}]
    decided(qwen, True)
    assert qwen.all(Settled) == [Settled(key="r-1", decision=ALLOW, by="runner")]
    assert not qwen.channel.answer("r-1", allow)


def test_an_answer_at_the_screen_of_qwen_closes_the_question(qwen):
    ask(qwen, command="make")
    decided(qwen, False)
    assert qwen.all(Settled) == [Settled(key="r-1", decision=DENY, by="at its own screen")]
    assert not qwen.channel.answer("r-1", Answer(answer=ALLOW, by="me", via="cli"))


def test_a_question_of_qwen_is_for_its_screen(qwen):
    ask(qwen, tool="ask_user_question", questions=[{"question": "Which?", "options": [{"label": "a"}, {"label": "b"}]}])
    (asked,) = qwen.all(Asked)
    assert (asked.kind, asked.screen_only) == ("question", True)
    assert asked.options == ({"question": "Which?", "choices": ["a", "b"], "several": False},)


def deny(qwen, reason):
    """Let it ask in a turn, deny that, and wait until the reason was given."""
    qwen.hook("SessionStart", source="startup")
    qwen.hook("UserPromptSubmit", prompt="do it")
    ask(qwen, command="make")
    assert qwen.channel.answer("r-1", Answer(answer=DENY, by="me", via="cli", reason=reason))
    decided(qwen, False)
    qwen.hook("Notification", notification_type="idle_prompt")
    wait_until(lambda: len(commands(qwen)) == 2)


def test_a_denied_qwen_gets_the_reason_in_its_turn(qwen):
    deny(qwen, "not here")
    assert commands(qwen)[1] == {"type": "submit", "text": "The user denied this: not here"}
    qwen.hook("UserPromptSubmit", prompt="The user denied this: not here")
    assert len(qwen.all(TurnStarted)) == 1
    assert qwen.ends() == []


def test_a_prompt_of_a_person_that_contains_the_reason_is_a_turn_of_their_own(qwen):
    deny(qwen, "no")
    qwen.hook("UserPromptSubmit", prompt="do nothing more")
    assert [each.prompt for each in qwen.all(TurnStarted)] == ["do it", "do nothing more"]


def test_a_failure_of_the_model_service_is_the_reason_of_qwen(qwen):
    qwen.hook("SessionStart", source="startup")
    qwen.hook("UserPromptSubmit", prompt="do it")
    qwen.hook("StopFailure", error="authentication_failed", last_assistant_message="[API Error: 401 wrong key]")
    qwen.hook("Notification", notification_type="idle_prompt")
    assert qwen.ends() == [("1", FAILED)]
    assert "401 wrong key" in qwen.all(TurnEnded)[0].why


def test_events_of_qwen_of_an_unknown_form_mean_nothing(qwen):
    for message in (
        {},
        {"type": "control_request"},
        {"type": "control_response", "response": 7},
        {"type": "assistant"},
    ):
        event(qwen, **message)
    assert qwen.heard == []


def test_the_users_defaults_of_qwen_are_kept(tmp_path, monkeypatch):
    (tmp_path / "own.json").write_text('{"ui": {"theme": "x"}, "hooks": {"Stop": [{"hooks": []}]}}')
    monkeypatch.setattr("baton.channels.qwen_hooks.system_defaults", lambda _: str(tmp_path / "own.json"))
    session = Session(QwenHooks, Qwen(), tmp_path)
    session.channel.close()
    written = json.loads(session.setup.files["qwen-defaults.json"])
    assert written["ui"] == {"theme": "x"}
    assert len(written["hooks"]["Stop"]) == 2
    assert session.setup.environment["QWEN_CODE_SYSTEM_DEFAULTS_PATH"].endswith("/qwen-defaults.json")


def test_an_error_that_qwen_gives_as_its_answer_is_no_success(qwen):
    qwen.hook("SessionStart", source="startup")
    qwen.hook("UserPromptSubmit", prompt="do it")
    qwen.hook("Stop", last_assistant_message="[API Error: 401 wrong key]")
    (ended,) = qwen.all(TurnEnded)
    assert (ended.how, ended.why) == (FAILED, "[API Error: 401 wrong key]")
