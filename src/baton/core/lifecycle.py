"""Which state may follow which: pure functions from one job to the next, no I/O.

    pending ──► running ──► completed
       │          │  │  └──► error
       │          │  └─────► cancelled ◄── pending
       ◄──requeue─┘

Every backend decides with these functions, so that none can differ. Each takes the job as it is stored, and
returns the job as it should be stored or raises.
"""

from __future__ import annotations

from baton.core.clock import SECOND_NS, format_time, parse_time
from baton.core.errors import EventRefused, IllegalTransition, InvalidValue, StaleAttempt
from baton.core.event import EventName
from baton.core.job import TERMINAL, Job, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_FOLLOWS: Final = {
    Status.PENDING: frozenset({Status.RUNNING, Status.CANCELLED}),
    Status.RUNNING: frozenset({Status.COMPLETED, Status.ERROR, Status.CANCELLED}),
}
_ENDS_WITH: Final = {EventName.COMPLETED: Status.COMPLETED, EventName.ERROR: Status.ERROR}


def check_attempt(job: Job, attempt: int | None) -> None:
    """A write that carries an attempt is its holder's: refused once that holder has lost the job."""
    if attempt is not None and (attempt != job.attempt or job.status is Status.PENDING):  # guard: write-attempt
        raise StaleAttempt(job.job_id, attempt, job.attempt, job.status)


def claim(job: Job, *, holder: str, now_ns: int, token: str) -> Job:
    """pending → running, as the next attempt. The first attempt keeps the key drawn at registration; each
    later one gets `token`, so that whoever held the job before can sign nothing any more."""
    if job.status is not Status.PENDING:  # guard: claim-pending-only
        raise IllegalTransition(job.job_id, job.status, Status.RUNNING)
    now = format_time(now_ns)
    return job.replace(
        status=Status.RUNNING,
        attempt=job.attempt + 1,
        claimed_by=holder,
        auth_token=job.auth_token if job.attempt == 0 and job.auth_token else token,  # guard: new-key-per-attempt
        deadline_at=format_time(now_ns + job.timeout_sec * SECOND_NS),
        updated_at=now,
    )


def before_claim(claimed: Job) -> Job:
    """Return the pending job that `claim` made this one of, for a store whose claim returns only the new row.
    `updated_at` and a replaced key stay those of the claim."""
    return claimed.replace(
        status=Status.PENDING,
        attempt=claimed.attempt - 1,
        claimed_by=None,
        lease_expires_at=None,
        lease_mark=None,
        deadline_at=None,
    )


def clear_submitter(job: Job, *, now_ns: int) -> Job:
    """Return the pending job without its submitter, so that any worker of its queue may claim it. A pending job without
    one is returned as it is."""
    if job.status is not Status.PENDING:
        raise IllegalTransition(job.job_id, job.status, Status.PENDING)
    return job if job.submitter is None else job.replace(submitter=None, updated_at=format_time(now_ns))


def adopt(job: Job, *, token: str) -> Job:
    """A running job of an old record, which knows neither keys nor attempts: with both, so that its events are ones a
    receiver accepts."""
    return job.replace(attempt=max(job.attempt, 1), auth_token=job.auth_token or token)


def requeue(job: Job, *, attempt: int | None, now_ns: int) -> Job:
    """running → pending: the job goes back to whoever picks next; what its holder still writes is refused."""
    if job.status is Status.PENDING and attempt is None:
        return job
    check_attempt(job, attempt)
    if job.status is not Status.RUNNING:
        raise IllegalTransition(job.job_id, job.status, Status.PENDING)
    return job.replace(
        status=Status.PENDING,
        claimed_by=None,
        lease_expires_at=None,
        lease_mark=None,
        deadline_at=None,
        updated_at=format_time(now_ns),
    )


def set_status(job: Job, wanted: Status, *, attempt: int | None, holder: str, now_ns: int, token: str) -> Job:
    """The job in the wanted status. Setting what it already is changes nothing and succeeds."""
    check_attempt(job, attempt)
    if job.status is wanted:
        return job
    if wanted not in _FOLLOWS.get(job.status, ()):  # guard: status-transition
        hint = ""
        if wanted is Status.PENDING and job.status is Status.RUNNING:
            hint = "`baton release` hands it back"
        elif job.status is Status.PENDING:
            hint = "pick it first"
        raise IllegalTransition(job.job_id, job.status, wanted, hint)
    if wanted is Status.RUNNING:
        return claim(job, holder=holder, now_ns=now_ns, token=token)
    return _ended(job, wanted, now_ns)


def before_event(job: Job, event: EventName, *, attempt: int | None, has_events: bool) -> None:
    """Refuses an event the job's story has no room for. `has_events`: this attempt already has one."""
    if job.status in TERMINAL:  # guard: terminal-job-event
        raise EventRefused(job.job_id, event, f"the job is {job.status}, and that never changes again")
    check_attempt(job, attempt)
    if job.status is Status.PENDING and job.attempt > 0:
        raise EventRefused(job.job_id, event, "the job was handed back and waits to be picked again")
    if event is EventName.STARTED and has_events:
        raise EventRefused(job.job_id, event, f"attempt {job.attempt} has started already")


def after_event(job: Job, event: EventName, *, seq: int, detail: str, now_ns: int) -> Job:
    """A running job after an event that `before_event` let through."""
    now = format_time(now_ns)
    job = job.replace(last_seq=seq, detail=detail or job.detail, last_event_at=now, updated_at=now)
    return _ended(job, _ENDS_WITH[event], now_ns) if event in _ENDS_WITH else job


def take_seq(job: Job, *, attempt: int | None, now_ns: int) -> Job:
    check_attempt(job, attempt)
    if job.status in TERMINAL:
        raise EventRefused(job.job_id, "next_seq", f"the job is {job.status}, and that never changes again")
    return job.replace(last_seq=job.last_seq + 1, updated_at=format_time(now_ns))


def renew(job: Job, *, attempt: int, now_ns: int) -> Job:
    if job.status is not Status.RUNNING or attempt != job.attempt:
        raise StaleAttempt(job.job_id, attempt, job.attempt, job.status)
    return job.replace(updated_at=format_time(now_ns))


def expired_lease_error(job: Job) -> str | None:
    """Decide what happens to a running job whose lease has expired. Return the detail of the error that ends it, or
    None when it has attempts left and is requeued."""
    if job.attempt < job.max_attempts:
        return None
    return f"lease expired on attempt {job.attempt}, and there are no attempts left"


def lease_ns(lease_sec: float | None) -> int | None:
    """A lease as nanoseconds; None for no lease."""
    if lease_sec is None:
        return None
    if not 0 < lease_sec <= 366 * 86400:
        raise InvalidValue("lease", "must be more than 0 seconds and at most a year")
    return max(int(lease_sec * SECOND_NS), 1)


def may_prune(job: Job, before_ns: int) -> bool:
    return job.status in TERMINAL and parse_time(job.finished_at or job.updated_at) < before_ns


def transitions(before: Job, after: Job) -> tuple[tuple[Status, Status], ...]:
    """The status changes between two versions of a job, for the audit log. An event that found its job
    pending made two at once."""
    if before.status is after.status:
        return ()
    if before.status is Status.PENDING and after.attempt > before.attempt and after.status is not Status.RUNNING:
        return ((before.status, Status.RUNNING), (Status.RUNNING, after.status))
    return ((before.status, after.status),)


def _ended(job: Job, status: Status, now_ns: int) -> Job:
    now = format_time(now_ns)
    return job.replace(status=status, finished_at=now, updated_at=now, lease_expires_at=None, lease_mark=None)
