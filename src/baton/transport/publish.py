"""Send events: the registry first, the broker second. An event stays unsent until a broker has acknowledged it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence

from baton.broker.address import broker_address
from baton.config import Settings
from baton.core.clock import SECOND_NS, parse_time
from baton.core.errors import BrokerUnavailable, InvalidRecord, JobNotFound
from baton.core.event import StoredEvent
from baton.core.job import Job
from baton.core.value import Any, Value
from baton.jobs.report import report
from baton.jobs.verbs import Jobs
from baton.transport.publisher_connection import FAILURES, PublisherConnection, describe_failure

TRIES = 3
_LEFT_BEHIND_NS = 15 * SECOND_NS
_OTHERS_AT_ONCE = 100
KEEP_RETAINED_NS = 7 * 86400 * SECOND_NS  # after this the monitor clears the last message of a job


class Published(Value):
    """A recorded event. `trouble` says why it was not sent yet, or is None."""

    event: StoredEvent
    trouble: str | None

    @property
    def sent(self) -> bool:
        return self.trouble is None

    def __repr__(self) -> str:
        return f"<Published {self.event!r} trouble={self.trouble!r}>"


def publish_event(
    jobs: Jobs,
    settings: Settings,
    job_id: str,
    event: str,
    *,
    detail: str = "",
    data: Mapping[str, Any] | None = None,
    attempt: int | None = None,
    verify: bool = True,
    tries: int = TRIES,
    sleep: Callable[[float], None] = time.sleep,
) -> Published:
    """Report an event (see `baton.jobs.report`) and send it, after the job's unsent events before it."""
    job, stored = report(jobs, job_id, event, detail=detail, data=data, attempt=attempt, verify=verify)
    try:
        send_unsent(jobs, settings, job, tries=tries, sleep=sleep)
    except FAILURES as error:
        return Published(event=stored, trouble=describe_failure(error))
    return Published(event=stored, trouble=None)


def send_unsent(
    jobs: Jobs, settings: Settings, job: Job, *, tries: int = TRIES, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Send the unsent events of a job in order, then those that other jobs left behind for the same broker."""
    for number in range(1, tries + 1):
        try:
            with PublisherConnection(broker_address(settings, job)) as connection:
                while events := jobs.unsent_events(job_id=job.job_id):
                    _send(jobs, connection, job, events)
                _send_left_behind(jobs, connection, job)
        except BrokerUnavailable as error:
            if number == tries or not error.transient:
                raise
            sleep(min(0.5 * 2 ** (number - 1), 8.0))
        else:
            return


def clear_retained(settings: Settings, jobs: Sequence[Job], away: dict[str, str]) -> int:
    """Remove the retained messages of ended jobs from their brokers; return how many. Brokers in `away` are skipped,
    and one that cannot be reached is added to it with the reason."""
    cleared = 0
    by_broker: dict[str, list[Job]] = {}
    for job in jobs:
        by_broker.setdefault(job.broker.key(), []).append(job)
    for key, group in by_broker.items():
        if key in away:
            continue
        try:
            with PublisherConnection(broker_address(settings, group[0])) as connection:
                for job in group:
                    connection.publish(job.events_topic, b"", retain=True)
                    cleared += 1
        except FAILURES as error:
            away[key] = describe_failure(error)
    return cleared


def _send(jobs: Jobs, connection: PublisherConnection, job: Job, events: Sequence[StoredEvent]) -> None:
    acknowledged: list[int] = []
    try:
        for event in events:
            connection.publish(job.events_topic, event.payload, retain=event.event.is_terminal)
            acknowledged.append(event.seq)
    finally:
        if acknowledged:
            jobs.mark_sent(job.job_id, acknowledged)


def _send_left_behind(jobs: Jobs, connection: PublisherConnection, job: Job) -> None:
    """Send unsent events of other jobs that no process is sending now. A failure here is not one of this job."""
    now_ns = time.time_ns()
    found: dict[str, list[StoredEvent]] = {}
    try:
        for event in jobs.unsent_events(broker=job.broker, limit=_OTHERS_AT_ONCE):
            recorded_ns = parse_time(json.loads(event.payload)["timestamp"])
            if event.job_id != job.job_id and not now_ns - _LEFT_BEHIND_NS < recorded_ns <= now_ns:
                found.setdefault(event.job_id, []).append(event)
        # In random order: an event that breaks the connection each time must not block the same others for ever.
        for job_id in sorted(found, key=lambda _: os.urandom(4)):
            other = _find_job(jobs, job_id)
            if other is not None:
                _send(jobs, connection, other, found[job_id])
    except (*FAILURES, KeyError):
        return


def _find_job(jobs: Jobs, job_id: str) -> Job | None:
    try:
        return jobs.get_job(job_id)
    except (InvalidRecord, JobNotFound):
        return None  # its events stay unsent
