"""The last things that happen to a session, whoever sees to them: its runner, `stop`, or the monitor. Each is safe to
repeat, and happens only while the session is still the one that was meant."""

from __future__ import annotations

import time

from baton.core.clock import format_time
from baton.core.errors import BatonError, EventRefused, IllegalTransition, SessionNotFound, StaleAttempt
from baton.core.event import EventName
from baton.core.job import TERMINAL, Status
from baton.jobs.report import report
from baton.live_agents import open_directory, ownership
from baton.sessions.session import State
from baton.transport.publish import send_unsent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.config import Settings
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs
    from baton.sessions.inventory import Inventory
    from baton.sessions.session import Session


# In the data of an error that its agent did not say: it may still be at work.
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
    """Gives its name back and writes its end into inventory and archive. What has ended stays as it ended."""
    forget_name(settings, session)
    now = format_time(time.time_ns())

    def ended(current: Session) -> Session:
        if current.state is not State.RUNNING:
            return current
        return current.replace(
            state=state,
            reason=reason,
            exit=exit_text,
            ended_at=now,
            updated_at=now,
            ending=None,
            stopper=None,
            job_id=None,
        )

    try:
        return inventory.change(session, ended)
    except SessionNotFound:
        return session  # another has its name by now: nothing is left to write


def forget_name(settings: Settings, session: Session) -> None:
    """Removes its live-agent record, unless another generation has it."""
    try:
        directory = open_directory(settings)
        try:
            ownership.remove(directory, session.agent_id, session.generation_id)
        finally:
            directory.close()
    except BatonError:
        pass  # not ours any more; or the directory is away, and the lease will end by itself


def end_job(jobs: Jobs, job_id: str, attempt: int | None, detail: str) -> bool:
    """Records that the job failed, unless its story is already over or somebody else's. With an `attempt`, whoever held
    that one speaks, and a job that was handed back is theirs no more."""
    job = jobs.get_job(job_id)
    if job.status in TERMINAL:
        return False
    try:
        if job.status is Status.PENDING and job.attempt:
            if attempt is not None:
                return False
            attempt = jobs.pick_job(job_id).attempt  # handed back: only whoever claims it can say anything about it
        report(jobs, job_id, EventName.ERROR, detail=detail, data={ENDED_FROM_OUTSIDE: True}, attempt=attempt)
    except (EventRefused, IllegalTransition, StaleAttempt):
        return False
    return True


def fail_job(settings: Settings, jobs: Jobs, job: Job, attempt: int | None, detail: str) -> bool:
    """As `end_job`, and whoever listens is told."""
    if not end_job(jobs, job.job_id, attempt, detail):
        return False
    try:
        send_unsent(jobs, settings, job, tries=1)
    except BatonError:
        pass  # sent later: the registry has it
    return True
