"""The YAML archive of sessions that have ended."""

from __future__ import annotations

import time

import pytest
import yaml

from baton.adapters.contract import Mode
from baton.sessions import archive as archive_module
from baton.sessions.archive import Archive
from baton.sessions.session import Session, State

EMPTY = dict.fromkeys(Session.fields())


def ended(number, **fields):
    told = {"name": f"s{number}", "session_id": f"{number:016x}", "state": State.STOPPED, "mode": Mode.INTERACTIVE}
    return Session(**EMPTY | told | {"agent": "shell", "workdir": "/w", "yolo": False} | fields)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent-sessions.yaml"


def names(path):
    with path.open() as file:
        return [entry["name"] for entry in yaml.safe_load(file)["sessions"]]


def test_each_session_is_in_it_once_as_it_last_ended(path):
    archive = Archive(str(path))
    for number in (1, 2, 10, 0x1234567890123456):
        archive.put(ended(number))
    archive.put(ended(2, reason="again"))
    assert names(path) == ["s1", "s10", f"s{0x1234567890123456}", "s2"]
    assert archive.entries()[-1]["reason"] == "again"
    archive.remove(f"{1:016x}")
    archive.remove(f"{0x1234567890123456:016x}")
    archive.remove("0")
    assert names(path) == ["s10", "s2"]
    archive.remove(f"{10:016x}")
    archive.remove(f"{2:016x}")
    assert names(path) == []
    archive.put(ended(3))
    assert names(path) == ["s3"]


def test_nothing_in_an_entry_is_taken_for_another(path):
    archive = Archive(str(path))
    text = f"x\n- name: s2\n  session_id: {2:016x}\nsessions:\n- y\n# As baton wrote it"
    archive.put(ended(1, reason=text, workdir=text, exit="- x " * 100))
    archive.put(ended(2))
    archive.put(ended(2))
    assert names(path) == ["s1", "s2"]
    assert archive.entries()[0]["reason"] == text
    archive.remove(f"{2:016x}")
    assert names(path) == ["s1"]


def test_what_somebody_changed_by_hand_is_kept(path):
    archive = Archive(str(path))
    archive.put(ended(1))
    path.write_text(path.read_text().replace("name: s1", "name: s1\n  note: mine"))
    archive.put(ended(2))
    assert archive.entries()[0]["note"] == "mine"
    archive.put(ended(3))
    assert archive.entries()[0]["note"] == "mine"
    path.write_text(path.read_text() + "- and: this\n- 7\n")
    archive.put(ended(4))
    assert [entry for entry in archive.entries() if "name" not in (entry if isinstance(entry, dict) else {})] == [
        {"and": "this"},
        7,
    ]


def test_hundreds_more_do_not_slow_it_down(path):
    archive = Archive(str(path))
    for number in range(3):
        archive.put(ended(number))
    text = path.read_text().partition("sessions:\n")[2].rpartition("# As baton")[0]
    path.write_text(
        "sessions:\n" + "".join(text.replace("session_id: '0", f"session_id: '{number:04}") for number in range(150))
    )
    archive.put(ended(5))  # reads all of it once
    began = time.monotonic()
    for number in range(6, 11):
        archive.put(ended(number))
    assert time.monotonic() - began < 1
    assert len(archive.entries()) == 450 + 6


def everything(path):
    return [entry["name"] for each in sorted(path.parent.glob("*.yaml"), key=lambda each: len(each.name), reverse=True)
            for entry in yaml.safe_load(each.read_text())["sessions"]]  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """An archive is full after three."""
    monkeypatch.setattr(archive_module, "_FULL", 300)


@pytest.mark.usefixtures("small")
def test_one_that_is_full_is_moved_aside_whole_and_a_new_one_begins(path):
    archive = Archive(str(path))
    for number in range(3):
        archive.put(ended(number))
    full = path.read_bytes()
    archive.put(ended(3))
    assert names(path) == ["s3"]
    (older,) = path.parent.glob("agent-sessions.*.yaml")
    assert older.read_bytes() == full
    for number in range(4, 20):
        archive.put(ended(number))
    assert sorted(everything(path)) == sorted(f"s{number}" for number in range(20))
    assert older.read_bytes() == full


@pytest.mark.usefixtures("small")
def test_one_that_ended_again_is_replaced_where_it_is_though_the_archive_is_full(path):
    archive = Archive(str(path))
    for number in (0, 1, 2, 1):
        archive.put(ended(number))
    assert names(path) == ["s0", "s2", "s1"]
    archive.put(ended(3))
    archive.remove(f"{1:016x}")
    archive.remove(f"{3:016x}")
    assert sorted(everything(path)) == ["s0", "s1", "s2"]


@pytest.mark.usefixtures("small")
def test_a_crash_while_it_is_moved_aside_loses_nothing(path, monkeypatch):
    archive = Archive(str(path))
    for number in range(3):
        archive.put(ended(number))

    def crash(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(archive_module, "replace_file", crash)
        with pytest.raises(KeyboardInterrupt):
            archive.put(ended(3))
    assert sorted(everything(path)) == ["s0", "s1", "s2"]
    archive.put(ended(3))
    assert sorted(everything(path)) == ["s0", "s1", "s2", "s3"]


def test_what_an_end_costs_does_not_grow_with_those_before_it(path):
    archive = Archive(str(path))
    for number in range(3):
        archive.put(ended(number))
    text = path.read_text().partition("sessions:\n")[2].rpartition("# As baton")[0]
    path.write_text(
        "sessions:\n" + "".join(text.replace("session_id: '0", f"session_id: '{number:05}") for number in range(1000))
    )
    archive.put(ended(5))
    for number in range(6, 11):
        archive.put(ended(number))
    assert path.stat().st_size + (path.parent / "agent-sessions.yaml.bak").stat().st_size < 2 * archive_module._FULL
