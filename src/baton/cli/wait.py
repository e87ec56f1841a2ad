"""wait: as subscribe, without a word until it is over."""

from __future__ import annotations

from baton.cli import options as opt
from baton.cli.output import json_text, say
from baton.cli.parser import Verb
from baton.core.errors import JobNotFound, UsageError
from baton.core.fields import one_line
from baton.core.job import Status
from baton.delegation.reconcile import BackgroundMonitor
from baton.jobs.verbs import open_jobs
from baton.transport.subscription import Subscription

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from baton.config import Settings


def wait(options: argparse.Namespace, settings: Settings) -> int:
    job_ids = [*options.ids, *options.job]
    if not job_ids:
        raise UsageError("which jobs? give their IDs")
    with open_jobs(settings) as jobs:
        subscription = Subscription(
            jobs, settings, job_ids, timeout_sec=options.timeout, idle_timeout_sec=options.idle_timeout
        )
        with BackgroundMonitor(settings):
            for _event in subscription:
                pass
        ended = {job_id: _ended(subscription, job_id, outcome) for job_id, outcome in subscription.outcomes().items()}
    if options.json:
        print(json_text({job_id: status for job_id, (status, _why) in ended.items()}))
    else:
        for job_id, (status, why) in ended.items():
            print("\t".join(filter(None, (job_id, status, why))))
    if subscription.timed_out is not None:
        say(f"baton: {subscription.timed_out}")
    return subscription.exit_code


def _ended(subscription: Subscription, job_id: str, outcome: str | None) -> tuple[str, str]:
    """Return the outcome or status of a job, and why it failed; an empty reason if it did not, or was pruned."""
    try:
        job = subscription.job(job_id)
    except JobNotFound:
        return outcome or "gone", ""
    return outcome or job.status, one_line(job.detail or "") if job.status is Status.ERROR else ""


VERBS = (Verb("wait", (*opt.LISTENING, opt.JSON), wait),)
