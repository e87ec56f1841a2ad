"""The registry of sessions of Claude Code: any program of the user can write there, and what it holds may be old."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from baton.channels.claude_registry import Entry, OwnEntry, parse_entry, release_of, signals_of, why_foreign
from baton.core.signal import Attention, Noted, Unblocked
from baton.sessions.processes import started_at
from support.waiting import poll

SAMPLES = json.loads((Path(__file__).parents[1] / "data" / "claude" / "registry.json").read_text())
CONVERSATION = SAMPLES["start"]["sessionId"]


@pytest.fixture
def process():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def path(tmp_path, process):
    (tmp_path / "sessions").mkdir()
    return tmp_path / "sessions" / f"{process.pid}.json"


def content(process, name="waiting_dialog", **changes):
    own = {"pid": process.pid, "procStart": str(started_at(process.pid)), "pidDomain": None}
    return json.dumps(SAMPLES[name] | own | changes)


def look(path, process, conversation=CONVERSATION):
    own = OwnEntry(str(path.parents[1]), process.pid)
    return own.look(conversation), own.trouble


def test_recorded_entries():
    found = {name: parse_entry(json.dumps(each).encode()) for name, each in SAMPLES.items()}
    assert [(each.status, each.waiting_for) for each in found.values()] == [
        ("", ""), ("waiting", "dialog open"), ("waiting", "permission prompt"),
    ]  # fmt: skip
    assert {(each.pid, each.started, each.conversation_id) for each in found.values()} == {
        (10542, 176440, "4fd1f5d3-f39c-40a3-bad3-550a83642d8c")
    }


def test_the_entry_of_the_process(path, process):
    path.write_text(content(process))
    entry, trouble = look(path, process)
    assert (entry.status, entry.waiting_for, trouble) == ("waiting", "dialog open", "")


def link(path, text):
    (path.parent / "elsewhere").write_text(text)
    path.symlink_to("elsewhere")


def linked_folder(path, text):
    path.parent.rmdir()
    other = path.parents[1] / "other"
    other.mkdir()
    (other / path.name).write_text(text)
    path.parent.symlink_to(other)


def sparse(path, _text):
    path.touch()
    os.truncate(path, 1 << 40)


HOSTILE_FILES = {
    "a link": (link, "the file is a link"),
    "a folder that is a link": (linked_folder, "the file cannot be read: Not a directory"),
    "a FIFO": (lambda path, _: os.mkfifo(path), "the file is not a regular file"),
    "a folder": (lambda path, _: path.mkdir(), "the file is not a regular file"),
    "huge": (lambda path, text: path.write_text(text + " " * 65536), "the file is longer than 65536 bytes"),
    "huge without a byte": (sparse, "the file is longer than 65536 bytes"),
    "half written": (lambda path, text: path.write_text(text[:-20]), "the file is not valid"),
    "empty": (lambda path, _: path.write_text(""), "the file is not valid"),
    "not text": (lambda path, _: path.write_bytes(b"\xff\xfe\0"), "the file is not valid"),
    "nested": (lambda path, _: path.write_text("[" * 60000), "the file is not valid"),
}


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_a_file_that_is_no_plain_small_file_is_ignored_at_once(path, process, name):
    make, why = HOSTILE_FILES[name]
    make(path, content(process))
    assert look(path, process) == (None, why)


def test_a_file_of_another_user_is_ignored(path, process):
    if os.geteuid() == 0:
        path.write_text(content(process))
        os.chown(path, 65534, 65534)
        assert look(path, process) == (None, "the file belongs to another user")
    else:
        os.symlink("/etc/hostname", path)  # only root can give a file away
        assert look(path, process)[0] is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pid": 1}, "the file is of another process"),
        ({"procStart": "1"}, "the file is of an earlier process"),
        ({"pidDomain": "linux:x:pid:[1]"}, "the file is of another process namespace"),
        (
            {"pidDomain": f"linux:{'0' * 32}:{os.readlink('/proc/self/ns/pid')}"},
            "the file is of another process namespace",
        ),
    ],
)
def test_an_entry_of_another_process_is_ignored(path, process, changes, why):
    path.write_text(content(process, **changes))
    if why.endswith("namespace") and "0000" in str(changes) and not os.path.exists("/etc/machine-id"):
        why = ""  # nothing tells the machines apart
    assert look(path, process)[1] == why


@pytest.mark.parametrize("domain", [None, 7, "", "something else", f"linux:a1b2:{os.readlink('/proc/self/ns/pid')}"])
def test_a_domain_of_an_unknown_form_decides_nothing(path, process, domain):
    path.write_text(content(process, pidDomain=domain))
    assert look(path, process)[1] == ""


def test_a_process_that_has_ended_has_no_entry(path, process):
    entry = parse_entry(content(process).encode())
    process.kill()
    assert poll(lambda: why_foreign(entry, process.pid), 10)  # also as a zombie
    process.wait()
    assert why_foreign(entry, process.pid) == "the file is of an earlier process"


def test_the_same_pid_in_two_folders_is_told_apart(tmp_path, path, process):
    """Two agents with configuration folders of their own may have written files with the same pid, one after the other."""
    other = tmp_path / "other" / "sessions" / path.name
    other.parent.mkdir(parents=True)
    path.write_text(content(process))
    other.write_text(content(process, procStart="5", status="idle"))
    assert look(path, process)[0].status == "waiting"
    assert look(other, process)[0] is None


def test_the_conversation_of_the_process_itself_may_have_any_id(path, process):
    path.write_text(content(process, sessionId="anything"))
    assert look(path, process)[0].conversation_id == "anything"


VALUES = [None, True, -1, 1.5, 10**30, "", "x" * 60000, "\x1b[2J\u202e\n", [], {"a": 1}, ["waiting"]]


@pytest.mark.parametrize("field", ["pid", "procStart", "sessionId", "status", "waitingFor", "pidDomain"])
def test_any_value_of_any_field_is_harmless(process, field):
    for value in VALUES:
        entry = parse_entry(content(process, **{field: value}).encode())
        if entry is not None:
            assert entry.status in ("", "idle", "busy", "waiting")
            assert entry.waiting_for.isprintable()
            assert len(entry.waiting_for) <= 200
            why_foreign(entry, process.pid)
            list(signals_of(None, entry))


def test_what_a_change_of_the_entry_means():
    idle = Entry(pid=1, started=1, conversation_id="c", status="idle")
    waiting = idle.replace(status="waiting")
    assert list(signals_of(None, None)) == []
    assert list(signals_of(None, idle.replace(status=""))) == [Unblocked()]
    assert list(signals_of(idle, idle.replace(conversation_id="d"))) == []
    assert list(signals_of(idle, waiting)) == [
        Noted(fact="its own status", value="waiting"), Attention(what="it does not say what", stands=True),
    ]  # fmt: skip
    assert list(signals_of(waiting, None)) == [Attention(what=None)]


@pytest.mark.parametrize(
    ("place", "release"),
    [("share/claude/versions/2.1.327", (2, 1, 327)), ("bin/claude", None), ("versions/claude", None)],
)
def test_the_release_of_a_program_that_its_own_installer_put_there(tmp_path, place, release):
    program = tmp_path / place
    program.parent.mkdir(parents=True)
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    process = subprocess.Popen([str(program), "600"])
    try:
        assert release_of(process.pid) == release
    finally:
        process.kill()
        process.wait()
    assert release_of(process.pid) is None
