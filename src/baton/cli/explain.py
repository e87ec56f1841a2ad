"""explain: show what a job is doing, the rule that decided it, and every fact behind it."""

from __future__ import annotations

import time

from baton.cli import options as opt
from baton.cli.jobs import each_job
from baton.cli.options import jobs_of
from baton.cli.output import ago, json_text, on_terminal, print_table, say
from baton.cli.parser import Options, Verb
from baton.cli.terminal import terminal_width
from baton.config import Settings
from baton.core.clock import SECOND_NS, duration_text, parse_time
from baton.core.fields import first_line, one_line
from baton.core.job import Job, Status
from baton.core.outline import run_text
from baton.core.value import Any
from baton.delegation.looking import settle_lost
from baton.jobs.verbs import Jobs, open_jobs
from baton.sessions.explanation import explain_job
from baton.sessions.inventory import Inventory

_LONGEST = 1000


def explain(options: Options, settings: Settings) -> int:
    with open_jobs(settings) as jobs:
        settle_lost(settings, jobs, say)
        found, code = each_job(jobs, jobs_of(options), lambda job_id: _explain(settings, jobs, jobs.get_job(job_id)))
    if options.json:
        print(json_text(found if len(jobs_of(options)) > 1 else found[0], indent=2))
        return code
    for number, each in enumerate(found):
        if number:
            print()
        _print(each)
    return code


def _explain(settings: Settings, jobs: Jobs, job: Job) -> dict[str, Any]:
    explained = explain_job(settings, jobs, job)
    if job.status is Status.PENDING and not job.is_blocked:
        from baton.delegation.attempts import describe_orphan

        note = describe_orphan(job, settings.host, Inventory(settings))
        explained["note"] = note or explained["note"]
    return explained


def _print(explained: dict[str, Any]) -> None:
    now_ns = time.time_ns()
    since = f" since {_ago(explained['since'], now_ns)}" if explained["since"] else ""
    ending = explained["ending"]
    known = "the runner of its session" if explained["known_by"] == "runner" else "the registry alone"
    lines = [
        ("job", f"{explained['job_id']} {explained['title'] or ''}"),
        ("ended", ending and f"{ending} (attempt {explained['attempt']})"),
        ("activity", not ending and f"{explained['state']}{since} (attempt {explained['attempt']})"),
        ("agent", run_text(explained)),
        ("cause", not ending and first_line(explained["cause"] or "")),
        ("rule", explained["rule"]),
        (
            "known by",
            not ending
            and (known if explained["known_by"] == "registry" else f"{known}, {_ago(explained['at'], now_ns)}"),
        ),
        ("note", explained["note"]),
    ]
    lines += [("request", f"{each['request_id']}: {each['summary']}") for each in explained["requests"]]
    lines += [("limit", _limit(each)) for each in explained["limits"]]
    lines += [("channel", f"{name}: {_text(value)}") for name, value in explained["channel"].items()]
    for name, text in lines:
        if text:
            print(_wrap(f"{name:<9} {one_line(str(text), _LONGEST)}"))
    if explained["facts"]:
        print()
        # On a terminal, the longest text comes last: it has the rest of the line.
        columns = ("fact", "age", "source", "value") if on_terminal() else ("fact", "value", "source", "age")
        facts = [each | {"age": _age(each["age_sec"])} for each in explained["facts"]]
        rows = [[_text(each[column]) for column in columns] for each in facts]
        print_table([column.upper() for column in columns], rows)


def _wrap(line: str) -> str:
    """Return the line in the width of the terminal; in a pipe, as it is."""
    if not on_terminal():
        return line
    from textwrap import fill

    return fill(line, max(terminal_width(), 30), subsequent_indent=" " * 10, break_on_hyphens=False)


def _limit(each: dict[str, Any]) -> str:
    if each["sec"] is None:
        return f"no {each['limit']}"
    left = "" if each["left_sec"] is None else f", {_age(each['left_sec'])} left"
    return f"{each['limit']} {each['sec']} s: {each['clock']}{left}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json_text(value)


def _age(seconds: float | None) -> str:
    return "" if seconds is None else duration_text(int(seconds * SECOND_NS))


def _ago(moment: object, now_ns: int) -> str:
    try:
        return ago(parse_time(str(moment)), now_ns)
    except ValueError:
        return str(moment)


VERBS = (Verb("explain", (*opt.JOBS, opt.JSON), explain),)
