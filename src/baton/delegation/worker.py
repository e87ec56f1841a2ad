"""Keeps taking jobs of one queue, each in a session of its own, a few at a time."""

from __future__ import annotations

import os
import time

from baton.adapters.contract import Mode
from baton.core.errors import BatonError, JobNotFound, RegistryUnavailable, TmuxUnavailable
from baton.core.job import TERMINAL, Status
from baton.delegation.background_monitor import Reconciler
from baton.sessions.ending import fail_job
from baton.sessions.inventory import Inventory
from baton.sessions.launch import create_session
from baton.sessions.session import session_name
from baton.sessions.stop import stop_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from baton.config import Settings
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs

_LOOK_SEC: Final = 0.1
_POLL_SEC: Final = 1.0


class Worker:
    """`stopping` and `drain_sec` may be set from elsewhere, by a signal for example: no more jobs are taken, and those
    at work have that long to end before they are handed back."""

    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        label: str,
        *,
        agent: str,
        workdir: str,
        concurrency: int = 1,
        max_jobs: int | None = None,
        headless: bool = False,
        yolo: bool = False,
        until_empty: bool = False,
        drain_sec: float = 30.0,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._inventory = Inventory(settings)
        self._label = label
        self._agent = agent
        self._workdir = workdir
        self._concurrency = concurrency
        self._left = max_jobs
        self._mode = Mode.HEADLESS if headless else Mode.INTERACTIVE
        self._yolo = yolo
        self._until_empty = until_empty
        self.drain_sec = drain_sec
        self._log = log
        self._at_work: dict[str, int] = {}  # job: attempt
        self._to_hand_back: dict[str, int] = {}  # those that did not begin, until the registry has heard of it
        self._next_poll = 0.0
        self._empty = False
        self.stopping = False
        self.done = 0

    def run(self) -> None:
        """Until it is told to stop, has done as many as it may, or the queue is empty and that is enough."""
        with Reconciler(self._settings):
            while not self.stopping:
                try:
                    if self._go_on():
                        continue
                except RegistryUnavailable as error:
                    self._log(f"{error}; trying again")
                    self._next_poll = time.monotonic() + _POLL_SEC
                idle = not self._at_work and not self._to_hand_back
                if idle and (self._left == 0 or (self._empty and self._until_empty)):
                    return
                time.sleep(_LOOK_SEC)
            self._drain()

    def _go_on(self) -> bool:
        """Looks at what is at work, and takes one more where there is room; True when it took one."""
        self._look()
        if len(self._at_work) >= self._concurrency or self._left == 0 or time.monotonic() < self._next_poll:
            return False
        taken = self._take()
        self._empty = not taken
        if not taken:
            self._next_poll = time.monotonic() + _POLL_SEC
        return taken

    def _take(self) -> bool:
        holder = f"{self._settings.host}:worker:{os.getpid()}"
        job = self._jobs.pick_pending(self._label, holder=holder, lease_sec=self._settings.lease_sec)
        if job is None:
            return False
        if self._left is not None:
            self._left -= 1
        self._at_work[job.job_id] = job.attempt
        self._log(f"job {job.job_id}: attempt {job.attempt} begins")
        try:
            self._start(job)
        except BaseException:
            # No fault of the job: the next would fare no better.
            self._to_hand_back[job.job_id] = self._at_work.pop(job.job_id)
            if self._left is not None:
                self._left += 1
            self._empty = False
            self._hand_back_not_begun()
            raise
        return True

    def _start(self, job: Job) -> None:
        try:
            create_session(
                self._settings,
                self._inventory,
                session_name(job),
                agent=self._agent or job.agent,
                workdir=job.workdir or self._workdir,
                mode=self._mode,
                job=job,
                attempt=job.attempt,
                yolo=self._yolo,
            )
        except (TmuxUnavailable, RegistryUnavailable):
            raise
        except BatonError as error:
            self._fail(job, str(error))

    def _fail(self, job: Job, why: str) -> None:
        """Why, is told once it has made room."""
        fail_job(self._settings, self._jobs, job, job.attempt, why)

    def _look(self) -> None:
        """Jobs that have ended, or are no longer ours, make room."""
        self._hand_back_not_begun()
        for job_id, attempt in list(self._at_work.items()):
            # In this order: a runner says what came of the job before its session ends.
            lives = self._inventory.made_for(job_id) is not None
            try:
                job = self._jobs.get_job(job_id)
            except JobNotFound as error:
                self._log(str(error))
                del self._at_work[job_id]
                continue
            if job.status is Status.RUNNING and job.attempt == attempt:
                if not lives:
                    self._fail(job, "the agent's session ended, and nobody said what came of it")
                continue
            if job.status in TERMINAL and lives:
                continue  # its session is about to end
            del self._at_work[job_id]
            self.done += 1
            why = f": {job.detail}" if job.status is Status.ERROR and job.detail else ""
            self._log(f"job {job_id}: {job.status}{why}")

    def _drain(self) -> None:
        began = time.monotonic()
        while (self._at_work or self._to_hand_back) and time.monotonic() - began < self.drain_sec:
            try:
                self._look()
            except RegistryUnavailable as error:
                self._log(str(error))
            time.sleep(_LOOK_SEC)
        for job_id, attempt in self._at_work.items():
            self._hand_back(job_id, attempt)

    def _hand_back_not_begun(self) -> None:
        for job_id, attempt in list(self._to_hand_back.items()):
            try:
                self._jobs.release(job_id, attempt=attempt, reason="its session could not be started")
                self._log(f"job {job_id}: handed back")
            except RegistryUnavailable:
                return  # which was told when the session could not be started; the next look tries again
            except BatonError as error:
                self._log(str(error))  # it was taken from us meanwhile
            del self._to_hand_back[job_id]

    def _hand_back(self, job_id: str, attempt: int) -> None:
        """The job first: its runner can then say nothing more about it."""
        why = "the worker stopped"
        try:
            self._jobs.release(job_id, attempt=attempt, reason=why)
            self._log(f"job {job_id}: handed back")
        except BatonError as error:
            self._log(str(error))
        session = self._inventory.made_for(job_id)
        if session is not None:
            try:
                stop_session(self._settings, self._inventory, self._jobs, session.name, reason=why, grace_sec=3.0)
            except BatonError as error:
                self._log(str(error))
