"""Describe jobs for lists and tables: what each is doing, how it ended and why."""

from __future__ import annotations

from baton.core.clock import format_time, parse_time
from baton.core.ending import ending_of
from baton.core.event import EventName
from baton.core.fields import first_line
from baton.core.job import ATTACH, TERMINAL, Job, Status, is_at_screen, is_unseen, waiting_text
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeVar

    from baton.core.clock import Clock

    AnyJob = TypeVar("AnyJob", bound="Job | Outline")

UNKNOWN = "unknown"
WAITING = "waiting"
LIMITED = "limited"
# A person must do something, or the job does not go on.
STUCK = frozenset({"blocked", "stalled"})
# The cause is what a user wants to know of these.
_WITH_CAUSE = frozenset({WAITING, "retrying", "limited", "idle"}) | STUCK
_SAME = ("ended_by", "disputed", "activity", "change", "usage", "verified_by", "unverified", "changed")
LONGEST_PROMPT = 1000  # characters of a prompt that are kept in an outline


class Outline(Value):
    """What a list shows of a job. Times are nanoseconds since 1970. `last_event` is that of the present attempt of a
    running job, None for others. `seen`: it has not ended with a result that the user has yet to see. `activity` is as
    in a job; `open_requests` are the summaries of its open requests, the oldest first. `waiting`: what a blocked job
    waits for. `verified_by`, `unverified` and `changed` are as in a job."""

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
    usage: tuple[Mapping[str, Any], ...] = ()
    waiting: str = ""
    verified_by: tuple[str, ...] = ()
    unverified: str | None = None
    changed: bool | None = None
    agent_runs: tuple[Mapping[str, Any], ...] = ()

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
            waiting=waiting_text(job.waits_for, job.not_before) if job.is_blocked else "",
            **{name: getattr(job, name) for name in (*same, *_SAME)},
            agent_runs=job.agent_runs,
        )


def present_activity(job: Job | Outline, *, now_ns: int) -> Mapping[str, Any] | None:
    """Return what the runner of a running job has written about its activity: `kind`, `since`, `cause`, `attempt`. The
    kind is `unknown` if the lease has expired, or if an earlier attempt wrote it. None: it has written nothing, or the
    job does not run."""
    if job.activity is None or (job.status is not Status.RUNNING and not is_parked(job)):
        return None
    return job.activity if is_current(job, now_ns=now_ns) else {**job.activity, "kind": UNKNOWN}


def is_parked(job: Job | Outline) -> bool:
    """Return whether a pending job waits for the end of a usage limit: its last attempt has left that as its
    activity."""
    written = job.activity
    is_limited = written is not None and written["kind"] == LIMITED and written["attempt"] == job.attempt
    return job.status is Status.PENDING and is_limited


def present_ns(job: Job | Outline, clock: Clock) -> int:
    """Return the date by which to judge what the runner of the job has written: see `Clock.lease_ns`."""
    expires_ns = _lease_ends_ns(job)
    return clock.wall_ns() if expires_ns is None else clock.lease_ns(expires_ns)


def is_current(job: Job | Outline, *, now_ns: int) -> bool:
    """Return whether the runner of this attempt has written the activity, and its lease holds."""
    return job.activity is not None and job.activity["attempt"] == job.attempt and not _has_expired(job, now_ns)


def _has_expired(job: Job | Outline, now_ns: int) -> bool:
    expires_ns = _lease_ends_ns(job)
    return expires_ns is not None and expires_ns < now_ns


def _lease_ends_ns(job: Job | Outline) -> int | None:
    if isinstance(job, Outline):
        return job.lease_expires_ns
    return None if job.lease_expires_at is None else parse_time(job.lease_expires_at)


def activity_of(job: Outline, *, now_ns: int) -> str:
    """Return the activity of a running job, `unknown` past its lease; `disputed` for a job that the user must settle;
    "" for other jobs."""
    if job.disputed is not None and job.status not in TERMINAL:
        return "disputed"
    if is_parked(job):
        return LIMITED
    if job.status is not Status.RUNNING:
        return ""
    if _has_expired(job, now_ns):
        return UNKNOWN
    if job.open_requests:
        return WAITING
    written = present_activity(job, now_ns=now_ns)
    return activity_after(job.last_event) if written is None else kind_after(written["kind"], job.last_event)


def kind_after(kind: str, event: EventName | str | None) -> str:
    """Return the kind of activity after the last event: an agent that publishes `permission_required` itself waits,
    whatever its runner sees of it. The event of a request is followed by another one when the request closes."""
    return WAITING if event == EventName.PERMISSION_REQUIRED and kind in ("working", UNKNOWN) else kind


def activity_after(event: EventName | str | None) -> str:
    """Return the activity of a running job whose runner writes none, after this event; None: there was no event."""
    if event is None:
        return "starting"
    return WAITING if event == EventName.PERMISSION_REQUIRED else "working"


def is_stuck(job: Job | Outline, *, now_ns: int) -> bool:
    """Return whether a running job makes no progress until a person looks at it."""
    written = present_activity(job, now_ns=now_ns)
    return written is not None and (written["kind"] in STUCK or is_at_screen(written))


def asks_at_screen(job: Job | Outline, *, now_ns: int) -> bool:
    """Return whether the agent of a running job waits for a person at its own screen, where no command answers it."""
    return is_at_screen(present_activity(job, now_ns=now_ns))


def public_record(job: Job, *, now_ns: int, show_secrets: bool = False) -> dict[str, Any]:
    """Return the record as it is shown, with the activity that holds now, null for a job that does not run, and with
    what its last attempt runs."""
    written = present_activity(job, now_ns=now_ns)
    shown = {"activity": None if written is None else dict(written)}
    return job.public(show_secrets=show_secrets) | shown | run_of(job)


def run_of(job: Job | Outline) -> dict[str, str | None]:
    """Return what the last attempt runs: `agent_version`, `agent_mode`, `model`; None where the agent does not say
    it."""
    known = next((each for each in job.agent_runs if each["attempt"] == job.attempt), {})
    return {name: known.get(name) for name in ("agent_version", "agent_mode", "model")}


def run_text(shown: Mapping[str, Any]) -> str:
    """Return what an attempt runs as one line: the agent with its release, its permission mode and its model. `shown`
    has them by the names of `run_of`, and the `agent`."""
    named = (("mode", shown["agent_mode"]), ("model", shown["model"]))
    about = [f"{name} {value}" for name, value in named if value]
    return ", ".join([" ".join(filter(None, (shown["agent"], shown["agent_version"]))), *about])


def state_of(job: Job | Outline, activity: str) -> str:
    """Return the activity of a job, or how it ended, in a word for people."""
    ending = None if activity else ending_of(job)
    return ending.word if ending is not None else activity or job.status.value


def reason_of(job: Outline, activity: str) -> str:
    """Return what decided how a job ended, or why it waits, makes no progress, is blocked or disputed, in a line; ""
    for other jobs."""
    ending = None if activity else ending_of(job)
    return first_line(_reason_of_open(job, activity)) if ending is None else ending.note


def _reason_of_open(job: Outline, activity: str) -> str:
    if activity == "disputed":
        return job.disputed or ""
    is_written = job.activity is not None and job.activity["kind"] == activity
    cause = _cause_of(job) if is_written else ""
    if activity in _WITH_CAUSE:
        return cause or job.detail or ""
    return cause if activity == UNKNOWN else job.waiting


def without_runner(job: AnyJob, why: str) -> AnyJob:
    """Return a running job whose runner is gone, where that could not be recorded, as it is shown: nothing is known of
    it but that."""
    began = job.activity["since"] if job.activity is not None else _began(job)
    activity = {"kind": UNKNOWN, "since": began, "cause": why, "attempt": job.attempt}
    shown = {} if isinstance(job, Job) else {"open_requests": (), "last_event": None}
    return job.replace(activity=activity, **shown)  # type: ignore[return-value]  # of the same class


def _began(job: Job | Outline) -> str:
    return job.created_at if isinstance(job, Job) else format_time(job.created_ns)


def last_cause(job: Job) -> str:
    """Return the last cause that the runner of a job has written in this attempt; "" if there is none."""
    written = job.activity
    return "" if written is None or written["attempt"] != job.attempt else _cause_of(job)


def _cause_of(job: Job | Outline) -> str:
    """Return the cause that the runner has written; of what a screen asks, with the whole command to get there."""
    written = job.activity
    cause = "" if written is None else str(written["cause"])
    return cause.replace(ATTACH, f"{ATTACH[:-1]} {job.job_id}`") if is_at_screen(written) else cause
