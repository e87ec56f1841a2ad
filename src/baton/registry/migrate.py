"""Moving every job from one registry to another, losing nothing.

The new registry is built where nobody sees it, compared job by job with the old one, and then put in its
place; only then the old one is set aside. Until that moment an interruption leaves the old registry in use,
and the migration is simply run again.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import zip_longest
from typing import TYPE_CHECKING

from baton.core.errors import InvalidRecord, MigrationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton.registry.contract import Registry
    from baton.registry.results import Entry


def migrate(
    source: Registry, target: Registry, progress: Callable[[int], None] = lambda _count: None
) -> tuple[int, str]:
    """Returns how many jobs moved and where the old registry was put."""
    with source.freeze():
        same_lock = source.lock_path is not None and source.lock_path == target.lock_path
        with nullcontext() if same_lock else target.freeze():
            _make_room(source, target)
            staging = target.staging()
            staging.import_entries(_counted(_sound(source), progress))
            count = _compare(source, staging)
            target.adopt(staging)
        target.mark_moved(target.url)  # its folder may carry a note of an earlier move
        source.mark_moved(target.url)
        return count, source.set_aside()


def finish_interrupted(current: Registry, leftover: Registry) -> str | None:
    """Sets aside what a migration to `current` left behind when it was interrupted at its very end. None when
    nothing was left, or when `leftover` holds jobs that `current` does not."""
    if leftover.url == current.url:
        return None
    with current.freeze():
        ids = _ids(leftover)
        return leftover.set_aside() if ids and ids <= _ids(current) else None


def _make_room(source: Registry, target: Registry) -> None:
    """The target holds nothing, or only what an earlier, interrupted run put there."""
    there = {_id(each): each for each in target.export()}
    if not there:
        return
    for each in source.export():
        if there.get(_id(each)) == each:
            del there[_id(each)]
    if there:
        raise MigrationFailed(
            f"{target.where} already holds jobs that are not, or not as they are there, in {source.where}, "
            f"{min(there)} among them; migrate into an empty registry"
        )
    target.set_aside()


def _ids(registry: Registry) -> set[str]:
    return {_id(each) for each in registry.export()}


def _id(each: Entry | InvalidRecord) -> str:
    return each.job_id if isinstance(each, InvalidRecord) else each.job.job_id


def _sound(source: Registry) -> Iterator[Entry]:
    for each in source.export():
        if isinstance(each, InvalidRecord):
            raise MigrationFailed(f"{each}; mend or move that record first, nothing was migrated")
        yield each


def _counted(entries: Iterator[Entry], progress: Callable[[int], None]) -> Iterator[Entry]:
    for count, entry in enumerate(entries, start=1):
        yield entry
        progress(count)


def _compare(source: Registry, staging: Registry) -> int:
    count = 0
    for old, new in zip_longest(source.export(), staging.export()):
        if old != new:
            raise MigrationFailed(
                f"{getattr(old or new, 'job', old or new)!r} differs between the two registries; nothing was migrated"
            )
        count += 1
    return count
