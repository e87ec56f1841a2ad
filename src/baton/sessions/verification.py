"""Verify the results of a job in a thread, and report it as completed."""

from __future__ import annotations

from functools import partial

from baton.config import Settings
from baton.core.errors import BatonError
from baton.core.job import Job
from baton.jobs.verbs import open_jobs
from baton.sessions.hearing import Ear
from baton.sessions.in_thread import InThread
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
        self._call: InThread | None = None

    def start(
        self, settings: Settings, send: Callable[[Job], object], job: Job, detail: str, wake: Callable[[], None]
    ) -> None:
        """Verify the results, and report the job as completed. Then call `wake`."""
        self._call = InThread(partial(self._run, settings, send, job, detail), wake)

    def _run(self, settings: Settings, send: Callable[[Job], object], job: Job, detail: str) -> None:
        with open_jobs(settings) as jobs:
            reporter = Reporter(jobs, send, job=job)
            reporter.renew_lease(settings.lease_sec)  # a full disk must fail this, not the validation
            reporter.completed(detail, message=self._message, confirm=self._confirm)

    @property
    def is_done(self) -> bool:
        return self._call is not None and self._call.is_done

    def _confirm(self) -> None:
        if self._ear.begun != self._begun:  # guard: void-verification
            raise Void("the agent began to work again while its results were verified")

    def result(self) -> None:
        """Raise what went wrong: NotVerified when a result is missing, Void when the agent began to work again."""
        assert self._call is not None
        self._call.result()
