"""The steps that the verbs of a registry share: claim, save and record a job in a transaction of the store.

The classes of verbs inherit from it, and `baton.registry.verbs.Registry` from all of them.
"""

from __future__ import annotations

import os
from abc import abstractmethod

from baton.core import lifecycle
from baton.core.clock import SystemClock, format_time, lease_expired, lease_mark
from baton.core.errors import JobDisputed, RegistryBusy, RegistryUnavailable
from baton.core.event import EventName
from baton.core.job import TERMINAL, Status, new_token
from baton.registry.contract import Recorded
from baton.storage import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from baton.core.clock import Clock
    from baton.core.job import Job
    from baton.core.notification import Wish
    from baton.core.result import Result
    from baton.registry.contract import Change, RequestWrite, Transaction

DRAINING = ".draining"  # locked by a process that drains the registry
_LONG_DETAIL = 1000  # characters, which fit into an event


class Recording:
    """A registry without its verbs: what a store gives, and how a job is changed in it."""

    where: str  # for messages: which registry this is, without secrets
    url: str  # opens this registry again, from any folder; with its password
    multi_host: bool  # whether processes on several hosts may share it
    lock_path: str | None  # the file that every writer locks, if there is one; two registries may share it
    must_exist = False  # whether reading a registry that no process has written yet is RegistryUnavailable
    # Says how the audit log of a pending job contradicts the registry: such a job is not claimed. None: it does not.
    find_contradiction: Callable[[Job], str | None] = staticmethod(lambda _job: None)
    # Whom to notify of changes that this process makes; None: no one.
    wish: Wish | None = None
    _new_token = staticmethod(new_token)

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._force_upgrade = False

    @abstractmethod
    def close(self) -> None:
        """Close files and connections. The next verb opens them again."""

    def _refuse_missing(self, path: str) -> None:
        if self.must_exist and not os.path.exists(path):
            raise RegistryUnavailable(f"{self.where} does not exist; check the url (`baton register` makes a new one)")

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Transaction]: ...

    @abstractmethod
    def _writing(self, *, create: bool = False) -> AbstractContextManager[Transaction]:
        """Begin a transaction that commits when the block ends without an error. `create`: make a missing store."""

    def _is_draining(self) -> bool:
        path = os.path.join(os.path.dirname(self.lock_path), DRAINING) if self.lock_path is not None else ""
        return os.path.exists(path) and files.is_locked(path)

    def _refuse_draining(self) -> None:
        """Raise RegistryBusy while `draining` keeps jobs from being claimed."""
        if self._is_draining():  # guard: claim-while-draining
            raise RegistryBusy(f"{self.where} is being drained for a migration: no job is claimed; try again after it")

    @staticmethod
    def _add(tx: Transaction, job: Job) -> Job:
        from baton.core.drafts import refuse_other_work, with_new_id

        while True:
            if job.idempotency_key is not None and (known := tx.find_key(job.idempotency_key)) is not None:
                refuse_other_work(known, job)
                return known
            if (added := tx.add(job)) is not None:
                return added
            job = with_new_id(job)  # its id is taken, or another process has just registered its key

    def _save(self, tx: Transaction, before: Job, after: Job, lease_ns: int | None) -> Change:
        if lease_ns is not None:
            expires_ns, mark = self._lease_end(tx, lease_ns)
            after = after.replace(lease_expires_at=format_time(expires_ns), lease_mark=mark)
        return tx.save(before, self._with_due(before, after))

    def _with_due(self, before: Job, after: Job, data: Mapping[str, Any] | None = None) -> Job:
        """Return the job with the notification of its change, or of the event with this data, if there is one."""
        if self.wish is None:
            return after
        from baton.core.notification import add_due

        return add_due(before, after, self.wish, data)

    def _refuse_contradicted(self, job: Job) -> None:
        if job.disputed is None and (why := self.find_contradiction(job)) is not None:  # guard: contradicted-claim
            raise JobDisputed(job.job_id, why)

    def _claim(self, job: Job, holder: str, now_ns: int) -> Job:
        if job.status is Status.PENDING:
            self._refuse_draining()
            self._refuse_contradicted(job)
        return lifecycle.claim(job, holder=holder, now_ns=now_ns, token=self._new_token())

    def _lease_end(self, tx: Transaction, lease_ns: int) -> tuple[int, str | None]:
        """Return when a lease that begins now ends: as a date, and as the mark of the clock that decides."""
        return self._clock.wall_ns() + lease_ns, lease_mark(self._clock, lease_ns)

    def _lease_expired(self, job: Job) -> bool:
        return job.lease_expires_at is not None and self._is_past(job.lease_expires_at, job.lease_mark)

    def _present_ns(self) -> int:
        """Return the time by which a job is unblocked, and a request or a lease without a mark expires."""
        return self._clock.wall_ns()

    def _is_past(self, expires_at: str, mark: str | None) -> bool:
        """Return whether a moment that `_lease_end` returned is over."""
        return lease_expired(self._clock, mark, expires_at)

    def _record(
        self,
        tx: Transaction,
        before: Job,
        event: EventName,
        detail: str,
        data: Mapping[str, Any],
        holder: str,
        outcome: Mapping[str, Any],
        result: Result | None = None,
        request: RequestWrite | None = None,
        claimed: Job | None = None,
    ) -> Recorded:
        """Sign the event and save it with the job and the request. An event for a pending job claims it, unless the
        caller passes the job as `claimed`."""
        from baton.wire.payload import signed_event

        now_ns = self._clock.wall_ns()
        job = claimed or before
        if job.status is Status.PENDING:
            job = self._claim(job, holder, now_ns)
        elif job.auth_token is None or job.attempt == 0:
            job = lifecycle.add_missing_key(job, token=self._new_token())
        following = None
        if event is EventName.ERROR and outcome.get("parked") is not None:
            following, about = lifecycle.park(job, outcome["parked"], now_ns=now_ns, present_ns=self._present_ns())
            event, data, outcome, result = EventName.PROGRESS, {**data, **about}, {}, None
        elif event is EventName.ERROR and lifecycle.may_retry(job, outcome.get("ended_by", "agent")):
            following, about = lifecycle.failed_attempt(job, now_ns=now_ns, present_ns=self._present_ns())
            event, data, outcome, result = EventName.PROGRESS, {**data, **about}, {}, None
            detail = f"attempt {job.attempt} failed: {detail}"[: max(len(detail), _LONG_DETAIL)]
        stored = signed_event(job, event, detail, data, now_ns)
        after = lifecycle.apply_event(following or job, event, seq=stored.seq, detail=detail, now_ns=now_ns)
        after = after.replace(**outcome)
        after = self._with_due(before, after, data)
        keep_result(tx, after, result)
        saved = tx.save(before, after, stored, request)
        return Recorded(before=before, after=saved.after, event=stored)


def keep_result(tx: Transaction, after: Job, result: Result | None) -> None:
    if result is not None and after.status in TERMINAL:
        tx.keep_result(after.job_id, result.replace(attempt=after.attempt))
