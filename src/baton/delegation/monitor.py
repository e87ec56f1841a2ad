"""One sweep over everything that can go wrong while nobody looks: what is unsent, late, silent, dead or left over.

Each step looks first and acts on what it sees twice; it touches only what baton started, on this machine; and it is
safe to run beside another. A `Finding` says what was seen and what was done about it, or would be.
"""

from __future__ import annotations

import json
import os
import time

from baton.core.clock import SECOND_NS, parse_time
from baton.core.errors import (
    BatonError,
    InvalidRecord,
    JobNotFound,
    OwnershipLost,
    RegistryUnavailable,
    TmuxUnavailable,
)
from baton.core.job import TERMINAL, Status
from baton.core.lifecycle import expired_lease_error
from baton.core.limits import Limit, exceeded_limit
from baton.core.value import Value
from baton.delegation.own_queue import submitter_is_gone
from baton.live_agents import open_directory, ownership
from baton.registry.contract import JobFilter
from baton.sessions.adopt import LeftOver
from baton.sessions.ending import end_session, fail_job
from baton.sessions.live_agent_cleanup import Action, cleanup
from baton.sessions.processes import end_processes, marked_processes
from baton.sessions.session import State, session_name
from baton.sessions.stop import StopMode, fail_job_in, stop_session
from baton.sessions.tmux import NoServer, Tmux
from baton.storage.files import read_file, replace_file
from baton.transport.publish import FAILURES, clear_retained, describe_failure, send_unsent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Final

    from baton.config import Settings
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs
    from baton.sessions.inventory import Inventory
    from baton.sessions.live_agent_cleanup import Decision
    from baton.sessions.session import Session
    from baton.sessions.tmux import Pane

# The job's own runner enforces its limits; we come after it, for jobs whose runner does not.
_SLACK_NS: Final = 15 * SECOND_NS
_LOOK_AGAIN_SEC: Final = 0.3
_STARTING_SEC: Final = 30.0
_LET_IT_END_SEC: Final = 30.0
_ORPHANS_SEC: Final = 30.0
_KEEP_RETAINED_NS: Final = 7 * 86400 * SECOND_NS
_CLEAN_EVERY_NS: Final = 3600 * SECOND_NS


class Finding(Value):
    """`what` names the job, session or agent; `done` is what was done about it, None when it is only told."""

    what: str
    why: str
    done: str | None


class Monitor:
    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        inventory: Inventory,
        *,
        dry_run: bool = False,
        confirm_sec: float = 10.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`confirm_sec`: how long a job must have been over its limits before our eyes. The date alone may have jumped,
        and after a night's sleep every agent looks silent."""
        self._settings = settings
        self._jobs = jobs
        self._inventory = inventory
        self._dry_run = dry_run
        self._confirm_sec = confirm_sec
        self._sleep = sleep
        self._over: dict[tuple[str, int, int], float] = {}  # job, attempt, last event: when it was first seen late
        self._watched: set[str] = set()  # jobs in sessions that live here
        self._orphans_at: float | None = None
        self._retained_again_at = 0.0
        self.registry_failed = False  # in the last sweep: it could not look at all

    def sweep(self) -> Iterator[Finding]:
        """Every step once. A step that fails is told, and the others go on."""
        self.registry_failed = False
        for step in (
            self._expired_leases,
            self._sessions,
            self._limits,
            self._orphans,
            self._live_agents,
            self._unsent,
            self._retained,
        ):
            try:
                yield from step()
            except (BatonError, OSError) as error:
                self.registry_failed |= isinstance(error, RegistryUnavailable)
                yield Finding(what=step.__name__.strip("_").replace("_", " "), why=str(error), done=None)

    def reconcile(self) -> Iterator[Finding]:
        """What keeps whoever waits from waiting for ever: sessions that died without a word, runners that hang, and
        jobs over their limits."""
        yield from self._sessions()
        yield from self._expired_leases()
        yield from self._limits()

    # -- jobs ----------------------------------------------------------------------------------------------------

    def _expired_leases(self) -> Iterator[Finding]:
        if self._dry_run:
            for job in self._jobs.registry.expired_leases(limit=1000):
                done = "requeued" if expired_lease_error(job) is None else "ended as error"
                yield self._did(f"job {job.job_id}", f"the lease of {job.claimed_by} ran out", done)
            return
        for change in self._jobs.expire_leases():
            why = f"the lease of {change.before.claimed_by} ran out"
            yield Finding(what=f"job {change.after.job_id}", why=why, done=f"{change.after.status}")

    def _limits(self) -> Iterator[Finding]:
        """Jobs that take too long, or say nothing for too long, where no runner watches: a runner keeps these limits
        itself, by clocks that do not jump, and when it hangs, its lease ends."""
        now_ns = time.time_ns()
        before, self._over = self._over, {}
        for job in self._with(Status.RUNNING):
            why = self._exceeded_limit(job, now_ns)
            if why is None or job.job_id in self._watched or self._is_held_elsewhere(job):
                continue
            key = (job.job_id, job.attempt, job.last_seq)
            self._over[key] = before.get(key, time.monotonic())
            if time.monotonic() - self._over[key] < self._confirm_sec:
                continue
            detail = f"ended by the monitor: {why}"
            if not self._dry_run and not self._fail(job, job.attempt, detail):
                continue
            yield self._did(f"job {job.job_id}", why, "ended as error")

    def _exceeded_limit(self, job: Job, now_ns: int) -> str | None:
        limit = exceeded_limit(
            now_ns,
            deadline=parse_time(job.deadline_at) if job.deadline_at else None,
            silent_since=parse_time(job.last_event_at) if job.last_event_at else None,
            idle_timeout=job.idle_timeout_sec * SECOND_NS,
            slack=_SLACK_NS,
            last_event=lambda: self._jobs.last_event(job),
        )
        if limit is Limit.TIME:
            return f"it took longer than {job.timeout_sec} s"
        return f"nothing was heard from it for more than {job.idle_timeout_sec} s" if limit is Limit.SILENCE else None

    def _is_held_elsewhere(self, job: Job) -> bool:
        """By somebody on another machine, whose clock may be another: its own monitor sees to it, and the lease."""
        return job.lease_expires_at is not None and not (job.claimed_by or "").startswith(f"{self._settings.host}:")

    def _orphans(self) -> Iterator[Finding]:
        """Jobs that were never begun, or handed back, and whose submitter is no longer there to begin them."""
        until_ns = time.time_ns() - int(_STARTING_SEC * SECOND_NS)
        if self._orphans_at is not None and time.monotonic() - self._orphans_at < _ORPHANS_SEC:
            return
        self._orphans_at = time.monotonic()
        for job in self._with(Status.PENDING, created_until_ns=until_ns):
            if not submitter_is_gone(job.agent_session, self._settings.host) or self._is_being_begun(job):
                continue
            why = "whoever submitted it ended before it began"
            if self._dry_run or self._fail(job, None, f"ended by the monitor: {why}; `baton retry` it"):
                yield self._did(f"job {job.job_id}", why, "ended as error")

    def _fail(self, job: Job, attempt: int | None, detail: str) -> bool:
        return fail_job(self._settings, self._jobs, job, attempt, detail, notify=False)

    def _is_being_begun(self, job: Job) -> bool:
        return self._inventory.made_for(job.job_id) is not None

    def _with(self, status: Status, created_until_ns: int | None = None) -> Iterator[Job]:
        return self._jobs.each_job(JobFilter(statuses=[status], created_until_ns=created_until_ns))

    def _unsent(self) -> Iterator[Finding]:
        waiting: dict[str, int] = {}
        for event in self._jobs.unsent_events():
            waiting[event.job_id] = waiting.get(event.job_id, 0) + 1
        away: set[str] = set()
        for job_id, count in waiting.items():
            what = f"job {job_id}"
            why = f"{count} event{'s' if count > 1 else ''} not sent yet"
            if self._dry_run:
                yield self._did(what, why, "sent")
                continue
            try:
                job = self._jobs.get_job(job_id)
            except (InvalidRecord, JobNotFound) as error:
                yield Finding(what=what, why=f"{why}: {error}", done=None)
                continue
            if job.broker.key() in away:
                continue
            try:
                send_unsent(self._jobs, self._settings, job, tries=1)
                yield Finding(what=what, why=why, done="sent")
            except FAILURES as error:
                away.add(job.broker.key())  # its others go the same way; the next sweep tries again
                yield Finding(what=what, why=f"{why}: {describe_failure(error)}", done=None)

    def _retained(self) -> Iterator[Finding]:
        """The last word of a job stays with the broker for whoever comes late, but not for ever."""
        path = os.path.join(self._inventory.home, "monitor.json")
        until_ns = time.time_ns() - _KEEP_RETAINED_NS
        given_up_ns = until_ns - 4 * _KEEP_RETAINED_NS
        since_ns = _noted(path, given_up_ns)
        if until_ns - since_ns < _CLEAN_EVERY_NS or time.monotonic() < self._retained_again_at:
            return
        ended = JobFilter(statuses=TERMINAL, created_from_ns=since_ns, created_until_ns=until_ns)
        count = 0
        away: dict[str, str] = {}
        for page in self._jobs.pages(ended):
            count += len(page.jobs) if self._dry_run else clear_retained(self._settings, page.jobs, away)
        for why in away.values():
            yield Finding(what="retained", why=why, done=None)
        if away:
            self._retained_again_at = time.monotonic() + _CLEAN_EVERY_NS / SECOND_NS
        if not self._dry_run and os.path.isdir(self._inventory.home):
            # A broker that is away is asked again for some weeks, not for ever.
            noted_ns = max(since_ns, given_up_ns) if away else until_ns
            replace_file(path, json.dumps({"retained_until_ns": noted_ns}).encode())
        if count:
            yield self._did(
                "broker", f"{count} job{'s' if count > 1 else ''} ended long ago", "cleared of their last messages"
            )

    # -- sessions ------------------------------------------------------------------------------------------------

    def _sessions(self) -> Iterator[Finding]:
        ours = [each for each in self._inventory.all(State.RUNNING) if each.host == self._settings.host]
        self._watched = set()
        if not ours:
            return
        panes = self._panes(ours)
        missing = [each for each in ours if each.socket in panes and not _lives(each, panes[each.socket])]
        if missing:
            self._sleep(_LOOK_AGAIN_SEC)
            again = self._panes(missing)
            for session in missing:
                if session.socket in again and not _lives(session, again[session.socket]):  # guard: second-look
                    yield from self._one_by_one(session, self._bury)
        for session in ours:
            if session not in missing:
                if session.job_id is not None:
                    self._watched.add(session.job_id)
                yield from self._one_by_one(session, self._look_at)

    def _one_by_one(self, session: Session, do: Callable[[Session], Iterator[Finding]]) -> Iterator[Finding]:
        """What is wrong with one session keeps nobody from the others."""
        try:
            yield from do(session)
        except (BatonError, OSError) as error:
            yield Finding(what=f"session {session.name}", why=str(error), done=None)

    def _panes(self, sessions: list[Session]) -> dict[str, dict[str, Pane]]:
        """By socket, what tmux has there: one call each. A server that does not answer tells nothing; one that is not
        there has nothing."""
        found: dict[str, dict[str, Pane]] = {}
        for socket in {session.socket for session in sessions}:
            try:
                found[socket] = {pane.pane_id: pane for pane in Tmux(socket).panes()}
            except NoServer:
                found[socket] = {}
            except TmuxUnavailable:
                continue
        return found

    def _bury(self, session: Session) -> Iterator[Finding]:
        """A session that is gone from tmux, twice seen: what its agent left running is ended, its job is failed."""
        if session.pane_pid is None and _age_sec(session.updated_at) < _STARTING_SEC:
            return  # it is being made at this moment
        current = self._inventory.find(session.session_id)
        if current is None or current.state is not State.RUNNING or current.pane_pid != session.pane_pid:
            return  # it ended by itself meanwhile, or was brought back
        if session.has_live_runner():
            return  # tmux is hidden from us, or its socket was moved: whoever runs the agent lives
        why = "its session is gone from tmux"
        if self._dry_run:
            yield self._did(f"session {session.name}", why, "terminated, and its job failed")
            return
        ended = end_processes(lambda: marked_processes(session.session_id), grace_sec=2.0)
        fail_job_in(self._settings, self._jobs, current, "the agent's session died")
        end_session(self._settings, self._inventory, current, State.TERMINATED, reason=why)
        more = f", {len(ended)} left-over process{'es' if len(ended) > 1 else ''} ended" if ended else ""
        yield Finding(what=f"session {session.name}", why=why, done=f"terminated{more}")

    def _look_at(self, session: Session) -> Iterator[Finding]:
        """A session that lives, though the job it was made for is over, or in other hands."""
        if session.made_for is None:
            return
        job = self._jobs.get_job(session.made_for)
        if job.status is Status.RUNNING and session.name in _names_of_earlier_attempts(job):
            yield from self._stop(session, f"attempt {job.attempt} of its job is at work elsewhere", StopMode.HARD)
        if job.status not in TERMINAL or _age_sec(job.finished_at or job.updated_at) < _LET_IT_END_SEC:
            return
        yield from self._stop(session, f"the job it was made for is {job.status}", StopMode.GRACEFUL)

    def _stop(self, session: Session, why: str, mode: StopMode) -> Iterator[Finding]:
        if not self._dry_run:
            stop_session(self._settings, self._inventory, self._jobs, session.name, mode=mode, reason=why)
        yield self._did(f"session {session.name}", why, "stopped")

    # -- live agents ---------------------------------------------------------------------------------------------

    def _live_agents(self) -> Iterator[Finding]:
        """Leases of sessions that live are kept up; records of those that do not are cleaned up."""
        with open_directory(self._settings) as directory:
            for session in self._inventory.all(State.RUNNING):
                if session.host != self._settings.host or session.pane_pid is None:
                    continue
                record = directory.get(session.agent_id).record
                if record is None or record.generation_id != session.generation_id:
                    continue
                left_sec = (record.expires_ns() - directory.now_ns()) / 10**9
                if left_sec > ownership.DEFAULT_LEASE_SEC / 2 or not session.has_live_runner():
                    continue
                if not self._dry_run:
                    lease_ns = ownership.DEFAULT_LEASE_SEC * 10**9
                    try:
                        ownership.refresh(directory, session.agent_id, session.generation_id, lease_ns=lease_ns)
                    except OwnershipLost:
                        continue
                yield self._did(f"agent {session.agent_name}", "its lease is half over", "refreshed")
            for each in cleanup(self._settings, directory, dry_run=self._dry_run):
                yield from self._cleaned(each)

    def _cleaned(self, each: Decision | LeftOver) -> Iterator[Finding]:
        if isinstance(each, LeftOver):
            what = f"manifest {each.path}"
            if each.error is None:
                yield self._did(what, "it is of no agent", "removed")
            else:
                yield Finding(what=what, why=f"it is of no agent, but could not be removed: {each.error}", done=None)
            return
        what = f"agent {each.entry.record.agent_name if each.entry.record else each.entry.agent_id}"
        if each.failed:
            yield Finding(what=what, why=each.why, done=None)
        elif each.action is not Action.KEEP:
            yield self._did(what, each.why, f"{each.action}d")

    def _did(self, what: str, why: str, done: str) -> Finding:
        return Finding(what=what, why=why, done=f"would be {done}" if self._dry_run else done)


def monitor_lock(inventory: Inventory) -> str:
    """Whoever holds this file's lock is the one that acts."""
    return os.path.join(inventory.home, "monitor.lock")


def _noted(path: str, default: int) -> int:
    try:
        return int(json.loads(read_file(path))["retained_until_ns"])
    except (OSError, ValueError, KeyError, TypeError):
        return default


def _lives(session: Session, panes: dict[str, Pane]) -> bool:
    pane = panes.get(session.pane_id or "")
    return pane is not None and pane.pid == session.pane_pid and not pane.dead


def _names_of_earlier_attempts(job: Job) -> list[str]:
    return [session_name(job.replace(attempt=number)) for number in range(1, job.attempt)]


def _age_sec(moment: str) -> float:
    return (time.time_ns() - parse_time(moment)) / 10**9
