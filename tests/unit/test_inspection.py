"""What a folder holds is found out without using it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import threading

import pytest

from baton.core.errors import BatonError
from baton.jobs.caller import WITNESS
from baton.storage.inspection import inspect

HOMES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "homes-of-0.1.0")


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "clone" / ".hermes"
    (path / "jobs").mkdir(parents=True)
    return path


def look(home, **more):
    """Inspect the folder within a few seconds, and check that nothing in it has changed."""
    before = snapshot(home)
    found, failed = [], []

    def work():
        try:
            found.append(inspect(str(home), scratch=str(home.parent / "state"), owner=os.getuid(), **more))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(15)
    assert not thread.is_alive(), "it hangs"
    assert snapshot(home) == before
    if failed:
        raise failed[0]
    assert not [name for name in os.listdir(home.parent) if name == "state" and os.listdir(home.parent / name)]
    return found[0]


def snapshot(home):
    return sorted(
        (path, name, (status := os.lstat(os.path.join(path, name))).st_mtime_ns, status.st_size, status.st_mode)
        for path, folders, files in os.walk(home)
        for name in (*folders, *files)
    )


def database(path, *statements):
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def record(home, job_id, **fields):
    (home / "jobs" / f"{job_id}.json").write_text(json.dumps({"job_id": job_id} | fields))


JOBS = "CREATE TABLE jobs (job_id, status, agent, prompt, validate, created_at)"
EVENTS = "CREATE TABLE events (id)"


@pytest.mark.parametrize("name", ["sqlite", "file", "postgresql", "moved"])
def test_a_home_of_0_1_0(tmp_path, name):
    home = tmp_path / ".hermes"
    shutil.copytree(os.path.join(HOMES, name, "home"), home)
    with open(os.path.join(HOMES, name, "expected.json")) as file:
        jobs = json.load(file)["jobs"]
    found = look(home)
    if name != "postgresql":
        assert sum(found.jobs.values()) == len(jobs)
        for status in ("pending", "running", "completed", "error", "cancelled"):
            assert found.jobs.get(status, 0) == len([job for job in jobs if job["status"] == status])
    assert found.refused == []
    assert found.home_id is None
    if name in ("sqlite", "file"):
        assert [session.agent for session in found.sessions] == ["shell"]
        (validated,) = (job for job in found.unfinished if job.validate)
        assert validated.validate == "grep -q done result.md"
    assert found.moved_to == ("file:." if name == "moved" else None)


def test_what_is_still_in_the_log_of_a_database_counts(home):
    writer = sqlite3.connect(home / "jobs" / "registry.db")
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(JOBS)
    writer.execute(EVENTS)
    writer.execute("INSERT INTO jobs VALUES ('abcd1234', 'running', 'shell', 'x', 'make test', 1)")
    writer.commit()
    found = look(home)
    writer.close()
    assert found.jobs == {"running": 1}
    assert found.unfinished[0].validate == "make test"


def test_a_trigger_and_a_view_are_named_and_not_run(home):
    database(
        home / "jobs" / "registry.db", JOBS, EVENTS,
        "CREATE TRIGGER evil AFTER INSERT ON jobs BEGIN UPDATE jobs SET validate = 'touch /x'; END",
    )  # fmt: skip
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS record, 'running' AS state FROM n"
    )
    database(home / "agent-sessions.db", f"CREATE VIEW sessions AS {endless}")
    found = look(home)
    assert found.databases == {
        "jobs/registry.db": "holds trigger evil: baton refuses to open it",
        "agent-sessions.db": "holds view sessions: baton refuses to open it",
    }
    assert found.jobs == {}


def test_a_table_that_takes_for_ever_is_interrupted(home):
    slow = "length(replace(hex(zeroblob(100000)), '0', '11'))"
    columns = f"job_id, status AS ({slow}), agent, prompt, validate, created_at"
    database(
        home / "jobs" / "registry.db", f"CREATE TABLE jobs ({columns})", EVENTS,
        "INSERT INTO jobs (job_id) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n "
        "LIMIT 100000",
    )  # fmt: skip
    assert look(home).databases == {"jobs/registry.db": "cannot be read: interrupted"}


@pytest.mark.parametrize("name", ["jobs/registry.db", "agent-sessions.db", "baton.toml", "home.json", "jobs/.moved",
                                  "jobs/abcd1234.json", "delegate_job_logs"])  # fmt: skip
@pytest.mark.parametrize(("kind", "text"), [("pipe", "is a named pipe"), ("socket", "is a socket"),
                                            ("link", "is a link that leaves the folder, to /etc/passwd"),
                                            ("climbing", "is a link that leaves the folder, to ")])  # fmt: skip
def test_what_may_not_be_in_a_home_is_named_and_not_opened(home, name, kind, text, monkeypatch):
    path = home / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        monkeypatch.chdir(path.parent)
        socket.socket(socket.AF_UNIX).bind(path.name)
    else:
        path.symlink_to("/etc/passwd" if kind == "link" else "../" * (name.count("/") + 1) + "clone")
    found = look(home)
    assert [each for each in found.refused if each.startswith(f"{name} {text}")] == found.refused != []
    assert (found.jobs, found.settings, found.databases, found.moved_to) == ({}, {}, {}, None)


def test_a_link_inside_the_home_and_the_pipe_and_the_socket_of_a_session_are_accepted(home, monkeypatch):
    session = home / "sessions" / ("ab" * 8)
    session.mkdir(parents=True)
    os.mkfifo(session / "go")
    monkeypatch.chdir(session)
    socket.socket(socket.AF_UNIX).bind(WITNESS)
    (home / "latest").symlink_to("jobs/x")
    assert look(home).refused == []
    (home / "loop").symlink_to("loop")
    look(home)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_pipe_and_a_socket_of_other_names_and_places_are_refused_in_a_session(home, kind, monkeypatch):
    session = home / "sessions" / ("ab" * 8)
    (session / "more").mkdir(parents=True)
    for name in ("go" if kind == "socket" else WITNESS, f"more/{WITNESS}", "more/go", "other"):
        if kind == "pipe":
            os.mkfifo(session / name)
            continue
        monkeypatch.chdir((session / name).parent)
        socket.socket(socket.AF_UNIX).bind(os.path.basename(name))
    assert len(look(home).refused) == 4


def test_a_link_that_leaves_and_comes_back_is_refused(home):
    """It would lead nowhere, or elsewhere, once the content has moved."""
    (home / "jobs" / "x").symlink_to("../../.hermes/jobs")
    assert look(home).refused == ["jobs/x is a link that leaves the folder, to ../../.hermes/jobs"]


def test_a_hard_link_is_refused_where_the_files_stay(home):
    (home.parent / "elsewhere").write_text("x")
    os.link(home.parent / "elsewhere", home / "jobs" / "x")
    assert look(home, in_place=True).refused == ["jobs/x has another name elsewhere (a hard link)"]
    assert look(home).refused == [], "it is copied"


@pytest.mark.as_root
def test_files_of_another_user_are_refused(home):
    for name in ("jobs", "x"):
        (home / name).touch()
        os.chown(home / name, 4242, 4242)
    assert look(home).refused == ["jobs belongs to another user (4242)", "x belongs to another user (4242)"]


def test_settings_are_listed_with_the_commands_of_agents(home):
    (home / "baton.toml").write_text('agent = "evil"\ntimeout_sec = 5\n[agents.evil]\ncommand = ["touch", "x"]\n')
    assert look(home).settings == {"agent": "evil", "timeout_sec": "5", "[agents.evil]": "{'command': ['touch', 'x']}"}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = ", b"a = " + b"[" * 5000, b"#" * (1024 * 1024 + 1)])
def test_settings_that_cannot_be_read_are_named(home, content):
    (home / "baton.toml").write_bytes(content)
    assert list(look(home).settings) == ["baton.toml"]


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '{"status": 5}', '{"status": []}', '{"home_id": 7}'])
def test_records_that_are_no_records_are_counted(home, content):
    (home / "jobs" / "abcd1234.json").write_text(content)
    (home / "home.json").write_text(content)
    found = look(home)
    assert found.jobs == {"invalid": 1}
    assert found.home_id is None


@pytest.mark.parametrize("content", [b"", b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_named(home, content):
    (home / "agent-sessions.db").write_bytes(content)
    assert list(look(home).databases) == ["agent-sessions.db"]


@pytest.mark.parametrize("row", ["{}", "[]", "null", "not json", "[" * 10_000, '{"name": 5, "pane_pid": "1"}'])
def test_rows_that_are_no_sessions_hide_nothing(home, row):
    database(home / "agent-sessions.db", "CREATE TABLE sessions (name, session_id, state, record)")
    connection = sqlite3.connect(home / "agent-sessions.db")
    good = json.dumps({"name": "good", "agent": "shell", "session_id": "ab" * 8, "pane_pid": 5, "pane_started": 6})
    for text in (row, good):
        connection.execute("INSERT INTO sessions VALUES ('x', 'y', 'running', ?)", (text,))
    connection.commit()
    connection.close()
    assert look(home).sessions[-1].name == "good"


def test_many_jobs_are_counted_and_a_few_shown(home):
    for number in range(30):
        record(home, f"{number:08x}", status="pending", agent="shell", prompt="p" * 1000)
    found = look(home)
    assert found.jobs == {"pending": 30}
    assert len(found.unfinished) == 20
    assert {job.prompt for job in found.unfinished} == {"p" * 199 + "…"}


def test_spaces_do_not_hide_the_end_of_a_command(home):
    command = f"make test{' ' * 100_000}; touch canary"
    record(home, "00000001", status="pending", agent="shell", prompt=command, validate=command)
    (job,) = look(home).unfinished
    assert (job.prompt, job.validate) == ("make test ; touch canary",) * 2


def test_a_folder_without_end_is_refused(home):
    folder = home
    for _ in range(40):
        folder = folder / "x"
    folder.mkdir(parents=True)
    with pytest.raises(BatonError, match="nested too deeply"):
        look(home)
