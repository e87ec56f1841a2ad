"""The events of one job as lines of a file, and which of them were sent.

The job's record decides what happened: an event beyond its `last_seq` was written by a process that died before it
replaced the record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence

from baton.core.event import EventName, StoredEvent
from baton.core.fields import parse_json
from baton.core.job import Job
from baton.core.value import Any
from baton.storage.files import fsync_dir, last_line, open_private, overwrite_from, read_file, replace_file


class EventLog:
    """The log of a job as it is recorded now. Writers hold the registry's lock."""

    def __init__(self, path: str, job: Job) -> None:
        self.path = path
        self._job = job

    def events(self) -> list[StoredEvent]:
        if self._job.last_seq == 0:
            return []
        try:
            content = read_file(self.path)
        except FileNotFoundError:
            return []
        events: dict[int, StoredEvent] = {}
        sent: set[int] = set()
        for raw in content.splitlines():
            line = _parse(raw)
            if line is None:
                continue
            if "sent" in line:
                sent.update(line["sent"])
            elif line["seq"] <= self._job.last_seq:
                events[line["seq"]] = StoredEvent(
                    job_id=self._job.job_id,
                    seq=line["seq"],
                    attempt=line["attempt"],
                    event=EventName(line["event"]),
                    payload=line["payload"].encode(),
                    sent=False,
                )
        return [events[seq].replace(sent=seq in sent) for seq in sorted(events)]

    def all_sent(self) -> bool:
        return all(event.sent for event in self.events())

    def add(self, event: StoredEvent) -> None:
        self._append(_event_line(event))

    def mark_sent(self, seqs: Iterable[int]) -> None:
        self._append(_line({"sent": [seq for seq in seqs if seq <= self._job.last_seq]}))

    def remove_uncounted(self) -> None:
        """Remove what a crash left at the end."""
        if os.path.exists(self.path):
            self._append(b"")

    def write(self, events: Sequence[StoredEvent]) -> None:
        """Replace the log, without a sync: a migration syncs everything at its end."""
        lines = [_event_line(event) for event in events]
        lines.append(_line({"sent": [event.seq for event in events if event.sent]}))
        replace_file(self.path, b"".join(lines), durable=False)

    def _append(self, line: bytes) -> None:
        """Append after cutting off what a crash left: half a line, or an event that the record does not count."""
        fd = open_private(self.path, os.O_RDWR | os.O_CREAT)
        try:
            size = os.fstat(fd).st_size
            last, end = last_line(fd, size)
            if ((last and _parse(last)) or {}).get("seq", 0) > self._job.last_seq:
                end -= len(last)
            overwrite_from(fd, end, line)
        finally:
            os.close(fd)
        if size == 0:
            fsync_dir(os.path.dirname(self.path))


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _event_line(event: StoredEvent) -> bytes:
    return _line(
        {"seq": event.seq, "attempt": event.attempt, "event": event.event.value, "payload": event.payload.decode()}
    )


def _parse(raw: bytes) -> dict[str, Any] | None:
    """Return a line of a log, or None for what this version did not write: the earlier scripts kept a debug log under
    this name."""
    try:
        line = parse_json(raw)
        if isinstance(line, dict):
            if isinstance(line.get("sent"), list) and all(isinstance(seq, int) for seq in line["sent"]):
                return line
            if isinstance(line["seq"], int) and isinstance(line["attempt"], int) and isinstance(line["payload"], str):
                EventName(line["event"])
                return line
    except (ValueError, KeyError):
        return None
    return None
