"""The registry verbs in SQL, for every database that has `UPDATE ... RETURNING`.

A backend adds how to connect, how a transaction begins, and whose clock ends a lease. Statements are written
with `:name` parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import islice

from baton.core import lifecycle
from baton.core.clock import SystemClock, format_time, parse_time
from baton.core.errors import InvalidRecord, InvalidValue, JobNotFound, RegistryBusy
from baton.core.event import EventName, StoredEvent
from baton.core.fields import check_job_id, check_label
from baton.core.job import TERMINAL, Job, Status, new_token, with_new_id
from baton.registry.query import cursor, parse_cursor
from baton.registry.results import Change, Entry, Page, Recorded
from baton.registry.rows import (
    COLUMNS,
    CREATED,
    EVENT_COLUMNS,
    ID,
    SUBMITTER_PREFIX,
    broker_text,
    event_from_row,
    job_from_row,
    row_of_event,
    row_of_job,
)
from baton.registry.statement import stated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any, Final, Protocol

    from baton.core.clock import Clock
    from baton.core.job import Broker
    from baton.registry.query import JobFilter
    from baton.registry.rows import Row

    class Transaction(Protocol):
        def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Row]: ...
        def change(self, statement: str, values: Mapping[str, Any] | None = None) -> int:
            """Runs a statement and returns how many rows it changed."""

        def change_many(self, statement: str, values: Iterable[Mapping[str, Any]]) -> None: ...


_SELECT: Final = f"SELECT {', '.join(COLUMNS)} FROM jobs"
_INSERT: Final = (
    f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES ({', '.join(':' + name for name in COLUMNS)})"
    " ON CONFLICT (job_id) DO NOTHING"
)
_INSERT_EVENT: Final = (
    "INSERT INTO events (job_id, seq, attempt, event, payload, sent)"
    " VALUES (:job_id, :seq, :attempt, :event, :payload, :sent)"
)
_PAGE: Final = 500


class _SubmitterSet(Exception):
    """The claimed job has a submitter that another version wrote where the claim does not look. Undoes the claim."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


class SqlRegistry:
    where: str
    multi_host: bool
    _lock_rows = ""  # what a SELECT adds to keep the rows it read from changing
    _skip_locked = ""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Transaction]: ...

    @abstractmethod
    def _writing(self, *, create: bool = False) -> AbstractContextManager[Transaction]:
        """A transaction that commits when the block ends well. `create`: make the store if it is missing."""

    @abstractmethod
    def _lease_end(self, tx: Transaction, lease_ns: int) -> tuple[int, str | None]:
        """When a lease given now ends: by the date, and the mark of the clock that decides."""

    @abstractmethod
    def _expired(self, tx: Transaction, limit: int) -> list[Job]: ...

    # -- jobs ------------------------------------------------------------------------------------------

    def register_job(self, job: Job) -> Job:
        return self.register_many([job])[0]

    def register_many(self, jobs: Iterable[Job]) -> list[Job]:
        registered: list[Job] = []
        last_ns = 0
        with self._writing(create=True) as tx:
            for draft in jobs:
                job = draft
                # Jobs of one batch are picked in its order, also when the clock gave two the same moment.
                created_ns = max(parse_time(job.created_at), last_ns + 1)
                last_ns = created_ns
                job = job.replace(created_at=format_time(created_ns))
                while not tx.change(_INSERT, row_of_job(job)):
                    job = with_new_id(job)
                registered.append(job)
        return registered

    def get_job(self, job_id: str) -> Job:
        check_job_id(job_id)
        with self._reading() as tx:
            return self._get(tx, job_id)

    def list_jobs(self, where: JobFilter | None = None, *, limit: int = 50, after: str | None = None) -> Page:
        if limit < 1:
            raise InvalidValue("limit", "must be at least 1")
        conditions, values = _conditions(where)
        if after is not None:
            conditions.append("(created_at, job_id) < (:after_ns, :after_id)")
            values["after_ns"], values["after_id"] = parse_cursor(after)
        restriction = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        # What was just updated are few: without the plus SQLite would rather walk all jobs in the order wanted.
        created = "created_at" if where is None or where.updated_from_ns is None else "+created_at"
        with self._reading() as tx:
            rows = tx.rows(
                f"{_SELECT}{restriction} ORDER BY {created} DESC, job_id DESC LIMIT :limit",
                {**values, "limit": limit + 1},
            )
        following = None
        if len(rows) > limit:
            rows.pop()
            following = cursor(rows[-1][CREATED], rows[-1][ID])
        jobs, bad = [], []
        for row in rows:
            try:
                jobs.append(job_from_row(row))
            except InvalidRecord as error:
                bad.append(error)
        return Page(jobs=jobs, bad=bad, next=following)

    def pick_pending(self, agent_session: str, *, holder: str, lease_sec: float | None = None) -> Change | None:
        check_label("agent_session", agent_session)
        check_label("holder", holder)
        lease_ns = lifecycle.lease_ns(lease_sec)
        unfit: list[str] = []
        while True:
            try:
                with self._writing() as tx:
                    return self._claim(tx, agent_session, holder, lease_ns, unfit)
            except InvalidRecord as error:
                unfit.append(error.job_id)  # it stays as it is; `list` and `doctor` name it
            except _SubmitterSet as found:
                unfit.append(found.job_id)

    def _claim(
        self, tx: Transaction, agent_session: str, holder: str, lease_ns: int | None, unfit: Sequence[str]
    ) -> Change | None:
        expires, mark = self._lease_end(tx, lease_ns) if lease_ns else (None, None)
        others = {f"not_{number}": job_id for number, job_id in enumerate(unfit)}
        but = f"AND job_id NOT IN ({', '.join(':' + name for name in others)})" if others else ""
        rows = tx.rows(
            # The same claim as lifecycle.claim, in the one statement that also finds the job.
            f"""
            UPDATE jobs SET status = 'running', attempt = attempt + 1, claimed_by = :holder,
                updated_at = :now, deadline_at = :now + timeout_sec * 1000000000,
                lease_expires_at = :expires, lease_mark = :mark,
                auth_token = CASE WHEN attempt = 0 AND auth_token <> '' THEN auth_token ELSE :token END
            WHERE job_id = (
                SELECT job_id FROM jobs WHERE status = 'pending' AND agent_session = :label
                    AND COALESCE(substr(extra, 1, {len(SUBMITTER_PREFIX)}), '') <> :submitter {but}
                ORDER BY priority DESC, created_at, job_id LIMIT 1{self._skip_locked}
            )
            RETURNING {", ".join(COLUMNS)}""",
            {
                "label": agent_session,
                "holder": holder,
                "now": self._clock.wall_ns(),
                "expires": expires,
                "mark": mark,
                "token": new_token(),
                "submitter": SUBMITTER_PREFIX,
                **others,
            },
        )
        if not rows:
            return None
        after = job_from_row(rows[0])
        if after.submitter is not None:
            raise _SubmitterSet(after.job_id)
        return Change(before=lifecycle.before_claim(after), after=after)

    def pick_job(self, job_id: str, *, holder: str, lease_sec: float | None = None) -> Change:
        check_job_id(job_id)
        check_label("holder", holder)
        lease_ns = lifecycle.lease_ns(lease_sec)
        with self._writing() as tx:
            before = self._get(tx, job_id, self._lock_rows)
            after = lifecycle.claim(before, holder=holder, now_ns=self._clock.wall_ns(), token=new_token())
            if lease_ns:
                expires, mark = self._lease_end(tx, lease_ns)
                after = after.replace(lease_expires_at=format_time(expires), lease_mark=mark)
            return self._save(tx, before, after)

    def update_status(
        self, job_id: str, status: Status, *, attempt: int | None = None, holder: str = "operator"
    ) -> Change:
        check_job_id(job_id)
        with self._writing() as tx:
            before = self._get(tx, job_id, self._lock_rows)
            now_ns = self._clock.wall_ns()
            after = lifecycle.set_status(
                before, status, attempt=attempt, holder=holder, now_ns=now_ns, token=new_token()
            )
            return self._save(tx, before, after)

    def clear_submitter(self, job_id: str) -> Change:
        check_job_id(job_id)
        with self._writing() as tx:
            before = self._get(tx, job_id, self._lock_rows)
            return self._save(tx, before, lifecycle.clear_submitter(before, now_ns=self._clock.wall_ns()))

    def requeue(self, job_id: str, *, attempt: int | None = None) -> Change:
        check_job_id(job_id)
        with self._writing() as tx:
            before = self._get(tx, job_id, self._lock_rows)
            return self._save(tx, before, lifecycle.requeue(before, attempt=attempt, now_ns=self._clock.wall_ns()))

    def renew_lease(self, job_id: str, *, attempt: int, lease_sec: float) -> Job:
        check_job_id(job_id)
        lease_ns = lifecycle.lease_ns(lease_sec) or 0
        with self._writing() as tx:
            before = self._get(tx, job_id, self._lock_rows)
            after = lifecycle.renew(before, attempt=attempt, now_ns=self._clock.wall_ns())
            expires, mark = self._lease_end(tx, lease_ns)
            after = after.replace(lease_expires_at=format_time(expires), lease_mark=mark)
            return self._save(tx, before, after).after

    def expired_leases(self, *, limit: int = 100) -> list[Job]:
        with self._reading() as tx:
            return self._expired(tx, limit)

    def expire_leases(self, *, limit: int = 100) -> list[Change]:
        if not self.expired_leases(limit=1):  # the usual case takes no lock
            return []
        changes = []
        with self._writing() as tx:
            for job in self._expired(tx, limit):
                detail = lifecycle.expired_lease_error(job)
                if detail is None:
                    after = lifecycle.requeue(job, attempt=None, now_ns=self._clock.wall_ns())
                    changes.append(self._save(tx, job, after))
                else:
                    recorded = self._store(tx, stated(job, EventName.ERROR, detail, {}, self._clock.wall_ns()))
                    changes.append(Change(before=job, after=recorded.after))
        return changes

    def prune(self, before_ns: int, *, limit: int = 1000) -> list[str]:
        with self._writing() as tx:
            rows = tx.rows(
                f"""
                SELECT job_id FROM jobs
                WHERE status IN ({_quoted(TERMINAL)}) AND COALESCE(finished_at, updated_at) < :before
                    AND NOT EXISTS (SELECT 1 FROM events WHERE events.job_id = jobs.job_id AND sent = 0)
                LIMIT :limit""",
                {"before": before_ns, "limit": limit},
            )
            ids = [row[0] for row in rows]
            for job_id in ids:
                tx.change("DELETE FROM events WHERE job_id = :job_id", {"job_id": job_id})
                tx.change("DELETE FROM jobs WHERE job_id = :job_id", {"job_id": job_id})
            return ids

    def stats(self) -> dict[str, int]:
        with self._reading() as tx:
            counts = {status.value: 0 for status in Status}
            counts.update(dict(tx.rows("SELECT status, COUNT(*) FROM jobs GROUP BY status")))
            counts["unsent"] = tx.rows("SELECT COUNT(*) FROM events WHERE sent = 0")[0][0]
            return counts

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
        with self._writing() as tx:
            before = self._get(tx, job_id, self._lock_rows)
            has_events = event is EventName.STARTED and bool(
                tx.rows(
                    "SELECT 1 FROM events WHERE job_id = :job_id AND attempt = :attempt LIMIT 1",
                    {"job_id": job_id, "attempt": before.attempt},
                )
            )
            lifecycle.before_event(before, event, attempt=attempt, has_events=has_events)
            now_ns = self._clock.wall_ns()
            return self._store(tx, stated(before, event, detail, data or {}, now_ns, holder))

    def next_seq(self, job_id: str, *, attempt: int | None = None) -> int:
        check_job_id(job_id)
        with self._writing() as tx:
            before = self._get(tx, job_id, self._lock_rows)
            after = lifecycle.take_seq(before, attempt=attempt, now_ns=self._clock.wall_ns())
            return self._save(tx, before, after).after.last_seq

    def events_after(self, job_id: str, seq: int = 0, *, limit: int = 1000) -> list[StoredEvent]:
        check_job_id(job_id)
        with self._reading() as tx:
            rows = tx.rows(
                f"SELECT {EVENT_COLUMNS} FROM events WHERE job_id = :job_id AND seq > :seq ORDER BY seq LIMIT :limit",
                {"job_id": job_id, "seq": seq, "limit": limit},
            )
            if not rows:
                self._get(tx, job_id)
        return [event_from_row(row) for row in rows]

    def unsent_events(
        self, *, job_id: str | None = None, broker: Broker | None = None, limit: int = 1000
    ) -> list[StoredEvent]:
        only = "" if job_id is None else " AND job_id = :job_id"
        values: dict[str, Any] = {"job_id": job_id and check_job_id(job_id), "limit": limit}
        if broker is not None:
            only += " AND EXISTS (SELECT 1 FROM jobs WHERE jobs.job_id = events.job_id AND broker = :broker)"
            values["broker"] = broker_text(broker)
        with self._reading() as tx:
            rows = tx.rows(f"SELECT {EVENT_COLUMNS} FROM events WHERE sent = 0{only} ORDER BY id LIMIT :limit", values)
        return [event_from_row(row) for row in rows]

    def mark_sent(self, job_id: str, seqs: Iterable[int]) -> None:
        check_job_id(job_id)
        with self._writing() as tx:
            for seq in seqs:
                tx.change(
                    "UPDATE events SET sent = 1 WHERE job_id = :job_id AND seq = :seq",
                    {"job_id": job_id, "seq": seq},
                )

    # -- moving ------------------------------------------------------------------------------------------

    def export(self) -> Iterator[Entry | InvalidRecord]:
        last: tuple[int, str] = (-(2**63), "")
        while True:
            with self._reading() as tx:
                rows = tx.rows(
                    f"{_SELECT} WHERE (created_at, job_id) > (:ns, :id) ORDER BY created_at, job_id LIMIT {_PAGE}",
                    {"ns": last[0], "id": last[1]},
                )
                found: list[Entry | InvalidRecord] = []
                for row in rows:
                    try:
                        job = job_from_row(row)
                    except InvalidRecord as error:
                        found.append(error)
                        continue
                    events = (
                        tx.rows(
                            f"SELECT {EVENT_COLUMNS} FROM events WHERE job_id = :job_id ORDER BY seq",
                            {"job_id": job.job_id},
                        )
                        if job.last_seq
                        else []
                    )
                    found.append(Entry(job=job, events=[event_from_row(event) for event in events]))
            yield from found
            if len(rows) < _PAGE:
                return
            last = (rows[-1][CREATED], rows[-1][ID])

    def import_entries(self, entries: Iterable[Entry]) -> None:
        with self._writing(create=True) as tx:
            for batch in _batches(entries):
                tx.change_many(_INSERT, [row_of_job(entry.job) for entry in batch])
                tx.change_many(_INSERT_EVENT, [row_of_event(event) for entry in batch for event in entry.events])

    # -- inside a transaction ------------------------------------------------------------------------------

    def _get(self, tx: Transaction, job_id: str, locked: str = "") -> Job:
        rows = tx.rows(f"{_SELECT} WHERE job_id = :job_id{locked}", {"job_id": job_id})
        if not rows:
            raise JobNotFound(job_id, self.where)
        return job_from_row(rows[0])

    def _store(self, tx: Transaction, recorded: Recorded) -> Recorded:
        self._save(tx, recorded.before, recorded.after)
        tx.change(_INSERT_EVENT, row_of_event(recorded.event))
        return recorded

    def _save(self, tx: Transaction, before: Job, after: Job) -> Change:
        if before is after:
            return Change(before=before, after=after)
        old, new = row_of_job(before), row_of_job(after)
        changed = [name for name in COLUMNS if old[name] != new[name]]
        assignments = ", ".join(f"{name} = :{name}" for name in changed)
        guard = {"if_status": old["status"], "if_attempt": old["attempt"], "if_seq": old["last_seq"]}
        # The guard stands in the statement that writes: what was decided on is what is changed.
        done = tx.change(
            f"UPDATE jobs SET {assignments} WHERE job_id = :job_id AND status = :if_status"
            " AND attempt = :if_attempt AND last_seq = :if_seq",
            {**{name: new[name] for name in changed}, **guard, "job_id": before.job_id},
        )
        if done != 1:
            raise RegistryBusy(f"job {before.job_id} was changed by somebody else at this moment; try again")
        return Change(before=before, after=after)


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    iterator = iter(entries)
    while batch := list(islice(iterator, _PAGE)):
        yield batch


def _quoted(statuses: Iterable[Status]) -> str:
    return ", ".join(f"'{status.value}'" for status in sorted(statuses))


def _conditions(where: JobFilter | None) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    values: dict[str, Any] = {}
    if where is None:
        return conditions, values
    if where.statuses is not None:
        conditions.append(f"status IN ({_quoted(where.statuses)})")
    for name, comparison, value in (
        ("agent", "agent =", where.agent),
        ("agent_session", "agent_session =", where.agent_session),
        ("created_from_ns", "created_at >=", where.created_from_ns),
        ("created_until_ns", "created_at <=", where.created_until_ns),
        ("updated_from_ns", "updated_at >=", where.updated_from_ns),
    ):
        if value is not None:
            conditions.append(f"{comparison} :{name}")
            values[name] = value
    return conditions, values
