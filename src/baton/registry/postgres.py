"""The registry for many hosts: PostgreSQL, in a schema of its own. Leases end by the server's clock."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from baton.config import hide_password, scrub_password
from baton.errors import InvalidValue, MigrationFailed, MissingExtra, NewerSchema, RegistryBusy, RegistryUnavailable
from baton.registry.sql import COLUMNS, SqlRegistry, jobs_that_fit

try:
    import psycopg
    from psycopg import errors as pg
except ImportError:
    raise MissingExtra("postgres", "a PostgreSQL registry") from None

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from baton.clock import Clock
    from baton.model import Job
    from baton.registry.base import Registry
    from baton.registry.sql import Row, Transaction

SCHEMA: Final = 1
_CONNECT_TIMEOUT_SEC: Final = 10
_LOCK_TIMEOUT_SEC: Final = 30
_TABLES: Final = """
CREATE TABLE meta (schema_version integer NOT NULL);
INSERT INTO meta VALUES (1);
CREATE TABLE jobs (
    job_id text COLLATE "C" PRIMARY KEY, schema_version integer NOT NULL, status text NOT NULL,
    created_at bigint NOT NULL, updated_at bigint NOT NULL, prompt text NOT NULL, agent text NOT NULL,
    agent_session text NOT NULL, broker text NOT NULL, topic_prefix text NOT NULL,
    timeout_sec bigint NOT NULL, idle_timeout_sec bigint NOT NULL, expected_artifacts text NOT NULL,
    last_seq bigint NOT NULL, auth_token text, workdir text, attempt bigint NOT NULL,
    max_attempts bigint NOT NULL, priority bigint NOT NULL, claimed_by text, lease_expires_at bigint,
    lease_mark text, deadline_at bigint, last_event_at bigint, finished_at bigint, detail text,
    validate text, labels text NOT NULL, extra text
);
CREATE INDEX jobs_pending ON jobs (agent_session, priority DESC, created_at, job_id)
    WHERE status = 'pending';
CREATE INDEX jobs_leased ON jobs (lease_expires_at)
    WHERE status = 'running' AND lease_expires_at IS NOT NULL;
CREATE INDEX jobs_created ON jobs (created_at, job_id);
CREATE INDEX jobs_status ON jobs (status, created_at, job_id);
CREATE INDEX jobs_session ON jobs (agent_session, created_at, job_id);
CREATE INDEX jobs_agent ON jobs (agent, created_at, job_id);
CREATE TABLE events (
    id bigserial PRIMARY KEY, job_id text COLLATE "C" NOT NULL, seq bigint NOT NULL, attempt bigint NOT NULL,
    event text NOT NULL, payload bytea NOT NULL, sent smallint NOT NULL, UNIQUE (job_id, seq)
);
CREATE INDEX events_unsent ON events (id) WHERE sent = 0;
"""
_translated: dict[str, bytes] = {}


def _psycopg_style(statement: str) -> bytes:
    """`:name` as `%(name)s`."""
    found = _translated.get(statement)
    if found is None:
        found = _translated[statement] = re.sub(r":(\w+)", r"%(\1)s", statement).encode()
    return found


class _Connection:
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self.raw = connection

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Row]:
        return self.raw.execute(_psycopg_style(statement), values or {}).fetchall()

    def change(self, statement: str, values: Mapping[str, Any] | None = None) -> int:
        return self.raw.execute(_psycopg_style(statement), values or {}).rowcount

    def change_many(self, statement: str, values: Iterable[Mapping[str, Any]]) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(_psycopg_style(statement), values)


class PostgresRegistry(SqlRegistry):
    """`url` may name the schema to use: postgresql://host/database?schema=team_a (default: baton)."""

    multi_host = True
    lock_path = None
    _lock_rows = " FOR UPDATE"
    _skip_locked = " FOR UPDATE SKIP LOCKED"
    _server_now = "clock_timestamp()"

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.where = hide_password(url) or ""
        self.url = url
        self._conninfo, self._schema = _split_schema(url)
        self._open_connection: _Connection | None = None
        self._frozen: psycopg.Connection[Row] | None = None

    def close(self) -> None:
        connection, self._open_connection = self._open_connection, None
        if connection is not None:
            connection.raw.close()

    # -- transactions ------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self, *, create: bool = False) -> Iterator[Transaction]:
        with self._translated_errors():
            connection = self._connection()
            with connection.raw.transaction():
                yield connection

    _reading = _writing

    def _connection(self) -> _Connection:
        if self._open_connection is None or self._open_connection.raw.closed:
            raw = self._connect()
            try:
                self._prepare(raw)
            except BaseException:
                raw.close()
                raise
            self._open_connection = _Connection(raw)
        return self._open_connection

    def _connect(self) -> psycopg.Connection[Row]:
        raw = psycopg.connect(
            self._conninfo,
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_SEC,
            application_name="baton",
        )
        # Whoever holds a row for longer than this is reported instead of waited for.
        raw.execute(f"SET search_path TO \"{self._schema}\"; SET lock_timeout TO '{_LOCK_TIMEOUT_SEC}s'".encode())
        return raw

    def _prepare(self, raw: psycopg.Connection[Row]) -> None:
        """Makes the schema on first use, once, however many come first."""
        try:
            row = raw.execute("SELECT schema_version FROM meta").fetchone()
        except pg.UndefinedTable:
            with raw.transaction():
                raw.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"baton {self._schema}"])
                raw.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"'.encode())
                there = raw.execute("SELECT to_regclass('meta')").fetchone()
                if there is None or there[0] is None:
                    raw.execute(_TABLES.encode())
            row = raw.execute("SELECT schema_version FROM meta").fetchone()
        version = row[0] if row else 0
        if version > SCHEMA:
            raise NewerSchema(self.where, version, SCHEMA)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if isinstance(error, pg.LockNotAvailable):
                raise RegistryBusy(
                    f"{self.where}: somebody holds this job for more than {_LOCK_TIMEOUT_SEC} s"
                ) from error
            if isinstance(error, psycopg.OperationalError):
                self.close()  # the next call connects again
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RegistryUnavailable(f"{self.where}: {scrub_password(first_line, self.url)}") from error

    # -- leases ------------------------------------------------------------------------------------------

    def _lease_end(self, tx: Transaction, lease_ns: int) -> tuple[int, str | None]:
        return self._now_ns(tx) + lease_ns, None

    def _expired(self, tx: Transaction, limit: int) -> list[Job]:
        rows = tx.rows(
            f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE status = 'running' AND lease_expires_at < :now"
            " ORDER BY lease_expires_at LIMIT :limit FOR UPDATE SKIP LOCKED",
            {"now": self._now_ns(tx), "limit": limit},
        )
        return list(jobs_that_fit(rows))

    def _now_ns(self, tx: Transaction) -> int:
        micros: int = tx.rows(f"SELECT CAST(extract(epoch FROM {self._server_now}) * 1000000 AS bigint)")[0][0]
        return micros * 1000

    # -- moving ------------------------------------------------------------------------------------------

    @contextmanager
    def freeze(self) -> Iterator[None]:
        with self._translated_errors():
            self._connection()
            with self._connect() as frozen:
                frozen.execute("BEGIN")
                frozen.execute("LOCK TABLE jobs, events IN SHARE ROW EXCLUSIVE MODE")
                self._frozen = frozen
                try:
                    yield
                    frozen.execute("COMMIT")
                finally:
                    self._frozen = None

    def staging(self) -> Registry:
        staging = PostgresRegistry(self.url, clock=self._clock)
        staging._schema = f"{self._schema}_migrating"
        with self._translated_errors(), self._connect() as raw:
            raw.execute(f'DROP SCHEMA IF EXISTS "{staging._schema}" CASCADE'.encode())
        return staging

    def adopt(self, staging: Registry) -> None:
        assert self._frozen is not None
        staging.close()
        self.close()
        self._refuse_strangers()
        self._frozen.execute(f'DROP SCHEMA IF EXISTS "{self._schema}" CASCADE'.encode())
        self._frozen.execute(f'ALTER SCHEMA "{self._schema}_migrating" RENAME TO "{self._schema}"'.encode())

    def _refuse_strangers(self) -> None:
        """The schema goes as a whole, so nothing but ours may be in it."""
        assert self._frozen is not None
        found = self._frozen.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s)"
            " AND relkind IN ('r', 'v', 'm', 'p', 'f') AND relname NOT IN ('meta', 'jobs', 'events')",
            [self._schema],
        ).fetchone()
        if found is not None:
            raise MigrationFailed(
                f"schema {self._schema} also holds {found[0]}, which is not baton's; name another with ?schema=NAME"
            )

    def mark_moved(self, url: str) -> None:
        """The url of the server is in people's settings: they must change it."""

    def set_aside(self) -> str:
        assert self._frozen is not None
        self.close()
        self._refuse_strangers()
        name = f"{self._schema}_set_aside_{time.strftime('%Y%m%dt%H%M%S')}"
        self._frozen.execute(f'ALTER SCHEMA "{self._schema}" RENAME TO "{name}"'.encode())
        return f"schema {name}"


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
    return base + ("?" + "&".join(rest) if rest else ""), schema
