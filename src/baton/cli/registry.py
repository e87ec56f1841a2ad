"""registry stats | migrate | upgrade | reconcile | grants | prune: manage the registry of jobs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from baton.cli import options as opt
from baton.cli.options import parse_duration
from baton.cli.output import counted, json_text, say
from baton.cli.parser import Options, Verb
from baton.cli.terminal import write_control
from baton.config import Settings
from baton.core.errors import BatonError, InvalidValue, WrongState
from baton.core.fields import one_line
from baton.jobs.verbs import open_jobs
from baton.registry import DATABASE, leaves, open_registry, open_url, other_registry_here, registry_url
from baton.registry.verbs import Registry

_POLL_SEC = 0.5


def stats(options: Options, settings: Settings) -> None:
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
            print(f"{name + ' events' if name == 'unsent' else one_line(name):<14} {count}")


def migrate(options: Options, settings: Settings) -> None:
    from contextlib import nullcontext

    from baton.registry.migrate import finish_interrupted

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
        raise WrongState("--to", f"is the registry that is in use: {source.where}")

    def progress(count: int) -> None:
        if sys.stderr.isatty() and count % 100 == 0:
            write_control(f"\r{count} jobs copied", sys.stderr)

    with nullcontext() if options.drain is None else source.draining():
        count, aside = _move(source, target, progress, settings.host, options.drain or 0.0)
    if sys.stderr.isatty() and count >= 100:
        write_control("\r", sys.stderr)
    source.close()
    target.close()
    left = leaves(target.url, settings.home)
    if not left or (settings.registry is None and settings.sources["registry_dir"] == "default"):
        from baton.storage.new_homes import keep_registry

        keep_registry(settings.state_dir, settings.home_id, target.url if left else None)
    moved = {"jobs": count, "from": source.where, "to": target.where, "set_aside": aside}
    text = f"{counted(count, 'job')} moved to {target.where} and compared; the old registry is in {aside}"
    print(json_text(moved) if options.json else text)
    if settings.registry is not None:
        say(f"baton: set {settings.sources['registry']} to the new registry: {target.where}")


def _move(
    source: Registry, target: Registry, progress: Callable[[int], None], host: str, wait_sec: float
) -> tuple[int, str]:
    """Migrate, when no process holds a job any more."""
    from baton.registry.migrate import LiveHolders, live_holders
    from baton.registry.migrate import migrate as move_jobs

    until = time.monotonic() + wait_sec
    while True:
        try:
            return move_jobs(source, target, progress, host=host)
        except LiveHolders as error:
            if time.monotonic() >= until:
                raise
            say(f"baton: no job is claimed any more; {str(error).partition(';')[0]}")
        while live_holders(source, host) and time.monotonic() < until:
            time.sleep(_POLL_SEC)


def upgrade(options: Options, settings: Settings) -> None:
    registry = open_registry(settings)
    before = registry.schema()
    registry.upgrade(force=options.force)
    after = registry.schema()
    registry.close()
    done = {"registry": registry.where, "schema": after, "upgraded": after > before}
    text = f"{registry.where} {'now has' if after > before else 'already has'} schema {after}"
    print(json_text(done) if options.json else text)


def reconcile(options: Options, settings: Settings) -> None:
    from baton.jobs.caller import refuse_inside_session
    from baton.jobs.reconciliation import reconcile as settle

    refuse_inside_session("registry reconcile")
    with open_jobs(settings) as jobs:
        job = jobs.with_id(options.id, lambda job_id: settle(jobs, job_id, keep_history=options.keep == "history"))
    text = f"job {job.job_id} is {job.status}, attempt {job.attempt}; the {options.keep} was kept"
    print(json_text(job.public()) if options.json else text)


def grants(options: Options, settings: Settings) -> None:
    url = registry_url(settings)
    if not url.startswith("postgres"):
        raise InvalidValue("registry", "must be on PostgreSQL: files and SQLite know only the rights of their folder")
    from baton.live_agents.postgres import RIGHTS, TABLES, PostgresDirectory
    from baton.registry.grants import REGISTRY_RIGHTS, write_grants
    from baton.registry.postgres import PostgresRegistry
    from baton.registry.schema import POSTGRES_2, VERSION

    registry, directory = PostgresRegistry(url), PostgresDirectory(url)
    if registry.schema() < VERSION:  # this also makes the tables of a new registry
        raise BatonError(f"{registry.where} was written by baton 0.1.0; run `baton registry upgrade` first")
    directory.now_ns()
    schema = registry.schema_name
    parts = ((schema, POSTGRES_2, REGISTRY_RIGHTS), (f"{schema}_directory", TABLES, RIGHTS))
    registry.close()
    directory.close()
    script = write_grants(schema, parts)
    print(json_text({"sql": script}) if options.json else script)


def prune(options: Options, settings: Settings) -> None:
    before_ns = time.time_ns() - parse_duration("--older-than", options.older_than)
    with open_jobs(settings) as jobs:
        pruned = jobs.prune(before_ns)
    text = f"{counted(len(pruned), 'job')} removed; their audit logs stay in {settings.logs_dir}"
    print(json_text(pruned) if options.json else text)


_ACTIONS = (
    Verb("stats", (), stats, "print how many jobs there are, by status"),
    Verb("migrate", (
        opt.MIGRATE_TO,
        opt.DRAIN.but(
            nargs="?", const=366 * 86400.0, default=None,
            help="stop new claims and wait for running jobs, at most S seconds (default: refuse while jobs run)",
        ),
    ), migrate, "move every job to another registry"),
    Verb("upgrade", (
        opt.FORCE.but(help="upgrade while 0.1.0 runs jobs or sessions, which can then not report (default: refuse)"),
    ), upgrade, "upgrade a registry of baton 0.1.0 now; the first write does so, too"),
    Verb("reconcile", (
        opt.JOB[0].but(nargs=None, help="settle this job"), opt.KEEP_WHICH,
    ), reconcile, "settle a job on which the registry and the audit log disagree, as `doctor` names them"),
    Verb("grants", (), grants, "print SQL for PostgreSQL logins that may only submit, only work, or only read"),
    Verb("prune", (
        opt.OLDER_THAN.but(required=True, help="remove jobs that ended this long ago, such as 30d"),
    ), prune, "remove jobs that ended long ago; their audit logs are kept"),
)  # fmt: skip
VERBS = (
    Verb("registry", (opt.JSON,), actions=_ACTIONS),
)  # fmt: skip
