"""End a session and fail its job. The runner, `stop` and the monitor share these steps; each is safe to repeat."""

import time

from baton.config import Settings
from baton.core.clock import format_micros
from baton.core.errors import BatonError, EventRefused, IllegalTransition, JobBlocked, SessionNotFound, StaleAttempt
from baton.core.event import EventName
from baton.core.job import TERMINAL, Job, Status
from baton.jobs.report import report
from baton.jobs.verbs import Jobs
from baton.live_agents import open_directory, ownership
from baton.sessions.inventory import Inventory
from baton.sessions.session import Session, State
from baton.transport.publish import send_unsent
from baton.transport.publisher_connection import FAILURES

EXIT = "exit.json"  # how the agent ended; without it, the runner was killed
# In the data of an error that another process reported: the agent may still be working.
ENDED_FROM_OUTSIDE = "ended_from_outside"


def end_session(
    settings: Settings,
    inventory: Inventory,
    session: Session,
    state: State,
    *,
    reason: str,
    exit_text: str | None = None,
) -> Session:
    """Release the session's name, and write its end into inventory and archive. An ended session stays as it is."""
    forget_name(settings, session)
    now = format_micros(time.time_ns())

    def end(current: Session) -> Session:
        if current.state is not State.RUNNING:
            return current
        return current.replace(
            state=state,
            reason=reason,
            exit=exit_text,
            ended_at=now,
            updated_at=now,
            stop_requested=None,
            stopper=None,
            job_id=None,
        )

    try:
        return inventory.change(session, end)
    except SessionNotFound:
        return session  # another session has its name now


def forget_name(settings: Settings, session: Session) -> None:
    """Remove the live-agent record of the session, unless another generation owns it."""
    try:
        with open_directory(settings) as directory:
            ownership.remove(directory, session.agent_id, session.generation_id)
    except BatonError:
        pass  # another session owns it, or the directory is unavailable and the record expires


def fail_job(
    settings: Settings, jobs: Jobs, job: Job, attempt: int | None, detail: str, *, ended_by: str, notify: bool = True
) -> bool:
    """Record that the job failed; return False when it has already ended, waits or belongs to another attempt. With
    retries left, it is pending again.

    With an `attempt`, the caller reports as the holder of that attempt, and a job that was requeued is left alone.
    `ended_by` is for the record of the job. `notify` sends the event now; otherwise the next event, or the monitor,
    does.
    """
    current = jobs.get_job(job.job_id)
    if current.status in TERMINAL:
        return False
    try:
        if current.status is Status.PENDING and current.attempt:
            if attempt is not None:
                return False
            attempt = jobs.pick_job(job.job_id).attempt  # only the holder of a requeued job may report on it
        data = {ENDED_FROM_OUTSIDE: True}
        report(jobs, job.job_id, EventName.ERROR, detail=detail, data=data, attempt=attempt, ended_by=ended_by)
    except (EventRefused, IllegalTransition, JobBlocked, StaleAttempt):
        return False
    if notify:
        try_to_send(settings, jobs, job)
    return True


def try_to_send(settings: Settings, jobs: Jobs, job: Job) -> bool:
    """Send the unsent events of the job; return False when that failed. The next event, or the monitor, sends them."""
    try:
        send_unsent(jobs, settings, job, tries=1)
    except FAILURES:
        return False
    return True
