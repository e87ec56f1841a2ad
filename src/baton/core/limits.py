"""Decide whether a job, or the wait for it, has exceeded a limit. The runner, the listener and the monitor share it."""

from collections.abc import Callable
from enum import Enum

from baton.core.event import EventName
from baton.core.job import Job


class Limit(Enum):
    """A limit that was exceeded."""

    TIME = "time"
    SILENCE = "silence"

    @property
    def ended_by(self) -> str:
        """Return `ended_by` of a job that ends because it exceeds this limit."""
        return "timeout" if self is Limit.TIME else "idle"

    def describe(self, job: Job) -> str:
        """Return how the job exceeds this limit."""
        if self is Limit.TIME:
            return f"the job took longer than {job.timeout_sec} s"
        return f"nothing was heard of the job for {job.idle_timeout_sec} s"


def exceeded_limit(
    now: float,
    *,
    deadline: float | None,
    silent_since: float | None,
    idle_timeout: float | None,
    slack: float = 0,
    last_event: Callable[[], EventName | None] = lambda: None,
) -> Limit | None:
    """Return the limit that is exceeded at `now`, or None.

    All numbers are of one clock and one unit. None means that there is no such limit. `slack` is added to both limits.
    `last_event` is called only after a silence: a job that waits for a permission is not silent."""
    if deadline is not None and now >= deadline + slack:
        return Limit.TIME
    if silent_since is None or idle_timeout is None or now < silent_since + idle_timeout + slack:
        return None
    return None if last_event() is EventName.PERMISSION_REQUIRED else Limit.SILENCE
