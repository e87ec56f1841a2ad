"""Follow jobs: verify the messages from the broker, and pass on the events from the registry.

A message only says that there is news. What is passed on always comes from the registry.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from baton.core.clock import SECOND_NS, parse_time
from baton.core.errors import InvalidValue, JobNotFound, Rejected
from baton.core.event import EventName, StoredEvent
from baton.core.job import TERMINAL, Job, Status, topic_prefix
from baton.core.outcome import exit_code_of
from baton.history.received import Received
from baton.jobs.verbs import Jobs
from baton.wire.payload import Event, check_signature, parse_event


class JobCursor:
    """A job as the registry last had it, and how far its events were passed on.

    `outcome` is its final status, once there is one. `gone`: the job was removed, and its end is unknown. `announced`
    are the numbers of verified messages that the registry did not have when they arrived."""

    __slots__ = ("announced", "counted", "gone", "job", "last_event", "last_seq", "outcome", "received")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.last_seq = 0
        self.last_event: EventName | None = None
        self.outcome: Status | None = None
        self.gone = False
        self.received = Received()
        self.announced: set[int] = set()
        self.counted = 0

    @property
    def is_over(self) -> bool:
        return self.gone or self.outcome is not None

    @property
    def exit_code(self) -> int:
        """Return the exit code for a job that is over."""
        return exit_code_of(self.outcome, self.job.ended_by)

    def check(self, event: Event) -> None:
        """Raise Rejected for an event that is not signed with the job's key, of another attempt, old, or too late.

        An accepted event is a reason to read the registry, and no more: the known key may be of an ended attempt."""
        if self.job.auth_token is None:
            raise Rejected("signature", "HMAC verify failed")
        check_signature(event, self.job.auth_token)
        # guard: event-attempt
        if event.attempt != self.job.attempt and not (event.attempt == 1 and self.job.attempt == 0):
            raise Rejected("attempt", "from another attempt")
        if event.seq <= self.last_seq:  # guard: event-number
            raise Rejected("seq", "seen before")
        if self.is_over:  # guard: event-after-end
            raise Rejected("lifecycle", "after the end")

    def advance(self, event: StoredEvent) -> int:
        """Move past an event; return how many numbers before it were skipped."""
        skipped = event.seq - self.last_seq - 1
        self.last_seq = event.seq
        self.last_event = event.event
        return skipped

    def take_unrecorded(self) -> int:
        """Return how many announced events the registry still does not have, without those of earlier calls."""
        self.announced = {seq for seq in self.announced if seq > self.job.last_seq}
        before, self.counted = self.counted, max(self.counted, len(self.announced))
        return self.counted - before

    def may_have_news(self, listed: Job | None) -> bool:
        """Return whether to read the job's events, given the job in a listing; None: it was not listed."""
        return not self.is_over and (listed is None or listed.last_seq > self.last_seq or listed.status in TERMINAL)

    def settle(self) -> bool:
        """Take over the final status of the job, after all its events; return whether it ended without an event."""
        if self.outcome is None and self.job.status in TERMINAL:
            self.outcome = self.job.status
        return self.outcome is not None and not (self.last_event and self.last_event.is_terminal)


Found = TypeVar("Found")


class Read(Protocol):
    def __call__(self, read: Callable[[], Found], /) -> Found: ...


_PAGE = 1_000
_REFRESH_SEC = 0.1
_LATE_NS = 60 * SECOND_NS  # how late a change may appear: slow commits, clocks of other hosts


class FollowedJobs:
    """The jobs that one listener follows: named ones, or with `follow_all` every job that has news.

    Each event is passed on once, as its payload without the signature. All reads of the registry go through `read`."""

    def __init__(
        self,
        jobs: Jobs,
        read: Read,
        job_ids: Iterable[str],
        *,
        follow_all: bool,
        log: Callable[[str], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._read = read
        self._follow_all = follow_all
        self._log = log
        self._monotonic = monotonic
        self._refreshed: dict[str, float] = {}
        self._began_ns = self._looked_ns = self._since_ns = time.time_ns()
        self.cursors = {job_id: JobCursor(jobs.get_job(job_id)) for job_id in dict.fromkeys(job_ids)}
        self.past_codes: set[int] = set()  # of jobs that were forgotten
        self.on_end: Callable[[Job], None] = lambda _job: None  # called for a job that ended without an event
        self.on_read: Callable[[Job], None] = lambda _job: None  # called with a job whenever it was read
        self.rejected: Counter[str] = Counter()
        # Messages that are no news: repeated ones, and, following all jobs, those about other registries' jobs.
        self.expected_rejections = frozenset({"seq", "over", "job"} if follow_all else {"seq"})

    def all_ended(self) -> bool:
        return not self._follow_all and all(cursor.is_over for cursor in self.cursors.values())

    def from_messages(self, messages: Iterable[tuple[str, bytes]]) -> Iterator[dict[str, Any]]:
        """Verify messages (topic, payload); yield the new events of the jobs that they announce."""
        announced: dict[str, JobCursor] = {}
        parsed: dict[bytes, Event] = {}
        for topic, raw in messages:
            try:
                event = parse_event(raw)
                announced[event.job_id] = self._verify(topic, raw, event)
                parsed[raw] = event
            except Rejected as why:
                self._reject(topic, raw, why)
        yield from self._new_events(announced.values(), parsed)
        for event in parsed.values():
            if event.seq > announced[event.job_id].job.last_seq:
                announced[event.job_id].announced.add(event.seq)

    def from_registry(self) -> Iterator[dict[str, Any]]:
        """Yield the new events of all jobs that have not ended."""
        cursors = self._find_news() if self._follow_all else self.cursors.values()
        yield from self._new_events([cursor for cursor in cursors if not cursor.is_over], {})
        self.report_unrecorded()

    def report_unrecorded(self) -> None:
        """Count the signed events that the registry does not have, though an event is recorded before it is sent."""
        count = sum(cursor.take_unrecorded() for cursor in self.cursors.values())
        if count:
            self.rejected["unrecorded"] += count
            what = "signed event is" if count == 1 else "signed events are"
            self._log(f"{count} {what} not in this registry: does its publisher use another one?")

    def _verify(self, topic: str, raw: bytes, event: Event) -> JobCursor:
        known = self.cursors.get(event.job_id)
        if topic not in (
            f"{topic_prefix(event.job_id)}/events",
            known and known.job.events_topic,
        ):  # guard: event-topic
            raise Rejected("topic", "about another job than its topic")
        cursor = known or self._new_cursor(event.job_id)
        if event.attempt > cursor.job.attempt:
            self._refresh(cursor)
        try:
            cursor.check(event)
        except Rejected as why:
            # The broker may have kept an event of an ended attempt, whose key has been replaced.
            outdated = why.reason == "signature" and event.attempt < cursor.job.attempt
            if not outdated or not self._is_recorded(event, raw):
                raise
            if event.seq <= cursor.last_seq:
                raise Rejected("seq", "seen before") from None
        return self.cursors.setdefault(event.job_id, cursor)

    def _is_recorded(self, event: Event, raw: bytes) -> bool:
        """Return whether the registry has exactly these bytes."""
        try:
            found = self._read(lambda: self._jobs.events_after(event.job_id, event.seq - 1, limit=1))
        except JobNotFound:
            return False
        return bool(found) and found[0].payload == raw

    def _new_cursor(self, job_id: str) -> JobCursor:
        """Return a cursor for a job that an unverified message names; it is kept once the message is verified."""
        if not self._follow_all:
            raise Rejected("job", "about a job that is not followed")
        try:
            job = self._read(lambda: self._jobs.get_job(job_id))
        except JobNotFound:
            raise Rejected("job", "about a job that is not in the registry") from None
        except InvalidValue as error:
            raise Rejected("job", f"about a job whose record cannot be read: {error}") from None
        if self._was_over(job):
            raise Rejected("over", "about a job that was over before")  # retained by the broker
        return JobCursor(job)

    def _refresh(self, cursor: JobCursor) -> None:
        """Read the job again, but not for every unverified message."""
        job_id, now = cursor.job.job_id, self._monotonic()
        if now - self._refreshed.get(job_id, -1.0) >= _REFRESH_SEC:
            self._refreshed[job_id] = now
            try:
                cursor.job = self._read(lambda: self._jobs.get_job(job_id))
            except JobNotFound:
                raise Rejected("job", "about a job that is not in the registry any more") from None

    def _reject(self, topic: str, raw: bytes, why: Rejected) -> None:
        job_id = topic.rsplit("/", 2)[-2] if topic.count("/") >= 2 else ""
        reason = why.reason if self._concerns_us(job_id) else "job"
        self.rejected[reason] += 1
        if self.rejected[reason] == 1 and reason not in self.expected_rejections:
            self._log(f"ignored a message of {len(raw)} bytes: {why}; more of this kind are only counted")
            if job_id in self.cursors:
                self._jobs.history.add_rejected(job_id, reason)

    def _concerns_us(self, job_id: str) -> bool:
        """Return whether a topic is of a job of this registry; other registries may use the same broker."""
        if not self._follow_all or job_id in self.cursors:
            return True
        try:
            self._read(lambda: self._jobs.get_job(job_id))
        except (JobNotFound, InvalidValue):
            return False
        return True

    def _find_news(self) -> list[JobCursor]:
        """Return, following all jobs, the cursors of those that may have news. A job may begin and end between two
        calls."""
        from baton.registry.contract import JobFilter

        now_ns = time.time_ns()
        self._began_ns = min(self._began_ns, now_ns)  # the clock may have been set back
        self._since_ns = max(self._began_ns, min(self._looked_ns, now_ns) - _LATE_NS)
        self._looked_ns = now_ns
        self._forget_ended()
        filters = (JobFilter(statuses=[Status.RUNNING]), JobFilter(left_from_ns=self._since_ns))
        listed: dict[str, Job] = {}
        for job in self._read(lambda: [each for where in filters for each in self._jobs.each_job(where)]):
            listed[job.job_id] = job
            if job.job_id not in self.cursors and job.last_seq and not self._was_over(job):
                self.cursors[job.job_id] = JobCursor(job)
        return [cursor for job_id, cursor in self.cursors.items() if cursor.may_have_news(listed.get(job_id))]

    def _forget_ended(self) -> None:
        """Forget the jobs whose end was passed on and is not news any more, or that were removed from the registry."""
        for job_id, cursor in list(self.cursors.items()):
            if cursor.is_over and (cursor.job.status not in TERMINAL or self._was_over(cursor.job)):
                self.past_codes.add(cursor.exit_code)
                self._refreshed.pop(job_id, None)
                del self.cursors[job_id]

    def _was_over(self, job: Job) -> bool:
        """Return whether the job ended before the listening began, or so long ago that its end was passed on."""
        return job.status in TERMINAL and parse_time(job.finished_at or job.updated_at) < self._since_ns

    def _new_events(self, cursors: Iterable[JobCursor], parsed: Mapping[bytes, Event]) -> Iterator[dict[str, Any]]:
        """Yield the new events of several jobs in order of time. `parsed` saves parsing the same bytes again."""
        sources = [self._new_events_of(cursor, parsed) for cursor in cursors]
        return heapq.merge(*sources, key=lambda payload: parse_time(payload["timestamp"]))

    def _new_events_of(self, cursor: JobCursor, parsed: Mapping[bytes, Event]) -> Iterator[dict[str, Any]]:
        """Yield a job's events beyond its cursor. The job is read before its events: when it has ended, all its events
        are there."""
        job_id = cursor.job.job_id
        try:
            cursor.job = self._read(lambda: self._jobs.get_job(job_id))
            self.on_read(cursor.job)
            count = _PAGE
            while count == _PAGE:
                events = self._read(lambda: self._jobs.events_after(job_id, cursor.last_seq, limit=_PAGE))
                count = len(events)
                yield from self._pass_on(cursor, events, parsed)
        except JobNotFound:
            self._end_removed(cursor)
            return
        if cursor.settle():
            cancelled = cursor.outcome is Status.CANCELLED
            self._log(f"job {job_id} was {'cancelled' if cancelled else f'set to {cursor.outcome}'}")
            self.on_end(cursor.job)

    def _pass_on(
        self, cursor: JobCursor, events: Iterable[StoredEvent], parsed: Mapping[bytes, Event]
    ) -> Iterator[dict[str, Any]]:
        job_id = cursor.job.job_id
        passed = []
        for stored in events:
            skipped = cursor.advance(stored)
            if skipped:
                self._log(f"job {job_id}: {skipped} numbers before #{stored.seq} were never used")
            try:
                event = parsed.get(stored.payload) or parse_event(stored.payload)
            except Rejected as why:  # recorded by another version, or changed by hand
                self._log(f"job {job_id}: event #{stored.seq} cannot be read ({why}) and is left out")
                continue
            payload = event.public()
            passed.append(payload)
            yield payload
        if passed:
            self._jobs.history.add_received(cursor.job, passed, cursor.received)

    def _end_removed(self, cursor: JobCursor) -> None:
        """Take the end of a job that was pruned from its history, which stays."""
        job_id = cursor.job.job_id
        try:
            status = self._jobs.history.status(job_id)
        except OSError:
            status = None
        if status in TERMINAL:
            cursor.outcome = Status(status)
            self._log(f"job {job_id} was removed from the registry; its audit log says {status}")
        else:
            cursor.gone = True
            self._log(f"job {job_id} is gone from the registry, and its audit log does not know how it ended")
