"""Take jobs of one queue and run each in a session of its own, a few at a time."""

import os
import time
from collections import Counter
from collections.abc import Callable

from baton.adapters.contract import Mode
from baton.config import Settings
from baton.core.awake_clock import AwakeClock
from baton.core.clock import SECOND_NS, Clock, SystemClock, duration_text
from baton.core.errors import BatonError, IllegalTransition, JobNotFound, RegistryMoved, RegistryUnavailable
from baton.core.job import TERMINAL, Status
from baton.delegation.attempts import Attempts, submitter_is_dead
from baton.delegation.reconcile import BackgroundMonitor
from baton.jobs.verbs import Jobs
from baton.registry.contract import JobFilter
from baton.sessions.inventory import Inventory

_CHECK_SEC = 0.1
_POLL_NS = SECOND_NS
_ORPHANS_NS = 5 * SECOND_NS


class Worker:
    """Runs until it is stopped, has run `max_jobs`, or, with `until_empty`, finds the queue empty.

    A signal handler may set `stopping` and `drain_sec`: then the worker takes no more jobs, gives the running ones that
    long to end, and requeues the rest."""

    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        queue: str,
        *,
        agent: str,
        workdir: str,
        concurrency: int = 1,
        max_jobs: int | None = None,
        headless: bool = False,
        yolo: bool = False,
        until_empty: bool = False,
        drain_sec: float = 30.0,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._inventory = Inventory(settings)
        self._attempts = Attempts(settings, jobs, self._inventory, log)
        self._queue = queue
        self._agent = agent
        self._workdir = workdir
        self._concurrency = concurrency
        self._left = max_jobs
        self._mode = Mode.HEADLESS if headless else Mode.INTERACTIVE
        self._yolo = yolo
        self._until_empty = until_empty
        self.drain_sec = drain_sec
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._log = log
        self._running: dict[str, int] = {}  # job: attempt
        self._began_ns: dict[str, int] = {}  # job: when this worker took it
        self._to_requeue: dict[str, int] = {}  # jobs whose session could not be started
        self._next_poll_ns = self._next_orphans_ns = 0
        self._empty = False
        self.stopping = False
        self.ended: Counter[Status] = Counter()  # how many jobs ended how

    def run(self) -> None:
        """Run jobs until the worker ends."""
        with BackgroundMonitor(self._settings):
            while not self.stopping:
                try:
                    if self._check_and_take():
                        continue
                except RegistryMoved:
                    raise
                except RegistryUnavailable as error:
                    self._log(f"{error}; trying again")
                    self._next_poll_ns = self._clock.monotonic_ns() + _POLL_NS
                if self._is_idle() and (self._left == 0 or (self._empty and self._until_empty)):
                    return
                self._sleep(_CHECK_SEC)
            self._drain()

    def _is_idle(self) -> bool:
        return not self._running and not self._to_requeue

    def _check_and_take(self) -> bool:
        """Check the running jobs, and take one more if there is room. Return whether one was taken."""
        self._check_running()
        now_ns = self._clock.monotonic_ns()
        if len(self._running) >= self._concurrency or self._left == 0 or now_ns < self._next_poll_ns:
            return False
        is_idle = self._is_idle()
        if is_idle and self._until_empty:
            self._next_orphans_ns = 0  # this look may be the last
        taken = self._take()
        # A running job may still return to the queue, or add others; a blocked one is in it.
        self._empty = is_idle and not taken and not (self._until_empty and self._has_blocked())
        if not taken:
            self._next_poll_ns = self._clock.monotonic_ns() + _POLL_NS
        return taken

    def _has_blocked(self) -> bool:
        pending = JobFilter(statuses=[Status.PENDING], agent_session=self._queue)
        return any(job.is_blocked and job.submitter is None for job in self._jobs.each_job(pending))

    def _take(self) -> bool:
        holder = f"{self._settings.host}:worker:{os.getpid()}"
        self._release_orphans()
        job = self._jobs.pick_pending(self._queue, holder=holder, lease_sec=self._settings.lease_sec)
        if job is None:
            return False
        if self._left is not None:
            self._left -= 1
        self._running[job.job_id] = job.attempt
        self._began_ns[job.job_id] = self._clock.monotonic_ns()
        self._log(f"job {job.job_id}: attempt {job.attempt} begins")
        try:
            # A job that fails here is reported by the next check.
            workdir = job.workdir or self._workdir
            mode = Mode.HEADLESS if job.start_options.get("headless") else self._mode
            self._attempts.start(job, agent=self._agent or job.agent, workdir=workdir, mode=mode, yolo=self._yolo)
        except BaseException:
            # tmux or the registry is unavailable, or the worker is interrupted: the job is not at fault.
            self._to_requeue[job.job_id] = self._running.pop(job.job_id)
            if self._left is not None:
                self._left += 1
            self._empty = False
            self._requeue_not_started()
            raise
        return True

    def _release_orphans(self) -> None:
        """Clear the submitter of jobs in this queue whose submitter has died: then a worker takes them."""
        if self._clock.monotonic_ns() < self._next_orphans_ns:
            return
        self._next_orphans_ns = self._clock.monotonic_ns() + _ORPHANS_NS
        submitted = JobFilter(statuses=[Status.PENDING], agent_session=self._queue, submitted=True, free=True)
        for job in self._jobs.each_job(submitted):
            if submitter_is_dead(job, self._settings.host) and self._inventory.made_for(job.job_id) is None:
                try:
                    self._jobs.registry.clear_submitter(job.job_id)
                    self._log(f"job {job.job_id}: the process that submitted it has ended")
                except (IllegalTransition, JobNotFound) as error:
                    self._log(str(error))  # it was claimed, cancelled or pruned meanwhile

    def _check_running(self) -> None:
        """Forget jobs that have ended or have another holder. Requeue or fail those whose session has died."""
        self._requeue_not_started()
        for job_id, attempt in list(self._running.items()):
            # In this order: a runner reports the end of the job before its session ends.
            has_session = self._inventory.made_for(job_id) is not None
            try:
                job = self._jobs.get_job(job_id)
            except JobNotFound as error:
                self._log(str(error))
                del self._running[job_id]
                continue
            if job.status is Status.RUNNING and job.attempt == attempt:
                if not has_session:
                    self._attempts.requeue_or_fail(
                        job, "the agent's session ended, and no event says how the job ended"
                    )
                continue
            if job.status in TERMINAL and has_session:
                continue  # its session is about to end
            del self._running[job_id]
            now_ns = self._clock.monotonic_ns()
            taken = duration_text(now_ns - self._began_ns.pop(job_id, now_ns))
            if job.status in TERMINAL:
                self.ended[job.status] += 1
            why = f": {job.reason}" if job.status in (Status.ERROR, Status.CANCELLED) and job.reason else ""
            self._log(f"job {job_id}: {job.status} after {taken}{why}")

    def _drain(self) -> None:
        clock = AwakeClock(self._clock)
        began_ns = clock.monotonic_ns()
        while self._running or self._to_requeue:
            is_late = clock.monotonic_ns() - began_ns >= self.drain_sec * SECOND_NS
            try:
                self._check_running()
            except RegistryUnavailable as error:
                self._log(str(error))
            if is_late:
                break
            self._sleep(_CHECK_SEC)
        for job_id, attempt in self._running.items():
            # The job first: after that, its runner cannot report anything about it.
            try:
                self._requeue(job_id, attempt, "the worker stopped")
            except RegistryUnavailable as error:
                self._log(str(error))
            self._attempts.stop(job_id, "the worker stopped")

    def _requeue_not_started(self) -> None:
        for job_id, attempt in list(self._to_requeue.items()):
            try:
                self._requeue(job_id, attempt, "its session could not be started")
            except RegistryUnavailable:
                return  # the next check tries again
            del self._to_requeue[job_id]

    def _requeue(self, job_id: str, attempt: int, why: str) -> None:
        try:
            self._jobs.release(job_id, attempt=attempt, reason=why)
            self._log(f"job {job_id}: requeued")
        except RegistryUnavailable:
            raise
        except BatonError as error:
            self._log(str(error))  # another process holds it by now
