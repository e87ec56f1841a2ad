"""wait: as subscribe, without a word until it is over."""

from __future__ import annotations

from baton.cli.main import verb_parser
from baton.cli.output import json_text, limit, one_line, say
from baton.config import Settings
from baton.errors import JobNotFound, UsageError
from baton.jobs import open_jobs
from baton.model import Status
from baton.mqtt.subscriber import Subscription
from baton.reconciler import Reconciler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def run(verb: str, arguments: Sequence[str]) -> int:
    parser = verb_parser(verb)
    parser.add_argument("ids", nargs="*", metavar="ID", help="the jobs")
    parser.add_argument("--job", action="append", default=[], metavar="ID", help="a job, as an option; may repeat")
    parser.add_argument(
        "--timeout",
        type=limit("--timeout"),
        metavar="S",
        help="give up after S seconds, or such as 90s, 10m, 2h (default: the job's)",
    )
    parser.add_argument(
        "--idle-timeout", type=limit("--idle-timeout"), metavar="S", help="give up after so long a silence"
    )
    parser.add_argument("--json", action="store_true", help="print how each ended as JSON")
    options = parser.parse_args(arguments)
    job_ids = [*options.ids, *options.job]
    if not job_ids:
        raise UsageError("which jobs? give their IDs")
    settings = Settings(vars(options))
    with open_jobs(settings) as jobs:
        subscription = Subscription(
            jobs, settings, job_ids, timeout_sec=options.timeout, idle_timeout_sec=options.idle_timeout
        )
        with Reconciler(settings):
            for _event in subscription:
                pass
        outcomes = subscription.outcomes()
        statuses = {job_id: outcome or _status(subscription, job_id) for job_id, outcome in outcomes.items()}
        details = {job_id: why for job_id in statuses if (why := _why(subscription, job_id))}
    if options.json:
        print(json_text(statuses))
    else:
        for job_id, status in statuses.items():
            print("\t".join(filter(None, (job_id, status, details.get(job_id)))))
    if subscription.timed_out is not None:
        say(f"baton: {subscription.timed_out}")
    return subscription.exit_code


def _status(subscription: Subscription, job_id: str) -> str:
    try:
        return subscription.job(job_id).status
    except JobNotFound:
        return "gone"


def _why(subscription: Subscription, job_id: str) -> str:
    """Why it failed; empty where it did not, or nobody knows any more."""
    try:
        job = subscription.job(job_id)
    except JobNotFound:
        return ""
    return one_line(job.detail or "") if job.status is Status.ERROR else ""
