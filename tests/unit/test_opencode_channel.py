"""How baton talks with opencode's server: a stand-in for the program answers as the server does."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from queue import SimpleQueue

import pytest

from baton.adapters.contract import Mode, Task
from baton.adapters.opencode import Opencode
from baton.channels.find import find_channel
from baton.channels.http_client import HttpFailed, Server
from baton.core.errors import AgentUnusable
from baton.core.request import Answer
from baton.core.signal import (
    ALLOW,
    DENY,
    FAILED,
    WELL,
    Asked,
    Conversation,
    Settled,
    ToolEnded,
    TurnEnded,
    TurnStarted,
    Usage,
)
from baton.sessions.processes import started_at
from support import opencode_program
from support.waiting import poll


class StandIn(Opencode):
    def serve_command(self):
        return [sys.executable, opencode_program.__file__, *super().serve_command()[1:]]


class World:
    """A channel and its stand-in. `heard` are the signals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list = []
        self.channel = None
        self.setup = None
        self.screen = None

    def open(self, prompt=None, *, mode=Mode.HEADLESS, yolo=False, resume=False, workdir="", **environment):
        task = Task(
            mode=mode, prompt=prompt, conversation_id=opencode_program.SESSION if resume else None, resume=resume,
            yolo=yolo, folder=str(self.folder), workdir=str(self.folder / workdir), hook=[],
            environment={"PATH": os.environ["PATH"], "HOME": str(self.folder), **environment},
        )  # fmt: skip
        self.channel = find_channel(StandIn(), task)
        self.setup = self.channel.open(lambda heard: self.heard.append(heard.signal))
        return self

    def until(self, kind, count=1):
        """The signals of a kind, once there are so many."""
        found = poll(lambda: found if len(found := self.of(kind)) >= count else None, 10, interval_sec=0.01)
        assert found, self.heard
        return found

    def of(self, kind):
        return [each for each in list(self.heard) if isinstance(each, kind)]

    def requests(self):
        path = self.folder / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def posted(self, end):
        return [given for method, path, given in self.requests() if method == "POST" and path.endswith(end)]

    def connect_screen(self):
        """Connect to the server as the program in the pane does."""
        self.screen = socket.create_connection(("127.0.0.1", self.channel._process.server.port))
        return self

    @property
    def server_pid(self):
        return self.channel._process._child.pid


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    if world.screen is not None:
        world.screen.close()
    if world.channel is not None:
        pid = world.server_pid if world.channel._process is not None else None
        world.channel.close()
        assert pid is None or started_at(pid) is None
        assert world.channel._threads == 0


def allow():
    return Answer(answer=ALLOW, by="me", via="cli")


def server_of_a_tool(world) -> Server:
    """The server as a program reaches it that a tool has started: the password is in its environment."""
    with open(f"/proc/{world.server_pid}/environ", encoding="utf-8") as file:
        password = dict(line.split("=", 1) for line in file.read().split("\0") if line)["OPENCODE_SERVER_PASSWORD"]
    return Server(world.channel._process.server.port, "opencode", password)


def test_without_a_screen_a_program_of_the_agent_that_answers_ends_the_work(world):
    world.open("ask it")
    (asked,) = world.until(Asked)
    server_of_a_tool(world).call("POST", f"/permission/{asked.key}/reply", {"reply": "once"}, within_sec=5)
    (ended,) = world.until(TurnEnded)
    assert ended.how == FAILED
    assert "a program of the agent has answered its question (bash)" in ended.why
    (settled,) = world.until(Settled)
    assert (settled.decision, settled.by) == (ALLOW, "a program of the agent")
    assert world.channel.is_over
    assert not world.channel.answer(asked.key, allow())


def test_a_program_of_the_agent_that_is_faster_than_a_denial_ends_the_work(world, monkeypatch):
    world.open("ask it")
    (asked,) = world.until(Asked)
    server, sent = server_of_a_tool(world), world.channel._requests
    monkeypatch.setattr(world.channel, "_requests", SimpleQueue())  # the denial is on its way
    assert world.channel.answer(asked.key, Answer(answer=DENY, by="me", via="cli"))
    world.channel._requests = sent
    server.call("POST", f"/permission/{asked.key}/reply", {"reply": "once"}, within_sec=5)
    (ended,) = world.until(TurnEnded)
    assert (ended.how, world.channel.is_over) == (FAILED, True)


def test_on_the_terminal_an_answer_elsewhere_is_no_answer_of_the_user(world):
    """Its screen answers by the same server: baton cannot tell whether a person did, and names the agent."""
    world.open("ask it", mode=Mode.INTERACTIVE).connect_screen()
    (asked,) = world.until(Asked)
    server_of_a_tool(world).call("POST", f"/permission/{asked.key}/reply", {"reply": "once"}, within_sec=5)
    (ended,) = world.until(TurnEnded)
    assert ended.how == WELL
    assert [each.by for each in world.until(Settled)] == ["user_temporary"]


def test_a_prompt_is_worked_on_and_its_end_is_heard(world):
    world.open("say it")
    (ended,) = world.until(TurnEnded)
    (began,) = world.of(TurnStarted)
    assert (began.prompt, ended.turn, ended.how, ended.message) == ("say it", began.turn, WELL, "Done.")
    assert world.of(Conversation) == [Conversation(conversation_id=opencode_program.SESSION)]
    assert [(each.input_tokens, each.output_tokens, each.cost_usd) for each in world.of(Usage)] == [(10, 5, 0.25)]
    assert world.channel.take_text() == "Done.\n"
    assert world.posted("prompt_async") == [{"parts": [{"type": "text", "text": "say it"}]}]


def test_the_prompt_waits_for_the_screen(world):
    """opencode's screen does not show a question that was asked before it was connected."""
    world.open("say it", mode=Mode.INTERACTIVE)
    assert not poll(lambda: world.posted("prompt_async"), 0.6, interval_sec=0.05)
    world.connect_screen()
    world.until(TurnEnded)
    assert len(world.posted("prompt_async")) == 1


def test_a_permission_is_answered_once(world):
    world.open("ask it")
    (asked,) = world.until(Asked)
    assert (asked.call, asked.exact) == (opencode_program.CALL, True)
    assert world.channel.answer(asked.key, allow()) is True
    assert world.channel.answer(asked.key, allow()) is False
    (ended,) = world.until(TurnEnded)
    assert ended.how == WELL
    assert [(each.key, each.decision) for each in world.of(Settled)] == [(asked.key, ALLOW)]
    assert world.posted("/reply") == [{"reply": "once"}]


def test_a_denial_has_its_reason(world):
    world.open("ask it")
    (asked,) = world.until(Asked)
    world.channel.answer(asked.key, Answer(answer=DENY, by="me", via="cli", reason="not now"))
    world.until(TurnEnded)
    assert world.posted("/reply") == [{"reply": "reject", "message": "not now"}]
    assert [each.ok for each in world.of(ToolEnded)] == [False]


def test_an_answer_to_an_unknown_question_is_not_given(world):
    world.open()
    assert world.channel.answer("per_9", allow()) is False


def test_a_question_without_a_screen_is_refused_when_its_job_has_ended(world):
    world.open("ask it")
    (asked,) = world.until(Asked)
    world.channel.release(asked.key)
    world.until(TurnEnded)
    assert [each["reply"] for each in world.posted("/reply")] == ["reject"]


def test_a_question_on_the_terminal_is_left_to_its_screen(world):
    world.open("ask it", mode=Mode.INTERACTIVE).connect_screen()
    (asked,) = world.until(Asked)
    world.channel.release(asked.key)
    assert world.channel.answer(asked.key, allow()) is True


def test_yolo_allows_what_is_asked(world):
    world.open("ask it", yolo=True)
    (ended,) = world.until(TurnEnded)
    assert ended.how == WELL
    assert world.of(Asked) == []
    assert world.posted("/reply") == [{"reply": "once"}]
    assert "OPENCODE_PERMISSION" not in environment_of(world)


def test_after_a_lost_connection_what_is_pending_is_read_again(world):
    world.open("drop it")
    (asked,) = world.until(Asked)
    assert asked.exact
    world.channel.answer(asked.key, allow())
    (ended,) = world.until(TurnEnded)
    assert ended.how == WELL
    assert len(world.of(Asked)) == 1
    assert world.channel.facts()["connections that were lost"] == 1


def test_a_failure_of_the_service_is_no_success(world):
    world.open("fail at it")
    (ended,) = world.until(TurnEnded)
    assert (ended.how, ended.why) == (FAILED, "the model service answered 401: wrong key")


def test_a_further_prompt_continues_the_turn(world):
    world.open("say it")
    (first,) = world.until(TurnEnded)
    assert world.channel.say("and again") is True
    _, second = world.until(TurnEnded, 2)
    assert (second.turn, second.how) == (first.turn, WELL)
    assert len(world.of(TurnStarted)) == 1


def test_the_output_of_each_turn_is_kept(world):
    world.open("say it")
    world.until(TurnEnded)
    assert world.channel.take_text() == "Done.\n"
    world.channel.say("and again")
    world.until(TurnEnded, 2)
    assert world.channel.take_text() == "Done.\n"


def test_the_screen_of_opencode_shows_its_output_and_nothing_is_kept(world):
    world.open("say it", mode=Mode.INTERACTIVE).connect_screen()
    world.until(TurnEnded)
    assert (world.channel._text, world.channel.take_text()) == ([], "")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_reader_that_fails_fails_the_turn(world, monkeypatch):
    """Without a reader nothing would say that the turn is over."""
    world.open("slow work")
    world.until(TurnStarted)
    monkeypatch.setattr(world.channel._events, "tick", lambda: 1 / 0)
    (ended,) = world.until(TurnEnded)
    assert (ended.how, ended.why) == (FAILED, "baton can no longer talk with opencode's server")
    assert poll(lambda: world.channel.is_over, 5)


def test_the_end_of_the_server_fails_the_turn_with_its_last_words(world):
    world.open("die now")
    (ended,) = world.until(TurnEnded)
    assert (ended.how, ended.why) == (FAILED, "opencode's server ended with exit code 3: out of memory")
    assert poll(lambda: world.channel.is_over, 5)
    assert world.channel.say("again") is False


def test_what_the_end_of_the_server_means_is_heard_before_the_channel_is_over(world):
    """The runner ends the program in the pane then, which may take seconds: the end of the job does not wait for that."""
    world.open("ask it")
    world.until(Asked)
    world.channel._hear = lambda heard: world.heard.append((heard.signal, world.channel.is_over))
    os.kill(world.server_pid, signal.SIGKILL)
    assert poll(lambda: world.channel.is_over, 10)
    assert [is_over for signal, is_over in world.of(tuple) if isinstance(signal, TurnEnded)] == [False]


def test_a_server_that_is_killed_while_it_asks_settles_the_question(world):
    world.open("ask it")
    (asked,) = world.until(Asked)
    os.kill(world.server_pid, signal.SIGKILL)
    (ended,) = world.until(TurnEnded)
    assert (ended.how, ended.why) == (FAILED, "opencode's server was ended by signal 9")
    assert [(each.key, each.decision) for each in world.of(Settled)] == [(asked.key, None)]
    assert world.channel.answer(asked.key, allow()) is False


def test_a_program_that_does_not_start_is_refused_with_its_words(world):
    with pytest.raises(AgentUnusable, match="exit code 2: no such option"):
        world.open("say it", BROKEN="1")


def test_a_conversation_that_is_continued_begins_no_old_turn(world):
    world.open("say it", resume=True)
    (began,) = world.until(TurnStarted)
    assert began.prompt == "say it"
    assert world.posted("/session") == []


def test_the_pane_shows_the_session_and_the_password_is_only_in_the_environment(world):
    world.open(mode=Mode.INTERACTIVE, NO_PROXY="example.org")
    argv, variables = world.setup.argv, world.setup.environment
    password = variables["OPENCODE_SERVER_PASSWORD"]
    url = f"http://127.0.0.1:{world.channel._process.server.port}"
    assert argv == ("opencode", "attach", url, "--session", opencode_program.SESSION, "--dir", str(world.folder))
    assert variables["NO_PROXY"] == "example.org,127.0.0.1"
    assert password not in Path(f"/proc/{world.server_pid}/cmdline").read_text()
    assert password not in (world.folder / "opencode-server.log").read_text()
    assert (world.folder / "opencode-server.log").stat().st_mode & 0o777 == 0o600
    with pytest.raises(HttpFailed, match="401"):
        Server(world.channel._process.server.port, "opencode", "guess").call("GET", "/config", within_sec=5)


def test_a_headless_program_ends_with_its_input(world):
    world.open()
    assert world.setup.argv == ("cat",)
    output, stdin = os.pipe()
    world.channel.attach(stdin, None)
    world.channel.finish()
    assert os.read(output, 10) == b""
    os.close(output)


# -- permissions ---------------------------------------------------------------------------------------------------------


def environment_of(world):
    found = Path(f"/proc/{world.server_pid}/environ").read_bytes().split(b"\0")
    return dict(each.decode().partition("=")[::2] for each in found if each)


def test_without_permissions_of_the_user_opencode_asks(world):
    world.open()
    asks = json.loads(environment_of(world)["OPENCODE_PERMISSION"])
    assert set(asks.values()) == {"ask"}
    assert {"bash*", "edit*"} <= asks.keys()


@pytest.mark.parametrize("where", ["file", "elsewhere"])
def test_permissions_of_the_user_are_not_replaced(world, where):
    """Those of a file are seen before the server starts; others only in the configuration that it has read."""
    if where == "file":
        folder = world.folder / ".config" / "opencode"
        folder.mkdir(parents=True)
        (folder / "opencode.jsonc").write_text('{"permission": {"bash": "deny"}} // mine')
    world.open("say it", USERS_PERMISSION='{"bash": "deny"}')
    assert "OPENCODE_PERMISSION" not in environment_of(world)
    starts = [path for _, path, _ in world.requests() if path == "/config"]
    assert len(starts) == 1  # it is asked once, by the first server
    assert world.until(TurnEnded)[0].how == WELL


def test_a_word_in_a_file_is_no_permission(world):
    (world.folder / ".opencode").mkdir()
    text = '{"instructions": ["say \\"permission\\""]} // "permission"'
    (world.folder / ".opencode" / "opencode.json").write_text(text)
    world.open()
    assert "OPENCODE_PERMISSION" in environment_of(world)


def test_a_configuration_of_an_unknown_shape_takes_no_question_away(world):
    world.open(CONFIG="[]")
    assert "OPENCODE_PERMISSION" in environment_of(world)


def test_permissions_in_the_users_environment_stay(world):
    given = '{"bash": "deny"}'
    world.open(OPENCODE_PERMISSION=given)
    assert environment_of(world)["OPENCODE_PERMISSION"] == given


IGNORES_FOLDER = "OPENCODE_DISABLE_PROJECT_CONFIG"


@pytest.fixture
def cloned(world):
    """A repository that brings configuration for opencode; the job works in a folder of it."""
    (world.folder / "clone" / ".git").mkdir(parents=True)
    (world.folder / "clone" / "sub").mkdir()
    (world.folder / "clone" / "opencode.json").write_text('{"permission": "allow"}')
    return world


def test_a_cloned_folder_does_not_configure_opencode(cloned):
    cloned.open(workdir="clone/sub")
    found = environment_of(cloned)
    assert found[IGNORES_FOLDER] == "1"
    assert "OPENCODE_PERMISSION" in found
    assert cloned.setup.environment[IGNORES_FOLDER] == "1"  # the program in the pane runs plugins, too
    instructions = [str(cloned.folder / "clone" / each) for each in ("sub/AGENTS.md", "AGENTS.md")]
    assert json.loads(found["OPENCODE_CONFIG_CONTENT"]) == {"instructions": instructions}
    assert cloned.channel.facts() == {"the folder's own configuration of opencode": "not read"}


@pytest.mark.parametrize("name", [".opencode", "opencode.jsonc", "tui.json"])
def test_everything_that_configures_opencode_in_a_folder_counts(world, name):
    (world.folder / "clone").mkdir()
    (world.folder / "clone" / name).symlink_to("/nowhere")
    world.open(workdir="clone", OPENCODE_CONFIG_CONTENT='{"model": "mine"}')
    found = environment_of(world)
    assert (found[IGNORES_FOLDER], found["OPENCODE_CONFIG_CONTENT"]) == ("1", '{"model": "mine"}')


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".opencode/plugin/a.js", ""),
        (".opencode/plugins/a.ts", ""),
        ("opencode.json", '{"plugin": ["./a.js"]}'),
        (".opencode/opencode.jsonc", '{"\\u0070lugins": ["./a.js"]}'),
        ("opencode.jsonc", "{}" + " " * (1 << 20) + '{"plugin": ["./a.js"]}'),
    ],
    ids=["folder", "plural", "named", "escaped", "long"],
)
def test_a_cloned_folder_with_plugins_is_refused(cloned, name, content):
    """opencode runs them whatever its environment says (`tests/agents/test_opencode.py`)."""
    path = cloned.folder / "clone" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    with pytest.raises(AgentUnusable, match="would run the plugins of this folder"):
        cloned.open(workdir="clone/sub", OPENCODE_DISABLE_PROJECT_CONFIG="1")
    assert cloned.channel is None


@pytest.mark.parametrize("given", [{"yolo": True}, {IGNORES_FOLDER: "false"}])
def test_the_user_can_let_a_folder_configure_opencode(cloned, given):
    (cloned.folder / "clone" / ".opencode" / "plugin").mkdir(parents=True)
    cloned.open(workdir="clone", **given)
    found = environment_of(cloned)
    assert (found.get(IGNORES_FOLDER), "OPENCODE_CONFIG_CONTENT" in found) == (given.get(IGNORES_FOLDER), False)


def test_the_users_home_is_no_cloned_folder(world):
    (world.folder / "opencode.json").write_text("{}")
    (world.folder / ".opencode").mkdir()
    (world.folder / "work").mkdir()
    world.open(workdir="work")
    assert IGNORES_FOLDER not in environment_of(world)
