"""Find the session of a job: the one that runs it, or the one that ran its last attempt."""

from baton.config import Settings
from baton.core.clock import parse_time
from baton.core.errors import JobNotFound, SessionGone, SessionNotFound
from baton.core.fields import is_id_beginning
from baton.core.job import Job
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.session import Session, State, job_label, session_name


def session_of(inventory: Inventory, job: Job) -> Session | None:
    """Return the session that runs the job, or else the one that ran its last attempt; None if this home has none.

    A session for this job alone is named after it, or by the user. A session that takes jobs from its own queue is
    named in the holder of the job."""
    running = running_session_of(inventory, job)
    if running is not None:
        return running
    holder = (job.claimed_by or "").split(":")[-2:][0]  # HOST:SESSION:PID
    for session in inventory.find_named(session_name(job), holder):
        ran_it = session.name == session_name(job) or session.made_for == job.job_id
        if ran_it or job.agent_session == job_label(session.agent_id):
            is_later = job.finished_at is not None and parse_time(job.finished_at) < parse_time(session.created_at)
            return None if is_later else session
    return None


def running_session_of(inventory: Inventory, job: Job) -> Session | None:
    """Return the session that has this job now."""
    running = inventory.all(State.RUNNING)
    return next((session for session in running if job.job_id in (session.job_id, session.made_for)), None)


def named_session(settings: Settings, inventory: Inventory, name: str) -> Session:
    """Return the session of this name, or else that of the job whose id this is; the id may be shortened."""
    try:
        return inventory.get(name)
    except SessionNotFound:
        if not is_id_beginning(name):
            raise
        with open_jobs(settings) as jobs:
            try:
                job = jobs.with_id(name, jobs.get_job)
            except JobNotFound:
                raise SessionNotFound(name) from None
    session = session_of(inventory, job)
    if session is None:
        raise not_here(job)
    return session


def not_here(job: Job) -> SessionGone:
    """Return the error for a job that no session of this host runs."""
    holder = f", held by {job.claimed_by}" if job.claimed_by else ""
    return SessionGone(f"no session on this host runs job {job.job_id}: it is {job.status}{holder}")
