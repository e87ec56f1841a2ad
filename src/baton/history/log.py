"""The history of a job, which outlives the registry: `<logs>/<job_id>/`.

    meta.json       the record at registration, secrets hidden
    events.ndjson   append-only, one object a line; each line carries `n` and `prev`, the SHA-256 of the line
                    before it
    status.json     the current status, and the number and hash of the last line: so that a log that was cut
                    short shows, too

Whoever can write these files can also rebuild the whole chain; what is promised is that no line changes
quietly, by accident or by hand.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager

from baton.core.clock import format_time
from baton.core.fields import check_job_id
from baton.core.hashing import sha256
from baton.core.job import HIDDEN
from baton.storage.files import (
    fsync_dir,
    fsync_parents,
    last_line,
    lock_within,
    make_private_dir,
    open_private,
    overwrite_from,
    read_file,
    replace_file,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, Final

_FIRST: Final = "0" * 64
_EVENTS: Final = "events.ndjson"
_META: Final = "meta.json"
_STATUS: Final = "status.json"


def __getattr__(name: str) -> str:
    if name == "LOGS_DIR":
        from baton.config import Settings

        return os.path.abspath(Settings().logs_dir)
    raise AttributeError(name)


def job_log_path(job_id: str, logs_dir: str | None = None) -> str:
    """The folder that holds the history of that job; it need not exist."""
    folder: str = logs_dir if logs_dir is not None else __getattr__("LOGS_DIR")
    return os.path.join(folder, check_job_id(job_id))


# -- writing -----------------------------------------------------------------------------------------------


def init_job_log(record: Mapping[str, Any], *, now_ns: int, logs_dir: str | None = None, late: bool = False) -> None:
    """Begins the history of a job with its record, secrets hidden; of a history that was begun already, nothing to do.
    `late`: the job was there before its log."""
    shown = {**record}
    if shown.get("auth_token") is not None:
        shown["auth_token"] = HIDDEN
    if isinstance(shown.get("broker"), dict) and shown["broker"].get("password") is not None:
        shown["broker"] = {**shown["broker"], "password": HIDDEN}
    meta = json.dumps(shown, ensure_ascii=False, indent=2).encode() + b"\n"
    line = {"event": "registered", "status": record["status"], "meta_sha256": _hash(meta)}
    if late:
        line["detail"] = "begun later: there was no log of this job"
    with _locked_log(record["job_id"], logs_dir) as (fd, folder):
        if os.fstat(fd).st_size == 0:
            if not os.path.lexists(os.path.join(folder, _STATUS)):
                _begin(folder, now_ns)  # the log's name is durable with it: there is never a record without a log
            replace_file(os.path.join(folder, _META), meta)
            _append(fd, folder, [line], now_ns, record["status"])


def append_event(
    job_id: str, line: Mapping[str, Any], *, now_ns: int, status: str | None = None, logs_dir: str | None = None
) -> None:
    """Adds one line, safely beside other appenders, and sets the status if there is a new one."""
    append_events(job_id, [line], now_ns=now_ns, status=status, logs_dir=logs_dir)


def append_events(
    job_id: str,
    lines: Iterable[Mapping[str, Any]],
    *,
    now_ns: int,
    status: str | None = None,
    logs_dir: str | None = None,
) -> None:
    """Adds lines in one write.

    A line that a crash left half written is removed first, and the log says so. A log that does not end where
    it ended when it was last written to gets a `damaged` line, so that the damage stays visible.
    """
    with _locked_log(job_id, logs_dir) as (fd, folder):
        _append(fd, folder, lines, now_ns, status)


class Received:
    """The numbers that the log of one job holds as received, as far as it has been read."""

    __slots__ = ("_end", "_numbers")

    def __init__(self) -> None:
        self._end = 0
        self._numbers: set[int] = set()

    def read_on(self, fd: int) -> set[int]:
        """Reads only what came since: a log may be long, and this is asked for every event."""
        if os.fstat(fd).st_size < self._end:
            self._end = 0
        content = os.pread(fd, os.fstat(fd).st_size - self._end, self._end)
        whole = content[: content.rfind(b"\n") + 1]
        self._end += len(whole)
        for raw in whole.split(b"\n"):
            line = _parse(raw) if b'"received"' in raw else None
            if line is not None and line.get("event") == "received" and isinstance(line.get("seq"), int):
                self._numbers.add(line["seq"])
        return self._numbers


def append_received(
    job_id: str, events: Iterable[tuple[int, str]], known: Received, *, now_ns: int, logs_dir: str | None = None
) -> None:
    """Adds a `received` line for each of these numbers that has none yet, whoever wrote it. A number is never used
    twice in one job, whatever its attempt."""
    with _locked_log(job_id, logs_dir) as (fd, folder):
        there = known.read_on(fd)
        lines = [{"event": "received", "seq": seq, "name": name} for seq, name in events if seq not in there]
        if lines:
            _append(fd, folder, lines, now_ns, None)


@contextmanager
def _locked_log(job_id: str, logs_dir: str | None) -> Iterator[tuple[int, str]]:
    """The open log of that job, for one writer at a time, and the folder it lies in."""
    folder = job_log_path(job_id, logs_dir)
    make_private_dir(folder)
    path = os.path.join(folder, _EVENTS)
    fd = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        lock_within(fd, path)
        yield fd, folder
    finally:
        os.close(fd)


def _begin(folder: str, now_ns: int) -> None:
    _write_head(folder, _head(None, format_time(now_ns), 0, _FIRST), sync_folder=True)


def _append(fd: int, folder: str, new_lines: Iterable[Mapping[str, Any]], now_ns: int, status: str | None) -> None:
    size = os.fstat(fd).st_size
    last, end = last_line(fd, size)
    number, previous = (_number(last), _hash(last)) if last else (0, _FIRST)
    head = _read_object(os.path.join(folder, _STATUS))
    if head is None:
        # Before the first line: a log without this file has lost it.
        head = {"n": 0, "head": _FIRST}
        if size == 0:
            _begin(folder, now_ns)
    current = head.get("n") == number and head.get("head") == previous
    content = b""
    for each in [*_repairs(head, number, previous, size - end), *new_lines]:
        number += 1
        entry = {"n": number, "prev": previous, "ts": format_time(now_ns), **each}
        encoded = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        previous = _hash(encoded)
        content += encoded
    overwrite_from(fd, end, content)
    if size == 0:
        fsync_dir(folder)
        fsync_parents(folder)
    if status is None:
        # Where the file beside the log is not behind it, it saves reading the whole log.
        status = head.get("status") if current else _status_told_by(_split_lines(os.pread(fd, end + len(content), 0)))
    try:
        _write_head(folder, _head(status, format_time(now_ns), number, previous))
    except OSError:
        pass  # the lines are written; this file is only behind them, as after a crash


def update_logged_status(
    job_id: str, before: str, after: str, *, now_ns: int, logs_dir: str | None = None, **more: Any
) -> None:
    """Adds a `status_changed` line."""
    line = {"event": "status_changed", "from": before, "to": after, **more}
    append_event(job_id, line, status=after, now_ns=now_ns, logs_dir=logs_dir)


def _repairs(head: Mapping[str, Any], number: int, previous: str, torn: int) -> list[dict[str, Any]]:
    """Lines that say what is wrong with the end of the log, before it goes on."""
    repairs: list[dict[str, Any]] = []
    if torn:
        repairs.append({"event": "mended", "detail": f"{torn} bytes of a half-written line removed"})
    expected = head.get("n", number)
    if expected > number or (expected == number and head.get("head", previous) != previous):
        repairs.append(
            {"event": "damaged", "detail": f"the log ended at line {expected}, it now ends at {number}"}
            if expected > number
            else {"event": "damaged", "detail": f"line {number} is not what was written"}
        )
    return repairs


# -- reading -----------------------------------------------------------------------------------------------


def read_logged_meta(job_id: str, logs_dir: str | None = None) -> dict[str, Any] | None:
    return _read_object(os.path.join(job_log_path(job_id, logs_dir), _META))


def read_logged_status(job_id: str, logs_dir: str | None = None) -> str | None:
    """The last status in the history; None when there is no history."""
    head = _read_object(os.path.join(job_log_path(job_id, logs_dir), _STATUS))
    status = head.get("status") if head else None
    return status if isinstance(status, str) else _status_told_by(_raw_lines(job_id, logs_dir))


def iter_logged_events(job_id: str, logs_dir: str | None = None) -> Iterator[dict[str, Any]]:
    """The lines in order; one that cannot be read is passed over here, and found by `verify_log`."""
    for raw in _raw_lines(job_id, logs_dir):
        line = _parse(raw)
        if line is not None:
            yield line


def list_logged_jobs(logs_dir: str | None = None) -> list[str]:
    """Ids of all jobs that have a history, the one changed last at the end."""
    folder: str = logs_dir if logs_dir is not None else __getattr__("LOGS_DIR")
    found = []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    for name in names:
        try:
            found.append((os.stat(os.path.join(folder, name, _EVENTS)).st_mtime_ns, name))
        except OSError:
            continue
    return [name for _, name in sorted(found)]


class Verdict:
    """What `verify_log` found: `damage` is what nobody should have done, `notes` is what a crash may leave."""

    __slots__ = ("damage", "lines", "notes")

    def __init__(self) -> None:
        self.lines = 0
        self.damage: list[str] = []
        self.notes: list[str] = []


def verify_log(job_id: str, logs_dir: str | None = None) -> Verdict:  # noqa: C901  one branch a finding
    """Follows the chain from the first line to the last, and compares both ends with what stands beside it. OSError
    when a file is there and cannot be read."""
    verdict = Verdict()
    folder = job_log_path(job_id, logs_dir)
    raw_lines, raw_head = _read_both(folder)
    if raw_lines is None:
        if (_parse(raw_head) or {}).get("n") or _read(os.path.join(folder, _META)):
            verdict.damage.append(f"{_EVENTS} is missing")
            return verdict
        raw_lines = []
    torn = bool(raw_lines) and not raw_lines[-1].endswith(b"\n")
    if torn:
        raw_lines.pop()
    verdict.lines = len(raw_lines)
    number, previous = 0, _FIRST
    hashes = {0: _FIRST}
    for position, raw in enumerate(raw_lines, start=1):
        line = _parse(raw)
        found = line.get("n") if line else None
        if line is None or not isinstance(found, int):
            verdict.damage.append(f"line {position} is not a line of this log")
            number, previous = number + 1, _hash(raw)
            continue
        if found > number + 1:
            missing = f"line {number + 1}" if found == number + 2 else f"lines {number + 1} to {found - 1}"
            verdict.damage.append(f"{missing} missing before line {found}")
        elif found <= number:
            verdict.damage.append(f"line {found} stands at place {position}: inserted, or moved")
        elif line.get("prev") != previous:  # guard: history-hash-chain
            verdict.damage.append(
                f"line {number} was changed: line {found} was written after another"
                if number
                else "line 1 does not begin the log"
            )
        if line.get("event") == "damaged":
            verdict.damage.append(f"line {found} tells of earlier damage: {line.get('detail')}")
        elif position == 1 and line.get("detail"):
            verdict.notes.append(f"line 1: {line['detail']}")
        elif line.get("event") == "mended":
            verdict.notes.append(f"line {found}: {line.get('detail')}")
        number, previous = found, _hash(raw)
        hashes[number] = previous
    _verify_ends(verdict, folder, raw_lines, raw_head, hashes, number)
    if torn:
        verdict.notes.append("the last line is half written, by a crash; the next append mends it")
    return verdict


def _verify_ends(
    verdict: Verdict, folder: str, raw_lines: list[bytes], raw_head: bytes, hashes: Mapping[int, str], last: int
) -> None:
    head = _parse(raw_head) or {}
    number = head.get("n")
    if not raw_lines and not number:
        verdict.notes.append("the log has no line yet: whoever began it died, or is about to write the first")
        return
    if type(number) is not int:
        verdict.damage.append(f"{_STATUS} is missing or not readable")
    elif number > last:  # guard: history-cut
        verdict.damage.append(f"the log is cut short: it had {number} lines, it has {last}")
    elif hashes.get(number) != head.get("head"):
        verdict.damage.append(f"line {number} was changed: {_STATUS} knows another")
    elif number == 0 and head.get("status") is not None:
        verdict.damage.append(f"{_STATUS} was changed: it has a status from before the first line")
    elif number and not verdict.damage and raw_head != _head_told_by(raw_lines[:number], number, hashes[number]):
        verdict.damage.append(f"{_STATUS} was changed: the log tells another story")
    elif number < last:
        verdict.notes.append(f"{_STATUS} is behind the log, by a crash; the next append mends it")
    begun = next((line for raw in raw_lines if "meta_sha256" in (line := _parse(raw) or {})), None)
    if begun is not None and _hash(_read(os.path.join(folder, _META))) != begun["meta_sha256"]:
        verdict.damage.append(f"{_META} was changed")


def _head(status: str | None, updated_at: str, number: int, line_hash: str) -> bytes:
    head = {"status": status, "updated_at": updated_at, "n": number, "head": line_hash}
    return json.dumps(head).encode() + b"\n"


def _write_head(folder: str, content: bytes, *, sync_folder: bool = False) -> None:
    # Derived from the log: after a crash it may be behind, which `verify_log` accepts, but never half written.
    replace_file(os.path.join(folder, _STATUS), content, sync_folder=sync_folder)


def _head_told_by(raw_lines: list[bytes], number: int, line_hash: str) -> bytes:
    """What status.json must hold after these lines."""
    last = _parse(raw_lines[-1]) if raw_lines else None
    return _head(_status_told_by(raw_lines), str((last or {}).get("ts")), number, line_hash)


def _status_told_by(raw_lines: list[bytes]) -> str | None:
    for raw in reversed(raw_lines):
        line = _parse(raw) or {}
        status = line.get("to") or (line.get("status") if line.get("event") == "registered" else None)
        if isinstance(status, str) and not line.get("late"):
            return status
    return None


def _read_both(folder: str) -> tuple[list[bytes] | None, bytes]:
    """The log, None when it is not there, and the file beside it, as no writer is between them."""
    try:
        fd = os.open(os.path.join(folder, _EVENTS), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, _read(os.path.join(folder, _STATUS))
    with open(fd, "rb") as file:
        fcntl.flock(fd, fcntl.LOCK_SH)
        return _split_lines(file.read()), _read(os.path.join(folder, _STATUS))


def _raw_lines(job_id: str, logs_dir: str | None) -> list[bytes]:
    try:
        content = read_file(os.path.join(job_log_path(job_id, logs_dir), _EVENTS))
    except FileNotFoundError:
        return []
    return _split_lines(content)


def _split_lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _number(raw: bytes) -> int:
    line = _parse(raw)
    number = line.get("n") if line else None
    return number if isinstance(number, int) else 0


def _hash(raw: bytes) -> str:
    text: str = sha256(raw).hexdigest()
    return text


def _read(path: str) -> bytes:
    try:
        return read_file(path)
    except FileNotFoundError:
        return b""


def _read_object(path: str) -> dict[str, Any] | None:
    try:
        return _parse(_read(path))
    except OSError:
        return None
