"""Registries to test, by backend name. Another backend is one more entry here."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from baton.registry.files import FileRegistry
from baton.registry.postgres import PostgresRegistry
from baton.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from baton.registry.verbs import Registry
    from support.clock import FakeClock
    from support.postgres import PostgresServer

BACKENDS = ("sqlite", "file", "postgresql")


class ClockedPostgres(PostgresRegistry):
    """PostgreSQL with a server time that the test sets."""

    def _now_ns(self):
        return self._clock.monotonic_ns()

    @property
    def _server_clock(self):
        return str(self._now_ns())


def registry_url(backend: str, folder: str, postgres: PostgresServer | None) -> str:
    """The url of a registry that nobody used before."""
    if backend == "postgresql":
        return postgres.new_url()
    return f"sqlite:{folder}/registry.db" if backend == "sqlite" else f"file:{folder}"


def clocked_registry(url: str, clock: FakeClock) -> Registry:
    """The registry at that url, with a clock that the test sets."""
    scheme, _, path = url.partition(":")
    if scheme == "sqlite":
        return SqliteRegistry(path, clock=clock)
    if scheme == "file":
        return FileRegistry(path, clock=clock)
    return ClockedPostgres(url, clock=clock)


def spoil(url: str, job_id: str, *, result: bool = False, mend: bool = False) -> None:
    """Makes the record of that job, or its result, one that does not fit, behind the registry's back; or mends the
    record."""
    scheme, _, path = url.partition(":")
    value = "{}" if mend else "nonsense"
    table, column = ("results", "result") if result else ("jobs", "broker")
    if scheme == "file" and result:
        Path(path, f"{job_id}.result").write_text("nonsense")
    elif scheme == "file":
        record = Path(path, f"{job_id}.json")
        record.write_text(json.dumps(json.loads(record.read_text()) | {"broker": {} if mend else value}))
    elif scheme == "sqlite":
        raw = sqlite3.connect(path)
        raw.execute(f"UPDATE {table} SET {column} = ? WHERE job_id = ?", [value, job_id])
        raw.commit()
        raw.close()
    else:
        server, _, schema = url.partition("&schema=")
        with psycopg.connect(server) as raw:
            raw.execute(f"UPDATE {schema}.{table} SET {column} = %s WHERE job_id = %s", [value, job_id])
