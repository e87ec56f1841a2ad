"""The registry for many hosts: PostgreSQL, in a schema of its own. Leases end by the server's clock."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from baton.core.errors import MigrationFailed
from baton.registry.rows import COLUMNS, jobs_that_fit
from baton.registry.sql import SqlRegistry
from baton.storage.postgres import Database, server_now_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from baton.core.clock import Clock
    from baton.core.job import Job
    from baton.registry.contract import Registry
    from baton.registry.rows import Row
    from baton.registry.sql import Transaction
    from baton.storage.postgres import Connection

SCHEMA: Final = 1
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
CREATE INDEX jobs_updated ON jobs (updated_at);
CREATE TABLE events (
    id bigserial PRIMARY KEY, job_id text COLLATE "C" NOT NULL, seq bigint NOT NULL, attempt bigint NOT NULL,
    event text NOT NULL, payload bytea NOT NULL, sent smallint NOT NULL, UNIQUE (job_id, seq)
);
CREATE INDEX events_unsent ON events (id) WHERE sent = 0;
"""
_LATER_INDEXES: Final = {"jobs_updated": "CREATE INDEX IF NOT EXISTS jobs_updated ON jobs (updated_at)"}
_ID: Final = COLUMNS.index("job_id")
_LEASE_END: Final = COLUMNS.index("lease_expires_at")
_translated: dict[str, bytes] = {}


def _psycopg_style(statement: str) -> bytes:
    """`:name` as `%(name)s`."""
    found = _translated.get(statement)
    if found is None:
        found = _translated[statement] = re.sub(r":(\w+)", r"%(\1)s", statement).encode()
    return found


class _Transaction:
    def __init__(self, connection: Connection) -> None:
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
    _skip_locked = " FOR UPDATE SKIP LOCKED"  # guard: claim-row-lock

    def __init__(self, url: str, *, clock: Clock | None = None, suffix: str = "") -> None:
        super().__init__(clock)
        self._database = Database(url, tables=_TABLES, version=SCHEMA, suffix=suffix, later_indexes=_LATER_INDEXES)
        self._schema = self._database.schema
        self.where = self._database.where
        self.url = url
        self._frozen: Connection | None = None

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _writing(self, *, create: bool = False) -> Iterator[Transaction]:
        with self._database.translated_errors():
            connection = self._database.connection()
            with connection.transaction():
                yield _Transaction(connection)

    _reading = _writing

    # -- leases ------------------------------------------------------------------------------------------

    def _lease_end(self, tx: Transaction, lease_ns: int) -> tuple[int, str | None]:
        return self._now_ns(tx) + lease_ns, None

    def _expired(self, tx: Transaction, limit: int) -> list[Job]:
        late: list[Job] = []
        values = {"now": self._now_ns(tx), "limit": limit, "after_ns": -(2**63), "after_id": ""}
        while True:  # page by page: those that do not fit stay in front for ever
            rows = tx.rows(
                f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE status = 'running' AND lease_expires_at < :now"
                " AND (lease_expires_at, job_id) > (:after_ns, :after_id)"
                " ORDER BY lease_expires_at, job_id LIMIT :limit FOR UPDATE SKIP LOCKED",
                values,
            )
            late += jobs_that_fit(rows)
            if len(late) >= limit or len(rows) < limit:
                return late[:limit]
            values |= {"after_ns": rows[-1][_LEASE_END], "after_id": rows[-1][_ID]}

    def _now_ns(self, tx: Transaction) -> int:
        assert isinstance(tx, _Transaction)
        return server_now_ns(tx.raw)

    # -- moving ------------------------------------------------------------------------------------------

    @contextmanager
    def freeze(self) -> Iterator[None]:
        with self._database.translated_errors():
            self._database.connection()
            with self._database.connect() as frozen:
                frozen.execute("BEGIN")
                frozen.execute("LOCK TABLE jobs, events IN SHARE ROW EXCLUSIVE MODE")
                self._frozen = frozen
                try:
                    yield
                    frozen.execute("COMMIT")
                finally:
                    self._frozen = None

    def staging(self) -> Registry:
        staging = PostgresRegistry(self.url, clock=self._clock, suffix="_migrating")
        with self._database.translated_errors(), self._database.connect() as raw:
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
