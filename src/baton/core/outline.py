"""Describe jobs for lists and tables: what each is doing, how it ended and why."""

from __future__ import annotations

from baton.core.clock import parse_time
from baton.core.event import EventName
from baton.core.job import TERMINAL, Job, Status, is_unseen
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = "failed"
LONGEST_PROMPT = 1000  # characters of a prompt that are kept in an outline


class Outline(Value):
    """What a list shows of a job. Times are nanoseconds since 1970. `last_event` is that of the present attempt of a
    running job, None for others. `seen`: it has not ended with a result that the user has yet to see. `activity` is as
    in a job; `open_requests` are the summaries of its open requests, the oldest first."""

    job_id: str
    status: Status
    created_ns: int
    finished_ns: int | None
    agent: str
    agent_session: str
    attempt: int
    labels: tuple[str, ...]
    prompt: str
    title: str | None
    detail: str | None
    reason: str | None
    ended_by: str | None
    disputed: str | None
    lease_expires_ns: int | None
    last_event: EventName | None
    seen: bool
    activity: Mapping[str, Any] | None
    open_requests: tuple[str, ...]
    change: int

    @classmethod
    def of(cls, job: Job, last_event: EventName | None = None, open_requests: tuple[str, ...] = ()) -> Outline:
        same = ("job_id", "status", "agent", "agent_session", "attempt", "labels", "title", "detail", "reason")
        return cls(
            created_ns=parse_time(job.created_at),
            finished_ns=None if job.finished_at is None else parse_time(job.finished_at),
            prompt=job.prompt[:LONGEST_PROMPT],
            lease_expires_ns=None if job.lease_expires_at is None else parse_time(job.lease_expires_at),
            last_event=last_event,
            seen=not is_unseen(job.status, job.seen_at),
            open_requests=open_requests,
            **{name: getattr(job, name) for name in (*same, "ended_by", "disputed", "activity", "change")},
        )


def activity_of(job: Outline, *, now_ns: int) -> str:
    """Return the activity of a running job: the kind that its runner has stored; unknown past its lease, or of another
    attempt. Of a job whose runner stores none (of version 0.1.0, or worked by hand), what its last event says.
    `disputed` for a job that the user must settle; "" for other jobs."""
    if job.disputed is not None and job.status not in TERMINAL:
        return "disputed"
    if job.status is not Status.RUNNING:
        return ""
    if job.lease_expires_ns is not None and job.lease_expires_ns < now_ns:
        return "unknown"
    if job.activity is not None:
        return str(job.activity["kind"]) if job.activity["attempt"] == job.attempt else "unknown"
    return activity_after(job.last_event)


def activity_after(event: EventName | str | None) -> str:
    """Return the activity that an event leaves a running job in; None: there was no event yet."""
    if event is None:
        return "starting"
    return "waiting" if event == EventName.PERMISSION_REQUIRED else "working"


def state_of(status: Status, activity: str) -> str:
    """Return the activity or the outcome of a job, in a word for people."""
    return activity or (FAILED if status is Status.ERROR else status.value)


def reason_of(job: Outline, activity: str) -> str:
    """Return why a job failed, was cancelled, waits or is disputed; "" for other jobs."""
    if activity == "disputed":
        return job.disputed or ""
    if job.status is Status.ERROR or activity == "waiting":
        return job.reason or job.detail or ""
    return job.reason or "" if job.status is Status.CANCELLED else ""
