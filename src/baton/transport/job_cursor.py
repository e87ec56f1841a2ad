"""Decide which events of one job are new to a listener. No I/O."""

from __future__ import annotations

from baton.core.errors import Rejected
from baton.core.event import EventName, StoredEvent
from baton.core.job import TERMINAL, Job, Status
from baton.wire.parse import Event, check_signature


class JobCursor:
    """A job as the registry last had it, and how far its events were passed on.

    `outcome` is its final status, once there is one. `gone`: the job was removed, and its end is unknown."""

    __slots__ = ("gone", "job", "last_event", "last_seq", "outcome")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.last_seq = 0
        self.last_event: EventName | None = None
        self.outcome: Status | None = None
        self.gone = False

    @property
    def is_over(self) -> bool:
        return self.gone or self.outcome is not None

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

    def may_have_news(self, listed: Job | None) -> bool:
        """Return whether to read the job's events, given the job in a listing; None: it was not listed."""
        return not self.is_over and (listed is None or listed.last_seq > self.last_seq or listed.status in TERMINAL)

    def settle(self) -> bool:
        """Take over the final status of the job, after all its events; return whether it ended without an event."""
        if self.outcome is None and self.job.status in TERMINAL:
            self.outcome = self.job.status
        return self.outcome is not None and not (self.last_event and self.last_event.is_terminal)
