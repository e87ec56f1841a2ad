"""The default registry: one SQLite file, for every process of one host.

Writers take an flock before `BEGIN IMMEDIATE`. The kernel's queue is fair where SQLite's own waiting starves
some of 16 writers, and with commits, checkpoints and closes one after the other, the WAL-reset bug of SQLite
before 3.51.3 has no room. Readers take no lock; they open read-only, so that their close never checkpoints.
"""

from __future__ import annotations

import os
import sqlite3
from _thread import RLock
from _weakrefset import WeakSet
from contextlib import contextmanager

from baton.core.clock import lease_expired, lease_mark
from baton.core.errors import NewerSchema, RegistryBusy, RegistryUnavailable
from baton.registry.moved import mark_moved, moved_to, refuse_moved
from baton.registry.rows import COLUMNS, jobs_that_fit
from baton.registry.sql import SqlRegistry
from baton.storage.files import FileLock, exists, fsync_dir, make_private_dir, make_store_dir, open_private, remove_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, Final

    from baton.core.clock import Clock
    from baton.core.job import Job
    from baton.registry.contract import Registry
    from baton.registry.rows import Row
    from baton.registry.sql import Transaction

SCHEMA: Final = 1
LEAST_SQLITE: Final = (3, 35)  # UPDATE ... RETURNING
_BUSY_TIMEOUT_SEC: Final = 30
_TABLES: Final = """
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY NOT NULL, schema_version INTEGER NOT NULL, status TEXT NOT NULL,
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, prompt TEXT NOT NULL, agent TEXT NOT NULL,
    agent_session TEXT NOT NULL, broker TEXT NOT NULL, topic_prefix TEXT NOT NULL,
    timeout_sec INTEGER NOT NULL, idle_timeout_sec INTEGER NOT NULL, expected_artifacts TEXT NOT NULL,
    last_seq INTEGER NOT NULL, auth_token TEXT, workdir TEXT, attempt INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL, priority INTEGER NOT NULL, claimed_by TEXT, lease_expires_at INTEGER,
    lease_mark TEXT, deadline_at INTEGER, last_event_at INTEGER, finished_at INTEGER, detail TEXT,
    validate TEXT, labels TEXT NOT NULL, extra TEXT
);
CREATE INDEX jobs_pending ON jobs (agent_session, priority DESC, created_at, job_id)
    WHERE status = 'pending';
CREATE INDEX jobs_leased ON jobs (job_id) WHERE status = 'running' AND lease_expires_at IS NOT NULL;
CREATE INDEX jobs_created ON jobs (created_at, job_id);
CREATE INDEX jobs_status ON jobs (status, created_at, job_id);
CREATE INDEX jobs_session ON jobs (agent_session, created_at, job_id);
CREATE INDEX jobs_agent ON jobs (agent, created_at, job_id);
CREATE INDEX jobs_updated ON jobs (updated_at);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, job_id TEXT NOT NULL, seq INTEGER NOT NULL, attempt INTEGER NOT NULL,
    event TEXT NOT NULL, payload BLOB NOT NULL, sent INTEGER NOT NULL, UNIQUE (job_id, seq)
);
CREATE INDEX events_unsent ON events (id) WHERE sent = 0;
"""


_WORDS: Final = (
    ("disk is full", "No space left on device; nothing was changed, free some and try again"),
    ("readonly", "the file or its folder is read-only; nothing was changed"),
    ("unable to open", "cannot be opened; too many open files, or no permission for its folder"),
    ("database is locked", "locked by another program; try again"),
    ("not a database", "is not a SQLite database; move it away, or name another with --registry"),
    ("malformed", "is damaged; move it away and restore a copy, the audit logs still tell what happened"),
)


class _Connection:
    """A database connection as the statements in `sql` see it."""

    def __init__(
        self, connection: sqlite3.Connection, identity: tuple[int, int] | None, *, lasting: bool = True
    ) -> None:
        self.raw = connection
        self.identity = identity
        self.lasting = lasting

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Row]:
        return self.raw.execute(statement, values or {}).fetchall()

    def change(self, statement: str, values: Mapping[str, Any] | None = None) -> int:
        return self.raw.execute(statement, values or {}).rowcount

    def change_many(self, statement: str, values: Iterable[Mapping[str, Any]]) -> None:
        self.raw.executemany(statement, values)


_registries: WeakSet[SqliteRegistry] = WeakSet()
_closed_for_fork: list[SqliteRegistry] = []
_FORK_WAIT_SEC: Final = 5.0


def _close_before_fork() -> None:
    """Close every connection: SQLite counts its locks by process, so a child that inherits an open database, and even
    one that opens it again, would rely on locks that it does not hold. Both sides open it again when they need it. A
    transaction of another thread ends first; one that takes too long keeps its connection."""
    for registry in list(_registries):
        if registry.in_use.acquire(timeout=_FORK_WAIT_SEC):
            _closed_for_fork.append(registry)
            registry.close()


def _allow_after_fork() -> None:
    while _closed_for_fork:
        _closed_for_fork.pop().in_use.release()


os.register_at_fork(before=_close_before_fork, after_in_parent=_allow_after_fork, after_in_child=_allow_after_fork)


class SqliteRegistry(SqlRegistry):
    multi_host = False

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.where = f"sqlite:{os.path.abspath(path)}"
        self.path = os.path.realpath(path)
        self.url = f"sqlite:{self.path}"
        self._folder = os.path.dirname(self.path)
        self.lock_path = os.path.join(self._folder, ".lock")
        self._lock = FileLock(self.lock_path)
        self._reader: _Connection | None = None
        self._writer: _Connection | None = None
        self.in_use = RLock()  # held by a transaction, so that a fork in another thread waits for its end
        _registries.add(self)

    def close(self) -> None:
        reader, self._reader = self._reader, None
        writer, self._writer = self._writer, None
        if reader is not None:
            reader.raw.close()
        if writer is not None:
            try:
                with self._lock:  # the last close of a database checkpoints it
                    writer.raw.close()
            except (OSError, RegistryBusy):  # the folder went away, or somebody is stuck: what was done is done
                writer.raw.close()

    def __del__(self) -> None:
        if self._reader is not None or self._writer is not None:
            self.close()

    # -- transactions ------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[Transaction]:
        with self._translated_errors(), self.in_use:
            # One read transaction, so that several statements see one state.
            connection = self._connection(write=False)
            connection.raw.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.raw.in_transaction:  # after an error SQLite may have ended it already
                    connection.raw.execute("ROLLBACK")
                if not connection.lasting:
                    connection.raw.close()
                    self._reader = None

    @contextmanager
    def _writing(self, *, create: bool = False) -> Iterator[Transaction]:
        with self._translated_errors(), self.in_use:
            if create:
                make_store_dir(self._folder)
            elif not exists(self.path) and moved_to(self._folder) is None:
                yield _empty()
                return
            with self._lock:
                refuse_moved(self._folder, self.url)
                connection = self._connection(write=True)
                connection.raw.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.raw.execute("COMMIT")
                except BaseException:
                    if connection.raw.in_transaction:
                        connection.raw.execute("ROLLBACK")
                    raise

    def _connection(self, *, write: bool) -> _Connection:
        """The open connection, or a new one: also when the file at our path is no longer the one we opened,
        because a migration set that one aside."""
        open_one = self._writer if write else self._reader
        try:
            found = os.stat(self.path)
            identity = (found.st_dev, found.st_ino)
        except FileNotFoundError:
            identity = None
        if open_one is not None:
            if open_one.identity == identity:
                return open_one
            open_one.raw.close()
        connection = self._open(write=write) if write or identity else _empty()
        if write:
            self._writer = connection
        else:
            self._reader = connection
        return connection

    def _open(self, *, write: bool) -> _Connection:
        if sqlite3.sqlite_version_info < LEAST_SQLITE:
            raise RegistryUnavailable(
                f"SQLite {sqlite3.sqlite_version} is too old; baton needs {'.'.join(map(str, LEAST_SQLITE))} or newer"
            )
        if write and not os.path.exists(self.path):
            self._create()
        found = os.stat(self.path)
        raw = self._connect("mode=rw" if write else "mode=ro")
        lasting = True
        try:
            version = self._schema_version(raw)
        except sqlite3.OperationalError:
            raw.close()
            if write or (os.path.exists(self.path + "-wal") and os.path.getsize(self.path + "-wal")):
                raise
            # A folder where nothing can be written, and no log to read: the file alone is the whole truth, for now.
            lasting = False
            raw = self._connect("mode=ro&immutable=1")
            version = self._schema_version(raw)
        if version != SCHEMA:
            raw.close()
            if version > SCHEMA:
                raise NewerSchema(self.path, version, SCHEMA)
            raise RegistryUnavailable(f"{self.path} is a database, but not a registry; name another with --registry")
        if write:
            raw.execute("PRAGMA synchronous = FULL")  # guard: sqlite-synchronous
        return _Connection(raw, (found.st_dev, found.st_ino), lasting=lasting)

    def _create(self) -> None:
        """Makes the database complete under another name: one that is in its place is never half a one. Called
        with the lock held, so whatever another left half made is of no use to anybody."""
        prefix = f".{os.path.basename(self.path)}.new"
        for name in os.listdir(self._folder):
            if name.startswith(prefix):
                remove_file(os.path.join(self._folder, name))
        temporary = os.path.join(self._folder, prefix)
        os.close(open_private(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        raw = sqlite3.connect(temporary, isolation_level=None)
        try:
            raw.execute("PRAGMA synchronous = FULL")
            raw.execute("PRAGMA journal_mode = WAL")
            raw.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
        finally:
            raw.close()  # checkpoints: all of it is in the one file now
        os.replace(temporary, self.path)
        fsync_dir(self._folder)

    def _connect(self, options: str) -> sqlite3.Connection:
        path = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        return sqlite3.connect(
            f"file:{path}?{options}",
            uri=True,
            isolation_level=None,
            timeout=_BUSY_TIMEOUT_SEC,
            check_same_thread=False,  # a fork in another thread closes it; `in_use` keeps the threads apart
        )

    @staticmethod
    def _schema_version(raw: sqlite3.Connection) -> int:
        version: int = raw.execute("PRAGMA user_version").fetchone()[0]
        return version

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RegistryUnavailable(f"{self.path}: {self._plain_words(str(error))}") from error
        except OSError as error:
            raise RegistryUnavailable(
                f"{error.filename or self.path}: {error.strerror}; nothing was changed"
            ) from error

    def _plain_words(self, message: str) -> str:
        """What SQLite means, and, where it does not say why, what the system says."""
        if "unable to open" in message:
            # Never open the database itself here: closing it again would drop the locks of this process.
            try:
                os.close(os.open(os.path.join(self._folder, ".lock"), os.O_RDWR | os.O_CREAT, 0o600))
            except OSError as error:
                return f"{error.strerror}; nothing was changed"
        if "disk I/O error" in message and _nearly_full(self._folder):
            message = "disk is full"
        return next((words for part, words in _WORDS if part in message), message)

    # -- leases ------------------------------------------------------------------------------------------

    def _lease_end(self, tx: Transaction, lease_ns: int) -> tuple[int, str | None]:
        return self._clock.wall_ns() + lease_ns, lease_mark(self._clock, lease_ns)

    def _expired(self, tx: Transaction, limit: int) -> list[Job]:
        # Not more rows than there are workers; which of them are late, only this machine's clock can tell.
        rows = tx.rows(
            f"SELECT {', '.join(COLUMNS)} FROM jobs"
            " WHERE status = 'running' AND lease_expires_at IS NOT NULL ORDER BY job_id"
        )
        jobs = jobs_that_fit(rows)
        late = [
            job
            for job in jobs
            if job.lease_expires_at and lease_expired(self._clock, job.lease_mark, job.lease_expires_at)
        ]
        return late[:limit]

    # -- moving ------------------------------------------------------------------------------------------

    @contextmanager
    def freeze(self) -> Iterator[None]:
        make_private_dir(self._folder)
        with self._translated_errors(), self._lock:
            yield

    def staging(self) -> Registry:
        from baton.registry.staging import staging_dir

        return SqliteRegistry(os.path.join(staging_dir(self._folder), os.path.basename(self.path)))

    def adopt(self, staging: Registry) -> None:
        from baton.registry.staging import adopt_files, set_aside_files

        staging.close()
        self.close_frozen()
        set_aside_files(self._folder, self._files())
        adopt_files(self._folder, lambda name: name == os.path.basename(self.path))

    def mark_moved(self, url: str) -> None:
        mark_moved(self._folder, url)

    def set_aside(self) -> str:
        from baton.registry.staging import set_aside_files

        self._connection(write=True).raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.close_frozen()
        return set_aside_files(self._folder, self._files())

    def _files(self) -> list[str]:
        """The database first: once it is gone from its place, nobody opens the rest. The log and the shared
        memory go with it, or another database put here would read them."""
        name = os.path.basename(self.path)
        names = (name, f"{name}-wal", f"{name}-shm")
        return [each for each in names if os.path.exists(os.path.join(self._folder, each))]

    def close_frozen(self) -> None:
        """Close while this process holds the lock already."""
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.raw.close()
        self._reader = self._writer = None


def _empty() -> _Connection:
    """What a registry that is not there yet looks like to a reader."""
    raw = sqlite3.connect(":memory:", isolation_level=None)
    raw.executescript(_TABLES)
    return _Connection(raw, None)


def _nearly_full(folder: str) -> bool:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize < 1024 * 1024
