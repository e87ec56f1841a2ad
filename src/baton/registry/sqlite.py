"""The default registry: one SQLite file, for every process of one host."""

from __future__ import annotations

import os
from contextlib import contextmanager

from baton.registry import refuse_moved
from baton.registry.sql import SCHEMA, SQLITE_TABLES, SqlRegistry, SqlTransaction
from baton.storage.sqlite import SqliteFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from baton.core.clock import Clock
    from baton.registry.rows import Row


class _SqliteTransaction(SqlTransaction):
    def __init__(self, raw: sqlite3.Connection, where: str) -> None:
        super().__init__(where)
        self.raw = raw

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Row]:
        return self.raw.execute(statement, values or {}).fetchall()

    def change(self, statement: str, values: Mapping[str, Any] | None = None) -> int:
        return self.raw.execute(statement, values or {}).rowcount

    def change_many(self, statement: str, values: Iterable[Mapping[str, Any]]) -> None:
        self.raw.executemany(statement, values)


class SqliteRegistry(SqlRegistry):
    multi_host = False

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.where = f"sqlite:{os.path.abspath(path)}"
        self.path = os.path.realpath(path)
        self.url = f"sqlite:{self.path}"
        folder = os.path.dirname(self.path)
        self._file = SqliteFile(
            self.path, tables=SQLITE_TABLES, version=SCHEMA, check_location=lambda: refuse_moved(folder, self.url)
        )
        self._lock = self._file.lock
        self.lock_path = self._lock.path

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def _reading(self) -> Iterator[SqlTransaction]:
        with self._file.reading() as raw:
            yield _SqliteTransaction(raw, self.where)

    @contextmanager
    def _writing(self, *, create: bool = False) -> Iterator[SqlTransaction]:
        with self._file.writing(create=create) as raw:
            yield _SqliteTransaction(raw, self.where)

    # -- migration ---------------------------------------------------------------------------------------

    @contextmanager
    def importing(self, *, locked: bool = False) -> Iterator[SqlTransaction]:
        with self._file.importing(locked=locked) as raw:
            yield _SqliteTransaction(raw, self.where)

    def freeze(self) -> AbstractContextManager[None]:
        return self._file.freeze()

    def set_aside(self) -> str:
        return self._file.set_aside()
