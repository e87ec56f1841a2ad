"""Index a file registry: jobs that are pending, leased, submitted, unseen or unsent, without reading records."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator

from baton.core.clock import parse_time
from baton.core.fields import JOB_ID
from baton.core.job import Job, Status, is_unseen
from baton.storage.files import make_private_dir, open_private, read_file, refuse_link, remove_file, write_all

_FOLDERS = (
    "pending", "leased", "submitted", "unseen", "unsent", "notify", "keys", "requests", "asking", "look", "followers",
)  # fmt: skip
_LOOK_NS = 3600 * 10**9  # markers of one hour are in one folder: a claim reads no later ones


class Index:
    """Empty files whose names say which jobs are pending (in the order of picking), pending with a submitter, leased,
    are to be looked at (by time), wait for another job, have ended without the user having seen it, have unsent events
    or open requests, and which have an idempotency key. Files named like requests hold the id of the job."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def check(self) -> None:
        """Refuse a link in place of one of its folders: markers would be created and removed elsewhere."""
        for name in ("", *_FOLDERS):
            refuse_link(os.path.join(self.folder, name).rstrip("/"))

    def pending(self, agent_session: str) -> Iterator[tuple[str, str]]:
        """Return the ids of pending jobs, each with the path of its marker."""
        folder = self._pending_dir(agent_session)
        names = _names(folder)
        while names:
            name = min(names)  # nearly always the only one used: cheaper than sorting all
            names.remove(name)
            yield name.rpartition("-")[2], os.path.join(folder, name)

    def leased(self) -> list[str]:
        return sorted(_names(os.path.join(self.folder, "leased")))

    def submitted(self) -> list[str]:
        return _names(os.path.join(self.folder, "submitted"))

    def unseen(self) -> list[str]:
        return _names(os.path.join(self.folder, "unseen"))

    def notify_due(self) -> list[str]:
        return sorted(_names(os.path.join(self.folder, "notify")))

    def unsent(self) -> list[str]:
        return sorted(_names(os.path.join(self.folder, "unsent")))

    def with_key(self, key: str) -> list[str]:
        return _names(self._key_dir(key))

    def due(self, now_ns: int) -> Iterator[tuple[str, str]]:
        """Return the ids of jobs to look at now, the first ones first, each with the path of its marker."""
        top = os.path.join(self.folder, "look")
        for hour in sorted(_names(top)):
            if hour > _hour(now_ns):
                return
            folder = os.path.join(top, hour)
            for name in sorted(_names(folder)):
                if name[:_TIME_DIGITS] > _time_name(now_ns):
                    return
                yield name.rpartition("-")[2], os.path.join(folder, name)

    def followers(self, job_id: str) -> list[str]:
        return sorted(_names(os.path.join(self.folder, "followers", job_id)))

    def followed(self) -> list[str]:
        return sorted(_names(os.path.join(self.folder, "followers")))

    def forget_follower(self, job_id: str, follower: str) -> None:
        _remove_last(os.path.join(self.folder, "followers", job_id, follower))

    def lacks(self, job: Job) -> bool:
        """Return whether the marker of a pending job is missing."""
        return _waits_in_queue(job) and not os.path.exists(self._pending_marker(job))

    def add(self, job: Job) -> None:
        if job.idempotency_key is not None:
            _touch(os.path.join(self._key_dir(job.idempotency_key), job.job_id))
        if job.notify_due:
            _touch(os.path.join(self.folder, "notify", job.job_id))
        if job.look_at is not None:
            _touch(self._look_marker(job))
        for each in job.waits_for:
            _touch(os.path.join(self.folder, "followers", each, job.job_id))
        if _waits_in_queue(job):
            _touch(self._pending_marker(job))
        elif _waits_for_submitter(job):
            _touch(os.path.join(self.folder, "submitted", job.job_id))
        elif job.status is Status.RUNNING and job.lease_expires_at is not None:
            _touch(os.path.join(self.folder, "leased", job.job_id))
        elif is_unseen(job.status, job.seen_at):
            _touch(os.path.join(self.folder, "unseen", job.job_id))

    def add_unsent(self, job_id: str) -> None:
        _touch(os.path.join(self.folder, "unsent", job_id))

    def drop_outdated(self, before: Job, after: Job) -> None:
        if _waits_in_queue(before) and not _waits_in_queue(after):
            remove_file(self._pending_marker(before))
        if _waits_for_submitter(before) and not _waits_for_submitter(after):
            remove_file(os.path.join(self.folder, "submitted", before.job_id))
        if before.lease_expires_at is not None and after.lease_expires_at is None:
            self.drop_leased(before.job_id)
        if is_unseen(before.status, before.seen_at) and not is_unseen(after.status, after.seen_at):
            self.drop_unseen(before.job_id)
        if before.notify_due and not after.notify_due:
            self.drop_notify_due(before.job_id)
        if before.look_at != after.look_at:
            self.drop_look(before)
        for each in before.waits_for:
            if each not in after.waits_for:
                self.forget_follower(each, before.job_id)

    def drop_look(self, job: Job) -> None:
        if job.look_at is not None:
            _remove_last(self._look_marker(job))

    def drop_notify_due(self, job_id: str) -> None:
        remove_file(os.path.join(self.folder, "notify", job_id))

    def drop_leased(self, job_id: str) -> None:
        remove_file(os.path.join(self.folder, "leased", job_id))

    def drop_key(self, job: Job) -> None:
        if job.idempotency_key is not None:
            _remove_last(os.path.join(self._key_dir(job.idempotency_key), job.job_id))

    def drop_unseen(self, job_id: str) -> None:
        remove_file(os.path.join(self.folder, "unseen", job_id))

    def drop_unsent(self, job_id: str) -> None:
        remove_file(os.path.join(self.folder, "unsent", job_id))

    def job_of_request(self, request_id: str) -> str | None:
        try:
            job_id = read_file(os.path.join(self.folder, "requests", request_id)).decode(errors="replace")
        except FileNotFoundError:
            return None
        return job_id if JOB_ID.fullmatch(job_id) else None

    def request_ids_from(self, beginning: str) -> list[str]:
        folder = os.path.join(self.folder, "requests")
        if os.path.exists(os.path.join(folder, beginning)):
            return [beginning]
        return sorted(name for name in _names(folder) if name.startswith(beginning))

    def add_request(self, request_id: str, job_id: str) -> None:
        if self.job_of_request(request_id) != job_id:
            _touch(os.path.join(self.folder, "requests", request_id), job_id.encode())

    def drop_request(self, request_id: str) -> None:
        remove_file(os.path.join(self.folder, "requests", request_id))

    def asking(self) -> list[str]:
        return sorted(_names(os.path.join(self.folder, "asking")))

    def set_asking(self, job_id: str, asks: bool) -> None:
        path = os.path.join(self.folder, "asking", job_id)
        if asks:
            _touch(path)
        else:
            remove_file(path)

    def _key_dir(self, key: str) -> str:
        # Two keys may share a folder; the record names the key of the job.
        return os.path.join(self.folder, "keys", f"{zlib.crc32(key.encode()):08x}")

    def _pending_dir(self, agent_session: str) -> str:
        # Two queues may share a folder; the record names the queue of the job.
        readable = re.sub(r"[^A-Za-z0-9]+", "_", agent_session)[:40]
        return os.path.join(self.folder, "pending", f"{readable}-{zlib.crc32(agent_session.encode()):08x}")

    def _look_marker(self, job: Job) -> str:
        assert job.look_at is not None
        look_ns = parse_time(job.look_at)
        return os.path.join(self.folder, "look", _hour(look_ns), f"{_time_name(look_ns)}-{job.job_id}")

    def _pending_marker(self, job: Job) -> str:
        order = f"{10**9 - job.priority:010d}-{_time_name(parse_time(job.created_at))}"
        return os.path.join(self._pending_dir(job.agent_session), f"{order}-{job.job_id}")


def _waits_in_queue(job: Job) -> bool:
    return is_claimable(job) and job.submitter is None


def _waits_for_submitter(job: Job) -> bool:
    return job.status is Status.PENDING and job.submitter is not None and not job.is_blocked


def is_claimable(job: Job) -> bool:
    """Return whether a process may claim the job, if its submitter is that process or none."""
    return job.status is Status.PENDING and job.disputed is None and not job.is_blocked


_TIME_DIGITS = 20


def _time_name(ns: int) -> str:
    return f"{ns + 2**63:0{_TIME_DIGITS}d}"


def _hour(ns: int) -> str:
    return _time_name(ns // _LOOK_NS)


def _remove_last(path: str) -> None:
    """Remove a marker, and its folder when that was the last one in it."""
    remove_file(path)
    folder = os.path.dirname(path)
    if os.path.isdir(folder) and not _names(folder):
        os.rmdir(folder)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _touch(path: str, content: bytes = b"") -> None:
    flags = os.O_WRONLY | os.O_CREAT
    try:
        fd = open_private(path, flags)
    except FileNotFoundError:
        make_private_dir(os.path.dirname(path))  # the folders above it are not links: see `check`
        fd = open_private(path, flags)
    write_all(fd, content)
    os.close(fd)
