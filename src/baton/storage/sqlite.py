"""A SQLite file that many processes of one host write, opened only if its tables are those that baton creates.

Writers take an flock before `BEGIN IMMEDIATE`. The kernel's queue is fair, while SQLite's own waiting starves some of
16 writers; and with commits, checkpoints and closes one after the other, the WAL-reset bug of SQLite before 3.51.3
cannot occur. Readers take no lock; they open read-only, so that their close never checkpoints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from weakref import WeakSet

from baton.core.cpython import RLock, sqlite3
from baton.core.errors import NewerSchema, RegistryBusy, RegistryUnavailable
from baton.core.hashing import sha256
from baton.storage import files
from baton.storage.stamp import stamp_of

LEAST_SQLITE = (3, 35)  # UPDATE ... RETURNING
_BUSY_TIMEOUT_SEC = 30
_OPEN_FILES = "/proc/self/fd"
_FORK_WAIT_SEC = 5.0
TRANSACTION_SEC = 60.0
_STEPS = 500_000  # of SQLite's virtual machine between two looks at the clock: some milliseconds


class _TimeLimit:
    """Ends a transaction that takes too long: a crafted file can keep SQLite busy for ever."""

    __slots__ = ("_ends_at",)

    def __init__(self) -> None:
        self._ends_at = 0.0

    def begin(self) -> None:
        self._ends_at = time.monotonic() + TRANSACTION_SEC

    def lift(self) -> None:
        self._ends_at = float("inf")

    def is_over(self) -> bool:
        return time.monotonic() > self._ends_at  # guard: database-time-limit


class Connection(sqlite3.Connection):
    version = 0  # of the schema, when the last transaction began
    identity: tuple[int, int] | None = None  # of the opened file
    wal: tuple[int, int] | None = None  # of the opened log, if this connection writes
    wal_link: str | None = None  # of the descriptor of that log
    lasting = True  # it may serve the next transaction, too
    time_limit: _TimeLimit


class ForeignDatabase(RegistryUnavailable):
    """The database belongs to another tool."""


class SqliteFile:
    """One database file, created with `tables` and the schema `version` on its first write. `check_location` runs with
    the lock held before each write: it raises when the file may not be written any more. `application_id` marks the
    files of baton where other tools use the same name: theirs raise ForeignDatabase, and are not changed. Without
    `keep_open` no connection outlives its transaction. `upgrade` brings version 1 to `version`, in a transaction before
    the first write."""

    def __init__(
        self,
        path: str,
        *,
        tables: str,
        version: int,
        check_location: Callable[[], None] = lambda: None,
        lock_name: str = ".lock",
        application_id: int = 0,
        keep_open: bool = True,
        upgrade: Callable[[Connection], None] | None = None,
        older: Mapping[int, str] = {},
        digests: Mapping[int, str] = {},
        what: str = "a registry",
    ) -> None:
        self.path = path
        self.folder = os.path.dirname(path)
        self.lock = files.FileLock(os.path.join(self.folder, lock_name))
        self._older = older
        self._digests = digests
        self._what = what
        self._new_name = f".{os.path.basename(path)}.new"
        self._tables = tables
        self._version = version
        self._application_id = application_id
        self._keep_open = keep_open
        self._check_location = check_location
        self._upgrade = upgrade
        self._reader: Connection | None = None
        self._writer: Connection | None = None
        self.in_use = RLock()  # held by a transaction, so that a fork in another thread waits for its end
        _files.add(self)

    def close(self) -> None:
        if self._writer is not None:
            try:
                with self.lock:  # the last close of a database checkpoints it
                    self._close_connections()
            except (OSError, RegistryBusy):
                pass  # the folder is gone, or the lock is stuck: every commit is on disk
        self._close_connections()

    def _close_connections(self) -> None:
        # They are forgotten first: Ctrl-C may come while one is closed, and a closed one serves no more.
        connections = (self._reader, self._writer)
        self._reader = self._writer = None
        for connection in connections:
            if connection is not None:
                self._close(connection)

    def _close(self, connection: Connection) -> None:
        """Close a connection. The last close of a database copies the log into it and removes the log by its name. When
        another log has that name, this would copy the pages of the wrong one: an interrupted connection copies none."""
        if connection.wal is not None and _identity(self.path + "-wal") not in (None, connection.wal):
            connection.interrupt()
        connection.close()

    def __del__(self) -> None:
        # Do not wait: this thread may hold the lock by another connection, and a process that ends starts no thread.
        self.lock.timeout_sec = 0
        self.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read one state, with any number of statements."""
        with self.translated_errors(), self.in_use:
            connection = self._connection(write=False)
            connection.time_limit.begin()
            connection.execute("BEGIN")
            try:
                if connection.version < self._version:
                    self._read_version(connection)  # another process may have upgraded it
                    self._check_version(connection)
                yield connection
            finally:
                if connection.in_transaction:  # after an error SQLite may have ended it already
                    connection.execute("ROLLBACK")
                if not (connection.lasting and self._keep_open):
                    self._reader = None
                    connection.close()

    def stamp(self) -> object:
        """Return a value that differs after each later commit; None when that is uncertain."""
        return stamp_of(f"{self.path}-wal", self.path)  # what is not in the log was written before it

    @contextmanager
    def writing(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Commit when the block ends without an error. Without `create`, a missing file is an empty database."""
        with self.translated_errors(), self.in_use:
            if create:
                if not os.path.exists(self.lock.path):
                    files.make_store_dir(self.folder)
            elif not files.exists(self.path):
                self._check_location()
                yield self._empty()
                return
            with self.lock:
                self._check_location()
                try:
                    with self._changing() as raw:
                        yield raw
                finally:
                    if not self._keep_open:
                        self._close_connections()

    @contextmanager
    def importing(self, *, locked: bool) -> Iterator[sqlite3.Connection]:
        """Write a whole registry. A new file is moved to its place when it is complete: from then on it may be the
        registry in use. `locked`: the caller holds the lock."""
        with self.translated_errors(), self.in_use:
            files.make_store_dir(self.folder)
            with (
                nullcontext() if locked else self.lock,
                self._changing() if os.path.exists(self.path) else self._creating() as raw,
            ):
                if isinstance(raw, Connection):
                    raw.time_limit.lift()
                yield raw

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Keep other writers out."""
        with self.translated_errors():
            files.make_store_dir(self.folder)
            with self.lock:
                yield

    def set_aside(self) -> str:
        """Move the files of a frozen database to another folder; return that folder."""
        self._close_connections()
        if os.path.exists(self.path):
            connection = self._open(write=True)  # of any version: nothing is written to it
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
        return files.set_aside_files(self.folder, self._existing_files())

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        raw = self._connection(write=True)
        self._check_log(raw)
        raw.time_limit.begin()
        raw.execute("BEGIN IMMEDIATE")
        try:
            yield raw
            self._check_log(raw)
            raw.execute("COMMIT")
        except BaseException:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raise
        self._check_log(raw)

    def _check_log(self, raw: Connection) -> None:
        """Raise when the log that this connection writes is not the one that other processes read."""
        # Not `stat`: after it, the kernel dates the next write anew, and the commit waits for its journal, 0.1 ms.
        if raw.wal_link is None or self._leads_to_log(raw.wal_link):
            return
        # That descriptor may have been of another connection of this process, which is closed now.
        links = (link for link, log in self._open_logs().items() if log == raw.wal and self._leads_to_log(link))
        raw.wal_link = next(links, "")
        if not raw.wal_link:  # guard: wal-at-its-path
            raw.identity = None  # the next transaction opens the database again
            raise RegistryUnavailable(
                f"{self.path}-wal was removed or replaced while baton had it open; this change is not recorded, and "
                "earlier ones may be lost: see `baton doctor`, then try again"
            )

    def _leads_to_log(self, link: str) -> bool:
        try:
            return os.readlink(link) == f"{self._real_path}-wal"
        except FileNotFoundError:
            return False  # the descriptor is closed

    @contextmanager
    def _creating(self) -> Iterator[sqlite3.Connection]:
        """Fill a new database under another name, and move it to its place when it is complete."""
        temporary = os.path.join(self.folder, self._new_name)
        self._remove_unfinished()
        try:
            os.close(files.open_private(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            raw = sqlite3.connect(temporary, isolation_level=None)
            try:
                raw.execute("PRAGMA synchronous = FULL")
                raw.execute("PRAGMA journal_mode = WAL")
                raw.executescript(f"BEGIN IMMEDIATE; {self._tables} {self._mark()}")
                yield raw
                raw.execute("COMMIT")
                # All of it must be in the one file. A close would do the same, and keep silent about a full disk.
                raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                raw.close()
            # A log without its database would be read into this one.
            files.set_aside_files(self.folder, self._existing_files())
            os.replace(temporary, self.path)
            files.fsync_dir(self.folder)
        finally:
            self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        for name in os.listdir(self.folder):
            if name.startswith(self._new_name):
                files.remove_file(os.path.join(self.folder, name))

    def _existing_files(self) -> list[str]:
        """Return the database, its log and its shared memory. The database comes first: once it is moved away, no
        process opens the rest."""
        name = os.path.basename(self.path)
        names = (name, f"{name}-wal", f"{name}-shm")
        return [each for each in names if os.path.exists(os.path.join(self.folder, each))]

    def _connection(self, *, write: bool) -> Connection:
        """Return the open connection, or a new one when a migration has moved the opened file away."""
        open_one = self._writer if write else self._reader
        identity = _identity(self.path)
        if open_one is not None:
            if open_one.identity == identity:
                return open_one
            self._reader, self._writer = (self._reader, None) if write else (None, self._writer)
            self._close(open_one)
        if identity is None and write:
            with self._creating():
                pass
        connection = self._open(write=write) if write or identity else self._empty()
        if write:
            self._bring_up_to_date(connection)
            self._writer = connection
        else:
            self._reader = connection
        return connection

    def _bring_up_to_date(self, connection: Connection) -> None:
        if connection.version == self._version or self._upgrade is None:
            return
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._read_version(connection)
            self._check_version(connection)
            if connection.version < self._version:
                self._upgrade(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()  # rolls back
            raise
        connection.version = self._version

    def _open(self, *, write: bool) -> Connection:
        if tuple(map(int, sqlite3.sqlite_version.split("."))) < LEAST_SQLITE:
            raise RegistryUnavailable(
                f"SQLite {sqlite3.sqlite_version} is too old; baton needs {'.'.join(map(str, LEAST_SQLITE))} or newer"
            )
        identity = _identity(self.path)
        before = self._open_logs() if write else {}
        _check_files(self.path)
        raw = self._connect("mode=rw" if write else "mode=ro")
        try:
            self._read_version(raw)
        except sqlite3.OperationalError:
            raw.close()
            if write or (os.path.exists(self.path + "-wal") and os.path.getsize(self.path + "-wal")):
                raise
            # The folder is read-only and there is no log: for now, the file alone holds everything.
            raw = self._connect("mode=ro&immutable=1")
            raw.lasting = False
            self._read_version(raw)
        try:
            complete = self._check_schema(raw)
        except BaseException:
            raw.close()
            raise
        if not complete and not write:
            raw.close()
            return self._empty()
        if write and self._application_id and not (complete and self._mark_of(raw)):
            raw.executescript(f"BEGIN IMMEDIATE; {self._tables} {self._mark()} COMMIT;")
        if write:
            raw.execute("PRAGMA synchronous = FULL")  # guard: sqlite-synchronous
            raw.wal_link, raw.wal = self._opened_log(before)
        raw.identity = identity
        return raw

    def _mark(self) -> str:
        return f"PRAGMA user_version = {self._version}; PRAGMA application_id = {self._application_id};"

    @staticmethod
    def _mark_of(raw: Connection) -> int:
        return int(raw.execute("PRAGMA application_id").fetchone()[0])

    def _check_schema(self, raw: Connection) -> bool:
        """Refuse a database with other tables, indexes, triggers or views than baton creates: a trigger runs with each
        write, a view may never end. Return whether the tables are there: the creation by 0.1.0, which wrote no mark,
        may have died before. Raise ForeignDatabase for one of another tool."""
        is_ours = not self._application_id or self._mark_of(raw) == self._application_id
        if is_ours and self._digests.get(raw.version) == schema_digest(raw):  # saves creating the tables in memory
            return True
        raw.execute("BEGIN")  # another process may upgrade it right now
        self._read_version(raw)
        found = _objects(raw)
        raw.execute("ROLLBACK")
        wanted = _objects(self._empty(raw.version))
        foreign = [name for sql, name in found.items() if sql not in wanted]
        if self._application_id:
            mark = self._mark_of(raw)
            if mark not in (0, self._application_id) or (foreign and mark == 0):
                raise ForeignDatabase(f"{self.path} is a database of another tool")
        self._check_version(raw)
        complete = found.keys() == wanted.keys()
        if foreign or not (complete or self._application_id):  # guard: database-schema
            which = f"baton does not create its {foreign[0]}" if foreign else "some of its tables are missing"
            raise RegistryUnavailable(f"{self.path} is not {self._what} as baton creates it: {which}; move it away")
        return complete

    @staticmethod
    def _read_version(raw: Connection) -> None:
        raw.version = raw.execute("PRAGMA user_version").fetchone()[0]

    def _check_version(self, raw: Connection) -> None:
        version, oldest = raw.version, self._version if self._upgrade is None else 1
        if oldest <= version <= self._version:
            return
        if version > self._version:
            raise NewerSchema(self.path, version, self._version)
        raise RegistryUnavailable(f"{self.path} is a database, but not {self._what}; name another with --registry")

    def _opened_log(self, before: dict[str, tuple[int, int]]) -> tuple[str | None, tuple[int, int] | None]:
        """Return the log that was opened since the process had those open: the link of its descriptor, which may be one
        used before, and its identity. A database whose creator died has none."""
        logs = self._open_logs()
        new = {link: log for link, log in logs.items() if before.get(link) != log}
        return next(iter((new or logs).items()), (None, None))

    def _open_logs(self) -> dict[str, tuple[int, int]]:
        """Return the logs of this database that the process has open, by the link of the descriptor."""
        self._real_path = os.path.realpath(self.path)
        links = [f"{_OPEN_FILES}/{name}" for name in os.listdir(_OPEN_FILES)]
        return {link: log for link in links if (log := _identity(link, opened_as=f"{self._real_path}-wal"))}

    def _connect(self, options: str) -> Connection:
        path = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        return _connect(f"file:{path}?{options}")

    def _empty(self, version: int | None = None) -> Connection:
        """Return an empty database in memory, of the present version or of an older one."""
        raw = _connect("file::memory:")
        raw.executescript(self._tables if version is None else self._older.get(version, self._tables))
        raw.version = self._version
        return raw

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RegistryUnavailable(f"{self.path}: {_explain(error, self.lock.path)}") from error
        except OSError as error:
            raise RegistryUnavailable(files.os_error_text(error, self.path)) from error


_OBJECTS = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"  # NULL: the index of a UNIQUE or KEY


def _objects(raw: sqlite3.Connection) -> dict[str, str]:
    """Return the tables, indexes, triggers and views of a database: the statement that creates each, and its name.
    0.1.0 wrote the same statements with other spaces and capitals."""
    return {"".join(sql.lower().split()): f"{kind} {name}" for kind, name, sql in raw.execute(_OBJECTS)}


def schema_digest(raw: sqlite3.Connection) -> str:
    return str(sha256("\n".join(sorted(_objects(raw))).encode()).hexdigest())


def _explain(error: sqlite3.Error, lock_path: str) -> str:
    try:
        from baton.storage.sqlite_advice import explain
    except OSError as failed:  # with too many open files, a module cannot be read, either
        return f"{failed.strerror}; nothing was changed"
    return explain(str(error), lock_path)


def _check_files(path: str) -> None:
    """Refuse a database that is a link or a pipe, or belongs to another user. Refuse a rollback journal, which baton
    never leaves: SQLite would obey it, and it can name any file to delete."""
    for suffix in ("", "-wal", "-shm"):
        files.check_if_exists(path + suffix)
    if os.path.lexists(path + "-journal"):  # guard: database-journal
        raise RegistryUnavailable(f"{path}-journal was not written by baton, which keeps a -wal; move it away")


def _connect(uri: str) -> Connection:
    raw = sqlite3.connect(
        uri,
        uri=True,
        isolation_level=None,
        timeout=_BUSY_TIMEOUT_SEC,
        check_same_thread=False,  # a fork in another thread closes it; `in_use` keeps the threads apart
        factory=Connection,
    )
    raw.execute("PRAGMA trusted_schema = OFF")
    raw.time_limit = _TimeLimit()
    raw.time_limit.begin()
    raw.set_progress_handler(raw.time_limit.is_over, _STEPS)
    return raw


def _identity(path: str, opened_as: str | None = None) -> tuple[int, int] | None:
    """Return which file it is; None without one, and for the link of a descriptor that was not `opened_as` this."""
    try:
        if opened_as is not None and os.readlink(path).removesuffix(" (deleted)") != opened_as:
            return None
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


_files: WeakSet[SqliteFile] = WeakSet()
_closed_for_fork: list[SqliteFile] = []


def _close_before_fork() -> None:
    """Close every connection: SQLite counts its locks by process, so a child that inherits an open database, and even
    one that opens it again, would rely on locks that it does not hold. Both sides open it again when they need it. A
    transaction of another thread ends first; one that takes too long keeps its connection."""
    for file in list(_files):
        if file.in_use.acquire(timeout=_FORK_WAIT_SEC):
            _closed_for_fork.append(file)
            file.close()


def _allow_after_fork() -> None:
    while _closed_for_fork:
        _closed_for_fork.pop().in_use.release()


os.register_at_fork(before=_close_before_fork, after_in_parent=_allow_after_fork, after_in_child=_allow_after_fork)
