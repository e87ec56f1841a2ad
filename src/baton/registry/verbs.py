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

from abc import abstractmethod
from itertools import islice

from baton.core import lifecycle
from baton.core.clock import format_time, parse_time
from baton.core.errors import InvalidValue
from baton.core.event import EventName
from baton.core.fields import check_id_beginning, check_job_id, check_label
from baton.core.job import TERMINAL, Status
from baton.registry.contract import Change, JobFilter, Recorded, parse_cursor
from baton.registry.moving import MovingVerbs
from baton.registry.requests import RequestVerbs
from baton.registry.schema import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from baton.core.event import StoredEvent
    from baton.core.job import Broker, Job
    from baton.core.result import Result
    from baton.registry.contract import OutlinePage, Page, Transaction


class Registry(RequestVerbs, MovingVerbs):
    """Jobs and the events about them. A store is a subclass with the abstract methods."""

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

    def expired_leases(self, *, limit: int = 100, spare: Callable[[Job], bool] = lambda _: False) -> list[Job]:
        """Return the running jobs whose lease has expired by the registry's own clock: those that `expire_leases` would
        take now. `lifecycle.expired_lease_error` says what it would do with each. Leave out those that the caller
        spares. Change nothing."""
        with self._reading() as tx:
            return self._expired(tx, limit, spare)

    def expire_leases(self, *, limit: int = 100, spare: Callable[[Job], bool] = lambda _: False) -> list[Change]:
        """Take the jobs whose lease has expired from their holders: requeue each, or end it as error, with an event,
        when it has no attempts left. At most `limit`: call again while it returns that many. Leave out those that the
        caller spares."""
        if not self.expired_leases(limit=1, spare=spare):  # the usual case takes no lock
            return []
        with self._writing() as tx:
            changes = [self._expire(tx, job) for job in self._expired(tx, limit, spare)]
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

    def _expired(self, tx: Transaction, limit: int, spare: Callable[[Job], bool]) -> list[Job]:
        return list(islice((job for job in tx.leased() if self._lease_expired(job) and not spare(job)), limit))

    def _expire(self, tx: Transaction, job: Job) -> Change:
        error = lifecycle.expired_lease_error(job)
        if error is None:
            return tx.save(job, lifecycle.requeue(job, attempt=None, now_ns=self._clock.wall_ns(), lost=True))
        recorded = self._record(tx, job, EventName.ERROR, error, {}, "operator", {"ended_by": "lost"})
        return Change(before=recorded.before, after=recorded.after)


def result_of(tx: Transaction, job: Job) -> Result | None:
    """Return the result of an ended job. One of another attempt was left by a crash, or by a job that was revived."""
    result = tx.result(job.job_id) if job.status in TERMINAL else None
    return result if result is not None and result.attempt == job.attempt else None
