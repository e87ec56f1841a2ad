"""wait: wait until jobs end, and print how each ended."""

import argparse

from baton.cli import options as opt
from baton.cli.output import json_text, say
from baton.cli.parser import Verb
from baton.config import Settings
from baton.core.errors import JobNotFound, UsageError
from baton.core.fields import one_line
from baton.core.job import Status
from baton.delegation.reconcile import BackgroundMonitor
from baton.jobs.verbs import open_jobs
from baton.transport.subscription import Subscription


def wait(options: argparse.Namespace, settings: Settings) -> int:
    """Wait until the jobs end, or until a limit of the wait is exceeded."""
    job_ids = [*options.ids, *options.job]
    if not job_ids:
        raise UsageError("no job is named; give their IDs")
    with open_jobs(settings) as jobs:
        subscription = Subscription(
            jobs, settings, job_ids, timeout_sec=options.timeout, idle_timeout_sec=options.idle_timeout
        )
        with BackgroundMonitor(settings):
            for _event in subscription:
                pass
        ended = {job_id: _outcome(subscription, job_id, status) for job_id, status in subscription.outcomes().items()}
    if options.json:
        print(json_text({job_id: status for job_id, (status, _why) in ended.items()}))
    else:
        for job_id, (status, why) in ended.items():
            print("\t".join(filter(None, (job_id, status, why))))
    if subscription.timed_out is not None:
        say(f"baton: {subscription.timed_out}")
    return subscription.exit_code


def _outcome(subscription: Subscription, job_id: str, status: str | None) -> tuple[str, str]:
    """Return the status of a job, or `gone`, and why it failed."""
    try:
        job = subscription.job(job_id)
    except JobNotFound:
        return status or "gone", ""
    return status or job.status, one_line(job.detail or "", 200) if job.status is Status.ERROR else ""


VERBS = (Verb("wait", (*opt.LISTENING, opt.JSON), wait),)
