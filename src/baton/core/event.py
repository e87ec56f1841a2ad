"""Define the events about a job."""

from __future__ import annotations

from enum import StrEnum

from baton.core.errors import InvalidValue
from baton.core.value import Value


class EventName(StrEnum):
    """What an event says about its job."""

    STARTED = "started"
    PROGRESS = "progress"
    PERMISSION_REQUIRED = "permission_required"
    COMPLETED = "completed"
    ERROR = "error"

    @property
    def is_terminal(self) -> bool:
        """Whether the event ends its job."""
        return self in (EventName.COMPLETED, EventName.ERROR)


class StoredEvent(Value):
    """One signed event, as the registry keeps it. `payload` holds the bytes that go on the wire."""

    job_id: str
    seq: int
    attempt: int
    event: EventName
    payload: bytes
    sent: bool

    def __repr__(self) -> str:
        return f"<StoredEvent {self.job_id} seq={self.seq} {self.event} sent={self.sent}>"


def check_event_name(value: object) -> EventName:
    try:
        return EventName(value)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidValue("event", f"must be one of {', '.join(EventName)}") from None
