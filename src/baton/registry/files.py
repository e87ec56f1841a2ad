"""The registry as plain files, in the layout of the seeds: one JSON record and one event log per job.

    <job_id>.json          the record; replacing it is what commits a verb
    <job_id>.events.log    one event a line, and lines that say which were sent
    .lock                  flock around every read-modify-write
    .index/                which jobs are pending, leased, or have unsent events

An event is appended to the log before the record that counts it is replaced: a line beyond the record's
`last_seq` never happened. The index holds a marker for every job it speaks of, and perhaps a few more: each
is made before the record that needs it and checked against the record when it is used.

The index can be trusted when the folder carries the modification time that we give it after each verb. A
crash in the middle of a verb, a record dropped in by hand or by another program, or a reboot leave another
time there, and the next verb that relies on the index builds it anew.
"""

from __future__ import annotations

import errno
import json
import os
import re
from contextlib import contextmanager

from baton.core import lifecycle
from baton.core.clock import SystemClock, format_time, lease_expired, lease_mark, parse_time
from baton.core.errors import InvalidRecord, InvalidValue, JobNotFound, RegistryUnavailable
from baton.core.event import EventName, StoredEvent
from baton.core.fields import check_job_id, check_label
from baton.core.job import Job, Status, new_token, with_new_id
from baton.registry.event_log import EventLog
from baton.registry.file_index import Index
from baton.registry.moved import mark_moved, refuse_moved
from baton.registry.query import JobFilter, cursor, parse_cursor
from baton.registry.results import Change, Entry, Page, Recorded
from baton.registry.statement import stated
from baton.storage.boot_stamp import Seal
from baton.storage.files import (
    FileLock,
    exists,
    fsync_dir,
    make_private_dir,
    make_store_dir,
    read_file,
    remove_file,
    replace_file,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, Final

    from baton.core.clock import Clock
    from baton.core.job import Broker
    from baton.registry.contract import Registry

_RECORD: Final = re.compile(r"([0-9a-f]{8,32})\.json", re.ASCII)
_TEMPORARY: Final = re.compile(r"\.[0-9a-z_.]+\.[0-9a-f]{8}\.tmp", re.ASCII)
_BATCH: Final = ".batch"


def holds_records(folder: str) -> bool:
    """Whether job records lie in that folder; stops at the first."""
    try:
        with os.scandir(folder) as entries:
            return any(_RECORD.fullmatch(entry.name) for entry in entries)
    except FileNotFoundError:
        return False


def _is_new(folder: str) -> bool:
    """Whether nothing but the lock was ever put into that folder: then there is nothing to index, nor to clean up."""
    with os.scandir(folder) as entries:
        return all(entry.name == ".lock" for entry in entries)


class FileRegistry:
    multi_host = False

    def __init__(self, folder: str, *, clock: Clock | None = None) -> None:
        self.where = f"file:{os.path.abspath(folder)}"
        self.folder = folder = os.path.realpath(folder)
        self.url = f"file:{folder}"
        self._clock: Clock = clock or SystemClock()
        self.lock_path = os.path.join(folder, ".lock")
        self._lock = FileLock(self.lock_path)
        self._trusted = False  # the index, by the verb that holds the lock now
        self._absent = False  # the folder, when the present verb began: it sees nothing, whatever comes meanwhile
        self._index = Index(os.path.join(folder, ".index"))
        self._seal = Seal(folder, self._clock)

    def close(self) -> None:
        """Nothing is kept open."""

    # -- jobs ------------------------------------------------------------------------------------------

    def register_job(self, job: Job) -> Job:
        return self.register_many([job])[0]

    def register_many(self, jobs: Iterable[Job]) -> list[Job]:
        registered: list[Job] = []
        taken: set[str] = set()
        last_ns = 0
        with self._writing(create=True):
            for draft in jobs:
                job = draft
                last_ns = max(parse_time(job.created_at), last_ns + 1)
                job = job.replace(created_at=format_time(last_ns))
                while job.job_id in taken or os.path.exists(self._path(job.job_id)):
                    job = with_new_id(job)
                taken.add(job.job_id)
                registered.append(job)
            if len(registered) > 1:
                # Several files cannot change at once: what is in the batch file is registered, and whoever
                # finds it there after a crash writes the records that are missing.
                records = [job.record() for job in registered]
                replace_file(self._batch_path, json.dumps(records).encode())
            try:
                for job in registered:
                    self._commit(None, job)
            except BaseException:
                for job in registered:
                    remove_file(self._path(job.job_id))
                raise
            finally:
                remove_file(self._batch_path)
        return registered

    def get_job(self, job_id: str) -> Job:
        check_job_id(job_id)
        with self._translated_errors():
            return self._load(job_id)

    def list_jobs(self, where: JobFilter | None = None, *, limit: int = 50, after: str | None = None) -> Page:
        if limit < 1:
            raise InvalidValue("limit", "must be at least 1")
        condition = where or JobFilter()
        start = parse_cursor(after) if after is not None else None
        found: list[tuple[tuple[int, str], Job]] = []
        bad: list[InvalidRecord] = []
        for job in self._all():
            if isinstance(job, InvalidRecord):
                bad.append(job)
                continue
            if job.status is Status.PENDING and job.submitter is None and not self._index.knows(job):
                self._seal.break_()
            key = (parse_time(job.created_at), job.job_id)
            if (start is None or key < start) and condition.matches(job):
                found.append((key, job))
        found.sort(key=lambda pair: pair[0], reverse=True)
        page = found[:limit]
        following = cursor(*page[-1][0]) if len(found) > limit else None
        return Page(jobs=[job for _, job in page], bad=[] if start else bad, next=following)

    def pick_pending(self, agent_session: str, *, holder: str, lease_sec: float | None = None) -> Change | None:
        check_label("agent_session", agent_session)
        check_label("holder", holder)
        lease_ns = lifecycle.lease_ns(lease_sec)
        with self._writing():
            self._refresh_index()
            for job_id, marker in () if self._absent else self._index.pending(agent_session):
                try:
                    before = self._load(job_id)
                except JobNotFound:
                    remove_file(marker)
                    continue
                except InvalidRecord:
                    continue  # `list` and `doctor` name it
                if before.status is not Status.PENDING or before.submitter is not None:
                    remove_file(marker)
                    continue
                if before.agent_session != agent_session:
                    continue
                now_ns = self._clock.wall_ns()
                after = lifecycle.claim(before, holder=holder, now_ns=now_ns, token=new_token())
                if lease_ns:
                    after = self._leased(after, lease_ns)
                return self._commit(before, after)
            return None

    def pick_job(self, job_id: str, *, holder: str, lease_sec: float | None = None) -> Change:
        check_job_id(job_id)
        check_label("holder", holder)
        lease_ns = lifecycle.lease_ns(lease_sec)
        with self._writing():
            before = self._load(job_id)
            after = lifecycle.claim(before, holder=holder, now_ns=self._clock.wall_ns(), token=new_token())
            return self._commit(before, self._leased(after, lease_ns) if lease_ns else after)

    def update_status(
        self, job_id: str, status: Status, *, attempt: int | None = None, holder: str = "operator"
    ) -> Change:
        check_job_id(job_id)
        with self._writing():
            before = self._load(job_id)
            now_ns = self._clock.wall_ns()
            after = lifecycle.set_status(
                before, status, attempt=attempt, holder=holder, now_ns=now_ns, token=new_token()
            )
            return self._commit(before, after)

    def clear_submitter(self, job_id: str) -> Change:
        check_job_id(job_id)
        with self._writing():
            before = self._load(job_id)
            return self._commit(before, lifecycle.clear_submitter(before, now_ns=self._clock.wall_ns()))

    def requeue(self, job_id: str, *, attempt: int | None = None) -> Change:
        check_job_id(job_id)
        with self._writing():
            before = self._load(job_id)
            after = lifecycle.requeue(before, attempt=attempt, now_ns=self._clock.wall_ns())
            return self._commit(before, after)

    def renew_lease(self, job_id: str, *, attempt: int, lease_sec: float) -> Job:
        check_job_id(job_id)
        lease_ns = lifecycle.lease_ns(lease_sec) or 0
        with self._writing():
            before = self._load(job_id)
            after = lifecycle.renew(before, attempt=attempt, now_ns=self._clock.wall_ns())
            return self._commit(before, self._leased(after, lease_ns)).after

    def expired_leases(self, *, limit: int = 100) -> list[Job]:
        with self._translated_errors():
            if not self._seal.holds():
                with self._writing():
                    self._refresh_index()
            return self._expired(limit)

    def expire_leases(self, *, limit: int = 100) -> list[Change]:
        changes: list[Change] = []
        with self._writing():
            self._refresh_index()
            for job in self._expired(limit):
                now_ns = self._clock.wall_ns()
                detail = lifecycle.expired_lease_error(job)
                if detail is None:
                    after = lifecycle.requeue(job, attempt=None, now_ns=now_ns)
                    changes.append(self._commit(job, after))
                else:
                    recorded = self._store(stated(job, EventName.ERROR, detail, {}, now_ns))
                    changes.append(Change(before=job, after=recorded.after))
        return changes

    def _expired(self, limit: int) -> list[Job]:
        expired: list[Job] = []
        for job_id in [] if self._absent else self._index.leased():
            try:
                job = self._load(job_id)
            except (JobNotFound, InvalidRecord):
                continue
            if job.status is not Status.RUNNING or job.lease_expires_at is None:
                continue
            if lease_expired(self._clock, job.lease_mark, job.lease_expires_at):
                expired.append(job)
            if len(expired) == limit:
                break
        return expired

    def prune(self, before_ns: int, *, limit: int = 1000) -> list[str]:
        pruned: list[str] = []
        with self._writing():
            for job in () if self._absent else self._all():
                if isinstance(job, InvalidRecord) or not lifecycle.may_prune(job, before_ns):
                    continue
                if not all(event.sent for event in self._events(job)):
                    continue
                # The record first: without it, the log means nothing and is not found.
                remove_file(self._path(job.job_id))
                fsync_dir(self.folder)
                remove_file(self._log(job).path)
                self._index.drop_unsent(job.job_id)
                pruned.append(job.job_id)
                if len(pruned) == limit:
                    break
        return pruned

    def stats(self) -> dict[str, int]:
        counts = {status.value: 0 for status in Status}
        unsent = 0
        for job in self._all():
            if isinstance(job, Job):
                counts[job.status.value] += 1
                unsent += sum(not event.sent for event in self._events(job))
        return {**counts, "unsent": unsent}

    # -- events ----------------------------------------------------------------------------------------

    def record_event(
        self,
        job_id: str,
        event: EventName,
        *,
        detail: str = "",
        data: Mapping[str, Any] | None = None,
        attempt: int | None = None,
        holder: str = "operator",
    ) -> Recorded:
        check_job_id(job_id)
        with self._writing():
            before = self._load(job_id)
            has_events = event is EventName.STARTED and any(
                stored.attempt == before.attempt for stored in self._events(before)
            )
            lifecycle.before_event(before, event, attempt=attempt, has_events=has_events)
            return self._store(stated(before, event, detail, data or {}, self._clock.wall_ns(), holder))

    def next_seq(self, job_id: str, *, attempt: int | None = None) -> int:
        check_job_id(job_id)
        with self._writing():
            before = self._load(job_id)
            after = lifecycle.take_seq(before, attempt=attempt, now_ns=self._clock.wall_ns())
            self._log(before).clean()
            return self._commit(before, after).after.last_seq

    def events_after(self, job_id: str, seq: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        check_job_id(job_id)
        with self._translated_errors():
            events = self._events(self._load(job_id))
        return [event for event in events if event.seq > seq][:limit]

    def unsent_events(
        self, *, job_id: str | None = None, broker: Broker | None = None, limit: int = 1000
    ) -> list[StoredEvent]:
        if job_id is not None:
            check_job_id(job_id)
        found: list[StoredEvent] = []
        with self._translated_errors():
            if job_id is None and not self._seal.holds():
                with self._writing():
                    self._refresh_index()
            for each in self._index.unsent() if job_id is None else [job_id]:
                try:
                    job = self._load(each)
                except (JobNotFound, InvalidRecord):
                    continue
                if broker is not None and job.broker != broker:
                    continue
                found += [event for event in self._events(job) if not event.sent]
                if len(found) >= limit:
                    break
        return found[:limit]

    def mark_sent(self, job_id: str, seqs: Iterable[int]) -> None:
        check_job_id(job_id)
        with self._writing():
            try:
                job = self._load(job_id)
            except JobNotFound:
                return
            self._log(job).mark_sent(seq for seq in seqs if seq <= job.last_seq)
            if all(event.sent for event in self._events(job)):
                self._index.drop_unsent(job_id)

    # -- moving ------------------------------------------------------------------------------------------

    def export(self) -> Iterator[Entry | InvalidRecord]:
        keys: list[tuple[int, str]] = []
        for job in self._all():
            if isinstance(job, InvalidRecord):
                yield job
            else:
                keys.append((parse_time(job.created_at), job.job_id))
        for _, job_id in sorted(keys):
            job = self._load(job_id)
            yield Entry(job=job, events=self._events(job))

    def import_entries(self, entries: Iterable[Entry]) -> None:
        with self._writing(create=True):
            self._trusted = False  # the next verb that needs the index builds it
            for entry in entries:
                if entry.events:
                    self._log(entry.job).write_all(entry.events)
                replace_file(self._path(entry.job.job_id), _record_bytes(entry.job), durable=False)
            os.sync()

    @contextmanager
    def freeze(self) -> Iterator[None]:
        make_private_dir(self.folder)
        with self._translated_errors(), self._lock:
            yield

    def staging(self) -> Registry:
        from baton.registry.staging import staging_dir

        return FileRegistry(staging_dir(self.folder), clock=self._clock)

    def adopt(self, staging: Registry) -> None:
        from baton.registry.staging import adopt_files

        staging.close()
        # Records after their logs: interrupted, this leaves a part of the jobs, but each of them whole.
        adopt_files(self.folder, lambda name: name.endswith(".json"))

    def mark_moved(self, url: str) -> None:
        mark_moved(self.folder, url)

    def set_aside(self) -> str:
        from baton.registry.staging import set_aside_files

        records = [f"{job_id}.json" for job_id in self._ids()]
        logs = [name for name in os.listdir(self.folder) if name.endswith(".events.log")]
        index = [".index"] if os.path.isdir(self._index.folder) else []
        return set_aside_files(self.folder, index + records + logs)

    # -- inside the lock -----------------------------------------------------------------------------------

    @contextmanager
    def _writing(self, *, create: bool = False) -> Iterator[None]:
        with self._translated_errors():
            if not create and not exists(self.folder):
                self._absent = True
                try:
                    yield
                finally:
                    self._absent = False
                return
            if create:
                make_store_dir(self.folder)
            with self._lock:
                refuse_moved(self.folder, self.url)
                # A verb that fails or dies in the middle leaves the folder's own time behind, and with it
                # the news that the index must be built anew.
                self._trusted = self._seal.holds() or _is_new(self.folder)
                self._finish_batch()
                yield
                if self._trusted:
                    self._seal.put()

    def _commit(self, before: Job | None, after: Job) -> Change:
        if before is after:
            return Change(before=after, after=after)
        self._index.add(after)
        replace_file(self._path(after.job_id), _record_bytes(after))
        if before is not None:
            self._index.drop_outdated(before, after)
        return Change(before=before or after, after=after)

    def _store(self, recorded: Recorded) -> Recorded:
        self._index.add_unsent(recorded.after.job_id)
        self._log(recorded.before).add(recorded.event)
        self._commit(recorded.before, recorded.after)
        return recorded

    def _leased(self, job: Job, lease_ns: int) -> Job:
        return job.replace(
            lease_expires_at=format_time(self._clock.wall_ns() + lease_ns),
            lease_mark=lease_mark(self._clock, lease_ns),
        )

    # -- reading -------------------------------------------------------------------------------------------

    def _path(self, job_id: str) -> str:
        return os.path.join(self.folder, f"{job_id}.json")

    def _load(self, job_id: str) -> Job:
        if self._absent:
            raise JobNotFound(job_id, self.where)
        try:
            content = read_file(self._path(job_id))
        except FileNotFoundError:
            raise JobNotFound(job_id, self.where) from None
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EISDIR, errno.EACCES, errno.ELOOP):
                raise
            raise InvalidRecord(job_id, "record", f"cannot be read: {error.strerror}") from None
        try:
            record = json.loads(content)
        except (ValueError, RecursionError):
            raise InvalidRecord(job_id, "record", "is not JSON") from None
        return Job.parse(record, job_id)

    def _ids(self) -> list[str]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return [match[1] for name in names if (match := _RECORD.fullmatch(name))]

    def _all(self) -> Iterator[Job | InvalidRecord]:
        with self._translated_errors():
            for job_id in self._ids():
                try:
                    yield self._load(job_id)
                except JobNotFound:
                    continue  # pruned meanwhile
                except InvalidRecord as error:
                    yield error

    def _events(self, job: Job) -> list[StoredEvent]:
        return self._log(job).events()

    def _log(self, job: Job) -> EventLog:
        return EventLog(os.path.join(self.folder, f"{job.job_id}.events.log"), job)

    # -- the index -----------------------------------------------------------------------------------------

    def _refresh_index(self) -> None:
        """Finishes what a crash interrupted and makes the index speak of every record there is."""
        if self._trusted or self._absent:
            return
        for name in os.listdir(self.folder):
            if _TEMPORARY.fullmatch(name):
                remove_file(os.path.join(self.folder, name))
        for job in self._all():
            if isinstance(job, Job):
                self._index.add(job)
                if not all(event.sent for event in self._events(job)):
                    self._index.add_unsent(job.job_id)
        self._trusted = True

    @property
    def _batch_path(self) -> str:
        return os.path.join(self.folder, _BATCH)

    def _finish_batch(self) -> None:
        """Registers what is left of a batch whose process died; before anything else happens to its jobs."""
        if not os.path.exists(self._batch_path):
            return
        try:
            jobs = [Job.parse(record) for record in json.loads(read_file(self._batch_path))]
        except (ValueError, TypeError, InvalidRecord):
            raise RegistryUnavailable(f"{self._batch_path} is damaged; move it away") from None
        for job in jobs:
            if not os.path.exists(self._path(job.job_id)):
                self._commit(None, job)
        remove_file(self._batch_path)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RegistryUnavailable(
                f"{error.filename or self.folder}: {error.strerror}; nothing was changed"
            ) from error


def _record_bytes(job: Job) -> bytes:
    return json.dumps(job.record(), ensure_ascii=False, indent=2).encode() + b"\n"
