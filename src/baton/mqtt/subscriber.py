"""Listening to jobs: the broker brings the news at once, the registry brings it for certain.

paho's thread ──► bounded queue ──► one loop: verify, decide, pass on
                                      ▲
registry: at the start, after each reconnect, when a number is missing, and every few seconds
"""

from __future__ import annotations

import heapq
import queue
import time
from collections import Counter

from baton.broker.address import broker_address
from baton.clock import parse_time
from baton.errors import BrokerUnavailable, InvalidValue, JobNotFound, Rejected
from baton.model import TERMINAL, Status
from baton.mqtt.watch import Watch
from baton.wire.parse import parse_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Final

    from baton.config import Settings
    from baton.jobs import Jobs
    from baton.model import Job
    from baton.mqtt.session import BrokerSession

QUEUE_SIZE: Final = 1_000  # of at most 64 KiB each
_ROOM_SEC: Final = 0.2
_BATCH: Final = 500
_POLL_SEC: Final = 2.0
_POLL_WITHOUT_BROKER_SEC: Final = 0.25
_REFRESH_SEC: Final = 0.1
_MOST_WATCHES: Final = 10_000
_NOTHING: Final = ("", b"")  # wakes whoever waits for a message

TIMED_OUT: Final = 2
_CODES: Final = {Status.COMPLETED: 0, Status.ERROR: 1, Status.CANCELLED: 4}


class Subscription:
    """Events of some jobs, or of all jobs of a registry, each once and in order.

    Iterate over it: it yields the payloads, without their signature, and ends when all jobs have ended or a clock
    has run out. Then `exit_code` and `timed_out` tell how.
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
        first = next(iter(self._watches.values())).job if self._watches else None
        self._wall_sec = _limit("timeout", timeout_sec, first.timeout_sec if first else None)
        self._idle_sec = _limit("idle timeout", idle_timeout_sec, first.idle_timeout_sec if first else None)
        self._queue: queue.Queue[tuple[str, bytes]] = queue.Queue(QUEUE_SIZE)
        self._refreshed: dict[str, float] = {}
        self._sessions: list[BrokerSession] = []
        self._stopping = False
        self._began_ns = time.time_ns()
        self._no_news = frozenset({"seq", "over", "job"} if follow_all else {"seq"})
        self.rejected: Counter[str] = Counter()
        self.timed_out: str | None = None
        self.stopped = False

    # -- what came of it ---------------------------------------------------------------------------------------

    @property
    def exit_code(self) -> int:
        """0 all completed, 1 some error, 2 timed out, 4 some cancelled: the worst of all jobs."""
        codes = {_CODES[watch.outcome] for watch in self._watches.values() if watch.outcome is not None}
        if 1 in codes:
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
        self.connect()
        next_poll = began = last_news = self._monotonic()
        try:
            while not self._stopping:
                now = self._monotonic()
                if self._poll_is_due(now, next_poll):
                    for payload in self._catch_up_all():
                        last_news = self._monotonic()
                        yield payload
                    next_poll = now + (_POLL_SEC if self._connected() else _POLL_WITHOUT_BROKER_SEC)
                if self._all_ended() or self._out_of_time(self._monotonic(), began, last_news):
                    return
                for payload in self._next(next_poll):
                    last_news = self._monotonic()
                    yield payload
            self.stopped = True
        finally:
            self.close()

    def _next(self, next_poll: float) -> Iterator[dict[str, Any]]:
        """What the broker brought: waits for it until the registry is to be asked again."""
        messages = self._take_messages(max(next_poll - self._monotonic(), 0))
        received: dict[str, list[dict[str, Any]]] = {}
        for topic, raw in messages:
            for payload in self._from_wire(topic, raw):
                received.setdefault(payload["job_id"], []).append(payload)
                yield payload
        for job_id, payloads in received.items():
            self._jobs.log_received(job_id, payloads)

    def _deliver(self, message: tuple[str, bytes]) -> bool:
        try:
            self._queue.put(message, timeout=_ROOM_SEC)
        except queue.Full:
            return False
        return True

    def _take_messages(self, wait_sec: float) -> list[tuple[str, bytes]]:
        messages = []
        try:
            messages.append(self._queue.get(timeout=min(wait_sec, _POLL_SEC)) if wait_sec else self._queue.get_nowait())
            while len(messages) < _BATCH:
                messages.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return [message for message in messages if message is not _NOTHING]

    def _from_wire(self, topic: str, raw: bytes) -> Iterator[dict[str, Any]]:
        try:
            event = parse_event(raw)
            if topic != f"python/mqtt/jobs/{event.job_id}/events" and not self._is_topic_of(topic, event.job_id):
                raise Rejected("topic", "about another job than its topic")
            watch = self._watch(event.job_id)
            if event.attempt > watch.job.attempt:
                self._refresh(watch)
            in_order = watch.judge(event)
        except Rejected as why:
            self._reject(topic, raw, why)
            return
        if in_order:
            watch.passed_on(event)
            yield event.public()
        else:
            yield from self._catch_up(watch, logged=False)

    def _is_topic_of(self, topic: str, job_id: str) -> bool:
        watch = self._watches.get(job_id)
        return watch is not None and topic == watch.job.events_topic

    def _watch(self, job_id: str) -> Watch:
        watch = self._watches.get(job_id)
        if watch is not None:
            return watch
        if not self._follow_all:
            raise Rejected("job", "about a job nobody asked for")
        try:
            job = self._jobs.get_job(job_id)
        except JobNotFound:
            raise Rejected("job", "about a job that is not in the registry") from None
        if job.status in TERMINAL and parse_time(job.finished_at or job.updated_at) < self._began_ns:
            raise Rejected("over", "about a job that was over before")  # kept by the broker for who comes late
        if len(self._watches) >= _MOST_WATCHES:
            self._forget_ended()
        watch = self._watches[job_id] = Watch(job)
        return watch

    def _forget_ended(self) -> None:
        for job_id in [job_id for job_id, watch in self._watches.items() if watch.outcome is not None]:
            del self._watches[job_id]

    def _refresh(self, watch: Watch) -> None:
        """Reads the job again, but not at every word of somebody who only claims that there is news."""
        now = self._monotonic()
        if now - self._refreshed.get(watch.job.job_id, -1.0) >= _REFRESH_SEC:
            self._refreshed[watch.job.job_id] = now
            try:
                watch.refresh(self._jobs.get_job(watch.job.job_id))
            except JobNotFound:
                raise Rejected("job", "about a job that is not in the registry any more") from None

    def _reject(self, topic: str, raw: bytes, why: Rejected) -> None:
        job_id = topic.rsplit("/", 2)[-2] if topic.count("/") >= 2 else ""
        reason = why.reason if self._is_ours(job_id) else "job"
        self.rejected[reason] += 1
        if self.rejected[reason] == 1 and reason not in self._no_news:
            self._log(f"ignored a message of {len(raw)} bytes: {why}; more of this kind are only counted")
            if job_id in self._watches:
                self._jobs.log_rejected(job_id, reason)

    def _is_ours(self, job_id: str) -> bool:
        """Whether a message on the topic of that job concerns us; other registries may use the same broker."""
        if not self._follow_all or job_id in self._watches:
            return True
        try:
            self._jobs.get_job(job_id)
        except (JobNotFound, InvalidValue):
            return False
        return True

    # -- the registry ------------------------------------------------------------------------------------------

    def _catch_up_all(self) -> Iterator[dict[str, Any]]:
        if self._follow_all:
            self._follow_running()
        open_ones = [self._catch_up(watch) for watch in self._watches.values() if watch.outcome is None]
        yield from heapq.merge(*open_ones, key=lambda payload: parse_time(payload["timestamp"]))

    def _follow_running(self) -> None:
        from baton.registry.listing import JobFilter

        running = self._jobs.list_jobs(JobFilter(statuses=[Status.RUNNING]), limit=500)
        for job in running.jobs:
            self._watches.setdefault(job.job_id, Watch(job))

    def _catch_up(self, watch: Watch, *, logged: bool = True) -> Iterator[dict[str, Any]]:
        """Passes on what the registry has beyond the last event; the job's state is read first, so that a
        finished job's events are all there when it is found finished."""
        try:
            watch.refresh(self._jobs.get_job(watch.job.job_id))
            passed = []
            while events := self._jobs.events_after(watch.job.job_id, watch.last_seq):
                for event in events:
                    skipped = watch.passed_on(event)
                    if skipped:
                        self._log(f"job {watch.job.job_id}: {skipped} numbers before #{event.seq} were never used")
                    payload = parse_event(event.payload).public()
                    passed.append(payload)
                    yield payload
            if passed and logged:
                self._jobs.log_received(watch.job.job_id, passed)
        except JobNotFound:
            watch.outcome = watch.outcome or Status.CANCELLED
            self._log(f"job {watch.job.job_id} was removed from the registry")
            return
        if watch.ended() and watch.ended_by_hand():
            cancelled = watch.outcome is Status.CANCELLED
            self._log(f"job {watch.job.job_id} was {'cancelled' if cancelled else f'set to {watch.outcome}'}")

    # -- clocks and connections ----------------------------------------------------------------------------------

    def _all_ended(self) -> bool:
        return not self._follow_all and all(watch.outcome is not None for watch in self._watches.values())

    def _out_of_time(self, now: float, began: float, last_news: float) -> bool:
        if self._wall_sec is not None and now - began >= self._wall_sec:
            self.timed_out = f"timed out: {self._wall_sec:g} s have passed"
        elif self._idle_sec is not None and now - last_news >= self._idle_sec:
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
        from baton.mqtt.session import BrokerSession

        topics: dict[str, tuple[Any, list[str]]] = {}
        jobs: list[Job | None] = [watch.job for watch in self._watches.values()]
        for job in jobs or [None]:
            try:
                address = broker_address(self._settings, job, reading=True)
            except BrokerUnavailable as error:
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
            except BrokerUnavailable as error:
                self._no_broker(error)
        return sessions

    def _no_broker(self, error: BrokerUnavailable) -> None:
        self._log(f"{error}; listening to the registry alone")


def _limit(name: str, given: float | None, default: float | None) -> float | None:
    if given is None:
        return default
    if not 0 < given <= 366 * 86400:
        raise InvalidValue(name, "must be more than 0 seconds and at most a year")
    return given
