"""Read many jobs from a database: pages of a list, outlines, and what changed since a number."""

from __future__ import annotations

import json

from baton.core.errors import InvalidRecord
from baton.registry.contract import OutlinePage, Page, format_cursor
from baton.registry.outlines import CREATED as OUTLINE_CREATED
from baton.registry.outlines import ID as OUTLINE_ID
from baton.registry.outlines import LAST_EVENTS, STATUS, OutlineReader, select_outlines
from baton.registry.sql import CREATED, ID, job_from_row, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from baton.core.outline import Outline
    from baton.registry.contract import IsPast, JobFilter
    from baton.registry.sql import Row, SqlTransaction

_UNSEEN = "status IN ('completed', 'error') AND seen_at IS NULL"  # as in the index jobs_unseen


def page(tx: SqlTransaction, where: JobFilter, limit: int, start: tuple[int, str] | None) -> Page:
    rows, following = _page_rows(tx, tx.select, where, limit, start, (CREATED, ID))
    jobs, bad = [], []
    for row in rows:
        try:
            job = job_from_row(row)
        except InvalidRecord as error:
            bad.append(error)
        else:
            # In version 1, the word may be another field's; a label may stand in the text of another one.
            if (job.submitter or not where.submitted) and (where.label is None or where.label in job.labels):
                jobs.append(job)
    return Page(jobs=jobs, bad=bad, next=following)


def outlines(
    tx: SqlTransaction, where: JobFilter, limit: int, start: tuple[int, str] | None, is_past: IsPast
) -> OutlinePage:
    key = OUTLINE_CREATED, OUTLINE_ID
    rows, following = _page_rows(tx, select_outlines(tx.version), where, limit, start, key)
    jobs, bad = _read_outlines(tx, rows, is_past)
    if where.label is not None:
        jobs = [job for job in jobs if where.label in job.labels]
    return OutlinePage(jobs=jobs, bad=bad, next=following)


def changes(tx: SqlTransaction, number: int, limit: int, is_past: IsPast) -> tuple[list[Outline], int]:
    select = select_outlines(tx.version)
    if tx.version == 1:
        return _read_outlines(tx, tx.rows(select), is_past)[0], 0
    following = tx.horizon()
    if number > following:  # of a registry that was restored from an older copy
        number = 0
    last = tx.rows(
        "SELECT change FROM jobs WHERE change >= :number ORDER BY change LIMIT 1 OFFSET :limit",
        {"number": number, "limit": limit - 1},
    )
    # Where more jobs changed since the horizon, all of them: a later page would begin with the same ones.
    until = last[0][0] if last and last[0][0] < following else 2**63 - 1
    rows = tx.rows(
        f"{select} WHERE change >= :number AND change <= :until ORDER BY change",
        {"number": number, "until": until},
    )
    return _read_outlines(tx, rows, is_past)[0], min(until + 1, following)


def _page_rows(
    tx: SqlTransaction,
    select: str,
    where: JobFilter,
    limit: int,
    start: tuple[int, str] | None,
    key: tuple[int, int],
) -> tuple[list[Row], str | None]:
    """Return rows, newest first, and the cursor of the next page. `key`: where a row has its time and its id."""
    conditions, values = _conditions(where, tx.version)
    if start is not None:
        conditions.append("(created_at, job_id) < (:after_ns, :after_id)")
        values["after_ns"], values["after_id"] = start
    restriction = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    # Few jobs were left lately. Without the plus, SQLite walks all jobs in the wanted order instead.
    created = "created_at" if where.left_from_ns is None else "+created_at"
    values["limit"] = limit + 1
    order = f"ORDER BY {created} DESC, job_id DESC LIMIT :limit"
    index = tx.use_unseen if where.unseen and tx.version > 1 else ""
    rows = tx.rows(f"{select}{index}{restriction} {order}", values)
    following = None
    if len(rows) > limit:
        rows.pop()
        following = format_cursor(rows[-1][key[0]], rows[-1][key[1]])
    return rows, following


def _read_outlines(tx: SqlTransaction, rows: list[Row], is_past: IsPast) -> tuple[list[Outline], list[InvalidRecord]]:
    from baton.core.outline import Outline

    running = [str(row[OUTLINE_ID]) for row in rows if row[STATUS] == "running"]
    asking = tx.asking(running, is_past) if tx.version > 1 else {}
    reader = OutlineReader(dict(tx.of_jobs(LAST_EVENTS, running)), asking)
    jobs, bad = [], []
    for row in rows:
        found = reader.read(row)
        if found is None:
            try:
                found = Outline.of(tx.get(row[OUTLINE_ID]))
            except InvalidRecord as error:
                bad.append(error)
                continue
        jobs.append(found)
    return jobs, bad


def _conditions(where: JobFilter, version: int) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    values: dict[str, Any] = {}
    if where.statuses:
        # SQLite uses an index of one status only where that status is compared with `=`.
        listed = quoted(where.statuses)
        conditions.append(f"status = {listed}" if len(where.statuses) == 1 else f"status IN ({listed})")
    for name, comparison, value in (
        ("agent", "agent =", where.agent),
        ("agent_session", "agent_session =", where.agent_session),
        ("created_from_ns", "created_at >=", where.created_from_ns),
        ("created_until_ns", "created_at <=", where.created_until_ns),
        ("left_from_ns", "status <> 'running' AND last_seq > 0 AND updated_at >=", where.left_from_ns),
    ):
        if value is not None:
            conditions.append(f"{comparison} :{name}")
            values[name] = value
    if where.label is not None:
        conditions.append("replace(labels, :label, '') <> labels")
        values["label"] = json.dumps(where.label)
    if where.unseen:  # the ends of version 1 count as seen
        conditions.append(_UNSEEN if version > 1 else "1 = 0")
    if where.notify_due:
        conditions.append("notify_due IS NOT NULL" if version > 1 else "1 = 0")
    if where.free and version > 1:
        conditions.append("waits_for IS NULL AND look_at IS NULL")
    if where.submitted:
        conditions.append("submitter IS NOT NULL" if version > 1 else "extra LIKE :submitted")
        values["submitted"] = '%"submitter"%'
    return conditions, values
