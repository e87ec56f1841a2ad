"""logs: print, follow, list and verify the audit logs of jobs."""

import math
import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from baton.cli import options as opt
from baton.cli.jobs import each_of
from baton.cli.options import jobs_of, parse_since
from baton.cli.output import STATUS_COLOURS, ago, counted, json_text, on_terminal, print_table, say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.awake_clock import AwakeClock
from baton.core.clock import SECOND_NS, format_micros, parse_time
from baton.core.errors import AmbiguousId, BatonError, InvalidValue, JobNotFound, RegistryUnavailable, UsageError
from baton.core.fields import check_id_beginning, one_line
from baton.core.job import TERMINAL
from baton.history import log as read
from baton.history.follow import GrowingLog
from baton.history.position import read_position
from baton.history.verify import foreign_text, verify_log
from baton.jobs.verbs import Jobs, open_jobs

_POLL_SEC = 0.2
_LOG_SEC = 1.0


def logs(options: Options, settings: Settings) -> int:
    since_ns = None if options.since is None else parse_since("--since", options.since, time.time_ns())
    _check_options(options)
    if options.list:
        _list(settings, since_ns, as_json=options.json)
        return 0
    typed = jobs_of(options)
    job_ids, code = each_of(typed, lambda each: _find_log(each, settings, complete=not options.verify))
    if options.verify:
        return max([code, *(_verify(job_id, settings, as_json=options.json) for job_id in job_ids)])
    printer = _Printer(since_ns, name_jobs=len(typed) > 1, as_json=options.json)
    if options.follow:
        return _follow(settings, job_ids, printer, options) or code
    for job_id in job_ids:
        lines = list(read.iter_logged_events(job_id, settings.logs_dir))
        printer.show(job_id, lines[-options.tail :] if options.tail else lines)
    return code


def _check_options(options: Options) -> None:
    if options.tail is not None and options.tail < 1:
        raise InvalidValue("--tail", "must be at least 1")
    if options.list and (options.ids or options.job or options.verify or options.tail or options.follow):
        raise UsageError("--list shows all logs; leave out the IDs, --verify, --tail and --follow")
    if options.verify and (options.follow or options.tail or options.since is not None):
        raise UsageError("--verify checks the whole log; leave out --follow, --tail and --since")


def _find_log(typed: str, settings: Settings, *, complete: bool) -> str:
    """Return the id of a job that has a log. `complete`: first add the last change, if it is missing there."""
    job_id = _full_id(typed, settings)
    if complete:
        _fill_gap(job_id, settings)
    if not os.path.isdir(read.job_log_path(job_id, settings.logs_dir)):
        raise _no_log(job_id, settings)
    return job_id


class _Printer:
    """Prints lines of logs; with `name_jobs`, each with the id of its job."""

    def __init__(self, since_ns: int | None, *, name_jobs: bool, as_json: bool) -> None:
        self._since_ns = since_ns
        self._name_jobs = name_jobs
        self._as_json = as_json

    def show(self, job_id: str, lines: Iterable[dict[str, Any]]) -> None:
        for line in lines:
            if self._since_ns is not None and _time_of(line) < self._since_ns:
                continue
            if self._as_json:
                print(json_text({"job_id": job_id} | line if self._name_jobs else line))
            else:
                print(f"{job_id}  {readable(line)}" if self._name_jobs else readable(line))


def _time_of(line: dict[str, Any]) -> int:
    try:
        return parse_time(str(line.get("ts") or line.get("timestamp")))
    except ValueError:
        return 0


def _full_id(typed: str, settings: Settings) -> str:
    """Return the id of a job, which may be shortened. Its log may be all that is left of the job."""
    if os.path.isdir(os.path.join(settings.logs_dir, check_id_beginning(typed))):
        return typed
    found = {*read.find_logged_jobs(typed, settings.logs_dir), *_ids_in_registry(typed, settings)}
    if len(found) > 1:
        status = {each: read.read_logged_status(each, settings.logs_dir) for each in sorted(found)}
        raise AmbiguousId(typed, [f"{each} ({status[each] or 'no log'})" for each in status])
    if not found:
        raise _no_log(typed, settings)
    return found.pop()


def _ids_in_registry(typed: str, settings: Settings) -> list[str]:
    try:
        with open_jobs(settings) as jobs:
            return jobs.registry.find_ids(typed)
    except BatonError:
        return []  # a log can be read without the registry


def _no_log(job_id: str, settings: Settings) -> BatonError:
    return BatonError(f"no audit log of job {job_id} in {settings.logs_dir}; `baton logs --list` shows all")


def _follow(settings: Settings, job_ids: Sequence[str], printer: _Printer, options: Options) -> int:
    """Print the lines of the logs as they are added, until every job has ended."""
    growing = [GrowingLog(job_id, settings.logs_dir) for job_id in job_ids]
    clock = AwakeClock()
    began_ns, timeout_sec = clock.monotonic_ns(), options.timeout or math.inf
    reader = select.poll()
    reader.register(1, 0)  # poll always reports that the other end of a pipe is closed
    if options.tail:
        for log in growing:
            printer.show(log.job_id, deque(log.new_lines(), options.tail))
    with open_jobs(settings) as jobs:
        ending: dict[str, float] = {}
        while growing:
            for log in list(growing):
                ended = _has_ended(jobs, log.job_id, ending)  # before the lines are read: then all of them are
                printer.show(log.job_id, log.new_lines())
                if ended:
                    growing.remove(log)
            sys.stdout.flush()
            if growing and clock.monotonic_ns() - began_ns >= timeout_sec * SECOND_NS:
                say(f"baton: timed out: {options.timeout:g} s have passed")
                return 2
            if growing and reader.poll(_POLL_SEC * 1000):
                raise BrokenPipeError
    return 0


def _has_ended(jobs: Jobs, job_id: str, ending: dict[str, float]) -> bool:
    """Return whether the job has ended and its log is complete. `ending`: when each job was first found ended; the
    process that ended it writes the log next, or was killed."""
    try:
        job = jobs.get_job(job_id)
        if job.status not in TERMINAL:
            return False
        position = read_position(job_id, jobs.logs_dir)
        if position is not None and position.status is job.status and position.seq >= job.last_seq:
            return True
        if time.monotonic() - ending.setdefault(job_id, time.monotonic()) < _LOG_SEC:
            return False
        jobs.fill_gap(job_id)
    except JobNotFound:
        return True  # it was pruned, or its registry is another: nothing tells when it ends
    except RegistryUnavailable:
        return read.read_logged_status(job_id, jobs.logs_dir) in TERMINAL
    return True


def _fill_gap(job_id: str, settings: Settings) -> None:
    """Add the last change to the log, if a process was killed between the registry and the log."""
    try:
        with open_jobs(settings) as jobs:
            jobs.fill_gap(job_id)
    except BatonError:
        return  # a log can be read without the registry


def _list(settings: Settings, since_ns: int | None, *, as_json: bool) -> None:
    rows, colours, now_ns = [], [], time.time_ns()
    for changed_ns, job_id in read.logged_changes(settings.logs_dir):
        if since_ns is not None and changed_ns < since_ns:
            continue
        status = read.read_logged_status(job_id, settings.logs_dir) or "?"
        meta = read.read_logged_meta(job_id, settings.logs_dir) or {}
        changed = format_micros(changed_ns)
        if as_json:
            print(json_text({"job_id": job_id, "status": status, "changed_at": changed}))
        when = ago(changed_ns, now_ns) if on_terminal() else changed
        rows.append((job_id, status, when, one_line(str(meta.get("prompt", "")), 200)))
        colours.append(STATUS_COLOURS.get(status))
    if rows and not as_json:
        print_table(("ID", "STATUS", "CHANGED", "PROMPT"), rows, colours)
    elif on_terminal() and not as_json:
        say(f"no audit logs in {settings.logs_dir}{'' if since_ns is None else ' since then'}")


def _verify(job_id: str, settings: Settings, *, as_json: bool) -> int:
    verdict = verify_log(job_id, settings.logs_dir)
    foreign = 0 < verdict.lines == verdict.foreign
    if as_json:
        print(json_text({"job_id": job_id} | {name: getattr(verdict, name) for name in verdict.__slots__}))
    elif verdict.damage:
        say(f"baton: the audit log of {job_id} was tampered with: {'; '.join(verdict.damage)}")
    elif foreign:
        text = foreign_text(verdict.foreign)
        say(f"baton: the audit log of {job_id} cannot be verified: {text}, without hashes")
    else:
        for note in verdict.notes:
            say(f"baton: note: {note}")
        print(f"{job_id}: {counted(verdict.lines, 'line')}, unbroken")
    return 1 if verdict.damage or foreign else 0


def readable(line: dict[str, Any]) -> str:
    """Return a line of an audit log as text for people."""
    moment = str(line.get("ts") or line.get("timestamp", "?"))[:23].removesuffix("Z") + "Z"
    words = []
    if "from" in line and "to" in line:
        words.append(f"{line['from']} → {line['to']}")
        if line.get("attempt"):
            words.append(f"attempt {line['attempt']}")
        words += [str(line[key]) for key in ("claimed_by", "reason") if line.get(key)]
    if isinstance(payload := line.get("payload"), dict):
        words.append(f"#{payload.get('seq')} {payload.get('event')}")
        if payload.get("detail"):
            words.append(str(payload["detail"]))
    if line.get("event") == "received":
        words.append(f"#{line.get('seq')} {line.get('name')}")
    if line.get("event") == read.CONTINUED and isinstance(line.get("lines"), int):
        words.append(foreign_text(line["lines"]))
    if line.get("event") == "rejected":
        words.append(str(line.get("reason")))
    if line.get("event") == "validated":
        problems = line.get("problems")
        words.append("ok" if line.get("ok") else "; ".join(map(str, problems if isinstance(problems, list) else ())))
    if line.get("detail"):
        words.append(str(line["detail"]))
    details = "  ".join(one_line(word, 400) for word in words if word)
    return f"{one_line(moment)}  {one_line(str(line.get('event', '?'))):<14}  {details}".rstrip()


VERBS = (Verb("logs", (
    *opt.JOBS, opt.TAIL, opt.FOLLOW, opt.FOLLOW_TIMEOUT, opt.LOG_SINCE,
    opt.JSON.but(help="print the lines as stored: a JSON object each (default: text)"),
    opt.LIST_LOGS, opt.VERIFY,
), logs),)  # fmt: skip
