"""A home that the user trusts is still data: nothing in it runs, hangs, leads elsewhere or hides the rest."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager

import pytest

from baton.sessions.inventory import _MARK, _TABLES
from support.command import Baton
from support.office import Office
from support.terminal import Terminal

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
QUICK_SEC = 10  # of a busy machine; what hangs does so for ever


@pytest.fixture
def baton(tmp_path):
    command = Baton(tmp_path, BATON_AGENT="shell", BATON_HOST="here", MQTT_BROKER="127.0.0.1", MQTT_PORT="9")
    command.job = command("register", "true").text
    return command


@contextmanager
def opened(baton, *path):
    """The database at that path below the home, as any program opens it."""
    with closing(sqlite3.connect(os.path.join(baton.folder, ".hermes", *path))) as connection, connection:
        yield connection


def put_view_in_place_of_sessions(database):
    database.execute(f"PRAGMA application_id = {_MARK}")
    columns = ", ".join(f"x AS {name}" for name in ("name", "session_id", "state", "record"))
    database.execute(f"CREATE VIEW sessions AS {ENDLESS} {columns} FROM n")


def within(baton, name):
    return os.path.join(baton.folder, ".hermes", name)


def session_row(name="gpu", **changes):
    now = "2026-07-01T00:00:00Z"
    record = {
        "name": name, "session_id": "0" * 16, "state": "terminated", "agent": "shell", "mode": "interactive",
        "workdir": "/", "yolo": False, "conversation_id": None, "created_at": now, "updated_at": now, "ended_at": now,
        "agent_name": f"HOUMAO-{name}", "agent_id": "a", "generation_id": "g", "host": "here", "socket": "baton",
    }  # fmt: skip
    return record | changes


def add_rows(baton, *rows):
    """Rows of the inventory that another program wrote."""
    with opened(baton, "agent-sessions.db") as database:
        database.executescript(f"{_TABLES} PRAGMA journal_mode = WAL; PRAGMA application_id = {_MARK}")
        for row in rows:
            columns = (row["name"], row["session_id"], row["state"], json.dumps(row))
            database.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", columns)


def ends(baton, *arguments, code=1, **more):
    began = time.monotonic()
    result = baton(*arguments, code=code, **more)
    assert time.monotonic() - began < QUICK_SEC
    assert "Traceback" not in result.err
    assert "unexpected" not in result.err
    return result


# -- databases -------------------------------------------------------------------------------------------------------


def test_a_trigger_runs_no_command(baton):
    with opened(baton, "jobs", "registry.db") as database:
        database.execute("CREATE TRIGGER t AFTER INSERT ON jobs BEGIN UPDATE jobs SET validate = 'touch canary'; END")
    assert "trigger t" in ends(baton, "register", "x").err
    assert "trigger t" in ends(baton, "submit", "true").err
    assert not os.path.exists(os.path.join(baton.folder, "canary"))


@pytest.mark.parametrize("verb", [["list"], ["doctor"], ["monitor", "--once"], ["register", "x"], ["get"], ["publish"]])
def test_a_view_in_place_of_the_jobs_does_not_hang(baton, verb):
    if verb[0] in ("get", "publish"):
        verb = [*verb, baton.job, *(["--event", "progress"] if verb[0] == "publish" else [])]
    with opened(baton, "jobs", "registry.db") as database:
        columns = ", ".join(f"x AS {row[1]}" for row in database.execute("PRAGMA table_info(jobs)"))
        database.execute("ALTER TABLE jobs RENAME TO aside")
        database.execute(f"CREATE VIEW jobs AS {ENDLESS} {columns} FROM n")
    result = ends(baton, *verb)
    assert "as baton creates it" in result.out + result.err


@pytest.mark.parametrize("verb", [["session", "list"], ["doctor"], ["monitor", "--once"], ["session", "show", "x"]])
def test_a_view_in_place_of_the_sessions_does_not_hang(baton, verb):
    with opened(baton, "agent-sessions.db") as database:
        put_view_in_place_of_sessions(database)
    result = ends(baton, *verb, code=None)
    assert "as baton creates it" in result.out + result.err


def test_a_monitor_obeys_a_signal_while_a_database_is_refused(baton):
    with opened(baton, "agent-sessions.db") as database:
        put_view_in_place_of_sessions(database)
    with started(baton, "monitor", "--interval", "0.1") as process:
        assert "sessions" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(QUICK_SEC) == 0


@contextmanager
def started(baton, *arguments):
    process = subprocess.Popen(
        [baton.program, *arguments], cwd=baton.folder, env=baton.env, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("place", ["jobs/registry.db", "agent-sessions.db"])
@pytest.mark.parametrize(
    "kind",
    ["pipe", "link", "device", "folder", "wal-link", "journal", pytest.param("foreign", marks=pytest.mark.as_root)],
)
def test_what_is_not_a_database_of_the_user_is_refused_by_name(baton, place, kind):
    add_rows(baton)
    path = within(baton, place)
    shown = path
    if kind in ("wal-link", "journal"):
        shown = path + ("-wal" if kind == "wal-link" else "-journal")
        for suffix in ("-wal", "-shm"):
            if os.path.lexists(path + suffix):
                os.unlink(path + suffix)
        if kind == "wal-link":
            os.symlink("/etc/passwd", shown)
        else:
            with open(shown, "wb") as file:
                file.write(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0" * 504)
    elif kind == "foreign":
        os.chown(path, 65534, 65534)
    else:
        os.rename(path, path + ".aside")
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            os.symlink(path + ".aside", path)
        elif kind == "device":
            os.symlink("/dev/zero", path)
        else:
            os.mkdir(path)
    if place.startswith("jobs"):
        for verb in (["list"], ["register", "x"]):
            assert os.path.basename(shown) in ends(baton, *verb).err
    else:
        for verb in (["session", "list"], ["session", "create", "x", "--prompt", "true"]):
            assert os.path.basename(shown) in ends(baton, *verb).err
    doctor = ends(baton, "doctor", code=1).out
    assert os.path.basename(shown) in doctor


def test_a_table_or_an_index_that_baton_does_not_create_is_named(baton):
    with opened(baton, "jobs", "registry.db") as database:
        database.execute("CREATE INDEX jobs_mine ON jobs (abs(priority))")
    assert "index jobs_mine" in ends(baton, "list").err


def test_a_transaction_has_a_time_limit(tmp_path, monkeypatch):
    from baton.core.errors import RegistryUnavailable
    from baton.storage import sqlite

    file = sqlite.SqliteFile(str(tmp_path / "x.db"), tables="CREATE TABLE t (x);", version=1)
    with file.writing(create=True) as tx:
        tx.execute("INSERT INTO t VALUES (1)")
    monkeypatch.setattr(sqlite, "TRANSACTION_SEC", 0.2)
    for transaction in (file.reading, file.writing):
        with pytest.raises(RegistryUnavailable, match=r"took longer"), transaction() as tx:
            tx.execute(f"{ENDLESS} count(*) FROM n").fetchall()
    with file.reading() as tx:
        assert tx.execute("SELECT x FROM t").fetchall() == [(1,)]
    file.close()


@pytest.mark.parametrize(
    "scheme", ["postgresql://127.0.0.1:{}/x", "sqlite:/nowhere/registry.db", "file:../../elsewhere"]
)
def test_a_note_of_a_migration_that_the_user_did_not_make_is_not_followed(baton, scheme):
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(0.1)
        url = scheme.format(server.getsockname()[1])
        with open(within(baton, "jobs/.moved"), "w") as file:
            file.write(url)
        for verb in (["list"], ["register", "x"], ["submit", "true"], ["monitor", "--once"]):
            result = ends(baton, *verb)
            assert ".moved" in result.err + result.out
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_migration_out_of_the_folder_is_kept_in_the_users_map(baton, tmp_path):
    baton("registry", "migrate", "--to", f"sqlite:{tmp_path}/new/registry.db")
    assert baton.job in baton("list").out
    baton("registry", "migrate", "--to", f"file:{tmp_path}/again")
    assert baton.job in baton("list").out


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": "../../../precious"}, {"session_id": "/etc"}, {"session_id": ".."}, {"name": "-t"},
        {"socket": "../x"}, {"pane_id": "=main"}, {"conversation_id": "--dangerously-skip-permissions"},
        {"job_id": "../../x"}, {"workdir": "here"}, {"state": "asleep"}, {"yolo": "yes"},
    ],
)  # fmt: skip
def test_a_row_with_a_value_of_another_form_is_named_and_hides_no_other(baton, changes, tmp_path):
    precious = tmp_path / "precious" / "file"
    precious.parent.mkdir()
    precious.touch()
    add_rows(baton, session_row("bad") | changes, session_row("good", session_id="1" * 16, state="stopped"))
    listed = baton("session", "list", "--all")
    assert "good" in listed.out
    name, field = changes.get("name", "bad"), next(iter(changes))
    assert f"session {name!r}: {field}" in listed.err
    assert "no sessions" not in listed.err
    assert field in ends(baton, "session", "prune", "--older-than", "0s", code=0).err
    assert precious.exists()
    assert baton("session", "prune", "--older-than", "0s", "--invalid").err == ""
    assert baton("session", "list", "--all").err == "no sessions\n"
    assert precious.exists()


@pytest.mark.parametrize("record", ["{}", "[]", "7", "not JSON", '{"name": "bad"}', "[" * 100_000])
def test_one_bad_row_does_not_end_a_looping_monitor(baton, record):
    add_rows(baton, session_row("good"))
    with opened(baton, "agent-sessions.db") as database:
        database.execute("INSERT INTO sessions VALUES ('bad', 'x', 'running', ?)", (record,))
    baton("publish", baton.job, "--event", "progress")  # each sweep says that it cannot be sent
    with started(baton, "monitor", "--interval", "0.05") as process:
        assert [baton.job in process.stdout.readline() for _ in range(3)] == [True] * 3
        process.terminate()
        assert process.wait(QUICK_SEC) == 0
    assert ends(baton, "monitor", "--once", code=0).err == ""
    assert "session 'bad'" in ends(baton, "doctor", code=None).out


def test_prune_follows_no_link_in_place_of_a_sessions_folder(baton, tmp_path):
    precious = tmp_path / "precious" / "file"
    precious.parent.mkdir()
    precious.touch()
    add_rows(baton, session_row())
    os.makedirs(within(baton, "sessions"))
    os.symlink(precious.parent, within(baton, f"sessions/{'0' * 16}"))
    ends(baton, "session", "prune", "--older-than", "0s", code=None)
    assert precious.exists()


# -- tmux ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [["attach"], ["capture"], ["send"], ["stop"]])
@pytest.mark.parametrize("owner", [pytest.param("another", marks=pytest.mark.as_root), "me, in a folder of all"])
def test_a_tmux_socket_of_another_user_is_not_used(baton, verb, owner, tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    path = str(folder / "t")
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(path)
        server.listen()
        server.settimeout(0.1)
        if owner == "another":
            os.chown(path, 65534, 65534)
        else:
            folder.chmod(0o777)
        add_rows(baton, session_row(state="running", socket=path, pane_id="%0", pane_pid=1, pane_started=1))
        more = {"send": ["hello"]}.get(verb[0], [])
        assert "is not used" in ends(baton, "session", *verb, "gpu", *more).err
        ends(baton, "monitor", "--once", code=None)
        assert "unknown" in baton("session", "list").out or verb == ["stop"]
        with pytest.raises(TimeoutError):
            server.accept()


# -- ids of conversations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini", "parrot"])
def test_an_id_that_is_an_option_never_becomes_an_argument_of_the_agent(baton, agent, tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("claude", "codex", "gemini", "parrot"):
        (tools / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$HOME/arguments"\n')
        (tools / name).chmod(0o755)
    config = tmp_path / "own.toml"
    config.write_text('[agents.parrot]\ninteractive = ["parrot"]\nresume = ["parrot", "{conversation_id}"]\n')
    own = {"PATH": f"{tools}:{baton.env['PATH']}", "BATON_CONFIG": str(config)}
    no_ids = ["--dangerously-skip-permissions", "a b", "../../x", "-c", "x\ny"]
    no_ids += [] if agent == "parrot" else ["no-uuid"]  # ids of an agent that the user defines have any plain form
    for number, conversation in enumerate(no_ids):
        name = f"s{number}"
        add_rows(
            baton,
            session_row(name, state="stopped", agent=agent, conversation_id=conversation, workdir=str(tmp_path)),
        )
        assert "conversation" in ends(baton, "session", "resume", name, **own).err
    assert not (tmp_path / "arguments").exists()


def test_an_id_in_an_agents_own_words_is_taken_only_in_the_form_of_its_ids():
    from baton.adapters import find_agent
    from baton.config import Settings
    from baton.core.signal import Conversation

    gemini = find_agent(Settings(env={"HOME": "/nowhere"}), "gemini")
    evil = Conversation(conversation_id="--dangerously-skip-permissions")
    gemini.parse_output = lambda _: [evil]
    assert gemini.read_output("x") == []


# -- the audit log ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["events.ndjson", "meta.json", "status.json"])
@pytest.mark.parametrize("kind", ["pipe", "link", pytest.param("foreign", marks=pytest.mark.as_root), "huge"])
def test_a_file_of_the_audit_log_that_is_not_one_does_not_hang(baton, name, kind, tmp_path):
    path = within(baton, f"delegate_job_logs/{baton.job}/{name}")
    target = tmp_path / "target"
    target.write_text("untouched\n")
    if kind == "foreign":
        os.chown(path, 65534, 65534)
    else:
        os.unlink(path)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            os.symlink(target, path)
        else:
            with open(path, "wb") as file:
                file.truncate(2**40)
    for verb in (
        ["logs", baton.job],
        ["logs", baton.job, "--verify"],
        ["logs", "--list"],
        ["doctor"],
        ["get", baton.job],
    ):
        ends(baton, *verb, code=None)
    ends(baton, "publish", baton.job, "--event", "progress", code=0)
    assert target.read_text() == "untouched\n"


def test_a_log_folder_that_is_a_link_is_not_written_to(baton, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = within(baton, f"delegate_job_logs/{baton.job}")
    os.rename(folder, folder + ".aside")
    os.symlink(elsewhere, folder)
    result = ends(baton, "publish", baton.job, "--event", "progress", code=0)
    assert "is a link" in result.err
    assert baton.job in result.err
    assert os.listdir(elsewhere) == []


def test_verifying_a_log_does_not_wait_for_ever_for_its_lock(baton, monkeypatch):
    from baton.core.errors import RegistryBusy
    from baton.history.verify import verify_log
    from baton.storage import files

    monkeypatch.setattr(files.lock_within, "__defaults__", (0.2,))
    with open(within(baton, f"delegate_job_logs/{baton.job}/events.ndjson")) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RegistryBusy):
            verify_log(baton.job, within(baton, "delegate_job_logs"))


def test_at_a_terminal_a_command_tells_that_it_waits_for_a_lock(baton):
    soon = "from baton.storage import files; files._NOTICE_SEC = 0.1; from baton.cli.main import run; run()"
    with open(within(baton, "jobs/.lock")) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with Terminal([sys.executable, "-c", soon, "register", "x"], cwd=baton.folder, env=baton.env) as terminal:
            terminal.see("/jobs/.lock, which another process has locked (find it with: fuser ")
            fcntl.flock(held, fcntl.LOCK_UN)
            assert terminal.end() == 0


# -- folders that are links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda place: os.symlink("/etc", place), os.mkfifo], ids=["link", "pipe"])
def test_a_home_that_cannot_be_read_does_not_hide_those_of_other_folders(baton, tmp_path, make):
    other = baton("--home", "./other", "register", "x").text
    place = tmp_path / "other" / "jobs"
    shutil.move(place, tmp_path / "aside")
    make(place)
    listed = ends(baton, "list", "--all-homes", code=0)
    assert baton.job in listed.out
    assert other not in listed.out
    assert f"baton: skipped {tmp_path}/other: " in listed.err


@pytest.mark.parametrize("name", ["jobs", "sessions", "delegate_job_logs"])
def test_a_folder_of_a_home_that_is_a_link_is_refused_by_name(baton, name, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = os.path.join(os.path.realpath(within(baton, "")), name)
    if os.path.lexists(path):
        os.rename(path, path + ".aside")
    os.symlink(elsewhere, path)
    for verb in (["register", "x"], ["list"], ["session", "list"], ["doctor"], ["monitor", "--once"]):
        assert f"{path}: is a link" in ends(baton, *verb).err
    assert os.listdir(elsewhere) == []


def test_nothing_is_written_through_a_link_in_place_of_a_sessions_folder(baton, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "go").touch()
    (elsewhere / "last-screen.txt").write_text("secret")
    add_rows(
        baton,
        session_row(workdir=str(tmp_path)),
        session_row("cpu", session_id="1" * 16, state="running", pane_id="%0", pane_pid=1, pane_started=1),
    )
    os.makedirs(within(baton, "sessions"), exist_ok=True)
    for session_id in ("0" * 16, "1" * 16):
        os.symlink(elsewhere, within(baton, f"sessions/{session_id}"))
    for verb in (["capture", "gpu"], ["resume", "gpu"], ["show", "gpu"], ["stop", "cpu"]):
        result = ends(baton, "session", *verb)
        assert "is a link" in result.err
        assert "secret" not in result.out
    assert sorted(os.listdir(elsewhere)) == ["go", "last-screen.txt"]


@pytest.mark.parametrize("link", [".index", ".index/pending", ".index/leased", ".migrating"])
def test_a_registry_of_files_writes_through_no_link(tmp_path, link):
    baton = Baton(tmp_path, BATON_AGENT="shell", MQTT_BROKER="127.0.0.1", MQTT_PORT="9")
    other = f"sqlite:{tmp_path}/other/registry.db"
    baton("register", "true", "--registry", other)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    records = tmp_path / "records"
    (records / link).parent.mkdir(parents=True)
    os.symlink(elsewhere, records / link)
    verb = ["registry", "migrate", "--to", f"file:{records}"] if link == ".migrating" else ["register", "true"]
    assert "is a link" in ends(baton, *verb, "--registry", other if link == ".migrating" else f"file:{records}").err
    assert os.listdir(elsewhere) == []


# -- a registry of files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "link", pytest.param("foreign", marks=pytest.mark.as_root), "huge", "folder"])
def test_a_record_that_is_not_a_file_is_named_and_hides_no_other(tmp_path, kind):
    baton = Baton(tmp_path, BATON_AGENT="shell", MQTT_BROKER="127.0.0.1", MQTT_PORT="9")
    registry = f"file:{tmp_path}/records"
    good, bad = (baton("register", "true", "--registry", registry).text for _ in range(2))
    path = f"{tmp_path}/records/{bad}.json"
    if kind == "foreign":
        os.chown(path, 65534, 65534)
    else:
        os.rename(path, f"{tmp_path}/target")
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            os.symlink(f"{tmp_path}/target", path)
        elif kind == "folder":
            os.mkdir(path)
        else:
            with open(path, "wb") as file:
                file.truncate(2**40)
    listed = ends(baton, "list", "--registry", registry, code=0)
    assert good in listed.out
    assert bad in listed.err
    ends(baton, "get", bad, "--registry", registry)
    assert ends(baton, "pick", "--registry", registry, code=0).text == good
    ends(baton, "monitor", "--once", "--registry", registry, code=0)


# -- the local broker ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["broker", "broker/run", "broker/data"])
def test_starting_the_broker_empties_no_folder_that_a_link_points_to(tmp_path, link):
    with Office(tmp_path) as office:
        precious = tmp_path / "precious" / "file"
        precious.parent.mkdir()
        precious.touch()
        state = tmp_path / ".local" / "state" / "baton"
        (state / link).parent.mkdir(parents=True)
        os.symlink(precious.parent, state / link)
        assert str(state / link) in ends(office, "broker", "up").err
        assert os.listdir(precious.parent) == ["file"]


def test_the_broker_removes_only_its_own_files_from_its_folder(tmp_path):
    with Office(tmp_path) as office:
        run = tmp_path / ".local" / "state" / "baton" / "broker" / "run"
        run.mkdir(parents=True)
        for name in ("notes.txt", "nats-server_1.ports"):
            (run / name).touch()
        office("broker", "up")
        assert (run / "notes.txt").exists()
        assert not (run / "nats-server_1.ports").exists()


def test_the_digests_are_those_of_the_tables_that_are_created():
    from baton.registry.schema import SQLITE_1, SQLITE_2, SQLITE_DIGESTS
    from baton.storage.sqlite import schema_digest

    for version, tables in ((1, SQLITE_1), (2, SQLITE_2)):
        with closing(sqlite3.connect(":memory:")) as database:
            database.executescript(tables)
            assert schema_digest(database) == SQLITE_DIGESTS[version]


def test_the_digest_of_the_inventory_is_that_of_its_tables():
    from baton.sessions import inventory
    from baton.storage.sqlite import schema_digest

    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(inventory._TABLES)
        assert {0: schema_digest(database)} == inventory.DIGESTS
