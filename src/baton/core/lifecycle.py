"""Decide which state of a job may follow which: pure functions from one job to the next, without I/O.

    pending ──► running ──► completed
       │          │  │  └──► error
       │          │  └─────► cancelled ◄── pending
       ◄──requeue─┘

Every registry decides with these functions. Each takes the job as it is stored, and returns the job as it should be
stored or raises.
"""

from __future__ import annotations

from baton.core.clock import SECOND_NS, format_time, parse_time
from baton.core.errors import EventRefused, IllegalTransition, InvalidValue, JobDisputed, StaleAttempt
from baton.core.event import EventName
from baton.core.job import TERMINAL, Job, Status, check_activity
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLLOWS = {
    Status.PENDING: frozenset({Status.RUNNING, Status.CANCELLED}),
    Status.RUNNING: frozenset({Status.COMPLETED, Status.ERROR, Status.CANCELLED}),
}
_ENDS_WITH = {EventName.COMPLETED: Status.COMPLETED, EventName.ERROR: Status.ERROR}
_NO_REASON = {
    Status.COMPLETED: "it was reported as completed",
    Status.ERROR: "it was reported as an error, without a reason",
    Status.CANCELLED: "it was cancelled",
}
_NOT_ENDED: dict[str, None] = dict.fromkeys(("finished_at", "ended_by", "reason", "seen_at"))


def check_attempt(job: Job, attempt: int | None) -> None:
    """Refuse a write that carries the attempt of a holder that has lost the job."""
    if attempt is not None and (attempt != job.attempt or job.status is Status.PENDING):  # guard: write-attempt
        raise StaleAttempt(job.job_id, attempt, job.attempt, job.status)


def claim(job: Job, *, holder: str, now_ns: int, token: str) -> Job:
    """pending → running, as the next attempt. The first attempt keeps the key drawn at registration. Each later one
    gets `token`, so that an earlier holder cannot sign events any more."""
    if job.status is not Status.PENDING:  # guard: claim-pending-only
        raise IllegalTransition(job.job_id, job.status, Status.RUNNING)
    if job.disputed is not None:  # guard: disputed-job
        raise JobDisputed(job.job_id, job.disputed)
    return job.replace(
        status=Status.RUNNING,
        attempt=job.attempt + 1,
        claimed_by=holder,
        auth_token=job.auth_token if job.attempt == 0 and job.auth_token else token,  # guard: new-key-per-attempt
        deadline_at=format_time(now_ns + job.timeout_sec * SECOND_NS),
        updated_at=format_time(now_ns),
    )


def before_claim(claimed: Job) -> Job:
    """Return the pending job that `claim` started from, for a store whose claim returns only the new row. `updated_at`
    and a replaced key stay those of the claim."""
    return _unclaimed(claimed, attempt=claimed.attempt - 1)


def add_missing_key(job: Job, *, token: str) -> Job:
    """Return a running job of an old record, which has no key and no attempt, with both, so that receivers accept its
    events."""
    return job.replace(attempt=max(job.attempt, 1), auth_token=job.auth_token or token)


def requeue(job: Job, *, attempt: int | None, now_ns: int) -> Job:
    """running → pending: the next worker may claim the job, and later writes of its holder are refused."""
    if job.status is Status.PENDING and attempt is None:
        return job
    check_attempt(job, attempt)
    if job.status is not Status.RUNNING:
        raise IllegalTransition(job.job_id, job.status, Status.PENDING)
    return _unclaimed(job, updated_at=format_time(now_ns))


def clear_submitter(job: Job, *, now_ns: int) -> Job:
    """Return the pending job without its submitter, so that any worker of its queue may claim it."""
    if job.status is not Status.PENDING:
        raise IllegalTransition(job.job_id, job.status, Status.PENDING)
    return job if job.submitter is None else job.replace(submitter=None, updated_at=format_time(now_ns))


def dispute(job: Job, why: str) -> Job:
    """Return a pending job that no process may claim, because its audit log contradicts the registry."""
    return job.replace(disputed=why) if job.status is Status.PENDING and job.disputed is None else job


def settle(job: Job, wanted: Status, *, attempt: int, seq: int, holder: str | None, now_ns: int, token: str) -> Job:
    """Return a disputed job in the status that the user has decided on, whatever it was. Attempt and event number go on
    after those that the audit log knows, so that no number is used twice and an earlier holder cannot write."""
    if attempt > job.attempt:
        job = job.replace(attempt=attempt, auth_token=token)
    job = job.replace(last_seq=max(seq, job.last_seq), disputed=None, updated_at=format_time(now_ns))
    if wanted is job.status:
        return job
    if wanted is Status.PENDING:
        return _unclaimed(job, **_NOT_ENDED)
    if wanted is Status.RUNNING:
        deadline = format_time(now_ns + job.timeout_sec * SECOND_NS)
        return job.replace(status=wanted, claimed_by=holder or job.claimed_by, deadline_at=deadline, **_NOT_ENDED)
    return _end(job, wanted, now_ns, "the user settled it by the audit log")


def set_status(
    job: Job, wanted: Status, *, attempt: int | None, holder: str, now_ns: int, token: str, reason: str = ""
) -> Job:
    """Return the job in the wanted status; the same job if it has that status already. `reason`: why it ends."""
    check_attempt(job, attempt)
    if job.status is wanted:
        return job
    if wanted not in _FOLLOWS.get(job.status, ()):  # guard: status-transition
        hint = ""
        if wanted is Status.PENDING and job.status is Status.RUNNING:
            hint = "requeue it with `baton release`"
        elif job.status is Status.PENDING:
            hint = "pick it first"
        raise IllegalTransition(job.job_id, job.status, wanted, hint)
    if wanted is Status.RUNNING:
        return claim(job, holder=holder, now_ns=now_ns, token=token)
    return _end(job, wanted, now_ns, reason)


def check_event(job: Job, event: EventName, *, attempt: int | None, has_events: bool) -> None:
    """Refuse an event that may not come now. `has_events`: this attempt already has one."""
    if job.status in TERMINAL:  # guard: terminal-job-event
        raise EventRefused(job.job_id, event, f"the job is {job.status}, and that never changes again")
    check_attempt(job, attempt)
    if job.status is Status.PENDING and job.attempt > 0:
        raise EventRefused(job.job_id, event, "the job was requeued and waits to be picked again")
    if event is EventName.STARTED and has_events:
        raise EventRefused(job.job_id, event, f"attempt {job.attempt} has started already")


def apply_event(job: Job, event: EventName, *, seq: int, detail: str, now_ns: int) -> Job:
    """Return a running job after an event that `check_event` accepted."""
    now = format_time(now_ns)
    job = job.replace(last_seq=seq, detail=detail or job.detail, last_event_at=now, updated_at=now)
    return _end(job, _ENDS_WITH[event], now_ns, detail) if event in _ENDS_WITH else job


def see(job: Job, *, now_ns: int) -> Job:
    """Return the job with the time when the user was first shown its end."""
    return job.replace(seen_at=format_time(now_ns)) if job.status in TERMINAL and job.seen_at is None else job


def take_seq(job: Job, *, attempt: int | None, now_ns: int) -> Job:
    check_attempt(job, attempt)
    if job.status in TERMINAL:
        raise EventRefused(job.job_id, "next_seq", f"the job is {job.status}, and that never changes again")
    return job.replace(last_seq=job.last_seq + 1, updated_at=format_time(now_ns))


def check_holder(job: Job, attempt: int) -> None:
    """Refuse a write that is not of the present holder of a running job."""
    if job.status is not Status.RUNNING or attempt != job.attempt:  # guard: holder-attempt
        raise StaleAttempt(job.job_id, attempt, job.attempt, job.status)


def renew(job: Job, *, attempt: int, now_ns: int, activity: Mapping[str, Any] | None = None) -> Job:
    check_holder(job, attempt)
    job = job.replace(updated_at=format_time(now_ns))
    return job if activity is None else set_activity(job, activity, attempt=attempt)


def set_activity(job: Job, activity: Mapping[str, Any], *, attempt: int) -> Job:
    """Return the job with what its agent is doing: `kind`, `since` and `cause`. `updated_at` stays."""
    check_holder(job, attempt)
    checked: dict[str, Any] = check_activity({**activity, "attempt": attempt})
    return job if checked == job.activity else job.replace(activity=checked)


def expired_lease_error(job: Job) -> str | None:
    """Decide what happens to a running job whose lease has expired. Return the detail of the error that ends it, or
    None when it has attempts left and is requeued."""
    if job.attempt < job.max_attempts:
        return None
    return f"lease expired on attempt {job.attempt}, and there are no attempts left"


def lease_ns(lease_sec: float | None) -> int | None:
    """Return a lease in nanoseconds; None for no lease."""
    if lease_sec is None:
        return None
    if not 0 < lease_sec <= 366 * 86400:
        raise InvalidValue("lease", "must be more than 0 seconds and at most a year")
    return max(int(lease_sec * SECOND_NS), 1)


def may_prune(job: Job, before_ns: int) -> bool:
    return job.status in TERMINAL and parse_time(job.finished_at or job.updated_at) < before_ns


def transitions(before: Job, after: Job) -> tuple[tuple[Status, Status], ...]:
    """Return the status changes between two versions of a job, for the audit log. An event for a pending job makes two
    at once."""
    if before.status is after.status:
        return ()
    if before.status is Status.PENDING and after.attempt > before.attempt and after.status is not Status.RUNNING:
        return ((before.status, Status.RUNNING), (Status.RUNNING, after.status))
    return ((before.status, after.status),)


def _unclaimed(job: Job, **more: object) -> Job:
    return job.replace(
        status=Status.PENDING,
        claimed_by=None,
        lease_expires_at=None,
        lease_mark=None,
        deadline_at=None,
        activity=None,
        **more,
    )


def _end(job: Job, status: Status, now_ns: int, reason: str) -> Job:
    now = format_time(now_ns)
    return job.replace(
        status=status,
        finished_at=now,
        updated_at=now,
        lease_expires_at=None,
        lease_mark=None,
        activity=None,
        ended_by="cancelled" if status is Status.CANCELLED else "agent",
        reason=reason or _NO_REASON[status],
    )
