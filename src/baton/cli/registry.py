"""registry stats | migrate | prune: manage the job registry."""

from __future__ import annotations

import argparse
import os
import sys
import time

from baton.cli import options as opt
from baton.cli.options import parse_duration
from baton.cli.output import counted, json_text, say
from baton.cli.parser import Verb
from baton.config import Settings
from baton.core.errors import InvalidValue
from baton.jobs.verbs import open_jobs
from baton.registry import DATABASE, open_registry, open_url, other_registry_here


def stats(options: argparse.Namespace, settings: Settings) -> None:
    with open_jobs(settings) as jobs:
        counts = jobs.stats()
        where = jobs.registry.where
    if (other := other_registry_here(settings)) is not None:
        say(f"baton: note: {other}")
    if options.json:
        print(json_text({"registry": where, **counts}))
    else:
        print(where)
        for name, count in counts.items():
            print(f"{name + ' events' if name == 'unsent' else name:<14} {count}")


def migrate(options: argparse.Namespace, settings: Settings) -> None:
    from baton.registry.migrate import finish_interrupted
    from baton.registry.migrate import migrate as move_jobs

    source = open_registry(settings)
    target = open_url(options.to, allow_network_fs=settings.allow_network_fs)
    if source.url == target.url:
        folder = settings.registry_dir
        urls = (f"file:{folder}", f"sqlite:{os.path.join(folder, DATABASE)}")
        for other in (open_url(url, allow_network_fs=settings.allow_network_fs) for url in urls):
            if (aside := finish_interrupted(source, other)) is not None:
                moved = {"jobs": 0, "from": other.where, "to": source.where, "set_aside": aside}
                text = f"finished an interrupted migration to {source.where}; the old records are in {aside}"
                print(json_text(moved) if options.json else text)
                return
        raise InvalidValue("--to", f"is the registry that is in use: {source.where}")

    def progress(count: int) -> None:
        if sys.stderr.isatty() and count % 100 == 0:
            print(f"\r{count} jobs copied", end="", file=sys.stderr, flush=True)

    count, aside = move_jobs(source, target, progress)
    if sys.stderr.isatty() and count >= 100:
        print("\r", end="", file=sys.stderr)
    source.close()
    target.close()
    moved = {"jobs": count, "from": source.where, "to": target.where, "set_aside": aside}
    text = f"{counted(count, 'job')} moved to {target.where} and compared; the old registry is in {aside}"
    print(json_text(moved) if options.json else text)
    if settings.registry is not None:
        say(f"baton: set {settings.sources['registry']} to the new registry: {target.where}")


def prune(options: argparse.Namespace, settings: Settings) -> None:
    before_ns = time.time_ns() - parse_duration("--older-than", options.older_than)
    with open_jobs(settings) as jobs:
        pruned = jobs.prune(before_ns)
    text = f"{counted(len(pruned), 'job')} removed; their audit logs stay in {settings.logs_dir}"
    print(json_text(pruned) if options.json else text)


_ACTIONS = (
    Verb("stats", (), stats, "print how many jobs there are, by status"),
    Verb("migrate", (opt.MIGRATE_TO,), migrate, "move every job to another registry"),
    Verb("prune", (
        opt.OLDER_THAN.but(required=True, help="remove jobs that ended this long ago, such as 30d"),
    ), prune, "remove jobs that ended long ago; their audit logs are kept"),
)  # fmt: skip
VERBS = (Verb("registry", (opt.JSON,), actions=_ACTIONS),)
