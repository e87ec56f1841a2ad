"""register: add a job to a queue."""

from __future__ import annotations

import argparse
import os

from baton.cli import options as opt
from baton.cli.jobs import print_id
from baton.cli.parser import Verb, read_text
from baton.config import Settings
from baton.core.errors import InvalidValue, UsageError
from baton.jobs.verbs import open_jobs


def register(options: argparse.Namespace, settings: Settings) -> int:
    given = [each for each in (options.text, options.prompt, options.prompt_file) if each is not None]
    if len(given) != 1:
        raise UsageError("give the prompt once: as PROMPT, --prompt TEXT, --prompt-file FILE, or - for stdin")
    workdir = os.getcwd() if options.workdir is None else os.path.abspath(options.workdir)
    if options.workdir is not None and not (options.workdir and os.path.isdir(workdir)):
        raise InvalidValue("--workdir", f"{options.workdir!r} is not a folder")
    if options.validate is not None and not options.validate.strip():
        raise InvalidValue("--validate", "must not be empty")
    literal = options.prompt is not None
    prompt = options.prompt if literal else read_text("prompt", options.text, file=options.prompt_file)
    from baton.adapters import allowed_silence
    from baton.broker.address import broker_record

    with open_jobs(settings) as jobs:
        job = jobs.register_job(
            prompt,
            agent=settings.agent,
            agent_session=options.agent_session,
            workdir=workdir,
            broker=broker_record(settings),
            timeout_sec=settings.timeout_sec,
            idle_timeout_sec=allowed_silence(settings, settings.agent, settings.timeout_sec),
            expected_artifacts=options.expect or [],
            validate=options.validate,
            priority=options.priority,
            max_attempts=options.max_attempts,
            labels=options.label,
        )
    print_id(job, as_json=options.json, state="registered")
    return 0


VERBS = (Verb("register", (
    opt.PROMPT_TEXT, opt.PROMPT_OPTION, opt.PROMPT_FILE, opt.AGENT,
    opt.QUEUE.but(help="add the job to this queue (default: tmux:AGENT)"),
    opt.WORKDIR,
    opt.TIMEOUT.but(type=opt.time_limit("--timeout", int, years=10)),
    opt.IDLE_TIMEOUT.but(type=opt.time_limit("--idle-timeout", int, years=10)),
    opt.EXPECT, opt.VALIDATE, opt.PRIORITY, opt.MAX_ATTEMPTS.but(default=1), opt.LABEL, opt.JSON,
), register),)  # fmt: skip
