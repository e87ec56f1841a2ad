"""Start the attempts of jobs, and decide what follows when the holder or the submitter of a job has died.

`submitter` of a job is `host:pid:start` of the process that submitted it. While that process lives, it alone starts the
job. After its death a worker of the queue takes the job, or the monitor does.
"""

from __future__ import annotations

from baton.core.errors import (
    BatonError,
    IllegalTransition,
    RegistryUnavailable,
    RunnerDied,
    StaleAttempt,
    TmuxUnavailable,
)
from baton.core.job import Status
from baton.core.lifecycle import expired_lease_error
from baton.sessions.ending import fail_job
from baton.sessions.launch import create_session
from baton.sessions.processes import ProcessId
from baton.sessions.session import session_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.adapters.contract import Agent, Mode
    from baton.config import Settings
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs
    from baton.sessions.inventory import Inventory

# Version 0.1.0 gave each `baton submit` process a private queue: submit:HOST:PID:START:RANDOM.
_PRIVATE_QUEUE = "submit:"


def this_submitter(host: str) -> str:
    """Return this process as the `submitter` of a job."""
    process = ProcessId.current()
    return f"{host}:{process.pid}:{process.started}"


def is_private_queue(queue: str) -> bool:
    """Return whether version 0.1.0 made this queue for one `baton submit` process."""
    return queue.startswith(_PRIVATE_QUEUE)


def submitter_is_dead(job: Job, host: str) -> bool:
    """Return whether the process that submitted the job ran on this host and has ended."""
    submitter = job.submitter or ""
    if is_private_queue(job.agent_session):
        submitter = job.agent_session.removeprefix(_PRIVATE_QUEUE).rpartition(":")[0]
    try:
        there, pid, started = submitter.rsplit(":", 2)
        process = ProcessId(pid=int(pid), started=int(started))
    except ValueError:
        return False  # no submitter, or not in this form
    return there == host and not process.is_alive()


def start_attempt(
    settings: Settings,
    inventory: Inventory,
    jobs: Jobs,
    job: Job,
    *,
    agent: str | Agent,
    workdir: str,
    mode: Mode,
    yolo: bool,
    socket: str | None = None,
) -> str | None:
    """Start a session for one attempt of a job, and return None. The runner of a pending job claims it.

    When the session cannot be started, the job fails: return why. A runner that dies before the agent runs is a lost
    holder: the job is requeued if it has attempts left, and a job that was pending is started again. A claimed job does
    not fail because tmux or the registry is unavailable: the error is raised, and the holder requeues the job."""
    claimed = job.status is Status.RUNNING
    while True:
        try:
            create_session(
                settings,
                inventory,
                session_name(job if claimed else job.replace(attempt=job.attempt + 1)),
                agent=agent,
                workdir=workdir,
                mode=mode,
                job=job,
                attempt=job.attempt if claimed else None,
                yolo=yolo,
                socket=socket,
            )
        except RunnerDied as error:
            why = str(error)
            lost = jobs.get_job(job.job_id)
            if lost.status is Status.RUNNING:
                if requeue_or_fail(settings, jobs, lost, why) is not Status.PENDING or claimed:
                    return why
                job = jobs.get_job(job.job_id)
                continue
        except BatonError as error:
            if claimed and isinstance(error, TmuxUnavailable | RegistryUnavailable):
                raise
            why = str(error)
        else:
            return None
        fail_job(settings, jobs, job, job.attempt if claimed else None, why)
        return why


def stop_attempt(
    settings: Settings, inventory: Inventory, jobs: Jobs, job_id: str, why: str, *, hard: bool = False
) -> str | None:
    """Stop the running session that was made for a job, if there is one. Return why that failed, or None."""
    session = inventory.made_for(job_id)
    if session is None:
        return None
    from baton.sessions.stop import StopMode, stop_session

    mode = StopMode.HARD if hard else StopMode.GRACEFUL
    try:
        stop_session(settings, inventory, jobs, session.name, mode=mode, reason=why, grace_sec=3.0)
    except BatonError as error:
        return str(error)
    return None


def requeue_or_fail(settings: Settings, jobs: Jobs, job: Job, why: str) -> Status | None:
    """Requeue a running job whose holder has died, or fail it when it has no attempts left. Return its new status; None
    when the job has changed meanwhile."""
    if expired_lease_error(job) is not None:
        return Status.ERROR if fail_job(settings, jobs, job, job.attempt, why) else None
    try:
        return jobs.release(job.job_id, attempt=job.attempt, reason=why).status
    except (IllegalTransition, StaleAttempt):
        return None
