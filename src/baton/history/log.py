"""Append to the audit log of a job, safely beside other appenders and after a crash; and read it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from baton.core.clock import format_micros, parse_time
from baton.core.fields import JOB_ID, check_job_id, json_object
from baton.core.hashing import sha256
from baton.core.job import HIDDEN
from baton.core.value import Any
from baton.storage import files


def init_job_log(record: Mapping[str, Any], *, now_ns: int, logs_dir: str | None = None, late: bool = False) -> None:
    """Begin the history of a job with its record, secrets hidden; do nothing when it has begun already.

    `late`: the job existed before its history.
    """
    shown = {**record}
    if shown.get("auth_token") is not None:
        shown["auth_token"] = HIDDEN
    if isinstance(shown.get("broker"), dict) and shown["broker"].get("password") is not None:
        shown["broker"] = {**shown["broker"], "password": HIDDEN}
    meta = json.dumps(shown, ensure_ascii=False, indent=2).encode() + b"\n"
    line = {"event": "registered", "status": record["status"], "meta_sha256": line_hash(meta)}
    if late:
        line["detail"] = "begun later: there was no log of this job"
    with locked_log(record["job_id"], logs_dir) as (fd, folder):
        if os.fstat(fd).st_size == 0:
            if not os.path.lexists(os.path.join(folder, STATUS)):
                _write_first_status(folder, now_ns)  # makes the log's name durable: no record exists without a log
            files.replace_file(os.path.join(folder, META), meta)
            append_lines(fd, folder, [line], now_ns, record["status"])


def append_event(
    job_id: str, line: Mapping[str, Any], *, now_ns: int, status: str | None = None, logs_dir: str | None = None
) -> None:
    """Append one line, and set the logged status to `status` if it is given.

    A half-written line that a crash left is removed first, and a line says so. A log that does not end where
    its last append ended gets a `damaged` line, so that the damage stays visible.
    """
    with locked_log(job_id, logs_dir) as (fd, folder):
        append_lines(fd, folder, [line], now_ns, status)


def update_logged_status(
    job_id: str, before: str, after: str, *, now_ns: int, logs_dir: str | None = None, **more: Any
) -> None:
    """Append a `status_changed` line."""
    line = {"event": "status_changed", "from": before, "to": after, **more}
    append_event(job_id, line, status=after, now_ns=now_ns, logs_dir=logs_dir)


@contextmanager
def locked_log(job_id: str, logs_dir: str | None) -> Iterator[tuple[int, str]]:
    """Open the log of a job for one writer at a time; yield its file descriptor and its folder."""
    folder = job_log_path(job_id, logs_dir)
    files.refuse_link(folder)
    if not os.path.isdir(folder):
        files.make_private_dir(logs := os.path.dirname(folder))
        from baton.storage.git_ignores import ignore_in_git

        ignore_in_git(logs)
        files.make_private_dir(folder)
    path = os.path.join(folder, EVENTS)
    fd = files.open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        files.lock_within(fd, path)
        yield fd, folder
    finally:
        os.close(fd)


def append_lines(fd: int, folder: str, new_lines: Iterable[Mapping[str, Any]], now_ns: int, status: str | None) -> None:
    """Append lines to a locked log in one write, then bring status.json up to date."""
    size = os.fstat(fd).st_size
    last, end = files.last_line(fd, size)
    number, previous = (_number(last), line_hash(last)) if last else (0, NO_HASH)
    head = read_object(os.path.join(folder, STATUS))
    content, first = b"", list[dict[str, Any]]()
    if size and not number and (raw := _lines_of_another_tool(fd, folder, head)):
        number, previous = len(raw), line_hash(raw[-1])
        first.append(_continuation(folder, raw, (head or {}).get("status")))
        if sum(map(len, raw)) > size:
            end, content = size, b"\n"  # its last line had no end
    if head is None:
        head = {"n": 0, "head": NO_HASH}
        if size == 0:
            _write_first_status(folder, now_ns)  # before the first line: a log without this file has lost it
    current = head.get("n") == number and head.get("head") == previous
    lines = [*first, *_repairs(head, number, previous, size - end), *new_lines]
    status = status or next((found for each in reversed(lines) if (found := status_in(each))), None)
    for each in lines:
        number += 1
        entry = {"n": number, "prev": previous, "ts": format_micros(now_ns), **each}
        encoded = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        previous = line_hash(encoded)
        content += encoded
    files.overwrite_from(fd, end, content)
    if size == 0:
        files.fsync_dir(folder)
        files.fsync_parents(folder)
    if status is None and current:
        status = head.get("status")  # saves reading the whole log
    elif status is None:
        status = status_after(split_lines(os.pread(fd, end + len(content), 0)))
    new_status = status_content(status, format_micros(now_ns), number, previous)
    try:
        files.replace_file(os.path.join(folder, STATUS), new_status, sync_folder=False)
    except OSError:
        pass  # the lines are written; status.json is behind them, as after a crash, and the next append updates it


def _write_first_status(folder: str, now_ns: int) -> None:
    content = status_content(None, format_micros(now_ns), 0, NO_HASH)
    files.replace_file(os.path.join(folder, STATUS), content, sync_folder=True)


def _repairs(head: Mapping[str, Any], number: int, previous: str, torn: int) -> list[dict[str, Any]]:
    """Return lines that say what is wrong with the end of the log."""
    repairs: list[dict[str, Any]] = []
    if torn:
        repairs.append({"event": REPAIRED, "detail": f"{torn} bytes of a half-written line removed"})
    expected = head.get("n", number)
    if expected > number:
        detail = f"the log ended at line {expected}, it now ends at {number}"
        repairs.append({"event": "damaged", "detail": detail})
    elif expected == number and head.get("head", previous) != previous:
        repairs.append({"event": "damaged", "detail": f"line {number} is not what was written"})
    return repairs


def is_foreign(folder: str, raw_lines: Sequence[bytes], head: Mapping[str, Any] | None) -> bool:
    """Return whether another tool wrote the whole log: nothing in it or beside it is baton's."""
    if "head" in (head or {}) or any({"n", "prev"} & json_object(raw).keys() for raw in raw_lines):
        return False
    return bool(raw_lines) and (read_object(os.path.join(folder, META)) or {}).get("auth_token") != HIDDEN


def _lines_of_another_tool(fd: int, folder: str, head: Mapping[str, Any] | None) -> list[bytes]:
    """Return the lines of a log that another tool wrote, each with its end; none if the log is baton's."""
    raw_lines = split_lines(os.pread(fd, os.fstat(fd).st_size, 0))
    if not is_foreign(folder, raw_lines, head):
        return []
    if not raw_lines[-1].endswith(b"\n"):
        last = raw_lines.pop()
        raw_lines += [] if last.startswith(_BEGIN) else [last + b"\n"]  # not of an append that crashed
    return raw_lines


def _continuation(folder: str, raw_lines: Sequence[bytes], status: object) -> dict[str, Any]:
    """Return the first line after those of another tool. It makes later changes of them visible."""
    line = {"event": CONTINUED, "lines": len(raw_lines), "lines_sha256": line_hash(b"".join(raw_lines))}
    line["status"] = status if isinstance(status, str) else status_after(raw_lines)
    if meta := read_if_exists(os.path.join(folder, META)):
        line["meta_sha256"] = line_hash(meta)
    return line


def last_time_ns(fd: int) -> int:
    """Return the time of the last line of an open log; 0 when there is none."""
    line = json_object(files.last_line(fd, os.fstat(fd).st_size)[0])
    try:
        return parse_time(str(line.get("ts") or line.get("timestamp")))
    except ValueError:
        return 0


def _number(raw: bytes) -> int:
    number = json_object(raw).get("n")
    return number if isinstance(number, int) else 0


EVENTS = "events.ndjson"
META = "meta.json"
STATUS = "status.json"
NO_HASH = "0" * 64  # `prev` of the first line
_BEGIN = b'{"n": '  # of each line
CONTINUED = "continued"  # the first line of baton in a log that another tool began
REPAIRED = "mended"  # the line about a repair, by its name in stored logs


def __getattr__(name: str) -> str:
    if name == "LOGS_DIR":
        from baton.storage.homes import load_settings

        return load_settings().logs_dir
    raise AttributeError(name)


def job_log_path(job_id: str, logs_dir: str | None = None) -> str:
    """Return the folder for the history of a job, which need not exist."""
    return os.path.join(_logs_folder(logs_dir), check_job_id(job_id))


def read_logged_meta(job_id: str, logs_dir: str | None = None) -> dict[str, Any] | None:
    """Return the job's record at registration, secrets hidden; None without a history."""
    return read_object(os.path.join(job_log_path(job_id, logs_dir), META))


def read_logged_status(job_id: str, logs_dir: str | None = None) -> str | None:
    """Return the last status in the history; None without a history."""
    folder = job_log_path(job_id, logs_dir)
    status = (read_object(os.path.join(folder, STATUS)) or {}).get("status")
    return status if isinstance(status, str) else status_after(_raw_lines(folder))


def iter_logged_events(job_id: str, logs_dir: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines in order, without those that cannot be parsed (`verify_log` reports them)."""
    yield from filter(None, map(json_object, _raw_lines(job_log_path(job_id, logs_dir))))


def list_logged_jobs(logs_dir: str | None = None) -> list[str]:
    """Return the ids of all jobs that have a history, ordered by their last change."""
    return [job_id for _, job_id in logged_changes(logs_dir)]


def logged_changes(logs_dir: str | None = None) -> list[tuple[int, str]]:
    """Return when each history last changed, and the id of its job; the last change is last."""
    folder = _logs_folder(logs_dir)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    paths = {name: os.path.join(folder, name, EVENTS) for name in names}
    return sorted((os.stat(path).st_mtime_ns, name) for name, path in paths.items() if os.path.exists(path))


def find_logged_jobs(beginning: str, logs_dir: str | None = None) -> list[str]:
    """Return the ids of the jobs that have a history and whose id begins with this text."""
    try:
        names = os.listdir(_logs_folder(logs_dir))
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name.startswith(beginning) and JOB_ID.fullmatch(name))


def _logs_folder(logs_dir: str | None) -> str:
    return logs_dir if logs_dir is not None else __getattr__("LOGS_DIR")


def _raw_lines(folder: str) -> list[bytes]:
    return split_lines(read_if_exists(os.path.join(folder, EVENTS)))


def line_hash(raw: bytes) -> str:
    text: str = sha256(raw).hexdigest()
    return text


def split_lines(content: bytes) -> list[bytes]:
    """Split at line feeds, which stay; the last line has none when it is half written."""
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def read_if_exists(path: str) -> bytes:
    try:
        return files.read_file(path)
    except FileNotFoundError:
        return b""


def read_object(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None when it is missing or unreadable."""
    try:
        return json_object(read_if_exists(path)) or None
    except OSError:
        return None


def status_after(raw_lines: Sequence[bytes]) -> str | None:
    """Return the job's status after these lines, as the lines give it."""
    return next((status for raw in reversed(raw_lines) if (status := status_in(json_object(raw)))), None)


def status_in(line: Mapping[str, Any]) -> str | None:
    """Return the status that a line gives the job; None when it gives none."""
    status = line.get("to") or (line.get("status") if line.get("event") in ("registered", CONTINUED) else None)
    return status if isinstance(status, str) and not line.get("late") else None


def status_content(status: str | None, updated_at: str, number: int, last_hash: str) -> bytes:
    """Return the content of status.json after line `number`."""
    return json.dumps({"status": status, "updated_at": updated_at, "n": number, "head": last_hash}).encode() + b"\n"
