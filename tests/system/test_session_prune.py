"""`baton session prune`: what ended long ago is forgotten, and nothing else."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing

import pytest

from baton.adapters.contract import Mode
from baton.core.clock import format_time
from baton.sessions.inventory import Inventory
from baton.sessions.processes import started_at
from baton.sessions.session import Session, State
from baton.storage.files import make_private_dir
from support.homes import settings_in
from support.memory import folder_in_memory

DAY_NS = 86400 * 10**9


class Shelf:
    """An inventory with sessions in it that never were."""

    def __init__(self, desk, **env):
        self.desk = desk
        self.inventory = Inventory(settings_in(desk.folder, desk.env | env))

    def session(self, name, state=State.TERMINATED, days_ago=40, **fields):
        then = format_time(time.time_ns() - days_ago * DAY_NS)
        told = {
            "name": name, "session_id": os.urandom(8).hex(), "state": state, "agent": "shell", "mode": Mode.INTERACTIVE,
            "workdir": "/w", "yolo": False, "host": "here", "created_at": then, "updated_at": then, "ended_at": then,
            "agent_name": f"HOUMAO-{name}", "agent_id": "a", "generation_id": "g", "socket": "baton",
        }  # fmt: skip
        return Session(**dict.fromkeys(Session.fields()) | told | fields)

    def add(self, name, *args, **fields):
        session = self.session(name, *args, **fields)
        self.inventory.add(session)
        self.folder(session.session_id)
        return session

    def folder(self, session_id, days_ago=40, manifest=None):
        folder = os.path.join(self.inventory.home, "sessions", session_id)
        make_private_dir(folder)
        with open(os.path.join(folder, "manifest.json" if manifest else "exit.json"), "w") as file:
            json.dump(manifest or {}, file)
        then = time.time_ns() - days_ago * DAY_NS
        os.utime(folder, ns=(then, then))
        return folder

    def names(self):
        return [session.name for session in self.inventory.all()]

    def folders(self):
        return set(os.listdir(os.path.join(self.inventory.home, "sessions")))

    def prune(self, *more, **settings):
        return self.desk("session", "prune", *more, **settings)


@pytest.fixture
def shelf(desk):
    return Shelf(desk)


def test_what_ended_long_ago_is_forgotten_with_its_folder_and_the_rest_stays(desk, shelf):
    running = desk.create("running")
    desk.create("fresh")
    desk("session", "stop", "fresh")
    archive = os.path.join(desk.home, "agent-sessions.yaml")
    with open(archive) as file:
        read = file.read()
    shelf.add("old")
    shelf.add("old-stopped", State.STOPPED)
    shelf.add("old-archived", State.ARCHIVED)
    young = shelf.add("young", days_ago=29)
    started_long_ago = shelf.add("at-work", State.RUNNING)

    told = shelf.prune("--dry-run")
    assert [line.split("\t")[:2] for line in told.out.splitlines()] == [
        ["would remove", "old"], ["would remove", "old-archived"], ["would remove", "old-stopped"],
    ]  # fmt: skip
    assert len(shelf.names()) == len(shelf.folders()) == 7

    told = shelf.prune()
    assert told.text == f"removed 3 sessions; their archive stays in {os.path.realpath(desk.home)}"
    assert told.err == ""
    assert shelf.names() == ["at-work", "fresh", "running", "young"]
    kept = {each["session_id"] for each in (running, desk.show("fresh"))}
    assert shelf.folders() == kept | {young.session_id, started_long_ago.session_id}
    with open(archive) as file:
        assert file.read() == read
    assert shelf.prune("--older-than", "7d", "--json").json == [
        {"session_id": young.session_id, "name": "young", "verdict": "ended"}
    ]


def test_one_that_could_be_resumed_is_kept_unless_asked_for(shelf):
    shelf.add("gpu", State.STOPPED, conversation_id="c-1")
    shelf.add("cpu", State.TERMINATED, conversation_id="c-2")
    told = shelf.prune()
    assert told.text.startswith("removed 1 session;")
    assert told.err == "kept 1 that can be resumed; --stopped removes them too\n"
    assert shelf.names() == ["gpu"]
    assert [each["verdict"] for each in shelf.prune("--json").json] == ["resumable"]
    assert shelf.prune("--stopped").err == ""
    assert (shelf.names(), shelf.folders()) == ([], set())


def test_one_that_was_let_go_of_stays_as_long_as_its_process_lives(desk, shelf):
    session = desk.create("gpu")
    desk("session", "stop", "gpu", "--mode", "soft")
    told = shelf.prune("--older-than", "0d", "--stopped")
    assert told.text.startswith("removed 0 sessions")
    assert told.err == "kept 1 whose process is alive, or cannot be checked from this host\n"
    assert desk.state("gpu") == "archived"
    shelf.add("elsewhere", State.ARCHIVED, host="there")
    shelf.add("ended-elsewhere", host="there")
    assert shelf.prune().err == "kept 1 whose process is alive, or cannot be checked from this host\n"
    assert shelf.names() == ["elsewhere", "gpu"]
    assert session["session_id"] in shelf.folders()


def test_old_folders_of_no_session_go_too(shelf):
    me = {"schema_version": 1, "agent_name": "HOUMAO-x", "agent_id": "x", "generation_id": "g", "backend": "tmux",
          "tool": "shell", "session_name": "x", "host": "here", "pane_pid": os.getpid()}  # fmt: skip
    gone = me | {"pane_pid": os.getpid(), "pane_started": started_at(os.getpid()) - 1}
    shelf.folder("0" * 16)
    shelf.folder("1" * 16, manifest=gone)
    shelf.folder("2" * 16, manifest=me | {"pane_started": started_at(os.getpid())})
    shelf.folder("3" * 16, manifest=gone | {"host": "there"})
    shelf.folder("4" * 16, days_ago=3)
    shelf.folder("mine")
    os.symlink("/tmp", os.path.join(shelf.desk.home, "sessions", "5" * 16))
    told = shelf.prune()
    assert told.text.startswith("removed 0 sessions, and 2 folders without a session;")
    assert told.err == "kept 2 whose process is alive, or cannot be checked from this host\n"
    assert shelf.folders() == {"2" * 16, "3" * 16, "4" * 16, "5" * 16, "mine"}


def test_one_that_is_resumed_at_this_moment_is_not_forgotten(shelf):
    session = shelf.add("gpu")
    shelf.inventory.change(session, lambda current: current.replace(state=State.RUNNING))
    assert shelf.inventory.forget([session]) == []
    assert shelf.names() == ["gpu"]


def test_a_folder_that_cannot_be_removed_stops_no_other(shelf, monkeypatch):
    from baton.sessions import prune

    first, second = shelf.add("a"), shelf.add("b")
    real = prune.rmtree

    def rmtree(folder):
        if first.session_id in folder:
            raise PermissionError(13, "Permission denied", folder)
        real(folder)

    monkeypatch.setattr(prune, "rmtree", rmtree)
    judged = list(prune.prune_sessions(shelf.inventory, "here", time.time_ns()))
    assert [(each.name, bool(each.error)) for each in judged] == [("a", True), ("b", False), (None, True)]
    assert shelf.names() == []
    assert shelf.folders() == {first.session_id}
    assert second.session_id not in shelf.folders()
    monkeypatch.undo()
    assert shelf.prune().text.startswith("removed 0 sessions, and 1 folder without a session;")


def test_nothing_to_forget_makes_nothing(desk, shelf):
    assert shelf.prune().text.startswith("removed 0 sessions;")
    assert not os.path.exists(desk.home)
    assert "must be a duration such as" in desk.refused("session", "prune", "--older-than", "30", code=64)


def test_ten_thousand_are_forgotten_in_seconds(desk):
    """On a disk in memory: what one folder costs is the disk's affair."""
    with folder_in_memory() as folder:
        desk.home = os.path.join(folder, "home")
        shelf = Shelf(desk, BATON_HOME=desk.home)
        shelf.add("first")
        with closing(sqlite3.connect(os.path.join(desk.home, "agent-sessions.db"))) as connection, connection:
            for number in range(10_000):
                session = shelf.session(f"job-{number:05}-1")
                row = (session.name, session.session_id, session.state, json.dumps(session.record()))
                connection.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", row)
                shelf.folder(session.session_id)
        began = time.monotonic()
        assert shelf.prune("--home", desk.home).text.startswith("removed 10001 sessions")
        assert time.monotonic() - began < 20
        assert (shelf.names(), shelf.folders()) == ([], set())
