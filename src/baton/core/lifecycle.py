"""Decide which state of a job may follow which: pure functions from one job to the next, without I/O.

    pending ──► running ──► completed
       │          │  │  └──► error
       │          │  └─────► cancelled ◄── pending
       ◄──requeue─┘

A pending job that waits for other jobs, or for a time, is blocked: it is claimed by no process until `wait_less` or
`unblock` let it go on. Three counters are separate: `attempt` fences, and rises with every holder; `lost_attempts`
counts the holders that were lost, up to `max_attempts`; `failed_attempts` counts errors, up to `retries`.

Every registry decides with these functions. Each takes the job as it is stored, and returns the job as it should be
stored or raises.
"""

from __future__ import annotations

from baton.core.clock import SECOND_NS, format_time, parse_time
from baton.core.errors import EventRefused, IllegalTransition, InvalidValue, JobBlocked, JobDisputed, StaleAttempt
from baton.core.event import EventName
from baton.core.job import NAMES_OF_JOBS, TERMINAL, Job, Status, waiting_text
from baton.core.job_checks import check_activity, check_checkout, check_parked
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Ends by error that `retries` counts. A lost holder counts as one, whatever ends a job without its work counts as none.
_RETRIED = frozenset({"agent", "verification", "timeout", "idle"})
_LONGEST_BACKOFF_SEC = 86400
_AT_ONCE = format_time(0)  # also where the clock of the registry is behind that of this host
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
_NOT_ENDED: dict[str, None] = dict.fromkeys(("finished_at", "ended_by", "reason", "seen_at", "changed"))


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
    if job.is_blocked:  # guard: blocked-job
        raise JobBlocked(job.job_id, waiting_text(job.waits_for, job.not_before))
    return job.replace(
        status=Status.RUNNING,
        attempt=job.attempt + 1,
        claimed_by=holder,
        auth_token=job.auth_token if job.attempt == 0 and job.auth_token else token,  # guard: new-key-per-attempt
        deadline_at=format_time(now_ns + job.timeout_sec * SECOND_NS),
        updated_at=format_time(now_ns),
        activity=None,  # what it waited for
    )


def before_claim(claimed: Job) -> Job:
    """Return the pending job that `claim` started from, for a store whose claim returns only the new row. `updated_at`
    and a replaced key stay those of the claim."""
    return _remove_claim(claimed, attempt=claimed.attempt - 1)


def add_missing_key(job: Job, *, token: str) -> Job:
    """Return a running job of an old record, which has no key and no attempt, with both, so that receivers accept its
    events."""
    return job.replace(attempt=max(job.attempt, 1), auth_token=job.auth_token or token)


def requeue(job: Job, *, attempt: int | None, now_ns: int, lost: bool = False, not_before_ns: int | None = None) -> Job:
    """running → pending: the next worker may claim the job, and later writes of its holder are refused. `lost`: its
    holder has died, which counts. `not_before_ns`: it is blocked until then."""
    if job.status is Status.PENDING and attempt is None:
        return job
    check_attempt(job, attempt)
    if job.status is not Status.RUNNING:
        raise IllegalTransition(job.job_id, job.status, Status.PENDING)
    job = _remove_claim(job, updated_at=format_time(now_ns), lost_attempts=job.lost_attempts + lost)
    return job if not_before_ns is None else _blocked_until(job, not_before_ns, 0)


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
    job = free(job)
    if wanted is Status.PENDING:
        return _remove_claim(job, **_NOT_ENDED)
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


def set_checkout(job: Job, checkout: Mapping[str, Any], *, attempt: int) -> Job:
    """Return the job with the worktree that its holder works in. `updated_at` stays."""
    check_holder(job, attempt)
    return job.replace(checkout=check_checkout(checkout))


def set_activity(job: Job, activity: Mapping[str, Any], *, attempt: int) -> Job:
    """Return the job with what its agent is doing: `kind`, `since` and `cause`. `updated_at` stays."""
    check_holder(job, attempt)
    checked: dict[str, Any] = check_activity({**activity, "attempt": attempt})
    return job if checked == job.activity else job.replace(activity=checked)


def expired_lease_error(job: Job) -> str | None:
    """Decide what happens to a running job whose lease has expired. Return the detail of the error that ends it, or
    None when it may lose one more holder and is requeued."""
    if job.lost_attempts + 1 < job.max_attempts:
        return None
    return f"lease expired on attempt {job.attempt}, and there are no attempts left"


# -- errors that are retried ---------------------------------------------------------------------------------------


def may_retry(job: Job, ended_by: str) -> bool:
    """Return whether an error of this kind does not end a running job: it has retries left."""
    return job.status is Status.RUNNING and ended_by in _RETRIED and job.failed_attempts < job.retries


def failed_attempt(job: Job, *, now_ns: int, present_ns: int) -> tuple[Job, dict[str, Any]]:
    """Return the running job as pending, after an error that `may_retry` allows, and what the event says about it.
    `present_ns` is the time by which the registry unblocks it."""
    number = job.failed_attempts + 1
    pause_sec = min(job.backoff_sec * 2 ** min(number - 1, 30), max(_LONGEST_BACKOFF_SEC, job.backoff_sec))
    about: dict[str, Any] = {"attempt_failed": job.attempt, "retries_left": job.retries - number}
    job = _remove_claim(job, updated_at=format_time(now_ns), failed_attempts=number)
    if pause_sec:
        job = _blocked_until(job, present_ns + pause_sec * SECOND_NS, 0)
        about["not_before"] = job.not_before
    return job, about


def park(job: Job, parked: Mapping[str, Any], *, now_ns: int, present_ns: int) -> tuple[Job, dict[str, Any]]:
    """Return the running job as pending until a usage limit is over, as `baton.core.parking` says, and what the event
    says about it. That is neither a lost holder nor an error."""
    waits = _remove_claim(job, updated_at=format_time(now_ns), parked=check_parked(parked))
    waiting = {"kind": "limited", "since": parked["since"], "cause": parked["why"], "attempt": job.attempt}
    waits = waits.replace(activity=check_activity(waiting))
    waits = _blocked_until(waits, parse_time(parked["until"]), present_ns)
    return waits, {"limited_until": parked["until"]}


# -- order: what comes after what ------------------------------------------------------------------------------------


def is_met(predecessor: Job) -> bool | None:
    """Return whether a job lets those after it start: True if `wait` would exit with 0 for it, None if it has not
    ended."""
    if predecessor.status not in TERMINAL:
        return None
    has_conditions = bool(predecessor.expected_artifacts or predecessor.validate)
    is_proven = bool(predecessor.verified_by) or predecessor.unverified is not None or not has_conditions
    return predecessor.status is Status.COMPLETED and is_proven


def describe_unmet(job_id: str, predecessor: Job | None) -> str:
    """Return why a job ends that comes after this one. None: it is not in the registry any more."""
    if predecessor is None:
        what = "is not in the registry any more"
    elif predecessor.status is Status.COMPLETED:
        what = "is completed, but no check of its results is recorded"
    else:
        what = "was cancelled" if predecessor.status is Status.CANCELLED else "failed"
    return f"it comes after job {job_id}, which {what}"


def arrange(job: Job, unmet: Iterable[str], *, now_ns: int) -> Job:
    """Return a new job that waits for these predecessors, then for its `not_before`."""
    job = job.replace(waits_for=tuple(unmet))
    return _blocked_until(job, parse_time(job.not_before), now_ns) if job.not_before and not job.waits_for else job


def follow(predecessor: Job, *, now_ns: int) -> Job:
    """Return a job that is not met, with the note that another one comes after it. Of an ended one, the registry looks
    at those after it now."""
    now = format_time(now_ns)
    if predecessor.status in TERMINAL:
        return predecessor.replace(followed_at=predecessor.followed_at or now, look_at=_AT_ONCE)
    return predecessor if predecessor.followed_at is not None else predecessor.replace(followed_at=now)


def wait_less(job: Job, predecessor: str, *, now_ns: int, present_ns: int) -> Job:
    """Return a blocked job that waits no more for a predecessor, which is met; then for its `not_before`, if that is
    still to come by the registry's clock."""
    left = tuple(each for each in job.waits_for if each != predecessor)
    return arrange(job.replace(updated_at=format_time(now_ns)), left, now_ns=present_ns)


def unblock(job: Job, *, now_ns: int) -> Job:
    """Return a pending job whose `not_before` has come; of an ended job, all those after it have been looked at."""
    if job.status is Status.PENDING:
        return job.replace(look_at=None, updated_at=format_time(now_ns))
    return job.replace(look_at=None)


def free(job: Job) -> Job:
    """Return a blocked job as one that may be claimed: to end it, because a predecessor is not met."""
    return job.replace(waits_for=(), look_at=None)


def named_jobs(job: Job) -> set[str]:
    """Return the other jobs that the record names. While the job is unfinished, they are kept."""
    return {*job.after, *(name for field in NAMES_OF_JOBS if (name := getattr(job, field)) is not None)}


def _blocked_until(job: Job, not_before_ns: int, now_ns: int) -> Job:
    """Return the job with this `not_before`; blocked, unless that is not after `now_ns`."""
    not_before = format_time(not_before_ns)
    return job.replace(not_before=not_before, look_at=not_before if not_before_ns > now_ns else None)


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
    if before.status is after.status and (after.status is not Status.PENDING or before.attempt == after.attempt):
        return ()
    if before.status is Status.PENDING and after.attempt > before.attempt and after.status is not Status.RUNNING:
        return ((before.status, Status.RUNNING), (Status.RUNNING, after.status))
    return ((before.status, after.status),)


def _remove_claim(job: Job, **more: object) -> Job:
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
        waits_for=(),
        look_at=_AT_ONCE if job.followed_at is not None else None,
        ended_by="cancelled" if status is Status.CANCELLED else "agent",
        reason=reason or _NO_REASON[status],
    )
