"""get, status, pick, renew, release, cancel: verbs that agents call in loops, so nothing heavy is imported."""

from __future__ import annotations

import argparse
import os
import sys
import time

from baton.cli import options as opt
from baton.cli.options import job_of
from baton.cli.output import json_text
from baton.cli.parser import Verb
from baton.config import Settings
from baton.core.errors import InvalidValue, NothingPending
from baton.core.job import Job
from baton.jobs.verbs import Jobs, open_jobs

_POLL_SEC = 0.2


def get(options: argparse.Namespace, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        print(_record(jobs.get_job(job_of(options)), show_secrets=options.show_secrets))
    return 0


def status(options: argparse.Namespace, settings: Settings) -> int:
    job_id = job_of(options)
    with open_jobs(settings) as jobs:
        if options.set is None:
            job = jobs.get_job(job_id)
        else:
            job = jobs.update_status(job_id, options.set, attempt=options.attempt)
    return _print_field(job, job.status, options)


def cancel(options: argparse.Namespace, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        job = jobs.update_status(job_of(options), "cancelled")
    return _print_field(job, job.status, options)


def renew(options: argparse.Namespace, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        job = jobs.renew_lease(job_of(options), attempt=options.attempt, lease_sec=options.lease)
    return _print_field(job, job.lease_expires_at, options)


def release(options: argparse.Namespace, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        job = jobs.release(job_of(options), attempt=options.attempt, reason=options.reason)
    return _print_field(job, job.status, options)


def pick(options: argparse.Namespace, settings: Settings) -> int:
    queue = f"tmux:{settings.agent}" if options.agent_session is None else options.agent_session
    # The caller's pid, not this process's own: this process ends in a moment.
    holder = f"{settings.host}:{os.getppid()}" if options.holder is None else options.holder
    if options.wait is not None and not 0 <= options.wait <= 366 * 86400:
        raise InvalidValue("--wait", "must be from 0 seconds to a year")
    with open_jobs(settings) as jobs:
        job = _claim(jobs, queue, holder, lease_sec=options.lease, wait_sec=options.wait or 0.0)
        if job is None:
            raise NothingPending(queue)
        try:
            print_id(job, as_json=options.json, state="requeued")
        except OSError:
            jobs.release(job.job_id, attempt=job.attempt, reason="the id could not be printed")
            raise
    return 0


def _claim(jobs: Jobs, queue: str, holder: str, *, lease_sec: float | None, wait_sec: float) -> Job | None:
    """Claim the next job of the queue, and wait for one if there is none."""
    until = time.monotonic() + wait_sec
    while (job := jobs.pick_pending(queue, holder=holder, lease_sec=lease_sec)) is None:
        left = until - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(_POLL_SEC, left))
    return job


def print_id(job: Job, *, as_json: bool, state: str) -> None:
    """Print the id of a job that was just made or claimed. A write error names the job and its state."""
    try:
        print(_record(job) if as_json else job.job_id, flush=True)
    except OSError:
        print(f"baton: cannot write the output; job {job.job_id} is {state}", file=sys.stderr)
        raise


def _print_field(job: Job, text: str | None, options: argparse.Namespace) -> int:
    print(_record(job) if options.json else text)
    return 0


def _record(job: Job, *, show_secrets: bool = False) -> str:
    return json_text(job.public(show_secrets=show_secrets), indent=2)


VERBS = (
    Verb("get", (*opt.JOB, opt.SHOW_SECRETS, opt.JSON_ALWAYS), get),
    Verb("status", (*opt.JOB, opt.SET_STATUS, opt.ATTEMPT, opt.JSON), status),
    Verb("cancel", (*opt.JOB, opt.JSON), cancel),
    Verb("release", (*opt.JOB, opt.ATTEMPT, opt.REASON, opt.JSON), release),
    Verb("renew", (
        *opt.JOB,
        opt.ATTEMPT.but(required=True, help="refuse if another attempt than N holds the job"),
        opt.LEASE.but(required=True, help="extend the lease to S seconds from now"),
        opt.JSON,
    ), renew),
    Verb("pick", (
        opt.QUEUE,
        opt.AGENT.but(help="take jobs from the queue tmux:A (default: the agent setting)"),
        opt.LEASE, opt.WAIT, opt.HOLDER, opt.JSON,
    ), pick),
)  # fmt: skip
