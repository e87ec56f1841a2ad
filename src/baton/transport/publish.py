"""Registry first, wire second: an event is part of the job's story before anybody hears of it, and stays there
until a broker has acknowledged it."""

from __future__ import annotations

import json
import os
import time

from baton.broker.address import broker_address
from baton.core.clock import SECOND_NS, parse_time
from baton.core.errors import BatonError, BrokerUnavailable, InvalidRecord, JobNotFound
from baton.core.event import EventName
from baton.core.value import Value
from baton.jobs.report import report
from baton.transport.connection import Publisher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Final

    from baton.config import Settings
    from baton.core.event import StoredEvent
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs

TRIES: Final = 3
_TERMINAL: Final = frozenset({EventName.COMPLETED, EventName.ERROR})
_LEFT_BEHIND_NS: Final = 15 * SECOND_NS
_OTHERS_AT_ONCE: Final = 100
# What may keep an event from being sent: no broker, a state folder that cannot be used, settings that make no sense.
TROUBLE: Final = (BatonError, OSError, ValueError, TypeError, OverflowError)


class Published(Value):
    """`trouble` says why an event that is safe in the registry was not sent yet."""

    event: StoredEvent
    trouble: str | None

    def __repr__(self) -> str:
        return f"<Published {self.event!r} trouble={self.trouble!r}>"

    @property
    def sent(self) -> bool:
        return self.trouble is None


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
    """Records the event and sends it, with whatever is still unsent before it. NotVerified, and nothing recorded,
    when `completed` is said while the work is not there."""
    job, stored = report(jobs, job_id, event, detail=detail, data=data, attempt=attempt, verify=verify)
    try:
        send_unsent(jobs, settings, job, tries=tries, sleep=sleep)
    except TROUBLE as error:
        return Published(event=stored, trouble=words(error))
    return Published(event=stored, trouble=None)


def send_unsent(
    jobs: Jobs, settings: Settings, job: Job, *, tries: int = TRIES, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Sends the unsent events of this job in order, then what other jobs left behind for the same broker."""
    for number in range(1, tries + 1):
        try:
            address = broker_address(settings, job)
            with Publisher(address) as connection:
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
    """Takes the last messages of ended jobs from their brokers; returns how many. `away` gets what is wrong with a
    broker that cannot be asked; those already in it are passed over."""
    cleared = 0
    by_broker: dict[str, list[Job]] = {}
    for job in jobs:
        by_broker.setdefault(job.broker.key(), []).append(job)
    for key, theirs in by_broker.items():
        if key in away:
            continue
        try:
            with Publisher(broker_address(settings, theirs[0])) as connection:
                for job in theirs:
                    connection.publish(job.events_topic, b"", retain=True)
                    cleared += 1
        except TROUBLE as error:
            away[key] = words(error)
    return cleared


def _send(jobs: Jobs, connection: Publisher, job: Job, events: Sequence[StoredEvent]) -> None:
    acknowledged: list[int] = []
    try:
        for event in events:
            connection.publish(job.events_topic, event.payload, retain=event.event in _TERMINAL)
            acknowledged.append(event.seq)
    finally:
        if acknowledged:
            jobs.mark_sent(job.job_id, acknowledged)


def _send_left_behind(jobs: Jobs, connection: Publisher, job: Job) -> None:
    """Unsent events of other jobs that nobody is sending just now. They go along if they can; whatever is wrong with
    them is no trouble of ours."""
    now_ns = time.time_ns()
    found: dict[str, list[StoredEvent]] = {}
    try:
        for event in jobs.unsent_events(broker=job.broker, limit=_OTHERS_AT_ONCE):
            said_ns = parse_time(json.loads(event.payload)["timestamp"])
            if event.job_id != job.job_id and not now_ns - _LEFT_BEHIND_NS < said_ns <= now_ns:
                found.setdefault(event.job_id, []).append(event)
        # In any order: one that breaks the connection each time must not stand in front of the same ones for ever.
        for job_id in sorted(found, key=lambda _: os.urandom(4)):
            try:
                other = jobs.get_job(job_id)
            except (InvalidRecord, JobNotFound):
                continue
            _send(jobs, connection, other, found[job_id])
    except (*TROUBLE, KeyError):
        return


def words(error: Exception) -> str:
    if isinstance(error, BatonError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}; check the settings of the broker (baton config show)"
