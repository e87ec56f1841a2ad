"""The `-wal` file of a SQLite registry is removed, or replaced, under a process that has it open."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time

import pytest

from baton.core.drafts import new_job
from baton.core.errors import RegistryUnavailable
from baton.registry import open_url
from baton.storage.sqlite import Connection
from support.command import BATON, Baton
from support.waiting import wait_until


def draft(prompt):
    return new_job(prompt, now_ns=time.time_ns(), agent="shell", agent_session="q")


def prompts(path):
    with_other_processes_gone = sqlite3.connect(path)
    assert with_other_processes_gone.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    found = {row[0] for row in with_other_processes_gone.execute("SELECT prompt FROM jobs")}
    with_other_processes_gone.close()
    return found


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "jobs" / "registry.db")


@pytest.fixture
def registry(path):
    registry = open_url(f"sqlite:{path}")
    yield registry
    registry.close()


def test_nothing_is_acknowledged_and_earlier_changes_are_kept(registry, path):
    registry.register_job(draft("before"))
    os.unlink(f"{path}-wal")
    with pytest.raises(RegistryUnavailable, match="was removed or replaced"):
        registry.register_job(draft("lost"))
    registry.register_job(draft("after"))
    registry.close()
    assert prompts(path) == {"before", "after"}


def test_the_close_of_another_connection_of_the_process_is_not_taken_for_a_removed_log(registry, path, monkeypatch):
    """Another thread reads the registry for the first time while this one opens it to write."""
    registry.register_job(draft("before"))
    registry.close()
    keeper, other = open_url(f"sqlite:{path}"), open_url(f"sqlite:{path}")
    keeper.register_job(draft("keeps the log"))
    connect = registry._file._connect

    def connect_after_the_other(options):
        other.list_jobs()
        return connect(options)

    monkeypatch.setattr(registry._file, "_connect", connect_after_the_other)
    registry.register_job(draft("with both open"))
    other.close()
    registry.register_job(draft("after"))
    with open(os.devnull) as file:  # may have the number of the closed descriptor
        assert file
        registry.register_job(draft("last"))
    os.unlink(f"{path}-wal")
    with pytest.raises(RegistryUnavailable, match="was removed or replaced"):
        registry.register_job(draft("not acknowledged"))
    keeper.close()


@pytest.mark.parametrize("act", [lambda registry: registry.close(), lambda registry: registry.list_jobs()])
def test_an_interrupted_close_is_not_taken_for_a_removed_log(registry, path, monkeypatch, act):
    """Ctrl-C comes while a connection is closed."""
    registry.register_job(draft("before"))
    registry._file._keep_open = False  # so that reading closes its connection, too
    close = Connection.close

    def close_interrupted(connection):
        close(connection)
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "close", close_interrupted)
    with pytest.raises(KeyboardInterrupt):
        act(registry)
    monkeypatch.undo()
    assert len(registry.list_jobs().jobs) == 1
    registry.register_job(draft("after"))
    registry.close()
    assert prompts(path) == {"before", "after"}


def test_a_log_removed_during_the_transaction_is_noticed_before_the_verb_returns(registry, path, monkeypatch):
    registry.register_job(draft("before"))
    check, calls = registry._file._check_log, []

    def remove_before_the_last_check(raw):
        calls.append(raw)
        if len(calls) == 3:
            os.unlink(f"{path}-wal")
        check(raw)

    monkeypatch.setattr(registry._file, "_check_log", remove_before_the_last_check)
    with pytest.raises(RegistryUnavailable, match="was removed or replaced"):
        registry.register_job(draft("not acknowledged"))
    assert len(calls) == 3


def test_what_another_process_wrote_to_the_new_log_survives_the_close_of_the_old_one(registry, path):
    for number in range(100):
        registry.register_job(draft(f"before {number}"))
    registry._file._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")
    os.unlink(f"{path}-wal")
    script = """
import os, sys
from baton.core.drafts import new_job
from baton.registry import open_url
from baton.storage.sqlite import Connection
registry = open_url(f"sqlite:{sys.argv[1]}")
for number in range(5):
    registry.register_job(new_job(f"other {number}", now_ns=1, agent="shell"))
os._exit(0)
"""
    subprocess.run([os.path.join(os.path.dirname(BATON), "python"), "-c", script, path], check=True)
    with pytest.raises(RegistryUnavailable, match="was removed or replaced"):
        registry.register_job(draft("lost"))
    registry.close()
    assert prompts(path) == {f"before {number}" for number in range(100)} | {f"other {n}" for n in range(5)}


def test_a_waiting_command_ends_with_exit_code_1(tmp_path):
    baton = Baton(tmp_path)
    baton("register", "x", "--agent", "shell")
    waiting = subprocess.Popen(
        [BATON, "pick", "--agent", "late", "--wait", "60"],
        cwd=tmp_path, env=baton.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    log = os.path.join(os.path.realpath(tmp_path / ".hermes"), "jobs", "registry.db-wal")
    wait_until(lambda: os.path.exists(log))
    os.unlink(log)
    out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, out) == (1, "")
    assert "registry.db-wal was removed or replaced" in err
    assert err.count("\n") == 1
    assert baton("list").out.count("\n") == 1
