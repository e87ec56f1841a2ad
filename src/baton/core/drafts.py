"""Build jobs that are ready to be registered: new ones, and new ones for the work of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from baton.core.clock import format_time
from baton.core.errors import InvalidRecord, InvalidValue, KeyTaken
from baton.core.job import (
    DEFAULT_BACKGROUND_TIMEOUT_SEC,
    DEFAULT_IDLE_TIMEOUT_SEC,
    DEFAULT_TIMEOUT_SEC,
    FATE,
    SCHEMA_VERSION,
    Job,
    agent_name,
    new_job_id,
    new_token,
    topic_prefix,
)
from baton.core.job_checks import ON_LIMIT
from baton.core.value import Any

# Of a submission: which job it became, and where it was made. All other fields are its work.
_NOT_WORK = FATE | {"job_id", "status", "created_at", "updated_at", "topic_prefix", "auth_token", "parent", "broker"}
_NOT_WORK |= {"above"}


def new_job(
    prompt: str,
    *,
    now_ns: int,
    agent: str,
    agent_session: str | None = None,
    broker: Mapping[str, Any] | None = None,
    timeout_sec: int = DEFAULT_TIMEOUT_SEC,
    idle_timeout_sec: int = DEFAULT_IDLE_TIMEOUT_SEC,
    tool_timeout_sec: int | None = None,
    background_timeout_sec: int = DEFAULT_BACKGROUND_TIMEOUT_SEC,
    expected_artifacts: Iterable[str] = (),
    workdir: str | None = None,
    max_attempts: int = 1,
    priority: int = 0,
    validate: str | None = None,
    labels: Iterable[str] = (),
    submitter: str | None = None,
    title: str | None = None,
    parent: str | None = None,
    follows: str | None = None,
    retry_of: str | None = None,
    idempotency_key: str | None = None,
    start_options: Mapping[str, Any] | None = None,
    worktree: Mapping[str, Any] | None = None,
    checkout: Mapping[str, Any] | None = None,
    on_limit: str = ON_LIMIT[0],
    budget_usd: float | None = None,
    after: Iterable[str] = (),
    not_before: str | None = None,
    retries: int = 0,
    backoff_sec: int = 0,
) -> Job:
    """Return a job that is ready to be registered; raise InvalidValue with the argument that is not valid."""
    if backoff_sec and not retries:
        raise InvalidValue("backoff", "is the pause before a retry; give retries, too")
    now = format_time(now_ns)
    agent = agent_name(agent)
    job_id = new_job_id()
    try:
        return Job.parse(
            {
                "schema_version": SCHEMA_VERSION,
                "job_id": job_id,
                "status": "pending",
                "created_at": now,
                "updated_at": now,
                "prompt": prompt,
                "agent": agent,
                "agent_session": f"tmux:{agent}" if agent_session is None else agent_session,
                "broker": dict(broker) if broker else None,
                "topic_prefix": topic_prefix(job_id),
                "timeout_sec": timeout_sec,
                "idle_timeout_sec": idle_timeout_sec,
                "tool_timeout_sec": tool_timeout_sec,
                "background_timeout_sec": background_timeout_sec,
                "expected_artifacts": list(expected_artifacts),
                "auth_token": new_token(),
                "workdir": workdir,
                "max_attempts": max_attempts,
                "priority": priority,
                "validate": validate,
                "labels": list(labels),
                "submitter": submitter,
                "title": title,
                "parent": parent,
                "follows": follows,
                "retry_of": retry_of,
                "idempotency_key": idempotency_key,
                "start_options": dict(start_options) if start_options else None,
                "worktree": dict(worktree) if worktree else None,
                "checkout": dict(checkout) if checkout else None,
                "on_limit": on_limit,
                "budget_usd": budget_usd,
                "after": list(after),
                "not_before": not_before,
                "retries": retries,
                "backoff_sec": backoff_sec,
            }
        )
    except InvalidRecord as error:
        raise InvalidValue(error.field, error.why) from None


def repeat_job(job: Job, *, now_ns: int, **changes: Any) -> Job:
    """Return a new job for the same work: with every field of the old one, also of a later version, except those that
    tell what became of it."""
    now, job_id = format_time(now_ns), new_job_id()
    kept = {name: value for name, value in job.record().items() if name not in FATE}
    new = {"job_id": job_id, "status": "pending", "created_at": now, "updated_at": now, "auth_token": new_token()}
    return Job.parse(kept | new | {"topic_prefix": topic_prefix(job_id)} | changes)


def is_registered(draft: Job, job: Job) -> bool:
    """Return whether this registered job is the draft, perhaps under another id, and not an earlier one with its
    idempotency key: each draft has a key of its own."""
    return draft.idempotency_key is None or draft.auth_token == job.auth_token


def refuse_other_work(known: Job, job: Job) -> None:
    """Raise KeyTaken if a job with the idempotency key of a known one is not for the same work."""
    both = known.record(), job.record()
    differ = [
        name for name in sorted(both[0] | both[1]) if name not in _NOT_WORK and both[0].get(name) != both[1].get(name)
    ]
    if differ:
        raise KeyTaken(known.idempotency_key or "", known.job_id, differ)


def with_new_id(job: Job) -> Job:
    """Return the same job under another id, for one that is already taken."""
    job_id = new_job_id()
    return job.replace(job_id=job_id, topic_prefix=topic_prefix(job_id))


def in_order(drafts: Sequence[Job]) -> list[Job]:
    """Return the drafts of a batch, each behind those that it comes after; refuse a circle."""
    ids = {job.job_id for job in drafts}
    before = {job.job_id: [each for each in job.after if each in ids] for job in drafts}
    followers: dict[str, list[Job]] = {}
    for job in drafts:
        for each in before[job.job_id]:
            followers.setdefault(each, []).append(job)
    missing = {job_id: len(each) for job_id, each in before.items()}
    placed = [job for job in drafts if not missing[job.job_id]]
    for job in placed:  # which grows meanwhile
        for follower in followers.get(job.job_id, ()):
            missing[follower.job_id] -= 1
            if not missing[follower.job_id]:
                placed.append(follower)
    left = {job.job_id: job for job in drafts if missing[job.job_id]}
    if left:  # guard: cycle-in-a-batch
        path = [next(iter(left))]
        while path[-1] not in path[:-1]:
            path.append(next(each for each in before[path[-1]] if each in left))
        names = [left[each].title or each for each in path[path.index(path[-1]) : -1]]
        raise InvalidValue("after", f"makes a circle of jobs: {', '.join(reversed(names))}; none can be the first")
    return placed
