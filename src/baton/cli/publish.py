"""publish: what an agent calls to say how its job is going."""

from __future__ import annotations

import json
import os
import sys

from baton.cli.jobs import add_job, job_of
from baton.cli.main import verb_parser
from baton.cli.output import one_line
from baton.config import Settings
from baton.core.errors import BrokerUnavailable, InvalidValue, UsageError
from baton.jobs.verbs import open_jobs
from baton.transport.publish import TRIES, publish_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def run(verb: str, arguments: Sequence[str]) -> int:
    parser = verb_parser(verb)
    add_job(parser)
    parser.add_argument(
        "--event", required=True, metavar="E", help="started, progress, permission_required, completed or error"
    )
    parser.add_argument("--detail", default="", metavar="TEXT", help="one sentence; paths and secrets are taken out")
    parser.add_argument("--data", action="append", default=[], metavar="K=V", help="a value to go with it; may repeat")
    parser.add_argument("--attempt", type=int, metavar="N", help="the attempt you hold (default: $BATON_ATTEMPT)")
    parser.add_argument("--attempts", type=int, default=TRIES, metavar="N", help="tries to reach the broker")
    parser.add_argument("--require-broker", action="store_true", help="fail if the event could not be sent")
    parser.add_argument("--no-verify", action="store_true", help="accept completed without the expected results")
    parser.add_argument("--allow-plaintext", action="store_true", default=None, help="no TLS to another machine")
    parser.add_argument("--json", action="store_true", help="the same: the answer is JSON anyway")
    options = parser.parse_args(arguments)
    settings = Settings(vars(options))
    if options.attempts < 1:
        raise UsageError("--attempts must be at least 1")
    with open_jobs(settings) as jobs:
        published = publish_event(
            jobs,
            settings,
            job_of(options),
            options.event,
            detail=options.detail,
            data=_data(options.data),
            attempt=_attempt(options.attempt),
            verify=not options.no_verify,
            tries=options.attempts,
        )
    event = published.event
    print(json.dumps({"job_id": event.job_id, "seq": event.seq, "event": event.event, "sent": published.sent}))
    if published.trouble is not None:
        if options.require_broker:
            raise BrokerUnavailable(f"{published.trouble}; the event is safe in the registry and will be sent later")
        # One line, whatever the name of a broker holds.
        print(f"baton: warning: not sent yet: {one_line(published.trouble, 1000)}; the event is safe", file=sys.stderr)
    return 0


def _attempt(given: int | None) -> int | None:
    text = os.environ.get("BATON_ATTEMPT")
    if given is not None or not text:
        return given
    if not text.isdecimal():
        raise UsageError(f"BATON_ATTEMPT must be a number, not {text[:20]!r}")
    return int(text)


def _data(pairs: Sequence[str]) -> dict[str, Any]:
    """`k=v`, where v is JSON if it can be read as such, else text."""
    data: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"--data must look like name=value, not {pair[:40]!r}")
        try:
            data[name] = json.loads(text)
        except ValueError:
            data[name] = text
        except RecursionError:
            raise InvalidValue("data", f"is nested too deeply in {name[:40]}") from None
    return data
