"""The record of a session, as the inventory stores it."""

from __future__ import annotations

import json
import os

import pytest

from baton.adapters.contract import Mode
from baton.config import machine_of, process_domain
from baton.sessions.processes import ProcessId
from baton.sessions.session import Session, State

STORED = {
    "name": "gpu", "session_id": "0" * 16, "state": "running", "agent": "shell", "mode": "headless", "workdir": "/w",
    "yolo": False, "conversation_id": None, "made_for": None, "job_id": None, "reason": None, "exit": None,
    "created_at": "2026-07-01T00:00:00Z", "updated_at": "2026-07-01T00:00:00Z", "ended_at": None, "ending": "enough",
    "stopper": "12/34", "agent_name": "AGENTSYS-gpu", "agent_id": "a", "generation_id": "g", "host": "here",
    "socket": "/s", "pane_id": "%1", "pane_pid": 12, "pane_started": 34,
}  # fmt: skip


def test_the_stored_form_is_the_one_of_0_1_0():
    session = Session.parse(STORED)
    assert session.stop_requested == "enough"
    assert (session.state, session.mode) == (State.RUNNING, Mode.HEADLESS)
    later = [("machine", None), ("parent", None), ("domain", None)]
    assert list(json.loads(json.dumps(session.record())).items()) == [*STORED.items(), *later], "in this order"


def test_fields_of_a_later_version_are_ignored_and_missing_ones_are_empty():
    less = {name: value for name, value in STORED.items() if name != "stopper"}
    assert Session.parse(less | {"colour": "blue"}) == Session.parse(STORED).replace(stopper=None)


def test_a_session_that_is_being_created_has_no_runner():
    assert Session.parse(STORED | {"pane_pid": None, "pane_started": None}).runner() is None
    assert not Session.parse(STORED | {"pane_started": None}).has_live_runner()


DEAD = STORED | {"pane_pid": os.getpid(), "pane_started": 1, "stopper": None, "domain": process_domain()}


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, True),
        ({"pane_started": ProcessId.current().started}, False),
        ({"state": "terminated"}, False),
        ({"pane_pid": None}, False),
        ({"stopper": "12/34"}, True),
        ({"stopper": str(ProcessId.current())}, False),  # it says itself how the session ended
        ({"domain": "another-machine/4026531836"}, False),
        ({"domain": f"{process_domain()}1"}, False),
        ({"domain": None}, False),
        ({"domain": None, "machine": "another"}, False),
        ({"domain": None, "machine": machine_of(os.uname().nodename)}, True),
    ],
)
def test_a_session_is_lost_only_where_that_is_certain(changes, lost):
    assert Session.parse(DEAD | changes).is_lost() is lost
