"""The requests of a file registry: they stand in the record of their job, the call of each in a file of its own.

One replacement of the record changes the job and its requests at once. `requests` is not a field of a job.
"""

from __future__ import annotations

import json
import os
import re

from baton.core.errors import InvalidRecord, JobNotFound, RequestNotFound
from baton.core.fields import parse_json
from baton.core.job import Job, Status
from baton.core.value import Any
from baton.storage import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from baton.core.request import Request
    from baton.registry.contract import IsPast
    from baton.registry.files import FileRegistry

_FIELD = "requests"
_CALL = re.compile(r"([0-9a-f]{8,32})\.request-([0-9a-f]{8})", re.ASCII)


class RequestFiles:
    """What a transaction of a file registry does with requests."""

    if TYPE_CHECKING:
        _missing: bool

        def get(self, job_id: str) -> Job: ...
        def refresh_index(self) -> None: ...
        def all_jobs(self, job_ids: Iterable[str] | None = None) -> Iterator[Job]: ...

    def __init__(self, registry: FileRegistry) -> None:
        self._registry = registry
        self._index = registry.index
        self._stored: dict[str, Any] = {}  # what each record that was read holds

    def _without_requests(self, record: object, job_id: str) -> object:
        """Take the requests out of a record that was read; `_stored_requests` returns them."""
        self._stored.pop(job_id, None)
        if isinstance(record, dict) and _FIELD in record:
            self._stored[job_id] = record.pop(_FIELD)
        return record

    def _stored_requests(self, job_id: str) -> dict[str, Any]:
        return {_FIELD: self._stored[job_id]} if self._stored.get(job_id) else {}

    def _rows(self, job_id: str) -> list[dict[str, Any]]:
        stored = self._stored.get(job_id, [])
        if not isinstance(stored, list) or not all(isinstance(row, dict) for row in stored):
            raise InvalidRecord(job_id, _FIELD, "must be a list of objects")
        return stored

    def _ids(self, job_id: str) -> list[str]:
        """Return the ids of the requests in a record that was read; none of an invalid one."""
        try:
            return [found[2] for row in self._rows(job_id) if (found := _CALL.fullmatch(_name(job_id, row)))]
        except InvalidRecord:
            return []

    def job_of_request(self, request_id: str) -> str:
        self.refresh_index()
        job_id = None if self._missing else self._index.job_of_request(request_id)
        if job_id is None:
            raise RequestNotFound(request_id, self._registry.where)
        return job_id

    def request(self, request_id: str) -> Request:
        job_id = self.job_of_request(request_id)
        for row in self._rows(job_id):
            if row.get("request_id") == request_id:
                return self._parse(job_id, row, calls=True)
        raise RequestNotFound(request_id, self._registry.where)

    def requests(self, job_id: str | None, open_only: bool, limit: int, *, calls: bool = True) -> list[Request]:
        if job_id is not None:
            jobs = self.all_jobs([job_id])
        elif open_only:
            self.refresh_index()
            jobs = self.all_jobs(self._index.asking())
        else:
            jobs = self.all_jobs()
        found = [request for job in jobs for request in self._of_job(job, calls=calls)]
        found = [request for request in found if request.state == "open" or not open_only]
        return sorted(found, key=lambda request: (request.asked_at, request.request_id))[:limit]

    def _of_job(self, job: Job, *, calls: bool) -> list[Request]:
        try:
            rows = self._rows(job.job_id)
        except InvalidRecord:
            return []
        return [found for row in rows if (found := self._present(job, row, calls=calls)) is not None]

    def _present(self, job: Job, row: dict[str, Any], *, calls: bool) -> Request | None:
        """Return the request as it is with its job. None if it is not valid: it must not hide the others, and
        `get_request` names what is wrong."""
        from baton.core.request import present

        try:
            return present(self._parse(job.job_id, row, calls=calls), job, False)
        except InvalidRecord:
            return None

    def _parse(self, job_id: str, row: dict[str, Any], *, calls: bool) -> Request:
        from baton.core.request import Request

        call = None
        if calls:
            try:
                call = parse_json(files.read_file(os.path.join(self._registry.folder, _name(job_id, row))))
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in files.SYSTEM_FAILED:
                    raise
                why = f"holds {row.get('request_id')}, whose call cannot be read"
                raise InvalidRecord(job_id, _FIELD, why) from None
        return Request.parse({**row, "job_id": job_id, "call": call}, job_id)

    def request_ids_from(self, beginning: str, limit: int) -> list[str]:
        self.refresh_index()
        return [] if self._missing else self._index.request_ids_from(beginning)[:limit]

    def _put_request(self, request: Request, *, new: bool, durable: bool = True) -> None:
        """Put a request into the record that is written next; of a new one, write the call."""
        row = request.record()
        call = row.pop("call")
        job_id = row.pop("job_id")
        if new:
            content = json.dumps(call).encode()
            files.replace_file(self._registry.call_path(job_id, request.request_id), content, durable=durable)
        others = [other for other in self._rows(job_id) if other.get("request_id") != request.request_id]
        self._stored[job_id] = [*others, row]

    def _index_requests(self, job: Job) -> None:
        ids = self._ids(job.job_id)
        for request_id in ids:
            self._index.add_request(request_id, job.job_id)
        if ids:
            asks = job.status is Status.RUNNING and any(row.get("state") == "open" for row in self._rows(job.job_id))
            self._index.set_asking(job.job_id, asks)

    def _remove_requests(self, job_id: str) -> None:
        for request_id in self._ids(job_id):
            files.remove_file(self._registry.call_path(job_id, request_id))
            self._index.drop_request(request_id)
        self._index.set_asking(job_id, False)

    def _remove_lost_calls(self, names: Iterable[str]) -> None:
        """Remove calls that a process wrote before it died, and those whose job was removed."""
        for name in names:
            found = _CALL.fullmatch(name)
            if found is not None and self._is_lost(found[1], found[2]):
                files.remove_file(os.path.join(self._registry.folder, name))

    def _is_lost(self, job_id: str, request_id: str) -> bool:
        try:
            self.get(job_id)
            return all(row.get("request_id") != request_id for row in self._rows(job_id))
        except JobNotFound:
            return True
        except InvalidRecord:
            return False

    def _summaries(self, job: Job, is_past: IsPast) -> tuple[str, ...]:
        """Return the summaries of the open requests of a job that was read, the oldest first."""
        if not self._stored.get(job.job_id):
            return ()
        asked = [
            request
            for request in self._of_job(job, calls=False)
            if request.state == "open"
            and not (request.expires_at is not None and is_past(request.expires_at, request.expires_mark))
        ]
        return tuple(request.summary for request in sorted(asked, key=lambda request: request.asked_at))


def _name(job_id: str, row: dict[str, Any]) -> str:
    return f"{job_id}.request-{row.get('request_id')}"
