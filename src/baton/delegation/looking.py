"""Settle the jobs whose session on this machine was killed, when a command looks at jobs: then no monitor is needed to
know of it. The check reads the list of sessions and a file of /proc for each; only where it finds something, more is
loaded."""

from __future__ import annotations

import os
import time

from baton.core.clock import SECOND_NS, parse_time
from baton.core.job import TERMINAL, Status
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from baton.config import Settings
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs
    from baton.sessions.inventory import Inventory

_SAME_SEC = 1.0  # a holder is as old as its claim, as far as clocks tell


class Look:
    """Looks for killed sessions of one home, again and again; what it has read it does not read again."""

    def __init__(self, settings: Settings, inventory: Inventory | None = None) -> None:
        self._settings = settings
        self._inventory = inventory

    def settle(self, jobs: Jobs) -> Looked:
        """Requeue or fail each job whose session was killed. No error of it is raised: the caller wants to look."""
        from baton.core.errors import BatonError

        try:
            if self._inventory is None:
                from baton.sessions.inventory import Inventory

                self._inventory = Inventory(self._settings)
            lost = self._inventory.lost()
            if not lost:
                return _NOTHING
            from baton.delegation.reconcile import Reconciler

            held = list(dict.fromkeys(each.job_id for each in lost if each.job_id is not None))
            running = [job for job in map(jobs.get_job, held) if job.status is Status.RUNNING]
            problems = Reconciler(self._settings, jobs, self._inventory).settle_lost(lost)
            return self._describe(jobs, running, problems)
        except (BatonError, OSError):
            return _NOTHING  # the list of sessions cannot be read: what the registry says is shown

    def _describe(self, jobs: Jobs, running: list[Job], problems: Mapping[str, str]) -> Looked:
        from baton.core.ending import describe_end
        from baton.delegation.reconcile import KILLED

        settled, unsettled = [], {}
        for before in running:
            job = jobs.get_job(before.job_id)
            if job.attempt != before.attempt or job.ended_by not in (None, "lost"):
                continue  # another process was faster, and knows more
            if job.status in TERMINAL:
                settled.append(describe_end(job))
            elif job.status is Status.PENDING:
                settled.append(f"job {job.job_id}: {KILLED}; it is pending again, as it has attempts left")
            elif why := problems.get(job.job_id):
                unsettled[job.job_id] = f"{KILLED}, and that could not be recorded: {why}"
        return Looked(settled=tuple(settled), unsettled=unsettled)


class Looked(Value):
    """What a look has found. `settled` says of each job what became of it and what to type next; `unsettled` says of
    each job that still counts as running, because that could not be changed, why nothing is known of it."""

    settled: tuple[str, ...] = ()
    unsettled: Mapping[str, str] = {}


_NOTHING = Looked()


def settle_lost(settings: Settings, jobs: Jobs, say: Callable[[str], object] = lambda _line: None) -> Mapping[str, str]:
    """Settle the jobs of this home whose session was killed, and `say` what became of each. Return the others of them:
    each with why nothing is known of it."""
    found = Look(settings).settle(jobs)
    for line in found.settled:
        say(f"baton: {line}")
    return found.unsettled


def may_be_lost(settings: Settings, job: Job) -> bool:
    """Return whether it is worth to look for killed sessions, for the verbs that agents call in loops: not while the
    process that has claimed the job runs, by all that its record tells."""
    if job.status is not Status.RUNNING or job.claimed_by is None:
        return False
    host, _, holder = job.claimed_by.partition(":")
    pid = holder.rpartition(":")[2]
    if host != settings.host or not pid.isdecimal() or job.deadline_at is None:
        return host == settings.host
    from baton.sessions.processes import started_at

    started = started_at(int(pid))
    if started is None:
        return True
    age_sec = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    claimed_ns = parse_time(job.deadline_at) - job.timeout_sec * SECOND_NS
    return age_sec + _SAME_SEC < (time.time_ns() - claimed_ns) / SECOND_NS
