"""The channel that owns Codex's app-server, with a stand-in for the server."""

from __future__ import annotations

import json
import os
import sys

import pytest

from baton.adapters.codex import Codex
from baton.adapters.contract import Mode, Task
from baton.channels import codex_server
from baton.channels.codex_server import CodexServer
from baton.core.errors import AgentUnusable
from baton.core.request import Answer
from baton.core.signal import FAILED, WELL, Asked, Conversation, Settled, TurnEnded
from support import codex_server as stand_in
from support.waiting import poll


class Stage:
    """A channel and what it said. `sent` is what the server got."""

    def __init__(self, folder, monkeypatch) -> None:
        self.folder = folder
        self.heard = []
        tools = folder / "bin"
        tools.mkdir()
        (tools / "codex").write_text(
            f"#!{sys.executable}\nimport runpy\nrunpy.run_path({stand_in.__file__!r}, run_name='__main__')\n"
        )
        (tools / "codex").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        self.environment = dict(os.environ) | {"CODEX_STAND_IN": str(folder), "HOME": str(folder)}
        self.channels: list[CodexServer] = []

    def channel(self, prompt="ask", folder=None, **environment):
        task = Task(
            mode=Mode.INTERACTIVE, prompt=prompt, conversation_id=None, resume=False, yolo=False,
            folder=str(folder or self.folder), workdir=str(self.folder), hook=[],
            environment=self.environment | environment,
        )  # fmt: skip
        channel = CodexServer(Codex(), task)
        self.channels.append(channel)
        return channel

    def hear(self, heard):
        self.heard.append(heard.signal)

    def until(self, kind, count=1):
        """Return the signals of this kind, once there are so many."""
        found = poll(lambda: (found := self.of(kind)) if len(self.of(kind)) >= count else None, 10)
        assert found, self.heard
        return self.of(kind)

    def of(self, kind):
        return [each for each in self.heard if isinstance(each, kind)]

    @property
    def sent(self):
        return [json.loads(line) for line in (self.folder / "sent").read_text().splitlines()]


@pytest.fixture
def stage(tmp_path, monkeypatch):
    stage = Stage(tmp_path, monkeypatch)
    yield stage
    for channel in stage.channels:
        channel.close()


ALLOWED = Answer(answer="allow", by="me", via="cli")


def test_the_server_is_begun_and_the_pane_shows_its_conversation(stage):
    channel = stage.channel()
    setup = channel.open(stage.hear)
    address = setup.argv[2]
    path = address.removeprefix("unix://")
    assert setup.argv == ("codex", "--remote", address, "resume", stand_in.THREAD)
    assert os.path.islink(path)
    assert len(path) <= 107
    assert stage.of(Conversation) == [Conversation(conversation_id=stand_in.THREAD)]
    (asked,) = stage.until(Asked)
    assert channel.answer(asked.key, ALLOWED)
    assert [each.how for each in stage.until(TurnEnded)] == [WELL]
    assert [each.decision for each in stage.of(Settled)] == ["allow"]
    assert channel.take_text() == f"shell: ls\n{stand_in.MESSAGE}\n"
    assert channel.take_text() == ""
    channel.close()
    stage.channels.clear()
    assert not os.path.lexists(path)
    assert not channel._server.is_alive()


def test_a_socket_with_a_long_path_gets_a_short_one(stage):
    folder = stage.folder / ("x" * 100)
    folder.mkdir()
    channel = stage.channel(folder=folder)
    path = channel.open(stage.hear).argv[2].removeprefix("unix://")
    assert len(path) <= 107
    assert os.path.realpath(os.path.dirname(path)) == str(folder)  # a killed runner leaves nothing anywhere else
    channel.close()
    stage.channels.clear()
    assert not os.path.lexists(folder / os.path.basename(path))
    assert not os.path.exists(os.path.dirname(path))


def test_after_a_lost_connection_the_same_question_is_open(stage):
    channel = stage.channel("drop")
    channel.open(stage.hear)
    assert poll(lambda: channel.facts().get("connections") == 2, 10)
    assert poll(lambda: [each["method"] for each in stage.sent if "method" in each].count("thread/turns/list"), 10)
    (asked,) = stage.until(Asked)
    assert channel.answer(asked.key, ALLOWED)
    assert [each.how for each in stage.until(TurnEnded)] == [WELL]
    assert len(stage.of(Asked)) == 1
    # Once more, if the server asked again while the answer was on its way.
    results = [each["result"] for each in stage.sent if "result" in each]
    assert results in ([{"decision": "accept"}], [{"decision": "accept"}] * 2)


def test_a_server_that_dies_ends_the_turn(stage):
    channel = stage.channel()
    channel.open(stage.hear)
    (asked,) = stage.until(Asked)
    channel._server._child.kill()
    (end,) = stage.until(TurnEnded)
    assert (end.how, end.why) == (FAILED, "Codex's server was ended by signal 9")
    assert poll(lambda: channel.is_over, 5)
    assert not channel.answer(asked.key, ALLOWED)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_reader_that_fails_fails_the_turn(stage, monkeypatch):
    """Without a reader nothing would say that the turn is over."""
    channel = stage.channel()
    channel.open(stage.hear)
    stage.until(Asked)
    monkeypatch.setattr(channel._protocol.questions, "tick", lambda: 1 / 0)
    (end,) = stage.until(TurnEnded)
    assert (end.how, end.why) == (FAILED, "baton can no longer talk with Codex's server")
    assert channel.is_over


@pytest.mark.parametrize(
    ("prompt", "environment", "why"),
    [
        ("die", {}, "codex did not begin: Codex's server was ended by signal 9"),
        (
            "ask",
            {"CODEX_STAND_IN_FAILS": "1"},
            "codex did not begin: Codex's server ended with exit code 1: the settings",
        ),
    ],
)
def test_a_server_that_does_not_begin_says_why(stage, prompt, environment, why):
    with pytest.raises(AgentUnusable, match=why):
        stage.channel(prompt, **environment).open(stage.hear)


def test_a_server_of_another_user_is_not_spoken_to(stage, monkeypatch):
    another = os.getuid() + 1
    monkeypatch.setattr(codex_server.os, "getuid", lambda: another)
    with pytest.raises(AgentUnusable, match="another user listens there"):
        stage.channel().open(stage.hear)
    assert not (stage.folder / "sent").exists()
