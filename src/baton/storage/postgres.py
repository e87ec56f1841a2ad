"""A connection to PostgreSQL, in a schema of its own, whose errors say in one line what is wrong."""

import re
from contextlib import contextmanager
from typing import Any

from baton.config import hide_password, scrub_password
from baton.core.errors import InvalidValue, MissingExtra, NewerSchema, RegistryBusy, RegistryUnavailable
from baton.storage.installation import install_command

try:
    import psycopg
    from psycopg import errors as pg
except ImportError:
    raise MissingExtra("PostgreSQL", install_command("postgres")) from None

from collections.abc import Callable, Iterator


class Connection(psycopg.Connection[tuple[Any, ...]]):
    version = 0  # of the schema, when the last transaction began


_CONNECT_TIMEOUT_SEC = 10
_LOCK_TIMEOUT_SEC = 30


class Database:
    """One schema of one database, and a connection to it that is opened when it is needed. The url may name the schema:
    postgresql://host/database?schema=team_a (default: baton); `suffix` is added to it. `tables` creates the content of
    a new schema, with a table `meta` that holds `version`. `upgrade` brings version 1 to `version`, in a transaction
    before the first write."""

    def __init__(
        self,
        url: str,
        *,
        tables: str,
        version: int,
        suffix: str = "",
        upgrade: Callable[[Connection], None] | None = None,
    ) -> None:
        self.where = hide_password(url) or ""
        self.url = url
        self._conninfo, schema = _split_schema(url)
        self.schema = schema + suffix
        self._tables = tables
        self._version = version
        self._upgrade = upgrade
        self._open: Connection | None = None

    def close(self) -> None:
        connection, self._open = self._open, None
        if connection is not None:
            connection.close()

    def connection(self) -> Connection:
        """Return the open connection, to a schema that exists."""
        if self._open is None or self._open.closed:
            raw = self.connect()
            try:
                self._prepare(raw)
            except BaseException:
                raw.close()
                raise
            self._open = raw
        return self._open

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a transaction that reads; its connection says which version it finds."""
        connection = self.connection()
        with connection.transaction():
            if connection.version < self._version:
                # Another process may upgrade it: not while this transaction lasts.
                connection.execute("LOCK TABLE meta IN ACCESS SHARE MODE")
                self._read_version(connection)
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Begin a transaction that writes, to the present version."""
        connection = self.connection()
        if connection.version < self._version and self._upgrade is not None:
            try:
                with connection.transaction():
                    # Readers lock `meta` first, too: an upgrade and a reader never wait for each other.
                    connection.execute("LOCK TABLE meta IN ACCESS EXCLUSIVE MODE")
                    self._read_version(connection)
                    if connection.version < self._version:
                        self._upgrade(connection)
            except pg.InsufficientPrivilege as error:
                raise RegistryUnavailable(
                    f'{self.where}: "{connection.info.user}" may not upgrade the tables of baton 0.1.0; let their '
                    "owner run: baton registry upgrade"
                ) from error
            connection.version = self._version
        with connection.transaction():
            yield connection

    def connect(self) -> Connection:
        """Open another connection; the schema may not exist yet."""
        raw = Connection.connect(
            self._conninfo, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_SEC, application_name="baton"
        )
        raw.execute(
            f'SET search_path TO "{self.schema}";'
            # A holder that keeps a row for longer than this is reported instead of waited for.
            f"SET lock_timeout TO '{_LOCK_TIMEOUT_SEC}s';"
            # Verbs lock first and read then; stricter isolation would show the state before the wait.
            "SET default_transaction_isolation TO 'read committed'".encode()
        )
        return raw

    def _prepare(self, raw: Connection) -> None:
        """Create the schema on first use, once, also when several processes are first."""
        try:
            self._read_version(raw)
        except pg.UndefinedTable:
            self._create(raw)
            self._read_version(raw)

    def _read_version(self, raw: Connection) -> None:
        row = raw.execute("SELECT schema_version FROM meta").fetchone()
        raw.version = row[0] if row else 0
        if raw.version > self._version:
            raise NewerSchema(self.where, raw.version, self._version)

    def _create(self, raw: Connection) -> None:
        try:
            with raw.transaction():
                raw.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"baton {self.schema}"])
                # IF NOT EXISTS would need the right to create one, also where an administrator has created it.
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
                f"{self.where}: {who} may not create baton's tables there; let an administrator run: {ask}"
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
                    f"{self.where}: another process has locked this record for more than {_LOCK_TIMEOUT_SEC} s"
                ) from error
            if isinstance(error, psycopg.OperationalError):
                self.close()  # the next call connects again
            if isinstance(error, pg.InsufficientPrivilege):
                why = str(error).strip().splitlines()[0]
                raise RegistryUnavailable(
                    f"{self.where}: {why}; `baton registry grants` shows who may do what"
                ) from error
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RegistryUnavailable(f"{self.where}: {scrub_password(first_line, self.url)}") from error


SERVER_NOW_NS = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint) * 1000"


def server_now_ns(connection: Connection) -> int:
    row = connection.execute(f"SELECT {SERVER_NOW_NS}".encode()).fetchone()
    assert row is not None
    now_ns: int = row[0]
    return now_ns


def _split_schema(url: str) -> tuple[str, str]:
    """Return the url without baton's own `schema` parameter, and the schema."""
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
    if schema.endswith("_directory"):  # holds the live agents of another schema
        raise InvalidValue("schema", "in the registry url must not end in _directory")
    return base + ("?" + "&".join(rest) if rest else ""), schema
