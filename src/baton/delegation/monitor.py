"""Sweep over jobs, sessions, live agents and brokers, and fix what no other process can: see `reconcile` for jobs and
sessions. This module adds jobs without a submitter, leases of live agents, unsent events and old retained messages."""

import json
import os
from collections.abc import Callable, Iterator

from baton.core.clock import SECOND_NS
from baton.core.errors import InvalidRecord, JobNotFound, OwnershipLost
from baton.core.job import TERMINAL, Job, Status
from baton.core.limits import may_wait
from baton.delegation.attempts import submitter_is_dead
from baton.delegation.reconcile import Finding, Reconciler
from baton.history.log import read_object
from baton.live_agents import open_directory, ownership
from baton.live_agents.contract import Directory
from baton.registry.contract import JobFilter
from baton.sessions.adopt import LeftOver
from baton.sessions.live_agents import Action, Decision, cleanup
from baton.sessions.session import Session, State
from baton.storage.files import replace_file
from baton.transport.publish import KEEP_RETAINED_NS, clear_retained, send_unsent
from baton.transport.publisher_connection import FAILURES, describe_failure

_STARTING_NS = 30 * SECOND_NS
_ORPHANS_EVERY_NS = 30 * SECOND_NS
_NOTES = "monitor.json"
_CLEAN_EVERY_NS = 3600 * SECOND_NS
_LEASE_NS = ownership.DEFAULT_LEASE_SEC * SECOND_NS


class Monitor(Reconciler):
    """Runs the checks of `Reconciler`, and those that only a monitor runs."""

    _next_orphans_ns = 0
    _next_retained_ns = 0
    _orphans: frozenset[str] = frozenset()  # jobs that the last look found without a submitter

    def steps(self) -> dict[str, Callable[[], Iterator[Finding]]]:
        """Return the steps of a sweep, by name and in order."""
        return super().steps() | {
            "orphans": self._check_orphans,
            "live agents": self._check_live_agents,
            "unsent": self._send_unsent,
            "retained": self._clear_retained,
            "prune": self._prune,
        }

    def _check_orphans(self) -> Iterator[Finding]:
        """Start pending jobs again whose submitter has died, if an attempt of them was lost. End the others as errors
        when no worker takes them until the next look."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_orphans_ns:
            return
        self._next_orphans_ns = now_ns + _ORPHANS_EVERY_NS
        before, found = self._orphans, set()
        until_ns = self._clock.wall_ns() - _STARTING_NS
        submitted = JobFilter(statuses=[Status.PENDING], submitted=True, free=True, created_until_ns=until_ns)
        for job in self._jobs.each_job(submitted):
            if may_wait(job) or not submitter_is_dead(job, self._settings.host):
                continue  # `_start_waiting` starts those that have waited
            if self._last_session(job) is not None:
                yield from self._start_again(job)
            elif self._inventory.made_for(job.job_id) is None:  # else its session is being started
                found.add(job.job_id)
                if job.job_id in before or not self._confirm_ns:
                    yield from self._end_orphan(job)
        self._orphans = frozenset(found)

    def _end_orphan(self, job: Job) -> Iterator[Finding]:
        why = f"the process that submitted it ended {'and left it' if job.attempt else 'before it began'}"
        detail = f"ended by the monitor: {why}; `baton retry` it"
        if self._dry_run or self._attempts.fail(job, None, detail, ended_by="lost", notify=False):
            yield self._act(f"job {job.job_id}", why, "ended as error")

    def _check_live_agents(self) -> Iterator[Finding]:
        """Refresh the leases of live sessions, and remove the records of dead ones."""
        with open_directory(self._settings) as directory:
            yield from self._refresh_leases(directory)
            for each in cleanup(self._settings, directory, dry_run=self._dry_run):
                yield from self._report_cleanup(each)

    def _refresh_leases(self, directory: Directory) -> Iterator[Finding]:
        for session in self._inventory.all(State.RUNNING):
            if session.host != self._settings.host or session.pane_pid is None:
                continue
            record = directory.get(session.agent_id).record
            if record is None or record.generation_id != session.generation_id:
                continue
            if record.expires_ns() - directory.now_ns() > _LEASE_NS / 2 or not session.has_live_runner():
                continue
            if self._dry_run or _refresh(directory, session):
                yield self._act(f"agent {session.agent_name}", "its lease is half over", "refreshed")

    def _report_cleanup(self, each: Decision | LeftOver) -> Iterator[Finding]:
        if isinstance(each, LeftOver):
            what = f"manifest {each.path}"
            if each.error is None:
                yield self._act(what, "it is of no agent", "removed")
            else:
                yield Finding(what=what, why=f"it is of no agent, but could not be removed: {each.error}", done=None)
            return
        what = f"agent {each.entry.record.agent_name if each.entry.record else each.entry.agent_id}"
        if each.failed:
            yield Finding(what=what, why=each.why, done=None)
        elif each.action is not Action.KEEP:
            yield self._act(what, each.why, f"{each.action}d")

    def _send_unsent(self) -> Iterator[Finding]:
        waiting: dict[str, int] = {}
        for event in self._jobs.unsent_events():
            waiting[event.job_id] = waiting.get(event.job_id, 0) + 1
        unreachable: set[str] = set()
        for job_id, count in waiting.items():
            what = f"job {job_id}"
            why = f"{count} event{'s' if count > 1 else ''} not sent yet"
            if self._dry_run:
                yield self._act(what, why, "sent")
                continue
            try:
                job = self._jobs.get_job(job_id)
            except (InvalidRecord, JobNotFound) as error:
                yield Finding(what=what, why=f"{why}: {error}", done=None)
                continue
            if job.broker.key() in unreachable:
                continue
            try:
                send_unsent(self._jobs, self._settings, job, tries=1)
                yield Finding(what=what, why=why, done="sent")
            except FAILURES as error:
                unreachable.add(job.broker.key())  # also for other jobs, until the next sweep
                yield Finding(what=what, why=f"{why}: {describe_failure(error)}", done=None)

    def _clear_retained(self) -> Iterator[Finding]:
        """Clear the last message of each job from its broker, a week after the job was registered."""
        until_ns = self._clock.wall_ns() - KEEP_RETAINED_NS
        give_up_ns = until_ns - 4 * KEEP_RETAINED_NS
        since_ns = self._read_note("retained_until_ns", give_up_ns)
        if until_ns - since_ns < _CLEAN_EVERY_NS or self._clock.monotonic_ns() < self._next_retained_ns:
            return
        ended = JobFilter(statuses=TERMINAL, created_from_ns=since_ns, created_until_ns=until_ns)
        count = 0
        unreachable: dict[str, str] = {}
        for page in self._jobs.pages(ended):
            count += len(page.jobs) if self._dry_run else clear_retained(self._settings, page.jobs, unreachable)
        for why in unreachable.values():
            yield Finding(what="retained", why=why, done=None)
        if unreachable:
            self._next_retained_ns = self._clock.monotonic_ns() + _CLEAN_EVERY_NS
        # A broker that is unreachable is tried again for some weeks, not for ever.
        self._note("retained_until_ns", max(since_ns, give_up_ns) if unreachable else until_ns)
        if count:
            yield self._act(
                "broker", f"{count} job{'s' if count > 1 else ''} ended long ago", "cleared of their last messages"
            )

    def _prune(self) -> Iterator[Finding]:
        """Remove what ended longer ago than the keep time, once an hour, if the user has set a keep time."""
        days, now_ns = self._settings.keep_days, self._clock.wall_ns()
        if days is None or 0 <= now_ns - self._read_note("pruned_ns", 0) < _CLEAN_EVERY_NS:
            return
        from baton.delegation.prune import Prune, size_text

        before_ns = now_ns - days * 86400 * SECOND_NS
        for step in Prune(self._settings, self._jobs, self._inventory, before_ns, dry_run=self._dry_run).run():
            for error in step.errors:
                yield Finding(what=step.what, why=error, done=None)
            if step.count:
                room = f" ({size_text(step.size)})" if step.size else ""
                yield self._act(step.what, f"ended more than {days} days ago", f"removed: {step.count}{room}")
        self._note("pruned_ns", now_ns)

    def _read_note(self, name: str, default: int) -> int:
        """Return a time that a monitor of this home has noted."""
        value = (read_object(os.path.join(self._inventory.home, _NOTES)) or {}).get(name)
        return value if isinstance(value, int) else default

    def _note(self, name: str, ns: int) -> None:
        path = os.path.join(self._inventory.home, _NOTES)
        if not self._dry_run and os.path.isdir(self._inventory.home):
            replace_file(path, json.dumps((read_object(path) or {}) | {name: ns}).encode(), durable=False)


def _refresh(directory: Directory, session: Session) -> bool:
    """Refresh the lease of the session's name; return False if another generation owns the name."""
    try:
        ownership.refresh(directory, session.agent_id, session.generation_id, lease_ns=_LEASE_NS)
    except OwnershipLost:
        return False
    return True
