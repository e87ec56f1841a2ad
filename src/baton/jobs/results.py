"""Put together what a job left: message, artifacts, validation, output."""

from __future__ import annotations

import os

from baton.core.clock import SECOND_NS, parse_time
from baton.core.hashing import sha256
from baton.core.spending import total_usage
from baton.core.value import Value
from baton.jobs.output import OutputReader
from baton.storage.files import open_given_file, outside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from baton.core.job import Job
    from baton.core.result import Result

_CHUNK = 1 << 20


class JobResult(Value):
    """What an ended job left, as `baton result --json` prints it. None: not known, or not visible here.

    `message` is the agent's last message, `validation` the end of what the validation printed. Each of `artifacts` has
    path, size and sha256. `grade` and `changed` are as in the job. `tokens` and `cost_usd` are those of all attempts,
    `usage` has them for each."""

    job_id: str
    status: str
    title: str | None
    ended_by: str | None
    reason: str | None
    message: str | None
    artifacts: list[dict[str, Any]]
    validation: str | None
    tokens: int | None
    cost_usd: float | None
    usage: list[dict[str, Any]]
    duration_sec: float | None
    attempts: int
    workdir: str | None
    worktree: str | None
    commits: list[str] | None
    output: dict[str, Any]
    finished_at: str | None
    grade: str | None = None
    changed: bool | None = None


def result_record(job: Job, result: Result | None, home: str) -> dict[str, Any]:
    """Return the result of an ended job as JSON. What is not known, or not visible here, is null."""
    used = total_usage(job.usage)
    return {
        "job_id": job.job_id,
        "status": job.status.value,
        "title": job.title,
        "ended_by": job.ended_by,
        "reason": job.reason,
        "message": result.message if result is not None else None,
        "artifacts": [_artifact(name, job.folder) for name in job.expected_artifacts],
        "validation": result.validation if result is not None else None,
        "tokens": used["tokens"],
        "cost_usd": used["cost_usd"],
        "usage": list(job.usage),
        "duration_sec": _duration_sec(job),
        "attempts": job.attempt,
        "workdir": job.workdir,
        "worktree": (job.checkout or {}).get("path"),
        "commits": _commits(job),
        "output": {"host": host_of(job), "here": OutputReader(home, job).exists()},
        "finished_at": job.public()["finished_at"],
        "grade": job.grade,
        "changed": job.changed,
    }


def _commits(job: Job) -> list[str] | None:
    """Return the commits that a job has made in its worktree, the oldest first; None if the repository is not here."""
    if job.worktree is None or (job.checkout or {}).get("branch") is None:
        return None
    from baton.core.errors import BatonError
    from baton.worktrees.merging import commits_of
    from baton.worktrees.trees import Tree

    try:
        return commits_of(Tree.of_job(job))
    except (BatonError, OSError):
        return None  # it is on another host, or was removed


def host_of(job: Job) -> str | None:
    """Return the host where the last attempt at the job ran; None before the first."""
    return job.claimed_by.partition(":")[0] if job.claimed_by else None


def _duration_sec(job: Job) -> float | None:
    """Return how long the last attempt took."""
    if job.deadline_at is None or job.finished_at is None:
        return None
    began_ns = parse_time(job.deadline_at) - job.timeout_sec * SECOND_NS
    return round(max(parse_time(job.finished_at) - began_ns, 0) / SECOND_NS, 3)


def _artifact(name: str, workdir: str | None) -> dict[str, Any]:
    unknown = {"path": name, "size": None, "sha256": None}
    if workdir is None or outside(name, workdir):
        return unknown
    try:
        with open_given_file(os.path.join(workdir, name)) as file:
            size, digest = 0, sha256(b"")
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                digest.update(chunk)
    except OSError:
        return unknown  # a folder, or the work folder is on another host
    return {"path": name, "size": size, "sha256": digest.hexdigest()}
