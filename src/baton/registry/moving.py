"""The verbs of a registry that empty, move and upgrade it: for `migrate` and the first write of a newer version."""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import contextmanager

from baton.core.errors import RegistryBusy
from baton.core.job import Status
from baton.registry.contract import JobFilter
from baton.registry.recording import DRAINING, Recording
from baton.registry.schema import VERSION
from baton.storage import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from baton.core.errors import InvalidRecord
    from baton.core.job import Job
    from baton.registry.contract import Entry, Transaction


class MovingVerbs(Recording):
    """What `Registry` offers to move all its jobs elsewhere, or to bring its schema up to date."""

    @abstractmethod
    def importing(self, *, locked: bool = False) -> AbstractContextManager[Transaction]:
        """Begin a transaction that only puts entries, and returns those. `locked`: the caller has frozen a registry
        with the same `lock_path`."""

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Keep every process from claiming a job, until the block ends or this process dies."""
        assert self.lock_path is not None
        folder = os.path.dirname(self.lock_path)
        files.make_store_dir(folder)
        lock = files.try_lock(os.path.join(folder, DRAINING))
        if lock is None:
            raise RegistryBusy(f"{self.where} is being drained by another process")
        try:
            yield
        finally:
            files.remove_file(os.path.join(folder, DRAINING))
            os.close(lock)

    def holders(self) -> list[tuple[Job, bool]]:
        """Return the running jobs that a process has claimed, each with whether its lease has expired."""
        with self._reading() as tx:
            running = tx.page(JobFilter(statuses=[Status.RUNNING]), 10**9, None).jobs
            return [(job, self._lease_expired(job)) for job in running if job.claimed_by is not None]

    @abstractmethod
    def freeze(self) -> AbstractContextManager[None]:
        """Keep other writers out. Inside the block, only read this registry or set it aside."""

    @abstractmethod
    def set_aside(self) -> str:
        """Move the whole content of a frozen registry away, without deleting anything. Return the new place."""

    def schema(self) -> int:
        """Return the version of the stored schema. A registry that does not exist yet has the present version."""
        return VERSION

    def upgrade(self, *, force: bool = False) -> None:
        """Bring the schema to the present version, as the first write does; with `force`, also while jobs run whose
        holders are processes of 0.1.0."""
        self._force_upgrade = force
        try:
            with self._writing():
                pass
        finally:
            self._force_upgrade = False

    def export(self) -> Iterator[Entry | InvalidRecord]:
        """Return every job with its events and its result, oldest first, without holding all of them in memory."""
        from baton.registry.entries import batches, read_entries

        with self._reading() as tx:
            job_ids = iter(tx.ids())
        entries: Sequence[Entry | InvalidRecord] | None = ()
        while entries is not None:
            yield from entries
            with self._reading() as tx:
                entries = next(batches(read_entries(tx, job_ids)), None)

    def left_copies(self) -> Iterator[Entry | InvalidRecord]:
        """Return every job as it is stored, also if the import that stored it was interrupted. Only in `importing`."""
        return self.export()

    def import_entries(self, entries: Iterable[Entry]) -> None:
        """Add jobs with their events and results exactly as they are, in one step."""
        from baton.registry.entries import put_entries

        with self.importing() as tx:
            put_entries(tx, entries)
