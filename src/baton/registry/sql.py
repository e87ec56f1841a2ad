"""The store of a registry in SQL, for every database that has `UPDATE ... RETURNING`.

A backend adds how to connect, how a transaction begins, and whose clock ends a lease. Statements have `:name`
parameters.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from baton.core import lifecycle
from baton.core.clock import format_time, parse_time
from baton.core.errors import InvalidRecord, JobDisputed, JobNotFound, RegistryBusy
from baton.core.event import EventName, StoredEvent
from baton.core.fields import JOB_ID, parse_json
from baton.core.job import JOB_FIELDS, OWN_DEFAULTS, TERMINAL, TIME_FIELDS, Broker, Job, Status
from baton.core.value import Any
from baton.registry.contract import Change
from baton.registry.schema import NEW_COLUMNS, VERSION, refuse_upgrade, submitter_of_queue
from baton.registry.sql_requests import RequestRows
from baton.registry.verbs import Registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.outline import Outline
    from baton.core.result import Result
    from baton.registry.contract import Entry, IsPast, JobFilter, OutlinePage, Page, RequestWrite

Row = tuple[Any, ...]
_FIELDS_1 = JOB_FIELDS[: JOB_FIELDS.index("submitter")]
_FIELDS = _FIELDS_1 + NEW_COLUMNS
_NO_COLUMN = tuple(name for name in JOB_FIELDS if name not in _FIELDS)  # these are kept in `other_fields`
COLUMNS = (*_FIELDS, "other_fields")
ID = COLUMNS.index("job_id")
CREATED = COLUMNS.index("created_at")
EVENT_COLUMNS = "job_id, seq, attempt, event, payload, sent"
_ORDER = ("after", "waits_for")
_JSON = frozenset({"broker", "expected_artifacts", "labels", "start_options", "notify_due", "activity", *_ORDER})
_TIME_RANGE_NS = 9 * 10**18


def row_of_job(job: Job) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(job, name)
        if name in TIME_FIELDS and value is not None:
            value = parse_time(value)
        elif name == "broker":
            value = broker_text(value)
        elif name in _JSON:
            value = None if value is None or value == {} or (name in _ORDER and not value) else json.dumps(value)
        elif name == "status":
            value = value.value
        row[name] = value
    added = {name: value for name in _NO_COLUMN if (value := getattr(job, name)) != OWN_DEFAULTS[name]}
    others = added | job.extra
    row["other_fields"] = json.dumps(others) if others else None
    return row


def broker_text(broker: Broker) -> str:
    return json.dumps(broker.record())


def job_from_row(row: Row) -> Job:
    record = dict(zip(COLUMNS, row, strict=True))
    job_id = str(record["job_id"])
    others = record.pop("other_fields")
    for name in TIME_FIELDS:
        value = record[name]
        if type(value) is int and abs(value) < _TIME_RANGE_NS:
            record[name] = format_time(value)
        elif value is not None or name in ("created_at", "updated_at"):
            raise InvalidRecord(job_id, name, "is not a number of nanoseconds")
    for name in _ORDER:
        if record[name] is None:
            del record[name]
    try:
        for name in _JSON:
            if record.get(name) is not None:
                record[name] = [] if record[name] == "[]" else parse_json(record[name])
        if others is not None:
            # Columns win: a login that may report on a job may write `other_fields`, but not the work itself.
            record = {**parse_json(others), **record}  # guard: columns-win
    except (ValueError, TypeError):
        raise InvalidRecord(job_id, "record", "holds a column that is not JSON") from None
    return Job.parse(record, job_id, times_checked=True)


def valid_jobs(rows: Iterable[Row]) -> Iterator[Job]:
    """Return the jobs in these rows without the invalid ones."""
    for row in rows:
        try:
            yield job_from_row(row)
        except InvalidRecord:
            continue  # one invalid record must not stop the others; `list` and `doctor` name it


def event_from_row(row: Row) -> StoredEvent:
    job_id, seq, attempt, event, payload, sent = row
    return StoredEvent(
        job_id=job_id, seq=seq, attempt=attempt, event=EventName(event), payload=bytes(payload), sent=bool(sent)
    )


def row_of_event(event: StoredEvent) -> dict[str, Any]:
    return event.as_dict() | {"event": event.event.value, "sent": int(event.sent)}


SELECT = f"SELECT {', '.join(COLUMNS)} FROM jobs"
# A registry of version 1, in the columns of version 2.
_ENDED_1 = "CASE WHEN status IN ('completed', 'error', 'cancelled') THEN COALESCE(finished_at, updated_at) END"
_ADDED_1 = ", ".join({"seen_at": _ENDED_1, "change": "0"}.get(name, "NULL") for name in NEW_COLUMNS)
_SELECT_1 = f"SELECT {', '.join(_FIELDS_1)}, {_ADDED_1}, extra FROM jobs"
_NEXT = "{next_change}"
_INSERT = (
    f"INSERT INTO jobs ({', '.join(COLUMNS)})"
    f" VALUES ({', '.join(_NEXT if name == 'change' else ':' + name for name in COLUMNS)})"
    " ON CONFLICT DO NOTHING"
)
_LINK_RETRY = f"UPDATE jobs SET retried_by = :job_id, change = {_NEXT} WHERE job_id = :retry_of"
_INSERT_EVENT = (
    "INSERT INTO events (job_id, seq, attempt, event, payload, sent)"
    " VALUES (:job_id, :seq, :attempt, :event, :payload, :sent)"
)
_INSERT_RESULT = (
    "INSERT INTO results (job_id, result) VALUES (:job_id, :result)"
    " ON CONFLICT (job_id) DO UPDATE SET result = excluded.result"
)
_CLAIM = """
UPDATE jobs SET status = 'running', attempt = attempt + 1, claimed_by = :holder, updated_at = :now,
    change = {next_change}, activity = NULL,
    deadline_at = :now + timeout_sec * 1000000000, lease_expires_at = :expires, lease_mark = :mark,
    auth_token = CASE WHEN attempt = 0 AND auth_token <> '' THEN auth_token ELSE :token END
WHERE job_id = (
    SELECT job_id FROM jobs WHERE status = 'pending' AND agent_session = :agent_session
        AND submitter IS NULL AND disputed IS NULL AND waits_for IS NULL AND look_at IS NULL"""
_RETURNING = f"RETURNING {', '.join(COLUMNS)}"
_INSERT_FOLLOWER = (
    "INSERT INTO followers (job_id, follower) VALUES (:job_id, :follower) ON CONFLICT (job_id, follower) DO NOTHING"
)
_FORGET_FOLLOWER = "DELETE FROM followers WHERE job_id = :job_id AND follower = :follower"
_RAISE_FLOOR = f"UPDATE changes SET floor = {_NEXT} - 1"
_IDS_AT_ONCE = 500
_INVALID = 20  # records that are not valid and do not keep the others from being found
_UNFINISHED = "status IN ('pending', 'running')"
_EVENTS = f"SELECT {EVENT_COLUMNS} FROM events WHERE"
# By its index: to look for one row that is due, PostgreSQL would read all jobs, because it expects to find one soon.
_FIRST_LOOK = "(SELECT min(look_at) FROM jobs WHERE look_at IS NOT NULL)"


class SqlTransaction(RequestRows):
    """One transaction on `raw`, a connection of sqlite3 or psycopg. `where` names the registry in messages."""

    lock_rows = ""  # what a SELECT adds to keep the rows it reads from changing
    skip_locked = ""  # what it adds to skip rows that another transaction has locked
    if_claimable = ""  # what a claim adds to find nothing while the registry is drained
    present = ":now"  # the time by which jobs are unblocked
    use_unseen = " INDEXED BY jobs_unseen"  # SQLite would read every ended job
    # The number of the next change. Only a removal writes to `changes`, so that no number comes again.
    next_change = "(SELECT max(floor, (SELECT COALESCE(max(change), 0) FROM jobs)) + 1 FROM changes)"

    def __init__(self, raw: Any, where: str, version: int = VERSION) -> None:
        self.raw = raw
        self._where = where
        self.version = version
        self.select = SELECT if version > 1 else _SELECT_1

    @staticmethod
    def _prepared(statement: str) -> str | bytes:
        return statement

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Row]:
        found: list[Row] = self.raw.execute(self._prepared(statement), values or {}).fetchall()
        return found

    def change(self, statement: str, values: Mapping[str, Any] | None = None) -> int:
        """Run a statement and return how many rows it changed."""
        count: int = self.raw.execute(self._prepared(statement), values or {}).rowcount
        return count

    def change_many(self, statement: str, values: Iterable[Mapping[str, Any]]) -> None:
        self.raw.cursor().executemany(self._prepared(statement), values)

    def get(self, job_id: str) -> Job:
        rows = self.rows(f"{self.select} WHERE job_id = :job_id{self.lock_rows}", {"job_id": job_id})
        if not rows:
            raise JobNotFound(job_id, self._where)
        return job_from_row(rows[0])

    def add(self, job: Job) -> Job | None:
        rows = self.rows(f"{self._with_change_number(_INSERT)} RETURNING change", row_of_job(job))
        if rows and job.retry_of is not None:
            self.change(self._with_change_number(_LINK_RETRY), {"job_id": job.job_id, "retry_of": job.retry_of})
        if rows and job.waits_for:
            self._add_followers([job])
        return job.replace(change=rows[0][0]) if rows else None

    def _with_change_number(self, statement: str) -> str:
        return statement.replace(_NEXT, self.next_change)

    def find_key(self, key: str) -> Job | None:
        rows = self.rows(f"{self.select} WHERE idempotency_key = :key", {"key": key})
        return job_from_row(rows[0]) if rows else None

    def save(
        self, before: Job, after: Job, event: StoredEvent | None = None, request: RequestWrite | None = None
    ) -> Change:
        if before is not after or request is not None:
            after = after.replace(change=self._update(row_of_job(before), row_of_job(after)))
        for job_id in before.waits_for:
            if job_id not in after.waits_for:
                self.forget_follower(job_id, after.job_id)
        if event is not None:
            self.change(_INSERT_EVENT, row_of_event(event))
        if request is not None:
            self.write_request(request.before, request.after)
        return Change(before=before, after=after)

    def keep_result(self, job_id: str, result: Result) -> None:
        self.change(_INSERT_RESULT, {"job_id": job_id, "result": result.content()})

    def result(self, job_id: str) -> Result | None:
        from baton.core.result import Result

        found = "SELECT result FROM results WHERE job_id = :job_id"
        rows = self.rows(found, {"job_id": job_id}) if self.version > 1 else []
        return Result.parse(rows[0][0], job_id) if rows else None

    def _update(self, old: dict[str, Any], new: dict[str, Any]) -> int:
        """Write what differs, and return the change number."""
        changed = [name for name in COLUMNS if old[name] != new[name] and name != "change"]
        assignments = ", ".join([f"change = {self.next_change}", *(f"{name} = :{name}" for name in changed)])
        guard = {"if_status": old["status"], "if_attempt": old["attempt"], "if_seq": old["last_seq"]}
        # The guard is in the statement that writes: it changes only the job that was decided on.
        done = self.rows(
            f"UPDATE jobs SET {assignments} WHERE job_id = :job_id AND status = :if_status"
            " AND attempt = :if_attempt AND last_seq = :if_seq RETURNING change",
            {**{name: new[name] for name in changed}, **guard, "job_id": old["job_id"]},
        )
        if not done:
            raise RegistryBusy(f"another process changed job {old['job_id']} at the same moment; try again")
        number: int = done[0][0]
        return number

    def claim(self, values: Mapping[str, Any], skipped: Iterable[str], *, unless_due: bool) -> Job | None:
        """Claim as `lifecycle.claim` does, in the one statement that also finds the job. Skip the jobs in `skipped`.
        `unless_due`: claim none while `due` would return one, which may come first when it is unblocked."""
        others = {f"not_{number}": job_id for number, job_id in enumerate(skipped)}
        except_others = f" AND job_id NOT IN ({', '.join(':' + name for name in others)})" if others else ""
        first = f"ORDER BY priority DESC, created_at, job_id LIMIT 1{self.skip_locked}"
        claim = self._with_change_number(_CLAIM)
        none_due = f" AND coalesce({_FIRST_LOOK} > {self.present}, true)" if unless_due else ""
        where = f"{self.if_claimable}{none_due}{except_others}"
        rows = self.rows(f"{claim}{where} {first}) {_RETURNING}", {**values, **others})
        return job_from_row(rows[0]) if rows else None

    def is_due(self, now_ns: int) -> bool:
        """Return whether `due` would return a job, also one that another transaction has locked."""
        return bool(self.rows(f"SELECT 1 WHERE {_FIRST_LOOK} <= {self.present}", {"now": now_ns}))

    def due(self, limit: int, now_ns: int) -> list[Job]:
        if self.version == 1:
            return []
        first = f"WHERE look_at <= {self.present} ORDER BY look_at, job_id LIMIT :limit{self.skip_locked}"
        rows = self.rows(f"{self.select} {first}", {"now": now_ns, "limit": limit + _INVALID})
        return list(valid_jobs(rows))[:limit]

    def followers(self, job_id: str, limit: int) -> list[str]:
        found = "SELECT follower FROM followers WHERE job_id = :job_id ORDER BY follower LIMIT :limit"
        return [row[0] for row in self.rows(found, {"job_id": job_id, "limit": limit})]

    def forget_follower(self, job_id: str, follower: str) -> None:
        self.change(_FORGET_FOLLOWER, {"job_id": job_id, "follower": follower})

    def stranded(self, limit: int) -> list[tuple[str, str]]:
        found = (
            "SELECT followers.job_id, follower FROM followers LEFT JOIN jobs ON jobs.job_id = followers.job_id"
            f" WHERE jobs.job_id IS NULL OR (jobs.status IN ({quoted(TERMINAL)}) AND jobs.look_at IS NULL)"
            " ORDER BY followers.job_id, follower LIMIT :limit"
        )
        return [(row[0], row[1]) for row in self.rows(found, {"limit": limit})] if self.version > 1 else []

    def _add_followers(self, jobs: Iterable[Job]) -> None:
        links = [{"job_id": each, "follower": job.job_id} for job in jobs for each in job.waits_for]
        if links:
            self.change_many(_INSERT_FOLLOWER, links)

    def leased(self) -> Iterable[Job]:
        # No more rows than there are holders.
        return valid_jobs(
            self.rows(f"{self.select} WHERE status = 'running' AND lease_expires_at IS NOT NULL ORDER BY job_id")
        )

    def page(self, where: JobFilter, limit: int, start: tuple[int, str] | None) -> Page:
        from baton.registry import sql_lists

        return sql_lists.page(self, where, limit, start)

    def outlines(self, where: JobFilter, limit: int, start: tuple[int, str] | None, is_past: IsPast) -> OutlinePage:
        from baton.registry import sql_lists

        return sql_lists.outlines(self, where, limit, start, is_past)

    def changes(self, number: int, limit: int, is_past: IsPast) -> tuple[list[Outline], int]:
        from baton.registry import sql_lists

        return sql_lists.changes(self, number, limit, is_past)

    def horizon(self) -> int:
        """Return a number below that of every change that this transaction does not see yet, or equal to it."""
        horizon: int = self.rows(f"SELECT {self.next_change}")[0][0]
        return horizon

    def of_jobs(self, statement: str, job_ids: Sequence[str]) -> Iterator[Row]:
        """Return the rows of a statement about these jobs, for its `{ids}`."""
        for first in range(0, len(job_ids), _IDS_AT_ONCE):
            values = {f"id_{number}": job_id for number, job_id in enumerate(job_ids[first : first + _IDS_AT_ONCE])}
            yield from self.rows(statement.format(ids=", ".join(f":{name}" for name in values)), values)

    def ids_from(self, beginning: str, limit: int) -> list[str]:
        # A range of the primary key: no character of an id follows "f".
        rows = self.rows(
            "SELECT job_id FROM jobs WHERE job_id >= :first AND job_id < :last ORDER BY job_id LIMIT :limit",
            {"first": beginning, "last": beginning + "g", "limit": limit},
        )
        return [row[0] for row in rows if JOB_ID.fullmatch(row[0])]

    def ids(self) -> list[str]:
        return [row[0] for row in self.rows("SELECT job_id FROM jobs ORDER BY created_at, job_id")]

    def counts(self) -> dict[str, int]:
        unsent = self.rows("SELECT COUNT(*) FROM events WHERE sent = 0")[0][0]
        return dict(self.rows("SELECT status, COUNT(*) FROM jobs GROUP BY status")) | {"unsent": unsent}

    def _jobs_named(self) -> set[str]:
        """Return the jobs that an unfinished one names."""
        rows = self.rows(f"{self.select} WHERE {_UNFINISHED}")
        return {each for job in valid_jobs(rows) for each in lifecycle.named_jobs(job)}

    def prunable(self, before_ns: int, limit: int) -> list[str]:
        named = self._jobs_named()
        rows = self.rows(
            f"""
            SELECT job_id FROM jobs
            WHERE status IN ({quoted(TERMINAL)}) AND COALESCE(finished_at, updated_at) < :before
                AND NOT EXISTS (SELECT 1 FROM events WHERE events.job_id = jobs.job_id AND sent = 0)
            LIMIT :limit""",
            {"before": before_ns, "limit": limit + len(named)},
        )
        return [row[0] for row in rows if row[0] not in named][:limit]  # guard: prune-named-job

    def remove(self, job_id: str) -> None:
        self.change(self._with_change_number(_RAISE_FLOOR))
        for table in ("events", "results", "requests", "jobs"):
            self.change(f"DELETE FROM {table} WHERE job_id = :job_id", {"job_id": job_id})
        self.change("DELETE FROM followers WHERE follower = :job_id", {"job_id": job_id})

    def events(self, job_id: str, after: int, limit: int, attempt: int | None = None) -> list[StoredEvent]:
        of_attempt = "" if attempt is None else " AND attempt = :attempt"
        rows = self.rows(
            f"{_EVENTS} job_id = :job_id AND seq > :seq{of_attempt} ORDER BY seq LIMIT :limit",
            {"job_id": job_id, "seq": after, "limit": limit, "attempt": attempt},
        )
        return [event_from_row(row) for row in rows]

    def unsent(self, job_id: str | None, broker: Broker | None, limit: int) -> list[StoredEvent]:
        only = "" if job_id is None else " AND job_id = :job_id"
        values: dict[str, Any] = {"job_id": job_id, "limit": limit}
        if broker is not None:
            only += " AND EXISTS (SELECT 1 FROM jobs WHERE jobs.job_id = events.job_id AND broker = :broker)"
            values["broker"] = broker_text(broker)
        return [event_from_row(row) for row in self.rows(f"{_EVENTS} sent = 0{only} ORDER BY id LIMIT :limit", values)]

    def mark_sent(self, job_id: str, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.change(
                "UPDATE events SET sent = 1 WHERE job_id = :job_id AND seq = :seq", {"job_id": job_id, "seq": seq}
            )

    def put(self, entries: Sequence[Entry]) -> None:
        highest = max((entry.job.change for entry in entries), default=0)
        self.change("UPDATE changes SET floor = :number WHERE floor < :number", {"number": highest})
        self.change_many(self._with_change_number(_INSERT), [row_of_job(entry.job) for entry in entries])
        self._add_followers(entry.job for entry in entries)
        events = [row_of_event(event) for entry in entries for event in entry.events]
        self.change_many(f"{_INSERT_EVENT} ON CONFLICT (job_id, seq) DO NOTHING", events)
        for entry in entries:
            if entry.result is not None:
                self.keep_result(entry.job.job_id, entry.result)
            for request in entry.requests:
                self.put_request(request)

    def upgrade(self, statements: str, *, force: bool, home: str | None = None) -> None:
        """Upgrade version 1 to version 2. `force`: also while jobs run, or sessions of 0.1.0 in the home."""
        running = "SELECT job_id FROM jobs WHERE status = 'running' AND claimed_by IS NOT NULL ORDER BY created_at"
        if not force:
            refuse_upgrade(self._where, [row[0] for row in self.rows(running)], home)
        for statement in filter(str.strip, statements.split(";")):
            self.change(statement)
        submitted = "other_fields LIKE :submitter OR (status IN ('pending', 'running') AND agent_session LIKE :queue)"
        rows = self.rows(f"{SELECT} WHERE {submitted}", {"submitter": '%"submitter"%', "queue": "submit:%"})
        for job in valid_jobs(rows):
            submitter = job.submitter or submitter_of_queue(job.agent_session)
            self.change(
                "UPDATE jobs SET submitter = :submitter, other_fields = :other_fields WHERE job_id = :job_id",
                row_of_job(job.replace(submitter=submitter)),
            )


class SqlRegistry(Registry):
    @abstractmethod
    def _reading(self) -> AbstractContextManager[SqlTransaction]: ...

    @abstractmethod
    def _writing(self, *, create: bool = False) -> AbstractContextManager[SqlTransaction]: ...

    def _claim_first(self, agent_session: str, holder: str, lease_ns: int | None) -> Change | None:
        skipped: list[str] = []
        unless_due = True
        while True:
            try:
                with self._writing() as tx:
                    if not self.multi_host:  # else the statement of the claim sees it
                        self._refuse_draining()
                    expires_ns, mark = self._lease_end(tx, lease_ns) if lease_ns else (None, None)
                    claimed = tx.claim(
                        {
                            "agent_session": agent_session,
                            "holder": holder,
                            "now": self._clock.wall_ns(),
                            "expires": expires_ns,
                            "mark": mark,
                            "token": self._new_token(),
                        },
                        skipped,
                        unless_due=unless_due,
                    )
                    if claimed is not None:
                        before = lifecycle.before_claim(claimed)
                        self._refuse_contradicted(before)
                        return Change(before=before, after=claimed)
                    self._refuse_draining()
                    if not unless_due or not tx.is_due(self._clock.wall_ns()):
                        return None
                self.advance_waiting()
                unless_due = False
            except InvalidRecord as error:
                skipped.append(error.job_id)  # its claim is undone; `list` and `doctor` name it
            except JobDisputed as error:
                self._dispute(error.job_id, error.why)


def quoted(statuses: Iterable[Status]) -> str:
    return ", ".join(f"'{status.value}'" for status in sorted(statuses))
