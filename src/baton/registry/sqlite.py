"""The default registry: one SQLite file, for every process of one host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from baton.core.clock import Clock
from baton.registry import refuse_moved
from baton.registry.schema import SQLITE_1, SQLITE_2, SQLITE_DIGESTS, SQLITE_UPGRADE, VERSION
from baton.registry.sql import SqlRegistry, SqlTransaction
from baton.storage.sqlite import Connection, SqliteFile


class SqliteRegistry(SqlRegistry):
    multi_host = False

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.where = f"sqlite:{os.path.abspath(path)}"
        folder, name = os.path.split(os.path.abspath(path))
        folder = os.path.realpath(folder)
        self.path = os.path.join(folder, name)  # a link in place of the database itself is refused
        self.url = f"sqlite:{self.path}"
        self._file = SqliteFile(
            self.path,
            tables=SQLITE_2,
            version=VERSION,
            check_location=lambda: refuse_moved(folder, self.url),
            upgrade=self._upgrade,
            older={1: SQLITE_1},
            digests=SQLITE_DIGESTS,
        )
        self._lock = self._file.lock
        self._file_stamp: object = None
        self._answers_stamp: object = None
        self.lock_path = self._lock.path

    def close(self) -> None:
        self._file.close()

    def schema(self) -> int:
        with self._file.reading() as raw:
            return raw.version

    def _upgrade(self, raw: Connection) -> None:
        home = os.path.dirname(os.path.dirname(os.path.abspath(self.path)))
        SqlTransaction(raw, self.where, raw.version).upgrade(SQLITE_UPGRADE, force=self._force_upgrade, home=home)

    @contextmanager
    def _reading(self) -> Iterator[SqlTransaction]:
        self._refuse_missing(self.path)
        with self._file.reading() as raw:
            yield SqlTransaction(raw, self.where, raw.version)

    @contextmanager
    def _writing(self, *, create: bool = False) -> Iterator[SqlTransaction]:
        with self._file.writing(create=create) as raw:
            yield SqlTransaction(raw, self.where)

    @contextmanager
    def importing(self, *, locked: bool = False) -> Iterator[SqlTransaction]:
        with self._file.importing(locked=locked) as raw:
            yield SqlTransaction(raw, self.where)

    def answers_stamp(self) -> object:
        stamp = self._file.stamp()
        if stamp is None or stamp != self._file_stamp:
            with self._file.reading() as raw:  # another connection counts anew
                self._answers_stamp = raw, raw.execute("PRAGMA data_version").fetchone()[0]
            self._file_stamp = stamp
        return self._answers_stamp

    def freeze(self) -> AbstractContextManager[None]:
        return self._file.freeze()

    def set_aside(self) -> str:
        return self._file.set_aside()
