"""monitor: find jobs and sessions that died or take too long, and requeue, fail or stop them."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing

from baton.cli import options as opt
from baton.cli.homes import refuse_one_home
from baton.cli.output import json_text, say
from baton.cli.parser import Options, Verb
from baton.config import Home, Settings, hide_password
from baton.core.awake_clock import AwakeClock
from baton.core.errors import BatonError, InvalidValue, RegistryMoved
from baton.core.fields import one_line
from baton.delegation.monitor import Monitor
from baton.delegation.reconcile import lock_of_all_homes, take_monitor_lock
from baton.jobs.verbs import open_jobs
from baton.registry import registry_url
from baton.sessions.inventory import Inventory
from baton.storage.files import make_home, try_lock
from baton.storage.homes import known, load_settings, make_state, settings_of


class _Watch:
    """The monitor of one home. `folder`: the folder that the home serves, where there are several."""

    def __init__(self, settings: Settings, options: Options, clock: AwakeClock, folder: str | None = None) -> None:
        self._settings = settings
        self._options = options
        self._folder = folder
        self.url = registry_url(settings)
        self.jobs = open_jobs(settings)
        self.inventory = Inventory(settings)
        confirm_sec = 0.0 if options.once else 10.0
        self.sweeper = Monitor(
            settings, self.jobs, self.inventory, dry_run=options.dry_run, confirm_sec=confirm_sec, clock=clock
        )
        self._lock: int | None = None

    def take_lock(self) -> bool:
        """Return whether this process is the one that sweeps this home."""
        if self._lock is None:
            make_home(self.inventory.home)
            self._lock = take_monitor_lock(self._settings, of_all_homes=self._folder is not None)
        return self._lock is not None

    def sweep(self) -> None:
        """Sweep once, and print what was found."""
        where = {"folder": self._folder} if self._folder is not None else {}
        for finding in self.sweeper.sweep():
            if self._options.json:
                print(json_text(finding.as_dict() | where), flush=True)
            else:
                done = f": {finding.done}" if finding.done else ""
                place = f"{self._folder}: " if self._folder is not None else ""
                print(
                    f"{time.strftime('%H:%M:%S')}  {one_line(f'{place}{finding.what}: {finding.why}{done}')}",
                    flush=True,
                )

    def close(self) -> None:
        """Close all files of the home. A later sweep opens them again."""
        self.jobs.registry.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def monitor(options: Options, settings: Settings) -> int:
    """Sweep once, or until a signal ends the process. One process sweeps a home; others wait until it has ended."""
    if not 0.05 <= options.interval <= 86400:
        raise InvalidValue("--interval", "must be from 0.05 s to a day")
    signal.signal(signal.SIGTERM, _stop)
    if options.all_homes:
        refuse_one_home(options, "--all-homes")
        return _AllHomes(options, settings).watch()
    clock = AwakeClock()
    watch = _Watch(settings, options, clock)
    try:
        if options.once or options.dry_run:
            watch.sweep()
            return 1 if watch.sweeper.registry_failed else 0
        _stand_by(watch.take_lock, "here", clock, options.interval)
        say(f"baton: watching {watch.inventory.home} every {options.interval:g} s")
        while (now := _registry_now(options, watch.url)) == watch.url:
            watch.sweep()
            clock.sleep(options.interval)
        raise RegistryMoved(f"the jobs were moved to {hide_password(now)}; start the monitor again to watch them")
    finally:
        watch.close()


def _registry_now(options: Options, url: str) -> str:
    """Return where the jobs of this home are now: a migration may have moved them."""
    try:
        return registry_url(load_settings(vars(options)))
    except BatonError:
        return url  # in the middle of a migration, or the working folder is gone


def _stand_by(take_lock: Callable[[], bool], where: str, clock: AwakeClock, interval_sec: float) -> None:
    """Wait while another monitor is at work."""
    waiting = False
    while not take_lock():
        if not waiting:
            say(f"baton: another monitor is at work {where}; standing by")
        waiting = True
        clock.sleep(min(interval_sec, 1.0))


class _AllHomes:
    """The monitor of every home of the user. A home that cannot be watched is named, once, and the others go on.

    There may be more homes than a process may open files: only the home that is swept now has any open."""

    def __init__(self, options: Options, settings: Settings) -> None:
        self._options = options
        self._state_dir = settings.state_dir
        self._watched: dict[str, _Watch] = {}  # by the folder
        self._said: dict[str, str] = {}  # the last problem of each folder
        self._clock = AwakeClock()
        self._lock: int | None = None

    def watch(self) -> int:
        if self._options.once or self._options.dry_run:
            return 1 if self._sweep(locked=False) else 0
        make_state(self._state_dir)
        _stand_by(self._take_lock, "in all homes", self._clock, self._options.interval)
        say(f"baton: watching every home every {self._options.interval:g} s")
        while True:
            self._sweep(locked=True)
            self._clock.sleep(self._options.interval)

    def _take_lock(self) -> bool:
        self._lock = try_lock(lock_of_all_homes(self._state_dir))
        return self._lock is not None

    def _sweep(self, *, locked: bool) -> bool:
        """Sweep every home that is there now; return whether one could not be looked at."""
        try:
            homes = known(self._state_dir, lambda error: self._complain("", str(error)))
        except OSError as error:
            self._complain("", f"{error.filename}: {error.strerror}; nothing was looked after")
            return True
        for folder in self._watched.keys() - {home.folder for home in homes}:
            del self._watched[folder]
        failed = False
        for home in homes:
            try:
                watch = self._open(home)
                with closing(watch):
                    if locked and not watch.take_lock():
                        self._complain(home.folder, f"another monitor is at work in {home.folder}; standing by there")
                        continue
                    watch.sweep()
                failed |= watch.sweeper.registry_failed
                self._said.pop(home.folder, None)
            except (BatonError, OSError) as error:
                failed = True
                self._complain(home.folder, f"skipped {home.folder}: {error}")
        return failed

    def _open(self, home: Home) -> _Watch:
        """Return the monitor of a home, with the registry where it is now."""
        settings = settings_of(self._state_dir, home)
        watch = self._watched.get(home.folder)
        if watch is None or watch.url != registry_url(settings):
            watch = self._watched[home.folder] = _Watch(settings, self._options, self._clock, home.folder)
        return watch

    def _complain(self, folder: str, message: str) -> None:
        if self._said.get(folder) != message:
            say(f"baton: {message}")
        self._said[folder] = message


def _stop(_number: int, _frame: object) -> None:
    raise SystemExit(0)


_ALL_HOMES = opt.ALL_HOMES.but(help="look after all your folders (default: this folder)")
VERBS = (Verb("monitor", (opt.ONCE, opt.DRY_RUN, opt.INTERVAL, _ALL_HOMES, opt.ALLOW_PLAINTEXT, opt.JSON), monitor),)
