"""publish: record an event of a job and send it. Agents call it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from baton.cli import options as opt
from baton.cli.options import job_of
from baton.cli.output import say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.errors import BrokerUnavailable, InvalidValue, NotVerified, UsageError
from baton.core.fields import NestedTooDeeply, parse_json
from baton.jobs.verbs import open_jobs
from baton.transport.publish import TRIES, Published, publish_event


def publish(options: Options, settings: Settings) -> None:
    if options.attempts < 1:
        raise UsageError("--attempts must be at least 1")
    try:
        published = _publish(options, settings)
    except NotVerified as error:
        if error.validation:
            print(error.validation, file=sys.stderr)
        raise
    event = published.event
    print(json.dumps({"job_id": event.job_id, "seq": event.seq, "event": event.event, "sent": published.sent}))
    if published.trouble is not None:
        if options.require_broker:
            raise BrokerUnavailable(f"{published.trouble}; the event is recorded and will be sent later")
        say(f"baton: warning: not sent yet: {published.trouble}; the event is recorded and will be sent later")


def _publish(options: Options, settings: Settings) -> Published:
    with open_jobs(settings) as jobs:
        return jobs.with_id(
            job_of(options),
            lambda job_id: publish_event(
                jobs,
                settings,
                job_id,
                options.event,
                detail=options.detail,
                data=_data(options.data),
                attempt=_attempt(options.attempt),
                verify=not options.no_verify,
                tries=options.attempts,
            ),
        )


def _attempt(given: int | None) -> int | None:
    text = os.environ.get("BATON_ATTEMPT")
    if given is not None or not text:
        return given
    if not text.isdecimal():
        raise UsageError(f"BATON_ATTEMPT must be a number, not {text[:20]!r}")
    return int(text)


def _data(pairs: Sequence[str]) -> dict[str, object]:
    """Parse `k=v` pairs. A value that is not JSON is text."""
    data: dict[str, object] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"--data must look like name=value, not {pair[:40]!r}")
        try:
            data[name] = parse_json(text)
        except NestedTooDeeply:
            raise InvalidValue("data", f"is nested too deeply in {name[:40]}") from None
        except ValueError:
            data[name] = text
    return data


VERBS = (Verb("publish", (
    *opt.JOB, opt.EVENT, opt.DETAIL, opt.DATA,
    opt.ATTEMPT.but(help="refuse if another attempt than N holds the job (default: $BATON_ATTEMPT)"),
    opt.BROKER_TRIES.but(default=TRIES, help=f"try N times to reach the broker (default: {TRIES})"),
    opt.REQUIRE_BROKER, opt.NO_VERIFY, opt.ALLOW_PLAINTEXT, opt.JSON_ALWAYS,
), publish),)  # fmt: skip
