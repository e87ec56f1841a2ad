"""The rows of requests in SQL. The row of the job is locked before those of its requests, always in this order."""

from __future__ import annotations

import json

from baton.core.clock import format_time, parse_time
from baton.core.errors import InvalidRecord, RegistryBusy, RequestNotFound
from baton.core.fields import json_object, parse_json
from baton.core.job import Status
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from baton.core.request import Request
    from baton.registry.contract import IsPast

_COLUMNS = ("request_id", "job_id", "attempt", "state", "asked_at", "expires_at", "expires_mark", "content", "call")
_TIMES = ("asked_at", "expires_at")
_NAMES = ", ".join(f"requests.{name}" for name in _COLUMNS)
_WITHOUT_CALL = _NAMES.replace("requests.call", "'null'")
_INSERT = (
    f"INSERT INTO requests ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + name for name in _COLUMNS)})"
    " ON CONFLICT DO NOTHING"
)
# What the statement checks of the job, the update of its row has checked already in the same transaction.
_UPDATE = (
    "UPDATE requests SET state = :state, content = :content WHERE request_id = :request_id AND state = :if_state"
    " AND content = :if_content"
)
_OPEN_OF_JOBS = (
    "SELECT requests.job_id, expires_at, expires_mark, content FROM requests JOIN jobs ON jobs.job_id = requests.job_id"
    " AND jobs.attempt = requests.attempt WHERE state = 'open' AND requests.job_id IN ({ids}) ORDER BY asked_at"
)


def _row_of(request: Request) -> dict[str, Any]:
    record = request.record()
    row = {name: record.pop(name) for name in _COLUMNS if name != "content"}
    for name in _TIMES:
        row[name] = None if row[name] is None else parse_time(row[name])
    return row | {"content": json.dumps(record), "call": json.dumps(row["call"])}


def _request_from(row: Sequence[Any]) -> Request:
    from baton.core.request import Request

    record = dict(zip(_COLUMNS, row, strict=True))
    try:
        record |= {name: None if record[name] is None else format_time(record[name]) for name in _TIMES}
        record |= parse_json(record.pop("content")) | {name: record[name] for name in _COLUMNS if name in record}
        record["call"] = parse_json(record["call"])
    except (ValueError, TypeError, OverflowError):
        raise InvalidRecord(str(record["job_id"]), "requests", "holds a column that is not valid") from None
    return Request.parse(record, record["job_id"])


def _present(row: Sequence[Any]) -> Request | None:
    """Return the request of a row that ends with the status and the attempt of its job. None if it is not valid: it may
    not hide the others, and `get_request` names what is wrong."""
    from baton.core.request import Asker, present

    *values, status, attempt = row
    try:
        return present(_request_from(values), Asker(status=Status(status), attempt=attempt), False)
    except (InvalidRecord, ValueError):
        return None


class RequestRows:
    """What a transaction in SQL does with requests."""

    if TYPE_CHECKING:
        _where: str
        version: int

        def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]: ...
        def change(self, statement: str, values: Mapping[str, Any] | None = None) -> int: ...
        def of_jobs(self, statement: str, job_ids: Sequence[str]) -> Iterator[tuple[Any, ...]]: ...

    def job_of_request(self, request_id: str) -> str:
        values = {"request_id": request_id}
        found = "SELECT job_id FROM requests WHERE request_id = :request_id"
        rows = self.rows(found, values) if self.version > 1 else []
        if not rows:
            raise RequestNotFound(request_id, self._where)
        return str(rows[0][0])

    def request(self, request_id: str) -> Request:
        rows = self.rows(f"SELECT {_NAMES} FROM requests WHERE request_id = :request_id", {"request_id": request_id})
        if not rows:
            raise RequestNotFound(request_id, self._where)
        return _request_from(rows[0])

    def requests(self, job_id: str | None, open_only: bool, limit: int, *, calls: bool = True) -> list[Request]:
        if self.version == 1:
            return []
        conditions = ["jobs.job_id = requests.job_id"]
        if open_only:
            conditions.append("state = 'open' AND jobs.status = 'running' AND jobs.attempt = requests.attempt")
        if job_id is not None:
            conditions.append("requests.job_id = :job_id")
        rows = self.rows(
            f"SELECT {_NAMES if calls else _WITHOUT_CALL}, jobs.status, jobs.attempt FROM requests, jobs"
            f" WHERE {' AND '.join(conditions)} ORDER BY asked_at, request_id LIMIT :limit",
            {"job_id": job_id, "limit": limit},
        )
        return [found for row in rows if (found := _present(row)) is not None]

    def request_ids_from(self, beginning: str, limit: int) -> list[str]:
        if self.version == 1:
            return []
        rows = self.rows(
            "SELECT request_id FROM requests WHERE request_id >= :first AND request_id < :last"
            " ORDER BY request_id LIMIT :limit",
            {"first": beginning, "last": beginning + "g", "limit": limit},
        )
        return [row[0] for row in rows]

    def write_request(self, before: Request | None, after: Request) -> None:
        row = _row_of(after)
        if before is None:
            done = self.change(_INSERT, row)
        else:
            old = _row_of(before)
            row |= {"if_state": old["state"], "if_content": old["content"]}
            done = self.change(_UPDATE, row)
        if done != 1:
            raise RegistryBusy(f"another process changed request {after.request_id} at the same moment; try again")

    def put_request(self, request: Request) -> None:
        self.change(_INSERT, _row_of(request))

    def asking(self, job_ids: Sequence[str], is_past: IsPast) -> dict[str, list[str]]:
        """Return the summaries of the open requests of each of these running jobs, the oldest first."""
        found: dict[str, list[str]] = {}
        for job_id, expires_at, mark, content in self.of_jobs(_OPEN_OF_JOBS, job_ids):
            if expires_at is None or not is_past(format_time(expires_at), mark):
                found.setdefault(job_id, []).append(str(json_object(content).get("summary", "")))
        return found
