"""Verify the history of a job: follow the chain of hashes and compare both ends with the files beside it."""

import os
from collections.abc import Mapping

from baton.core.fields import json_object
from baton.history import log as read
from baton.storage.files import lock_within, open_private, read_open_file, refuse_link


class LogCheck:
    """The findings of `verify_log`. `damage` is tampering or loss; `notes` is what a crash may leave. `foreign` is the
    number of lines that another tool wrote before baton: when these are all lines, nothing can be verified."""

    __slots__ = ("damage", "foreign", "lines", "notes")

    def __init__(self) -> None:
        self.lines = 0
        self.foreign = 0
        self.damage: list[str] = []
        self.notes: list[str] = []


def verify_log(job_id: str, logs_dir: str | None = None) -> LogCheck:
    """Check that no line of the history was changed, added or removed. Raise OSError when a file is unreadable."""
    found = LogCheck()
    folder = read.job_log_path(job_id, logs_dir)
    raw_lines, raw_status = _read_both(folder)
    if raw_lines is None:
        if json_object(raw_status).get("n") or read.read_if_exists(os.path.join(folder, read.META)):
            found.damage.append(f"{read.EVENTS} is missing")
            return found
        raw_lines = []
    if read.is_foreign(folder, raw_lines, json_object(raw_status)):
        found.lines = found.foreign = len(raw_lines)
        return found
    torn = bool(raw_lines) and not raw_lines[-1].endswith(b"\n")
    if torn:
        raw_lines.pop()
    found.lines = len(raw_lines)
    found.foreign = _foreign_lines(raw_lines)
    hashes, last = _verify_chain(found, raw_lines)
    _verify_status(found, raw_lines, raw_status, hashes, last)
    first = next((line for raw in raw_lines if "meta_sha256" in (line := json_object(raw))), None)
    if (
        first is not None
        and read.line_hash(read.read_if_exists(os.path.join(folder, read.META))) != first["meta_sha256"]
    ):
        found.damage.append(f"{read.META} was changed")
    if torn:
        found.notes.append("the last line is half written, by a crash; the next append removes it")
    return found


def _foreign_lines(raw_lines: list[bytes]) -> int:
    """Return how many lines of another tool a `continued` line follows that has their hash."""
    count = next((index for index, raw in enumerate(raw_lines) if "n" in json_object(raw)), 0)
    line = json_object(raw_lines[count]) if count else {}
    if line.get("event") != read.CONTINUED or line.get("n") != count + 1:
        return 0
    if line.get("lines_sha256") != read.line_hash(b"".join(raw_lines[:count])):  # guard: lines-of-another-tool
        return 0
    return count


def foreign_text(count: int) -> str:
    return f"lines 1-{count} were written by another tool" if count > 1 else "line 1 was written by another tool"


def _verify_chain(found: LogCheck, raw_lines: list[bytes]) -> tuple[dict[int, str], int]:
    """Check each line against the one before it. Return the hashes by line number, and the last number."""
    number, previous = found.foreign, read.line_hash(raw_lines[found.foreign - 1]) if found.foreign else read.NO_HASH
    hashes = {number: previous}
    for position, raw in enumerate(raw_lines[number:], start=number + 1):
        line = json_object(raw)
        n = line.get("n")
        if not isinstance(n, int):
            found.damage.append(f"line {position} is not a line of this log")
            number, previous = number + 1, read.line_hash(raw)
            continue
        if n > number + 1:
            missing = f"line {number + 1}" if n == number + 2 else f"lines {number + 1} to {n - 1}"
            found.damage.append(f"{missing} missing before line {n}")
        elif n <= number:
            found.damage.append(f"line {n} stands at place {position}: inserted, or moved")
        elif line.get("prev") != previous:  # guard: history-hash-chain
            changed = f"line {number} was changed: line {n} does not continue it"
            found.damage.append(changed if number else "line 1 does not begin the log")
        if line.get("event") == "damaged":
            found.damage.append(f"line {n} reports earlier damage: {line.get('detail')}")
        elif line.get("event") == read.CONTINUED:
            found.notes.append(f"{foreign_text(found.foreign)}, chained from {n}")
        elif line.get("event") == read.REPAIRED or (position == 1 and line.get("detail")):
            found.notes.append(f"line {n}: {line.get('detail')}")
        number, previous = n, read.line_hash(raw)
        hashes[number] = previous
    return hashes, number


def _verify_status(
    found: LogCheck, raw_lines: list[bytes], raw_status: bytes, hashes: Mapping[int, str], last: int
) -> None:
    """Compare status.json with the line it names."""
    head = json_object(raw_status)
    number = head.get("n")
    if not raw_lines and not number:
        found.notes.append("the log has no line yet: its writer died, or has not written the first")
    elif type(number) is not int:
        found.damage.append(f"{read.STATUS} is missing or not readable")
    elif number > last:  # guard: history-cut
        found.damage.append(f"the log is cut short: it had {number} lines, it has {last}")
    elif hashes.get(number) != head.get("head"):
        found.damage.append(f"line {number} was changed: {read.STATUS} has another hash of it")
    elif number == 0 and head.get("status") is not None:
        found.damage.append(f"{read.STATUS} was changed: it has a status from before the first line")
    elif number and not found.damage and raw_status != _expected_status(raw_lines[:number], number, hashes[number]):
        found.damage.append(f"{read.STATUS} was changed: it does not match the log")
    elif number < last:
        found.notes.append(f"{read.STATUS} is behind the log, by a crash; the next append updates it")


def _expected_status(raw_lines: list[bytes], number: int, last_hash: str) -> bytes:
    """Return what status.json must contain after these lines."""
    last = json_object(raw_lines[-1]) if raw_lines else {}
    return read.status_content(read.status_after(raw_lines), str(last.get("ts")), number, last_hash)


def _read_both(folder: str) -> tuple[list[bytes] | None, bytes]:
    """Read the log (None when it is missing) and status.json while no writer is between them."""
    path = os.path.join(folder, read.EVENTS)
    refuse_link(folder)
    try:
        fd = open_private(path, os.O_RDONLY)
    except FileNotFoundError:
        return None, read.read_if_exists(os.path.join(folder, read.STATUS))
    with open(fd, "rb") as file:
        lock_within(fd, path)
        return read.split_lines(read_open_file(file, path)), read.read_if_exists(os.path.join(folder, read.STATUS))
