"""Report on a job for its agent."""

import json
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from baton.config import Settings
from baton.core.activity import Verdict
from baton.core.clock import SECOND_NS, Clock, SystemClock
from baton.core.errors import EventRefused, NotVerified, RegistryUnavailable, StaleAttempt
from baton.core.event import EventName
from baton.core.job import TERMINAL, Job, Status
from baton.core.limits import Limit, exceeded_limit
from baton.core.parking import parking
from baton.core.result import last_lines
from baton.core.value import Value
from baton.jobs.report import report
from baton.jobs.verbs import Jobs, open_jobs
from baton.sessions.ending import ENDED_FROM_OUTSIDE, try_to_send
from baton.sessions.session import Session
from baton.sessions.terminal import print_line
from baton.wire.payload import MAX_DETAIL_BYTES

PROGRESS_EVERY_SEC = 5
MAX_REFUSALS = 3  # how often an agent is sent back to fix its results
_RETRY_SEC = 0.5
_CLOSE_SEC = 8.0


class Ending(Value):
    """What `report` keeps of the end of a job."""

    ended_by: str = "agent"
    reason: str | None = None
    message: str | None = None
    validation: str | None = None
    parked: Mapping[str, Any] | None = None


class Reporter:
    """Record what happens to the present job of a session, and pass the job to `send`. Without a job it does nothing.

    `patience_sec`: how long to retry while the registry is unavailable, for events that must not be lost.
    """

    def __init__(
        self,
        jobs: Jobs,
        send: Callable[[Job], object],
        *,
        job: Job | None = None,
        patience_sec: float = 0,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.jobs = jobs
        self._send = send
        self._patience_ns = int(patience_sec * SECOND_NS)
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self.begin(job)

    def begin(self, job: Job | None) -> None:
        """Report on this job from now on, or on none."""
        self.job = job
        self._began_ns = self._clock.monotonic_ns()
        self._seq = self._known_seq = 0 if job is None else job.last_seq
        self._own_seq = -1
        self._progress_ns: int | None = None
        self._refusals = 0

    def started(self, session: Session, pid: int) -> None:
        data = {"agent": session.agent, "session": session.name, "host": session.host, "pid": pid}
        self._record(EventName.STARTED, f"{session.agent} in session {session.name}", data)

    def progress(self, text: str) -> None:
        """Report progress, at most once in PROGRESS_EVERY_SEC seconds."""
        if self.job is not None and self._is_progress_due():
            self._record(EventName.PROGRESS, text)

    def permission_required(self, text: str) -> None:
        self._record(EventName.PERMISSION_REQUIRED, text, patience_ns=self._patience_ns)

    def failed(self, text: str, *, ended_by: str = "agent", message: str | None = None) -> None:
        """Report that the job failed, for this reason. `message` is the last one of the agent."""
        end = Ending(ended_by=ended_by, message=message)
        self._record(EventName.ERROR, text, patience_ns=self._patience_ns, end=end)

    def park(self, verdict: Verdict, conversation_id: str | None, host: str, *, has_answered: bool) -> None:
        """Return the job to its queue until a usage limit is over. `conversation_id` goes on then, on this host. If the
        model `has_answered` nothing since the last limit, wait longer than the agent said."""
        if self.job is None:
            return
        assert verdict.until_ns is not None
        parked = parking(
            self.job, verdict.until_ns, self._clock.wall_ns(), why=verdict.why, has_answered=has_answered
        ) | {"conversation_id": conversation_id, "host": host}
        end = Ending(ended_by=verdict.ended_by, parked=parked)
        self._record(EventName.ERROR, verdict.why, patience_ns=self._patience_ns, end=end)

    def extend_time(self, ns: int) -> None:
        """Give the job this much more time: its agent could not work."""
        self._began_ns += ns

    def refused(self, error: NotVerified) -> None:
        """Report that the job failed because its results were refused for the last time."""
        printed = last_lines(error.validation or "", longest=MAX_DETAIL_BYTES // 2)
        reason = f"{error.why}\n{printed}" if printed.strip() not in error.why else None
        end = Ending(ended_by="verification", reason=reason, validation=error.validation)
        self._record(EventName.ERROR, error.why, patience_ns=self._patience_ns, end=end)

    def completed(self, text: str, *, message: str | None, confirm: Callable[[], None] = lambda: None) -> None:
        """Report that the work is done, with the last message of the agent. Raise NotVerified while a result is
        missing. `confirm` is called after the verification and may raise, too."""
        self._record(EventName.COMPLETED, text, end=Ending(message=message or ""), confirm=confirm)

    def may_try_again(self) -> bool:
        """Count a refusal of the agent's results; return False when there have been MAX_REFUSALS before."""
        self._refusals += 1
        return self.job is not None and self._refusals <= MAX_REFUSALS

    def send(self) -> None:
        """Send events of the job that another process recorded and could not send."""
        if self.job is not None:
            self._send(self.job)

    def _record(
        self,
        event: EventName,
        text: str,
        data: dict[str, object] | None = None,
        *,
        patience_ns: int = 0,
        end: Ending | None = None,
        confirm: Callable[[], None] | None = None,
    ) -> None:
        if self.job is None:
            return
        deadline_ns = self._clock.monotonic_ns() + patience_ns
        job_id, attempt = self.job.job_id, self.job.attempt
        while True:
            try:
                more = {} if end is None else end.as_dict()
                _, recorded = report(
                    self.jobs, job_id, event, detail=text, data=data, attempt=attempt, confirm=confirm, **more
                )
                self._own_seq = recorded.seq
                break
            except EventRefused:
                break  # the job has ended; the process that reported it may have died before it sent that
            except StaleAttempt:
                return  # another attempt has the job
            except RegistryUnavailable:
                if self._clock.monotonic_ns() >= deadline_ns:
                    raise
                self._sleep(_RETRY_SEC)
        self._send(self.job)

    def _is_progress_due(self) -> bool:
        """Return whether the last progress is long enough ago; if so, note this one."""
        now_ns = self._clock.monotonic_ns()
        if self._progress_ns is not None and now_ns - self._progress_ns < PROGRESS_EVERY_SEC * SECOND_NS:
            return False
        self._progress_ns = now_ns
        return True

    def environment(self) -> dict[str, str]:
        """Return the variables by which `baton publish` finds the job."""
        return {"BATON_JOB_ID": self.job.job_id, "BATON_ATTEMPT": str(self.job.attempt)} if self.job else {}

    def status(self) -> Status | None:
        """Read the job and return its status; None without a job. It is pending when this attempt is over and the job
        is not, whatever has claimed it since."""
        if self.job is None:
            return None
        current = self.jobs.get_job(self.job.job_id)
        self._seq = current.last_seq
        is_ours = current.attempt == self.job.attempt or current.status in TERMINAL
        return current.status if is_ours else Status.PENDING

    def take_news(self) -> bool:
        """Return whether `status` has found an event of another process, such as the agent's `baton publish`, that was
        not found before."""
        is_news = self._seq > self._known_seq and self._seq != self._own_seq
        self._known_seq = self._seq
        return is_news

    def set_activity(self, activity: Mapping[str, Any], *, lease_sec: float | None = None) -> None:
        """Write what the agent is doing into the record of the job; with `lease_sec`, renew its lease, too."""
        if self.job is None or self.is_over():
            return
        written = self.jobs.registry.set_activity(
            self.job.job_id, activity, attempt=self.job.attempt, lease_sec=lease_sec
        )
        if written.notify_due:
            self._send(written)

    def is_over(self) -> bool:
        """Return whether there is no job, or one whose attempt has ended."""
        status = self.status()
        return status is not Status.RUNNING

    def renew_lease(self, lease_sec: float) -> None:
        if self.job is not None and not self.is_over():
            self.jobs.renew_lease(self.job.job_id, attempt=self.job.attempt, lease_sec=lease_sec)

    def exceeded_limit(self, idle_since_ns: int | None, slack_sec: float) -> Limit | None:
        """Return which limit the job has exceeded; None when it is within both. `idle_since_ns` is when its idle clock
        began; None while that pauses. `slack_sec` is added to the time that the job may take: `submit` enforces that
        limit, too, and acts first. The idle clock is the runner's own."""
        if self.job is None:
            return None
        is_shorter = self.job.idle_timeout_sec < self.job.timeout_sec  # else it would come first, for the slack
        return exceeded_limit(
            self._clock.monotonic_ns(),
            deadline=self._began_ns + (self.job.timeout_sec + slack_sec) * SECOND_NS,
            silent_since=idle_since_ns,
            idle_timeout=self.job.idle_timeout_sec * SECOND_NS if is_shorter else None,
        )

    def was_ended_from_outside(self) -> bool:
        """Return whether another process ended the job, or requeued it: the agent may still be working on it."""
        if self.job is None:
            return False
        status = self.status()
        if status is Status.CANCELLED:
            return True
        last = self.jobs.events_after(self.job.job_id, max(self._seq - 1, 0))
        data = json.loads(last[-1].payload)["data"] if last else {}
        return ENDED_FROM_OUTSIDE in data or (status is Status.PENDING and "attempt_failed" not in data)


class BackgroundSender:
    """Send recorded events from a thread: a broker that does not answer must not delay the lease."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._join: Callable[[float], None] | None = None

    def send(self, job: Job) -> None:
        """Send the unsent events of the job soon."""
        if self._join is None:
            from threading import Thread

            thread = Thread(target=self._run, daemon=True)
            thread.start()
            self._join = thread.join
        self._queue.put(job)

    def close(self) -> None:
        """Wait for the last events, for a limited time."""
        if self._join is not None:
            self._queue.put(None)
            self._join(_CLOSE_SEC)

    def _run(self) -> None:
        with open_jobs(self._settings) as jobs:
            while (job := self._queue.get()) is not None:
                try_to_send(self._settings, jobs, job)
                if self._settings.notify is not None:
                    from baton.sessions.notify import send_soon

                    send_soon(self._settings, jobs, job.job_id, print_line)
