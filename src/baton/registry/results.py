"""What the verbs of a registry return."""

from __future__ import annotations

from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton.core.errors import InvalidRecord
    from baton.core.event import StoredEvent
    from baton.core.job import Job


class Change(Value):
    """A job before and after a verb. The two are equal when there was nothing to do."""

    before: Job
    after: Job


class Recorded(Value):
    """An event that became part of a job's story, and the job before and after it."""

    before: Job
    after: Job
    event: StoredEvent


class Page(Value):
    """Part of a listing. `next` continues it, and is None at its end; `bad` are records that do not fit."""

    jobs: list[Job]
    bad: list[InvalidRecord]
    next: str | None

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)


class Entry(Value):
    """A job with all its events: what a migration carries."""

    job: Job
    events: Sequence[StoredEvent]
