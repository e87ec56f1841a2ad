"""Say what a job is doing, from its record and its last event.

Agents will report their activity on a channel of their own: then only `activity_of` changes."""

from __future__ import annotations

from baton.core.clock import parse_time
from baton.core.event import EventName
from baton.core.job import TERMINAL, Job, Status

FAILED = "failed"


def activity_of(job: Job, last_event: EventName | None, *, now_ns: int) -> str:
    """Return the activity of a running job: starting, working, waiting (for a person), or unknown past its lease.
    `disputed` for a job that the user must settle; "" for other jobs."""
    if job.disputed is not None and job.status not in TERMINAL:
        return "disputed"
    if job.status is not Status.RUNNING:
        return ""
    if job.lease_expires_at is not None and parse_time(job.lease_expires_at) < now_ns:
        return "unknown"
    return activity_after(last_event)


def activity_after(event: EventName | str | None) -> str:
    """Return the activity that an event leaves a running job in; None: there was no event yet."""
    if event is None:
        return "starting"
    return "waiting" if event == EventName.PERMISSION_REQUIRED else "working"


def state_of(status: Status, activity: str) -> str:
    """Return the activity or the outcome of a job, in a word for people."""
    return activity or (FAILED if status is Status.ERROR else status.value)


def reason_of(job: Job, activity: str) -> str:
    """Return why a job is in its state, for people; "" if there is nothing to say."""
    if activity == "disputed":
        return job.disputed or ""
    if job.status is Status.ERROR or activity == "waiting":
        return job.reason or job.detail or ""
    return job.reason or "" if job.status in TERMINAL else ""
