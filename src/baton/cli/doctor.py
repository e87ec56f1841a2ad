"""doctor: what baton needs and what is wrong, one line each."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec

from baton.adapters import agent_names, find_agent
from baton.broker.local import known_broker
from baton.cli import options as opt
from baton.cli.output import counted, one_line
from baton.cli.parser import Verb
from baton.config import hide_password
from baton.core.clock import format_time, parse_time
from baton.core.errors import BatonError, TmuxUnavailable
from baton.delegation.monitor import monitor_lock
from baton.history.verify import verify_log
from baton.jobs.verbs import open_jobs
from baton.live_agents import open_directory
from baton.live_agents.contract import State as EntryState
from baton.registry import other_registry_here, registry_url
from baton.registry.sqlite import LEAST_SQLITE
from baton.sessions.inventory import Inventory
from baton.sessions.session import State
from baton.sessions.tmux import Tmux
from baton.storage.files import network_fs_kind, try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Final

    from baton.config import Settings
    from baton.sessions.session import Session

    Finding = tuple[str, str, str]  # ok | warning | broken, what, how it is or what to do

_VERSION_SEC: Final = 10
_LOGS: Final = 100
_MARKS = {"ok": "ok     ", "warning": "warning", "broken": "broken "}


def doctor(options: argparse.Namespace, settings: Settings) -> int:
    findings = list(_examine(settings))
    if options.json:
        print(json.dumps([dict(zip(("state", "what", "detail"), each, strict=True)) for each in findings]))
    else:
        for state, what, detail in findings:
            print(f"{_MARKS[state]}  {what}: {one_line(detail, 500)}")
    return 1 if any(state == "broken" for state, _, _ in findings) else 0


def _examine(settings: Settings) -> Iterator[Finding]:
    yield "ok", "python", f"{sys.version.split()[0]} at {sys.executable}"
    yield _sqlite()
    yield _tmux()
    yield _locale()
    yield _path()
    yield from _config(settings)
    yield from _folders(settings)
    yield from _file_system(settings)
    yield from _registry(settings)
    yield _broker(settings)
    yield from _sessions(settings)
    yield _live_agents(settings)
    yield from _agents(settings)
    yield from _extras()


def _sqlite() -> Finding:
    version = sqlite3.sqlite_version_info
    if version < LEAST_SQLITE:
        least = ".".join(map(str, LEAST_SQLITE))
        return "broken", "sqlite", f"{sqlite3.sqlite_version}; {least} or newer is needed, install a newer Python"
    fixed = (
        version >= (3, 51, 3)
        or (version[:2] == (3, 50) and version[2] >= 7)
        or (version[:2] == (3, 44) and version[2] >= 6)
    )
    note = "" if fixed else " (has the WAL-reset bug; baton's own lock keeps it from happening)"
    return "ok", "sqlite", sqlite3.sqlite_version + note


def _tmux() -> Finding:
    try:
        Tmux("any").check_version()
    except TmuxUnavailable as error:
        return "broken", "tmux", f"{error}; sessions, submit and the demo need it"
    return "ok", "tmux", _version("tmux", "-V")


def _version(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_VERSION_SEC, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not say its version ({type(error).__name__})"
    told = (done.stdout or done.stderr).strip().splitlines()
    return told[0] if told else "does not say its version"


def _locale() -> Finding:
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") != "utf8" or (sys.stdout.encoding or "").lower().replace("-", "") != "utf8":
        return "warning", "locale", f"{encoding}, not UTF-8; set LANG=C.UTF-8 so that prompts and paths are shown right"
    return "ok", "locale", "UTF-8"


def _path() -> Finding:
    found = shutil.which("baton")
    if found is None:
        folder = os.path.dirname(sys.executable)
        return "warning", "PATH", f"`baton` is not on it; agents are given it, you are not: add {folder}"
    return "ok", "PATH", found


def _config(settings: Settings) -> Iterator[Finding]:
    for path in settings.files:
        open_to_others = os.stat(path).st_mode & 0o077
        if open_to_others and path in _holding_passwords(settings):
            yield "warning", "config", f"{path} holds a password and can be read by others; chmod 600 {path}"
        else:
            yield "ok", "config", path


def _holding_passwords(settings: Settings) -> list[str]:
    """Where the passwords in use were set."""
    urls = {"registry": settings.registry, "directory": settings.directory}
    holding = [name for name, url in urls.items() if hide_password(url) != url]
    return [settings.sources[name] for name in (*holding, "mqtt_password")]


def _broker(settings: Settings) -> Finding:
    if settings.mqtt_host is not None:
        return (
            "ok",
            "broker",
            f"{settings.mqtt_host}, by {settings.sources['mqtt_host']}; `baton broker check` tries it",
        )
    broker = known_broker(settings.state_dir)
    if broker is not None and broker.alive():
        return "ok", "broker", f"the local one, at 127.0.0.1:{broker.port}"
    return "ok", "broker", "the local one, not running; the first `baton publish` starts it"


def _folders(settings: Settings) -> Iterator[Finding]:
    for what, path in (("home", settings.home), ("audit logs", settings.logs_dir)):
        if not os.path.exists(path):
            parent = path
            while not os.path.isdir(parent):
                parent = os.path.dirname(os.path.abspath(parent))
            if os.access(parent, os.W_OK):
                yield "ok", what, f"{path} is not there yet; the first `baton register` makes it"
            else:
                yield "broken", what, f"{path} is not there, and {parent} cannot be written to"
        elif not os.path.isdir(path):
            yield "broken", what, f"{path} is a file, not a folder; move it away, or name another with --home"
        elif os.stat(path).st_mode & 0o077:
            yield "warning", what, f"{path} can be read by others; chmod 700 {path}"
        elif not os.access(path, os.W_OK):
            yield "broken", what, f"{path} cannot be written to"
        else:
            yield "ok", what, path


def _file_system(settings: Settings) -> Iterator[Finding]:
    kind = network_fs_kind(settings.home)
    if kind is None:
        return
    if settings.allow_network_fs:
        yield "warning", "file system", f"{settings.home} is on {kind}, allowed by {settings.named('allow_network_fs')}"
    elif registry_url(settings).startswith("postgres"):
        yield (
            "warning",
            "file system",
            f"{settings.home} is on {kind}; jobs are safe on the server, sessions need a local home",
        )
    else:
        yield "broken", "file system", f"{settings.home} is on {kind}; use a local folder or PostgreSQL"


def _registry(settings: Settings) -> Iterator[Finding]:
    try:
        with open_jobs(settings) as jobs:
            counts = jobs.stats()
            summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "empty"
            yield "ok", "registry", f"{jobs.registry.where}: {summary}"
            if counts.get("unsent"):
                yield (
                    "warning",
                    "events",
                    f"{counted(counts['unsent'], 'event')} not sent yet; `baton monitor --once` sends them",
                )
            for error in jobs.list_jobs(limit=1000).bad:
                yield "broken", "registry", f"{error}; mend it or move it away"
            newest = jobs.list_jobs(limit=1).jobs
            if newest and parse_time(newest[0].updated_at) > time.time_ns() + 60 * 10**9:
                yield (
                    "warning",
                    "clock",
                    f"job {newest[0].job_id} is from the future ({newest[0].updated_at}): was it set back?",
                )
            else:
                yield "ok", "clock", format_time(time.time_ns() // 10**9 * 10**9)
            gaps = jobs.audit_gaps()
            if gaps:
                ids = ", ".join(job.job_id for job in gaps[:5])
                yield (
                    "warning",
                    "audit",
                    f"{counted(len(gaps), 'log')} without the last change ({ids}); `baton logs ID` fills it in",
                )
            damaged = [
                job.job_id for job in jobs.list_jobs(limit=_LOGS).jobs if verify_log(job.job_id, jobs.logs_dir).damage
            ]
            if damaged:
                yield "broken", "audit", f"tampered with: {', '.join(damaged[:5])}; `baton logs ID --verify` says where"
            elif not gaps:
                yield "ok", "audit", "no gaps"
    except (BatonError, OSError) as error:
        yield "broken", "registry", str(error)
        return
    other = other_registry_here(settings)
    if other is not None:
        yield "warning", "registry", other


def _sessions(settings: Settings) -> Iterator[Finding]:
    try:
        inventory = Inventory(settings)
        running = inventory.all(State.RUNNING)
        lost = [each.name for each in running if each.host == settings.host and not _lives(each)]
    except BatonError as error:
        yield "broken", "sessions", str(error)
        return
    if lost:
        names = ", ".join(lost[:5])
        yield (
            "warning",
            "sessions",
            f"{names}: gone from tmux without a word; `baton monitor --once` notes what became of them",
        )
    yield "ok", "sessions", f"{len(running) - len(lost)} running"
    watched = False
    if os.path.exists(monitor_lock(inventory)):
        lock = try_lock(monitor_lock(inventory))
        watched = lock is None
        if lock is not None:
            os.close(lock)
    yield "ok", "monitor", "running" if watched else "not running; `baton monitor` notices what dies while nobody looks"


def _lives(session: Session) -> bool:
    return session.pane_pid is None or session.has_live_runner()


def _live_agents(settings: Settings) -> Finding:
    try:
        directory = open_directory(settings)
        try:
            states = [entry.state for entry in directory.all()]
        finally:
            directory.close()
    except (BatonError, OSError) as error:
        return "broken", "live agents", str(error)
    fresh = states.count(EntryState.FRESH)
    if len(states) > fresh:
        return (
            "warning",
            "live agents",
            f"{fresh} fresh, {len(states) - fresh} not; `baton agent cleanup --dry-run` says why",
        )
    return "ok", "live agents", f"{fresh} fresh, in {directory.where}"


def _agents(settings: Settings) -> Iterator[Finding]:
    for name in agent_names(settings):
        try:
            agent = find_agent(settings, name)
        except BatonError as error:
            yield "broken", f"agent {name}", str(error)
            continue
        found = shutil.which(agent.program)
        if found is None:
            state = "warning" if name == settings.agent else "ok"
            yield state, f"agent {name}", f"{agent.program} is not installed: {agent.install}"
        elif name == "shell":
            yield "ok", f"agent {name}", found
        else:
            yield "ok", f"agent {name}", f"{_version(agent.program, '--version')} at {found}"


def _extras() -> Iterator[Finding]:
    for extra, module, needed in (
        ("postgres", "psycopg", "PostgreSQL"),
        ("tls", "cryptography", "`baton broker init`"),
    ):
        there = find_spec(module) is not None
        detail = "installed" if there else f"not installed; {needed} needs it: pip install 'tmux-baton[{extra}]'"
        yield "ok", f"extra {extra}", detail


VERBS = (Verb("doctor", (opt.JSON,), doctor),)
