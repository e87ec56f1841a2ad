"""Registry first, wire second: an event is part of the job's story before anybody hears of it, and stays there
until a broker has acknowledged it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from baton.broker.address import broker_address
from baton.clock import SECOND_NS, parse_time
from baton.errors import BrokerUnavailable, InvalidValue, NotVerified
from baton.model import EventName, Value, check_event_name
from baton.mqtt.client import Publisher
from baton.redact import process_redactor, shorten
from baton.wire.payload import MAX_DETAIL_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Final

    from baton.broker.address import Address
    from baton.config import Settings
    from baton.jobs import Jobs
    from baton.model import Job, StoredEvent

ATTEMPTS: Final = 3
_TERMINAL: Final = frozenset({EventName.COMPLETED, EventName.ERROR})
_LEFT_BEHIND_NS: Final = 15 * SECOND_NS
_OTHERS_AT_ONCE: Final = 100


class Published(Value):
    """`trouble` says why an event that is safe in the registry was not sent yet."""

    __slots__ = ("event", "trouble")

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
    tries: int = ATTEMPTS,
    sleep: Callable[[float], None] = time.sleep,
) -> Published:
    """Records the event and sends it, with whatever is still unsent before it. NotVerified, and nothing recorded,
    when `completed` is said while the work is not there."""
    job, stored = record(jobs, job_id, event, detail=detail, data=data, attempt=attempt, verify=verify)
    try:
        send_unsent(jobs, settings, job, tries=tries, sleep=sleep)
    except BrokerUnavailable as error:
        return Published(event=stored, trouble=str(error))
    return Published(event=stored, trouble=None)


def record(
    jobs: Jobs,
    job_id: str,
    event: str,
    *,
    detail: str = "",
    data: Mapping[str, Any] | None = None,
    attempt: int | None = None,
    verify: bool = True,
) -> tuple[Job, StoredEvent]:
    """The first half of publishing: what is said is checked and written into the registry."""
    name = check_event_name(event)
    if not isinstance(detail, str):
        raise InvalidValue("detail", f"must be text, not {type(detail).__name__}")
    if not isinstance(data, Mapping | None):
        raise InvalidValue("data", f"must be values by name, not {type(data).__name__}")
    job = jobs.get_job(job_id)
    if name is EventName.COMPLETED and (job.expected_artifacts or job.validate):
        _verify(jobs, job, insist=not verify)
    redactor = process_redactor(secrets=(job.auth_token, job.broker.password), workdir=job.workdir)
    stored = jobs.record_event(
        job_id,
        name,
        detail=shorten(redactor.text(detail), MAX_DETAIL_BYTES),
        data=redactor.value(dict(data or {})),
        attempt=attempt,
    )
    return job, stored


def send_unsent(
    jobs: Jobs, settings: Settings, job: Job, *, tries: int = ATTEMPTS, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Sends the unsent events of this job in order, then what other jobs left behind for the same broker."""
    for number in range(1, tries + 1):
        try:
            address = broker_address(settings, job)
            with Publisher(address) as connection:
                while events := jobs.unsent_events(job_id=job.job_id):
                    _send(jobs, connection, job, events)
                for other, left in _left_behind(jobs, job):
                    _send(jobs, connection, other, left)
        except BrokerUnavailable as error:
            if number == tries or not error.transient:
                raise
            sleep(min(0.5 * 2 ** (number - 1), 8.0))
        else:
            return


def clear_retained(settings: Settings, jobs: Sequence[Job]) -> int:
    """Takes the last messages of ended jobs from their brokers; returns how many."""
    by_broker: dict[str, tuple[Address, list[Job]]] = {}
    for job in jobs:
        address = broker_address(settings, job)
        by_broker.setdefault(repr(address), (address, []))[1].append(job)
    for address, theirs in by_broker.values():
        with Publisher(address) as connection:
            for job in theirs:
                connection.publish(job.events_topic, b"", retain=True)
    return len(jobs)


def _send(jobs: Jobs, connection: Publisher, job: Job, events: Sequence[StoredEvent]) -> None:
    acknowledged: list[int] = []
    try:
        for event in events:
            connection.publish(job.events_topic, event.payload, retain=event.event in _TERMINAL)
            acknowledged.append(event.seq)
    finally:
        if acknowledged:
            jobs.mark_sent(job.job_id, acknowledged)


def _left_behind(jobs: Jobs, job: Job) -> list[tuple[Job, list[StoredEvent]]]:
    """Unsent events of other jobs that nobody is sending just now, where they go to the same broker."""
    now_ns = time.time_ns()
    found: dict[str, list[StoredEvent]] = {}
    for event in jobs.unsent_events(limit=_OTHERS_AT_ONCE):
        said_ns = parse_time(json.loads(event.payload)["timestamp"])
        if event.job_id != job.job_id and not now_ns - _LEFT_BEHIND_NS < said_ns <= now_ns:
            found.setdefault(event.job_id, []).append(event)
    others = ((jobs.get_job(job_id), events) for job_id, events in found.items())
    return [(other, events) for other, events in others if other.broker == job.broker]


def _verify(jobs: Jobs, job: Job, *, insist: bool) -> None:
    from baton.verification import missing_results

    problems = [] if insist else missing_results(job)
    jobs.log_validation(job.job_id, problems, skipped=insist)
    if problems:
        raise NotVerified(f"job {job.job_id} is not completed: {'; '.join(problems)}; mend that and publish again")
