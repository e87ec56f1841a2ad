"""Start and stop the attempts of jobs, and decide what follows when the holder or the submitter of a job has died.

`submitter` of a job is `host@machine:pid:start` of the process that submitted it. While that process lives, it alone
starts the job. After its death a worker of the queue takes the job, or the monitor does.
"""

from collections.abc import Callable

from baton.adapters.contract import Agent, Mode
from baton.config import Settings, machine_of, present_host
from baton.core import errors
from baton.core.job import Job, Status
from baton.core.lifecycle import expired_lease_error
from baton.core.outline import last_cause
from baton.jobs.verbs import Jobs
from baton.sessions.inventory import Inventory
from baton.sessions.launch import create_session
from baton.sessions.processes import ProcessId
from baton.sessions.session import session_name

# Version 0.1.0 gave each `baton submit` process a private queue: submit:HOST:PID:START:RANDOM.
_PRIVATE_QUEUE = "submit:"


def this_submitter(host: str) -> str:
    """Return this process as the `submitter` of a job."""
    return submitter_text(host, ProcessId.current())


def submitter_text(host: str, process: ProcessId) -> str:
    """Return a process of this host as the `submitter` of a job."""
    machine = machine_of(host)
    return f"{host}{f'@{machine}' if machine else ''}:{process.pid}:{process.started}"


def is_private_queue(queue: str) -> bool:
    """Return whether version 0.1.0 made this queue for one `baton submit` process."""
    return queue.startswith(_PRIVATE_QUEUE)


def submitter_is_dead(job: Job, host: str) -> bool:
    """Return whether the process that submitted the job ran on this host and has ended."""
    submitter = job.submitter or ""
    if is_private_queue(job.agent_session):
        submitter = job.agent_session.removeprefix(_PRIVATE_QUEUE).rpartition(":")[0]
    try:
        place, pid, started = submitter.rsplit(":", 2)
        process = ProcessId(pid=int(pid), started=int(started))
    except ValueError:
        return False  # no submitter, or not in this form
    there, _, machine = place.partition("@")
    return present_host(there, machine or None) == host and not process.is_alive()


def describe_orphan(job: Job, host: str, inventory: Inventory) -> str | None:
    """Return why no process will start a pending job, and what to do; None if a process may start it."""
    if job.status is not Status.PENDING or job.is_blocked or not submitter_is_dead(job, host):
        return None
    if inventory.made_for(job.job_id) is not None:
        return None
    return (
        "no process will start it: the process that submitted it has ended; "
        f"`baton cancel {job.job_id}` and then `baton retry {job.job_id}` run it as a new job, "
        "`baton monitor` starts it if an attempt was lost, and ends it as an error otherwise"
    )


class Attempts:
    """Starts, stops and gives up attempts of jobs on this host."""

    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        inventory: Inventory,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.settings = settings
        self.jobs = jobs
        self.inventory = inventory
        self.log = log

    def start(
        self, job: Job, *, agent: str | Agent, workdir: str, mode: Mode, yolo: bool, socket: str | None = None
    ) -> str | None:
        """Start a session for one attempt of a job, and return None. The runner of a pending job claims it.

        When the session cannot be started, the job fails: return why. A runner that dies before the agent runs is a
        lost holder: the job is requeued if it has attempts left, and a job that was pending is started again. A job
        does not fail because the registry is unavailable, a claimed one not because tmux is or the system lacks
        something: the error is raised, and the holder requeues it.
        """
        claimed = job.status is Status.RUNNING
        if job.above and not claimed:
            try:
                self.jobs.check_running(job.above[0])
            except errors.BatonError as error:
                if isinstance(error, errors.RegistryUnavailable):
                    raise
                self.fail(job, None, str(error), ended_by="refused")
                return str(error)
        while True:
            name = session_name(job if claimed else job.replace(attempt=job.attempt + 1))
            attempt = job.attempt if claimed else None
            try:
                create_session(
                    self.settings, self.inventory, name, agent=agent, workdir=workdir, mode=mode, yolo=yolo, job=job,
                    attempt=attempt, socket=socket,
                )  # fmt: skip
                return None
            except errors.RunnerDied as error:
                why = str(error)
                lost = self.jobs.get_job(job.job_id)
                if lost.status is Status.RUNNING:
                    if self.requeue_or_fail(lost, why) is not Status.PENDING or claimed:
                        return why
                    job = self.jobs.get_job(job.job_id)
                    continue
            except (errors.BatonError, OSError) as error:
                if isinstance(error, errors.RegistryUnavailable) or (
                    claimed and isinstance(error, errors.TmuxUnavailable | OSError)
                ):
                    raise
                why = errors.describe_system_error(error) or str(error)
            self.fail(job, attempt, why, ended_by="refused")
            return why

    def stop(self, job_id: str, why: str, *, hard: bool = False) -> None:
        """Stop the running session that was made for a job, if there is one. Log a failure."""
        session = self.inventory.made_for(job_id)
        if session is None:
            return
        from baton.sessions.stop import StopMode, stop_session

        mode = StopMode.HARD if hard else StopMode.GRACEFUL
        try:
            stop_session(self.settings, self.inventory, self.jobs, session.name, mode=mode, reason=why, grace_sec=3.0)
        except errors.BatonError as error:
            self.log(str(error))

    def requeue_or_fail(self, job: Job, why: str) -> Status | None:
        """Requeue a running job whose holder has died, or fail it when it has no attempts left. Return its new status;
        None when the job has changed meanwhile."""
        if expired_lease_error(job) is not None:
            return Status.ERROR if self.fail(job, job.attempt, why, ended_by="lost") else None
        try:
            return self.jobs.release(job.job_id, attempt=job.attempt, reason=why, lost=True).status
        except (errors.IllegalTransition, errors.StaleAttempt):
            return None

    def fail(self, job: Job, attempt: int | None, why: str, *, ended_by: str, notify: bool = True) -> bool:
        """Record that the job failed, as `sessions.ending.fail_job` does, with the last known cause."""
        from baton.sessions.ending import fail_job

        cause = last_cause(job)
        detail = f"{why}; last known: {cause}" if cause and cause not in why else why
        return fail_job(self.settings, self.jobs, job, attempt, detail, ended_by=ended_by, notify=notify)
