"""What a runner says about its job: recorded at once, sent from the outbox. Without a job there is nothing to say."""

from __future__ import annotations

import time

from baton.errors import EventRefused, StaleAttempt
from baton.model import TERMINAL, EventName
from baton.mqtt.publisher import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from baton.jobs import Jobs
    from baton.model import Job, Status
    from baton.sessions.model import Session
    from baton.sessions.outbox import Outbox

_PROGRESS_EVERY_SEC: Final = 2.0


class Story:
    def __init__(self, jobs: Jobs, outbox: Outbox, job: Job | None) -> None:
        self.job = job
        self._jobs = jobs
        self._outbox = outbox
        self._began = time.monotonic()
        self._last_progress = float("-inf")

    @property
    def timeout_sec(self) -> int:
        return self.job.timeout_sec if self.job else 0

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

    def completed(self, text: str) -> None:
        """NotVerified when the results are not there."""
        self._say(EventName.COMPLETED, text)

    def failed(self, text: str) -> None:
        self._say(EventName.ERROR, text)

    def over(self) -> bool:
        status = self.status()
        return status is None or status in TERMINAL

    def status(self) -> Status | None:
        return self._jobs.get_job(self.job.job_id).status if self.job else None

    def renew(self, lease_sec: float) -> None:
        if self.job is not None and not self.over():
            self._jobs.renew_lease(self.job.job_id, attempt=self.job.attempt, lease_sec=lease_sec)

    def late(self, slack_sec: float) -> bool:
        return self.job is not None and time.monotonic() - self._began > self.job.timeout_sec + slack_sec

    def _say(self, event: EventName, text: str, data: dict[str, Any] | None = None) -> None:
        if self.job is None:
            return
        try:
            record(self._jobs, self.job.job_id, event, detail=text, data=data, attempt=self.job.attempt)
        except (EventRefused, StaleAttempt):
            return  # the job's story is over, or another's
        self._outbox.send(self.job)
