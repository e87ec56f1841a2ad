"""A connection to PostgreSQL, in a schema of our own, that says in one line what is wrong with it."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from baton.config import hide_password, scrub_password
from baton.core.errors import InvalidValue, MissingExtra, NewerSchema, RegistryBusy, RegistryUnavailable

try:
    import psycopg
    from psycopg import errors as pg
except ImportError:
    raise MissingExtra("postgres", "PostgreSQL") from None

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Connection = psycopg.Connection[tuple[Any, ...]]

_CONNECT_TIMEOUT_SEC: Final = 10
_LOCK_TIMEOUT_SEC: Final = 30


class Database:
    """One schema of one database, and a connection to it that is opened when it is needed. The url may name the schema:
    postgresql://host/database?schema=team_a (default: baton); `suffix` is added to it. `tables` is what a new schema is
    filled with, its `meta` table included, which holds `version`; `later_indexes` are in it, too, by name, and
    are added to a schema from before them."""

    def __init__(
        self,
        url: str,
        *,
        tables: str,
        version: int,
        suffix: str = "",
        later_indexes: Mapping[str, str] | None = None,
    ) -> None:
        self.where = hide_password(url) or ""
        self.url = url
        conninfo, schema = _split_schema(url)
        self._conninfo = conninfo
        self.schema = schema + suffix
        self._tables = tables
        self._version = version
        self._later_indexes = later_indexes or {}
        self._open: Connection | None = None

    def close(self) -> None:
        connection, self._open = self._open, None
        if connection is not None:
            connection.close()

    def connection(self) -> Connection:
        """The open connection, to a schema that is there."""
        if self._open is None or self._open.closed:
            raw = self.connect()
            try:
                self._prepare(raw)
            except BaseException:
                raw.close()
                raise
            self._open = raw
        return self._open

    def connect(self) -> Connection:
        """Another connection; the schema may not be there yet."""
        raw = psycopg.connect(
            self._conninfo, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_SEC, application_name="baton"
        )
        raw.execute(
            f'SET search_path TO "{self.schema}";'
            # Whoever holds a row for longer than this is reported instead of waited for.
            f"SET lock_timeout TO '{_LOCK_TIMEOUT_SEC}s';"
            # We lock first and look then; with more isolation we would see what was there before we waited.
            "SET default_transaction_isolation TO 'read committed'".encode()
        )
        return raw

    def _prepare(self, raw: Connection) -> None:
        """Makes the schema on first use, once, however many come first."""
        try:
            row = raw.execute("SELECT schema_version FROM meta").fetchone()
        except pg.UndefinedTable:
            self._make(raw)
            row = raw.execute("SELECT schema_version FROM meta").fetchone()
        version = row[0] if row else 0
        if version > self._version:
            raise NewerSchema(self.where, version, self._version)
        for name, statement in self._later_indexes.items():
            there = raw.execute("SELECT to_regclass(%s)", [name]).fetchone()
            if there is None or there[0] is None:
                _try_to_index(raw, statement)

    def _make(self, raw: Connection) -> None:
        try:
            with raw.transaction():
                raw.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"baton {self.schema}"])
                # IF NOT EXISTS would ask for the right to make one, also where an administrator has made it.
                if not self._has_schema(raw):
                    raw.execute(f'CREATE SCHEMA "{self.schema}"'.encode())
                there = raw.execute("SELECT to_regclass('meta')").fetchone()
                if there is None or there[0] is None:
                    raw.execute(self._tables.encode())
        except (pg.InsufficientPrivilege, pg.InvalidSchemaName) as error:
            who = f'"{raw.info.user}"'
            ask = f'CREATE SCHEMA "{self.schema}" AUTHORIZATION {who}'
            if self._has_schema(raw):
                ask = f'GRANT USAGE, CREATE ON SCHEMA "{self.schema}" TO {who}'
            raise RegistryUnavailable(
                f"{self.where}: {who} may not make baton's tables there; let an administrator run: {ask}"
            ) from error

    def _has_schema(self, raw: Connection) -> bool:
        return raw.execute("SELECT FROM pg_namespace WHERE nspname = %s", [self.schema]).rowcount > 0

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if isinstance(error, pg.LockNotAvailable):
                raise RegistryBusy(
                    f"{self.where}: somebody holds this record for more than {_LOCK_TIMEOUT_SEC} s"
                ) from error
            if isinstance(error, psycopg.OperationalError):
                self.close()  # the next call connects again
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RegistryUnavailable(f"{self.where}: {scrub_password(first_line, self.url)}") from error


def _try_to_index(raw: Connection, statement: str) -> None:
    """Without it we are only slower: nobody waits for it long, and whoever may not make it leaves it to others."""
    try:
        with raw.transaction():
            raw.execute("SET LOCAL lock_timeout TO '1s'")
            raw.execute(statement.encode())
    except (pg.InsufficientPrivilege, pg.LockNotAvailable, pg.UniqueViolation, pg.DuplicateTable):
        return  # or somebody else made it at this moment


def server_now_ns(connection: Connection) -> int:
    row = connection.execute("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)").fetchone()
    assert row is not None
    micros: int = row[0]
    return micros * 1000


def _split_schema(url: str) -> tuple[str, str]:
    """The url without our own `schema` parameter, and the schema."""
    base, _, query = url.partition("?")
    schema, rest = "baton", []
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name == "schema":
            schema = value
        else:
            rest.append(part)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,30}", schema, re.ASCII) or schema == "public" or schema.startswith("pg_"):
        raise InvalidValue("schema", "in the registry url must be a plain lower-case name, for baton alone")
    if schema.endswith("_directory"):  # where the live agents of another schema are
        raise InvalidValue("schema", "in the registry url must not end in _directory")
    return base + ("?" + "&".join(rest) if rest else ""), schema
