"""The registry for many hosts: PostgreSQL, in a schema of its own. Leases end by the server's clock."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from baton.core.clock import parse_time
from baton.core.errors import MigrationFailed, RegistryBusy
from baton.registry.schema import POSTGRES_2, POSTGRES_UPGRADE, VERSION
from baton.registry.sql import SqlRegistry, SqlTransaction, valid_jobs
from baton.storage.postgres import SERVER_NOW_NS, Database, server_now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton.core.clock import Clock
    from baton.core.job import Job
    from baton.registry.contract import Transaction
    from baton.storage.postgres import Connection

# Nothing is written to `results`, `requests` or `followers` without a row of `jobs`.
_LOCK_TABLES = "LOCK TABLE meta, jobs, events IN SHARE ROW EXCLUSIVE MODE"
_IS_DRAINING = "SELECT 1 FROM meta WHERE draining_until > clock_timestamp()"
_DRAIN = "UPDATE meta SET draining_until = clock_timestamp() + interval '30 seconds'"
_DRAIN_EVERY_SEC = 5
_translated: dict[str, bytes] = {}


class _PostgresTransaction(SqlTransaction):
    lock_rows = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"  # guard: claim-row-lock
    if_claimable = f" AND NOT EXISTS ({_IS_DRAINING})"
    use_unseen = ""
    # Transactions commit in another order than they take numbers, and none waits for another here: see `horizon`.
    next_change = "pg_current_xact_id()::text::bigint"

    def horizon(self) -> int:
        # Every transaction below it has ended. What it wrote is seen by the next statement.
        horizon: int = self.rows("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")[0][0]
        return horizon

    @staticmethod
    def _prepared(statement: str) -> bytes:
        """Translate `:name` to `%(name)s`."""
        found = _translated.get(statement)
        if found is None:
            found = _translated[statement] = re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement).encode()
        return found


class PostgresRegistry(SqlRegistry):
    """`url` may name the schema to use: postgresql://host/database?schema=team_a (default: baton)."""

    multi_host = True
    lock_path = None
    _server_clock = SERVER_NOW_NS

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._database = Database(url, tables=POSTGRES_2, version=VERSION, upgrade=self._upgrade)
        self.where = self._database.where
        self.schema_name = self._database.schema
        self.url = url
        self._frozen: Connection | None = None

    def close(self) -> None:
        self._database.close()

    def schema(self) -> int:
        with self._database.translated_errors(), self._database.reading() as connection:
            return connection.version

    def _upgrade(self, raw: Connection) -> None:
        raw.execute("LOCK TABLE jobs, events IN ACCESS EXCLUSIVE MODE")
        _PostgresTransaction(raw, self.where, raw.version).upgrade(POSTGRES_UPGRADE, force=self._force_upgrade)

    @contextmanager
    def _writing(self, *, create: bool = False) -> Iterator[_PostgresTransaction]:
        with self._database.translated_errors(), self._database.writing() as connection:
            tx = _PostgresTransaction(connection, self.where)
            tx.present = self._server_clock
            yield tx

    @contextmanager
    def _reading(self) -> Iterator[_PostgresTransaction]:
        with self._database.translated_errors(), self._database.reading() as connection:
            tx = _PostgresTransaction(connection, self.where, connection.version)
            tx.lock_rows = tx.skip_locked = ""
            tx.present = self._server_clock
            yield tx

    def _lease_end(self, tx: Transaction, lease_ns: int) -> tuple[int, str | None]:
        return self._now_ns() + lease_ns, None

    def _expired(self, tx: Transaction, limit: int, spare: Callable[[Job], bool]) -> list[Job]:
        assert isinstance(tx, _PostgresTransaction)
        rows = tx.rows(
            f"{tx.select} WHERE status = 'running' AND lease_expires_at < :now"
            f" ORDER BY lease_expires_at, job_id{tx.skip_locked}",
            {"now": self._now_ns()},
        )
        return list(islice((job for job in valid_jobs(rows) if not spare(job)), limit))

    def _present_ns(self) -> int:
        return self._now_ns()

    def _is_past(self, expires_at: str, mark: str | None) -> bool:
        return parse_time(expires_at) < self._now_ns()

    def answers_stamp(self) -> object:
        with self._reading() as tx:
            return tx.rows("SELECT pg_current_snapshot()::text")[0][0]

    def _now_ns(self) -> int:
        return server_now_ns(self._database.connection())

    @contextmanager
    def importing(self, *, locked: bool = False) -> Iterator[_PostgresTransaction]:
        with self._writing() as tx:
            self._refuse_other_tables(tx.raw)
            tx.change(_LOCK_TABLES)
            yield tx

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Keep claims out by a mark that ends by itself, half a minute after this process died."""
        with self._writing() as tx:
            if tx.rows(_IS_DRAINING):
                raise RegistryBusy(f"{self.where} is being drained by another process")
            tx.change(_DRAIN)
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(_DRAIN_EVERY_SEC):
                self._mark_draining(_DRAIN)

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._mark_draining("UPDATE meta SET draining_until = NULL")

    def _mark_draining(self, statement: str) -> None:
        """Change the mark on a connection of its own, unless the registry was moved away meanwhile."""
        with self._database.translated_errors(), self._database.connect() as connection:
            found = connection.execute("SELECT to_regclass('meta')").fetchone()
            if found is not None and found[0] is not None:
                connection.execute(statement.encode())

    def _is_draining(self) -> bool:
        return self._database.connection().execute(_IS_DRAINING).fetchone() is not None

    @contextmanager
    def freeze(self) -> Iterator[None]:
        with self._database.translated_errors():
            self._database.connection()  # creates the schema
            with self._database.connect() as frozen, frozen.transaction():
                frozen.execute(_LOCK_TABLES)
                self._frozen = frozen
                try:
                    yield
                finally:
                    self._frozen = None

    def set_aside(self) -> str:
        assert self._frozen is not None
        self.close()
        self._refuse_other_tables(self._frozen)
        schema = self._database.schema
        name = f"{schema}_set_aside_{time.strftime('%Y%m%dt%H%M%S')}"
        self._frozen.execute(f'ALTER SCHEMA "{schema}" RENAME TO "{name}"'.encode())
        return f"schema {name}"

    def _refuse_other_tables(self, connection: Connection) -> None:
        """Refuse a schema that is not baton's alone: a migration moves it as a whole."""
        schema = self._database.schema
        other = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s)"
            " AND relkind IN ('r', 'v', 'm', 'p', 'f') AND relname NOT IN"
            " ('meta', 'jobs', 'events', 'results', 'requests', 'changes', 'followers')",
            [schema],
        ).fetchone()
        if other is not None:
            raise MigrationFailed(
                f"schema {schema} also holds {other[0]}, which is not baton's; name another with ?schema=NAME"
            )
