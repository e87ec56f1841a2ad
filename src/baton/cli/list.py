"""list: show jobs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from baton.cli import options as opt
from baton.cli.options import parse_duration
from baton.cli.output import STATUS_COLOURS, ago, json_text, on_terminal, print_table, say
from baton.cli.parser import Verb
from baton.config import Settings
from baton.core.clock import parse_time
from baton.core.fields import one_line
from baton.core.job import Job, agent_name, check_status
from baton.jobs.verbs import Jobs, open_jobs
from baton.registry import other_registry_here
from baton.registry.contract import JobFilter, Page

_SCREEN = 50


def list_jobs(options: argparse.Namespace, settings: Settings) -> None:
    condition = _condition(options)
    with open_jobs(settings) as jobs:
        if (other := other_registry_here(settings)) is not None:
            say(f"baton: note: {other}")
        if options.json:
            _print_json(jobs, condition, options)
        elif on_terminal():
            _print_page(jobs, condition, options)
        else:
            for page in _pages(jobs, condition, options):
                _print_table(page.jobs)


def _condition(options: argparse.Namespace) -> JobFilter:
    now = time.time_ns()
    newer, older = options.newer_than, options.older_than
    return JobFilter(
        statuses=[check_status(each) for each in options.status],
        agent=options.for_agent and agent_name(options.for_agent),
        agent_session=options.agent_session,
        created_from_ns=None if newer is None else now - parse_duration("--newer-than", newer),
        created_until_ns=None if older is None else now - parse_duration("--older-than", older),
    )


def _pages(jobs: Jobs, condition: JobFilter, options: argparse.Namespace) -> Iterator[Page]:
    """Yield the pages up to the limit. Name each invalid record on standard error."""
    after = None
    for page in jobs.pages(condition, limit=options.limit, after=options.after):
        _name_invalid(page)
        yield page
        after = page.next
    if after is not None:
        say(f"there are more jobs: add --after {after}")


def _name_invalid(page: Page) -> None:
    for error in page.bad:
        say(f"baton: skipped {error}")


def _print_json(jobs: Jobs, condition: JobFilter, options: argparse.Namespace) -> None:
    """Print the array page by page: 100,000 jobs need no more memory than one page."""
    separator = "[\n"
    for page in _pages(jobs, condition, options):
        for job in page:
            sys.stdout.write(separator + json_text(job.public(show_secrets=options.show_secrets)))
            separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def _print_page(jobs: Jobs, condition: JobFilter, options: argparse.Namespace) -> None:
    limit = _SCREEN if options.limit is None else options.limit
    page = jobs.list_jobs(condition, limit=limit, after=options.after)
    _name_invalid(page)
    if not page.jobs:
        say(f"no {'other ' if page.bad else ''}jobs in {jobs.registry.where}")
        return
    _print_table(page.jobs)
    if page.next is not None:
        say(f"{len(page.jobs)} shown, there are more jobs: add --after {page.next}")


def _print_table(jobs: Sequence[Job]) -> None:
    rows, now_ns = [], time.time_ns()
    for job in jobs:
        # A private queue of 0.1.0 is shown as `submit` on a terminal.
        queue = "submit" if job.agent_session.startswith("submit:") and on_terminal() else job.agent_session
        created = ago(parse_time(job.created_at), now_ns)
        rows.append((job.job_id, job.status, queue, str(job.attempt), created, one_line(job.prompt, 200)))
    headings = ("ID", "STATUS", "QUEUE", "TRY", "CREATED", "PROMPT")
    print_table(headings, rows, [STATUS_COLOURS[job.status] for job in jobs])


VERBS = (Verb("list", (
    opt.STATUS,
    opt.QUEUE.but(help="show only jobs of this queue (default: all)"),
    # Not "agent": that would be the agent setting.
    opt.AGENT.but(dest="for_agent", help="show only jobs for this agent (default: all)"),
    opt.NEWER_THAN, opt.OLDER_THAN, opt.LIMIT, opt.AFTER, opt.JSON,
    opt.SHOW_SECRETS.but(help="print signing keys and passwords, with --json (default: hidden)"),
), list_jobs),)  # fmt: skip
