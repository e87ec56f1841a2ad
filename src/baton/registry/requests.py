"""The verbs of a registry on requests and activities, written once over the transactions of a store.

A request is stored with its job: every verb locks and reads the job first, and writes both in one step. The rules are
those of `baton.core.request`.
"""

from __future__ import annotations

from abc import abstractmethod

from baton.core import lifecycle
from baton.core.clock import format_time
from baton.core.errors import InvalidValue
from baton.core.event import EventName
from baton.core.fields import check_job_id
from baton.core.job import Status
from baton.core.job_checks import check_agent_runs, check_usage
from baton.registry.order import OrderVerbs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from baton.core.job import Job
    from baton.core.outline import Outline
    from baton.core.request import Answer, Request, RequestState
    from baton.registry.contract import RequestChange, Transaction

    Decide = Callable[[Request, Job, bool, int], Request]


_MOST_RUNS = 100  # attempts, of which a job keeps what they ran
_WORDS = {"allow": "allowed", "deny": "denied"}


class RequestVerbs(OrderVerbs):
    """What `Registry` offers for requests and activities, and for readers that follow every change."""

    def open_request(
        self,
        job_id: str,
        request: Request,
        *,
        attempt: int,
        detail: str = "",
        data: Mapping[str, Any] | None = None,
        expires_sec: float | None = None,
    ) -> RequestChange:
        """Store a question of the agent that holds the job, with the event `permission_required`. It gets another id if
        its own is taken: use the request returned. StaleAttempt for another attempt; WrongState when the job has as
        many open requests as it may have. `expires_sec`: it expires so many seconds from now."""
        from baton.core.request import Request, RequestState, new_request_id, refuse_more
        from baton.registry.contract import RequestChange, RequestWrite

        check_job_id(job_id)
        lease_ns = lifecycle.lease_ns(expires_sec)
        with self._writing() as tx:
            job = tx.get(job_id)
            lifecycle.check_holder(job, attempt)
            open_ones = len(self._open_ones(tx, job))
            refuse_more(job_id, open_ones)
            asked_at = format_time(self._clock.wall_ns())
            request = request.replace(job_id=job_id, attempt=attempt, state=RequestState.OPEN, asked_at=asked_at)
            if lease_ns is not None:
                expires_ns, mark = self._lease_end(tx, lease_ns)
                request = request.replace(expires_at=format_time(expires_ns), expires_mark=mark)
            request = Request.parse(request.record(), job_id)
            while tx.request_ids_from(request.request_id, 1):
                request = request.replace(request_id=new_request_id())
            about = {"request_id": request.request_id, "kind": request.kind.value, "open_requests": open_ones + 1}
            write = RequestWrite(before=None, after=request)
            asked = EventName.PERMISSION_REQUIRED
            recorded = self._record(tx, job, asked, detail, {**(data or {}), **about}, "operator", {}, request=write)
            return RequestChange(before=None, after=request, job=recorded.after, event=recorded.event)

    def answer_request(self, request_id: str, answer: Answer) -> RequestChange:
        """Answer an open request, with the event `progress`. RequestClosed when it is not open any more: it says who
        answered what, and when. Of several callers one succeeds."""
        from baton.core.request import answer as decide
        from baton.core.request import refuse_closed

        refuse_closed(self.get_request(request_id))  # at once, without waiting for other writers
        return self._settle(
            request_id, lambda it, job, expired, now_ns: decide(it, job, answer, expired=expired, now_ns=now_ns)
        )

    def close_request(
        self, request_id: str, state: RequestState, *, answer: str | None = None, by: str = "", via: str = "agent"
    ) -> RequestChange:
        """Close a request that was not answered here, with the event `progress` while its job runs: `elsewhere` with
        the decision and what decided, `expired` when its time is over, or `withdrawn`. RequestClosed as above."""
        from baton.core.request import close

        return self._settle(
            request_id,
            lambda it, job, expired, now_ns: close(
                it, job, state, expired=expired, now_ns=now_ns, decision=answer, by=by, via=via
            ),
        )

    def note_sent(self, request_id: str) -> Request:
        """Note that the answer was written to the agent, once."""
        from baton.core.request import sent

        return self._settle(request_id, lambda it, _job, _expired, now_ns: sent(it, now_ns=now_ns)).after

    def note_applied(self, request_id: str, applied: str, overridden_by: str | None = None) -> RequestChange:
        """Note by the agent's own evidence whether it used the answer: "yes", or "no" and what decided instead. The
        first evidence stands."""
        from baton.core.request import set_applied

        return self._settle(request_id, lambda it, _job, _expired, _now_ns: set_applied(it, applied, overridden_by))

    def get_request(self, request_id: str) -> Request:
        """Return the request in the state that it has now. RequestNotFound, or InvalidRecord when it is not valid."""
        from baton.core.request import check_request_id, present

        check_request_id(request_id)
        with self._reading() as tx:
            job = tx.get(tx.job_of_request(request_id))
            request = tx.request(request_id)
            return present(request, job, self._request_expired(request))

    def find_requests(self, beginning: str, *, limit: int = 10) -> list[str]:
        """Return the ids of requests that begin with this text, in their order, at most `limit`."""
        from re import fullmatch

        if not fullmatch(r"[0-9a-f]{4,8}", beginning):
            why = f"must be 8 characters of 0-9 and a-f, or its first 4, not {beginning[:40]!r}"
            raise InvalidValue("request id", why)
        with self._reading() as tx:
            return tx.request_ids_from(beginning, limit)

    def list_requests(self, *, job_id: str | None = None, open_only: bool = True, limit: int = 1000) -> list[Request]:
        """Return requests in the state that they have now, the oldest first; of one job, if given."""
        if job_id is not None:
            check_job_id(job_id)
        with self._reading() as tx:
            found = [self._present(request) for request in tx.requests(job_id, open_only, limit)]
        return [request for request in found if request.state == "open" or not open_only]

    def changes_since(self, number: int, *, limit: int = 1000) -> tuple[list[Outline], int]:
        """Return the jobs that changed since the reader got `number`, 0 at first, and the number to go on with. A
        reader that goes on with it misses no change that is committed later; a job may come again without a change.
        More than `limit` when one write changed more."""
        with self._reading() as tx:
            return tx.changes(number, limit, self._is_past)

    @abstractmethod
    def answers_stamp(self) -> object:
        """Return a value that differs when another process has written since, at little cost."""

    def note_usage(self, job_id: str, entry: Mapping[str, Any]) -> Job:
        """Keep what one attempt has used so far, in place of what is known of that attempt. It may have ended, and so
        may the job; `updated_at` stays. An entry of the same attempt with fewer tokens changes nothing."""
        from baton.core.spending import merge_usage

        def decide(job: Job, _now_ns: int) -> Job:
            if entry["attempt"] > job.attempt:
                raise InvalidValue("usage", f"is of attempt {entry['attempt']}, and the job has {job.attempt}")
            merged = check_usage(merge_usage(job.usage, entry))
            return job if merged == job.usage else job.replace(usage=merged)

        return self._change(job_id, decide).after

    def note_run(self, job_id: str, entry: Mapping[str, Any]) -> Job:
        """Keep what an attempt runs (`baton.core.activity.run_record`), in place of what is known of that attempt. It
        may have ended, and so may the job; `updated_at` stays."""

        def decide(job: Job, _now_ns: int) -> Job:
            if entry["attempt"] > job.attempt:
                raise InvalidValue("agent_runs", f"is of attempt {entry['attempt']}, and the job has {job.attempt}")
            found = {each["attempt"]: each for each in (*job.agent_runs, dict(entry))}
            merged = check_agent_runs([found[attempt] for attempt in sorted(found)][-_MOST_RUNS:])
            return job if merged == job.agent_runs else job.replace(agent_runs=merged)

        return self._change(job_id, decide).after

    def set_activity(
        self, job_id: str, activity: Mapping[str, Any], *, attempt: int, lease_sec: float | None = None
    ) -> Job:
        """Store what the agent of this attempt is doing: `kind`, `since` (a time) and `cause`. No event, and
        `updated_at` stays. With `lease_sec`, renew the lease in the same write."""

        def decide(job: Job, _now_ns: int) -> Job:
            return lifecycle.set_activity(job, activity, attempt=attempt)

        return self._change(job_id, decide, lifecycle.lease_ns(lease_sec)).after

    def _settle(self, request_id: str, decide: Decide) -> RequestChange:
        """Replace the request by what `decide` returns for it, its job, whether it has expired, and the time."""
        from baton.core.request import check_request_id
        from baton.registry.contract import RequestChange, RequestWrite

        check_request_id(request_id)
        with self._writing() as tx:
            job = tx.get(tx.job_of_request(request_id))
            before = tx.request(request_id)
            after = decide(before, job, self._request_expired(before), self._clock.wall_ns())
            if after is before:
                return RequestChange(before=before, after=after, job=job, event=None)
            write = RequestWrite(before=before, after=after)
            runs = job.status is Status.RUNNING and job.attempt == before.attempt
            if before.state is after.state or not runs:
                return RequestChange(before=before, after=after, job=tx.save(job, job, None, write).after, event=None)
            left = sum(request.request_id != request_id for request in self._open_ones(tx, job))
            about = {"request_id": request_id, "request_state": after.state.value, "open_requests": left}
            detail = f"request {request_id}: {_WORDS.get(after.answer or '', after.state.value)}"
            recorded = self._record(tx, job, EventName.PROGRESS, detail, about, "operator", {}, request=write)
            return RequestChange(before=before, after=after, job=recorded.after, event=recorded.event)

    def _open_ones(self, tx: Transaction, job: Job) -> list[Request]:
        found = (self._present(request) for request in tx.requests(job.job_id, True, 10**6, calls=False))
        return [request for request in found if request.state == "open"]

    def _present(self, request: Request) -> Request:
        """Return a request, as the store reads it with its job, in the state that it has by the clock."""
        from baton.core.request import RequestState

        if request.state is RequestState.OPEN and self._request_expired(request):
            return request.replace(state=RequestState.EXPIRED)
        return request

    def _request_expired(self, request: Request) -> bool:
        return request.expires_at is not None and self._is_past(request.expires_at, request.expires_mark)
