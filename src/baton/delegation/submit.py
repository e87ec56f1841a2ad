"""Submit jobs, start a session for each, and follow them to their end."""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from baton.adapters import allowed_silence, check_work
from baton.adapters.contract import Agent, Mode
from baton.broker.address import broker_record
from baton.config import Settings
from baton.core.clock import SystemClock
from baton.core.drafts import is_registered, new_job, repeat_job
from baton.core.errors import (
    BatonError,
    IllegalTransition,
    InvalidValue,
    JobNotFound,
    RegistryUnavailable,
    describe_system_error,
)
from baton.core.event import EventName
from baton.core.job import TERMINAL, Job, Status
from baton.core.limits import Limit, may_wait
from baton.core.value import Value
from baton.delegation.attempts import Attempts, is_private_queue, this_submitter
from baton.delegation.reconcile import BackgroundMonitor
from baton.delegation.worktrees import plan_worktree, repeated_checkout
from baton.jobs.caller import refuse_inside_session
from baton.jobs.verbs import Jobs
from baton.registry.contract import JobFilter
from baton.sessions.inventory import Inventory
from baton.sessions.launch import check_launch
from baton.storage.files import append_line
from baton.transport.subscription import Subscription

_SUBSCRIBE_SEC = 5.0
_NO_LIMIT_SEC = 366 * 86400.0
# What a line of a batch, and the caller of `build_submission`, may give.
GIVEN = (
    "prompt", "agent", "workdir", "expect", "validate", "timeout_sec", "idle_timeout_sec", "tool_timeout_sec",
    "background_timeout_sec", "max_attempts", "priority", "headless", "yolo", "allow_existing", "title", "label",
    "labels", "queue", "idempotency_key", "broker_login", "worktree", "base", "after", "not_before", "retries",
    "backoff_sec", "on_limit", "budget_usd", "within",
)  # fmt: skip
# Of the job, as given. `after` holds names: see `order`.
_OWN = (
    "max_attempts", "priority", "validate", "title", "idempotency_key", "not_before", "retries", "backoff_sec",
    "budget_usd",
)  # fmt: skip


class Submission(Value):
    """A job that is ready to be registered, and how its session is started. `agent` is None for a job of a queue that
    a worker or a session takes: then no session is started."""

    job: Job
    agent: Agent | None

    @property
    def mode(self) -> Mode:
        return Mode.HEADLESS if self.job.start_options.get("headless") else Mode.INTERACTIVE

    @property
    def yolo(self) -> bool:
        return bool(self.job.start_options.get("yolo"))


def build_submission(settings: Settings, prompt: str, **given: Any) -> Submission:
    """Build a job, as `build_job` does. Refuse what cannot work before anything is made."""
    return checked_submission(settings, build_job(settings, prompt, **given))


def build_job(settings: Settings, prompt: str, **given: Any) -> Job:
    """Build a job, with values of the settings for what is not given.

    `queue` is that of a worker or session. Without it, this process starts a session for the job."""
    _check_given(given)
    given = {name: value for name, value in given.items() if value is not None}
    queue, workdir = given.get("queue"), given.get("workdir")
    if queue is None or workdir is not None:
        workdir = os.path.abspath(workdir or ".")
    job = new_job(
        prompt,
        now_ns=SystemClock().wall_ns(),
        agent=given.get("agent", settings.agent),
        agent_session=queue,
        broker=broker_record(settings, given.get("broker_login")),
        timeout_sec=given.get("timeout_sec", settings.timeout_sec),
        idle_timeout_sec=given.get("idle_timeout_sec", settings.idle_timeout_sec),
        tool_timeout_sec=given.get("tool_timeout_sec", settings.tool_timeout_sec),
        background_timeout_sec=given.get("background_timeout_sec", settings.background_timeout_sec),
        on_limit=given.get("on_limit", settings.on_limit),
        expected_artifacts=given.get("expect", []),
        submitter=this_submitter(settings.host) if queue is None else None,
        labels=[*given.get("label", ()), *given.get("labels", ())],
        start_options={name: True for name in ("headless", "yolo") if given.get(name)} | _bounds(given),
        **plan_worktree(settings, given, workdir),
        **{name: given[name] for name in _OWN if name in given},
    )
    if "idle_timeout_sec" not in given:
        job = job.replace(idle_timeout_sec=allowed_silence(settings, job.agent, job.timeout_sec))
    if not given.get("allow_existing"):
        job = job.replace(extra={"fresh_artifacts": True})
    return job


def _bounds(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"within": given["within"]} if "within" in given else {}


def repeat_submission(settings: Settings, job: Job, *, headless: bool, yolo: bool) -> Submission:
    """Build a new job for the work of another, with its start options and these. A job that had a session of its own
    gets one again. What it comes after is still that of the other: see `order`."""
    more = {name: True for name, given in (("headless", headless), ("yolo", yolo)) if given}
    changes: dict[str, Any] = {"retry_of": job.job_id, "start_options": job.start_options | more}
    changes |= {"parent": None, "above": []}  # the caller is not that of the first job
    if (checkout := repeated_checkout(job)) is not None:
        changes["checkout"] = checkout
    if job.submitter is not None or is_private_queue(job.agent_session):
        changes |= {"submitter": this_submitter(settings.host), "agent_session": f"tmux:{job.agent}"}
        changes["workdir"] = os.path.abspath(job.workdir or ".")
    return checked_submission(settings, repeat_job(job, now_ns=SystemClock().wall_ns(), **changes))


def checked_submission(settings: Settings, job: Job) -> Submission:
    """Return the job as a submission, if it can work. This process starts the session of a job that it is the submitter
    of."""
    submission, workdir = Submission(job=job, agent=None), job.workdir or "."
    if submission.yolo:
        refuse_inside_session("--yolo")  # it may stand in a line of a batch, or belong to a job that is retried
    if job.submitter is not None:
        agent = check_launch(settings, job.agent, workdir=workdir, mode=submission.mode, yolo=submission.yolo, job=job)
        submission = submission.replace(agent=agent)
    check_work(settings, job)
    return submission


def _check_given(given: dict[str, Any]) -> None:
    """Check names, and types that are used before the job's own checks."""
    unknown = sorted(given.keys() - set(GIVEN))
    if unknown:
        raise InvalidValue(unknown[0][:40], f"is not a field of a job; there are {', '.join(GIVEN)}")
    for name in ("workdir", "broker_login", "base", "within"):
        if not isinstance(given.get(name), str | None):
            raise InvalidValue(name, "must be text")
    if not isinstance(given.get("worktree"), bool | None):
        raise InvalidValue("worktree", "must be true or false")
    for name in ("expect", "label", "labels"):
        if not isinstance(given.get(name), list | None):  # a text would become a list of its characters
            raise InvalidValue(name, "must be a list")


def register(jobs: Jobs, submissions: Sequence[Submission]) -> list[Submission]:
    """Register the jobs, and return them as they were registered: an id may have been taken. A job that was known by
    its idempotency key is not started again."""
    registered = jobs.register_many([each.job for each in submissions])
    return [
        each.replace(job=job, agent=each.agent if is_registered(each.job, job) else None)
        for each, job in zip(submissions, registered, strict=True)
    ]


def start_submission(attempts: Attempts, submission: Submission) -> str | None:
    """Start a session for a registered job; its runner claims the job. When it cannot be started, the job fails: return
    why, else None."""
    job = submission.job
    assert submission.agent is not None
    assert job.workdir is not None
    return attempts.start(job, agent=submission.agent, workdir=job.workdir, mode=submission.mode, yolo=submission.yolo)


def start_alone(attempts: Attempts, submission: Submission) -> None:
    """Start a session for a registered job that this process does not follow. BatonError if it cannot be started; its
    message says why, and what became of the job."""
    job = submission.job
    try:
        why = start_submission(attempts, submission)
    except (RegistryUnavailable, OSError) as error:
        why = describe_system_error(error) or str(error)
        try:
            fail_not_started(attempts, job, why)
        except (RegistryUnavailable, OSError):
            raise BatonError(f"{why}; {describe_pending([job.job_id])}") from error
        stop_half_started(attempts, job.job_id)
        raise BatonError(f"{why}; {describe_failed([job.job_id])}") from error
    if why is not None:
        raise BatonError(f"{why}; {describe_failed([job.job_id])}")


def fail_not_started(attempts: Attempts, job: Job, why: str) -> bool:
    """Fail a job whose session could not be started; return False if it has ended. RegistryUnavailable or OSError if
    that cannot be recorded: then no process starts the job, and none ends it but a monitor."""
    return attempts.fail(job, None, f"it was not started: {why}", ended_by="refused", notify=False)


def stop_half_started(attempts: Attempts, job_id: str) -> None:
    """End what may run of a job that was ended at its start. Log a failure: its runner finds out by itself."""
    try:
        attempts.stop(job_id, "its job has ended", hard=True)
    except (BatonError, OSError) as error:
        attempts.log(describe_system_error(error) or str(error))


def describe_failed(job_ids: Sequence[str]) -> str:
    """Return what to do about jobs that failed before they were started."""
    which, them = _named(job_ids)
    return f"{which} not started and failed, run {them} again: baton retry {' '.join(job_ids)}"


def describe_pending(job_ids: Sequence[str]) -> str:
    """Return what to do about jobs that no process will start."""
    which, them = _named(job_ids)
    ids = " ".join(job_ids)
    return f"{which} not started and still pending, run {them} again: baton cancel {ids} && baton retry {ids}"


def _named(job_ids: Sequence[str]) -> tuple[str, str]:
    ids = ", ".join(job_ids)
    return (f"job {ids} was", "it") if len(job_ids) == 1 else (f"jobs {ids} were", "them")


class Delegation:
    """Jobs that this process registers and follows to their end.

    Iterate over it: it starts the sessions and yields the events. Then `exit_code` says how the jobs ended."""

    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        submissions: Sequence[Submission],
        *,
        parallel: int = 1,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._log = log
        self._attempts = Attempts(settings, jobs, Inventory(settings), log)
        self._parallel = parallel
        registered = register(jobs, submissions)
        self._submissions = {each.job.job_id: each for each in registered}
        self.jobs = [each.job for each in registered]
        self._waiting = [each.job for each in registered if each.agent is not None]
        self._at_work: set[str] = set()
        self._starting = threading.Lock()
        alone = len(self.jobs) == 1
        self.subscription = Subscription(
            jobs,
            settings,
            [job.job_id for job in self.jobs],
            # The jobs of a batch start one after another: their runners enforce the limits.
            timeout_sec=None if alone else _NO_LIMIT_SEC,
            idle_timeout_sec=None if alone else _NO_LIMIT_SEC,
            log=log,
        )
        self.problems: dict[str, str] = {}  # what completed jobs lack
        self._unproven: set[str] = set()
        self._hosts: dict[str, str] = {}  # where each job runs

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Listen before the first event is sent. Without a broker, the subscription reads the registry.
        self.subscription.connect(wait_sec=_SUBSCRIBE_SEC)
        with BackgroundMonitor(self._settings, self._check_jobs):  # first: its thread may not start
            self._start_waiting(self._attempts)
            for payload in self.subscription:
                self._take_note(payload)
                yield payload
                try:
                    self._start_waiting(self._attempts)
                except RegistryUnavailable as error:
                    self._log(f"{error}; trying again")  # `_check_jobs` does
        if self.subscription.limit is not None:
            self._end_late_jobs(self.subscription.limit)

    def _take_note(self, payload: dict[str, Any]) -> None:
        self._append_output(payload)
        if payload["event"] == EventName.STARTED:
            self._hosts[payload["job_id"]] = payload["data"].get("host")
        if payload["event"] in (EventName.COMPLETED, EventName.ERROR):
            self._at_work.discard(payload["job_id"])
            self._verify(payload)

    def mark_seen(self, jobs: Iterable[Job]) -> None:
        """Note that the user was shown the end of these jobs."""
        self._jobs.mark_seen(jobs)

    @property
    def exit_code(self) -> int:
        """Return 1 if a completed job lacks its results or their verification, else the subscription's exit code."""
        return 1 if self._unproven else self.subscription.exit_code

    def doubt(self, job_id: str) -> tuple[bool, str | None]:
        """Return whether a completed job of this delegation counts as completed, and what is wrong with it."""
        return job_id not in self._unproven, self.problems.get(job_id)

    def current_jobs(self) -> list[Job]:
        """Return the jobs as they are now, without those that were pruned."""
        found = [self.subscription.find_job(job.job_id) for job in self.jobs]
        return [job for job in found if job is not None]

    def _verify(self, payload: dict[str, Any]) -> None:
        """Look how a completed job was verified, and check its files again. On another host the same path is another
        folder."""
        job = self.subscription.find_job(payload["job_id"])
        if job is None or payload["event"] != EventName.COMPLETED or not (job.expected_artifacts or job.validate):
            return  # pruned, so it was verified when `completed` was recorded; or without conditions
        from baton.jobs.verification import check_results, doubt

        counts, problem = doubt(self._jobs, job)
        here = self._hosts.get(job.job_id) == self._settings.host
        if job.verified_by and here and job.folder is not None and os.path.isdir(job.folder):
            missing = check_results(job.replace(validate=None)).problems
            counts, problem = not missing, "; ".join(missing) or problem
        if problem is not None:
            self.problems[job.job_id] = problem
        if not counts:
            self._unproven.add(job.job_id)

    def _append_output(self, payload: dict[str, Any]) -> None:
        """Append the event to the output file of its job, if there is a folder and room for it."""
        path = os.path.join(self._settings.registry_dir, f"{payload['job_id']}.subscriber.out")
        append_line(path, json.dumps(payload))

    def cancel(self) -> None:
        """Cancel every job that has not ended, and stop its session."""
        for job in self.jobs:
            self._cancel(job)
            self._attempts.stop(job.job_id, "its job was cancelled")

    def not_started(self) -> int:
        """Return the number of jobs that `withdraw` would cancel."""
        return len(self._waiting)

    def withdraw(self, why: str | None = None) -> tuple[list[str], list[str]]:
        """End the jobs that this process has not started: cancel them, or, with `why`, fail them. Return their ids, and
        those of the jobs that stay pending because that cannot be recorded."""
        if why is not None:
            self.subscription.close()  # its open files may be those that the process lacks
        with self._starting:
            waiting, self._waiting = self._waiting, []
        ended: list[str] = []
        pending: list[str] = []
        for job in waiting:
            if job.attempt:
                continue
            try:
                if self._cancel(job) if why is None else fail_not_started(self._attempts, job, why):
                    ended.append(job.job_id)
            except (RegistryUnavailable, OSError):
                pending.append(job.job_id)
        for job_id in ended:
            stop_half_started(self._attempts, job_id)
        return ended, pending

    def going_on(self) -> list[str]:
        """Return the ids of the jobs that have not ended, as the registry says; if it cannot be read, as last heard."""
        found = []
        for job_id in [job_id for job_id, status in self.subscription.outcomes().items() if status is None]:
            try:
                has_ended = self._jobs.get_job(job_id).status in TERMINAL
            except (RegistryUnavailable, OSError, JobNotFound) as error:
                has_ended = isinstance(error, JobNotFound)
            if not has_ended:
                found.append(job_id)
        return found

    def _cancel(self, job: Job) -> bool:
        try:
            self._jobs.update_status(job.job_id, "cancelled")
        except (IllegalTransition, JobNotFound):
            return False  # it has ended, or was pruned
        return True

    def _end_late_jobs(self, limit: Limit) -> None:
        """Fail the jobs that have not ended in time, except those that wait for a worker, or that were worked by hand
        and wait for a permission."""
        for job in self.current_jobs():
            if job.status in TERMINAL:
                continue
            if job.activity is None and self._jobs.last_event(job) is EventName.PERMISSION_REQUIRED:
                self._log(f"job {job.job_id} waits for a permission: baton attach {job.job_id}")
            elif job.status is Status.PENDING and self._submissions[job.job_id].agent is None:
                self._log(f"no worker has taken job {job.job_id} yet; `baton cancel {job.job_id}` cancels it")
            else:
                why = limit.describe(job)
                self._attempts.fail(job, None, why, ended_by=limit.ended_by)
                self._attempts.stop(job.job_id, why)

    def _start_waiting(self, attempts: Attempts) -> None:
        """Start sessions until as many run as may run at once, of jobs that are not blocked. A session that does not
        start is an event of its job."""
        with self._starting:
            free: dict[str, Job] | None = None
            for waiting in list(self._waiting):
                if len(self._at_work) >= self._parallel:
                    return
                if may_wait(waiting) and free is None:
                    free = _free_jobs(attempts.jobs)
                job = waiting if free is None or not may_wait(waiting) else free.get(waiting.job_id)
                if job is not None:
                    start_submission(attempts, self._submissions[job.job_id].replace(job=job))
                    self._at_work.add(job.job_id)
                    self._waiting.remove(waiting)

    def _check_jobs(self, jobs: Jobs) -> None:
        """Start requeued jobs again, and new ones in place of jobs that ended without an event."""
        jobs.advance_waiting()
        attempts = Attempts(self._settings, jobs, self._attempts.inventory, self._log)
        for job_id in list(self._at_work):
            try:
                job = jobs.get_job(job_id)
            except JobNotFound:
                self._at_work.discard(job_id)
                continue
            if job.status in TERMINAL:
                self._at_work.discard(job_id)
            elif job.status is Status.PENDING and job.attempt:
                attempts.stop(job_id, f"attempt {job.attempt} is over", hard=not job.is_blocked)
                if job.is_blocked:
                    self._at_work.discard(job_id)
                    self._waiting.append(job)
                else:
                    start_submission(attempts, self._submissions[job_id].replace(job=job))
        self._start_waiting(attempts)


def _free_jobs(jobs: Jobs) -> dict[str, Job]:
    """Return the pending jobs with a submitter that are not blocked."""
    free = JobFilter(statuses=[Status.PENDING], submitted=True, free=True)
    return {job.job_id: job for job in jobs.each_job(free)}
