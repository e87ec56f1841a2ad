"""Read and write whole jobs, with their events and results, for a migration: in batches that fit into memory."""

from __future__ import annotations

from baton.core.errors import InvalidRecord, JobNotFound
from baton.registry.contract import Entry
from baton.registry.verbs import result_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeVar

    from baton.registry.contract import Transaction

    Each = TypeVar("Each", Entry, Entry | InvalidRecord)

_BATCH = 500
_BATCH_BYTES = 16 * 10**6  # of results


def read_entries(tx: Transaction, job_ids: Iterable[str]) -> Iterator[Entry | InvalidRecord]:
    """Return these jobs with their events and results. Skip those that were removed meanwhile."""
    for job_id in job_ids:
        try:
            job = tx.get(job_id)
            result = result_of(tx, job)
        except JobNotFound:
            continue  # pruned since the ids were read
        except InvalidRecord as error:
            yield error
        else:
            yield Entry(
                job=job,
                events=tx.events(job_id, 0, job.last_seq) if job.last_seq else [],
                result=result,
                requests=tx.requests(job_id, False, 10**9),
            )


def put_entries(tx: Transaction, entries: Iterable[Entry]) -> None:
    for batch in batches(entries):
        tx.put(batch)


def batches(entries: Iterable[Each]) -> Iterator[list[Each]]:
    """Yield the entries in lists that fit into memory. Take no entry that is not in the list that is yielded."""
    batch: list[Each] = []
    size = 0
    for each in entries:
        batch.append(each)
        size += each.result.size if isinstance(each, Entry) and each.result is not None else 0
        if len(batch) == _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
