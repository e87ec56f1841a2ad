"""Read how far the audit log of a job goes, and compare it with the registry.

A line is written after the registry has changed. So a log that goes further than the registry saw changes that the
registry has lost: it was restored from an older copy, or its server lost commits."""

from __future__ import annotations

import os

from baton.core.fields import json_object
from baton.core.job import TERMINAL, Job, Status
from baton.core.value import Any, Value
from baton.history import log

_STATUSES = {status.value: status for status in Status}
_AT_LEAST = 50  # lines that are read: two processes may have written theirs in another order


class Position(Value):
    """The last status, the highest attempt and the highest event number in a log, and the last holder."""

    status: Status
    attempt: int = 0
    seq: int = 0
    holder: str | None = None

    def contradicts(self, job: Job) -> str | None:
        """Return how the log goes further than this job, in one line; None when it does not."""
        if (
            self.attempt > job.attempt
            or self.seq > job.last_seq
            or (self.status in TERMINAL and job.status not in TERMINAL)
        ):
            return f"{self.differs(job)}: the registry lost changes"
        return None

    def differs(self, job: Job) -> str:
        there = f"the audit log says {self.status} (attempt {self.attempt}, event {self.seq})"
        return f"{there}, the registry {job.status} (attempt {job.attempt}, event {job.last_seq})"


def read_position(job_id: str, logs_dir: str) -> Position | None:
    """Return how far the log of a job goes; None without a log. It reads the end of the log of this job alone."""
    folder = log.job_log_path(job_id, logs_dir)
    head = log.read_object(os.path.join(folder, log.STATUS)) or {}
    status = head.get("status")
    if status == Status.PENDING and head.get("n") == 1:
        return Position(status=Status.PENDING)  # registered, and nothing else: the usual case of a claim
    raw_lines = log.split_lines(log.read_if_exists(os.path.join(folder, log.EVENTS)))
    if (
        not (isinstance(status, str) and status in _STATUSES)
        and (status := log.status_after(raw_lines)) not in _STATUSES
    ):
        return None
    attempt = seq = 0
    holder = None
    for count, raw in enumerate(reversed(raw_lines)):
        if count >= _AT_LEAST and attempt and seq:
            break
        line = json_object(raw)
        payload = _fields(line.get("payload"))
        attempt = max(attempt, _whole(line.get("attempt")), _whole(_fields(payload.get("data")).get("attempt")))
        seq = max(seq, _whole(line.get("seq")), _whole(payload.get("seq")))
        if holder is None and isinstance(line.get("claimed_by"), str):
            holder = line["claimed_by"]
    return Position(status=_STATUSES[status], attempt=attempt, seq=seq, holder=holder)


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0
