"""Listening to jobs: the broker says at once that there is news, the registry says what it is.

paho's thread ──► bounded queue ──► one loop: verify, then pass on what the registry has
                                      ▲
also at the start, after each reconnect, and every few seconds
"""

from __future__ import annotations

import heapq
import math
import queue
import time
from collections import Counter

from baton.broker.address import broker_address
from baton.core.clock import SECOND_NS, parse_time
from baton.core.errors import InvalidValue, JobNotFound, RegistryUnavailable, Rejected
from baton.core.job import TERMINAL, Status
from baton.transport.job_cursor import Watch
from baton.transport.publish import TROUBLE, words
from baton.wire.parse import parse_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Final, TypeVar

    Found = TypeVar("Found")

    from baton.config import Settings
    from baton.core.event import StoredEvent
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs
    from baton.registry.query import JobFilter
    from baton.transport.listener_connection import BrokerSession
    from baton.wire.parse import Event

QUEUE_SIZE: Final = 1_000  # of at most 64 KiB each
_ROOM_SEC: Final = 0.2
_BATCH: Final = 500
_PAGE: Final = 1_000
_POLL_SEC: Final = 2.0
_POLL_WITHOUT_BROKER_SEC: Final = 0.25
_REFRESH_SEC: Final = 0.1
_AWAY_SEC: Final = 60.0
_AGAIN_SEC: Final = 0.5
_MOST_WATCHES: Final = 10_000
_LATE_NS: Final = 60 * SECOND_NS  # how much later than it says a change may appear: slow commits, clocks of other hosts
_NOTHING: Final = ("", b"")  # wakes whoever waits for a message

TIMED_OUT: Final = 2
_CODES: Final = {Status.COMPLETED: 0, Status.ERROR: 1, Status.CANCELLED: 4}


class Subscription:
    """Events of some jobs, or of all jobs of a registry, each once and in order.

    Iterate over it: it yields the payloads, without their signature, and ends when all jobs have ended or a clock
    has run out. Then `exit_code` and `timed_out` tell how. A registry that goes away meanwhile is waited for.
    """

    def __init__(
        self,
        jobs: Jobs,
        settings: Settings,
        job_ids: Iterable[str],
        *,
        follow_all: bool = False,
        timeout_sec: float | None = None,
        idle_timeout_sec: float | None = None,
        owns_jobs: bool = False,
        log: Callable[[str], None] = lambda _line: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._settings = settings
        self._follow_all = follow_all
        self._owns_jobs = owns_jobs
        self._log = log
        self._monotonic = monotonic
        self._watches = {job_id: Watch(jobs.get_job(job_id)) for job_id in dict.fromkeys(job_ids)}
        if not self._watches and not follow_all:
            raise InvalidValue("job", "must be named, or all jobs followed")
        all_jobs = [watch.job for watch in self._watches.values()]
        self._wall_sec = _limit("timeout", timeout_sec, [job.timeout_sec for job in all_jobs])
        self._idle_sec = _limit("idle timeout", idle_timeout_sec, [job.idle_timeout_sec for job in all_jobs])
        self._queue: queue.Queue[tuple[str, bytes]] = queue.Queue(QUEUE_SIZE)
        self._refreshed: dict[str, float] = {}
        self._sessions: list[BrokerSession] = []
        self._stopping = False
        self._ends = math.inf
        self._last_news = 0.0
        self._began_ns = self._looked_ns = self._since_ns = time.time_ns()
        self._no_news = frozenset({"seq", "over", "job"} if follow_all else {"seq"})
        self.rejected: Counter[str] = Counter()
        self.timed_out: str | None = None
        self.stopped = False

    # -- what came of it ---------------------------------------------------------------------------------------

    @property
    def exit_code(self) -> int:
        """0 all completed, 1 some error, 2 timed out, 4 some cancelled: the worst of all jobs."""
        codes = {_CODES[watch.outcome] for watch in self._watches.values() if watch.outcome is not None}
        if 1 in codes or any(watch.gone for watch in self._watches.values()):
            return 1
        if self.timed_out is not None:
            return TIMED_OUT
        return max(codes, default=0)

    def suspicious(self) -> dict[str, int]:
        """How many messages were ignored, by reason, without those that are no news: what was heard twice (the registry
        is often quicker than the broker), and, following all jobs, what is not about ours."""
        return {reason: count for reason, count in sorted(self.rejected.items()) if reason not in self._no_news}

    def outcomes(self) -> dict[str, Status | None]:
        return {job_id: watch.outcome for job_id, watch in self._watches.items()}

    def job(self, job_id: str) -> Job:
        """As the registry has it now."""
        return self._ask(lambda: self._jobs.get_job(job_id))

    # -- listening ---------------------------------------------------------------------------------------------

    def connect(self, wait_sec: float = 0) -> bool:
        """Begins to listen; True once every broker has confirmed the subscription, at most `wait_sec` later."""
        if not self._sessions:
            self._sessions = self._open_sessions()
        deadline = self._monotonic() + wait_sec
        return all(session.subscribed.wait(max(deadline - self._monotonic(), 0)) for session in self._sessions)

    def close(self) -> None:
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.close(forget=self._all_ended())
        if self._owns_jobs:
            self._jobs.registry.close()

    def stop(self) -> None:
        """Ends the iteration, from another thread."""
        self._stopping = True
        try:
            self._queue.put_nowait(_NOTHING)
        except queue.Full:
            pass  # then nobody is waiting for it

    def __iter__(self) -> Iterator[dict[str, Any]]:
        next_poll = self._last_news = self._monotonic()
        self._ends = next_poll + (self._wall_sec or math.inf)
        self.connect()
        try:
            while not self._stopping:
                now = self._monotonic()
                if self._poll_is_due(now, next_poll):
                    for payload in self._catch_up_all():
                        self._last_news = self._monotonic()
                        yield payload
                    next_poll = now + (_POLL_SEC if self._connected() else _POLL_WITHOUT_BROKER_SEC)
                if self._all_ended() or self._out_of_time():
                    return
                until = min(next_poll, self._ends, self._last_news + (self._idle_sec or math.inf))
                for payload in self._from_wire(self._take_messages(until - self._monotonic())):
                    self._last_news = self._monotonic()
                    yield payload
            self.stopped = True
        except RegistryUnavailable:
            if not self._stopping and not self._out_of_time():
                raise
            self.stopped = self._stopping
        finally:
            self._ends = math.inf  # whoever asks for a job now has time
            self.close()

    def _deliver(self, message: tuple[str, bytes]) -> bool:
        try:
            self._queue.put(message, timeout=_ROOM_SEC)
        except queue.Full:
            return False
        return True

    def _take_messages(self, wait_sec: float) -> list[tuple[str, bytes]]:
        messages = []
        try:
            messages.append(self._queue.get(timeout=max(wait_sec, 0.001)))
            while len(messages) < _BATCH:
                messages.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return [message for message in messages if message is not _NOTHING]  # guard: idle-clock

    def _from_wire(self, messages: list[tuple[str, bytes]]) -> Iterator[dict[str, Any]]:
        """What these messages announce, as the registry has it: a message is a doorbell, and never passed on itself."""
        rung: dict[str, Watch] = {}
        for topic, raw in messages:
            try:
                watch = self._verify(topic, raw)
                rung[watch.job.job_id] = watch
            except Rejected as why:
                self._reject(topic, raw, why)
        return self._in_order_of_time(rung.values())

    def _verify(self, topic: str, raw: bytes) -> Watch:
        event = parse_event(raw)
        # guard: event-topic
        if topic != f"python/mqtt/jobs/{event.job_id}/events" and not self._is_topic_of(topic, event.job_id):
            raise Rejected("topic", "about another job than its topic")
        watch = self._watch(event.job_id)
        if event.attempt > watch.job.attempt:
            self._refresh(watch)
        try:
            watch.judge(event)
        except Rejected as why:
            # What the broker kept of an attempt that is over was signed with a key that is no longer there.
            outdated = why.reason == "signature" and event.attempt < watch.job.attempt
            if not outdated or not self._is_recorded(event, raw):
                raise
            if event.seq <= watch.last_seq:
                raise Rejected("seq", "seen before") from None
        return self._watches.setdefault(event.job_id, watch)

    def _is_recorded(self, event: Event, raw: bytes) -> bool:
        """Whether these very bytes are in the registry."""
        try:
            found = self._ask(lambda: self._jobs.events_after(event.job_id, event.seq - 1, limit=1))
        except JobNotFound:
            return False
        return bool(found) and found[0].payload == raw

    def _is_topic_of(self, topic: str, job_id: str) -> bool:
        watch = self._watches.get(job_id)
        return watch is not None and topic == watch.job.events_topic

    def _watch(self, job_id: str) -> Watch:
        """The watch of a job that somebody claims to have news of: one of ours, or one that becomes ours when the claim
        turns out to be true."""
        watch = self._watches.get(job_id)
        if watch is not None:
            return watch
        if not self._follow_all:
            raise Rejected("job", "about a job nobody asked for")
        try:
            job = self.job(job_id)
        except JobNotFound:
            raise Rejected("job", "about a job that is not in the registry") from None
        except InvalidValue as error:
            raise Rejected("job", f"about a job whose record cannot be read: {error}") from None
        if self._was_over(job):
            raise Rejected("over", "about a job that was over before")  # kept by the broker for who comes late
        return Watch(job)

    def _was_over(self, job: Job) -> bool:
        """Whether it ended before we began to listen, or so long ago that it was told already."""
        return job.status in TERMINAL and parse_time(job.finished_at or job.updated_at) < self._since_ns

    def _refresh(self, watch: Watch) -> None:
        """Reads the job again, but not at every word of somebody who only claims that there is news."""
        now = self._monotonic()
        if now - self._refreshed.get(watch.job.job_id, -1.0) >= _REFRESH_SEC:
            self._refreshed[watch.job.job_id] = now
            try:
                watch.refresh(self.job(watch.job.job_id))
            except JobNotFound:
                raise Rejected("job", "about a job that is not in the registry any more") from None

    def _reject(self, topic: str, raw: bytes, why: Rejected) -> None:
        job_id = topic.rsplit("/", 2)[-2] if topic.count("/") >= 2 else ""
        reason = why.reason if self._is_ours(job_id) else "job"
        self.rejected[reason] += 1
        if self.rejected[reason] == 1 and reason not in self._no_news:
            self._log(f"ignored a message of {len(raw)} bytes: {why}; more of this kind are only counted")
            if job_id in self._watches:
                self._jobs.history.add_rejected(job_id, reason)

    def _is_ours(self, job_id: str) -> bool:
        """Whether a message on the topic of that job concerns us; other registries may use the same broker."""
        if not self._follow_all or job_id in self._watches:
            return True
        try:
            self.job(job_id)
        except (JobNotFound, InvalidValue):
            return False
        return True

    # -- the registry ------------------------------------------------------------------------------------------

    def _catch_up_all(self) -> Iterator[dict[str, Any]]:
        watches = self._look() if self._follow_all else self._watches.values()
        return self._in_order_of_time(watch for watch in watches if not watch.over)

    def _in_order_of_time(self, watches: Iterable[Watch]) -> Iterator[dict[str, Any]]:
        stories = [self._catch_up(watch) for watch in watches]
        return heapq.merge(*stories, key=lambda payload: parse_time(payload["timestamp"]))

    def _look(self) -> list[Watch]:
        """Following all jobs: those that may have news. A job may begin and end between two looks."""
        from baton.registry.query import JobFilter

        now_ns = time.time_ns()
        self._began_ns = min(self._began_ns, now_ns)  # the clock may have been set back
        self._since_ns = max(self._began_ns, min(self._looked_ns, now_ns) - _LATE_NS)
        self._looked_ns = now_ns
        if len(self._watches) >= _MOST_WATCHES:
            self._watches = {name: each for name, each in self._watches.items() if not self._was_over(each.job)}
        found: dict[str, Job] = {}
        for where in (JobFilter(statuses=[Status.RUNNING]), JobFilter(updated_from_ns=self._since_ns)):
            for job in self._listed(where):
                found[job.job_id] = job
                if job.job_id not in self._watches and job.last_seq and not self._was_over(job):
                    self._watches[job.job_id] = Watch(job)
        return [watch for job_id, watch in self._watches.items() if watch.may_have_news(found.get(job_id))]

    def _listed(self, where: JobFilter) -> list[Job]:
        return self._ask(lambda: list(self._jobs.each_job(where)))

    def _catch_up(self, watch: Watch) -> Iterator[dict[str, Any]]:
        """Passes on what the registry has beyond the last event; the job's state is read first, so that a
        finished job's events are all there when it is found finished."""
        try:
            watch.refresh(self.job(watch.job.job_id))
            page = _PAGE
            while page == _PAGE:
                events = self._ask(lambda: self._jobs.events_after(watch.job.job_id, watch.last_seq, limit=_PAGE))
                page = len(events)
                yield from self._pass_on(watch, events)
        except JobNotFound:
            self._was_removed(watch)
            return
        if watch.ended() and watch.ended_by_hand():
            cancelled = watch.outcome is Status.CANCELLED
            self._log(f"job {watch.job.job_id} was {'cancelled' if cancelled else f'set to {watch.outcome}'}")

    def _pass_on(self, watch: Watch, events: list[StoredEvent]) -> Iterator[dict[str, Any]]:
        job_id = watch.job.job_id
        passed = []
        for event in events:
            skipped = watch.passed_on(event)
            if skipped:
                self._log(f"job {job_id}: {skipped} numbers before #{event.seq} were never used")
            try:
                payload = parse_event(event.payload).public()
            except Rejected as why:  # recorded by another version, or changed by hand
                self._log(f"job {job_id}: event #{event.seq} cannot be read ({why}) and is left out")
                continue
            passed.append(payload)
            yield payload
        if passed:
            self._jobs.history.add_received(job_id, passed)

    def _was_removed(self, watch: Watch) -> None:
        """A job may end and be pruned while nobody looks: then its history, which outlives it, knows the end."""
        job_id = watch.job.job_id
        try:
            status = self._jobs.history.status(job_id)
        except OSError:
            status = None
        if status in TERMINAL:
            watch.outcome = Status(status)
            self._log(f"job {job_id} was removed from the registry; its audit log says {status}")
        else:
            watch.gone = True
            self._log(f"job {job_id} is gone from the registry, and its audit log does not know how it ended")

    def _ask(self, read: Callable[[], Found]) -> Found:
        """What it reads; where the registry is away, once it is back: a server restarts, and the jobs go on meanwhile.
        That nothing was heard until then is no silence of theirs."""
        away_since: float | None = None
        while True:
            try:
                found = read()
            except RegistryUnavailable as error:
                now = self._monotonic()
                if away_since is None:
                    away_since = now
                    self._log(f"{error}; trying again")
                if self._stopping or now >= min(away_since + _AWAY_SEC, self._ends):
                    raise
                time.sleep(min(_AGAIN_SEC, self._ends - now))
                continue
            if away_since is not None:
                self._last_news = self._monotonic()
                self._log("the registry is back")
            return found

    # -- clocks and connections ----------------------------------------------------------------------------------

    def _all_ended(self) -> bool:
        return not self._follow_all and all(watch.over for watch in self._watches.values())

    def _out_of_time(self) -> bool:
        now = self._monotonic()
        if now >= self._ends:
            self.timed_out = f"timed out: {self._wall_sec:g} s have passed"
        elif self._idle_sec is not None and now - self._last_news >= self._idle_sec:
            self.timed_out = f"timed out: nothing was heard for {self._idle_sec:g} s"
        return self.timed_out is not None

    def _poll_is_due(self, now: float, next_poll: float) -> bool:
        came_back = [session for session in self._sessions if session.take_reconnected()]
        return bool(came_back) or now >= next_poll

    def _connected(self) -> bool:
        for session in self._sessions:
            session.complain_if_silent()
        return bool(self._sessions) and all(session.subscribed.is_set() for session in self._sessions)

    def _open_sessions(self) -> list[BrokerSession]:
        """One connection a broker; nearly always there is one broker."""
        from baton.transport.listener_connection import BrokerSession

        topics: dict[str, tuple[Any, list[str]]] = {}
        jobs: list[Job | None] = [watch.job for watch in self._watches.values()]
        for job in jobs or [None]:
            try:
                address = broker_address(self._settings, job, reading=True)
            except TROUBLE as error:
                self._no_broker(error)
                continue
            topic = "python/mqtt/jobs/+/events" if self._follow_all or job is None else job.events_topic
            topics.setdefault(repr(address), (address, []))[1].append(topic)
        sessions = []
        for address, names in topics.values():
            try:
                sessions.append(
                    BrokerSession(address, sorted(set(names)), self._settings.state_dir, self._deliver, self._log)
                )
            except TROUBLE as error:
                self._no_broker(error)
        return sessions

    def _no_broker(self, error: Exception) -> None:
        self._log(f"{words(error)}; listening to the registry alone")


def _limit(name: str, given: float | None, of_jobs: list[int]) -> float | None:
    if given is None:
        return max(of_jobs, default=None)
    if not 0 < given <= 366 * 86400:
        raise InvalidValue(name, "must be more than 0 seconds and at most a year")
    return given
