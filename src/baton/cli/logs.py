"""logs: print and verify the audit logs of jobs."""

import argparse
import os
from typing import Any

from baton.cli import options as opt
from baton.cli.options import job_of
from baton.cli.output import STATUS_COLOURS, counted, json_text, on_terminal, print_table, say
from baton.cli.parser import Verb
from baton.config import Settings
from baton.core.errors import AmbiguousId, AuditDamaged, BatonError, InvalidValue, UsageError
from baton.core.fields import check_id_beginning, one_line
from baton.history import log as read
from baton.history.verify import foreign_text, verify_log
from baton.jobs.verbs import open_jobs


def logs(options: argparse.Namespace, settings: Settings) -> int:
    if options.tail is not None and options.tail < 1:
        raise InvalidValue("--tail", "must be at least 1")
    if options.list:
        if options.id or options.job or options.verify or options.tail:
            raise UsageError("--list shows all logs; leave out the ID, --verify and --tail")
        _list(settings, options)
        return 0
    job_id = _full_id(job_of(options), settings)
    if not options.verify:  # verify the log as it is
        _fill_gap(job_id, settings)
    if not os.path.isdir(read.job_log_path(job_id, settings.logs_dir)):
        raise _no_log(job_id, settings)
    if options.verify:
        return _verify(job_id, settings, as_json=options.json)
    lines = list(read.iter_logged_events(job_id, settings.logs_dir))
    for line in lines[-options.tail :] if options.tail else lines:
        print(json_text(line) if options.json else readable(line))
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


def _fill_gap(job_id: str, settings: Settings) -> None:
    """Add the last change to the log, if a process was killed between the registry and the log."""
    try:
        with open_jobs(settings) as jobs:
            jobs.fill_gap(job_id)
    except BatonError:
        return  # a log can be read without the registry


def _list(settings: Settings, options: argparse.Namespace) -> None:
    rows, colours = [], []
    for job_id in read.list_logged_jobs(settings.logs_dir):
        status = read.read_logged_status(job_id, settings.logs_dir) or "?"
        meta = read.read_logged_meta(job_id, settings.logs_dir) or {}
        if options.json:
            print(json_text({"job_id": job_id, "status": status}))
        rows.append((job_id, status, one_line(str(meta.get("prompt", "")), 200)))
        colours.append(STATUS_COLOURS.get(status))
    if rows and not options.json:
        print_table(("ID", "STATUS", "PROMPT"), rows, colours)
    elif on_terminal() and not options.json:
        say(f"no audit logs in {settings.logs_dir}")


def _verify(job_id: str, settings: Settings, *, as_json: bool) -> int:
    verdict = verify_log(job_id, settings.logs_dir)
    if as_json:
        print(json_text({"job_id": job_id} | {name: getattr(verdict, name) for name in verdict.__slots__}))
        return 1 if verdict.damage or 0 < verdict.lines == verdict.foreign else 0
    if verdict.damage:
        raise AuditDamaged(f"the audit log of {job_id} was tampered with: {'; '.join(verdict.damage)}")
    if 0 < verdict.lines == verdict.foreign:
        text = foreign_text(verdict.foreign)
        raise BatonError(f"the audit log of {job_id} cannot be verified: {text}, without hashes")
    for note in verdict.notes:
        say(f"baton: note: {note}")
    print(f"{job_id}: {counted(verdict.lines, 'line')}, unbroken")
    return 0


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
    *opt.JOB, opt.TAIL,
    opt.JSON.but(help="print the lines as stored: a JSON object each (default: text)"),
    opt.LIST_LOGS, opt.VERIFY,
), logs),)  # fmt: skip
