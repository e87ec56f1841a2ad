"""subscribe (alias watch): events as they come, until the jobs are over."""

from __future__ import annotations

import json
import os

from baton.cli.main import verb_parser
from baton.cli.output import STATUS_COLOURS, on_terminal, one_line, say
from baton.config import Settings
from baton.errors import UsageError
from baton.jobs import open_jobs
from baton.mqtt.subscriber import Subscription

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def run(verb: str, arguments: Sequence[str]) -> int:
    parser = verb_parser(verb)
    parser.add_argument("ids", nargs="*", metavar="ID", help="the jobs")
    parser.add_argument("--job", action="append", default=[], metavar="ID", help="a job, as an option; may repeat")
    parser.add_argument("--follow-all", action="store_true", help="every job of this registry, until interrupted")
    parser.add_argument("--timeout", type=float, metavar="S", help="give up after S seconds (default: the job's)")
    parser.add_argument("--idle-timeout", type=float, metavar="S", help="give up after S silent seconds")
    parser.add_argument("--allow-plaintext", action="store_true", default=None, help="no TLS to another machine")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, also on a terminal")
    options = parser.parse_args(arguments)
    job_ids = [*options.ids, *options.job]
    if bool(job_ids) == options.follow_all:
        raise UsageError("which jobs? give their IDs, or --follow-all")
    readable = on_terminal() and not options.json
    with open_jobs(Settings(vars(options))) as jobs:
        subscription = Subscription(
            jobs,
            Settings(vars(options)),
            job_ids,
            follow_all=options.follow_all,
            timeout_sec=options.timeout,
            idle_timeout_sec=options.idle_timeout,
            log=lambda line: say(f"baton: {line}"),
        )
        for payload in subscription:
            print(_readable(payload) if readable else json.dumps(payload, ensure_ascii=False), flush=True)
    for job_id, outcome in subscription.outcomes().items():
        if outcome == "cancelled":
            say(f"baton: job {job_id} was cancelled")
    # What was heard twice is no news: the registry is often quicker than the broker.
    hostile = {reason: count for reason, count in sorted(subscription.rejected.items()) if reason != "seq"}
    if hostile:
        counts = ", ".join(f"{count} {reason}" for reason, count in hostile.items())
        say(f"baton: ignored on the topic: {counts}")
    if subscription.timed_out is not None:
        say(f"baton: {subscription.timed_out}")
    return subscription.exit_code


def _readable(payload: dict[str, Any]) -> str:
    event = payload["event"]
    colour = {"green": 32, "red": 31, "cyan": 36, "yellow": 33}.get(STATUS_COLOURS.get(event, ""), 0)
    if event == "permission_required":
        colour = 33
    text = f"{payload['timestamp'][11:19]}  {payload['job_id']}  {event:<19}  {one_line(payload['detail'])}"
    return f"\033[{colour}m{text}\033[0m" if colour and not os.environ.get("NO_COLOR") else text
