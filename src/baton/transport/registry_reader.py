"""Read the registry for a listener, and wait while it is unavailable: a server restarts, and the jobs continue."""

from __future__ import annotations

import time

from baton.core.errors import RegistryUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from baton.core.event import StoredEvent
    from baton.core.job import Job
    from baton.jobs.verbs import Jobs
    from baton.registry.query import JobFilter

    Found = TypeVar("Found")

_AWAY_SEC = 60.0
_RETRY_SEC = 0.5


class RegistryReader:
    """Reads that are retried until `deadline()`, at most a minute; `on_return` is called after an outage."""

    def __init__(
        self,
        jobs: Jobs,
        *,
        monotonic: Callable[[], float],
        deadline: Callable[[], float],
        on_return: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self._jobs = jobs
        self._monotonic = monotonic
        self._deadline = deadline
        self._on_return = on_return
        self._log = log

    def get_job(self, job_id: str) -> Job:
        return self._retry(lambda: self._jobs.get_job(job_id))

    def events_after(self, job_id: str, seq: int, *, limit: int) -> list[StoredEvent]:
        return self._retry(lambda: self._jobs.events_after(job_id, seq, limit=limit))

    def list_jobs(self, where: JobFilter) -> list[Job]:
        return self._retry(lambda: list(self._jobs.each_job(where)))

    def _retry(self, read: Callable[[], Found]) -> Found:
        away_since: float | None = None
        while True:
            try:
                found = read()
            except RegistryUnavailable as error:
                now = self._monotonic()
                if away_since is None:
                    away_since = now
                    self._log(f"{error}; trying again")
                left = min(away_since + _AWAY_SEC, self._deadline()) - now
                if left <= 0:
                    raise
                time.sleep(min(_RETRY_SEC, left))
                continue
            if away_since is not None:
                self._on_return()
                self._log("the registry is back")
            return found
