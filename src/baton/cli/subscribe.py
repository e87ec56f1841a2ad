"""subscribe (alias watch), wait: print the events of jobs until the jobs end, or only how each ended."""

import json
import os
import select
import stat
import threading
from typing import Any

from baton.cli import options as opt
from baton.cli.jobs import each_job
from baton.cli.options import jobs_of
from baton.cli.output import json_text, on_terminal, say, say_ends
from baton.cli.parser import Options, Verb
from baton.cli.request_view import request_line
from baton.cli.terminal import print_coloured
from baton.config import Settings
from baton.core.ending import Ending, ending_of
from baton.core.errors import UsageError
from baton.core.fields import first_line, one_line
from baton.core.job import Job, Status
from baton.core.outcome import outcome_of
from baton.delegation.looking import settle_lost
from baton.jobs.verbs import Jobs, open_jobs
from baton.jobs.verification import doubt
from baton.transport.subscription import Subscription

_COLOURS = {"completed": 32, "error": 31, "permission_required": 33}  # green, red, yellow


def subscribe(options: Options, settings: Settings) -> int:
    if options.follow_all and (options.ids or options.job):
        raise UsageError("give either job IDs or --follow-all")
    readable = on_terminal() and not options.json
    with open_jobs(settings) as jobs:
        job_ids, code = ([], 0) if options.follow_all else _find_jobs(jobs, options)
        if code and not job_ids:
            return code
        settle_lost(settings, jobs, say)
        subscription = Subscription(
            jobs,
            settings,
            job_ids,
            follow_all=options.follow_all,
            timeout_sec=options.timeout,
            idle_timeout_sec=options.idle_timeout,
            log=lambda line: say(f"baton: {line}"),
        )
        _stop_without_readers(subscription)
        if readable:
            for payload in subscription:
                print_coloured(_readable(payload), _COLOURS.get(payload["event"]))
                _say_request(subscription, payload)
        else:
            _print_json(subscription, last_outcomes=not options.follow_all)
    if subscription.stopped:
        raise BrokenPipeError
    if suspicious := subscription.suspicious():
        say("baton: ignored messages: " + ", ".join(f"{count} {reason}" for reason, count in suspicious.items()))
    if subscription.timed_out is not None:
        say(f"baton: {subscription.timed_out}")
    return code or subscription.exit_code


def _find_jobs(jobs: Jobs, options: Options) -> tuple[list[str], int]:
    """Return the ids of the jobs that the user named, and 1 if one of several was not found."""
    return each_job(jobs, jobs_of(options), lambda job_id: jobs.get_job(job_id).job_id)


def _print_json(subscription: Subscription, *, last_outcomes: bool) -> None:
    """Print the events, and the end of each job that ended without one or ran out of time."""

    def show(value: dict[str, Any]) -> None:
        print(json_text(value), flush=True)

    subscription.events.on_end = lambda job: show(outcome_of(job))
    for payload in subscription:
        show(payload)
        _say_request(subscription, payload)
    for outcome in subscription.last_outcomes() if last_outcomes and not subscription.stopped else ():
        show(outcome)


def _stop_without_readers(subscription: Subscription) -> None:
    """Stop when the reader of the output is gone, as with `| head -1`.

    A write would fail then, but there may be nothing to write for hours."""
    if not stat.S_ISFIFO(os.fstat(1).st_mode):
        return
    end = select.poll()
    end.register(1, 0)  # poll always reports that the other end is closed

    def wait() -> None:
        end.poll()
        subscription.stop()

    threading.Thread(target=wait, daemon=True).start()


def _readable(payload: dict[str, Any]) -> str:
    pairs = (
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in payload["data"].items()
        if name != "attempt"
    )
    words = [one_line(payload["detail"], 200), one_line(" ".join(pairs), 200)]
    what = f"{payload['timestamp'][11:19]}  {payload['job_id']}  {payload['event']:<19}"
    return f"{what}  {'  '.join(filter(None, words))}".rstrip()


def wait(options: Options, settings: Settings) -> int:
    """Wait until the jobs end, or until a limit of the wait is exceeded."""
    from baton.delegation.attempts import describe_orphan
    from baton.delegation.reconcile import BackgroundMonitor
    from baton.sessions.inventory import Inventory

    with open_jobs(settings) as jobs:
        job_ids, code = _find_jobs(jobs, options)
        if code and not job_ids:
            return code
        settle_lost(settings, jobs, say)
        subscription = Subscription(
            jobs, settings, job_ids, timeout_sec=options.timeout, idle_timeout_sec=options.idle_timeout
        )
        for cursor in subscription.events.cursors.values():
            if (why := describe_orphan(cursor.job, settings.host, Inventory(settings))) is not None:
                say(f"baton: note: job {cursor.job.job_id}: {why}")
        try:
            with BackgroundMonitor(settings):
                _follow(subscription, settings, as_json=options.json)
        except KeyboardInterrupt:
            say(f"it goes on; wait for it: baton wait {' '.join(job_ids)}")
            raise
        found = [job for job_id in subscription.outcomes() if (job := subscription.find_job(job_id)) is not None]
        unproven = [job for job in found if not _is_proven(jobs, job)]
        outcomes = subscription.last_outcomes(of_all=True)
        endings = {job.job_id: ending_of(job) for job in found}
        for outcome in outcomes if options.json or not on_terminal() else ():
            print(json_text(outcome) if options.json else _line(outcome, endings.get(outcome["job_id"])))
        jobs.mark_seen(found)
    if subscription.timed_out is not None:
        say(f"baton: {subscription.timed_out}")
    if not options.json:
        say_ends(found)
    return 1 if unproven or code else subscription.exit_code


def _follow(subscription: Subscription, settings: Settings, *, as_json: bool) -> None:
    """Follow the jobs until they end: in a table on a terminal, quietly elsewhere."""
    if on_terminal() and not as_json:
        _show_progress(subscription, settings)
        return
    for payload in subscription:
        _say_request(subscription, payload)


def _say_request(subscription: Subscription, payload: dict[str, Any]) -> None:
    """Say how to answer a request that an event has opened, if it is still open: the event may be old."""
    line = request_line(payload)
    if line is not None and any(
        request.request_id == payload["data"]["request_id"] for request in subscription.open_requests()
    ):
        say(f"baton: {line}")


def _show_progress(subscription: Subscription, settings: Settings) -> None:
    from baton.cli.progress_view import open_view

    followed = subscription.events.cursors.values()
    jobs = [cursor.job for cursor in followed]
    with open_view(jobs, as_json=False, read_requests=subscription.open_requests, settings=settings) as view:
        subscription.events.on_read = view.read
        for payload in subscription:
            view.show(payload)
        found = (subscription.find_job(cursor.job.job_id) for cursor in followed)
        view.over(job for job in found if job is not None)


def _is_proven(jobs: Jobs, job: Job) -> bool:
    """Return whether a job, if it is completed, was verified, or a person skipped that. Print a warning otherwise."""
    if job.status is not Status.COMPLETED:
        return True
    counts, warning = doubt(jobs, job)
    if warning is not None:
        say(f"baton: job {job.job_id} is completed, but {warning}")
    return counts


def _line(outcome: dict[str, Any], ending: Ending | None) -> str:
    """Return the id of a job, its status, and how it ended, or the reason of one that did not end well."""
    is_well = outcome["status"] == Status.COMPLETED and ending is not None
    why = ending.text if is_well and ending is not None else first_line(outcome["reason"] or "")
    return "\t".join(filter(None, (outcome["job_id"], outcome["status"], one_line(why, 200))))


_OPTIONS = (
    *opt.LISTENING,
    opt.FOLLOW_ALL,
    opt.JSON.but(help="print a JSON object per line (default: text on a terminal)"),
)
VERBS = (
    Verb("subscribe", _OPTIONS, subscribe),
    Verb("watch", _OPTIONS, subscribe),
    Verb("wait", (*opt.LISTENING, opt.JSON), wait),
)
