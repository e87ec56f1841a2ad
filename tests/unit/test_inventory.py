"""The inventory of sessions: its own database, and those that other tools left under its name."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from baton.adapters.contract import Mode
from baton.config import Settings
from baton.core.errors import RegistryUnavailable
from baton.sessions.inventory import Inventory
from baton.sessions.processes import ProcessId, command_line, started_at
from baton.sessions.session import Session, State
from support.waiting import wait_until

OLD_HOME = Path(__file__).parents[1] / "data" / "homes-of-0.1.0" / "sqlite" / "home"
EMPTY = dict.fromkeys(Session.fields())


def session(name="one", **fields):
    made = {"name": name, "session_id": "1" * 16, "state": State.RUNNING, "mode": Mode.INTERACTIVE}
    now = "2026-07-01T00:00:00Z"
    usual = {
        "agent": "shell", "workdir": "/w", "yolo": False, "created_at": now, "updated_at": now, "host": "here",
        "agent_name": f"HOUMAO-{name}", "agent_id": "a", "generation_id": "g", "socket": "baton",
    }  # fmt: skip
    return Session(**EMPTY | made | usual | fields)


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def inventory(home):
    return Inventory(Settings({"home": str(home)}, {}))


def pragma(path, name):
    with sqlite3.connect(path) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]


def make_foreign(path, *statements):
    with sqlite3.connect(path) as connection:
        for statement in statements or ["CREATE TABLE sessions (id INTEGER, yaml TEXT)"]:
            connection.execute(statement)
    connection.close()
    return path.read_bytes()


def test_a_home_below_a_link(home, tmp_path):
    (tmp_path / "link").symlink_to(home)
    below = home / "below"
    below.mkdir()
    inventory = Inventory(Settings({"home": str(tmp_path / "link" / "below")}, {}))
    inventory.add(session())
    assert inventory.change(session(), lambda one: one.replace(reason="x")).reason == "x"


def test_a_new_database_carries_the_mark(home, inventory):
    inventory.add(session())
    assert pragma(home / "agent-sessions.db", "application_id") == int.from_bytes(b"BATN")
    assert pragma(home / "agent-sessions.db", "journal_mode") == "wal"
    assert (home / "agent-sessions.db").stat().st_mode & 0o777 == 0o600


def test_a_database_of_0_1_0_is_read_as_it_is_and_marked_by_the_first_write(home, inventory):
    shutil.copy(OLD_HOME / "agent-sessions.db", home)
    there = {each.name for each in inventory.all()}
    assert there and pragma(home / "agent-sessions.db", "application_id") == 0
    inventory.add(session("another"))
    assert {each.name for each in inventory.all()} == there | {"another"}
    assert pragma(home / "agent-sessions.db", "application_id") == int.from_bytes(b"BATN")


@pytest.mark.parametrize("left", [b"", "CREATE TABLE x (y)"])
def test_a_database_whose_creator_died_is_empty_and_can_be_written(home, inventory, left):
    path = home / "agent-sessions.db"
    path.touch()
    if left:  # a database without a table
        make_foreign(path, left, "DROP TABLE x")
    assert inventory.all() == []
    inventory.add(session())
    assert [each.name for each in inventory.all()] == ["one"]
    assert inventory.note() is None


@pytest.mark.parametrize(
    "statements",
    [
        [],
        ["CREATE TABLE agents (name TEXT)", "PRAGMA application_id = 7", "PRAGMA user_version = 3"],
        ["CREATE VIEW sessions AS SELECT 1 AS record"],
    ],
)
def test_the_database_of_another_tool_is_left_alone_and_named(home, inventory, statements):
    before = make_foreign(home / "agent-sessions.db", *statements)
    assert inventory.all() == []
    inventory.add(session())
    assert [each.name for each in Inventory(Settings({"home": str(home)}, {})).all()] == ["one"]
    assert (home / "agent-sessions.db").read_bytes() == before
    assert "agent-sessions.db is of another tool" in inventory.note()
    assert "baton-sessions.db" in inventory.note()
    assert (home / "baton-sessions.db").exists()


def test_sessions_are_still_there_when_the_other_tool_is_gone(home, inventory):
    make_foreign(home / "agent-sessions.db")
    (home / "agent-sessions.yaml").write_text("claude: {}\n")
    inventory.add(session())
    (home / "agent-sessions.db").unlink()
    (home / "agent-sessions.yaml").unlink()
    again = Inventory(Settings({"home": str(home)}, {}))
    assert [each.name for each in again.all()] == ["one"]
    assert again.note() is None
    again.change(session(), lambda each: each.replace(state=State.STOPPED))
    assert not (home / "agent-sessions.db").exists()


def test_no_file_stays_open_between_two_changes(home, inventory):
    inventory.add(session())
    assert inventory.all()
    opened = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.exists(entry.path)]
    assert [path for path in opened if path.startswith(str(home))] == []


def test_what_is_marked_as_ours_and_has_other_tables_is_refused(home, inventory):
    inventory.add(session())
    with sqlite3.connect(home / "agent-sessions.db") as connection:
        connection.execute("CREATE TRIGGER more AFTER INSERT ON sessions BEGIN SELECT 1; END")
    fresh = Inventory(Settings({"home": str(home)}, {}))
    with pytest.raises(RegistryUnavailable, match=r"agent-sessions\.db"):
        fresh.all()
    with pytest.raises(RegistryUnavailable, match=r"agent-sessions\.db"):
        fresh.add(session("two"))
    assert not (home / "baton-sessions.db").exists()


def test_a_file_that_is_no_database_is_named(home, inventory):
    (home / "agent-sessions.db").write_text("sessions: none\n" * 100)
    with pytest.raises(RegistryUnavailable, match=r"agent-sessions\.db: is not a SQLite database; move it away$"):
        inventory.all()


def test_the_archive_of_another_tool_is_left_alone(home, inventory):
    (home / "agent-sessions.yaml").write_text("sessions:\n  claude: {status: terminated}\n")
    inventory.add(session())
    ended = inventory.change(session(), lambda each: each.replace(state=State.STOPPED))
    assert ended.state is State.STOPPED
    assert (home / "agent-sessions.yaml").read_text() == "sessions:\n  claude: {status: terminated}\n"
    assert "name: one" in (home / "baton-sessions.yaml").read_text()
    assert "agent-sessions.yaml is of another tool" in inventory.note()
    inventory.change(ended, lambda each: each.replace(state=State.RUNNING))
    assert "name: one" not in (home / "baton-sessions.yaml").read_text()


def test_the_runner_of_the_original_is_not_that_of_a_copy(inventory, tmp_path):
    original = tmp_path / "original" / "sessions" / ("1" * 16)
    code = [sys.executable, "-c", "import time; time.sleep(600)"]
    for folder, is_mine in ((original, False), (inventory.folder_of(session()), True)):
        with subprocess.Popen([*code, str(folder)]) as process:
            runner = ProcessId(pid=process.pid, started=started_at(process.pid))
            mine = session(pane_pid=runner.pid, pane_started=runner.started)
            wait_until(lambda folder=folder, runner=runner: str(folder) in command_line(runner))
            assert inventory.runner_of(mine) == (runner if is_mine else None)
            process.kill()


def test_a_session_is_read_again_when_another_process_has_changed_it(inventory, home):
    inventory.add(session())
    other = Inventory(Settings({"home": str(home)}, {}))
    for number in range(20):
        assert inventory.find("1" * 16).job_id == (None if number == 0 else f"{number - 1:08x}")
        other.change(session(), lambda current, number=number: current.replace(job_id=f"{number:08x}"))


def test_a_session_is_not_read_again_while_nothing_was_written(inventory, home, monkeypatch):
    inventory.add(session())
    inventory.find("1" * 16)  # may make the log
    for path in home.glob("agent-sessions.db*"):
        os.utime(path, (1, 1))
    found = inventory.find("1" * 16)
    monkeypatch.setattr(inventory, "_select", None)
    assert inventory.find("1" * 16) is found
