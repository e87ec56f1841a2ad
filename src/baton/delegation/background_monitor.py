"""While somebody waits for jobs and no monitor runs: sessions that died without a word are noticed all the same."""

from __future__ import annotations

import os
import threading

from baton.core.errors import BatonError
from baton.delegation.monitor import Monitor, monitor_lock
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.storage.files import try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from baton.config import Settings
    from baton.jobs.verbs import Jobs

_EVERY_SEC: Final = 0.5
_RECONCILE_SEC: Final = 2.0
_LAST_STEP_SEC: Final = 5.0


class Reconciler:
    """For `with`: a thread of its own. `look`, if given, is called between whiles, with the thread's own registry."""

    def __init__(self, settings: Settings, look: Callable[[Jobs], None] = lambda _jobs: None) -> None:
        self._settings = settings
        self._look = look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_LAST_STEP_SEC)  # what it has begun with one session, it also ends

    def _run(self) -> None:
        waited = 0.0
        with open_jobs(self._settings) as jobs:
            inventory = Inventory(self._settings)
            monitor = Monitor(self._settings, jobs, inventory)
            while not self._over.wait(_EVERY_SEC):
                waited += _EVERY_SEC
                try:
                    self._look(jobs)
                    if waited >= _RECONCILE_SEC:
                        waited = 0.0
                        _reconcile(monitor, inventory)
                except (BatonError, OSError):
                    continue  # the next time may do


def _reconcile(monitor: Monitor, inventory: Inventory) -> None:
    if not os.path.isdir(inventory.home):
        return
    lock = try_lock(monitor_lock(inventory))
    if lock is None:
        return  # a monitor is running, and sees to it
    try:
        for _finding in monitor.reconcile():
            pass
    finally:
        os.close(lock)
