"""Store the live agents of many machines in PostgreSQL. Leases end by the clock of the server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from baton.live_agents.contract import Directory
from baton.live_agents.names import check_agent_id, derived_id, is_agent_id
from baton.live_agents.record import MAX_RECORD_BYTES, UNNAMED_HOST, AgentRecord, Entry, State, parse_entry
from baton.storage.postgres import Database, server_now_ns

_SCHEMA = 1
TABLES = """
CREATE TABLE meta (schema_version integer NOT NULL);
INSERT INTO meta VALUES (1);
CREATE TABLE live_agents (
    agent_id text COLLATE "C" PRIMARY KEY, agent_name text COLLATE "C" NOT NULL,
    touched_at bigint NOT NULL, record text NOT NULL
);
CREATE INDEX live_agents_name ON live_agents (agent_name);
CREATE TABLE quarantine (agent_id text NOT NULL, moved_at bigint NOT NULL, record text NOT NULL);
"""
# For `baton registry grants`: what a login that works on jobs may do beyond reading.
RIGHTS = {"meta": {}, "live_agents": {"work": "INSERT, UPDATE, DELETE"}, "quarantine": {"work": "INSERT"}}
_PUT = """
INSERT INTO live_agents (agent_id, agent_name, touched_at, record) VALUES (%s, %s, %s, %s)
ON CONFLICT (agent_id) DO UPDATE SET
    agent_name = excluded.agent_name, touched_at = excluded.touched_at, record = excluded.record
"""
_QUARANTINE = """
WITH moved AS (DELETE FROM live_agents WHERE agent_id = %s RETURNING agent_id, record)
INSERT INTO quarantine SELECT agent_id, %s, record FROM moved
"""
_PAGE = 500


class PostgresDirectory(Directory):
    multi_host = True

    def __init__(self, url: str) -> None:
        self._database = Database(url, tables=TABLES, version=_SCHEMA, suffix="_directory")
        self.where = self._database.where

    def close(self) -> None:
        self._database.close()

    def now_ns(self) -> int:
        with self._database.translated_errors():
            return server_now_ns(self._database.connection())

    def get(self, agent_id: str) -> Entry:
        found = self._entries(self._rows("agent_id = %s", check_agent_id(agent_id)))
        return found[0] if found else Entry(agent_id=agent_id, state=State.MISSING, why="there is no record")

    def find_named(self, canonical_name: str) -> list[Entry]:
        return self._entries(self._rows("agent_name = %s OR agent_id = %s", canonical_name, derived_id(canonical_name)))

    def all(self) -> Iterator[Entry]:
        last = ""
        while page := self._rows(f"agent_id > %s ORDER BY agent_id LIMIT {_PAGE}", last):
            yield from self._entries(page)
            last = page[-1][0]

    def names(self) -> list[str]:
        with self._database.translated_errors():
            rows = self._database.connection().execute("SELECT DISTINCT agent_name FROM live_agents").fetchall()
        return [row[0] for row in rows]

    def _rows(self, condition: str, *values: str) -> list[tuple[Any, ...]]:
        # One character more than a record may have shows that it is too long.
        query = f"SELECT agent_id, touched_at, left(record, {MAX_RECORD_BYTES + 1}) FROM live_agents WHERE {condition}"
        with self._database.translated_errors():
            return self._database.connection().execute(query.encode(), values).fetchall()

    def _entries(self, rows: list[tuple[Any, ...]]) -> list[Entry]:
        """Return the entries of these rows, without rows whose key is not an id."""
        now_ns = self.now_ns()
        entries = []
        for agent_id, touched_ns, content in rows:
            if is_agent_id(agent_id):
                entry = parse_entry(agent_id, content.encode(), now_ns, touched_ns)
                if entry.record is not None and entry.record.host is None:
                    entry = entry.replace(record=entry.record.replace(host=UNNAMED_HOST))
                entries.append(entry)
        return entries

    @contextmanager
    def locked(self, agent_id: str) -> Iterator[Entry]:
        check_agent_id(agent_id)
        with self._database.translated_errors():
            connection = self._database.connection()
            with connection.transaction():
                # A row that does not exist yet cannot be locked. Its id can.
                lock = f"baton {self._database.schema} {agent_id}"
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock])
                yield self.get(agent_id)

    def put(self, entry: Entry, record: AgentRecord) -> None:
        self._execute(_PUT, record.agent_id, record.agent_name, self.now_ns(), json.dumps(record.record()))

    def remove(self, entry: Entry) -> None:
        self._execute("DELETE FROM live_agents WHERE agent_id = %s", entry.agent_id)

    def quarantine(self, entry: Entry) -> str:
        self._execute(_QUARANTINE, entry.agent_id, self.now_ns())
        return "table quarantine"

    def _execute(self, statement: str, *values: object) -> None:
        self._database.connection().execute(statement.encode(), values)
