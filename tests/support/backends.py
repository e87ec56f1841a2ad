"""Registries to test, by backend name. Another backend is one more entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.registry.files import FileRegistry
from baton.registry.postgres import PostgresRegistry
from baton.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from baton.registry.base import Registry
    from support.clock import FakeClock
    from support.postgres import PostgresServer

BACKENDS = ("sqlite", "file", "postgresql")


class ClockedPostgres(PostgresRegistry):
    """PostgreSQL with a server time that the test sets."""

    def _now_ns(self, tx):
        return self._clock.monotonic_ns()


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
