"""What a listener knows of one job, and what it makes of an event: decisions only, no I/O."""

from __future__ import annotations

from baton.errors import Rejected
from baton.model import TERMINAL, EventName
from baton.wire.parse import check_signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.model import Job, Status, StoredEvent
    from baton.wire.parse import Event

_ENDS = frozenset({EventName.COMPLETED, EventName.ERROR})


class Watch:
    """`last_seq` and `last_event` are those of the last event passed on; `outcome` is the final status, once there is
    one."""

    __slots__ = ("job", "last_event", "last_seq", "outcome")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.last_seq = 0
        self.last_event: EventName | None = None
        self.outcome: Status | None = None

    def refresh(self, job: Job) -> None:
        """The job as the registry has it now: a new attempt brings a new key."""
        self.job = job

    def judge(self, event: Event) -> bool:
        """Whether a verified event from the wire can be passed on as it is. False: the registry must be asked
        first, because numbers are missing before it, or because it ends the job: the end is what the registry
        says. Raises Rejected for what is not of this job, not signed with its key, old, or too late."""
        if self.job.auth_token is None:
            raise Rejected("signature", "HMAC verify failed")
        check_signature(event, self.job.auth_token)
        if event.attempt != self.job.attempt and not (event.attempt == 1 and self.job.attempt == 0):
            raise Rejected("attempt", "from another attempt")
        if event.seq <= self.last_seq:
            raise Rejected("seq", "seen before")
        if self.outcome is not None:
            raise Rejected("lifecycle", "after the end")
        return event.seq == self.last_seq + 1 and event.event not in _ENDS

    def passed_on(self, event: Event | StoredEvent) -> int:
        """Notes that an event was passed on; returns how many numbers were skipped before it."""
        skipped = event.seq - self.last_seq - 1
        self.last_seq = event.seq
        self.last_event = event.event
        return skipped

    def ended(self) -> bool:
        """Whether the registry has the job as finished; to be asked after all its events were passed on."""
        if self.outcome is None and self.job.status in TERMINAL:
            self.outcome = self.job.status
        return self.outcome is not None

    def ended_by_hand(self) -> bool:
        """Whether the job ended without an event that says so."""
        return self.outcome is not None and self.last_event not in _ENDS
