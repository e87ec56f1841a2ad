"""The main job: hand work to agents, see it through, and tell truthfully what came of it."""

from __future__ import annotations

import json
import os
import threading
import time

from baton.adapters import allowed_silence
from baton.adapters.contract import Mode
from baton.broker.address import broker_record
from baton.core.errors import BatonError, IllegalTransition, InvalidValue, JobNotFound, RegistryUnavailable
from baton.core.event import EventName
from baton.core.job import TERMINAL, Status, new_job
from baton.core.value import Value
from baton.delegation.background_monitor import Reconciler
from baton.delegation.own_queue import own_queue
from baton.jobs.verification import missing_results
from baton.sessions.ending import fail_job
from baton.sessions.inventory import Inventory
from baton.sessions.launch import check_launch, create_session
from baton.sessions.session import session_name
from baton.sessions.stop import StopMode, stop_session
from baton.sessions.tmux import Tmux
from baton.storage.files import open_private, outside, write_all
from baton.transport.subscription import Subscription

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, Final

    from baton.config import Settings
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs

_SUBSCRIBE_SEC: Final = 5.0
_NO_LIMIT_SEC: Final = 366 * 86400.0


class Order(Value):
    """A piece of work, and how it is to be done. `label` is the queue of a session or worker that is there already;
    without one a session is made for it. `workdir` is None only where whoever takes it decides."""

    prompt: str
    agent: str
    workdir: str | None
    expect: list[str]
    validate: str | None
    timeout_sec: int
    idle_timeout_sec: int
    max_attempts: int
    priority: int
    headless: bool
    yolo: bool
    allow_existing: bool
    label: str | None
    labels: list[str]


def order(settings: Settings, prompt: str, **given: Any) -> Order:
    """An order with what was not given from the settings; what cannot work is refused before anything is made."""
    values: dict[str, Any] = {
        "prompt": prompt,
        "agent": settings.agent,
        "workdir": None,
        "expect": [],
        "validate": None,
        "timeout_sec": settings.timeout_sec,
        "idle_timeout_sec": settings.idle_timeout_sec,
        "max_attempts": 1,
        "priority": 0,
        "headless": False,
        "yolo": False,
        "allow_existing": False,
        "label": None,
        "labels": [],
    }
    unknown = sorted(given.keys() - values.keys())
    if unknown:
        raise InvalidValue(unknown[0][:40], f"is no part of an order; there are {', '.join(values)}")
    made = Order(**values | {name: value for name, value in given.items() if value is not None})
    _check_types(made)
    if given.get("idle_timeout_sec") is None:
        made = made.replace(idle_timeout_sec=allowed_silence(settings, made.agent, made.timeout_sec))
    if made.label is None or made.workdir is not None:
        made = made.replace(workdir=os.path.abspath(made.workdir or "."))
    job = drafted(settings, made)  # which checks every field
    if made.label is None:
        check_launch(settings, made.agent, workdir=made.workdir or ".", mode=_mode(made), yolo=made.yolo, job=job)
    for name in made.expect:
        if outside(name, made.workdir or "."):
            raise InvalidValue("expect", f"{name!r} lies outside the work folder {made.workdir or ''}".rstrip())
    return made


def _mode(made: Order) -> Mode:
    return Mode.HEADLESS if made.headless else Mode.INTERACTIVE


def _check_types(made: Order) -> None:
    """Of what is used before the job's own checks see it."""
    if not isinstance(made.workdir, str | None):
        raise InvalidValue("workdir", "must be text")
    for name in ("expect", "labels"):
        if not isinstance(getattr(made, name), list):  # a text would be taken for a list of its characters
            raise InvalidValue(name, "must be a list")


def drafted(settings: Settings, made: Order) -> Job:
    """The job of an order, ready to be registered."""
    job = new_job(
        made.prompt,
        now_ns=time.time_ns(),
        agent=made.agent,
        agent_session=made.label or own_queue(settings.host),
        broker=broker_record(settings),
        timeout_sec=made.timeout_sec,
        idle_timeout_sec=made.idle_timeout_sec,
        expected_artifacts=made.expect,
        workdir=made.workdir,
        max_attempts=made.max_attempts,
        priority=made.priority,
        validate=made.validate,
        labels=made.labels,
    )
    return job if made.allow_existing else job.replace(extra={"fresh_artifacts": True})


def register_orders(settings: Settings, jobs: Jobs, orders: Sequence[Order]) -> list[Job]:
    """The jobs of orders; TmuxUnavailable before any is registered, where one needs a session that cannot be made."""
    if any(each.label is None for each in orders):
        Tmux(settings.tmux_socket).check_version()
    return jobs.register_many([drafted(settings, each) for each in orders])


def start_session(settings: Settings, inventory: Inventory, job: Job, made: Order) -> None:
    """A session for this job alone; its runner claims it."""
    assert made.workdir is not None
    create_session(
        settings,
        inventory,
        session_name(job.replace(attempt=job.attempt + 1)),
        agent=made.agent,
        workdir=made.workdir,
        mode=_mode(made),
        job=job,
        yolo=made.yolo,
    )


class Delegation:
    """Some orders, seen through. Iterate over it: it yields what happens; then `exit_code` says how it went."""

    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        orders: Sequence[Order],
        *,
        parallel: int = 1,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._log = log
        self._inventory = Inventory(settings)
        self._parallel = parallel
        self.jobs = register_orders(settings, jobs, orders)
        self._orders = {job.job_id: each for job, each in zip(self.jobs, orders, strict=True)}
        self._waiting = [job for job in self.jobs if self._orders[job.job_id].label is None]
        self._at_work: set[str] = set()
        alone = len(self.jobs) == 1
        self.subscription = Subscription(
            jobs,
            settings,
            [job.job_id for job in self.jobs],
            # The limits of many are kept by their runners, each from its own beginning.
            timeout_sec=float(self.jobs[0].timeout_sec) if alone else _NO_LIMIT_SEC,
            idle_timeout_sec=float(self.jobs[0].idle_timeout_sec) if alone else _NO_LIMIT_SEC,
            log=log,
        )
        self._unverified: dict[str, list[str]] = {}
        self._hosts: dict[str, str] = {}  # where jobs are done
        self._turn = threading.Lock()

    def launch(self, jobs: Jobs) -> None:
        """Starts as many sessions as may be at work at once."""
        with self._turn:
            while self._waiting and len(self._at_work) < self._parallel:
                job = self._waiting[0]
                self._start(jobs, job)
                self._at_work.add(job.job_id)
                self._waiting.remove(job)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Nothing may be said before we listen. Where the broker is away, the registry tells.
        self.subscription.connect(wait_sec=_SUBSCRIBE_SEC)
        self.launch(self._jobs)
        with Reconciler(self._settings, self._look):
            for payload in self.subscription:
                self._take_note(payload)
                yield payload
                try:
                    self.launch(self._jobs)
                except RegistryUnavailable as error:
                    self._log(f"{error}; trying again")  # by the reconciler, in a moment
        if self.subscription.timed_out is not None:
            self._out_of_time()

    def _take_note(self, payload: dict[str, Any]) -> None:
        self._keep(payload)
        if payload["event"] == EventName.STARTED:
            self._hosts[payload["job_id"]] = payload["data"].get("host")
        if payload["event"] in (EventName.COMPLETED, EventName.ERROR):
            self._at_work.discard(payload["job_id"])
            self._verify(payload)

    @property
    def exit_code(self) -> int:
        return 1 if self._unverified else self.subscription.exit_code

    def problems(self) -> dict[str, list[str]]:
        """Of jobs that say they are completed, what is not there all the same."""
        return self._unverified

    def statuses(self) -> dict[str, Status]:
        """As far as the registry still knows them."""
        found = {}
        for job in self.jobs:
            try:
                found[job.job_id] = self.subscription.job(job.job_id).status
            except JobNotFound:
                continue
        return found

    def cancel(self) -> None:
        """Everything that has not ended is cancelled, and its sessions with it."""
        for job in self.jobs:
            self._cancel(job)
            self._stop_session(self._jobs, job, "its job was cancelled")

    def not_begun(self) -> int:
        """How many `withdraw` would cancel."""
        return len(self._waiting)

    def withdraw(self) -> list[str]:
        """Cancels what has not begun and never will without us; returns which jobs these are."""
        with self._turn:
            waiting, self._waiting = self._waiting, []
        return [job.job_id for job in waiting if self._cancel(job)]

    def _cancel(self, job: Job) -> bool:
        try:
            self._jobs.update_status(job.job_id, "cancelled")
        except (IllegalTransition, JobNotFound):
            return False  # it has just ended, or was pruned since
        return True

    def _look(self, jobs: Jobs) -> None:
        """What ended without a word of its own, such as a job that was cancelled, makes room for the next; one that was
        taken from a runner that hung, and may be tried again, begins again."""
        for job_id in list(self._at_work):
            try:
                job = jobs.get_job(job_id)
            except JobNotFound:
                self._at_work.discard(job_id)
                continue
            if job.status in TERMINAL:
                self._at_work.discard(job_id)
            elif job.status is Status.PENDING and job.attempt:
                self._stop_session(jobs, job, "its lease ran out", StopMode.HARD)
                self._start(jobs, job)
        self.launch(jobs)

    # -- sessions --------------------------------------------------------------------------------------------------

    def _start(self, jobs: Jobs, job: Job) -> None:
        try:
            start_session(self._settings, self._inventory, job, self._orders[job.job_id])
        except BatonError as error:
            # The job's story says it, and the listener hears it from there.
            fail_job(self._settings, jobs, job, None, str(error))

    def _stop_session(self, jobs: Jobs, job: Job, reason: str, mode: StopMode = StopMode.GRACEFUL) -> None:
        session = self._inventory.made_for(job.job_id)
        if session is not None:
            try:
                stop_session(
                    self._settings, self._inventory, jobs, session.name, mode=mode, reason=reason, grace_sec=3.0
                )
            except BatonError as error:
                self._log(str(error))

    # -- what came of it -------------------------------------------------------------------------------------------

    def _verify(self, payload: dict[str, Any]) -> None:
        """Once more, with our own eyes, where the work was done here: a folder of that name elsewhere is another."""
        try:
            job = self.subscription.job(payload["job_id"])
        except JobNotFound:
            return  # pruned since; what it asked for was there when its end was recorded
        here = self._hosts.get(job.job_id) == self._settings.host
        if payload["event"] == EventName.COMPLETED and here and job.workdir is not None and os.path.isdir(job.workdir):
            problems = missing_results(job.replace(validate=None), redact=str)
            if problems:
                self._unverified[job.job_id] = problems

    def _out_of_time(self) -> None:
        for job in self.jobs:
            try:
                current = self.subscription.job(job.job_id)
            except JobNotFound:
                continue
            if current.status in TERMINAL:
                continue
            if self._jobs.last_event(current) is EventName.PERMISSION_REQUIRED:
                self._log(f"job {job.job_id} waits for a permission: baton attach {job.job_id}")
                continue
            if current.status is Status.PENDING and self._orders[job.job_id].label is not None:
                self._log(f"job {job.job_id} is still waiting to be taken up; `baton cancel {job.job_id}` withdraws it")
                continue
            why = self.subscription.timed_out or "timed out"
            fail_job(self._settings, self._jobs, current, None, why)
            self._stop_session(self._jobs, job, why)

    def _keep(self, payload: dict[str, Any]) -> None:
        """The output of a delegation also goes to a file, for whoever was not there."""
        path = os.path.join(self._settings.registry_dir, f"{payload['job_id']}.subscriber.out")
        try:
            with open(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb") as file:
                write_all(file.fileno(), (json.dumps(payload) + "\n").encode())
        except OSError:
            pass  # the registry is elsewhere, its folder is not ours to write in, or the disk is full
