"""Convert jobs and events to rows of a table, and back. Times are columns of nanoseconds since 1970."""

from __future__ import annotations

import json

from baton.core.clock import format_time, parse_time
from baton.core.errors import InvalidRecord
from baton.core.event import EventName, StoredEvent
from baton.core.job import JOB_FIELDS, OWN_DEFAULTS, TIME_FIELDS, Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from baton.core.job import Broker

    Row = tuple[Any, ...]

# From `submitter` on, fields have no column: they are kept in `extra`, where 0.1.0 keeps the fields it does not know.
_NO_COLUMN = JOB_FIELDS[JOB_FIELDS.index("submitter") :]
_FIELDS = JOB_FIELDS[: -len(_NO_COLUMN)]
COLUMNS = (*_FIELDS, "extra")
ID = COLUMNS.index("job_id")
CREATED = COLUMNS.index("created_at")
# The `extra` of a job with a submitter begins with this: `row_of_job` writes the submitter first.
SUBMITTER_PREFIX = '{"submitter": "'
EVENT_COLUMNS = "job_id, seq, attempt, event, payload, sent"
_JSON = frozenset({"broker", "expected_artifacts", "labels"})
_TIME_RANGE_NS = 9 * 10**18


def row_of_job(job: Job) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(job, name)
        if name in TIME_FIELDS and value is not None:
            value = parse_time(value)
        elif name == "broker":
            value = broker_text(value)
        elif name in _JSON:
            value = json.dumps(value)
        elif name == "status":
            value = value.value
        row[name] = value
    added = {name: value for name in _NO_COLUMN if (value := getattr(job, name)) != OWN_DEFAULTS[name]}
    extra = added | job.extra
    row["extra"] = json.dumps(extra) if extra else None
    return row


def broker_text(broker: Broker) -> str:
    return json.dumps(broker.record())


def job_from_row(row: Row) -> Job:
    record = dict(zip(COLUMNS, row, strict=True))
    job_id = str(record["job_id"])
    extra = record.pop("extra")
    for name in TIME_FIELDS:
        value = record[name]
        if type(value) is int and abs(value) < _TIME_RANGE_NS:
            record[name] = format_time(value)
        elif value is not None or name in ("created_at", "updated_at"):
            raise InvalidRecord(job_id, name, "is not a number of nanoseconds")
    try:
        for name in _JSON:
            record[name] = json.loads(record[name])
        if extra is not None:
            record |= json.loads(extra)
    except (ValueError, TypeError):
        raise InvalidRecord(job_id, "record", "holds a column that is not JSON") from None
    return Job.parse(record, job_id, times_checked=True)


def valid_jobs(rows: Iterable[Row]) -> Iterator[Job]:
    """Return the jobs in these rows without the invalid ones."""
    for row in rows:
        try:
            yield job_from_row(row)
        except InvalidRecord:
            continue  # one invalid record must not stop the others; `list` and `doctor` name it


def event_from_row(row: Row) -> StoredEvent:
    job_id, seq, attempt, event, payload, sent = row
    return StoredEvent(
        job_id=job_id, seq=seq, attempt=attempt, event=EventName(event), payload=bytes(payload), sent=bool(sent)
    )


def row_of_event(event: StoredEvent) -> dict[str, Any]:
    return event.as_dict() | {"event": event.event.value, "sent": int(event.sent)}
