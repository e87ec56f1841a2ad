"""Verify the results of a job in a thread, and report it as completed."""

from __future__ import annotations

import os
from functools import partial

from baton.config import Settings
from baton.core.errors import BatonError, NotVerified
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
    """One verification of a job. `message` is the last one of the agent, `folder` that of the session."""

    def __init__(self, ear: Ear, message: str | None, folder: str) -> None:
        self._message = message
        self._folder = folder
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
            note = self._watch_products(settings, job)
            try:
                reporter.completed(detail, message=self._message, confirm=partial(self._confirm, note))
            except NotVerified:
                if self._ear.begun == self._begun:
                    note()
                raise

    @property
    def is_done(self) -> bool:
        return self._call is not None and self._call.is_done

    def _confirm(self, note: Callable[[], None]) -> None:
        if self._ear.begun != self._begun:  # guard: void-verification
            raise Void("the agent began to work again while its results were verified")
        note()

    def _watch_products(self, settings: Settings, job: Job) -> Callable[[], None]:
        """Look at the worktree of a job before its validation. Return what to call afterwards: it notes the ignored
        files that the validation made. They are no work, if no other process of the session could make them."""
        path = (job.checkout or {}).get("path")
        if path is None or not job.validate or _works_on(settings, self._folder):  # guard: background-products
            return lambda: None
        from baton.worktrees import trees
        from baton.worktrees.contents import ignored_files, note_products
        from baton.worktrees.removal import file_system_time

        try:
            tree = trees.read(path)
            if tree is None:
                return lambda: None
            since_ns, before = file_system_time(tree.folder), ignored_files(tree)
        except (BatonError, OSError):
            return lambda: None  # what is not known to be a product counts as work

        def note() -> None:
            try:
                note_products(tree, before, since_ns)
            except (BatonError, OSError):
                pass  # they count as work: the worktree stays

        return note

    def result(self) -> None:
        """Raise what went wrong: NotVerified when a result is missing, Void when the agent began to work again."""
        assert self._call is not None
        self._call.result()


def _works_on(settings: Settings, folder: str) -> bool:
    """Return whether a process of the session is alive beside the agent's own program, which has ended its turn."""
    from baton.sessions.inventory import Inventory
    from baton.sessions.launch import read_begun

    inventory = Inventory(settings)
    session = inventory.find(os.path.basename(folder))
    own = (read_begun(folder) or {}).get("pid")
    return session is None or any(process.pid != own for process in inventory.agent_processes(session))
