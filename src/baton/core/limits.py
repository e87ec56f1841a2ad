"""Decide whether a job, or the wait for it, has exceeded a limit. The runner, the listener and the monitor share it."""

from __future__ import annotations

from enum import Enum

from baton.core.clock import SECOND_NS, parse_time
from baton.core.event import EventName
from baton.core.job import TERMINAL, Status
from baton.core.outline import LIMITED, is_current, last_cause, present_ns
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from baton.core.clock import Clock
    from baton.core.job import Job

# Activities in which a job is not silent, as long as its runner says so.
PAUSING = frozenset({"blocked", "limited", "retrying", "waiting", "working"})


class Limit(Enum):
    """A limit that was exceeded."""

    TIME = "time"
    SILENCE = "silence"

    @property
    def ended_by(self) -> str:
        """Return `ended_by` of a job that ends because it exceeds this limit."""
        return "timeout" if self is Limit.TIME else "idle"

    def describe(self, job: Job, cause: str = "") -> str:
        """Return how the job exceeds this limit. `cause` is that of its last known activity (default: the one in its
        record)."""
        sec = job.timeout_sec if self is Limit.TIME else job.idle_timeout_sec
        return self.describe_sec(sec, cause or last_cause(job))

    def describe_sec(self, sec: float, cause: str = "") -> str:
        """Return how a job exceeds this limit of so many seconds."""
        text = "the job took longer than" if self is Limit.TIME else "nothing was heard of the job for"
        return f"{text} {sec:g} s" + (f"; last known: {cause}" if cause else "")


def is_paused(activity: Mapping[str, Any] | None, *, attempt: int, lease_is_fresh: bool) -> bool:
    """Return whether the activity in the record of a job pauses the idle clocks of listeners and the monitor: the
    runner, which knows more, lives and says that the job is not silent."""
    if activity is None or activity.get("attempt") != attempt:
        return False
    return lease_is_fresh and activity.get("kind") in PAUSING


def exceeded_limit(
    now: float,
    *,
    deadline: float | None,
    silent_since: float | None,
    idle_timeout: float | None,
    slack: float = 0,
    pauses: Callable[[], bool] = lambda: False,
) -> Limit | None:
    """Return the limit that is exceeded at `now`, or None.

    All numbers are of one clock and one unit. None means that there is no such limit. `slack` is added to both limits.
    `now` is a time at which, or after which, the process that asks has looked at what has happened to the job.
    `pauses` is called only after a silence: whether the idle clock pauses."""
    if deadline is not None and now >= deadline + slack:
        return Limit.TIME
    if silent_since is None or idle_timeout is None or now < silent_since + idle_timeout + slack:
        return None
    return None if pauses() else Limit.SILENCE


# How much later than it happens a change of activity may be in the registry.
LATE_SEC = 3.0
_NEXT_ATTEMPT_SEC = 15.0


def pauses_idle_clock(
    job: Job, *, clock: Clock, last_event: Callable[[], EventName | None], idle_sec: float | None = None
) -> bool:
    """Return whether the idle clock of a job pauses: by what its runner has written under a lease that holds. A job
    whose runner writes nothing, such as one that is worked by hand, waits after `permission_required`.

    `idle_sec` is a limit of the caller; without it, the limit is that of the job, which its runner enforces."""
    if job.status is Status.PENDING and may_wait(job):
        limit_ns = (job.idle_timeout_sec if idle_sec is None else idle_sec) * SECOND_NS
        return job.is_blocked or passed_ns(clock, parse_time(job.updated_at)) < limit_ns
    if job.status is not Status.RUNNING or job.activity is None:
        return job.status is Status.RUNNING and last_event() is EventName.PERMISSION_REQUIRED
    if not is_current(job, now_ns=present_ns(job, clock)):
        return False
    if idle_sec is None or is_paused(job.activity, attempt=job.attempt, lease_is_fresh=True):
        return True
    return passed_ns(clock, parse_time(job.activity["since"])) < (idle_sec + LATE_SEC) * SECOND_NS


def may_wait(job: Job) -> bool:
    """Return whether the job has waited, or may wait, before an attempt: for others, for a time, or for a retry."""
    return bool(job.after or job.not_before or job.retries)


def passed_ns(clock: Clock, since_ns: int) -> int:
    """Return how much time has passed since a date, without the time in which this process stood still."""
    return clock.wall_ns() - since_ns - clock.missed_ns(since_ns)


def is_at_limit(job: Job, *, clock: Clock) -> bool:
    """Return whether the agent of a running job waits for the end of a usage limit, in its session: no clock runs."""
    is_limited = job.activity is not None and job.activity["kind"] == LIMITED
    return job.status is Status.RUNNING and is_limited and is_current(job, now_ns=present_ns(job, clock))


def time_left_sec(job: Job, *, clock: Clock) -> float:
    """Return how much of its time limit a job has left that may wait: time in which it is blocked does not count, and
    each attempt has the whole limit. 0 for other jobs."""
    if is_at_limit(job, clock=clock):
        return float(job.timeout_sec)
    if job.status in TERMINAL or not may_wait(job):
        return 0.0
    if job.is_blocked:
        return float(job.timeout_sec)
    if job.status is Status.PENDING:
        began_ns = parse_time(job.updated_at)
    else:
        began_ns = 0 if job.deadline_at is None else parse_time(job.deadline_at) - job.timeout_sec * SECOND_NS
    # An attempt that is not the last one is ended by its runner, and another one follows.
    slack_sec = _NEXT_ATTEMPT_SEC if job.failed_attempts < job.retries else 0.0
    return job.timeout_sec + slack_sec - passed_ns(clock, began_ns) / SECOND_NS


def silent_since_ns(job: Job) -> int | None:
    """Return since when nothing is known of a job: its last event, or the last change of its activity."""
    times = [job.last_event_at, job.activity["since"] if job.activity is not None else None]
    return max((parse_time(each) for each in times if each is not None), default=None)
