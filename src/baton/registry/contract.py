"""What a registry is. This page is the contract; `tests/contract` holds every backend to it.

Rules for all verbs
- A verb that returned has taken place, durably; one that raised has changed nothing. One exception: when the
  connection to a server breaks while it commits, nobody can tell; the lease or the next look at the job does.
- A verb either happens as a whole or not at all, also when its process is killed in the middle of it.
- `attempt` is the fencing token of a claim: a write that carries one is refused with StaleAttempt once that
  claim is over. Writes without one are an operator's.
- An unknown id is JobNotFound; a malformed one is InvalidValue, before the store is touched.
- Reading creates no file: a registry that is not there yet is an empty one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from baton.core.errors import InvalidRecord
    from baton.core.event import EventName, StoredEvent
    from baton.core.job import Broker, Job, Status
    from baton.registry.query import JobFilter
    from baton.registry.results import Change, Entry, Page, Recorded


class Registry(Protocol):
    """A store of jobs and of the events about them."""

    @property
    def where(self) -> str:
        """For messages: what this registry is, without secrets."""

    @property
    def multi_host(self) -> bool:
        """Whether processes on several hosts may share it."""

    @property
    def url(self) -> str:
        """What opens this registry again, from any folder; with its password."""

    @property
    def lock_path(self) -> str | None:
        """The file whose lock every writer takes, where there is one. Two registries may share it."""

    def close(self) -> None:
        """Lets go of files and connections. The registry opens again when it is used again."""

    # -- jobs ------------------------------------------------------------------------------------------

    def register_job(self, job: Job) -> Job:
        """Stores a new pending job. When its id is taken it gets another one: use the job returned."""

    def register_many(self, jobs: Iterable[Job]) -> list[Job]:
        """Stores all of them in one step, or none; they are picked in this order."""

    def get_job(self, job_id: str) -> Job:
        """The job as it is now. InvalidRecord when what is stored does not fit."""

    def list_jobs(self, where: JobFilter | None = None, *, limit: int = 50, after: str | None = None) -> Page:
        """One page, newest first. `after` is the `next` of the page before; jobs registered meanwhile do
        not shift the pages. A record that does not fit is in `bad`, and hides no other."""

    def pick_pending(self, agent_session: str, *, holder: str, lease_sec: float | None = None) -> Change | None:
        """Claim the first pending job of that queue (higher priority, then older, then id) as its next attempt. Skip
        jobs with a submitter. Return None when there is no job. No two callers get the same job. In `before`, the key
        and `updated_at` may be those of the claim."""

    def pick_job(self, job_id: str, *, holder: str, lease_sec: float | None = None) -> Change:
        """Claim this job, with or without a submitter. IllegalTransition when it is not pending: of several callers one
        gets it."""

    def clear_submitter(self, job_id: str) -> Change:
        """Clear `submitter` of a pending job, so that `pick_pending` returns it: for a submitter that has died. Of a
        pending job without one, nothing to do. IllegalTransition when the job is not pending."""

    def update_status(
        self, job_id: str, status: Status, *, attempt: int | None = None, holder: str = "operator"
    ) -> Change:
        """Sets a status that may follow the present one, else IllegalTransition. The status it already has
        is accepted and changes nothing. pending → running claims the job for `holder`."""

    def requeue(self, job_id: str, *, attempt: int | None = None) -> Change:
        """running → pending: hands the job back. Of a pending job, nothing to do."""

    def renew_lease(self, job_id: str, *, attempt: int, lease_sec: float) -> Job:
        """The holder lives: its lease ends `lease_sec` from now."""

    def expired_leases(self, *, limit: int = 100) -> list[Job]:
        """Return the running jobs whose lease has expired by the registry's own clock: those that `expire_leases` would
        take now. `lifecycle.expired_lease_error` says what it would do with each. Change nothing."""

    def expire_leases(self, *, limit: int = 100) -> list[Change]:
        """Takes running jobs whose lease has run out from their holders: back to pending, or to error (with
        an event) when the job has no attempts left. At most `limit`; call again while it returns that many."""

    def prune(self, before_ns: int, *, limit: int = 1000) -> list[str]:
        """Forgets jobs that ended before that moment and whose events have all been sent. At most `limit`."""

    def stats(self) -> dict[str, int]:
        """How many jobs there are by status, and `unsent` events."""

    # -- events ----------------------------------------------------------------------------------------

    def record_event(
        self,
        job_id: str,
        event: EventName,
        *,
        detail: str = "",
        data: Mapping[str, Any] | None = None,
        attempt: int | None = None,
        holder: str = "operator",
    ) -> Recorded:
        """The one way a job's story goes on, in one step: checks that the event may come now, takes the next
        `seq`, signs and keeps the event as unsent, and sets the status it brings. A job that was never
        claimed is claimed first."""

    def next_seq(self, job_id: str, *, attempt: int | None = None) -> int:
        """Takes a number without an event: 1, 2, 3, ... never the same one twice."""

    def events_after(self, job_id: str, seq: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        """Events with a higher number, in order. Empty when there are none."""

    def unsent_events(
        self, *, job_id: str | None = None, broker: Broker | None = None, limit: int = 1000
    ) -> list[StoredEvent]:
        """Events not yet marked as sent, per job in order of their number; of one job, or of all jobs whose events go
        to that broker."""

    def mark_sent(self, job_id: str, seqs: Iterable[int]) -> None:
        """The broker has them. Marking twice, or what is not there, changes nothing."""

    # -- moving to another backend -----------------------------------------------------------------------

    def export(self) -> Iterator[Entry | InvalidRecord]:
        """Every job with its events, oldest first, without holding all of them in memory."""

    def import_entries(self, entries: Iterable[Entry]) -> None:
        """Adds jobs with their events exactly as they are, in one step."""

    def freeze(self) -> AbstractContextManager[None]:
        """Keeps every other writer out; the frozen registry itself is only read, adopted or set aside."""

    def staging(self) -> Registry:
        """A new, empty registry beside this one that nobody else sees. What an earlier one held is gone."""

    def adopt(self, staging: Registry) -> None:
        """Makes what the staging registry holds the content of this one, which holds nothing yet."""

    def mark_moved(self, url: str) -> None:
        """Leaves a note, where there is a place for it, that the registry is at that url now."""

    def set_aside(self) -> str:
        """Puts the whole content where it is no longer found, deleting nothing; returns that place."""
