"""What one transaction of a file registry reads and writes. `files` describes the files."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

from baton.core import lifecycle
from baton.core.clock import parse_time
from baton.core.errors import InvalidRecord, JobNotFound, RegistryUnavailable
from baton.core.event import EventName, StoredEvent
from baton.core.fields import parse_json
from baton.core.job import TERMINAL, Broker, Job, Status
from baton.registry import FILES_NOTE, MOVED_NOTE, NEWER_DATABASE, read_note, record_ids
from baton.registry.contract import Change, Entry, JobFilter, OutlinePage, Page, format_cursor
from baton.registry.event_log import EventLog
from baton.registry.file_index import is_claimable
from baton.registry.file_requests import RequestFiles
from baton.storage import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.outline import Outline
    from baton.core.result import Result
    from baton.registry.contract import IsPast, RequestWrite
    from baton.registry.files import FileRegistry

OTHER_FILES = re.compile(r"[0-9a-f]{8,32}\.(events\.log|result|request-[0-9a-f]{8})", re.ASCII)  # of a job
_TEMPORARY = re.compile(r"\.[0-9a-z_.-]+\.[0-9a-f]{8}\.tmp", re.ASCII)


class FileTransaction(RequestFiles):
    """The files of a registry during one transaction. `missing`: there was no folder when it began, so that it sees
    nothing, also if another process creates the folder meanwhile. `imports`: it puts records of version 2."""

    def __init__(
        self, registry: FileRegistry, *, locked: bool = False, missing: bool = False, imports: bool = False
    ) -> None:
        super().__init__(registry)
        self._folder = registry.folder
        self._index = registry.index
        self._locked = locked
        self._missing = missing
        self._imports = imports
        self._added: dict[str, Job] = {}
        # Only a verb that began with a current index leaves a current one.
        self.index_is_current = locked and (registry.stamp.is_current() or is_new(registry.folder))

    @cached_property
    def _is_version_1(self) -> bool:
        return not self._imports and read_note(self._folder) != FILES_NOTE

    def get(self, job_id: str) -> Job:
        if self._missing:
            raise JobNotFound(job_id, self._registry.where)
        try:
            content = files.read_file(self._path(job_id))
        except FileNotFoundError:
            raise JobNotFound(job_id, self._registry.where) from None
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EFBIG):
                raise
            raise InvalidRecord(job_id, "record", f"cannot be read: {error.strerror}") from None
        try:
            record = parse_json(content)
        except ValueError:
            raise InvalidRecord(job_id, "record", "is not JSON") from None
        job = Job.parse(self._without_requests(record, job_id), job_id)
        if job.seen_at is None and job.status in TERMINAL and self._is_version_1:  # such an end counts as seen
            return job.replace(seen_at=job.finished_at or job.updated_at)
        return job

    def _records(self, job_ids: Iterable[str]) -> Iterator[Job | InvalidRecord]:
        for job_id in [] if self._missing else job_ids:
            try:
                yield self.get(job_id)
            except JobNotFound:
                continue  # pruned meanwhile
            except InvalidRecord as error:
                yield error

    def all_jobs(self, job_ids: Iterable[str] | None = None) -> Iterator[Job]:
        """Return these jobs, or all. Skip invalid records: `list` and `doctor` name them."""
        records = self._records(list(record_ids(self._folder)) if job_ids is None else job_ids)
        return (record for record in records if isinstance(record, Job))

    def overwrite(self, job: Job) -> None:
        """Replace the record of a job whose place in the index does not matter. The folder is not synced yet."""
        files.replace_file(self._path(job.job_id), self._record_bytes(job), sync_folder=False)

    def add(self, job: Job) -> Job | None:
        if job.job_id in self._added or os.path.exists(self._path(job.job_id)):
            return None
        added = job.replace(change=self._next_change() + len(self._added))
        self._added[job.job_id] = added
        return added

    def find_key(self, key: str) -> Job | None:
        self.refresh_index()
        found = (*self._added.values(), *self.all_jobs(self._index.with_key(key)))
        return next((job for job in found if job.idempotency_key == key), None)

    def write_added(self) -> None:
        """Write the added jobs, all or none."""
        if not self._added:
            return
        if len(self._added) > 1 or any(job.retry_of for job in self._added.values()):
            # Several files cannot change at once. What is in the batch file is registered: after a crash, the next
            # writer completes it.
            records = [job.record() for job in self._added.values()]
            files.replace_file(self._batch_path, json.dumps(records).encode())
        try:
            for job in self._added.values():
                self._write(job)
            self._link_retries(self._added.values())
        except BaseException:
            for job_id in self._added:
                files.remove_file(self._path(job_id))
            raise
        finally:
            files.remove_file(self._batch_path)

    def complete_batch(self) -> None:
        """Register the rest of a batch whose process died, before any of its jobs changes."""
        if not os.path.exists(self._batch_path):
            return
        try:
            jobs = [Job.parse(record) for record in parse_json(files.read_file(self._batch_path))]
        except (ValueError, TypeError, InvalidRecord):
            raise RegistryUnavailable(f"{self._batch_path} is damaged; move it away") from None
        for job in jobs:
            if not os.path.exists(self._path(job.job_id)):
                self._write(job)
        self._link_retries(jobs)
        files.remove_file(self._batch_path)

    def _link_retries(self, jobs: Iterable[Job]) -> None:
        """Note the id of each new job in the job that it retries."""
        for old in self.all_jobs(retries := {job.retry_of: job.job_id for job in jobs if job.retry_of is not None}):
            if old.retried_by != retries[old.job_id]:
                self._write(old.replace(retried_by=retries[old.job_id]))

    def save(
        self, before: Job, after: Job, event: StoredEvent | None = None, request: RequestWrite | None = None
    ) -> Change:
        if event is not None:
            self._index.add_unsent(after.job_id)
            self._log(before).add(event)
        elif after.last_seq != before.last_seq:
            self._log(before).remove_uncounted()  # or the new record would count it
        if request is not None:
            self._put_request(request.after, new=request.before is None)
        if before is not after or request is not None:
            after = self._write(after)
            self._index.drop_outdated(before, after)
        return Change(before=before, after=after)

    def keep_result(self, job_id: str, result: Result, *, durable: bool = True) -> None:
        files.replace_file(self._registry.result_path(job_id), result.content().encode(), durable=durable)

    def result(self, job_id: str) -> Result | None:
        from baton.core.result import Result

        path = self._registry.result_path(job_id)
        try:
            return Result.parse(files.read_file(path), job_id)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidRecord(job_id, "result", f"cannot be read: {files.os_error_text(error, path)}") from None

    def pending(self, agent_session: str) -> Iterator[Job]:
        """Return the jobs of a queue in the order of picking."""
        self.refresh_index()
        for job_id, marker in () if self._missing else self._index.pending(agent_session):
            try:
                job = self.get(job_id)
            except JobNotFound:
                files.remove_file(marker)
                continue
            except InvalidRecord:
                continue  # `list` and `doctor` name it
            if not is_claimable(job) or job.submitter is not None:
                files.remove_file(marker)
            elif job.agent_session == agent_session:
                yield job

    def due(self, limit: int, now_ns: int) -> list[Job]:
        self.refresh_index()
        found: list[Job] = []
        for job_id, marker in () if self._missing else self._index.due(now_ns):
            record = next(self._records([job_id]), None)
            if isinstance(record, Job) and record.look_at is not None and parse_time(record.look_at) <= now_ns:
                found.append(record)
            elif self._locked and not isinstance(record, InvalidRecord):
                files.remove_file(marker)
            if len(found) == limit:
                break
        return found

    def followers(self, job_id: str, limit: int) -> list[str]:
        return self._index.followers(job_id)[:limit]

    def forget_follower(self, job_id: str, follower: str) -> None:
        self._index.forget_follower(job_id, follower)

    def stranded(self, limit: int) -> list[tuple[str, str]]:
        self.refresh_index()
        followed = [] if self._missing else self._index.followed()
        there = {each.job_id: each for each in self._records(followed)}
        lost = [
            job_id
            for job_id in followed
            if (job := there.get(job_id)) is None
            or (isinstance(job, Job) and job.status in TERMINAL and job.look_at is None)
        ]
        return [(job_id, each) for job_id in lost for each in self._index.followers(job_id)][:limit]

    def leased(self) -> Iterator[Job]:
        self.refresh_index()
        for job in self.all_jobs(self._index.leased()):
            if job.status is Status.RUNNING and job.lease_expires_at is not None:
                yield job
            elif self._locked:
                self._index.drop_leased(job.job_id)

    def page(self, where: JobFilter, limit: int, start: tuple[int, str] | None) -> Page:
        found: list[tuple[tuple[int, str], Job]] = []
        bad: list[InvalidRecord] = []
        if where.submitted and where.free and where.statuses == [Status.PENDING]:
            self.refresh_index()
            job_ids = self._index.submitted()
        elif where.unseen:
            self.refresh_index()
            job_ids = self._index.unseen()
        elif where.notify_due:
            self.refresh_index()
            job_ids = self._index.notify_due()
        else:
            job_ids = list(record_ids(self._folder))
        for job in self._records(job_ids):
            if isinstance(job, InvalidRecord):
                bad.append(job)
                continue
            if self._index.lacks(job):
                self._registry.stamp.clear()
            key = (parse_time(job.created_at), job.job_id)
            if (start is None or key < start) and where.matches(job):
                found.append((key, job))
        found.sort(key=lambda pair: pair[0], reverse=True)
        page = found[:limit]
        following = format_cursor(*page[-1][0]) if len(found) > limit else None
        return Page(jobs=[job for _, job in page], bad=[] if start else bad, next=following)

    def ids_from(self, beginning: str, limit: int) -> list[str]:
        if os.path.exists(self._path(beginning)) and not self._missing:
            return [beginning]
        found = () if self._missing else record_ids(self._folder)
        return sorted(job_id for job_id in found if job_id.startswith(beginning))[:limit]

    def outlines(self, where: JobFilter, limit: int, start: tuple[int, str] | None, is_past: IsPast) -> OutlinePage:
        page = self.page(where, limit, start)
        return OutlinePage(jobs=self._outlines_of(page, is_past), bad=page.bad, next=page.next)

    def _outlines_of(self, jobs: Iterable[Job], is_past: IsPast) -> list[Outline]:
        from baton.core.outline import Outline

        return [
            Outline.of(job, self._last_event(job), self._summaries(job, is_past))
            if job.status is Status.RUNNING
            else Outline.of(job)
            for job in jobs
        ]

    def changes(self, number: int, limit: int, is_past: IsPast) -> tuple[list[Outline], int]:
        self.refresh_index()
        if self._missing or not (found := self._registry.change_log.read(number, limit)):
            return [], 0
        job_ids, following = found
        return self._outlines_of(list(self.all_jobs(job_ids)), is_past), following

    def _last_event(self, job: Job) -> EventName | None:
        events = [event for event in self._log(job).events() if event.attempt == job.attempt]
        return events[-1].event if events else None

    def ids(self) -> list[str]:
        created = {job.job_id: parse_time(job.created_at) for job in self.all_jobs()}
        ids = [] if self._missing else record_ids(self._folder)
        return sorted(ids, key=lambda job_id: (created.get(job_id, 0), job_id))

    def counts(self) -> dict[str, int]:
        counts = {"unsent": 0}
        for job in self.all_jobs():
            counts[job.status.value] = counts.get(job.status.value, 0) + 1
            counts["unsent"] += sum(not event.sent for event in self._log(job).events())
        return counts

    def prunable(self, before_ns: int, limit: int) -> list[str]:
        jobs = list(self.all_jobs())
        named = {each for job in jobs if job.status not in TERMINAL for each in lifecycle.named_jobs(job)}
        ended = (job for job in jobs if lifecycle.may_prune(job, before_ns) and job.job_id not in named)
        return list(islice((job.job_id for job in ended if self._log(job).all_sent()), limit))

    def remove(self, job_id: str) -> None:
        for job in self.all_jobs([job_id]):
            self._index.drop_key(job)
            self._index.drop_look(job)
        self._registry.change_log.sync()  # or its last number, which no record has then, could come again
        # The record first: without it, the log and the result are ignored.
        files.remove_file(self._path(job_id))
        files.fsync_dir(self._folder)
        files.remove_file(self._registry.log_path(job_id))
        files.remove_file(self._registry.result_path(job_id))
        self._remove_requests(job_id)
        self._index.drop_unsent(job_id)
        self._index.drop_unseen(job_id)
        self._index.drop_notify_due(job_id)

    def events(self, job_id: str, after: int, limit: int, attempt: int | None = None) -> list[StoredEvent]:
        events = (event for event in self._log(self.get(job_id)).events() if event.seq > after)
        return [event for event in events if attempt in (None, event.attempt)][:limit]

    def unsent(self, job_id: str | None, broker: Broker | None, limit: int) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        if job_id is None:
            self.refresh_index()
        for job in self.all_jobs(self._index.unsent() if job_id is None else [job_id]):
            if broker is None or job.broker == broker:
                found += [event for event in self._log(job).events() if not event.sent]
            if len(found) >= limit:
                break
        return found[:limit]

    def mark_sent(self, job_id: str, seqs: Iterable[int]) -> None:
        try:
            log = self._log(self.get(job_id))
        except JobNotFound:
            return
        log.mark_sent(seqs)
        if log.all_sent():
            self._index.drop_unsent(job_id)

    def put(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.events:
                self._log(entry.job).write(entry.events)
            if entry.result is not None:
                self.keep_result(entry.job.job_id, entry.result, durable=False)
            for request in entry.requests:
                self._put_request(request, new=True, durable=False)
            files.replace_file(self._path(entry.job.job_id), self._record_bytes(entry.job), durable=False)

    def refresh_index(self) -> None:
        """Build the index again if it is not current, and remove what a crash left."""
        if self._missing or self.index_is_current:
            return
        if not self._locked:
            self._registry.refresh_index()
            return
        names = os.listdir(self._folder)
        for name in names:
            if _TEMPORARY.fullmatch(name):
                files.remove_file(os.path.join(self._folder, name))
        last = 0
        for job in self.all_jobs():
            self._index.add(job)
            self._index_requests(job)
            if not self._log(job).all_sent():
                self._index.add_unsent(job.job_id)
            last = max(last, job.change)
        self._remove_lost_calls(names)
        self._registry.change_log.restart(last)
        self.index_is_current = True

    def _next_change(self) -> int:
        following = self._registry.change_log.following() if self.index_is_current else None
        if following is None:
            self.index_is_current = False
            self.refresh_index()
            following = self._registry.change_log.following()
        assert following is not None
        return following

    def _write(self, job: Job) -> Job:
        """Write a job with the next change number. A reader that finds the number in the log finds the record, too."""
        job = job.replace(change=self._next_change())
        self._index.add(job)
        self._index_requests(job)
        files.replace_file(self._path(job.job_id), self._record_bytes(job))
        try:
            self._registry.change_log.add(job.job_id)
        except OSError:
            self.index_is_current = False  # the record is written; the log begins anew before the next number is taken
        return job

    def _record_bytes(self, job: Job) -> bytes:
        record = job.record() | self._stored_requests(job.job_id)
        return json.dumps(record, ensure_ascii=False, indent=2).encode() + b"\n"

    def _path(self, job_id: str) -> str:
        return os.path.join(self._folder, f"{job_id}.json")

    def _log(self, job: Job) -> EventLog:
        return EventLog(self._registry.log_path(job.job_id), job)

    @property
    def _batch_path(self) -> str:
        return os.path.join(self._folder, ".batch")


def is_new(folder: str) -> bool:
    """Return whether the folder holds no record yet: then the index is empty, and current."""
    with os.scandir(folder) as entries:
        return all(entry.name in (".lock", ".gitignore", MOVED_NOTE, NEWER_DATABASE) for entry in entries)
