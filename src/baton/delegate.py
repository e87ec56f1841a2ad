"""The main job: hand work to agents, see it through, and tell truthfully what came of it."""

from __future__ import annotations

import json
import os
import threading
import time

from baton.agents.base import Mode
from baton.broker.address import broker_record
from baton.errors import BatonError, InvalidValue
from baton.fsio import open_private, try_lock, write_all
from baton.jobs import open_jobs
from baton.model import DEFAULT_IDLE_TIMEOUT_SEC, DEFAULT_TIMEOUT_SEC, TERMINAL, EventName, Status, Value, new_job
from baton.monitor import Monitor, monitor_lock
from baton.mqtt.publisher import send_unsent
from baton.mqtt.subscriber import Subscription
from baton.sessions.ending import end_job
from baton.sessions.inventory import Inventory
from baton.sessions.launch import create_session, usable_agent
from baton.sessions.model import State
from baton.sessions.stop import stop_session
from baton.verification import missing_results, outside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, Final

    from baton.config import Settings
    from baton.jobs import Jobs
    from baton.model import Job
    from baton.sessions.model import Session

_SUBSCRIBE_SEC: Final = 5.0
_NO_LIMIT_SEC: Final = 366 * 86400.0
_RECONCILE_SEC: Final = 2.0


class Order(Value):
    """A piece of work, and how it is to be done. `label` is the queue of a session or worker that is there already;
    without one a session is made for it."""

    __slots__ = (
        "agent", "allow_existing", "expect", "headless", "idle_timeout_sec", "label", "max_attempts", "priority",
        "prompt", "timeout_sec", "validate", "workdir", "yolo",
    )  # fmt: skip

    prompt: str
    agent: str
    workdir: str
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


def order(settings: Settings, prompt: str, **given: Any) -> Order:
    """An order with what was not given from the settings; what cannot work is refused before anything is made."""
    values: dict[str, Any] = {
        "prompt": prompt,
        "agent": settings.agent,
        "workdir": ".",
        "expect": [],
        "validate": None,
        "timeout_sec": settings.timeout_sec or DEFAULT_TIMEOUT_SEC,
        "idle_timeout_sec": settings.idle_timeout_sec or DEFAULT_IDLE_TIMEOUT_SEC,
        "max_attempts": 1,
        "priority": 0,
        "headless": False,
        "yolo": False,
        "allow_existing": False,
        "label": None,
    }
    unknown = sorted(given.keys() - values.keys())
    if unknown:
        raise InvalidValue(unknown[0][:40], f"is no part of an order; there are {', '.join(values)}")
    made = Order(**values | {name: value for name, value in given.items() if value is not None})
    if not isinstance(made.workdir, str) or not isinstance(made.expect, list):
        raise InvalidValue("workdir and expect", "must be text and a list of texts")
    if made.label is None:
        if not isinstance(made.agent, str):
            raise InvalidValue("agent", "must be text")
        usable_agent(settings, made.agent)
    made = made.replace(workdir=os.path.abspath(made.workdir))
    if made.label is None and not os.path.isdir(made.workdir):
        raise InvalidValue("workdir", f"{made.workdir} is not a folder")
    for name in made.expect:
        if isinstance(name, str) and outside(name, made.workdir):
            raise InvalidValue("expect", f"{name!r} lies outside the work folder {made.workdir}")
    return made


def drafted(settings: Settings, made: Order) -> Job:
    """The job of an order, ready to be registered."""
    job = new_job(
        made.prompt,
        now_ns=time.time_ns(),
        agent=made.agent,
        # A label that nobody else picks from.
        agent_session=made.label or f"submit:{os.urandom(8).hex()}",
        broker=broker_record(settings),
        timeout_sec=made.timeout_sec,
        idle_timeout_sec=made.idle_timeout_sec,
        expected_artifacts=made.expect,
        workdir=made.workdir,
        max_attempts=made.max_attempts,
        priority=made.priority,
        validate=made.validate,
    )
    return job if made.allow_existing else job.replace(extra={"fresh_artifacts": True})


def session_name(job: Job) -> str:
    return f"job-{job.job_id}"


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
        self.jobs = jobs.register_many([drafted(settings, each) for each in orders])
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

    def launch(self) -> None:
        """Starts as many sessions as may be at work at once."""
        while self._waiting and len(self._at_work) < self._parallel:
            job = self._waiting.pop(0)
            self._at_work.add(job.job_id)
            self._start(job)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Nothing may be said before we listen. Where the broker is away, the registry tells.
        self.subscription.connect(wait_sec=_SUBSCRIBE_SEC)
        self.launch()
        with _Reconciler(self._settings):
            for payload in self.subscription:
                self._keep(payload)
                if payload["event"] in (EventName.COMPLETED, EventName.ERROR):
                    self._at_work.discard(payload["job_id"])
                    self._verify(payload)
                yield payload
                self.launch()
        if self.subscription.timed_out is not None:
            self._out_of_time()

    @property
    def exit_code(self) -> int:
        return 1 if self._unverified else self.subscription.exit_code

    def problems(self) -> dict[str, list[str]]:
        """Of jobs that say they are completed, what is not there all the same."""
        return self._unverified

    def cancel(self) -> None:
        """Everything that has not ended is cancelled, and its sessions with it."""
        for job in self.jobs:
            if self._jobs.get_job(job.job_id).status not in TERMINAL:
                self._jobs.update_status(job.job_id, "cancelled")
            self._stop_session(job, "its job was cancelled")

    # -- sessions --------------------------------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        made = self._orders[job.job_id]
        try:
            create_session(
                self._settings,
                self._inventory,
                session_name(job),
                agent=made.agent,
                workdir=made.workdir,
                mode=Mode.HEADLESS if made.headless else Mode.INTERACTIVE,
                job_id=job.job_id,
                yolo=made.yolo,
            )
        except BatonError as error:
            # The job's story says it, and the listener hears it from there.
            self._fail(job, str(error))

    def _stop_session(self, job: Job, reason: str) -> None:
        session = self._session_of(job)
        if session is not None:
            try:
                stop_session(self._settings, self._inventory, self._jobs, session.name, reason=reason, grace_sec=3.0)
            except BatonError as error:
                self._log(str(error))

    def _session_of(self, job: Job) -> Session | None:
        for session in self._inventory.all(State.RUNNING):
            if session.made_for == job.job_id:
                return session
        return None

    def _fail(self, job: Job, detail: str) -> None:
        if end_job(self._jobs, job.job_id, None, detail):
            try:
                send_unsent(self._jobs, self._settings, job, tries=1)
            except BatonError:
                pass  # the registry has it

    # -- what came of it -------------------------------------------------------------------------------------------

    def _verify(self, payload: dict[str, Any]) -> None:
        """Once more, with our own eyes, where the work folder is here."""
        job = self._jobs.get_job(payload["job_id"])
        if payload["event"] == EventName.COMPLETED and job.workdir is not None and os.path.isdir(job.workdir):
            problems = missing_results(job.replace(validate=None), redact=str)
            if problems:
                self._unverified[job.job_id] = problems

    def _out_of_time(self) -> None:
        for job in self.jobs:
            current = self._jobs.get_job(job.job_id)
            if current.status in TERMINAL:
                continue
            last = self._jobs.events_after(job.job_id, max(current.last_seq - 1, 0))
            if last and last[-1].event is EventName.PERMISSION_REQUIRED:
                self._log(f"job {job.job_id} waits for a permission: baton attach {job.job_id}")
                continue
            if current.status is Status.PENDING and self._orders[job.job_id].label is not None:
                self._log(f"job {job.job_id} is still waiting to be taken up; `baton cancel {job.job_id}` withdraws it")
                continue
            self._fail(current, self.subscription.timed_out or "timed out")
            self._stop_session(job, self.subscription.timed_out or "timed out")

    def _keep(self, payload: dict[str, Any]) -> None:
        """The output of a delegation also goes to a file, for whoever was not there."""
        path = os.path.join(self._settings.registry_dir, f"{payload['job_id']}.subscriber.out")
        try:
            fd = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError:
            return  # the registry is elsewhere, or its folder is not ours to write in
        with open(fd, "wb") as file:
            write_all(file.fileno(), (json.dumps(payload) + "\n").encode())


class _Reconciler:
    """While a delegation runs and no monitor does: notices sessions that died without a word."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _run(self) -> None:
        with open_jobs(self._settings) as jobs:
            inventory = Inventory(self._settings)
            monitor = Monitor(self._settings, jobs, inventory)
            while not self._over.wait(_RECONCILE_SEC):
                lock = try_lock(monitor_lock(inventory))
                if lock is None:
                    continue  # a monitor is running, and sees to it
                try:
                    for _finding in monitor.reconcile():
                        pass
                except (BatonError, OSError):
                    continue  # the next time may do
                finally:
                    os.close(lock)
