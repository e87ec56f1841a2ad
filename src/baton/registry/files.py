"""The registry as plain files, in the layout of the earlier scripts: one JSON record and one event log per job.

    <job_id>.json          the record; replacing it is what commits a verb
    <job_id>.events.log    one event a line, and lines that say which were sent
    <job_id>.result        the result, written before the record that ends with it
    <job_id>.request-<id>  the call of a request, written before the record that holds the rest of it
    .lock                  flock around every read-modify-write
    .batch                 the records of `register_many`, while they are written
    .index/                which jobs are pending, leased, submitted, unseen, have unsent events, open requests or an
                           idempotency key, wait for others, or are to be looked at; which job each change number is of
    .moved, .schema-2.db   the note that this is a registry of version 2, and the database that it names
    .migrating/            records of an unfinished import

An event is appended to the log before the record that counts it is replaced: a line beyond the record's `last_seq` is
ignored. The index has a marker for every job that needs one, and perhaps a few more: a marker is made before the record
that needs it, and checked against the record when it is used.

The index is current while the folder carries the boot stamp that each verb sets. A crash in the middle of a verb, a
record written by hand or by another program, or a reboot leave another time there, and the next verb that needs the
index builds it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from baton.core import lifecycle
from baton.core.clock import Clock
from baton.core.errors import InvalidRecord, JobDisputed, RegistryUnavailable
from baton.core.job import TERMINAL, Status
from baton.registry import FILES_NOTE, MOVED_NOTE, NEWER_DATABASE, holds_records, read_note, record_ids, refuse_moved
from baton.registry.change_log import ChangeLog
from baton.registry.contract import Change, Entry
from baton.registry.file_index import Index
from baton.registry.file_transaction import OTHER_FILES, FileTransaction, is_new
from baton.registry.schema import VERSION, refuse_upgrade, submitter_of_queue
from baton.registry.verbs import Registry
from baton.storage import files


class FileRegistry(Registry):
    multi_host = False

    def __init__(self, folder: str, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.where = f"file:{os.path.abspath(folder)}"
        self.folder = os.path.realpath(folder)
        self.url = f"file:{self.folder}"
        self._lock = files.FileLock(os.path.join(self.folder, ".lock"))
        self.lock_path = self._lock.path
        self.index = Index(os.path.join(self.folder, ".index"))
        self.change_log = ChangeLog(os.path.join(self.folder, ".index", "changes"))
        self.stamp = files.BootStamp(self.folder, self._clock)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    @contextmanager
    def _reading(self) -> Iterator[FileTransaction]:
        self._refuse_missing(self.folder)
        with self._translated_errors():
            yield FileTransaction(self)

    @contextmanager
    def _writing(self, *, create: bool = False, upgrade: bool = True) -> Iterator[FileTransaction]:
        """Without `upgrade`, what is written is derived from the records."""
        with self._translated_errors():
            if create:
                files.make_store_dir(self.folder)
            elif not files.exists(self.folder):
                yield FileTransaction(self, missing=True)
                return
            with self._lock:
                refuse_moved(self.folder, self.url)
                self.index.check()
                if upgrade:
                    self._bring_up_to_date()
                tx = FileTransaction(self, locked=True)
                tx.complete_batch()
                yield tx
                tx.write_added()
                # A verb that fails or dies before this leaves the folder without its stamp: the index is built again.
                if tx.index_is_current:
                    self.stamp.set()

    def schema(self) -> int:
        return VERSION if read_note(self.folder) == FILES_NOTE or not holds_records(self.folder) else 1

    def _bring_up_to_date(self) -> None:
        """Upgrade version 1, with the lock held: jobs in private queues get a submitter, ended ones count as seen."""
        if read_note(self.folder) == FILES_NOTE:
            return
        tx = FileTransaction(self, locked=True)
        tx.complete_batch()
        jobs = list(tx.all_jobs())
        running = [job.job_id for job in jobs if job.status is Status.RUNNING and job.claimed_by is not None]
        if not self._force_upgrade:
            refuse_upgrade(self.where, sorted(running), os.path.dirname(self.folder))
        for job in jobs:
            if job.status in TERMINAL:
                tx.overwrite(job)  # `get` has set when it was seen
            elif (submitter := submitter_of_queue(job.agent_session)) is not None:
                tx.save(job, job.replace(submitter=submitter))
        self._note_version()
        if not is_new(self.folder):
            self.stamp.clear()  # the index of version 1 lacks the submitted jobs

    def _note_version(self) -> None:
        """Leave the note that this is a registry of version 2."""
        import sqlite3

        newer = os.path.join(self.folder, NEWER_DATABASE)
        os.close(files.open_private(newer, os.O_RDWR | os.O_CREAT))
        raw = sqlite3.connect(newer)
        try:
            raw.execute(f"PRAGMA user_version = {VERSION}")
        finally:
            raw.close()
        files.replace_file(os.path.join(self.folder, MOVED_NOTE), FILES_NOTE.encode() + b"\n")

    def _claim_first(self, agent_session: str, holder: str, lease_ns: int | None) -> Change | None:
        with self._writing() as tx:
            if not tx.due(1, self._clock.wall_ns()):  # nearly always
                return self._claim_pending(tx, agent_session, holder, lease_ns)
        self.advance_waiting()
        with self._writing() as tx:
            return self._claim_pending(tx, agent_session, holder, lease_ns)

    def _claim_pending(
        self, tx: FileTransaction, agent_session: str, holder: str, lease_ns: int | None
    ) -> Change | None:
        for job in tx.pending(agent_session):
            try:
                claimed = self._claim(job, holder, self._clock.wall_ns())
            except JobDisputed as error:
                tx.save(job, lifecycle.dispute(job, error.why))
                continue
            return self._save(tx, job, claimed, lease_ns)
        return None

    def refresh_index(self) -> None:
        """Build the index again if it is not current."""
        if not self.stamp.is_current():
            with self._writing(upgrade=False) as tx:
                tx.refresh_index()

    def log_path(self, job_id: str) -> str:
        return os.path.join(self.folder, f"{job_id}.events.log")

    def result_path(self, job_id: str) -> str:
        return os.path.join(self.folder, f"{job_id}.result")

    def call_path(self, job_id: str, request_id: str) -> str:
        return os.path.join(self.folder, f"{job_id}.request-{request_id}")

    def answers_stamp(self) -> object:
        return self.change_log.stamp()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RegistryUnavailable(files.os_error_text(error, self.folder)) from error

    @contextmanager
    def importing(self, *, locked: bool = False) -> Iterator[FileTransaction]:
        import shutil

        with self._translated_errors():
            files.make_store_dir(self.folder)
            with nullcontext() if locked else self._lock:
                files.refuse_link(os.path.join(self.folder, ".migrating"))
                staging = FileRegistry(os.path.join(self.folder, ".migrating"))
                shutil.rmtree(staging.folder, ignore_errors=True)  # of an import that was interrupted
                files.make_private_dir(staging.folder)
                try:
                    yield FileTransaction(staging, imports=True)
                    os.sync()
                    # Records after the rest: interrupted, this leaves a part of the jobs, but each of them whole.
                    for name in sorted(os.listdir(staging.folder), key=lambda name: name.endswith(".json")):
                        os.replace(os.path.join(staging.folder, name), os.path.join(self.folder, name))
                    self._note_version()
                finally:
                    shutil.rmtree(staging.folder, ignore_errors=True)

    def left_copies(self) -> Iterator[Entry | InvalidRecord]:
        from baton.registry.entries import read_entries

        with self._translated_errors():
            tx = FileTransaction(self, imports=True)  # the note of version 2 is the last thing that an import writes
            yield from read_entries(tx, tx.ids())

    @contextmanager
    def freeze(self) -> Iterator[None]:
        with self._translated_errors():
            files.make_store_dir(self.folder)
            with self._lock:
                yield

    def set_aside(self) -> str:
        records = [f"{job_id}.json" for job_id in record_ids(self.folder)]
        logs = [name for name in os.listdir(self.folder) if OTHER_FILES.fullmatch(name)]
        index = [".index"] if os.path.isdir(self.index.folder) else []
        return files.set_aside_files(self.folder, index + records + logs)
