"""Verify the results of a job in a thread, and report it as completed: meanwhile the runner renews the lease, answers
the agent and obeys a stop."""

from __future__ import annotations

from baton.config import Settings
from baton.core.errors import BatonError
from baton.core.job import Job
from baton.jobs.verbs import open_jobs
from baton.sessions.hearing import Ear
from baton.sessions.reporter import Reporter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Void(BatonError):
    """The agent began to work again while its results were verified."""


class Verification:
    """One verification of a job. `message` is the last one of the agent."""

    def __init__(self, ear: Ear, message: str | None) -> None:
        self._message = message
        self._ear = ear
        self._begun = ear.begun
        self._error: Exception | None = None
        self.is_done = False

    def start(
        self, settings: Settings, send: Callable[[Job], object], job: Job, detail: str, wake: Callable[[], None]
    ) -> None:
        """Verify the results, and report the job as completed. Then call `wake`."""
        from threading import Thread

        Thread(target=self._run, args=(settings, send, job, detail, wake), daemon=True).start()

    def _run(
        self, settings: Settings, send: Callable[[Job], object], job: Job, detail: str, wake: Callable[[], None]
    ) -> None:
        try:
            with open_jobs(settings) as jobs:
                reporter = Reporter(jobs, send, job=job)
                reporter.renew_lease(settings.lease_sec)  # a full disk must fail this, not the validation
                reporter.completed(detail, message=self._message, confirm=self._confirm)
        except Exception as error:  # noqa: BLE001  the main thread raises it
            self._error = error
        self.is_done = True
        wake()

    def _confirm(self) -> None:
        if self._ear.begun != self._begun:  # guard: void-verification
            raise Void("the agent began to work again while its results were verified")

    def result(self) -> None:
        """Raise what went wrong: NotVerified when a result is missing, Void when the agent began to work again."""
        if self._error is not None:
            raise self._error
