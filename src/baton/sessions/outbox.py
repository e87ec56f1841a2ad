"""Sends what a runner has recorded, from a thread: a broker that does not answer must not hold up the lease."""

from __future__ import annotations

import queue
import threading

from baton.jobs.verbs import open_jobs
from baton.transport.publish import FAILURES, send_unsent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from baton.config import Settings
    from baton.core.job import Job

_LAST_WORDS_SEC: Final = 8.0


class Outbox:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def send(self, job: Job) -> None:
        """Sends the job's unsent events soon. What cannot be sent is safe in the registry: the next event, or the
        monitor, sends it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._queue.put(job)

    def close(self) -> None:
        """Waits a little for what is still to be sent."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_LAST_WORDS_SEC)

    def _run(self) -> None:
        with open_jobs(self._settings) as jobs:
            while (job := self._queue.get()) is not None:
                try:
                    send_unsent(jobs, self._settings, job, tries=1)
                except FAILURES:
                    continue
