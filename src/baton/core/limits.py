"""Decide whether a job, or the wait for it, has exceeded a limit. The runner, the listener and the monitor share it."""

from collections.abc import Callable
from enum import Enum

from baton.core.event import EventName


class Limit(Enum):
    """A limit that was exceeded."""

    TIME = "time"
    SILENCE = "silence"


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
