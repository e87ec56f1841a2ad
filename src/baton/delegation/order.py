"""Decide which jobs a submitted job comes after: registered ones by id, others of its batch by title."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baton.config import Settings
from baton.core import fields, job_checks
from baton.core.drafts import in_order
from baton.core.errors import BatonError, InvalidValue, JobNotFound
from baton.core.job import Job
from baton.core.lifecycle import describe_unmet, is_met
from baton.core.limits import may_wait
from baton.delegation.reconcile import has_monitor
from baton.delegation.submit import Submission
from baton.delegation.worktrees import refuse_unclear_base
from baton.jobs.verbs import Jobs, open_jobs


def order_submissions(
    settings: Settings, submissions: Sequence[Submission], names: Sequence[Sequence[str]]
) -> list[Submission]:
    """Return the submissions, each with the jobs that its names stand for in `after`. Refuse what can never start."""
    if not any(names):
        return list(submissions)
    titles: dict[str, list[str]] = {}
    for each in submissions:
        titles.setdefault(each.job.title or "", []).append(each.job.job_id)
    with open_jobs(settings) as jobs:
        ordered = [
            each.replace(job=each.job.replace(after=_find(jobs, wanted, titles)))
            for each, wanted in zip(submissions, names, strict=True)
        ]
        refuse_unclear_base(jobs, [each.job for each in ordered])
    in_order([each.job for each in ordered])
    return ordered


def _find(jobs: Jobs, names: Sequence[str], titles: dict[str, list[str]]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        of_batch = titles.get(name, []) if name else []
        if len(of_batch) > 1:
            raise InvalidValue("after", f"{name[:40]!r} is the title of several jobs of the batch")
        if not of_batch and not fields.is_id_beginning(name):
            raise InvalidValue("after", f"{name[:40]!r} is neither the id of a job nor the title of one of the batch")
        found += of_batch or jobs.find_predecessors([name])
    after: tuple[str, ...] = fields.check_named("after", job_checks.job_ids, list(dict.fromkeys(found)))
    return after


def order_retries(jobs: Jobs, retries: Sequence[Submission]) -> list[Submission]:
    """Return retries, each after the retries of the jobs that the first one came after, or after these themselves.
    Refuse one that would never start."""
    new_ids = {each.job.retry_of or "": each.job.job_id for each in retries}
    return [each.replace(job=each.job.replace(after=tuple(_find_retried(jobs, each.job, new_ids)))) for each in retries]


def _find_retried(jobs: Jobs, job: Job, new_ids: dict[str, str]) -> Iterator[str]:
    for each in job.after:
        predecessor: str | None = each
        while predecessor is not None and predecessor not in new_ids:
            try:
                found = jobs.get_job(predecessor)
            except JobNotFound:
                break  # pruned: the first job had not to wait for it any more
            if found.retried_by is None:
                if is_met(found) is False:
                    raise BatonError(
                        f"job {job.retry_of} is not retried: {describe_unmet(found.job_id, found)}; "
                        f"retry both: baton retry {found.job_id} {job.retry_of}"
                    )
                yield found.job_id
                break
            predecessor = found.retried_by
        if predecessor in new_ids:
            yield new_ids[predecessor]


def refuse_without_monitor(settings: Settings, submission: Submission) -> None:
    """Raise when no process would start the job later: the caller goes on without looking after it."""
    if submission.agent is None or not may_wait(submission.job):
        return
    if not has_monitor(settings):
        raise BatonError(
            "no process would start the job later, after others, at its time or for a retry; start `baton monitor` "
            "first, or give the job to a worker with queue=..., or do without detach"
        )
