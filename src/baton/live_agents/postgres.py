"""Store the live agents of many machines in PostgreSQL. Leases end by the clock of the server."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from baton.live_agents.contract import Directory, Entry, State, parse_entry
from baton.live_agents.names import check_agent_id, derived_id, is_agent_id
from baton.live_agents.record import MAX_RECORD_BYTES, UNNAMED_HOST
from baton.storage.postgres import Database, server_now_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.live_agents.record import AgentRecord
    from baton.storage.postgres import Connection

_SCHEMA = 1
_TABLES = """
CREATE TABLE meta (schema_version integer NOT NULL);
INSERT INTO meta VALUES (1);
CREATE TABLE live_agents (
    agent_id text COLLATE "C" PRIMARY KEY, agent_name text COLLATE "C" NOT NULL,
    touched_at bigint NOT NULL, record text NOT NULL
);
CREATE INDEX live_agents_name ON live_agents (agent_name);
CREATE TABLE quarantine (agent_id text NOT NULL, moved_at bigint NOT NULL, record text NOT NULL);
"""
_PUT = """
INSERT INTO live_agents (agent_id, agent_name, touched_at, record) VALUES (%s, %s, %s, %s)
ON CONFLICT (agent_id) DO UPDATE SET
    agent_name = excluded.agent_name, touched_at = excluded.touched_at, record = excluded.record
"""
_PAGE = 500


class PostgresDirectory(Directory):
    multi_host = True

    def __init__(self, url: str) -> None:
        self._database = Database(url, tables=_TABLES, version=_SCHEMA, suffix="_directory")
        self.where = self._database.where

    def close(self) -> None:
        self._database.close()

    def now_ns(self) -> int:
        with self._database.translated_errors():
            return server_now_ns(self._database.connection())

    def get(self, agent_id: str) -> Entry:
        check_agent_id(agent_id)
        found = self._select("agent_id = %s", agent_id)
        return found[0] if found else Entry.unfit(agent_id, State.MISSING, "there is no record")

    def named(self, canonical_name: str) -> list[Entry]:
        return self._select("agent_name = %s OR agent_id = %s", canonical_name, derived_id(canonical_name))

    def all(self) -> Iterator[Entry]:
        last = ""
        while page := self._rows(f"agent_id > %s ORDER BY agent_id LIMIT {_PAGE}", last):
            yield from self._entries(page)
            last = page[-1][0]

    def names(self) -> list[str]:
        with self._database.translated_errors():
            rows = self._database.connection().execute("SELECT DISTINCT agent_name FROM live_agents").fetchall()
        return [row[0] for row in rows]

    def _select(self, condition: str, *values: str) -> list[Entry]:
        return self._entries(self._rows(condition, *values))

    def _rows(self, condition: str, *values: str) -> list[tuple[Any, ...]]:
        # One character more than a record may have shows that it is too long.
        query = f"SELECT agent_id, touched_at, left(record, {MAX_RECORD_BYTES + 1}) FROM live_agents WHERE {condition}"
        with self._database.translated_errors():
            return self._database.connection().execute(query.encode(), values).fetchall()

    def _entries(self, rows: list[tuple[Any, ...]]) -> list[Entry]:
        """Return the entries of these rows, without rows whose key is not an id."""
        now_ns = self.now_ns()
        return [_entry(row, now_ns) for row in rows if is_agent_id(row[0])]

    @contextmanager
    def locked(self, agent_id: str) -> Iterator[_RowSlot]:
        check_agent_id(agent_id)
        with self._database.translated_errors():
            connection = self._database.connection()
            with connection.transaction():
                # A row that does not exist yet cannot be locked. Its id can.
                lock = f"baton {self._database.schema} {agent_id}"
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock])
                yield _RowSlot(connection, self.get(agent_id))


class _RowSlot:
    """The row of one id. The lock is held until the transaction ends."""

    def __init__(self, connection: Connection, entry: Entry) -> None:
        self._connection = connection
        self.entry = entry

    def put(self, record: AgentRecord) -> None:
        now_ns = server_now_ns(self._connection)
        self._connection.execute(_PUT, [record.agent_id, record.agent_name, now_ns, json.dumps(record.record())])

    def remove(self) -> None:
        self._connection.execute("DELETE FROM live_agents WHERE agent_id = %s", [self.entry.agent_id])

    def quarantine(self) -> str:
        self._connection.execute(
            "WITH moved AS (DELETE FROM live_agents WHERE agent_id = %s RETURNING agent_id, record)"
            " INSERT INTO quarantine SELECT agent_id, %s, record FROM moved",
            [self.entry.agent_id, server_now_ns(self._connection)],
        )
        return "table quarantine"


def _entry(row: tuple[Any, ...], now_ns: int) -> Entry:
    agent_id, touched_ns, content = row
    entry = parse_entry(agent_id, content.encode(), now_ns, touched_ns)
    if entry.record is not None and entry.record.host is None:
        return entry.replace(record=entry.record.replace(host=UNNAMED_HOST))
    return entry
