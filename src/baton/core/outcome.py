"""Say how a job ended, for programs: what JSON outputs tell about a job whose end is no event."""

from __future__ import annotations

from baton.core.job import TERMINAL, Job, Status
from baton.core.value import Any

# `ended_by` of a job that exceeded one of its limits.
LATE = frozenset({"timeout", "idle"})
_EXIT_CODES = {Status.COMPLETED: 0, Status.ERROR: 1, Status.CANCELLED: 4, None: 1}
_TIMED_OUT = 2


def exit_code_of(status: Status | None, ended_by: str | None) -> int:
    """Return the exit code for a job that ended so; `status` None: its end is unknown."""
    return _TIMED_OUT if status is Status.ERROR and ended_by in LATE else _EXIT_CODES[status]


def outcome_of(job: Job) -> dict[str, Any]:
    """Return the outcome of a job after a listener has stopped. `timed_out` says what ran out of time: the job, or the
    listener while the job goes on; None: neither."""
    by_limit = "job" if job.ended_by in LATE else None
    timed_out = by_limit if job.status in TERMINAL else "listener"
    shown = job.public()
    names = ("job_id", "status", "ended_by", "reason", "finished_at")
    about = {"timed_out": timed_out, "grade": job.grade, "changed": job.changed}
    return {name: shown[name] for name in names} | about


def outcome_of_gone(job_id: str, status: str | None) -> dict[str, Any]:
    """Return the outcome of a job that was pruned; `status`: what its audit log says."""
    nothing = dict.fromkeys(("ended_by", "reason", "finished_at", "timed_out", "grade", "changed"))
    return {"job_id": job_id, "status": status or "gone"} | nothing
