"""What a runner says about its job: recorded at once, sent from the outbox. Without a job there is nothing to say."""

from __future__ import annotations

import json
import time

from baton.core.errors import EventRefused, RegistryUnavailable, StaleAttempt
from baton.core.event import EventName
from baton.core.job import TERMINAL, Status
from baton.core.redact import process_redactor
from baton.jobs.report import report
from baton.sessions.ending import ENDED_FROM_OUTSIDE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from baton.core.job import Job
    from baton.jobs.verbs import Jobs
    from baton.sessions.outbox import Outbox
    from baton.sessions.session import Session

_PROGRESS_EVERY_SEC: Final = 2.0
_PATIENCE_SEC: Final = 120.0


class Story:
    def __init__(self, jobs: Jobs, outbox: Outbox) -> None:
        self.job: Job | None = None
        self.jobs = jobs
        self._outbox = outbox
        self._began = 0.0
        self._heard = 0.0
        self._heard_seq = -1
        self._last_progress = float("-inf")

    def begin(self, job: Job | None) -> None:
        """From here on it is about this job, or about none."""
        self.job = job
        self._began = self._heard = time.monotonic()
        self._heard_seq = -1

    def environment(self) -> dict[str, str]:
        return {"BATON_JOB_ID": self.job.job_id, "BATON_ATTEMPT": str(self.job.attempt)} if self.job else {}

    def started(self, session: Session, pid: int) -> None:
        told = {"agent": session.agent, "session": session.name, "host": session.host, "pid": pid}
        self._say(EventName.STARTED, f"{session.agent} in session {session.name}", told)

    def progress(self, text: str) -> None:
        """At most one every few seconds: a talkative agent would drown everybody."""
        if time.monotonic() - self._last_progress >= _PROGRESS_EVERY_SEC:
            self._last_progress = time.monotonic()
            self._say(EventName.PROGRESS, text)

    def permission_required(self, text: str) -> None:
        self._say(EventName.PERMISSION_REQUIRED, text)

    def failed(self, text: str) -> None:
        self._say(EventName.ERROR, text)

    def over(self) -> bool:
        status = self.status()
        return status is None or status in TERMINAL

    def status(self) -> Status | None:
        """Of the job as it is now; None without one."""
        if self.job is None:
            return None
        job = self.jobs.get_job(self.job.job_id)
        if job.last_seq != self._heard_seq:
            self._heard_seq, self._heard = job.last_seq, time.monotonic()
        return job.status

    def renew(self, lease_sec: float) -> None:
        if self.job is not None and not self.over():
            self.jobs.renew_lease(self.job.job_id, attempt=self.job.attempt, lease_sec=lease_sec)

    def overdue(self, slack_sec: float) -> str | None:
        """Which of its two clocks the job has run over; the seconds it says nothing while it waits for a person's
        permission do not count."""
        if self.job is None:
            return None
        if time.monotonic() - self._began > self.job.timeout_sec + slack_sec:
            return f"the job took longer than {self.job.timeout_sec} s"
        if time.monotonic() - self._heard <= self.job.idle_timeout_sec + slack_sec:
            return None
        if self._waits():
            return None
        return f"nothing was heard of the job for {self.job.idle_timeout_sec} s"

    def send(self) -> None:
        """What others have said about it and could not send."""
        if self.job is not None:
            self._outbox.send(self.job)

    def ended_from_outside(self) -> bool:
        """Whether the job was ended by somebody else than its agent, which may still be at it."""
        if self.job is None:
            return False
        if self.jobs.get_job(self.job.job_id).status is Status.CANCELLED:
            return True
        last = self.jobs.events_after(self.job.job_id, self._heard_seq - 1)
        return bool(last) and ENDED_FROM_OUTSIDE in json.loads(last[-1].payload)["data"]

    def redact(self, text: str) -> str:
        """The text as it may be kept, line by line."""
        redactor = self.jobs.redactor(self.job) if self.job is not None else process_redactor()
        return "\n".join(redactor.text(line) for line in text.splitlines())

    def silent(self, for_sec: float) -> bool:
        """Whether there is a job that has said nothing for so long, and does not wait for a person's permission."""
        return self.status() is not None and time.monotonic() - self._heard >= for_sec and not self._waits()

    def _waits(self) -> bool:
        if self.job is None:
            return False
        last = self.jobs.events_after(self.job.job_id, self._heard_seq - 1)
        return bool(last) and last[-1].event is EventName.PERMISSION_REQUIRED

    def _say(self, event: EventName, text: str, data: dict[str, Any] | None = None) -> None:
        if self.job is None:
            return
        # The last word must not be lost because the store is away for a moment; another attempt may speak after that.
        deadline = time.monotonic() + (_PATIENCE_SEC if event is EventName.ERROR else 0.0)
        while True:
            try:
                report(self.jobs, self.job.job_id, event, detail=text, data=data, attempt=self.job.attempt)
                break
            except EventRefused:
                break  # its story is over; a hook that said so may have been ended before it sent that
            except StaleAttempt:
                return  # another's
            except RegistryUnavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.5)
        self._outbox.send(self.job)
