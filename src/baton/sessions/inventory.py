"""Store the sessions: one row for each name, in SQLite (WAL), and the archive of those that have ended."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager

from baton.config import Settings
from baton.core.awake_clock import AwakeClock
from baton.core.clock import SECOND_NS
from baton.core.errors import InvalidSession, NameInUse, SessionNotFound
from baton.core.fields import parse_json
from baton.sessions.processes import Process, ProcessId, command_line, marked_processes
from baton.sessions.session import Session, State
from baton.storage.files import make_home, refuse_link, refuse_network_fs
from baton.storage.sqlite import ForeignDatabase, SqliteFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.sessions.archive import Archive

_LOOK_SEC = 0.05
_END_SEC = 5.0
_TABLES = """
CREATE TABLE IF NOT EXISTS sessions (
    name TEXT PRIMARY KEY, session_id TEXT NOT NULL, state TEXT NOT NULL, record TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sessions_id ON sessions (session_id);
CREATE INDEX IF NOT EXISTS sessions_state ON sessions (state);
"""
DIGESTS = {0: "bf31fda0a15e3fc37f1c868f23121394f2d0481d7c07c67b2600b32c6f422914"}  # of these tables
_SELECT = "SELECT name, session_id, state, record FROM sessions"


_MARK = int.from_bytes(b"BATN")
_NAMES = ("agent-sessions", "baton-sessions")  # the second where another tool has a file under the first


class Inventory:
    def __init__(self, settings: Settings) -> None:
        self.home = os.path.abspath(settings.home)
        self._settings = settings
        if not settings.allow_network_fs:
            refuse_network_fs(self.home)
        self._opened: SqliteFile | None = None
        self._found: tuple[object, str, Session | None] = (None, "", None)
        self._runners: tuple[object, list[tuple[str, ProcessId]]] = (None, [])

    def _file(self) -> SqliteFile:
        if self._opened is None:
            usual, other = (f"{name}.db" for name in _NAMES)
            if os.path.lexists(os.path.join(self.home, other)):  # also when the other tool's is gone
                self._opened = self._open(other)
                return self._opened
            try:
                self._opened = self._open(usual)
            except ForeignDatabase:
                self._opened = self._open(other)
        return self._opened

    def _open(self, name: str) -> SqliteFile:
        path = os.path.join(self.home, name)
        # The runner of a session waits for days between two changes.
        file = SqliteFile(
            path,
            tables=_TABLES,
            version=0,
            lock_name=f"{name}.lock",
            application_id=_MARK,
            digests=DIGESTS,
            keep_open=False,
            what="an inventory of sessions",
        )
        with file.reading():
            return file

    def _archive(self) -> Archive:
        from baton.sessions.archive import Archive, is_foreign  # a session that runs has nothing to do with it

        usual, other = (os.path.join(self.home, f"{name}.yaml") for name in _NAMES)
        return Archive(other if os.path.lexists(other) or is_foreign(usual) else usual)

    def note(self) -> str | None:
        """Return one line about files of other tools that have the names of baton's; None if there are none."""
        names = [os.path.basename(path) for path in (self._file().path, self._archive().path)]
        pairs = [(name, name.replace(*_NAMES[::-1])) for name in names if name.startswith(_NAMES[1])]
        own = [name for name, usual in pairs if os.path.lexists(os.path.join(self.home, usual))]
        theirs = " and ".join(name.replace(*_NAMES[::-1]) for name in own)
        verb = "is" if len(own) == 1 else "are"
        return f"{theirs} {verb} of another tool and left alone; baton uses {' and '.join(own)}" if own else None

    def folder_of(self, session: Session) -> str:
        """Return the private folder of a session. Refuse a link in its place."""
        folder = os.path.join(self.home, "sessions", session.session_id)
        refuse_link(folder)
        return folder

    @property
    def home_id(self) -> str:
        return self._settings.home_id  # the first write below a new home sets it

    def runner_of(self, session: Session) -> ProcessId | None:
        """Return the live runner of the session; None if it has ended, or is that of a copy's original."""
        runner, folder = session.runner(), os.path.realpath(self.folder_of(session))
        if runner is None or folder not in map(os.path.realpath, command_line(runner)):  # guard: runner-of-this-home
            return None
        return runner

    def agent_processes(self, session: Session) -> list[Process]:
        """Return the processes of the session's agent."""
        runner = self.runner_of(session)
        pid = None if runner is None else runner.pid
        return marked_processes(session.session_id, pid, home=self.home, home_id=self.home_id)

    def get(self, name: str) -> Session:
        """Return the session of this name; raise SessionNotFound or InvalidSession."""
        sessions, invalid = self._parse_rows("WHERE name = ?", name)
        for session in sessions:
            return session
        raise invalid[0] if invalid else SessionNotFound(name)

    def find_named(self, *names: str) -> list[Session]:
        """Return the sessions that have these names, in this order, without invalid ones."""
        found = {
            session.name: session for session in self._select(f"WHERE name IN ({', '.join('?' * len(names))})", *names)
        }
        return [found[name] for name in names if name in found]

    def find(self, session_id: str) -> Session | None:
        """Return the session; None if there is none. The one of the last call, while nothing was written since."""
        stamp = self._file().stamp()
        if stamp is None or (stamp, session_id) != self._found[:2]:
            found = self._select("WHERE session_id = ?", session_id)
            self._found = (stamp, session_id, found[0] if found else None)
        return self._found[2]

    def all(self, *states: State) -> list[Session]:
        """Return the sessions in these states, or in any, by name."""
        marks = ", ".join("?" * len(states))
        return self._select(f"WHERE state IN ({marks}) ORDER BY name" if states else "ORDER BY name", *states)

    def lost(self) -> list[Session]:
        """Return the running sessions whose runner has ended without a trace. It reads no more than that takes. None of
        another user, whose processes may be hidden from this one."""
        paths = [os.path.join(self.home, f"{name}.db") for name in reversed(_NAMES)]
        owner = next((os.stat(path).st_uid for path in paths if os.path.exists(path)), None)
        if owner is None:
            return []
        if owner != os.geteuid():  # guard: lost-of-another-user
            return []
        file = self._file()
        stamp = file.stamp()
        if stamp is None or stamp != self._runners[0]:
            with file.reading() as tx:
                rows = tx.execute(
                    "SELECT session_id, record FROM sessions WHERE state = ?", (State.RUNNING,)
                ).fetchall()
            self._runners = stamp, [each for each in map(_runner_of_row, rows) if each is not None]
        ended = [session_id for session_id, runner in self._runners[1] if not runner.is_alive()]
        found = [session for session_id in ended if (session := self.find(session_id)) is not None]
        return [session for session in found if session.host == self._settings.host and session.is_lost()]

    def made_for(self, job_id: str) -> Session | None:
        """Return the running session that was created for this job."""
        return next((session for session in self.all(State.RUNNING) if session.made_for == job_id), None)

    def wait_for_end_of(self, job_id: str) -> None:
        """Wait a moment for the end of the session that was created for a job: its runner keeps its output by then."""
        clock = AwakeClock()
        until_ns = clock.monotonic_ns() + int(_END_SEC * SECOND_NS)
        while (session := self.made_for(job_id)) is not None and session.has_live_runner():
            if clock.monotonic_ns() > until_ns:
                return
            clock.sleep(_LOOK_SEC)

    def add(self, session: Session, *, replace: bool = False) -> Session | None:
        """Claim the name; return the ended session that had it before.

        Raise NameInUse when a running session has it, or, without `replace`, one that could be resumed."""
        with self._writing() as tx:
            before = _row(tx, session.name)
            if before is not None:
                _refuse_replacing(before, stopped_too=not replace)
            _refuse_open_conversation(tx, session)
            _write(tx, session)
        return before

    def change(self, session: Session, change: Callable[[Session], Session]) -> Session:
        """Write what `change` returns for the stored session, and return it.

        Raise SessionNotFound when another session has the name now. A session that ends is added to the archive; one
        that runs again is removed from it."""
        with self._writing() as tx:
            before = _row(tx, session.name)
            if before is None or before.session_id != session.session_id:
                raise SessionNotFound(session.name)
            after = change(before)
            if after.state is State.RUNNING and before.state is not State.RUNNING:
                _refuse_open_conversation(tx, after)
            _write(tx, after)
            if after.state is not State.RUNNING and after != before:
                self._archive().put(after)
            elif after.state is State.RUNNING and before.state is not State.RUNNING:
                self._archive().remove(after.session_id)
        return after

    def remember_conversation(self, session: Session, conversation_id: str) -> Session:
        return self.change(session, lambda current: current.replace(conversation_id=conversation_id))

    def remove(self, session: Session, *, restore: Session | None) -> None:
        """Undo `add`, for a creation that failed. `restore` is the session that had the name before."""
        with self._writing() as tx:
            current = _row(tx, session.name)
            if current is None or current.session_id != session.session_id:
                return
            tx.execute("DELETE FROM sessions WHERE name = ?", (session.name,))
            if restore is not None:
                _write(tx, restore)
            self._archive().remove(session.session_id)

    def prune_archive(self, before_ns: int, keep: Container[str], *, dry_run: bool = False) -> list[int]:
        """Remove old entries of the archive, as `Archive.prune` does."""
        archive = self._archive()
        return archive.prune(before_ns, keep, dry_run=dry_run) if os.path.exists(archive.path) else []

    def forget(self, sessions: Iterable[Session]) -> list[Session]:
        """Remove the sessions that have not changed since they were read, and return them. The archive keeps them."""
        with self._writing() as tx:
            still = [session for session in sessions if _row(tx, session.name) == session]
            tx.executemany("DELETE FROM sessions WHERE name = ?", [(session.name,) for session in still])
        return still

    def _select(self, condition: str, *values: str) -> list[Session]:
        """Return the sessions of these rows, without the invalid ones."""
        sessions, _ = self._parse_rows(condition, *values)
        return sessions

    def invalid(self) -> list[InvalidSession]:
        """Return why each row that is not a session is none."""
        return self._parse_rows("ORDER BY name")[1]

    def ids(self) -> set[str]:
        """Return the session id of every row, also of rows that are not valid."""
        with self._file().reading() as tx:
            return {str(row[0]) for row in tx.execute("SELECT session_id FROM sessions")}

    def remove_invalid(self) -> list[InvalidSession]:
        """Remove the rows that are not sessions, and return why."""
        invalid = self.invalid()
        if invalid:
            with self._writing() as tx:
                tx.executemany("DELETE FROM sessions WHERE name = ?", [(error.name,) for error in invalid])
        return invalid

    def _parse_rows(self, condition: str, *values: str) -> tuple[list[Session], list[InvalidSession]]:
        with self._file().reading() as tx:
            return _parse_rows(tx, condition, *values)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        make_home(self.home)
        with self._file().writing(create=True) as tx:
            yield tx


def _parse_rows(tx: sqlite3.Connection, condition: str, *values: str) -> tuple[list[Session], list[InvalidSession]]:
    """Return the sessions of these rows, and why each of the others is none."""
    sessions, invalid = [], []
    for row in tx.execute(f"{_SELECT} {condition}", values).fetchall():
        try:
            sessions.append(_parse(row))
        except InvalidSession as error:
            invalid.append(error)
    return sessions, invalid


def _runner_of_row(row: tuple[object, ...]) -> tuple[str, ProcessId] | None:
    """Return the id of a session and its runner; None without a runner, or for a row that `_parse` would refuse."""
    session_id, record = row
    try:
        found = parse_json(str(record))
    except ValueError:
        return None
    pid, started = (found.get("pane_pid"), found.get("pane_started")) if isinstance(found, dict) else (None, None)
    if type(pid) is not int or type(started) is not int:
        return None
    return str(session_id), ProcessId(pid=pid, started=started)


def _row(tx: sqlite3.Connection, name: str) -> Session | None:
    row = tx.execute(f"{_SELECT} WHERE name = ?", (name,)).fetchone()
    return _parse(row) if row else None


def _parse(row: tuple[object, ...]) -> Session:
    name, *columns, record = row
    try:
        found = parse_json(str(record))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidSession(str(name), "record", "is not a JSON object")
    session = Session.parse(found, str(name))
    if [session.name, session.session_id, session.state] != [name, *columns]:
        raise InvalidSession(str(name), "record", "is of another session than its row")
    return session


def _write(tx: sqlite3.Connection, session: Session) -> None:
    tx.execute(
        "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)",
        (session.name, session.session_id, session.state, json.dumps(session.record())),
    )


def _refuse_open_conversation(tx: sqlite3.Connection, session: Session) -> None:
    """Raise NameInUse if a running session has the same conversation: two agents would write into it."""
    if session.conversation_id is None:
        return
    for other in _parse_rows(tx, "WHERE state = ?", State.RUNNING)[0]:
        same = other.conversation_id == session.conversation_id and other.agent == session.agent
        if same and other.session_id != session.session_id:  # guard: open-conversation
            job = f" with job {other.job_id}" if other.job_id else ""
            raise NameInUse(
                f"session {other.name!r} runs{job} and has this conversation open; wait for its end, or stop it first"
            )


def _refuse_replacing(before: Session, *, stopped_too: bool) -> None:
    if before.state is State.RUNNING:
        raise NameInUse(f"session {before.name!r} is running already; stop it, or choose another name")
    if before.state is State.STOPPED and before.conversation_id and stopped_too:
        raise NameInUse(
            f"session {before.name!r} was stopped with its conversation kept: `baton session resume {before.name}`, or "
            "--replace to start a new one"
        )
