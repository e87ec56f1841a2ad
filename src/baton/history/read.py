"""Read the history of a job, and parse its files."""

from __future__ import annotations

import json
import os

from baton.core.fields import check_job_id
from baton.core.hashing import sha256
from baton.storage.files import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

EVENTS = "events.ndjson"
META = "meta.json"
STATUS = "status.json"
NO_HASH = "0" * 64  # `prev` of the first line
REPAIRED = "mended"  # the line about a repair, by its name in stored logs


def __getattr__(name: str) -> str:
    if name == "LOGS_DIR":
        from baton.config import Settings

        return os.path.abspath(Settings().logs_dir)
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
    for raw in _raw_lines(job_log_path(job_id, logs_dir)):
        line = parse_line(raw)
        if line is not None:
            yield line


def list_logged_jobs(logs_dir: str | None = None) -> list[str]:
    """Return the ids of all jobs that have a history, ordered by their last change."""
    folder = _logs_folder(logs_dir)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    paths = {name: os.path.join(folder, name, EVENTS) for name in names}
    changed = [(os.stat(path).st_mtime_ns, name) for name, path in paths.items() if os.path.exists(path)]
    return [name for _, name in sorted(changed)]


def _logs_folder(logs_dir: str | None) -> str:
    return logs_dir if logs_dir is not None else __getattr__("LOGS_DIR")


def _raw_lines(folder: str) -> list[bytes]:
    return split_lines(read_if_exists(os.path.join(folder, EVENTS)))


# -- the files ---------------------------------------------------------------------------------------------


def line_hash(raw: bytes) -> str:
    text: str = sha256(raw).hexdigest()
    return text


def parse_line(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def split_lines(content: bytes) -> list[bytes]:
    """Split at line feeds, which stay; the last line has none when it is half written."""
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def read_if_exists(path: str) -> bytes:
    try:
        return read_file(path)
    except FileNotFoundError:
        return b""


def read_object(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None when it is missing or unreadable."""
    try:
        return parse_line(read_if_exists(path))
    except OSError:
        return None


def status_after(raw_lines: Sequence[bytes]) -> str | None:
    """Return the job's status after these lines, as the lines give it."""
    for raw in reversed(raw_lines):
        line = parse_line(raw) or {}
        status = line.get("to") or (line.get("status") if line.get("event") == "registered" else None)
        if isinstance(status, str) and not line.get("late"):
            return status
    return None


def status_content(status: str | None, updated_at: str, number: int, last_hash: str) -> bytes:
    """Return the content of status.json after line `number`."""
    return json.dumps({"status": status, "updated_at": updated_at, "n": number, "head": last_hash}).encode() + b"\n"
