"""Move every job from one registry to another, without losing any.

The new registry takes effect as a whole, after it was compared with the old one job by job; only then the old one is
set aside. Until that moment an interruption leaves the old registry in use, and the migration can be run again.
"""

import os
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest

from baton.core.clock import SECOND_NS, parse_time
from baton.core.errors import InvalidRecord, MigrationFailed
from baton.core.job import Job
from baton.registry import LOCAL_SCHEMES, MOVED_NOTE
from baton.registry.contract import Entry
from baton.registry.entries import put_entries, read_entries
from baton.registry.verbs import Registry
from baton.storage.files import replace_file

_SHOWN = 10
_CLOCKS_DIFFER_NS = 3600 * SECOND_NS  # of the database and this host, or of this host before and after it was set
_Exported = Entry | InvalidRecord


class LiveHolders(MigrationFailed):
    """Processes work on jobs of the old registry, to which they could not report after the migration."""


def live_holders(registry: Registry, host: str) -> list[Job]:
    """Return the running jobs whose holder may be alive: its lease has not expired, or it has none and is not a process
    of this host that has ended."""
    return [job for job, expired in registry.holders() if _may_live(job, host, expired=expired)]


def _may_live(job: Job, host: str, *, expired: bool) -> bool:
    if job.lease_expires_at is not None:
        return not expired
    there, _, pid = (job.claimed_by or "").rpartition(":")
    here = there == host or there.startswith(f"{host}:")
    if not (here and pid.isdecimal()):
        return True
    began_ns = _began_ns(pid)
    # The kernel reuses pids: a process that began after the last change of the job is another one.
    return began_ns is not None and began_ns < parse_time(job.updated_at) + _CLOCKS_DIFFER_NS


def _began_ns(pid: str) -> int | None:
    """Return when a process began, as nanoseconds since 1970; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None
    since_boot_ns = ticks * SECOND_NS // os.sysconf("SC_CLK_TCK")
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot_ns


def migrate(
    source: Registry,
    target: Registry,
    progress: Callable[[int], None] = lambda _count: None,
    *,
    host: str | None = None,
) -> tuple[int, str]:
    """Return how many jobs moved, and the place of the old registry. `host` is the name of this host in holders; None:
    the caller knows that no process holds a job."""
    same_lock = source.lock_path is not None and source.lock_path == target.lock_path
    with source.freeze():
        if live := [] if host is None else live_holders(source, host):  # guard: migrate-under-holders
            names = ", ".join(f"{job.job_id} (held by {job.claimed_by})" for job in live[:_SHOWN])
            more = f" and {len(live) - _SHOWN} more" if len(live) > _SHOWN else ""
            raise LiveHolders(
                f"jobs are running: {names}{more}; let them end, or let --drain wait for them; nothing was migrated"
            )
        with target.importing(locked=same_lock) as tx:
            _refuse_other_jobs(source, target)
            put_entries(tx, _valid_entries(source, progress))
            count = _compare(source.export(), read_entries(tx, tx.ids()))
        for registry in (target, source):  # the folder of the target may hold the note of an earlier move
            if registry.lock_path is not None:
                _note_move(os.path.dirname(registry.lock_path), target.url)
        return count, source.set_aside()


def finish_interrupted(current: Registry, leftover: Registry) -> str | None:
    """Set aside the old registry of a migration to `current` that was interrupted at its end. Return None when there is
    none, or when `leftover` holds jobs that `current` does not."""
    if leftover.url == current.url:
        return None
    with current.freeze():
        ids = _ids(leftover)
        return leftover.set_aside() if ids and ids <= _ids(current) else None


def _refuse_other_jobs(source: Registry, target: Registry) -> None:
    """Refuse a target that holds anything but copies, which an interrupted migration left."""
    there = {_id(each): each for each in target.left_copies()}
    for each in source.export() if there else ():
        if there.get(_id(each)) == each:
            del there[_id(each)]
    if there:
        raise MigrationFailed(
            f"{target.where} already holds jobs that are not, or not as they are there, in {source.where}, "
            f"{min(there)} among them; migrate into an empty registry"
        )


def _note_move(folder: str, url: str) -> None:
    """Write that the registry of this folder is at that url now: the next command uses that one, and a process that has
    the old one open is refused. A place inside the folder is noted relative to it, so that the folder can be moved."""
    scheme, _, path = url.partition(":")
    inside = os.path.relpath(path, folder)
    if scheme == "file" and inside == ".":
        return  # the import has left the note of a folder that holds its registry itself
    if scheme in LOCAL_SCHEMES and not inside.startswith(".."):
        url = f"{scheme}:{inside}"
    replace_file(os.path.join(folder, MOVED_NOTE), url.encode() + b"\n")


def _ids(registry: Registry) -> set[str]:
    return {_id(each) for each in registry.export()}


def _id(each: _Exported) -> str:
    return each.job_id if isinstance(each, InvalidRecord) else each.job.job_id


def _valid_entries(source: Registry, progress: Callable[[int], None]) -> Iterator[Entry]:
    for count, each in enumerate(source.export(), start=1):
        if isinstance(each, InvalidRecord):
            raise MigrationFailed(f"{each}; fix or move that record first, nothing was migrated")
        yield each
        progress(count)


def _compare(old_entries: Iterator[_Exported], new_entries: Iterator[_Exported]) -> int:
    count = 0
    for old, new in zip_longest(old_entries, new_entries):
        if old != new:
            raise MigrationFailed(
                f"{getattr(old or new, 'job', old or new)!r} differs between the two registries; nothing was migrated"
            )
        count += 1
    return count
