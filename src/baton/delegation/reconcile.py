"""Find running jobs whose lease expired, whose session died or that exceed their limits, and requeue or fail them.

The monitor does this in every sweep. A command that waits for jobs does it while no monitor runs. Each check looks
first, and acts on what it finds twice; it touches only sessions of this host; it may run beside another.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from baton.adapters.contract import Mode
from baton.config import Settings
from baton.core.awake_clock import AwakeClock
from baton.core.clock import SECOND_NS, Clock, SystemClock, parse_time
from baton.core.errors import BatonError, IllegalTransition, JobBlocked, RegistryUnavailable, TmuxUnavailable
from baton.core.job import TERMINAL, Job, Status
from baton.core.lifecycle import expired_lease_error
from baton.core.limits import Limit, exceeded_limit, is_at_limit, may_wait, pauses_idle_clock, silent_since_ns
from baton.core.value import Value
from baton.delegation.attempts import Attempts, submitter_is_dead
from baton.jobs.verbs import Jobs, open_jobs
from baton.registry.contract import JobFilter
from baton.sessions.inventory import Inventory
from baton.sessions.processes import end_processes
from baton.sessions.session import Session, State, session_name
from baton.sessions.tmux import TmuxSnapshot
from baton.storage.files import is_locked, try_lock

KILLED = "the agent was killed: its tmux session is gone"
_SLACK_NS = 15 * SECOND_NS  # the job's own runner enforces its limits first
_SECOND_LOOK_SEC = 0.3
_LEFTOVER_GRACE_SEC = 1.0  # with what follows, a killed job is settled within 2 s of the look
_STARTING_SEC = 30.0
_ENDING_SEC = 30.0
_NOTIFY_AGAIN_NS = 60 * SECOND_NS
_STRANDED_EVERY_NS = 60 * SECOND_NS
_LOOK_SEC = 0.5
_SWEEP_SEC = 2.0
_LAST_STEP_SEC = 5.0
# These may wait for other programs, such as a broker that does not answer.
_LONG_STEPS = frozenset({"waiting", "retries", "notifications", "unsent", "retained", "prune"})
_LONG_STEP_SEC = 15.0


class Finding(Value):
    """What a check found. `what` names the job, session or live agent; `done` says what was done, if anything."""

    what: str
    why: str
    done: str | None


class Reconciler:
    """Runs the checks on jobs and sessions, each in a step of a sweep."""

    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        inventory: Inventory,
        *,
        dry_run: bool = False,
        confirm_sec: float = 10.0,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`confirm_sec`: how long a job must have exceeded a limit before this process ends it. One look is not enough:
        the date may have jumped, and after the machine has slept, every agent seems silent."""
        self._settings = settings
        self._jobs = jobs
        self._inventory = inventory
        self._attempts = Attempts(settings, jobs, inventory)
        self._dry_run = dry_run
        self._confirm_ns = int(confirm_sec * SECOND_NS)
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._late_since: dict[tuple[str, int, int], int] = {}  # job, attempt, last event: when it was first seen late
        self._watched: set[str] = set()  # jobs in sessions that live on this host
        self._requeued: list[str] = []  # jobs that this process requeued and may have to start again
        self._next_stranded_ns = 0
        self._next_try_ns: dict[str, int] = {}  # when to try notifications again that could not be sent
        self.registry_failed = False  # in the last sweep

    def steps(self) -> dict[str, Callable[[], Iterator[Finding]]]:
        """Return the steps of a sweep, by name and in order."""
        return {
            "sessions": self._check_sessions,  # before the leases: a killed session says more than an expired lease
            "leases": self._expire_leases,
            "order": self._advance_waiting,
            "limits": self._check_limits,
            "waiting": self._start_waiting,
            "retries": self._start_requeued,
            "notifications": self._send_notifications,
        }

    def sweep(self) -> Iterator[Finding]:
        """Run every step once and yield what it finds. A step that fails is a finding, and the others run."""
        self.registry_failed = False
        for name, step in self.steps().items():
            self._clock.will_read_in(_LONG_STEP_SEC if name in _LONG_STEPS else 0)
            try:
                yield from step()
            except (BatonError, OSError) as error:
                self.registry_failed |= isinstance(error, RegistryUnavailable)
                yield Finding(what=name, why=str(error), done=None)
        self._clock.will_read_in(0)

    def settle_lost(self, lost: Iterable[Session], *, notify: bool = False) -> dict[str, str]:
        """End sessions whose runner has ended without a trace, and requeue or fail their jobs. Return the jobs for
        which that failed, and why. Without `notify`, nothing is sent: no look waits for a broker."""
        from baton.sessions.launch import read_begun

        problems: dict[str, str] = {}
        for session in lost:
            has_begun = read_begun(self._inventory.folder_of(session)) is not None
            if not has_begun and self._age_sec(session.updated_at) < _STARTING_SEC:
                continue  # the process that starts it sees this, too, and tries again or says why
            for finding in self._check_session(session, partial(self._end_dead_session, notify=notify)):
                if finding.done is None and session.job_id is not None:
                    problems[session.job_id] = finding.why
        return problems

    def _send_notifications(self) -> Iterator[Finding]:
        """Send the notifications whose sender was killed, or failed: those again after a while."""
        if self._settings.notify is None:
            return
        from baton.sessions.notify import find_due, send

        now_ns = self._clock.monotonic_ns()
        all_due = {due.id: due for due in find_due(self._jobs)}
        self._next_try_ns = {key: then_ns for key, then_ns in self._next_try_ns.items() if key in all_due}
        found = [due for key, due in all_due.items() if now_ns >= self._next_try_ns.get(key, 0)]
        if self._dry_run:
            for due in found:
                yield self._act(f"notification {due.id}", "it is due", "sent")
            return
        for each in send(self._settings, self._jobs, found):
            self._next_try_ns[each.due.id] = now_ns + _NOTIFY_AGAIN_NS
            what = f"notification {each.due.id}"
            if each.error is None:
                yield Finding(what=what, why="no other process sent it", done="sent")
            else:
                yield Finding(what=what, why=each.error, done=None)

    def _expire_leases(self) -> Iterator[Finding]:
        if self._dry_run:
            for job in self._jobs.registry.expired_leases(limit=1000, spare=self._spares):
                done = "requeued" if expired_lease_error(job) is None else "ended as error"
                yield self._act(f"job {job.job_id}", f"the lease of {job.claimed_by} expired", done)
            return
        for change in self._jobs.expire_leases(spare=self._spares):
            job = change.after
            if job.status is Status.PENDING:
                self._requeued.append(job.job_id)
            why = f"the lease of {change.before.claimed_by} expired"
            yield Finding(what=f"job {job.job_id}", why=why, done=f"{job.status}")

    def _spares(self, job: Job) -> bool:
        """Return whether an expired lease may still be renewed: it ended while this process stood still."""
        expires_ns = parse_time(job.lease_expires_at or job.updated_at)
        judged_ns = self._clock.lease_ns(expires_ns)
        return judged_ns < self._clock.wall_ns() and judged_ns <= expires_ns

    def _advance_waiting(self) -> Iterator[Finding]:
        """Let jobs go on that waited for others or for a time; now and then also those that a crash has stranded."""
        if self._dry_run:
            return
        now_ns = self._clock.monotonic_ns()
        changes = self._jobs.advance_waiting()
        if now_ns >= self._next_stranded_ns:
            self._next_stranded_ns = now_ns + _STRANDED_EVERY_NS
            changes += self._jobs.registry.advance_stranded()
        for change in changes:
            job = change.after
            if job.status is Status.PENDING and not job.is_blocked:
                yield Finding(what=f"job {job.job_id}", why="what it waited for has come", done="unblocked")
            elif job.ended_by == "predecessor":
                yield Finding(what=f"job {job.job_id}", why=job.reason or "", done="ended as error")

    def _start_waiting(self) -> Iterator[Finding]:
        """Start the jobs that have waited, or that a look has requeued, and whose submitter has ended meanwhile."""
        free = JobFilter(statuses=[Status.PENDING], submitted=True, free=True)
        for job in self._jobs.each_job(free):
            if (may_wait(job) or job.lost_attempts) and submitter_is_dead(job, self._settings.host):
                yield from self._start_again(job)

    def _check_limits(self) -> Iterator[Finding]:
        """End jobs that exceed a limit and have no runner here. A runner enforces the limits itself, by a clock that
        does not jump; when it hangs, its lease expires."""
        now_ns = self._clock.wall_ns()  # before the look
        before, self._late_since = self._late_since, {}
        for job in self._jobs.each_job(JobFilter(statuses=[Status.RUNNING])):
            limit = self._exceeded_limit(job, now_ns)
            if limit is None or job.job_id in self._watched or self._is_held_elsewhere(job):
                continue
            key = (job.job_id, job.attempt, job.last_seq)
            self._late_since[key] = before.get(key, self._clock.monotonic_ns())
            if self._clock.monotonic_ns() - self._late_since[key] < self._confirm_ns:
                continue
            why = limit.describe(job)
            ended_by, detail = limit.ended_by, f"ended by the monitor: {why}"
            if self._dry_run or self._attempts.fail(job, job.attempt, detail, ended_by=ended_by, notify=False):
                yield self._act(f"job {job.job_id}", why, "ended as error")

    def _exceeded_limit(self, job: Job, now_ns: int) -> Limit | None:
        missed_ns = self._clock.missed_ns
        deadline_ns, silent_ns, time_ns = None, silent_since_ns(job), job.timeout_sec * SECOND_NS
        if job.deadline_at and not is_at_limit(job, clock=self._clock):
            deadline_ns = parse_time(job.deadline_at)
        return exceeded_limit(
            now_ns,
            deadline=None if deadline_ns is None else deadline_ns + missed_ns(deadline_ns - time_ns),
            silent_since=None if silent_ns is None else silent_ns + missed_ns(silent_ns),
            idle_timeout=job.idle_timeout_sec * SECOND_NS,
            slack=_SLACK_NS,
            pauses=lambda: pauses_idle_clock(
                job, clock=self._clock, last_event=lambda: self._jobs.last_event(job), idle_sec=job.idle_timeout_sec
            ),
        )

    def _is_held_elsewhere(self, job: Job) -> bool:
        """Return whether a process on another host holds the job. The clock there may differ: the monitor of that host
        checks its limits, and its lease expires."""
        return job.lease_expires_at is not None and not (job.claimed_by or "").startswith(f"{self._settings.host}:")

    def _start_requeued(self) -> Iterator[Finding]:
        requeued, self._requeued = self._requeued, []
        for job_id in requeued:
            job = self._jobs.get_job(job_id)
            if submitter_is_dead(job, self._settings.host):
                yield from self._start_again(job)

    def _start_again(self, job: Job) -> Iterator[Finding]:
        """Start the next attempt of a requeued job, in a session like that of its last attempt."""
        last = self._last_session(job)
        if last is None and (job.attempt or not may_wait(job) or self._inventory.made_for(job.job_id) is not None):
            return
        before = f"attempt {job.attempt} is over" if job.attempt else "it has waited"
        why = f"{before}, and the process that submitted it has ended"
        if not self._dry_run:
            if last is not None and last.state is State.RUNNING:
                self._stop_session(last, why, hard=True)
            try:
                holder = f"{self._settings.host}:monitor:{os.getpid()}"
                job = self._jobs.pick_job(job.job_id, holder=holder, lease_sec=self._settings.lease_sec)
            except (IllegalTransition, JobBlocked):
                return  # a worker was faster, or the job was cancelled
            try:
                error = self._attempts.start(job, **_how_to_start(job, last))
            except (TmuxUnavailable, RegistryUnavailable) as unavailable:
                self._jobs.release(job.job_id, attempt=job.attempt, reason="its session could not be started")
                error = str(unavailable)
            if error is not None:
                self._requeued.append(job.job_id)  # it is pending again, if it has attempts left
                yield Finding(what=f"job {job.job_id}", why=f"{why}, but it could not be started: {error}", done=None)
                return
        yield self._act(f"job {job.job_id}", why, "started again" if last is not None else "started")

    def _last_session(self, job: Job) -> Session | None:
        """Return the session of the job's last attempt here, if the job is pending and not blocked."""
        if job.status is not Status.PENDING or not job.attempt or job.is_blocked:
            return None
        made = [
            each for each in self._inventory.all() if each.made_for == job.job_id and each.host == self._settings.host
        ]
        return max(made, key=lambda session: session.created_at, default=None)

    def _check_sessions(self) -> Iterator[Finding]:
        ours = [each for each in self._inventory.all(State.RUNNING) if each.host == self._settings.host]
        self._watched = set()
        if not ours:
            return
        snapshot = TmuxSnapshot()
        missing = [each for each in ours if snapshot.is_gone(each)]
        if missing:
            self._sleep(_SECOND_LOOK_SEC)
            snapshot = TmuxSnapshot()
            for session in missing:
                if snapshot.is_gone(session):  # guard: second-look
                    yield from self._check_session(session, self._end_dead_session)
        for session in ours:
            if session not in missing:
                if session.job_id is not None:
                    self._watched.add(session.job_id)
                yield from self._check_session(session, self._stop_needless_session)

    def _check_session(self, session: Session, check: Callable[[Session], Iterator[Finding]]) -> Iterator[Finding]:
        """Run a check of one session. When it fails, the other sessions are still checked."""
        try:
            yield from check(session)
        except (BatonError, OSError) as error:
            yield Finding(what=f"session {session.name}", why=str(error), done=None)

    def _end_dead_session(self, session: Session, *, notify: bool = True) -> Iterator[Finding]:
        """End a session whose pane is gone: end the processes of its agent, and requeue or fail its job."""
        if session.pane_pid is None and self._age_sec(session.updated_at) < _STARTING_SEC:
            return  # it is being started
        current = self._inventory.find(session.session_id)
        if current is None or current.state is not State.RUNNING or current.pane_pid != session.pane_pid:
            return  # it has ended, or was resumed, between the two looks
        if session.has_live_runner():
            return  # its tmux socket is hidden or was moved
        if current.has_live_stopper():
            return  # it says how the session ended
        from baton.sessions.ending import end_session
        from baton.sessions.stop import held_job

        what, why = f"session {session.name}", "its session is gone from tmux"
        job = held_job(self._jobs, current)
        # A job that was sent to a running session waits in a queue that no other session takes jobs from.
        requeue = job is not None and session.made_for is not None and expired_lease_error(job) is None
        if self._dry_run:
            yield self._act(what, why, f"terminated, and its job {'requeued' if requeue else 'failed'}")
            return
        ended = end_processes(lambda: self._inventory.agent_processes(session), grace_sec=_LEFTOVER_GRACE_SEC)
        if job and requeue and self._attempts.requeue_or_fail(job, KILLED) is Status.PENDING:
            self._requeued.append(job.job_id)
        elif job and not requeue:
            self._attempts.fail(job, job.attempt, KILLED, ended_by="lost", notify=notify)
        end_session(self._settings, self._inventory, current, State.TERMINATED, reason=why)
        more = f", {len(ended)} left-over process{'es' if len(ended) > 1 else ''} ended" if ended else ""
        yield Finding(what=what, why=why, done=f"terminated{more}")

    def _stop_needless_session(self, session: Session) -> Iterator[Finding]:
        """Stop a live session whose job has ended, or is run by a later attempt."""
        if session.made_for is None:
            return
        job = self._jobs.get_job(session.made_for)
        earlier = [session_name(job.replace(attempt=number)) for number in range(1, job.attempt)]
        if job.status is Status.RUNNING and session.name in earlier:
            why, hard = f"attempt {job.attempt} of its job is at work elsewhere", True
        elif job.status in TERMINAL and self._age_sec(job.finished_at or job.updated_at) >= _ENDING_SEC:
            why, hard = f"the job it was made for is {job.status}", False
        else:
            return
        if not self._dry_run:
            self._stop_session(session, why, hard=hard)
        yield self._act(f"session {session.name}", why, "stopped")

    def _stop_session(self, session: Session, why: str, *, hard: bool) -> None:
        from baton.sessions.stop import StopMode, stop_session

        mode = StopMode.HARD if hard else StopMode.GRACEFUL
        stop_session(self._settings, self._inventory, self._jobs, session.name, mode=mode, reason=why)

    def _age_sec(self, moment: str) -> float:
        then_ns = parse_time(moment)
        return (self._clock.wall_ns() - then_ns - self._clock.missed_ns(then_ns)) / SECOND_NS

    def _act(self, what: str, why: str, done: str) -> Finding:
        return Finding(what=what, why=why, done=f"would be {done}" if self._dry_run else done)


def _how_to_start(job: Job, last: Session | None) -> dict[str, Any]:
    """Return how to start the next attempt: as the last one, which may have worked in a worktree of its own; the first
    one as the job says."""
    if last is None:
        options = job.start_options
        mode = Mode.HEADLESS if options.get("headless") else Mode.INTERACTIVE
        workdir = job.workdir or "."
        return {"agent": job.agent, "workdir": workdir, "mode": mode, "yolo": bool(options.get("yolo"))}
    workdir = last.workdir if job.worktree is None or job.workdir is None else job.workdir
    return {"agent": last.agent, "workdir": workdir, "mode": last.mode, "yolo": last.yolo, "socket": last.socket}


def lock_of_all_homes(state_dir: str) -> str:
    """Return the file whose lock the acting monitor of all homes holds: one file for any number of homes."""
    return os.path.join(state_dir, "monitor.lock")


def take_monitor_lock(settings: Settings, *, of_all_homes: bool = False) -> int | None:
    """Return a descriptor that makes this process the monitor of a home until it is closed; None while another one is
    at work there. `of_all_homes`: this process is the monitor of all homes."""
    if not of_all_homes and is_locked(lock_of_all_homes(settings.state_dir)):
        return None
    return try_lock(_lock_of_home(settings))


def has_monitor(settings: Settings) -> bool:
    """Return whether a monitor is at work in a home."""
    return is_locked(lock_of_all_homes(settings.state_dir)) or is_locked(_lock_of_home(settings))


def _lock_of_home(settings: Settings) -> str:
    return os.path.join(settings.home, "monitor.lock")


class BackgroundMonitor:
    """Sweeps in a thread inside a `with` block while no monitor runs: for commands that wait for jobs. The thread also
    calls `look`, with a registry of its own."""

    def __init__(self, settings: Settings, look: Callable[[Jobs], None] = lambda _jobs: None) -> None:
        self._settings = settings
        self._look = look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_LAST_STEP_SEC)  # a session that it began to end, it also ends

    def _run(self) -> None:
        waited = 0.0
        with open_jobs(self._settings) as jobs:
            inventory = Inventory(self._settings)
            clock = AwakeClock()
            reconciler = Reconciler(self._settings, jobs, inventory, clock=clock)
            while not self._stop.wait(_LOOK_SEC):
                waited += _LOOK_SEC
                try:
                    if lost := inventory.lost():  # also while a monitor runs, which may hang
                        reconciler.settle_lost(lost, notify=True)
                    self._look(jobs)
                    if waited >= _SWEEP_SEC:
                        waited = 0.0
                        _sweep(reconciler, self._settings)
                except (BatonError, OSError):
                    pass  # the registry or the disk may be back the next time
                clock.will_read_in(_LOOK_SEC)


def _sweep(reconciler: Reconciler, settings: Settings) -> None:
    lock = take_monitor_lock(settings) if os.path.isdir(settings.home) else None
    if lock is None:
        return  # a monitor runs, or there is nothing to check
    try:
        for _finding in reconciler.sweep():
            pass
    finally:
        os.close(lock)
