"""The boards and real sessions: the screen of an agent, messages, cancel and retry."""

from __future__ import annotations

import pytest

from baton.board import actions, details
from baton.board.query import Board
from baton.core.errors import BatonError
from baton.sessions.tmux import Tmux
from support.office import Office
from support.waiting import wait_until

_WORK = "echo ready; read line; echo got-$line; sleep 300"


@pytest.fixture
def office(tmp_path, monkeypatch):
    with Office(tmp_path) as office:
        for name, value in office.env.items():
            monkeypatch.setenv(name, value)
        yield office


def test_a_board_shows_types_into_cancels_and_retries_a_real_session(office, monkeypatch):
    job_id = office.detached(_WORK)
    board = Board(office.settings)
    calls = []
    call = Tmux._call

    def counted(self, argv, stdin=b""):
        calls.append(argv)
        return call(self, argv, stdin)

    monkeypatch.setattr(Tmux, "_call", counted)
    wait_until(lambda: board.refresh() is not None and board.cards and board.cards[0].state == "working", "it works")
    assert calls == []  # the list asks tmux for nothing
    settings = board.settings_for(board.cards[0].key)
    wait_until(lambda: "ready" in details.view(settings, job_id).text, "the screen")
    calls.clear()
    shown = details.view(settings, job_id)
    assert shown.kind == "screen"
    assert len(calls) == 1
    assert "typed into" in actions.message(settings, job_id, "hello", via="web")
    wait_until(lambda: "got-hello" in details.view(settings, job_id).text, "the message")
    with pytest.raises(BatonError, match="two agents"):
        actions.retry(settings, job_id, via="web")
    assert actions.cancel(settings, job_id, via="web").status == "cancelled"
    wait_until(lambda: "got-hello" in details.view(settings, job_id).text, "the output that is kept")
    assert details.view(settings, job_id).kind == "output"
    again = actions.retry(settings, job_id, via="web")
    assert again.retry_of == job_id
    actions_of = [line["action"] for line in details.history(settings, job_id) if line["event"] == "action"]
    assert actions_of == ["message", "cancel", f"retry as {again.job_id}"]
    wait_until(lambda: "ready" in details.view(settings, again.job_id).text, "the new session")
    actions.cancel(settings, again.job_id, via="web")
    board.close()
