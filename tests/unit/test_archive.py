"""The YAML archive of sessions that have ended."""

from __future__ import annotations

import time

import pytest
import yaml

from baton.adapters.contract import Mode
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


def test_hundreds_more_do_not_slow_it_down(path, monkeypatch):
    archive = Archive(str(path))
    for number in range(3):
        archive.put(ended(number))
    text = path.read_text().partition("sessions:\n")[2]
    path.write_text(
        "sessions:\n" + "".join(text.replace("session_id: '0", f"session_id: '{number:04}") for number in range(150))
    )
    with monkeypatch.context() as patch:  # it takes seconds to parse thousands
        patch.setattr(yaml, "safe_load", lambda _: pytest.fail("all entries were parsed"))
        for number in range(5, 11):
            archive.put(ended(number))
    assert len(archive.entries()) == 450 + 6


def test_a_checksum_that_0_1_0_wrote_is_removed(path):
    archive = Archive(str(path))
    archive.put(ended(1))
    before = path.read_text() + "# As baton wrote it, if this is the SHA-256 of what stands above: 00\n"
    path.write_text(before)
    archive.put(ended(2))
    assert names(path) == ["s1", "s2"]
    assert "As baton wrote it" not in path.read_text()
    assert path.with_suffix(".yaml.bak").read_text() == before


@pytest.mark.parametrize(
    "content",
    [
        "sessions: [{name: mine}]\n",
        "sessions:\n  - name: mine\n",
        "sessions:\n- name: mine\n\n",
        "sessions:\n- name: mine\nmore: here\n",
        "# mine\n---\nsessions:\n- {name: mine}\n",
        "sessions:\r\n- name: mine\r\n",
    ],
)
def test_another_layout_is_read_and_written_in_ours(path, content):
    path.write_text(content)
    Archive(str(path)).put(ended(1))
    assert names(path) == ["mine", "s1"]


def test_thousands_of_entries_are_changed_in_a_moment(path):
    archive = Archive(str(path))
    archive.put(ended(1))
    entry = path.read_text().partition("sessions:\n")[2]
    path.write_text(
        "sessions:\n" + "".join(entry.replace("session_id: '0", f"session_id: '{number:05}") for number in range(9000))
    )
    began = time.monotonic()
    archive.put(ended(2))
    assert time.monotonic() - began < 2
    assert path.read_text().count("\n- name: ") == 9001
