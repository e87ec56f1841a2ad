"""Explain what a job is doing: its activity, the rule that decided it, and every fact behind it."""

from __future__ import annotations

import time

from baton.config import Settings
from baton.core.clock import SECOND_NS, format_micros, parse_time
from baton.core.ending import FAILED, ending_of
from baton.core.job import TERMINAL, Job, Status
from baton.core.limits import PAUSING
from baton.core.outline import UNKNOWN, Outline, activity_of, present_activity, run_of
from baton.core.value import Any
from baton.jobs.activity_file import Snapshot, read_snapshot
from baton.jobs.verbs import Jobs
from baton.sessions.inventory import Inventory
from baton.sessions.of_job import session_of
from baton.sessions.session import Session, State

_LOST = "its tmux session is gone, and that could not be recorded"


def explain_job(settings: Settings, jobs: Jobs, job: Job) -> dict[str, Any]:
    """Return what is known about the activity of a job, for people and programs.

    `facts` and `rule` come from the file that the runner keeps in the folder of its session. Of a job on another host,
    and of one that has ended, `known_by` is "registry", and `note` says why there is no more."""
    now_ns = time.time_ns()
    requests = jobs.registry.list_requests(job_id=job.job_id)
    outline = Outline.of(job, jobs.last_event(job), tuple(request.summary for request in requests))
    kind = activity_of(outline, now_ns=now_ns)
    snapshot, note, is_lost = None, _why_nothing_is_known(job), False
    if note is None:
        inventory = Inventory(settings)
        session = session_of(inventory, job)
        is_lost = session is not None and session.is_lost()
        snapshot, note = (None, _LOST) if is_lost else _snapshot_of(inventory, session, job)
    kind = UNKNOWN if is_lost else kind
    written = present_activity(job, now_ns=now_ns)
    since: str | None = None if written is None else written["since"]
    cause: str = "" if written is None else written["cause"]
    if snapshot is not None and kind != UNKNOWN:
        since, cause = snapshot.since, snapshot.cause
        kind = "waiting" if requests else snapshot.kind
    ending = None if kind else ending_of(job)
    return {
        "job_id": job.job_id,
        "title": job.title,
        "status": job.status.value,
        "attempt": job.attempt,
        "state": kind or (FAILED if job.status is Status.ERROR else job.status.value),
        "since": since,
        "cause": cause or job.reason or outline.waiting,
        "rule": None if snapshot is None else _rule_of(snapshot),
        "known_by": "registry" if snapshot is None else "runner",
        "note": note
        if kind != UNKNOWN or is_lost
        else f"{note or 'its runner has not written since'}; the lease has expired",
        "at": format_micros(now_ns) if snapshot is None else snapshot.at,
        "facts": [] if snapshot is None else _facts_of(snapshot, now_ns),
        "channel": dict(snapshot.channel) if snapshot is not None and isinstance(snapshot.channel, dict) else {},
        "requests": [
            {name: getattr(each, name) for name in ("request_id", "kind", "summary", "asked_at")} for each in requests
        ],
        "limits": [] if job.status in TERMINAL else _limits_of(job, kind, snapshot, since, now_ns),
        "agent": job.agent,
        **run_of(job),
        "ending": None if ending is None else ending.text,
        "grade": job.grade,
        "changed": job.changed,
    }


def _why_nothing_is_known(job: Job) -> str | None:
    """Return why a job that does not run has no facts; None for a running one."""
    if job.is_blocked:
        return "the job is blocked: no process may start it yet"
    if job.status is Status.PENDING:
        return "the job is pending: it has not begun"
    left = f"the job is {job.status.value}; `baton result {job.job_id}` shows what it left"
    return None if job.status is Status.RUNNING else left


def _snapshot_of(inventory: Inventory, session: Session | None, job: Job) -> tuple[Snapshot | None, str | None]:
    """Return what the runner of a running job has written last, or else why there is nothing."""
    if session is None or session.state is not State.RUNNING:
        there = f": {job.claimed_by} holds it" if job.claimed_by else ""
        return None, f"no session of this home runs it{there}; run `baton explain` there for every fact"
    snapshot = read_snapshot(inventory.folder_of(session))
    if snapshot is None or (snapshot.job_id, snapshot.attempt) != (job.job_id, job.attempt):
        return None, f"the runner of session {session.name} has written nothing about it yet"
    return snapshot, None


def _facts_of(snapshot: Snapshot, now_ns: int) -> list[dict[str, Any]]:
    """Return each fact with its source and its age now."""
    facts = []
    for fact in snapshot.facts if isinstance(snapshot.facts, list) else ():
        if isinstance(fact, dict) and fact.get("fact") != "rule":
            then_ns = _moment(fact.get("since"))
            age_sec = None if then_ns is None else round(max(now_ns - then_ns, 0) / SECOND_NS, 1)
            facts.append({name: fact.get(name) for name in ("fact", "value", "source")} | {"age_sec": age_sec})
    return facts


def _rule_of(snapshot: Snapshot) -> str:
    """Return the name of the rule that decided, and what it says."""
    from baton.core.activity import RULES

    rule = str(snapshot.rule)
    return f"{rule}: {RULES[rule]}" if rule in RULES else rule


def _limits_of(job: Job, kind: str, snapshot: Snapshot | None, since: str | None, now_ns: int) -> list[dict[str, Any]]:
    """Return each limit of a job, with which clock runs."""
    left = None if job.deadline_at is None else max(parse_time(job.deadline_at) - now_ns, 0) / SECOND_NS
    runs = "runs" if job.status is Status.RUNNING else "has not begun"
    idle, idle_left = runs, None
    if (
        job.status is Status.RUNNING
        and kind != UNKNOWN
        and (kind in PAUSING if snapshot is None else snapshot.idle_for is None)
    ):
        idle = "pauses"
    elif snapshot is not None and kind != UNKNOWN:
        idle = f"runs since {snapshot.idle_for}"
    elif job.status is Status.RUNNING:
        times = [_moment(job.last_event_at), _moment(since)]
        last_ns = max((each for each in times if each is not None), default=now_ns)
        idle_left = max(job.idle_timeout_sec - (now_ns - last_ns) / SECOND_NS, 0)
    rows = (
        ("timeout", job.timeout_sec, runs, left),
        ("idle timeout", job.idle_timeout_sec, idle, idle_left),
        ("tool timeout", job.tool_timeout_sec, "for each tool call", None),
        ("background timeout", job.background_timeout_sec, "after the last turn", None),
    )
    return [
        {"limit": name, "sec": sec, "clock": clock if sec is not None else None,
         "left_sec": None if rest is None else round(rest, 1)}
        for name, sec, clock, rest in rows
    ]  # fmt: skip


def _moment(text: object) -> int | None:
    """Return a time of the file of a session, which may hold anything."""
    try:
        return parse_time(text) if isinstance(text, str) else None
    except ValueError:
        return None
