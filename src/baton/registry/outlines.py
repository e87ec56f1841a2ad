"""Read outlines of jobs from rows of a database: only the columns that a list shows, in a third of the time of whole
records. A row that is not valid is read again as a whole, so that the error names its field."""

from __future__ import annotations

import json

from baton.core.clock import format_time
from baton.core.event import EventName
from baton.core.fields import label, parse_json, texts
from baton.core.job import Status, is_unseen, topic_prefix, waiting_text
from baton.core.job_checks import check_activity, check_agent_runs, check_usage, job_ids
from baton.core.outline import LONGEST_PROMPT, Outline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_decode = json.JSONDecoder().decode
_STATUSES = {status.value: status for status in Status}
_SHOWN = "job_id, status, created_at, finished_at, agent, agent_session, attempt, labels, "
_START = f"substr(prompt, 1, {LONGEST_PROMPT}), topic_prefix, detail, lease_expires_at, "
_ADDED = {
    1: "NULL, NULL, NULL, updated_at, NULL, 0, NULL, NULL, NULL, extra",
    2: "disputed, reason, ended_by, seen_at, activity, change, waits_for, not_before, look_at, other_fields",
}
_SHOWN_OTHERS = ('"title"', '"usage"', '"verified_by"', '"unverified"', '"changed"', '"agent_runs"')
ID, STATUS, CREATED = 0, 1, 2
LAST_EVENTS = (
    "SELECT events.job_id, events.event FROM events JOIN jobs ON jobs.job_id = events.job_id"
    " AND jobs.last_seq = events.seq AND jobs.attempt = events.attempt WHERE jobs.job_id IN ({ids})"
)


def select_outlines(version: int) -> str:
    return f"SELECT {_SHOWN}{_START}{_ADDED[version]} FROM jobs"


def _waiting(waits_for: str | None, not_before: int | None) -> str:
    names = () if waits_for is None else job_ids(_decode(waits_for))
    return waiting_text(names, None if not_before is None else format_time(not_before))


class OutlineReader:
    """Reads rows of `select_outlines`. Names and labels that many jobs share are checked once."""

    def __init__(self, last_events: Mapping[str, str], asking: Mapping[str, Sequence[str]]) -> None:
        self._last_events = last_events
        self._asking = asking
        self._names: set[str] = set()
        self._labels: dict[str, tuple[str, ...]] = {"[]": ()}

    def read(self, row: tuple[Any, ...]) -> Outline | None:
        """Return the outline; None if a value is not valid."""
        job_id, status, created, finished, agent, queue, attempt, labels, *rest = row
        prompt, topic, detail, lease, disputed, reason, ended_by, seen_at, activity, change, *rest = rest
        waits_for, not_before, look_at, others = rest
        try:
            if topic != topic_prefix(job_id) or type(prompt) is not str or type(attempt) is not int:
                return None
            if type(created) is not int or any(type(each) is not int for each in (finished, lease) if each is not None):
                return None
            for name in (agent, queue):
                if name not in self._names:
                    self._names.add(label(name))
            if labels not in self._labels:
                self._labels[labels] = texts(parse_json(labels))
            more = _decode(others) if others and any(name in others for name in _SHOWN_OTHERS) else {}
            title, unverified, changed = more.get("title"), more.get("unverified"), more.get("changed")
            if not isinstance(changed, bool | None):
                return None
            for each in (title, detail, disputed, reason, ended_by, unverified):
                if each is not None and type(each) is not str:
                    return None
            last = self._last_events.get(job_id)
            known = _STATUSES[status]
            return Outline(
                job_id=job_id,
                status=known,
                created_ns=created,
                finished_ns=finished,
                agent=agent,
                agent_session=queue,
                attempt=attempt,
                labels=self._labels[labels],
                prompt=prompt,
                title=title,
                detail=detail,
                reason=reason,
                ended_by=ended_by,
                disputed=disputed,
                lease_expires_ns=lease,
                last_event=None if last is None else EventName(last),
                seen=not is_unseen(known, seen_at),
                activity=None if activity is None else check_activity(_decode(activity)),
                open_requests=tuple(self._asking.get(job_id, ())),
                change=change,
                waiting=_waiting(waits_for, not_before) if status == "pending" and (waits_for or look_at) else "",
                usage=check_usage(more["usage"]) if "usage" in more else (),
                verified_by=texts(more["verified_by"]) if "verified_by" in more else (),
                unverified=unverified,
                changed=changed,
                agent_runs=check_agent_runs(more["agent_runs"]) if "agent_runs" in more else (),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
