"""Define what the verbs of a registry return, and what a store must offer to them."""

from __future__ import annotations

from baton.core.clock import parse_time
from baton.core.errors import InvalidValue
from baton.core.fields import check_job_id
from baton.core.job import is_unseen
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import Protocol

    from baton.core.errors import InvalidRecord
    from baton.core.event import StoredEvent
    from baton.core.job import Broker, Job, Status
    from baton.core.outline import Outline
    from baton.core.request import Request
    from baton.core.result import Result

    IsPast = Callable[[str, str | None], bool]
    """Whether a moment, as a date and as the mark of the clock that decides, is over."""


class JobFilter(Value):
    """Conditions that must all hold. None: no condition. Times are nanoseconds since 1970. `left_from_ns`: only jobs
    that a holder has left since, with events: ended, or requeued. `submitted`: only jobs with a submitter. `free`: no
    pending jobs that are blocked. `unseen`: only jobs that have completed or failed without the user having been shown
    it. `notify_due`: only jobs with notifications to send."""

    statuses: Collection[Status] | None = None
    agent: str | None = None
    agent_session: str | None = None
    created_from_ns: int | None = None
    created_until_ns: int | None = None
    left_from_ns: int | None = None
    submitted: bool = False
    label: str | None = None
    unseen: bool = False
    notify_due: bool = False
    free: bool = False

    def matches(self, job: Job) -> bool:
        created = parse_time(job.created_at)
        return (
            (not self.statuses or job.status in self.statuses)
            and (self.agent is None or job.agent == self.agent)
            and (self.agent_session is None or job.agent_session == self.agent_session)
            and (self.created_from_ns is None or created >= self.created_from_ns)
            and (self.created_until_ns is None or created <= self.created_until_ns)
            and (self.left_from_ns is None or self._was_left(job, self.left_from_ns))
            and (job.submitter is not None or not self.submitted)
            and (self.label is None or self.label in job.labels)
            and (not self.unseen or is_unseen(job.status, job.seen_at))
            and (bool(job.notify_due) or not self.notify_due)
            and not (self.free and job.is_blocked)
        )

    @staticmethod
    def _was_left(job: Job, since_ns: int) -> bool:
        return job.status != "running" and job.last_seq > 0 and parse_time(job.updated_at) >= since_ns


def format_cursor(created_ns: int, job_id: str) -> str:
    return f"{created_ns}-{job_id}"


def parse_cursor(text: str) -> tuple[int, str]:
    created, _, job_id = text.rpartition("-")
    try:
        moment = int(created)
        if abs(moment) >= 2**63:
            raise ValueError
        return moment, check_job_id(job_id)
    except (ValueError, InvalidValue):
        raise InvalidValue("cursor", "must be the `next` of the page before") from None


class Change(Value):
    """A job before and after a verb. Both are equal when there was nothing to do."""

    before: Job
    after: Job


class Recorded(Value):
    """A recorded event, and the job before and after it."""

    before: Job
    after: Job
    event: StoredEvent


class RequestWrite(Value):
    """A request to store with its job, in place of what it was before. None: it is new."""

    before: Request | None
    after: Request


class RequestChange(Value):
    """A request before and after a verb, its job after it, and the event that announces the change, if any. Both
    requests are equal when there was nothing to do."""

    before: Request | None
    after: Request
    job: Job
    event: StoredEvent | None


class Page(Value):
    """One page of a list. `next` continues it, and is None on the last page. `bad` holds the invalid records."""

    jobs: list[Job]
    bad: list[InvalidRecord]
    next: str | None

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)


class OutlinePage(Value):
    """One page of a list, as outlines."""

    jobs: list[Outline]
    bad: list[InvalidRecord]
    next: str | None


class Entry(Value):
    """A job with all its events and requests, and its result if it has ended with one."""

    job: Job
    events: Sequence[StoredEvent]
    result: Result | None = None
    requests: Sequence[Request] = ()


if TYPE_CHECKING:

    class Transaction(Protocol):
        """What a store offers to the verbs while one transaction lasts. A writing transaction takes effect as a whole
        when it ends without an error, and not at all otherwise; no other writer changes a job that it has read."""

        def get(self, job_id: str) -> Job:
            """Return the job; raise JobNotFound, or InvalidRecord when the record is not valid."""

        def add(self, job: Job) -> Job | None:
            """Store a new job, and note its id in the job that it retries, if that is still there. Return it with its
            change number. Return None, and store nothing, when the id or the idempotency key is taken."""

        def find_key(self, key: str) -> Job | None:
            """Return the job with this idempotency key."""

        def save(
            self, before: Job, after: Job, event: StoredEvent | None = None, request: RequestWrite | None = None
        ) -> Change:
            """Replace `before`, as `get` returned it, by `after` with the next change number, append the event, and
            store the request. RegistryBusy when the stored job or request is another by now. Without a difference,
            event or request, do nothing."""

        def job_of_request(self, request_id: str) -> str:
            """Return the id of the job that asks; raise RequestNotFound."""

        def request(self, request_id: str) -> Request:
            """Return the request as it is stored, after `get` of its job; raise RequestNotFound or InvalidRecord."""

        def requests(self, job_id: str | None, open_only: bool, limit: int, *, calls: bool = True) -> list[Request]:
            """Return requests, the oldest first; of one job, if given. `open_only`: those whose row is open. One whose
            job does not run that attempt any more is withdrawn, whatever its row says. Skip invalid ones. Without
            `calls`, each call is None."""

        def request_ids_from(self, beginning: str, limit: int) -> list[str]:
            """Return ids of requests that begin with this text, in their order."""

        def changes(self, number: int, limit: int, is_past: IsPast) -> tuple[list[Outline], int]:
            """Return the jobs with this change number or a higher one, in its order, and the number to go on with. More
            than `limit` when one write changed more."""

        def keep_result(self, job_id: str, result: Result) -> None:
            """Store the result of a job, in place of an earlier one; before `save` of the job that ends with it."""

        def result(self, job_id: str) -> Result | None:
            """Return the stored result; InvalidRecord when it is not valid. It may be of an attempt that is over."""

        def due(self, limit: int, now_ns: int) -> list[Job]:
            """Return jobs whose `look_at` has come, by `now_ns` or by the clock of the store, the first ones first; of
            a writing transaction, those that no other one has locked. Skip invalid records."""

        def followers(self, job_id: str, limit: int) -> list[str]:
            """Return jobs that have this one in `waits_for`, in the order of their ids, and perhaps a few that had."""

        def forget_follower(self, job_id: str, follower: str) -> None:
            """Remove a job from the followers of another, whose `waits_for` does not name it."""

        def stranded(self, limit: int) -> list[tuple[str, str]]:
            """Return pairs of a job that has ended without `look_at`, or is gone, and one of its followers."""

        def leased(self) -> Iterable[Job]:
            """Return the running jobs with a lease. Skip invalid records."""

        def page(self, where: JobFilter, limit: int, start: tuple[int, str] | None) -> Page:
            """Return jobs, newest first; with `start`, those older than that time and id."""

        def ids_from(self, beginning: str, limit: int) -> list[str]:
            """Return ids that begin with this text, in their order. The id that is the text itself may come alone."""

        def outlines(self, where: JobFilter, limit: int, start: tuple[int, str] | None, is_past: IsPast) -> OutlinePage:
            """Return what `page` returns, as outlines."""

        def ids(self) -> list[str]:
            """Return the ids of all jobs, oldest first."""

        def counts(self) -> dict[str, int]:
            """Return the number of jobs by status, where there are any, and of `unsent` events."""

        def prunable(self, before_ns: int, limit: int) -> list[str]:
            """Return jobs that ended before that time, whose events have all been sent, and that no unfinished job
            names."""

        def remove(self, job_id: str) -> None:
            """Remove a job with its events, its requests and its result."""

        def events(self, job_id: str, after: int, limit: int, attempt: int | None = None) -> list[StoredEvent]:
            """Return the events with a higher number, in order; with `attempt`, only those of that attempt."""

        def unsent(self, job_id: str | None, broker: Broker | None, limit: int) -> list[StoredEvent]:
            """Return unsent events, per job in order; of one job, or of one broker, if given."""

        def mark_sent(self, job_id: str, seqs: Iterable[int]) -> None:
            """Mark events as sent. Ignore what does not exist."""

        def put(self, entries: Sequence[Entry]) -> None:
            """Add jobs with their events, requests and results exactly as they are, in an import. Keep equal ones that
            are there already."""
