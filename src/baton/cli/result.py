"""result: print what a job left: the agent's last message, its output, or everything as JSON."""

import codecs
import math
import select
import sys
from collections.abc import Iterable, Iterator

from baton.adapters import find_agent
from baton.cli import options as opt
from baton.cli.jobs import each_job
from baton.cli.options import jobs_of
from baton.cli.output import json_text, on_terminal, say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.awake_clock import AwakeClock
from baton.core.clock import SECOND_NS
from baton.core.ending import describe_end, ending_of
from baton.core.errors import BatonError, UsageError
from baton.core.fields import one_line, printable_lines
from baton.core.job import TERMINAL, Job, Status
from baton.delegation.looking import Look, settle_lost
from baton.jobs.output import OutputReader
from baton.jobs.results import host_of, result_record
from baton.jobs.verbs import Jobs, open_jobs
from baton.sessions.inventory import Inventory

_POLL_SEC = 0.2
_CHUNK = 1 << 16


def result(options: Options, settings: Settings) -> int:
    typed = jobs_of(options)
    if options.follow and (options.json or len(typed) > 1):
        raise UsageError("--follow follows the output of one job; leave out --json and further IDs")
    with open_jobs(settings) as jobs:
        settle_lost(settings, jobs, say)
        if options.json:
            records, code = each_job(jobs, typed, lambda job_id: _record(jobs, job_id, settings))
            print(json_text(records if len(typed) > 1 else records[0], indent=2))
            return code
        codes, code = each_job(
            jobs, typed, lambda job_id: _show(jobs, job_id, settings, options, several=len(typed) > 1)
        )
    return max([code, *codes])


def _record(jobs: Jobs, job_id: str, settings: Settings) -> dict[str, object]:
    job = jobs.get_job(job_id)
    if job.status not in TERMINAL:
        raise _not_ended(job)
    jobs.mark_seen([job])
    return result_record(job, jobs.get_result(job.job_id), settings.home)


def _not_ended(job: Job) -> BatonError:
    state = "still running" if job.status is Status.RUNNING else "still pending"
    return BatonError(f"job {job.job_id} is {state}; -f follows")


def _show(jobs: Jobs, job_id: str, settings: Settings, options: Options, *, several: bool) -> int:
    job = jobs.get_job(job_id)
    if several:
        print(f"==> {job_id} <==", flush=True)
    if options.follow:
        if not _print(_follow(jobs, job, settings, options.timeout or math.inf)):
            say(f"baton: timed out: {options.timeout:g} s have passed")
            return 2
        jobs.mark_seen([jobs.get_job(job_id)])
        return 0
    jobs.mark_seen([job])
    if job.status not in TERMINAL and not options.output:
        raise _not_ended(job)
    reader = OutputReader(settings.home, job)
    found = None if options.output or (_prints_output(job, settings) and reader.exists()) else jobs.get_result(job_id)
    if found is not None and found.message is not None:
        text = found.message.rstrip("\n") + "\n"
        _print(text[start : start + _CHUNK].encode(errors="replace") for start in range(0, len(text), _CHUNK))
        _say_end(jobs, job, options)
        return 0
    if not reader.exists() and job.status in TERMINAL and host_of(job) in (None, settings.host):
        Inventory(settings).wait_for_end_of(job.job_id)
    if not reader.exists():
        _say_validation(jobs, job, options)
        raise _no_output(job, settings, wanted=options.output)
    if reader.begins_late:
        say(f"baton: the beginning of this output is not kept: it is longer than {settings.keep_output_mb} MB")
    _print(reader.read())
    _say_end(jobs, job, options)
    if job.status not in TERMINAL:
        raise _not_ended(job)
    return 0


def _say_end(jobs: Jobs, job: Job, options: Options) -> None:
    """Say how the job ended, and what the validation printed that refused its results, except with --output."""
    if not options.output and job.status in TERMINAL:
        say(describe_end(job))
        _say_validation(jobs, job, options)


def _say_validation(jobs: Jobs, job: Job, options: Options) -> None:
    found = None if options.output or job.status is not Status.ERROR else jobs.get_result(job.job_id)
    if found is not None and found.validation:
        say("the validation printed:")
        print(printable_lines(found.validation), file=sys.stderr)


def _prints_output(job: Job, settings: Settings) -> bool:
    """Return whether the output of this agent is its result: a command has no last message."""
    try:
        return find_agent(settings, job.agent).exit_is_verdict
    except BatonError:
        return False  # the agent is not in the settings any more


def _no_output(job: Job, settings: Settings, *, wanted: bool) -> BatonError:
    host = host_of(job)
    if host is not None and host != settings.host:
        return BatonError(f"the output of job {job.job_id} is on {host}, where it ran; run `baton result` there")
    ending = None if wanted else ending_of(job)
    why = "" if ending is None else f": {one_line(ending.text, 500)}"
    what = "output" if wanted else "message and no output"
    return BatonError(f"job {job.job_id} is {job.status} and left no {what} here{why}")


def _follow(jobs: Jobs, job: Job, settings: Settings, timeout_sec: float) -> Iterator[bytes | None]:
    """Yield the output of the present attempt as it comes, and of the next one if the job is tried again, until the job
    has ended. Yield empty bytes while nothing comes, None when the time is over."""
    clock = AwakeClock()
    began_ns = clock.monotonic_ns()
    reader = OutputReader(settings.home, job)
    gone = select.poll()
    gone.register(1, 0)  # poll always reports that the other end of a pipe is closed
    look = Look(settings)
    while True:
        look.settle(jobs)
        now = jobs.get_job(job.job_id)  # before the output is read: then all of it is
        yield from reader.read()
        if now.attempt != job.attempt:
            job, reader = now, OutputReader(settings.home, now)
            continue
        if now.status in TERMINAL:
            break
        host = host_of(now)
        if host not in (None, settings.host) and not reader.exists():
            raise _no_output(now, settings, wanted=True)
        if clock.monotonic_ns() - began_ns >= timeout_sec * SECOND_NS:
            yield None
            return
        yield b""
        if gone.poll(_POLL_SEC * 1000):
            raise BrokenPipeError
    if not reader.exists():
        raise _no_output(now, settings, wanted=True)


def _print(chunks: Iterable[bytes | None]) -> bool:
    """Write text to standard output as it comes: to a terminal, cleaned. Return False at None."""
    cleaned = on_terminal()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    sys.stdout.flush()
    last = "\n"
    for chunk in chunks:
        if chunk is None:
            return False
        if cleaned:
            text = decoder.decode(chunk)
            sys.stdout.write(text)
            last = text[-1:] or last
        else:
            sys.stdout.buffer.write(chunk)
        if not chunk:
            sys.stdout.flush()
    if last != "\n":
        print()
    sys.stdout.flush()
    return True


VERBS = (Verb("result", (
    *opt.JOBS, opt.OUTPUT,
    opt.FOLLOW.but(help="print the output as it comes, until the job ends (default: what there is now)"),
    opt.FOLLOW_TIMEOUT,
    opt.JSON.but(help="print message, artifacts, validation, duration and attempts as JSON (default: the message)"),
), result),)  # fmt: skip
