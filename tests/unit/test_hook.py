"""A hook never troubles the agent, and what went wrong is in its log."""

from __future__ import annotations

import io
import json

import pytest

from baton.channels.gateway import Gateway
from baton.cli.hook import run

STOP = json.dumps({"hook_event_name": "Stop", "session_id": "c", "last_assistant_message": "done"})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BATON_SESSION_DIR", str(tmp_path))
    return tmp_path


def test_a_message_is_passed_to_the_runner_and_its_answer_printed(folder, capsys, monkeypatch):
    heard = []

    def receive(exchange):
        heard.append(json.loads(exchange.body))
        exchange.reply(b'{"decision": "block"}')

    gateway = Gateway(("/hook",), receive, lambda _exchange: None)
    gateway.listen_in_folder(str(folder))
    gateway.start()
    try:
        assert run(["claude-code", STOP]) == 0
        monkeypatch.setattr("sys.stdin", io.StringIO(STOP))
        assert run(["claude-code"]) == 0
    finally:
        gateway.close()
    assert heard == [json.loads(STOP)] * 2
    assert capsys.readouterr().out == '{"decision": "block"}' * 2


def test_without_a_runner_nothing_is_printed(folder, capsys):
    assert run(["claude-code", STOP]) == 0
    assert capsys.readouterr().out == ""
    assert list(folder.iterdir()) == []


def test_what_goes_wrong_is_noted(folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert run(["claude-code"]) == 0
    noted = [json.loads(line)["error"] for line in (folder / "hook.log").read_text().splitlines()]
    assert [line.partition(":")[0] for line in noted] == ["AttributeError"]


def test_an_agent_that_is_not_ours_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATON_SESSION_DIR", raising=False)
    assert run(["claude-code", "{"]) == 0
    assert list(tmp_path.iterdir()) == []
