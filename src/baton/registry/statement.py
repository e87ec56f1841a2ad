"""What a statement about a job makes of it: the same on every backend, which stores it in one step."""

from __future__ import annotations

from baton.core import lifecycle
from baton.core.job import Status, new_token
from baton.registry.results import Recorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from baton.core.event import EventName
    from baton.core.job import Job


def stated(
    before: Job, event: EventName, detail: str, data: Mapping[str, Any], now_ns: int, holder: str = "operator"
) -> Recorded:
    """The job after the event, and the event as it is signed. Whoever speaks of a pending job claims it by that."""
    from baton.wire.payload import signed_event

    job = before
    if job.status is Status.PENDING:
        job = lifecycle.claim(job, holder=holder, now_ns=now_ns, token=new_token())
    elif job.auth_token is None or job.attempt == 0:
        job = lifecycle.adopt(job, token=new_token())
    stored = signed_event(job, event, detail, data, now_ns)
    after = lifecycle.after_event(job, event, seq=stored.seq, detail=detail, now_ns=now_ns)
    return Recorded(before=before, after=after, event=stored)
