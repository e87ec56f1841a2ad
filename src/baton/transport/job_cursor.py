"""What a listener knows of one job, and what it makes of an event: decisions only, no I/O."""

from __future__ import annotations

from baton.core.errors import Rejected
from baton.core.event import EventName
from baton.core.job import TERMINAL
from baton.wire.parse import check_signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.event import StoredEvent
    from baton.core.job import Job, Status
    from baton.wire.parse import Event

_ENDS = frozenset({EventName.COMPLETED, EventName.ERROR})


class Watch:
    """`last_seq` and `last_event` are those of the last event passed on; `outcome` is the final status, once there is
    one. `gone`: the job was removed, and nobody knows how it ended."""

    __slots__ = ("gone", "job", "last_event", "last_seq", "outcome")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.last_seq = 0
        self.last_event: EventName | None = None
        self.outcome: Status | None = None
        self.gone = False

    @property
    def over(self) -> bool:
        return self.gone or self.outcome is not None

    def refresh(self, job: Job) -> None:
        """The job as the registry has it now: a new attempt brings a new key."""
        self.job = job

    def judge(self, event: Event) -> None:
        """Raises Rejected for what is not of this job, not signed with its key, old, or too late. What is left is a
        reason to ask the registry, and no more: the key we know may be that of an attempt that is over."""
        if self.job.auth_token is None:
            raise Rejected("signature", "HMAC verify failed")
        check_signature(event, self.job.auth_token)
        # guard: event-attempt
        if event.attempt != self.job.attempt and not (event.attempt == 1 and self.job.attempt == 0):
            raise Rejected("attempt", "from another attempt")
        if event.seq <= self.last_seq:  # guard: event-number
            raise Rejected("seq", "seen before")
        if self.over:  # guard: event-after-end
            raise Rejected("lifecycle", "after the end")

    def passed_on(self, event: StoredEvent) -> int:
        """Notes that an event was passed on; returns how many numbers were skipped before it."""
        skipped = event.seq - self.last_seq - 1
        self.last_seq = event.seq
        self.last_event = event.event
        return skipped

    def may_have_news(self, job: Job | None) -> bool:
        """Whether to read on in a job that a listing showed like this; None: it was not in the listing."""
        return not self.over and (job is None or job.last_seq > self.last_seq or job.status in TERMINAL)

    def ended(self) -> bool:
        """Whether the registry has the job as finished; to be asked after all its events were passed on."""
        if self.outcome is None and self.job.status in TERMINAL:
            self.outcome = self.job.status
        return self.outcome is not None

    def ended_by_hand(self) -> bool:
        """Whether the job ended without an event that says so."""
        return self.outcome is not None and self.last_event not in _ENDS
