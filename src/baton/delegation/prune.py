"""Remove what jobs that ended long ago have left: records, audit logs, output files, session and listener files.

Never removed: a job with unsent events and everything of it, sessions that live or that the user may resume, work
folders, and files that baton did not write.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from functools import partial

from baton.config import Settings
from baton.core.errors import InvalidRecord, JobNotFound
from baton.core.fields import JOB_ID
from baton.core.job import TERMINAL, Job
from baton.core.lifecycle import may_prune
from baton.core.value import Value
from baton.history.log import job_log_path
from baton.history.prune import ended_logs, remove_log
from baton.jobs.output import OUTPUTS, PART
from baton.jobs.verbs import Jobs
from baton.registry.contract import JobFilter
from baton.sessions.inventory import Inventory
from baton.sessions.prune import Verdict, prune_sessions
from baton.storage.files import outside
from baton.storage.removal import entries_of, is_older, remove_known, remove_sized
from baton.transport.listener_ids import remove_unused
from baton.transport.publish import KEEP_RETAINED_NS, clear_retained

_NAMING_A_REGISTRY = ("registry", "registry_dir")
_OUTPUT = re.compile(rf"({JOB_ID.pattern})\.subscriber\.out")
_OUTPUT_FOLDER = re.compile(f"({JOB_ID.pattern})")


class Pruned(Value):
    """What one step removed, or would remove. `size` is what that took on disk; a registry uses its room again, so
    that the records are not counted. `kept` were left on purpose; `errors` say why others could not be removed."""

    what: str
    count: int
    size: int = 0
    kept: int = 0
    errors: tuple[str, ...] = ()


class Prune:
    """One prune of everything that ended before a time. `stopped_too` removes also sessions that could be resumed;
    `dry_run` only looks."""

    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        inventory: Inventory,
        before_ns: int,
        *,
        stopped_too: bool = False,
        dry_run: bool = False,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._inventory = inventory
        self._before_ns = before_ns
        self._stopped_too = stopped_too
        self._dry_run = dry_run
        self._ended = set(jobs.prunable(before_ns))

    def run(self) -> list[Pruned]:
        """Remove what ended. The records go last: they name what belongs to them, also after an interruption."""
        steps = [self._remove_logs(), self._remove_outputs(), *self._remove_sessions(), self._remove_listener_files()]
        return [self._remove_jobs(), *steps]

    def _remove_jobs(self) -> Pruned:
        unsent = {event.job_id for event in self._jobs.unsent_events()}
        kept = [job for job_id in unsent if (job := self._find(job_id)) and may_prune(job, self._before_ns)]
        errors = [] if self._dry_run else self._clear_retained()
        count = len(self._ended if self._dry_run else self._jobs.prune(self._before_ns))
        return Pruned(what="jobs", count=count, kept=len(kept), errors=tuple(errors))

    def _clear_retained(self) -> list[str]:
        """Clear the last messages that the monitor would clear later: it finds them by the records."""
        if not self._ended:
            return []
        recent = JobFilter(statuses=TERMINAL, created_from_ns=time.time_ns() - KEEP_RETAINED_NS)
        with_events = [job for job in self._jobs.each_job(recent) if job.last_seq and job.job_id in self._ended]
        unreachable: dict[str, str] = {}
        clear_retained(self._settings, with_events, unreachable)
        return [f"the last messages of removed jobs stay at their broker: {why}" for why in unreachable.values()]

    def _remove_logs(self) -> Pruned:
        logs_dir = self._jobs.logs_dir
        ended = {job_id for job_id in self._ended if os.path.lexists(job_log_path(job_id, logs_dir))}
        # Elsewhere, other homes may have their audit logs, too.
        if not outside(logs_dir, self._settings.home):  # guard: prune-shared-logs
            ended |= {job_id for job_id in ended_logs(logs_dir, self._before_ns) if self._is_gone(job_id)}
        return self._remove("audit logs", [partial(remove_log, job_id, logs_dir) for job_id in sorted(ended)])

    def _remove_outputs(self) -> Pruned:
        folder = os.path.join(self._settings.home, OUTPUTS)
        outputs = [partial(remove_sized, path) for path in self._left_in(self._settings.registry_dir, _OUTPUT)]
        if not os.path.islink(folder):  # guard: prune-output-link
            outputs += [partial(remove_known, path, PART) for path in self._left_in(folder, _OUTPUT_FOLDER)]
        return self._remove("output files", outputs)

    def _left_in(self, folder: str, names: re.Pattern[str]) -> list[str]:
        """Return what a folder holds of jobs that go now, or that are gone for as long as that."""
        return [
            entry.path
            for match, entry in entries_of(folder, names)
            if match[1] in self._ended or (is_older(entry, self._before_ns) and self._is_gone(match[1]))
        ]

    def _remove_sessions(self) -> list[Pruned]:
        judged = list(
            prune_sessions(
                self._inventory,
                self._settings.host,
                self._before_ns,
                stopped_too=self._stopped_too,
                is_gone=self._is_gone,
                dry_run=self._dry_run,
            )
        )
        removed = [each for each in judged if each.verdict in (Verdict.ENDED, Verdict.ORPHAN)]
        sessions = Pruned(
            what="sessions",
            count=len(removed),
            size=sum(each.size for each in removed),
            kept=sum(each.verdict is Verdict.RESUMABLE for each in judged),
            errors=tuple(each.error for each in removed if each.error is not None),
        )
        kept = {each.session_id for each in self._inventory.all()} - {each.session_id for each in removed}
        sizes = self._inventory.prune_archive(self._before_ns, kept, dry_run=self._dry_run)
        return [sessions, Pruned(what="archived sessions", count=len(sizes), size=sum(sizes))]

    def _remove_listener_files(self) -> Pruned:
        sizes = remove_unused(self._settings.state_dir, self._before_ns, dry_run=self._dry_run)
        return Pruned(what="listener files", count=len(sizes), size=sum(sizes))

    def _remove(self, what: str, removals: Iterable[Callable[..., int]]) -> Pruned:
        sizes, errors = [], []
        for remove in removals:
            try:
                sizes.append(remove(dry_run=self._dry_run))
            except OSError as error:
                if not isinstance(error, FileNotFoundError):  # another prune has just removed it
                    errors.append(str(error))
        return Pruned(what=what, count=len(sizes), size=sum(sizes), errors=tuple(errors))

    def _is_gone(self, job_id: str) -> bool:
        """Return whether a job goes now, or is not in the registry any more: an earlier prune, or one on another host,
        removed it and left what is here. A registry that the command line names may be another than the home's."""
        if job_id in self._ended or any(self._settings.sources[name].startswith("--") for name in _NAMING_A_REGISTRY):
            return job_id in self._ended
        try:
            self._jobs.get_job(job_id)
        except JobNotFound:
            return True
        except InvalidRecord:
            return False
        return False

    def _find(self, job_id: str) -> Job | None:
        try:
            return self._jobs.get_job(job_id)
        except (InvalidRecord, JobNotFound):
            return None


def size_text(size: int) -> str:
    """Return a number of bytes in words: `12 kB`, `1.5 MB`."""
    return f"{size / 10**6:.1f} MB" if size >= 10**6 else f"{size // 1000} kB"
