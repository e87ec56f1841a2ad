"""Look at the content of a home before the user trusts it. Nothing in it is run, followed, locked or changed.

Only regular files are opened. Databases are read as copies in a private folder, with a time limit, and their tables
only if no view or trigger could take part.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from baton.core.errors import BatonError
from baton.core.fields import one_line, parse_json
from baton.core.value import Value
from baton.storage.files import make_private_dir, open_private, outside

MAX_SETTINGS_BYTES = 1024 * 1024
_MAX_RECORD_BYTES = 16 * 1024 * 1024
_MAX_DATABASE_BYTES = 256 * 1024 * 1024
_MAX_DEPTH = 32
_MAX_SHOWN = 20
_PROMPT_CHARS = 200
_COMMAND_CHARS = 500
_READ_SEC = 1.0  # for all databases together
_RECORD = re.compile(r"jobs/[0-9a-f]{8,32}\.json", re.ASCII)
# The named pipe through which a session gets its environment, and the socket of its runner. In a home that is taken
# over, no process serves them: it has ended, or it is that of the original.
_OF_A_PROCESS = {
    stat.S_IFIFO: re.compile(r"sessions/[0-9a-f]{16}/go", re.ASCII),
    stat.S_IFSOCK: re.compile(r"sessions/[0-9a-f]{16}/witness\.sock", re.ASCII),
}
_REGISTRY = "jobs/registry.db"
_INVENTORIES = ("agent-sessions.db", "baton-sessions.db")
_NOT_OURS = "is not a database of baton; it is left alone"
_STATUSES = ("pending", "running", "completed", "error", "cancelled")
_UNFINISHED = ("pending", "running")
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class UnfinishedJob(Value):
    """A job that would go on after the home is adopted; `validate` is a command that baton would run for it. `yolo`:
    its agent would not ask before it acts."""

    job_id: str
    status: str
    agent: str
    prompt: str
    validate: str | None
    yolo: bool


class FoundSession(Value):
    """A running session in the inventory. `pane_pid` and `pane_started` are the process that was in its pane."""

    name: str
    agent: str
    session_id: str
    pane_pid: int | None
    pane_started: int | None


class Contents(Value):
    """What a folder holds that is about to become a home."""

    home_id: str | None
    jobs: dict[str, int]
    """The number of jobs by status."""
    unfinished: list[UnfinishedJob]
    """At most 20 pending and running jobs."""
    sessions: list[FoundSession]
    settings: dict[str, str]
    """What its baton.toml sets, by name; `[agents.NAME]` has the command."""
    databases: dict[str, str]
    """What is known about each database, by its path inside the home."""
    moved_to: str | None
    """The url in the note of a migration, as it is written there."""
    refused: list[str]
    """What may not be in a home: each with its path and the reason."""


class Found(Value):
    """One entry of a home: its path inside the home and its status without following a link."""

    path: str
    status: os.stat_result

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def is_of_process(self) -> bool:
        """Whether it is the pipe or the socket of a session's process. It is accepted, and not copied."""
        path = _OF_A_PROCESS.get(stat.S_IFMT(self.status.st_mode))
        return path is not None and path.fullmatch(self.path) is not None


def holds_job_records(home: str) -> bool:
    """Return whether the folder has job records where a home of the scripts keeps them."""
    try:
        return any(_RECORD.fullmatch(f"jobs/{name}") for name in os.listdir(os.path.join(home, "jobs")))
    except OSError:
        return False


def open_folder(name: str, parent: int | None = None) -> int:
    """Return a descriptor of a real folder; OSError if it is a link or anything else by now."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)


def each_entry(home: str) -> Iterator[tuple[Found, int]]:
    """Yield everything in the folder, a folder before what is in it, with the descriptor of the folder that it is in.
    Follow no link, also if a folder is replaced by one meanwhile."""
    fd = open_folder(home)
    try:
        yield from _entries_below(home, fd, "")
    finally:
        os.close(fd)


def _entries_below(home: str, fd: int, folder: str) -> Iterator[tuple[Found, int]]:
    if folder.count("/") >= _MAX_DEPTH:
        raise BatonError(f"{os.path.join(home, folder)} is nested too deeply; nothing was changed")
    for name in sorted(os.listdir(fd)):
        status = _status_of(name, fd)
        if status is None:
            continue  # it was temporary
        entry = Found(path=os.path.join(folder, name), status=status)
        yield entry, fd
        if entry.is_folder:
            below = open_folder(name, fd)
            try:
                yield from _entries_below(home, below, entry.path)
            finally:
                os.close(below)


def _status_of(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def why_refused(home: str, entry: Found, fd: int, *, owner: int, in_place: bool) -> str | None:
    """Return why the entry may not be part of a home, or None. `owner` is the user whose files are accepted."""
    mode = stat.S_IFMT(entry.status.st_mode)
    if entry.status.st_uid not in (owner, os.geteuid()):
        return f"belongs to another user ({entry.status.st_uid})"
    if entry.is_link:
        target = os.readlink(os.path.basename(entry.path), dir_fd=fd)
        inside = os.path.normpath(os.path.join(os.path.dirname(entry.path), target))
        if os.path.isabs(target) or inside.startswith("..") or outside(entry.path, home):
            return f"is a link that leaves the folder, to {target}"
        return None
    if mode in _KINDS and not entry.is_of_process:
        return f"is {_KINDS[mode]}"
    if in_place and mode == stat.S_IFREG and entry.status.st_nlink > 1:
        return "has another name elsewhere (a hard link)"
    return None


def inspect(home: str, *, scratch: str, owner: int, in_place: bool = False) -> Contents:
    """Return what the folder holds. Databases are copied into a new folder inside `scratch`, which is removed again."""
    refused, files = [], {}
    for entry, fd in each_entry(home):
        if (why := why_refused(home, entry, fd, owner=owner, in_place=in_place)) is not None:
            refused.append(f"{entry.path} {why}")
        if stat.S_ISREG(entry.status.st_mode):
            files[entry.path] = entry.status.st_size
    counts: Counter[str] = Counter()
    unfinished: list[UnfinishedJob] = []
    for path in files:
        if _RECORD.fullmatch(path):
            record = _read_json(home, path)
            counts[_status(record.get("status"))] += 1
            if record.get("status") in _UNFINISHED and len(unfinished) < _MAX_SHOWN:
                unfinished.append(_unfinished_job(record))
    databases = {path: _NOT_OURS for path in files if path.endswith(".db") and "/." not in f"/{path}"}
    sessions: list[FoundSession] = []
    deadline = time.monotonic() + _READ_SEC
    for path, size in files.items():
        if path in (_REGISTRY, *_INVENTORIES):
            try:
                with _copied_database(home, path, size, scratch, deadline) as database:
                    databases[path] = _describe(database, path, counts, unfinished, sessions)
            except (sqlite3.Error, OSError) as error:
                databases[path] = f"cannot be read: {error}"
    note = _read(home, "jobs/.moved", 4096) if "jobs/.moved" in files else b""
    marker = _read_json(home, "home.json") if "home.json" in files else {}
    home_id = marker.get("home_id")
    return Contents(
        home_id=home_id if isinstance(home_id, str) and re.fullmatch(r"[0-9a-f]{16}", home_id) else None,
        jobs={status: counts[status] for status in (*_STATUSES, "invalid") if counts[status]},
        unfinished=unfinished,
        sessions=sessions,
        settings=_settings(home, files["baton.toml"]) if "baton.toml" in files else {},
        databases=databases,
        moved_to=note.decode(errors="replace").strip() or None,
        refused=refused,
    )


def _read(home: str, path: str, at_most: int) -> bytes:
    """Return the start of a regular file; nothing if it is not one any more."""
    try:
        fd = open_private(os.path.join(home, path), os.O_RDONLY, owner=os.lstat(home).st_uid)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.EACCES, errno.EPERM):
            return b""
        raise
    with open(fd, "rb") as file:
        return file.read(at_most)


def _read_json(home: str, path: str) -> dict[str, Any]:
    return _parse_object(_read(home, path, _MAX_RECORD_BYTES))


def _parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object; an empty one for anything else."""
    try:
        record = parse_json(text)
    except ValueError:
        record = {}
    return record if isinstance(record, dict) else {}


def _status(value: object) -> str:
    return value if isinstance(value, str) and value in _STATUSES else "invalid"


def _unfinished_job(record: dict[str, Any]) -> UnfinishedJob:
    validate, options = record.get("validate"), record.get("start_options")
    if isinstance(options, str):  # in a database
        options = _parse_object(options)
    return UnfinishedJob(
        job_id=str(record.get("job_id"))[:32],
        status=_status(record.get("status")),
        agent=str(record.get("agent"))[:64],
        prompt=one_line(str(record.get("prompt")), _PROMPT_CHARS),  # guard: whole-command-shown
        validate=None if validate is None else one_line(str(validate), _COMMAND_CHARS),
        yolo=isinstance(options, dict) and options.get("yolo") is True,
    )


def _settings(home: str, size: int) -> dict[str, str]:
    import tomllib

    if size > MAX_SETTINGS_BYTES:
        return {"baton.toml": f"is longer than {MAX_SETTINGS_BYTES} bytes and is refused"}
    try:
        table = tomllib.loads(_read(home, "baton.toml", MAX_SETTINGS_BYTES).decode())
    except (ValueError, RecursionError):
        return {"baton.toml": "is not TOML and is refused"}
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= {f"[{name}.{key}]": one_line(str(each), _COMMAND_CHARS) for key, each in value.items()}
        else:
            found[name] = one_line(str(value), _COMMAND_CHARS)
    return found


@contextmanager
def _copied_database(home: str, path: str, size: int, scratch: str, deadline: float) -> Iterator[sqlite3.Connection]:
    """Open a copy of the database with its log. Statements that take too long are interrupted."""
    if size > _MAX_DATABASE_BYTES:
        raise OSError(errno.EFBIG, f"larger than {_MAX_DATABASE_BYTES} bytes")
    make_private_dir(scratch)
    with TemporaryDirectory(prefix=".look-", dir=scratch) as folder:
        for suffix in ("", "-wal"):
            with open(os.path.join(folder, f"copy{suffix}"), "wb") as copy:
                copy.write(_read(home, path + suffix, _MAX_DATABASE_BYTES))
        with closing(sqlite3.connect(os.path.join(folder, "copy"), isolation_level=None)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_RECORD_BYTES)
            connection.set_progress_handler(lambda: time.monotonic() > deadline, 1000)
            connection.execute("PRAGMA trusted_schema = OFF")
            yield connection


def _describe(
    database: sqlite3.Connection,
    path: str,
    counts: Counter[str],
    unfinished: list[UnfinishedJob],
    sessions: list[FoundSession],
) -> str:
    """Return what the database is, and add the jobs or sessions that it holds."""
    objects = database.execute("SELECT type, name FROM sqlite_master WHERE type <> 'index' ORDER BY type, name")
    names: dict[str, list[str]] = {}
    for kind, name in objects.fetchmany(1000):
        names.setdefault(str(kind), []).append(str(name)[:60])
    active = [f"{kind} {name}" for kind in ("trigger", "view") for name in names.get(kind, ())]
    if active:
        return f"holds {', '.join(active[:5])}: baton refuses to open it"
    tables = set(names.get("table", ()))
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if path == _REGISTRY and {"jobs", "events"} <= tables:
        for status, count in database.execute("SELECT status, count(*) FROM jobs GROUP BY 1").fetchmany(100):
            counts[_status(status)] += count
        fields = ("job_id", "status", "agent", "prompt", "validate", "start_options")
        columns = {row[1] for row in database.execute("PRAGMA table_info(jobs)").fetchmany(1000)}
        options = "start_options" if "start_options" in columns else "NULL"
        rows = database.execute(
            f"SELECT job_id, status, agent, prompt, validate, {options} FROM jobs"
            " WHERE status IN ('pending', 'running') ORDER BY created_at LIMIT ?",
            (_MAX_SHOWN,),
        )
        unfinished += [_unfinished_job(dict(zip(fields, row, strict=True))) for row in rows]
        return f"job registry, schema {version}"
    if path in _INVENTORIES and "sessions" in tables:
        for (text,) in database.execute("SELECT record FROM sessions WHERE state = 'running' LIMIT 1000"):
            session = _session(text)
            if session is not None:
                sessions.append(session)
        return "inventory of sessions"
    return _NOT_OURS


def _session(text: object) -> FoundSession | None:
    """Return the session in a row; None if it is not one: baton names the row when it is used."""
    try:
        record = parse_json(str(text))
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    pid, started = record.get("pane_pid"), record.get("pane_started")
    return FoundSession(
        name=str(record["name"])[:64] if "name" in record else "?",
        agent=str(record.get("agent"))[:64],
        session_id=str(record.get("session_id"))[:32],
        pane_pid=pid if type(pid) is int else None,
        pane_started=started if type(started) is int else None,
    )
