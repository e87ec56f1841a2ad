"""register, get, status, pick, renew, release, cancel: what is called in loops, so nothing heavy is imported."""

from __future__ import annotations

import os
import sys
import time

from baton.cli.main import verb_parser
from baton.cli.output import json_text, limit
from baton.cli.prompt import read_text
from baton.config import Settings
from baton.core.errors import InvalidValue, NothingPending, UsageError
from baton.jobs.verbs import open_jobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from baton.core.job import Job
    from baton.jobs.verbs import Jobs

_POLL_SEC = 0.2


def run(verb: str, arguments: Sequence[str]) -> int:
    parser = verb_parser(verb)
    _ARGUMENTS[verb](parser)
    options = parser.parse_args(arguments)
    return _ACTIONS[verb](options, Settings(vars(options)))


def add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID", help="the job")
    parser.add_argument("--job", metavar="ID", help="the job, as an option (default: $BATON_JOB_ID)")


def job_of(options: argparse.Namespace) -> str:
    given = {each for each in (options.id, options.job) if each is not None}
    if len(given) > 1:
        raise UsageError("two different jobs were named; give one ID")
    job_id: str | None = given.pop() if given else os.environ.get("BATON_JOB_ID")
    if job_id is None:
        raise UsageError("which job? give its ID; `baton list` shows them")
    return job_id


def show_job(job: Job, *, show_secrets: bool = False) -> None:
    print(json_text(job.public(show_secrets=show_secrets), indent=2))


# -- register ----------------------------------------------------------------------------------------------


def _register_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", metavar="PROMPT", help="what to do; - reads it from stdin")
    parser.add_argument("--prompt", metavar="TEXT", help="what to do, as an option")
    parser.add_argument("--prompt-file", metavar="FILE", help="read what to do from a file; - is stdin")
    parser.add_argument("--agent", metavar="A", help="who should do it (default: claude-code)")
    parser.add_argument("--agent-session", metavar="LABEL", help="whose queue it joins (default: tmux:AGENT)")
    parser.add_argument("--workdir", metavar="DIR", help="where the work is done (default: this folder)")
    parser.add_argument(
        "--timeout",
        dest="timeout_sec",
        type=limit("--timeout", int, years=10),
        metavar="S",
        help="how long it may take: seconds, or such as 90s, 10m, 2h (default: 3600)",
    )
    parser.add_argument(
        "--idle-timeout",
        dest="idle_timeout_sec",
        type=limit("--idle-timeout", int, years=10),
        metavar="S",
        help="how long it may be silent (default: 120; a command: as long as it may take)",
    )
    parser.add_argument("--expect", action="append", default=[], metavar="FILE", help="a file the work must leave")
    parser.add_argument("--validate", metavar="CMD", help="a command that must succeed before it is completed")
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher is picked first (default: 0)")
    parser.add_argument(
        "--max-attempts",
        type=int,
        default=1,
        metavar="N",
        help="after how many attempts a lost lease ends it as error (1)",
    )
    parser.add_argument(
        "--label", action="append", default=[], metavar="TEXT", help="a word kept with the job; may repeat"
    )
    parser.add_argument("--json", action="store_true", help="print the whole record")


def _register(options: argparse.Namespace, settings: Settings) -> int:
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
            expected_artifacts=options.expect,
            validate=options.validate,
            priority=options.priority,
            max_attempts=options.max_attempts,
            labels=options.label,
        )
    _print_id(job, as_json=options.json, otherwise="is registered all the same")
    return 0


def _print_id(job: Job, *, as_json: bool, otherwise: str) -> None:
    """Whoever asked must learn the id, or that there is a job now."""
    try:
        if as_json:
            show_job(job)
        else:
            print(job.job_id)
        sys.stdout.flush()
    except OSError:
        print(f"baton: the output cannot be written; job {job.job_id} {otherwise}", file=sys.stderr)
        raise


# -- get, status, cancel -------------------------------------------------------------------------------------


def _get_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--show-secrets", action="store_true", help="print the signing key and the password")
    parser.add_argument("--json", action="store_true", help="the same: the record is JSON anyway")


def _get(options: argparse.Namespace, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        show_job(jobs.get_job(job_of(options)), show_secrets=options.show_secrets)
    return 0


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--set", metavar="STATUS", help="pending, running, completed, error or cancelled")
    _attempt_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the whole record")


def _attempt_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--attempt", type=int, metavar="N", help="the attempt you hold: refused if another has taken over"
    )


def _status(options: argparse.Namespace, settings: Settings) -> int:
    job_id = job_of(options)
    with open_jobs(settings) as jobs:
        if options.set is None:
            job = jobs.get_job(job_id)
        else:
            job = jobs.update_status(job_id, options.set, attempt=options.attempt)
    _print_outcome(job, as_json=options.json)
    return 0


def _cancel_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--json", action="store_true", help="print the whole record")


def _cancel(options: argparse.Namespace, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        job = jobs.update_status(job_of(options), "cancelled")
    _print_outcome(job, as_json=options.json)
    return 0


def _print_outcome(job: Job, *, as_json: bool) -> None:
    if as_json:
        show_job(job)
    else:
        print(job.status)


# -- pick, renew, release ------------------------------------------------------------------------------------


def _pick_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent-session", metavar="LABEL", help="whose queue (default: tmux:AGENT)")
    parser.add_argument("--agent", metavar="A", help="the agent the default label is made from")
    parser.add_argument("--lease", type=float, metavar="S", help="give it back if not renewed within S seconds")
    parser.add_argument("--wait", type=float, metavar="S", help="wait that long for a job to come")
    parser.add_argument("--holder", metavar="NAME", help="who picks, for people to read (default: HOST:PID)")
    parser.add_argument("--json", action="store_true", help="print the whole record instead of the id")


def _pick(options: argparse.Namespace, settings: Settings) -> int:
    label = f"tmux:{settings.agent}" if options.agent_session is None else options.agent_session
    # The pid of whoever called us says more than our own, which is gone in a moment.
    holder = f"{settings.host}:{os.getppid()}" if options.holder is None else options.holder
    if options.wait is not None and not 0 <= options.wait <= 366 * 86400:
        raise InvalidValue("--wait", "must be from 0 seconds to a year")
    with open_jobs(settings) as jobs:
        job = jobs.pick_pending(label, holder=holder, lease_sec=options.lease)
        if job is None and options.wait:
            job = _wait_for_job(jobs, label, holder, options)
        if job is None:
            raise NothingPending(label)
        try:
            _print_id(job, as_json=options.json, otherwise="is handed back")
        except OSError:
            jobs.release(job.job_id, attempt=job.attempt, reason="whoever picked it could not be told")
            raise
    return 0


def _wait_for_job(jobs: Jobs, label: str, holder: str, options: argparse.Namespace) -> Job | None:
    until = time.monotonic() + options.wait
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(_POLL_SEC, left))
        job = jobs.pick_pending(label, holder=holder, lease_sec=options.lease)
        if job is not None:
            return job
    return None


def _renew_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--attempt", type=int, required=True, metavar="N", help="the attempt you hold")
    parser.add_argument("--lease", type=float, required=True, metavar="S", help="seconds from now")
    parser.add_argument("--json", action="store_true", help="print the whole record")


def _renew(options: argparse.Namespace, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        job = jobs.renew_lease(job_of(options), attempt=options.attempt, lease_sec=options.lease)
    if options.json:
        show_job(job)
    else:
        print(job.lease_expires_at)
    return 0


def _release_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    _attempt_argument(parser)
    parser.add_argument("--reason", default="released", metavar="TEXT", help="for the audit log")
    parser.add_argument("--json", action="store_true", help="print the whole record")


def _release(options: argparse.Namespace, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        job = jobs.release(job_of(options), attempt=options.attempt, reason=options.reason)
    _print_outcome(job, as_json=options.json)
    return 0


_ARGUMENTS = {
    "register": _register_arguments,
    "get": _get_arguments,
    "status": _status_arguments,
    "pick": _pick_arguments,
    "renew": _renew_arguments,
    "release": _release_arguments,
    "cancel": _cancel_arguments,
}
_ACTIONS = {
    "register": _register,
    "get": _get,
    "status": _status,
    "pick": _pick,
    "renew": _renew,
    "release": _release,
    "cancel": _cancel,
}
