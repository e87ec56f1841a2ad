"""Listen to jobs: the broker announces news at once, the registry has the events.

paho's thread ──► bounded queue ──► one loop: verify the messages, pass on new events of the registry
                                      ▲
                 also at the start, after each reconnect, and every few seconds
"""

import math
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from baton.config import Settings
from baton.core.awake_clock import FOREVER_SEC, AwakeClock
from baton.core.clock import SECOND_NS, Clock
from baton.core.errors import InvalidValue, JobNotFound, RegistryUnavailable
from baton.core.job import Job, Status
from baton.core.limits import Limit, exceeded_limit, pauses_idle_clock, time_left_sec
from baton.core.outcome import outcome_of, outcome_of_gone
from baton.core.request import Request
from baton.jobs.verbs import Jobs
from baton.transport.followed_jobs import FollowedJobs
from baton.transport.listener_connection import ListenerConnection

Found = TypeVar("Found")

QUEUE_SIZE = 1_000  # of at most 64 KiB each
_ROOM_SEC = 0.2
_BATCH = 500
_POLL_SEC = 2.0
_POLL_WITHOUT_BROKER_SEC = 0.25
_LOOK_SEC = 0.5  # it reads its clock so often, to notice that it stood still
_AWAY_SEC = 60.0
_RETRY_SEC = 0.5
_WAKE_UP = ("", b"")  # in the queue: ends the wait for a message


class Subscription:
    """The events of some jobs, or of all jobs of a registry, each once and in order.

    Iterate over it: it yields payloads without their signature, and ends when all jobs have ended or a time limit is
    exceeded. Then `exit_code`, `outcomes()` and `timed_out` say how. It waits for a registry that is unavailable.
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
        clock: Clock | None = None,
    ) -> None:
        self._jobs = jobs
        self._settings = settings
        self._follow_all = follow_all
        self._owns_jobs = owns_jobs
        self._log = log
        self._clock = clock or AwakeClock()
        self.events = FollowedJobs(jobs, self._read, job_ids, follow_all=follow_all, log=log, monotonic=self._monotonic)
        followed = [cursor.job for cursor in self.events.cursors.values()]
        if not followed and not follow_all:
            raise InvalidValue("job", "must be named, or all jobs followed")
        self._timeout_sec = _limit("timeout", timeout_sec, [job.timeout_sec for job in followed])
        self._idle_sec = _limit("idle timeout", idle_timeout_sec, [job.idle_timeout_sec for job in followed])
        self._own_idle_sec = idle_timeout_sec
        self._by_job = timeout_sec is None  # the limit is that of the jobs, not of this listener
        self._queue: queue.Queue[tuple[str, bytes]] = queue.Queue(QUEUE_SIZE)
        self._connections: list[ListenerConnection] = []
        self._has_tried = False  # to connect: a broker that cannot be used is reported once
        self._stopping = False
        self._deadline = math.inf
        self._last_news = 0.0
        self.timed_out: str | None = None
        self.limit: Limit | None = None  # that made it time out
        self.stopped = False

    @property
    def exit_code(self) -> int:
        """0 all completed, 1 some error, 2 some job or this listener timed out, 4 some cancelled: the worst of all."""
        codes = {cursor.exit_code for cursor in self.events.cursors.values() if cursor.is_over}
        codes |= self.events.past_codes
        if self.timed_out is not None:
            codes.add(2)
        return next((code for code in (1, 2, 4) if code in codes), 0)

    @property
    def rejected(self) -> Counter[str]:
        """How many messages were rejected, by reason."""
        return self.events.rejected

    def suspicious(self) -> dict[str, int]:
        """Return how many messages were rejected, by reason, without those that are to be expected."""
        expected = self.events.expected_rejections
        return {reason: count for reason, count in sorted(self.rejected.items()) if reason not in expected}

    def outcomes(self) -> dict[str, Status | None]:
        """Return how each job ended; None for one that has not. With `follow_all`, of the last minute only."""
        return {job_id: cursor.outcome for job_id, cursor in self.events.cursors.items()}

    def job(self, job_id: str) -> Job:
        """Return the job as the registry has it now."""
        return self._read(lambda: self._jobs.get_job(job_id))

    def find_job(self, job_id: str) -> Job | None:
        """Return the job as the registry has it now; None if it was pruned."""
        try:
            return self.job(job_id)
        except JobNotFound:
            return None

    def open_requests(self) -> list[Request]:
        """Return the questions of the agents of the followed jobs that wait for an answer."""
        going_on = [job_id for job_id, cursor in self.events.cursors.items() if not cursor.is_over]
        list_requests = self._jobs.registry.list_requests
        return [each for job_id in going_on for each in self._read(partial(list_requests, job_id=job_id))]

    def last_outcomes(self, *, of_all: bool = False) -> list[dict[str, Any]]:
        """Return the outcome of each job, after the iteration: of those that timed out, or that this listener stopped
        to follow; with `of_all`, of every job."""
        found = []
        for job_id, cursor in self.events.cursors.items():
            job = self.find_job(job_id)
            outcome = outcome_of_gone(job_id, cursor.outcome) if job is None else outcome_of(job)
            if of_all or outcome["timed_out"] is not None:
                found.append(outcome)
        return found

    def connect(self, wait_sec: float = 0) -> bool:
        """Begin to listen; return whether every broker confirms the subscription within `wait_sec`. One that cannot be
        reached is not waited for; it is tried again."""
        if not self._has_tried:
            self._has_tried = True
            from baton.transport.listener_connection import connect_listeners

            self._connections = connect_listeners(
                self._settings,
                [cursor.job for cursor in self.events.cursors.values()],
                follow_all=self._follow_all,
                deliver=self._deliver,
                log=self._log,
            )
        deadline = self._monotonic() + wait_sec
        return all(each.wait(max(deadline - self._monotonic(), 0)) for each in self._connections)

    def close(self) -> None:
        connections, self._connections, self._has_tried = self._connections, [], False
        for connection in connections:
            connection.close(forget=self.events.all_ended())
        if self._owns_jobs:
            self._jobs.registry.close()

    def stop(self) -> None:
        """End the iteration, from another thread."""
        self._stopping = True
        try:
            self._queue.put_nowait(_WAKE_UP)
        except queue.Full:
            pass  # the loop does not wait while there are messages

    def __iter__(self) -> Iterator[dict[str, Any]]:
        next_poll = self._last_news = self._monotonic()
        self._deadline = next_poll + (self._timeout_sec or math.inf)
        self.connect()
        try:
            while not self._stopping:
                now = self._monotonic()
                # The registry is read before a limit is applied: the job may have ended.
                if self._has_reconnected() or now >= min(next_poll, self._first_limit()):
                    yield from self._note_each(self.events.from_registry())
                    next_poll = now + (_POLL_SEC if self._is_connected() else _POLL_WITHOUT_BROKER_SEC)
                if self.events.all_ended() or self._is_out_of_time(now):
                    return
                until = min(next_poll, self._first_limit())
                messages = self._take_messages(until - self._monotonic())
                yield from self._note_each(self.events.from_messages(messages))
            self.stopped = True
        except RegistryUnavailable:
            if not self._stopping and not self._is_out_of_time(self._monotonic(), readable=False):
                raise
            self.stopped = self._stopping
        finally:
            self._deadline = math.inf  # `job` is no longer limited
            self.events.report_unrecorded()
            self.close()

    def _note_each(self, payloads: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for payload in payloads:
            self._note_news()
            self._clock.will_read_in(FOREVER_SEC)  # what the caller does meanwhile takes time
            yield payload
            self._clock.will_read_in(0)

    def _monotonic(self) -> float:
        return self._clock.monotonic_ns() / SECOND_NS

    def _first_limit(self) -> float:
        """Return when the first limit is exceeded if nothing is heard until then."""
        return min(self._deadline, self._last_news + (self._idle_sec or math.inf))

    def _note_news(self) -> None:
        self._last_news = self._monotonic()

    def _deliver(self, message: tuple[str, bytes]) -> bool:
        try:
            self._queue.put(message, timeout=_ROOM_SEC)
        except queue.Full:
            return False
        return True

    def _take_messages(self, wait_sec: float) -> list[tuple[str, bytes]]:
        wait_sec = min(max(wait_sec, 0.001), _LOOK_SEC)
        self._clock.will_read_in(wait_sec)
        try:
            messages = [self._queue.get(timeout=wait_sec)]
        except queue.Empty:
            return []
        while len(messages) < _BATCH and not self._queue.empty():
            messages.append(self._queue.get_nowait())
        return [message for message in messages if message is not _WAKE_UP]  # guard: idle-clock

    def _read(self, read: Callable[[], Found]) -> Found:
        """Read the registry; wait while it is unavailable: a server restarts, and the jobs continue meanwhile."""
        away_since: float | None = None
        while True:
            try:
                found = read()
            except RegistryUnavailable as error:
                now = self._monotonic()
                if away_since is None:
                    away_since = now
                    self._log(f"{error}; trying again")
                if self._stopping or now >= min(away_since + _AWAY_SEC, self._deadline):
                    raise
                time.sleep(min(_RETRY_SEC, self._deadline - now))
                self._clock.will_read_in(_AWAY_SEC)  # a server that does not answer takes time
                continue
            if away_since is not None:
                self._note_news()  # the jobs were not silent, they could not be heard
                self._log("the registry is back")
                self._clock.will_read_in(0)
            return found

    def _is_out_of_time(self, now: float, *, readable: bool = True) -> bool:
        """Return whether a limit is exceeded at `now`, after which the registry was read. `readable`: it can be
        read."""
        limit = exceeded_limit(
            now,
            deadline=self._deadline,
            silent_since=self._last_news,
            idle_timeout=self._idle_sec,
            pauses=self._is_paused if readable else lambda: False,
        )
        if limit is Limit.TIME and readable and self._by_job and self._gain_time():
            return False
        if limit is Limit.TIME:
            self.timed_out = f"timed out: {self._timeout_sec:g} s have passed"
        elif limit is Limit.SILENCE:
            self.timed_out = f"timed out: nothing was heard for {self._idle_sec:g} s"
        self.limit = self.limit or limit
        return limit is not None

    def _gain_time(self) -> bool:
        """Extend the limit if a followed job has time left, because it was blocked or is tried again. Return whether it
        has."""
        going_on = [job_id for job_id, cursor in self.events.cursors.items() if not cursor.is_over]
        found = [job for job_id in going_on if (job := self.find_job(job_id)) is not None]
        left_sec = max((time_left_sec(job, clock=self._clock) for job in found), default=0.0)
        if left_sec > 0:
            self._deadline = self._monotonic() + left_sec
        return left_sec > 0

    def _is_paused(self) -> bool:
        """Return whether the idle clock of a followed job pauses, by the registry as it is now: then the silence begins
        now. Following all jobs, only events count."""
        for job_id, cursor in () if self._follow_all else self.events.cursors.items():
            job = None if cursor.is_over else self.find_job(job_id)
            if job is not None and self._pauses(job):
                self._note_news()
                return True
        return False

    def _pauses(self, job: Job) -> bool:
        # Of a job that is worked by hand, only events count.
        return pauses_idle_clock(job, clock=self._clock, last_event=lambda: None, idle_sec=self._own_idle_sec)

    def _has_reconnected(self) -> bool:
        return any(connection.take_reconnected() for connection in self._connections)

    def _is_connected(self) -> bool:
        for connection in self._connections:
            connection.report_silence()
        return bool(self._connections) and all(connection.subscribed.is_set() for connection in self._connections)


def _limit(name: str, given: float | None, of_jobs: list[int]) -> float | None:
    if given is None:
        return max(of_jobs, default=None)
    if not 0 < given <= 366 * 86400:
        raise InvalidValue(name, "must be more than 0 seconds and at most a year")
    return given
