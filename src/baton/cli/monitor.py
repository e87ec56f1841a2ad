"""monitor: find jobs and sessions that died or take too long, and requeue, fail or stop them."""

import argparse
import os
import signal
import time

from baton.cli import options as opt
from baton.cli.output import json_text, say
from baton.cli.parser import Verb
from baton.config import Settings, hide_password
from baton.core.errors import BatonError, InvalidValue, RegistryMoved
from baton.core.fields import one_line
from baton.delegation.monitor import Monitor
from baton.delegation.reconcile import monitor_lock
from baton.jobs.verbs import open_jobs
from baton.registry import registry_url
from baton.sessions.inventory import Inventory
from baton.storage.files import make_home, try_lock
from baton.storage.homes import load_settings


def monitor(options: argparse.Namespace, settings: Settings) -> int:
    """Sweep once, or until a signal ends the process. One process sweeps; others wait until it has ended."""
    if not 0.05 <= options.interval <= 86400:
        raise InvalidValue("--interval", "must be from 0.05 s to a day")
    signal.signal(signal.SIGTERM, _stop)
    with open_jobs(settings) as jobs:
        inventory = Inventory(settings)
        sweeper = Monitor(settings, jobs, inventory, dry_run=options.dry_run, confirm_sec=0.0 if options.once else 10.0)
        if options.once or options.dry_run:
            _sweep(sweeper, options)
            return 1 if sweeper.registry_failed else 0
        make_home(inventory.home)
        lock = _lock(inventory, options.interval)
        url = registry_url(settings)
        say(f"baton: watching {inventory.home} every {options.interval:g} s")
        try:
            while (now := _registry_now(options, url)) == url:
                _sweep(sweeper, options)
                time.sleep(options.interval)
            raise RegistryMoved(f"the jobs were moved to {hide_password(now)}; start the monitor again to watch them")
        finally:
            os.close(lock)


def _registry_now(options: argparse.Namespace, url: str) -> str:
    """Return where the jobs of this home are now: a migration may have moved them."""
    try:
        return registry_url(load_settings(vars(options)))
    except BatonError:
        return url  # in the middle of a migration, or the working folder is gone


def _sweep(sweeper: Monitor, options: argparse.Namespace) -> None:
    for finding in sweeper.sweep():
        if options.json:
            print(json_text(finding.as_dict()), flush=True)
        else:
            done = f": {finding.done}" if finding.done else ""
            what = one_line(f"{finding.what}: {finding.why}{done}")
            print(f"{time.strftime('%H:%M:%S')}  {what}", flush=True)


def _lock(inventory: Inventory, interval_sec: float) -> int:
    """Return the lock of the monitor. Wait while another monitor holds it."""
    waiting = False
    while (lock := try_lock(monitor_lock(inventory))) is None:
        if not waiting:
            say("baton: another monitor is at work here; standing by")
        waiting = True
        time.sleep(min(interval_sec, 1.0))
    return lock


def _stop(_number: int, _frame: object) -> None:
    raise SystemExit(0)


VERBS = (Verb("monitor", (opt.ONCE, opt.DRY_RUN, opt.INTERVAL, opt.ALLOW_PLAINTEXT, opt.JSON), monitor),)
