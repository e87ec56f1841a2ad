"""Park a job at a usage limit: until when it waits, and which conversation goes on after it. Pure functions."""

from __future__ import annotations

from baton.core.clock import SECOND_NS, format_micros
from baton.core.fields import one_line
from baton.core.job import Status
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.job import Job

_WHY = 300  # characters
# When the model has answered nothing since the last limit, the reset that the agent names cannot be right.
_MINUTE_NS = 60 * SECOND_NS
_AGAIN_SEC, _MOST_AGAIN_SEC = 60, 3600


def parking(job: Job, until_ns: int, now_ns: int, *, why: str, has_answered: bool) -> dict[str, Any]:
    """Return `parked` of a running job that reached a usage limit, without its conversation. It goes on at `until_ns`,
    the reset that the agent named; later if that was wrong the last time: after a minute, two, four, at most an
    hour."""
    until_ns = end_of_limit(until_ns)
    again = was_parked(job) and not has_answered and job.parked is not None
    in_a_row = job.parked["in_a_row"] + 1 if again and job.parked is not None else 1
    if in_a_row > 1:
        until_ns = max(until_ns, now_ns + min(_AGAIN_SEC * 2 ** (in_a_row - 2), _MOST_AGAIN_SEC) * SECOND_NS)
    return {
        "attempt": job.attempt,
        "since": format_micros(now_ns),
        "until": format_micros(max(until_ns, now_ns)),
        "why": one_line(why, _WHY),
        "in_a_row": in_a_row,
    }


def end_of_limit(until_ns: int) -> int:
    """Return when a limit is over for sure: one that was named to the minute may end with the last second of it."""
    return until_ns if until_ns % _MINUTE_NS else until_ns + _MINUTE_NS


def is_parked(job: Job) -> bool:
    """Return whether a job waits for the end of a usage limit."""
    return job.status is Status.PENDING and job.parked is not None and job.parked["attempt"] == job.attempt


def was_parked(job: Job) -> bool:
    """Return whether the present attempt of a running job goes on after a usage limit."""
    return job.status is Status.RUNNING and job.parked is not None and job.parked["attempt"] == job.attempt - 1


def kept_conversation(job: Job, host: str) -> str | None:
    """Return the conversation that goes on with this job after a usage limit; None: it begins anew."""
    if job.parked is None or not (is_parked(job) or was_parked(job)) or job.parked["host"] != host:
        return None
    found: str | None = job.parked["conversation_id"]
    return found
