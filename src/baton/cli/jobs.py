"""register, get, status, pick, renew, release, cancel. Agents call them in loops, so nothing heavy is imported."""

from __future__ import annotations

import os
import time
from functools import partial

from baton.cli import options as opt
from baton.cli.options import job_of, jobs_of
from baton.cli.output import json_text, say
from baton.cli.parser import Options, Verb, read_text
from baton.config import Settings
from baton.core.drafts import new_job
from baton.core.errors import BatonError, InvalidValue, NothingPending, UsageError
from baton.core.job import Job, Status
from baton.core.value import Any
from baton.jobs.verbs import Jobs, open_jobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from baton.sessions.processes import Process

    Result = TypeVar("Result")

_POLL_SEC = 0.2


def register(options: Options, settings: Settings) -> None:
    if [options.text, options.prompt, options.prompt_file].count(None) != 2:
        raise UsageError("give the prompt once: as PROMPT, --prompt TEXT, --prompt-file FILE, or - for stdin")
    workdir = os.getcwd() if options.workdir is None else os.path.abspath(options.workdir)
    if options.workdir is not None and not (options.workdir and os.path.isdir(workdir)):
        raise InvalidValue("--workdir", f"{options.workdir!r} is not a folder")
    if options.validate is not None and not options.validate.strip():
        raise InvalidValue("--validate", "must not be empty")
    literal = options.prompt is not None
    prompt = options.prompt if literal else read_text("prompt", options.text, file=options.prompt_file)
    from baton.adapters import allowed_silence, check_work
    from baton.broker.address import broker_record

    with open_jobs(settings) as jobs:
        draft = new_job(
            prompt,
            now_ns=time.time_ns(),
            agent=settings.agent,
            agent_session=options.agent_session,
            workdir=workdir,
            broker=broker_record(settings, options.broker_login),
            timeout_sec=settings.timeout_sec,
            idle_timeout_sec=allowed_silence(settings, settings.agent, settings.timeout_sec),
            tool_timeout_sec=settings.tool_timeout_sec,
            background_timeout_sec=settings.background_timeout_sec,
            on_limit=settings.on_limit,
            budget_usd=options.budget_usd,
            expected_artifacts=options.expect or [],
            validate=options.validate,
            priority=options.priority,
            max_attempts=options.max_attempts,
            labels=options.label,
            title=options.title,
            idempotency_key=options.idempotency_key,
            after=jobs.find_predecessors(options.after),
            not_before=options.not_before,
            retries=options.retries or 0,
            backoff_sec=options.backoff_sec or 0,
        )
        check_work(settings, draft)
        job = jobs.register_many([draft])[0]
    print_id(job, as_json=options.json, state="registered")


def get(options: Options, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        found, code = each_job(jobs, jobs_of(options), partial(_look_at, settings, jobs))
    from baton.core.outline import public_record

    now_ns = time.time_ns()
    shown = [public_record(job, now_ns=now_ns, show_secrets=options.show_secrets) for job in found]
    _print_json(shown, several=len(jobs_of(options)) > 1)
    return code


def status(options: Options, settings: Settings) -> int:
    with open_jobs(settings) as jobs:

        def do(job_id: str) -> Job:
            if options.set is None:
                return _look_at(settings, jobs, job_id)
            return jobs.update_status(job_id, options.set, attempt=options.attempt, verify=not options.no_verify)

        return _print_each(jobs, options, do)


def _look_at(settings: Settings, jobs: Jobs, job_id: str) -> Job:
    """Return the job as it is now, settled if its session was killed."""
    job = jobs.get_job(job_id)
    has_sessions = os.path.isdir(os.path.join(settings.home, "sessions"))
    if job.status is not Status.RUNNING or job.claimed_by is None or not has_sessions:
        return job
    from baton.delegation.looking import may_be_lost, settle_lost

    if not may_be_lost(settings, job):
        return job
    unsettled, job = settle_lost(settings, jobs, say), jobs.get_job(job_id)
    if (why := unsettled.get(job_id)) is None:
        return job
    from baton.core.outline import without_runner

    return without_runner(job, why)


def cancel(options: Options, settings: Settings) -> int:
    from baton.sessions.stop import cancel_job

    with open_jobs(settings) as jobs:

        def do(job_id: str) -> Job:
            return cancel_job(settings, jobs, job_id, reason=options.reason, show_unproven=_show_unproven)

        if not options.all:
            return _print_each(jobs, options, do)
        from baton.cli.all_jobs import confirm_all

        options.ids = confirm_all(jobs, options, "cancel", ("pending", "running"))
        return _print_each(jobs, options, do) if options.ids else 0


def _show_unproven(process: Process) -> None:
    why = "it runs in the work folder, and nothing proves where it comes from"
    say(f"baton: process {process.pid} ({process.command}) may be the agent's: {why}; `kill {process.pid}` ends it")


def renew(options: Options, settings: Settings) -> None:
    with open_jobs(settings) as jobs:
        job = jobs.with_id(
            job_of(options),
            lambda job_id: jobs.renew_lease(job_id, attempt=options.attempt, lease_sec=options.lease),
        )
    print(json_text(job.public(), indent=2) if options.json else job.lease_expires_at)


def release(options: Options, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        return _print_each(
            jobs, options, lambda job_id: jobs.release(job_id, attempt=options.attempt, reason=options.reason)
        )


def pick(options: Options, settings: Settings) -> None:
    queue = f"tmux:{settings.agent}" if options.agent_session is None else options.agent_session
    # The caller's pid, not this process's own: this process ends in a moment.
    holder = f"{settings.host}:{os.getppid()}" if options.holder is None else options.holder
    if options.wait is not None and not 0 <= options.wait <= 366 * 86400:
        raise InvalidValue("--wait", "must be from 0 seconds to a year")
    with open_jobs(settings) as jobs:
        until = time.monotonic() + (options.wait or 0.0)
        while (job := jobs.pick_pending(queue, holder=holder, lease_sec=options.lease)) is None:
            left = until - time.monotonic()
            if left <= 0:
                raise NothingPending(queue)
            time.sleep(min(_POLL_SEC, left))
        try:
            print_id(job, as_json=options.json, state="requeued")
        except BatonError:
            jobs.release(job.job_id, attempt=job.attempt, reason="the id could not be printed")
            raise


def print_id(job: Job, *, as_json: bool, state: str) -> None:
    """Print the id of a job that was just made or claimed. A write error names the job and its state."""
    try:
        print(json_text(job.public(), indent=2) if as_json else job.job_id, flush=True)
    except OSError as error:
        raise BatonError(f"cannot write the output ({error.strerror}); job {job.job_id} is {state}") from error


def each_of(typed: Sequence[str], do: Callable[[str], Result]) -> tuple[list[Result], int]:
    """Do this with each id that the user typed; return the results and the exit code. Of several, one that fails does
    not keep the others from being done."""
    if len(typed) == 1:
        return [do(typed[0])], 0
    results, code = [], 0
    for each in typed:
        try:
            results.append(do(each))
        except BatonError as error:
            say(f"baton: {error}")
            code = 1
    return results, code


def each_job(jobs: Jobs, typed: Sequence[str], do: Callable[[str], Result]) -> tuple[list[Result], int]:
    """Do this with each job whose id the user typed, as `each_of`."""
    return each_of(typed, lambda each: jobs.with_id(each, do))


def _print_each(jobs: Jobs, options: Options, do: Callable[[str], Job]) -> int:
    """Do this with each job that the user named, and print its status; of several jobs with their ids."""
    typed = jobs_of(options)

    def one(job_id: str) -> Job:
        job = do(job_id)
        if not options.json:
            print(f"{job.job_id} {job.status}" if len(typed) > 1 else job.status, flush=True)
        return job

    done, code = each_job(jobs, typed, one)
    if options.json:
        _print_json([job.public() for job in done], several=len(typed) > 1)
    return code


def _print_json(records: Sequence[dict[str, Any]], *, several: bool) -> None:
    print(json_text(records if several else records[0], indent=2))


VERBS = (
    Verb("register", (
        opt.PROMPT_TEXT, opt.PROMPT_OPTION, opt.PROMPT_FILE, opt.AGENT,
        opt.QUEUE.but(help="add the job to this queue (default: tmux:AGENT)"),
        opt.WORKDIR,
        opt.TIMEOUT.but(type=opt.time_limit("--timeout", int, years=10)),
        opt.IDLE_TIMEOUT.but(type=opt.time_limit("--idle-timeout", int, years=10)),
        opt.TOOL_TIMEOUT, opt.BACKGROUND_TIMEOUT, opt.ON_LIMIT, opt.BUDGET,
        opt.EXPECT, opt.VALIDATE, opt.PRIORITY, opt.MAX_ATTEMPTS.but(default=1), opt.LABEL,
        opt.TITLE, opt.IDEMPOTENCY_KEY,
        opt.AFTER.but(help="start when this job is completed; repeatable (default: at once)"),
        opt.NOT_BEFORE, opt.RETRIES, opt.BACKOFF, opt.BROKER_LOGIN, opt.JSON,
    ), register),
    Verb("get", (*opt.JOBS, opt.SHOW_SECRETS, opt.JSON_ALWAYS), get),
    Verb("status", (*opt.JOBS, opt.SET_STATUS, opt.ATTEMPT, opt.NO_VERIFY, opt.JSON), status),
    Verb("cancel", (
        *opt.JOBS,
        opt.ALL.but(help="cancel every job that has not ended, after a question (default: the jobs named)"),
        opt.YES, opt.REASON.but(default=None, help="record this reason (default: cancelled by USER@HOST)"), opt.JSON,
    ), cancel),
    Verb("release", (*opt.JOBS, opt.ATTEMPT, opt.REASON, opt.JSON), release),
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
