"""Check jobs and sessions in a thread, while a command waits for jobs and no monitor runs."""

from __future__ import annotations

import os
import threading

from baton.core.errors import BatonError
from baton.delegation.reconcile import Reconciler, monitor_lock
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.storage.files import try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.config import Settings
    from baton.jobs.verbs import Jobs

_EVERY_SEC = 0.5
_SWEEP_SEC = 2.0
_LAST_STEP_SEC = 5.0


class BackgroundMonitor:
    """Runs its thread inside a `with` block. The thread also calls `look`, with a registry of its own."""

    def __init__(self, settings: Settings, look: Callable[[Jobs], None] = lambda _jobs: None) -> None:
        self._settings = settings
        self._look = look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_LAST_STEP_SEC)  # a session that it began to end, it also ends

    def _run(self) -> None:
        waited = 0.0
        with open_jobs(self._settings) as jobs:
            inventory = Inventory(self._settings)
            reconciler = Reconciler(self._settings, jobs, inventory)
            while not self._stop.wait(_EVERY_SEC):
                waited += _EVERY_SEC
                try:
                    self._look(jobs)
                    if waited >= _SWEEP_SEC:
                        waited = 0.0
                        _sweep(reconciler, inventory)
                except (BatonError, OSError):
                    continue  # the registry or the disk may be back the next time


def _sweep(reconciler: Reconciler, inventory: Inventory) -> None:
    if not os.path.isdir(inventory.home):
        return
    lock = try_lock(monitor_lock(inventory))
    if lock is None:
        return  # a monitor runs
    try:
        for _finding in reconciler.sweep():
            pass
    finally:
        os.close(lock)
