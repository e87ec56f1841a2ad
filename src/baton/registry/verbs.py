"""The verbs of a registry, written once over the transactions of a store (`contract`). `tests/contract` is the
definition: it runs on every store.

Rules for all verbs
- A verb that returned has taken effect, durably; one that raised has changed nothing. One exception: when the
  connection to a server breaks during the commit, the caller cannot know; the lease, or reading the job again, decides.
- A verb takes effect as a whole or not at all, also when its process is killed.
- `attempt` is the fencing number of a claim: a write that carries one is refused with StaleAttempt once that claim is
  over. Writes without one are an operator's.
- An unknown id is JobNotFound; a malformed one is InvalidValue, before the store is read.
- Reading creates no file: a registry that does not exist yet is empty, or unavailable where its url was named.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from itertools import islice

from baton.core import lifecycle
from baton.core.clock import SystemClock, format_time, lease_expired, lease_mark, parse_time
from baton.core.errors import InvalidValue, JobDisputed, RegistryUnavailable
from baton.core.event import EventName
from baton.core.fields import check_id_beginning, check_job_id, check_label
from baton.core.job import TERMINAL, Status, new_token
from baton.registry.contract import Change, JobFilter, Recorded, parse_cursor
from baton.registry.moving import MovingVerbs
from baton.registry.order import OrderVerbs
from baton.registry.requests import RequestVerbs
from baton.registry.schema import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from baton.core.clock import Clock
    from baton.core.event import StoredEvent
    from baton.core.job import Broker, Job
    from baton.core.notification import Wish
    from baton.core.result import Result
    from baton.registry.contract import OutlinePage, Page, RequestWrite, Transaction


_LONG_DETAIL = 1000  # characters, which fit into an event


class Registry(RequestVerbs, OrderVerbs, MovingVerbs):
    """Jobs and the events about them. A store is a subclass with the abstract methods below."""

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

    @abstractmethod
    def _claim_first(self, agent_session: str, holder: str, lease_ns: int | None) -> Change | None:
        """Claim for `pick_pending`, in one transaction, without reading every job. Skip invalid records. Mark a job
        whose audit log contradicts it, so that later claims do not read it."""

    def register_job(self, job: Job) -> Job:
        """Store a new pending job. It gets another id if its own is taken: use the job returned."""
        return self.register_many([job])[0]

    def register_many(self, jobs: Iterable[Job]) -> list[Job]:
        """Store all of them, or none. They are picked in this order. In place of a job whose idempotency key is taken,
        the job with that key is returned; KeyTaken when that one is for other work. JobNotFound when a job comes after
        an unknown one, InvalidValue when jobs come after each other in a circle."""
        drafts: list[Job] = []
        last_ns = 0
        for job in jobs:
            # A later job of the batch is younger, also when the clock gave both the same time.
            last_ns = max(parse_time(job.created_at), last_ns + 1)
            drafts.append(job.replace(created_at=format_time(last_ns)))
        if any(job.after or job.not_before for job in drafts):
            return self._register_in_order(drafts)
        with self._writing(create=True) as tx:
            return [self._add(tx, job) for job in drafts]

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

    def get_job(self, job_id: str) -> Job:
        """Return the job as it is now. InvalidRecord when the stored record is not valid."""
        check_job_id(job_id)
        with self._reading() as tx:
            return tx.get(job_id)

    def add_message(self, job_id: str, message: str, *, attempt: int) -> None:
        """Replace the message of a job that its agent ended: its program went on, and its last message came later. Of a
        job that has not ended, or ended otherwise, nothing changes."""
        check_job_id(job_id)
        with self._writing() as tx:
            job = tx.get(job_id)
            if job.status in TERMINAL and job.ended_by == "agent" and job.attempt == attempt:
                from baton.core.result import Result

                found = result_of(tx, job) or Result(attempt=attempt)
                tx.keep_result(job_id, found.replace(message=message))

    def find_ids(self, beginning: str, *, limit: int = 10) -> list[str]:
        """Return the id that is this text; else those that begin with it, in their order, at most `limit`."""
        check_id_beginning(beginning)
        with self._reading() as tx:
            found = tx.ids_from(beginning, limit)
            return found[:1] if beginning in found else found

    def get_result(self, job_id: str) -> Result | None:
        """Return the result with which the job ended; None when it has not ended, or ended without one."""
        check_job_id(job_id)
        with self._reading() as tx:
            return result_of(tx, tx.get(job_id))

    def list_jobs(self, where: JobFilter | None = None, *, limit: int = 50, after: str | None = None) -> Page:
        """Return one page, newest first. `after` is the `next` of the page before; jobs registered meanwhile do not
        shift the pages. An invalid record is in `bad`, and does not hide others."""
        if limit < 1:
            raise InvalidValue("limit", "must be at least 1")
        start = None if after is None else parse_cursor(after)
        with self._reading() as tx:
            return tx.page(where or JobFilter(), limit, start)

    def list_outlines(
        self, where: JobFilter | None = None, *, limit: int = 50, after: str | None = None
    ) -> OutlinePage:
        """Return what `list_jobs` returns, as outlines. An invalid value that no outline has is not found."""
        start = None if after is None else parse_cursor(after)
        with self._reading() as tx:
            return tx.outlines(where or JobFilter(), limit, start, self._is_past)

    def pick_pending(self, agent_session: str, *, holder: str, lease_sec: float | None = None) -> Change | None:
        """Claim the first pending job of that queue (higher priority, then older, then id) as its next attempt. Skip
        jobs with a submitter, and those that are blocked. Return None when there is no job. No two callers get the same
        job. In `before`, the key and `updated_at` may be those of the claim."""
        check_label("agent_session", agent_session)
        check_label("holder", holder)
        return self._claim_first(agent_session, holder, lifecycle.lease_ns(lease_sec))

    def pick_job(self, job_id: str, *, holder: str, lease_sec: float | None = None) -> Change:
        """Claim this job, with or without a submitter. IllegalTransition when it is not pending: of several callers one
        gets it. JobBlocked while it waits."""
        check_label("holder", holder)
        lease_ns = lifecycle.lease_ns(lease_sec)
        return self._when_free(
            lambda: self._change(job_id, lambda job, now_ns: self._claim(job, holder, now_ns), lease_ns)
        )

    def clear_submitter(self, job_id: str) -> Change:
        """Clear `submitter` of a pending job, so that `pick_pending` returns it: for a submitter that has died. Of a
        pending job without one, nothing to do. IllegalTransition when the job is not pending."""
        return self._change(job_id, lambda job, now_ns: lifecycle.clear_submitter(job, now_ns=now_ns))

    def update_status(
        self,
        job_id: str,
        status: Status,
        *,
        attempt: int | None = None,
        holder: str = "operator",
        outcome: Mapping[str, Any] | None = None,
        result: Result | None = None,
    ) -> Change:
        """Set a status that may follow the present one, else IllegalTransition. The present status is accepted and
        changes nothing. pending → running claims the job for `holder`. `outcome`: fields to set with it; `result`: the
        result of a job that ends with it."""
        token = self._new_token()

        def decide(job: Job, now_ns: int) -> Job:
            if job.status is Status.PENDING and status is Status.RUNNING:
                self._refuse_draining()
                self._refuse_contradicted(job)
            after = lifecycle.set_status(job, status, attempt=attempt, holder=holder, now_ns=now_ns, token=token)
            return after.replace(**outcome) if outcome and after is not job else after

        return self._when_free(lambda: self._change(job_id, decide, result=result))

    def settle(self, job_id: str, status: Status, *, attempt: int, seq: int, holder: str | None = None) -> Change:
        """Set the status of a job whose audit log contradicts the registry, and let its numbers go on after these."""
        token = self._new_token()
        return self._change(
            job_id,
            lambda job, now_ns: lifecycle.settle(
                job, status, attempt=attempt, seq=seq, holder=holder, now_ns=now_ns, token=token
            ),
        )

    def _dispute(self, job_id: str, why: str) -> None:
        self._change(job_id, lambda job, _now_ns: lifecycle.dispute(job, why))

    def requeue(
        self, job_id: str, *, attempt: int | None = None, lost: bool = False, not_before_ns: int | None = None
    ) -> Change:
        """running → pending. Of a pending job, nothing to do. `lost`: its holder has died, which counts for
        `max_attempts`. `not_before_ns`: it is blocked until then."""
        return self._change(
            job_id,
            lambda job, now_ns: lifecycle.requeue(
                job, attempt=attempt, now_ns=now_ns, lost=lost, not_before_ns=not_before_ns
            ),
        )

    def renew_lease(
        self, job_id: str, *, attempt: int, lease_sec: float, activity: Mapping[str, Any] | None = None
    ) -> Job:
        """Let the lease of the holder end `lease_sec` from now; with `activity`, as `set_activity` takes it."""

        def decide(job: Job, now_ns: int) -> Job:
            return lifecycle.renew(job, attempt=attempt, now_ns=now_ns, activity=activity)

        return self._change(job_id, decide, lifecycle.lease_ns(lease_sec)).after

    def mark_seen(self, job_id: str) -> None:
        """Note that the user was shown the end of the job, once. In a registry of an older version, do nothing."""
        if self.schema() >= VERSION:  # the user only looks: that must not upgrade it
            self._change(job_id, lambda job, now_ns: lifecycle.see(job, now_ns=now_ns))

    def set_checkout(self, job_id: str, checkout: Mapping[str, Any], *, attempt: int) -> Job:
        """Note in which worktree the holder works."""
        return self._change(job_id, lambda job, _now_ns: lifecycle.set_checkout(job, checkout, attempt=attempt)).after

    def change_notifications(self, job_id: str, decide: Callable[[Job], Job]) -> Change:
        """Change what the job has in `notify_due`, as `claim` and `settle` of `baton.core.notification` decide. Of
        several processes that claim a notification, one gets it."""
        return self._change(job_id, lambda job, _now_ns: decide(job))

    def expired_leases(self, *, limit: int = 100) -> list[Job]:
        """Return the running jobs whose lease has expired by the registry's own clock: those that `expire_leases` would
        take now. `lifecycle.expired_lease_error` says what it would do with each. Change nothing."""
        with self._reading() as tx:
            return self._expired(tx, limit)

    def expire_leases(self, *, limit: int = 100) -> list[Change]:
        """Take the jobs whose lease has expired from their holders: requeue each, or end it as error, with an event,
        when it has no attempts left. At most `limit`: call again while it returns that many."""
        if not self.expired_leases(limit=1):  # the usual case takes no lock
            return []
        with self._writing() as tx:
            changes = [self._expire(tx, job) for job in self._expired(tx, limit)]
        for change in changes:
            self._advance_after(change.after)
        return changes

    def prunable(self, before_ns: int, *, limit: int = 10**9) -> list[str]:
        """Return the jobs that `prune` would remove. Change nothing."""
        with self._reading() as tx:
            return tx.prunable(before_ns, limit)

    def prune(self, before_ns: int, *, limit: int = 1000) -> list[str]:
        """Remove jobs that ended before that time, whose events have all been sent, and that no unfinished job names.
        At most `limit`."""
        with self._writing() as tx:
            job_ids = tx.prunable(before_ns, limit)
            for job_id in job_ids:
                tx.remove(job_id)
            return job_ids

    def stats(self) -> dict[str, int]:
        """Return the number of jobs by status, and of `unsent` events."""
        with self._reading() as tx:
            return {status.value: 0 for status in Status} | {"unsent": 0} | tx.counts()

    def record_event(
        self,
        job_id: str,
        event: EventName,
        *,
        detail: str = "",
        data: Mapping[str, Any] | None = None,
        attempt: int | None = None,
        holder: str = "operator",
        outcome: Mapping[str, Any] | None = None,
        result: Result | None = None,
    ) -> Recorded:
        """Record an event in one step: check that it may come now, take the next `seq`, sign the event and store it as
        unsent, and set the status that it brings, with the fields of `outcome`. A job that was never claimed is claimed
        first. `result`: the result of a job that ends with the event. An error of a job with retries left is recorded
        as progress, with `data.attempt_failed`, and the job is pending again."""
        check_job_id(job_id)

        def record() -> Recorded:
            with self._writing() as tx:
                job = tx.get(job_id)
                has_events = event is EventName.STARTED and bool(tx.events(job_id, 0, 1, job.attempt))
                lifecycle.check_event(job, event, attempt=attempt, has_events=has_events)
                return self._record(tx, job, event, detail, data or {}, holder, outcome or {}, result)

        recorded = self._when_free(record)
        self._advance_after(recorded.after)
        return recorded

    def next_seq(self, job_id: str, *, attempt: int | None = None) -> int:
        """Take a number without an event: 1, 2, 3, ... never the same one twice."""
        change = self._change(job_id, lambda job, now_ns: lifecycle.take_seq(job, attempt=attempt, now_ns=now_ns))
        return change.after.last_seq

    def events_after(self, job_id: str, seq: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        """Return the events with a higher number, in order. Empty when there are none."""
        check_job_id(job_id)
        with self._reading() as tx:
            events = tx.events(job_id, seq, limit)
            if not events:
                tx.get(job_id)
            return events

    def unsent_events(
        self, *, job_id: str | None = None, broker: Broker | None = None, limit: int = 1000
    ) -> list[StoredEvent]:
        """Return events not yet marked as sent, per job in order of their number; of one job, or of all jobs whose
        events go to that broker."""
        if job_id is not None:
            check_job_id(job_id)
        with self._reading() as tx:
            return tx.unsent(job_id, broker, limit)

    def mark_sent(self, job_id: str, seqs: Iterable[int]) -> None:
        """Mark events that the broker has acknowledged. Marking twice, or what does not exist, changes nothing."""
        check_job_id(job_id)
        with self._writing() as tx:
            tx.mark_sent(job_id, seqs)

    def _change(
        self,
        job_id: str,
        decide: Callable[[Job, int], Job],
        lease_ns: int | None = None,
        *,
        result: Result | None = None,
    ) -> Change:
        """Replace the job by what `decide` returns for it and the present time; with a lease that begins now."""
        check_job_id(job_id)
        with self._writing() as tx:
            before = tx.get(job_id)
            after = decide(before, self._clock.wall_ns())
            if after is not before:
                _keep_result(tx, after, result)
            change = self._save(tx, before, after, lease_ns)
        self._advance_after(change.after)
        return change

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

    def _expired(self, tx: Transaction, limit: int) -> list[Job]:
        return list(islice(filter(self._lease_expired, tx.leased()), limit))

    def _lease_expired(self, job: Job) -> bool:
        return job.lease_expires_at is not None and self._is_past(job.lease_expires_at, job.lease_mark)

    def _present_ns(self) -> int:
        """Return the time by which a job is unblocked, and a request or a lease without a mark expires."""
        return self._clock.wall_ns()

    def _is_past(self, expires_at: str, mark: str | None) -> bool:
        """Return whether a moment that `_lease_end` returned is over."""
        return lease_expired(self._clock, mark, expires_at)

    def _expire(self, tx: Transaction, job: Job) -> Change:
        error = lifecycle.expired_lease_error(job)
        if error is None:
            return tx.save(job, lifecycle.requeue(job, attempt=None, now_ns=self._clock.wall_ns(), lost=True))
        recorded = self._record(tx, job, EventName.ERROR, error, {}, "operator", {"ended_by": "lost"})
        return Change(before=recorded.before, after=recorded.after)

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
        _keep_result(tx, after, result)
        saved = tx.save(before, after, stored, request)
        return Recorded(before=before, after=saved.after, event=stored)


def _keep_result(tx: Transaction, after: Job, result: Result | None) -> None:
    if result is not None and after.status in TERMINAL:
        tx.keep_result(after.job_id, result.replace(attempt=after.attempt))


def result_of(tx: Transaction, job: Job) -> Result | None:
    """Return the result of an ended job. One of another attempt was left by a crash, or by a job that was revived."""
    result = tx.result(job.job_id) if job.status in TERMINAL else None
    return result if result is not None and result.attempt == job.attempt else None
