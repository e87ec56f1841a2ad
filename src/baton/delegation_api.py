"""The verbs that see jobs through to their end, as functions: submit, retry, follow-up, cancel, wait, events, worker.

Every function opens what it needs and closes it again, so each may be called from any thread. Where to look is given by
the keywords of `baton.api`.
"""

import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from baton.core.errors import BatonError, InvalidValue, JobFailed, RegistryUnavailable, TimedOut
from baton.core.event import EventName
from baton.core.fields import texts_of
from baton.core.job import TERMINAL, Job, Status
from baton.core.outcome import exit_code_of
from baton.core.value import Value
from baton.delegation.attempts import Attempts, submitter_text
from baton.delegation.order import order_retries, order_submissions, refuse_without_monitor
from baton.delegation.reconcile import BackgroundMonitor
from baton.delegation.submit import (
    Delegation,
    Submission,
    build_submission,
    describe_pending,
    register,
    repeat_submission,
    start_alone,
)
from baton.delegation.targets import target_live_agent, target_session
from baton.jobs.caller import refuse_inside_session
from baton.jobs.verbs import Jobs, open_jobs
from baton.jobs.verification import doubt
from baton.sessions.inventory import Inventory
from baton.sessions.launch import usable_agent
from baton.sessions.processes import ProcessId, started_at
from baton.sessions.tmux import Tmux
from baton.storage.homes import load_settings
from baton.transport.subscription import Subscription
from baton.wire.payload import Event

if TYPE_CHECKING:
    from baton.api import Where
    from baton.config import Settings

    class Work(Where, total=False):
        """How a job is done, as the options of `baton submit` say it."""

        agent: str | None
        workdir: str | None
        expect: Iterable[str]
        allow_existing: bool
        validate: str | None
        timeout_sec: int | None
        idle_timeout_sec: int | None
        tool_timeout_sec: int | None
        background_timeout_sec: int | None
        max_attempts: int | None
        priority: int
        title: str | None
        labels: Iterable[str]
        idempotency_key: str | None
        after: Iterable[str]
        not_before: str | None
        retries: int | None
        backoff_sec: int | None
        headless: bool
        yolo: bool
        broker_login: str | None
        worktree: bool | None
        base: str | None
        on_limit: str | None
        budget_usd: float | None
        within: str | None

    OnEvent = Callable[[Event], None] | None

_WHERE = frozenset({"home", "registry", "registry_dir", "logs_dir", "state_dir", "tmux_socket", "allow_plaintext"})


class Outcome(Value):
    """How a job ended. `exit_code` is that of `baton wait`: 0 completed, 1 failed, 2 out of time, 4 cancelled.
    `problem` says what is wrong with a completed job: its results are missing, or were not verified."""

    job: Job
    exit_code: int
    problem: str | None = None

    @property
    def status(self) -> Status:
        return self.job.status

    @property
    def reason(self) -> str | None:
        """Why the job ended so, in words."""
        return self.problem or self.job.reason or self.job.detail

    @property
    def ended_by(self) -> str | None:
        """What ended the job: `agent`, `verification`, `timeout`, `idle`, `cancelled`, ..."""
        return self.job.ended_by

    @property
    def activity(self) -> Mapping[str, Any] | None:
        """What the job was last known to do: `kind`, `since`, `cause`; None once it has ended."""
        return self.job.activity

    @property
    def ok(self) -> bool:
        """Whether the job is completed, and its results count."""
        return self.exit_code == 0

    def check(self) -> Self:
        """Return this outcome if it is `ok`; raise JobFailed otherwise."""
        if not self.ok:
            raise JobFailed(f"job {self.job.job_id} is {self.status}: {self.reason or 'no reason is known'}", self)
        return self

    def __repr__(self) -> str:
        return f"<Outcome {self.job.job_id} {self.status} exit_code={self.exit_code}>"


# -- submit ----------------------------------------------------------------------------------------------------


@overload
def submit(
    prompt: str,
    *,
    session: str | None = None,
    to: str | None = None,
    queue: str | None = None,
    detach: Literal[False] = False,
    on_event: "OnEvent" = None,
    **work: "Unpack[Work]",
) -> Outcome: ...


@overload
def submit(
    prompt: str,
    *,
    session: str | None = None,
    to: str | None = None,
    queue: str | None = None,
    detach: Literal[True],
    **work: "Unpack[Work]",
) -> Job: ...


def submit(
    prompt: str,
    *,
    session: str | None = None,
    to: str | None = None,
    queue: str | None = None,
    detach: bool = False,
    on_event: "OnEvent" = None,
    **work: "Unpack[Work]",
) -> Outcome | Job:
    """Run a task with an agent and wait until its result is verified; with `detach`, return the job at once.

    A new session runs the job; or the running session `session`, the live agent `to`, or a worker of `queue`. Each
    event is passed to `on_event`. Raise TimedOut if the job goes on when its limits are over: no worker has taken it.
    An exception on the way (Ctrl-C) leaves the job running."""
    where, given = _split(work)
    settings = load_settings(where)
    if sum(each is not None for each in (session, to, queue)) > 1:
        raise InvalidValue("session", "excludes to and queue; give one of them")
    if session is not None or to is not None:
        for name in ("agent", "workdir", "headless", "yolo"):
            if given.get(name) is not None:
                raise InvalidValue(name, "is that of the running session; leave it out")
        target = target_session(settings, session) if session is not None else target_live_agent(settings, to or "")
        settings, queue, given["agent"] = target.settings, target.queue, target.agent
        given["workdir"] = target.workdir
    elif queue is not None:
        given["workdir"] = given.get("workdir") or "."
    submission = build_submission(settings, prompt, **given, queue=queue)
    (submission,) = order_submissions(settings, [submission], [given.get("after") or ()])
    return _run(settings, submission, detach, on_event)


def submit_many(
    tasks: Iterable[Mapping[str, Any]],
    *,
    parallel: int = 4,
    on_event: "OnEvent" = None,
    **work: "Unpack[Work]",
) -> list[Outcome]:
    """Run several tasks, at most `parallel` at once, and return their outcomes in the same order.

    Each task has the keywords of `submit` and `prompt`; `work` holds what they share. In `after`, the title of another
    task will do. A task that is not valid is refused before any of them is registered."""
    if parallel < 1:
        raise InvalidValue("parallel", "must be at least 1")
    where, common = _split(work)
    settings = load_settings(where)
    given = [common | _with_lists(task) for task in tasks]
    submissions = [build_submission(settings, **each) for each in given]
    submissions = order_submissions(settings, submissions, [each.get("after") or () for each in given])
    return _follow(settings, submissions, parallel, on_event) if submissions else []


@overload
def retry(
    job_id: str, *, force: bool = False, detach: Literal[False] = False, on_event: "OnEvent" = None,
    **where: "Unpack[Where]",
) -> Outcome: ...  # fmt: skip


@overload
def retry(job_id: str, *, force: bool = False, detach: Literal[True], **where: "Unpack[Where]") -> Job: ...


def retry(
    job_id: str, *, force: bool = False, detach: bool = False, on_event: "OnEvent" = None, **where: "Unpack[Where]"
) -> Outcome | Job:
    """Run a job again, as a new job with the same conditions, and wait for it as `submit` does.

    A job that has not ended is refused; with `force`, two agents do the same work."""
    settings = load_settings(where)
    with open_jobs(settings) as jobs:
        job = jobs.get_job(job_id)
    if job.status not in TERMINAL and not force:
        what = f"job {job_id} is {job.status}: with a retry, two agents would do the same work"
        raise BatonError(f"{what}; cancel it first, or pass force=True")
    submission = repeat_submission(settings, job, headless=False, yolo=False)
    with open_jobs(settings) as jobs:
        (submission,) = order_retries(jobs, [submission])
    return _run(settings, submission, detach, on_event)


@overload
def follow_up(
    job_id: str, prompt: str, *, detach: Literal[False] = False, on_event: "OnEvent" = None, **work: "Unpack[Work]"
) -> Outcome: ...


@overload
def follow_up(job_id: str, prompt: str, *, detach: Literal[True], **work: "Unpack[Work]") -> Job: ...


def follow_up(
    job_id: str, prompt: str, *, detach: bool = False, on_event: "OnEvent" = None, **work: "Unpack[Work]"
) -> Outcome | Job:
    """Run a new job in the conversation of an ended one, and wait for it as `submit` does. Agent and work folder are
    those of the conversation. Raise AgentUnusable if the agent keeps no conversation."""
    from baton.delegation.follow_up import follow_submission

    where, given = _split(work)
    for name in ("agent", "workdir", "after"):
        if given.get(name):
            raise InvalidValue(name, "is that of the conversation; leave it out")
    settings = load_settings(where)
    with open_jobs(settings) as jobs:
        first = jobs.get_job(job_id)
    return _run(settings, follow_submission(settings, first, prompt, **given), detach, on_event)


def _split(work: "Work") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return where to look, and what the job is."""
    given = _with_lists(work)
    return {name: given.pop(name) for name in _WHERE & given.keys()}, given


def _with_lists(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job, with a list in the place of each other iterable."""
    given = dict(task)
    for name in ("expect", "labels", "after"):
        if name in given and not isinstance(given[name], str | None):
            given[name] = list(given[name])
    if "after" in given:
        given["after"] = texts_of("after", given["after"])
    return given


def _run(settings: "Settings", submission: Submission, detach: bool, on_event: "OnEvent") -> Outcome | Job:
    return _start(settings, submission) if detach else _follow(settings, [submission], 1, on_event)[0]


def _start(settings: "Settings", submission: Submission) -> Job:
    """Register a job, start its session, and return the job. BatonError if the session cannot be started."""
    refuse_without_monitor(settings, submission)
    with open_jobs(settings) as jobs, _short_lived_submitter(settings, submission) as owned:
        (registered,) = register(jobs, [owned])
        if registered.agent is not None and not registered.job.is_blocked:
            start_alone(Attempts(settings, jobs, Inventory(settings)), registered)
        return jobs.get_job(registered.job.job_id)


@contextmanager
def _short_lived_submitter(settings: "Settings", submission: Submission) -> Iterator[Submission]:
    """Yield the submission with a submitter that ends with this block. While its submitter lives, no other process
    starts the next attempt of a job, and this process goes on without looking after the job."""
    if submission.job.submitter is None:
        yield submission
        return
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        submitter = submitter_text(settings.host, ProcessId(pid=process.pid, started=started_at(process.pid) or 0))
        yield submission.replace(job=submission.job.replace(submitter=submitter))


def _follow(settings: "Settings", submissions: list[Submission], parallel: int, on_event: "OnEvent") -> list[Outcome]:
    with open_jobs(settings) as jobs:
        delegation = Delegation(settings, jobs, submissions, parallel=parallel)
        try:
            for payload in delegation:
                if on_event is not None:
                    on_event(_build_event(payload))
        except BaseException as error:
            _, pending = delegation.withdraw(str(error) if isinstance(error, RegistryUnavailable) else None)
            if pending:
                error.add_note(describe_pending(pending))
            raise
        return _outcomes(jobs, delegation.subscription, delegation.doubt)


# -- wait ------------------------------------------------------------------------------------------------------


def wait(
    job_id: str,
    *,
    timeout_sec: float | None = None,
    idle_timeout_sec: float | None = None,
    on_event: "OnEvent" = None,
    **where: "Unpack[Where]",
) -> Outcome:
    """Wait until a job ends, and return how. Raise TimedOut when a limit passes first: by default the job's own."""
    return wait_all([job_id], timeout_sec=timeout_sec, idle_timeout_sec=idle_timeout_sec, on_event=on_event, **where)[0]


def wait_all(
    job_ids: Iterable[str],
    *,
    timeout_sec: float | None = None,
    idle_timeout_sec: float | None = None,
    on_event: "OnEvent" = None,
    **where: "Unpack[Where]",
) -> list[Outcome]:
    """Wait until all these jobs end, and return their outcomes in the same order. Raise TimedOut as `wait` does."""
    settings = load_settings(where)
    wanted = list(job_ids)
    with open_jobs(settings) as jobs:
        subscription = Subscription(jobs, settings, wanted, timeout_sec=timeout_sec, idle_timeout_sec=idle_timeout_sec)
        with BackgroundMonitor(settings):
            for payload in subscription:
                if on_event is not None:
                    on_event(_build_event(payload))
        found = {
            each.job.job_id: each
            for each in _outcomes(jobs, subscription, lambda job_id: doubt(jobs, subscription.job(job_id)))
        }
    return [found[job_id] for job_id in wanted]


def events(
    *job_ids: str,
    timeout_sec: float | None = None,
    idle_timeout_sec: float | None = None,
    **where: "Unpack[Where]",
) -> Iterator[Event]:
    """Return an iterator over the events of these jobs, each once and in order, from the first event of each job.

    It waits for the next event, and ends when the jobs have ended. It raises TimedOut when a limit passes first: by
    default the largest of the jobs' own limits. Use it in one thread."""
    from baton.api import subscribe

    return _build_events(subscribe(*job_ids, timeout_sec=timeout_sec, idle_timeout_sec=idle_timeout_sec, **where))


def _build_events(subscription: Subscription) -> Iterator[Event]:
    for payload in subscription:
        yield _build_event(payload)
    if subscription.timed_out is not None:
        raise TimedOut(subscription.timed_out, _open_jobs(subscription))


def _build_event(payload: dict[str, Any]) -> Event:
    """Return the event of a payload whose signature was verified and removed."""
    data = dict(payload["data"])
    return Event(
        seq=payload["seq"],
        job_id=payload["job_id"],
        event=EventName(payload["event"]),
        timestamp=payload["timestamp"],
        detail=payload["detail"],
        attempt=data.pop("attempt"),
        data=data,
        signature="",
    )


def _open_jobs(subscription: Subscription) -> list[str]:
    return [job_id for job_id, status in subscription.outcomes().items() if status is None]


def _outcomes(
    jobs: Jobs, subscription: Subscription, doubt_of: Callable[[str], tuple[bool, str | None]]
) -> list[Outcome]:
    """Return how each job ended, and note that the user was shown it; TimedOut if a job goes on. `doubt_of` returns
    whether a completed job counts, and what is wrong with it."""
    found = []
    for job_id in subscription.outcomes():
        job = subscription.job(job_id)
        if job.status not in TERMINAL:
            raise TimedOut(subscription.timed_out or f"job {job_id} is {job.status}", _open_jobs(subscription))
        counts, problem = doubt_of(job_id) if job.status is Status.COMPLETED else (True, None)
        code = exit_code_of(job.status, job.ended_by) if counts else 1
        found.append(Outcome(job=job, exit_code=code, problem=problem))
    jobs.mark_seen(each.job for each in found)
    return found


# -- cancel, worker --------------------------------------------------------------------------------------------


def cancel(job_id: str, *, reason: str | None = None, **where: "Unpack[Where]") -> Job:
    """Cancel a job for this reason, stop its agent, and return the job. Raise IllegalTransition if it has ended."""
    from baton.sessions.stop import cancel_job

    settings = load_settings(where)
    with open_jobs(settings) as jobs:
        return cancel_job(settings, jobs, job_id, reason=reason)


def run_worker(
    queue: str | None = None,
    *,
    agent: str | None = None,
    workdir: str = ".",
    concurrency: int = 1,
    max_jobs: int | None = None,
    until_empty: bool = False,
    headless: bool = False,
    yolo: bool = False,
    drain_sec: float = 30.0,
    stop: threading.Event | None = None,
    log: Callable[[str], None] = lambda _line: None,
    **where: "Unpack[Where]",
) -> Counter[Status]:
    """Take jobs from a queue (default: `tmux:AGENT`), run each in its own session, and return how many ended how.

    It goes on until the queue is empty (`until_empty`), `max_jobs` were taken, or `stop` is set: then running jobs have
    `drain_sec` seconds to end, and the rest are requeued. `log` gets a line for each change."""
    from baton.delegation.worker import Worker

    if yolo:
        refuse_inside_session("yolo")
    for name, value, least in (("concurrency", concurrency, 1), ("max_jobs", max_jobs, 1), ("drain_sec", drain_sec, 0)):
        if value is not None and not value >= least:
            raise InvalidValue(name, f"must be at least {least}")
    settings = load_settings({"agent": agent, **where})
    program = usable_agent(settings, settings.agent)
    Tmux(settings.tmux_socket).check_version()
    if not os.path.isdir(workdir):
        raise InvalidValue("workdir", f"{workdir} is not a folder")
    stopping = stop or threading.Event()

    def pause(seconds: float) -> None:
        if worker.stopping:
            time.sleep(seconds)
        else:
            worker.stopping = stopping.wait(seconds)

    with open_jobs(settings) as jobs:
        worker = Worker(
            settings,
            jobs,
            queue or f"tmux:{settings.agent}",
            agent=program.name,
            workdir=os.path.abspath(workdir),
            concurrency=concurrency,
            max_jobs=max_jobs,
            until_empty=until_empty,
            headless=headless,
            yolo=yolo,
            drain_sec=drain_sec,
            sleep=pause,
            log=log,
        )
        worker.run()
        return worker.ended
