"""doctor: what baton needs and what is wrong, one line each."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys

from baton.broker.local import known_broker
from baton.cli.main import verb_parser
from baton.cli.output import counted, one_line
from baton.config import Settings
from baton.errors import BatonError
from baton.fsio import network_fs_kind
from baton.jobs import open_jobs
from baton.registry import other_registry_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Finding = tuple[str, str, str]  # ok | warning | broken, what, how it is or what to do

_MARKS = {"ok": "ok     ", "warning": "warning", "broken": "broken "}


def run(verb: str, arguments: Sequence[str]) -> int:
    parser = verb_parser(verb)
    parser.add_argument("--json", action="store_true", help="print data as JSON")
    options = parser.parse_args(arguments)
    findings = list(_examine(Settings(vars(options))))
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
    yield from _folders(settings)
    yield from _registry(settings)
    yield _broker(settings)


def _sqlite() -> Finding:
    version = sqlite3.sqlite_version_info
    if version < (3, 35):
        return (
            "broken",
            "sqlite",
            f"{sqlite3.sqlite_version}; 3.35 or newer is needed, install a newer Python",
        )
    fixed = (
        version >= (3, 51, 3)
        or (version[:2] == (3, 50) and version[2] >= 7)
        or (version[:2] == (3, 44) and version[2] >= 6)
    )
    note = "" if fixed else " (has the WAL-reset bug; baton's own lock keeps it from happening)"
    return "ok", "sqlite", sqlite3.sqlite_version + note


def _tmux() -> Finding:
    if shutil.which("tmux") is None:
        return "warning", "tmux", "not found; sessions need it (apt install tmux, brew install tmux)"
    answer = subprocess.run(["tmux", "-V"], capture_output=True, text=True, check=False)
    return "ok", "tmux", answer.stdout.strip()


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
    kind = network_fs_kind(settings.home)
    if kind is not None:
        yield "broken", "file system", f"{settings.home} is on {kind}; use a local folder or PostgreSQL"


def _registry(settings: Settings) -> Iterator[Finding]:
    try:
        with open_jobs(settings) as jobs:
            counts = jobs.stats()
            summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "empty"
            yield "ok", "registry", f"{jobs.registry.where}: {summary}"
            for error in jobs.list_jobs(limit=1000).bad:
                yield "broken", "registry", f"{error}; mend it or move it away"
            gaps = jobs.audit_gaps()
            if gaps:
                ids = ", ".join(job.job_id for job in gaps[:5])
                yield (
                    "warning",
                    "audit",
                    f"{counted(len(gaps), 'log')} without the last change ({ids}); `baton logs ID` fills it in",
                )
            else:
                yield "ok", "audit", "no gaps"
    except (BatonError, OSError) as error:
        yield "broken", "registry", str(error)
        return
    other = other_registry_here(settings)
    if other is not None:
        yield "warning", "registry", other
