"""Compare the registry with the audit logs of this host, and settle what they disagree on.

The audit log goes further than the registry when the registry was restored from an older copy, or when its server lost
commits. It lags behind when a process was killed between the two, or when the log could not be written."""

from collections.abc import Iterator

from baton.core.errors import BatonError, InvalidRecord, JobNotFound
from baton.core.job import TERMINAL, Job, Status, new_token
from baton.core.value import Value
from baton.history import log
from baton.history.position import Position, read_position
from baton.jobs.verbs import Jobs
from baton.registry.contract import Entry


class Disagreement(Value):
    """How the audit log of a job differs from the registry. `lost`: the registry has lost changes."""

    job_id: str
    why: str
    lost: bool
    missing: bool = False
    """The registry does not have the job: it has lost it, or the job is in another registry."""


def find_disagreements(jobs: Jobs) -> Iterator[Disagreement]:
    """Yield every job on which the registry and the audit logs disagree."""
    known = set()
    for job in jobs.each_job():
        known.add(job.job_id)
        position = read_position(job.job_id, jobs.logs_dir)
        if position is None:
            yield Disagreement(job_id=job.job_id, why="there is no audit log of it", lost=False)
        elif (why := position.contradicts(job)) is not None:
            yield Disagreement(job_id=job.job_id, why=why, lost=True)
        elif position.status is not job.status or position.attempt < job.attempt or _lacks_event(jobs, job, position):
            yield Disagreement(job_id=job.job_id, why=f"{position.differs(job)}: the log lacks changes", lost=False)
    for job_id in log.list_logged_jobs(jobs.logs_dir):
        if job_id in known:
            continue
        position = read_position(job_id, jobs.logs_dir)
        if position is not None and position.status not in TERMINAL and _is_missing(jobs, job_id):
            why = f"the audit log says {position.status}, the registry does not have it: lost, or in another registry"
            yield Disagreement(job_id=job_id, why=why, lost=True, missing=True)


def reconcile(jobs: Jobs, job_id: str, *, keep_history: bool) -> Job:
    """Settle a disagreement: let the registry, or the audit log, be right. Return the job after it."""
    position = read_position(job_id, jobs.logs_dir)
    try:
        job = jobs.get_job(job_id)
    except JobNotFound:
        job = _from_history(jobs, job_id, position, keep_history=keep_history)
    if position is None:
        raise BatonError(f"there is no audit log of job {job_id} on this host; there is nothing to settle")
    change = jobs.registry.settle(
        job_id,
        position.status if keep_history else job.status,
        attempt=position.attempt,
        seq=position.seq,
        holder=position.holder,
    )
    jobs.history.add_reconciled(position.status, change.after, "history" if keep_history else "registry")
    return change.after


def _lacks_event(jobs: Jobs, job: Job, position: Position) -> bool:
    """Return whether the registry has an event that the log has not: a number may have been taken without one."""
    return position.seq < job.last_seq and bool(jobs.events_after(job.job_id, position.seq, limit=1))


def _is_missing(jobs: Jobs, job_id: str) -> bool:
    try:
        jobs.get_job(job_id)
    except JobNotFound:
        return True
    except InvalidRecord:
        return False  # `doctor` names it
    return False


def _from_history(jobs: Jobs, job_id: str, position: Position | None, *, keep_history: bool) -> Job:
    """Register a job again that the registry has lost, as it was registered, with a new key and without a password."""
    meta = log.read_logged_meta(job_id, jobs.logs_dir)
    if meta is None or position is None or position.status in TERMINAL:
        raise JobNotFound(job_id, jobs.registry.where)
    broker = meta.get("broker")
    if isinstance(broker, dict):
        meta["broker"] = broker | {"password": None}  # nosec B105: none
    status = Status.PENDING if keep_history else Status.CANCELLED
    job = Job.parse(meta | {"auth_token": new_token(), "status": status}, job_id)
    jobs.registry.import_entries([Entry(job=job, events=())])
    return job
