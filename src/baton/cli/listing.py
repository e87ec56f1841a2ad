"""list: show what each job is doing, how it ended and why."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import islice

from baton.cli import options as opt
from baton.cli.homes import OF_OTHERS, Home, all_homes, short_folder, this_home
from baton.cli.options import parse_duration, parse_since
from baton.cli.output import STATE_COLOURS, age, counted, json_text, on_terminal, print_table, say
from baton.cli.parser import Options, Verb
from baton.cli.terminal import terminal_width
from baton.config import Settings
from baton.core.clock import format_micros, parse_time
from baton.core.ending import FAILED, ending_of
from baton.core.errors import InvalidValue, UsageError
from baton.core.fields import first_line, one_line
from baton.core.job import TERMINAL, Job, Status, agent_name, check_status
from baton.core.outline import (
    STUCK,
    Outline,
    activity_of,
    is_stuck,
    public_record,
    reason_of,
    state_of,
    without_runner,
)
from baton.core.spending import total_usage, usd_text
from baton.registry.contract import JobFilter, format_cursor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from baton.registry.contract import OutlinePage, Page

    _Found = tuple[int, str, str, Any]  # when it was registered, its id, its folder, and its outline or record

_SCREEN = 50
_NARROW = 72  # columns of a terminal below which the agent is left out
_LONGEST = 1000
_IN_PIPE = ("id", "status", "activity", "agent", "created", "finished", "queue", "title", "reason")
_COST = ("tokens", "cost")
_ON_SCREEN = ("id", "state", "age", "agent", "queue", "folder", "title", "reason")


class _Line:
    """One job of a list."""

    __slots__ = ("activity", "asked", "folder", "job", "now_ns")

    def __init__(self, job: Outline, folder: str, now_ns: int, asked: str = "") -> None:
        """`asked` is the oldest open request of the job: its id and its summary."""
        self.job = job
        self.folder = folder
        self.now_ns = now_ns
        self.asked = asked
        self.activity = activity_of(job, now_ns=now_ns)

    @property
    def state(self) -> str:
        return state_of(self.job, self.activity)

    @property
    def reason(self) -> str:
        return self.asked or reason_of(self.job, self.activity)

    @property
    def stored_reason(self) -> str:
        """Why the job waits, failed or was cancelled, without what is said of every end: programs read it."""
        if self.job.status not in TERMINAL:
            return self.reason
        is_error = self.job.status is Status.ERROR
        stored = self.job.reason or (self.job.detail if is_error else None)
        return "" if self.job.status is Status.COMPLETED else first_line(stored or "")

    @property
    def ending(self) -> str:
        """How the job ended, and what decided that."""
        found = ending_of(self.job)
        return "" if found is None else found.text

    @property
    def place(self) -> int:
        """The place on a terminal: what waits for a person and what runs comes first, then what was not seen yet."""
        if self.activity:
            return 0 if self.activity in ("waiting", "disputed", *STUCK) else 1
        if not self.job.seen:
            return 2 if self.state == FAILED else 3
        return 4


# Each column: its heading, and what it shows of a line; "" for nothing.
_COLUMNS: dict[str, tuple[str, Callable[[_Line], str]]] = {
    "id": ("ID", lambda line: line.job.job_id),
    "status": ("STATUS", lambda line: line.job.status.value),
    "activity": ("ACTIVITY", lambda line: line.activity),
    "state": ("STATE", lambda line: line.state),
    "age": ("AGE", lambda line: age(line.job.created_ns, line.now_ns)),
    "agent": ("AGENT", lambda line: line.job.agent),
    "created": ("CREATED", lambda line: format_micros(line.job.created_ns)),
    "finished": ("FINISHED", lambda line: _moment(line.job.finished_ns)),
    "queue": ("QUEUE", lambda line: line.job.agent_session),
    "title": ("TITLE", lambda line: one_line(line.job.title or line.job.prompt, 200)),
    "reason": ("REASON", lambda line: one_line(line.reason if on_terminal() else line.stored_reason, _LONGEST)),
    "attempt": ("TRY", lambda line: str(line.job.attempt)),
    "ended_by": ("ENDED BY", lambda line: line.job.ended_by or ""),
    "labels": ("LABELS", lambda line: one_line(", ".join(line.job.labels), _LONGEST)),
    "tokens": ("TOKENS", lambda line: _tokens(line.job)),
    "cost": ("USD", lambda line: _cost(line.job)),
    "folder": ("FOLDER", lambda line: one_line(line.folder, _LONGEST)),
    "ending": ("ENDING", lambda line: one_line(line.ending, _LONGEST)),
}


def list_jobs(options: Options, settings: Settings) -> None:
    condition, columns = _condition(options), _chosen_columns(options)
    homes = all_homes(options, settings) if options.all_homes else [this_home(settings)]
    try:
        if options.json:
            _print_json(homes, condition, options)
        elif on_terminal():
            _print_screen(homes, condition, columns, options)
        else:
            more = [*(["folder"] if options.all_homes else []), *(_COST if options.cost else ()), "ending"]
            _print_lines(homes, _list_page(homes, condition, options), columns or [*_IN_PIPE, *more])
    finally:
        for home in homes:
            home.jobs.registry.close()


def _condition(options: Options) -> JobFilter:
    now = time.time_ns()
    since = [] if options.since is None else [parse_since("--since", options.since, now)]
    if options.newer_than is not None:
        since.append(now - parse_duration("--newer-than", options.newer_than))
    older = options.older_than
    return JobFilter(
        statuses=[_status(each) for each in options.status],
        agent=options.for_agent and agent_name(options.for_agent),
        agent_session=options.agent_session,
        created_from_ns=max(since, default=None),
        created_until_ns=None if older is None else now - parse_duration("--older-than", older),
        label=options.label,
        unseen=options.needs_me,
    )


def _status(typed: str) -> Status:
    try:
        return check_status(typed)
    except InvalidValue as error:
        hint = "a job that has failed has the status error; --needs-me shows the jobs that wait for you"
        raise InvalidValue("--status", f"{error.why}; {hint}") from None


def _chosen_columns(options: Options) -> list[str]:
    if options.columns is None:
        return []
    if options.json:
        raise UsageError("--columns is for text; --json prints whole records")
    names = [name.strip() for name in options.columns.split(",")]
    for name in names:
        if name not in _COLUMNS:
            raise UsageError(f"--columns: there is no column {name[:40]!r}; there are {', '.join(_COLUMNS)}")
    return names


# -- which jobs ------------------------------------------------------------------------------------------------------


def _found(home: Home, condition: JobFilter, limit: int | None, after: str | None, *, whole: bool) -> Iterator[_Found]:
    """Yield outlines or `whole` records of one home, newest first. Name what cannot be read. What needs the user is not
    only what has ended unseen: among the running jobs, what waits for an answer or makes no progress."""
    read = home.jobs.pages if whole else home.jobs.outlines
    found = _read(home, read(condition, limit=limit, after=after))
    if not condition.unseen or (condition.statuses and Status.RUNNING not in condition.statuses):
        return found
    running = read(condition.replace(statuses=[Status.RUNNING], unseen=False), after=after)
    return _merge_newest([found, filter(partial(_needs_person, home), _read(home, running, name_bad=False))])


def _needs_person(home: Home, found: _Found) -> bool:
    return is_stuck(found[3], now_ns=time.time_ns()) or found[1] in _oldest_requests(home)


@cache
def _oldest_requests(home: Home) -> dict[str, str]:
    """Return the oldest open request of each job that has one: its id and its summary."""
    found: dict[str, str] = {}
    with home.skipping():
        for each in home.jobs.registry.list_requests():
            found.setdefault(each.job_id, f"{each.request_id}: {each.summary}")
        home.release()
    return found


def _read(home: Home, pages: Iterator[Page | OutlinePage], *, name_bad: bool = True) -> Iterator[_Found]:
    with home.skipping():
        for page in pages:
            for error in page.bad if name_bad else ():
                say(f"baton: skipped {error}{'' if home.alone else f' in {home.folder}'}")
            home.release()
            for job in page.jobs:
                created = parse_time(job.created_at) if isinstance(job, Job) else job.created_ns
                why = home.unsettled.get(job.job_id)
                yield created, job.job_id, home.folder, job if why is None else without_runner(job, why)


def _newest(
    homes: Sequence[Home], condition: JobFilter, limit: int | None, after: str | None, *, whole: bool = False
) -> Iterator[_Found]:
    """Yield the jobs of all homes, newest first."""
    return _merge_newest([_found(home, condition, limit, after, whole=whole) for home in homes])


def _merge_newest(parts: Sequence[Iterator[_Found]]) -> Iterator[_Found]:
    if len(parts) == 1:
        return parts[0]
    import heapq

    return heapq.merge(*parts, reverse=True, key=lambda found: found[:3])


def _list_page(homes: Sequence[Home], condition: JobFilter, options: Options) -> Iterator[_Found]:
    """Yield jobs up to --limit, and say where the list continues."""
    one_more = None if options.limit is None else options.limit + 1
    found = _newest(homes, condition, one_more, options.cursor, whole=options.json)
    last = None
    for last in islice(found, options.limit):
        yield last
    if last is not None and next(found, None) is not None:
        say(f"there are more jobs: add --cursor {format_cursor(*last[:2])}")


# -- how they are shown ----------------------------------------------------------------------------------------------


def _print_json(homes: Sequence[Home], condition: JobFilter, options: Options) -> None:
    """Print the array piece by piece: 100,000 jobs need no more memory than one page."""
    separator = "[\n"
    for _, _, folder, job in _list_page(homes, condition, options):
        record = public_record(job, now_ns=time.time_ns(), show_secrets=options.show_secrets)
        if options.all_homes:
            record["folder"] = folder
        if options.cost:
            record |= {name: total_usage(job.usage)[name] for name in ("tokens", "cost_usd")}
        sys.stdout.write(separator + json_text(record))
        separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def _lines(homes: Sequence[Home], found: Iterable[_Found]) -> Iterator[_Line]:
    by_folder, now_ns = {home.folder: home for home in homes}, time.time_ns()
    for _, job_id, folder, job in found:
        asked = _oldest_requests(by_folder[folder]).get(job_id, "") if job.open_requests else ""
        yield _Line(job, folder, now_ns, asked)


def _print_lines(homes: Sequence[Home], found: Iterable[_Found], columns: Sequence[str]) -> None:
    """Print tab-separated lines, - for nothing."""
    cells = [_COLUMNS[name][1] for name in columns]
    for line in _lines(homes, found):
        sys.stdout.write("\t".join([cell(line) or "-" for cell in cells]) + "\n")


def _print_screen(homes: Sequence[Home], condition: JobFilter, columns: Sequence[str], options: Options) -> None:
    limit = _SCREEN if options.limit is None else options.limit
    if limit < 1:
        raise InvalidValue("limit", "must be at least 1")
    upper = [] if options.cursor is not None else _urgent(homes, condition, limit)
    newest = list(islice(_newest(homes, condition, limit + 1, options.cursor), limit + 1))
    shown = {(folder, job_id) for _, job_id, folder, _ in upper}
    rest = [each for each in newest if (each[2], each[1]) not in shown]
    room = max(limit - len(upper), 0)
    lines = list(_lines(homes, upper[:limit] + rest[:room]))
    if not lines:
        where = counted(len(homes), "home") if options.all_homes else f"{homes[0].jobs.place}; {OF_OTHERS}"
        say(f"no {'such ' if condition != JobFilter(statuses=[]) else ''}jobs in {where}")
        return
    _print_table(sorted(lines, key=lambda line: (line.place, -line.job.created_ns)), columns, options)
    if len(rest) > room or len(newest) > limit:
        last = rest[room - 1] if len(rest) > room and room else newest[-1]
        more = f"add --cursor {format_cursor(*last[:2])}" if room else "raise --limit"
        say(f"{len(lines)} shown, there are more jobs: {more}")


def _urgent(homes: Sequence[Home], condition: JobFilter, limit: int) -> list[_Found]:
    """Return the jobs that run, and those whose end the user has not seen, wherever they are in the list, each once."""
    conditions = [condition.replace(unseen=True)]
    if not condition.unseen and (not condition.statuses or Status.RUNNING in condition.statuses):
        conditions.insert(0, condition.replace(statuses=[Status.RUNNING]))
    found = [each for one in conditions for each in islice(_newest(homes, one, limit, None), limit)]
    return list({each[1:3]: each for each in found}.values())


def _print_table(lines: Sequence[_Line], columns: Sequence[str], options: Options) -> None:
    if not columns:
        columns = [name for name in _ON_SCREEN if name != "folder" or options.all_homes]
        if options.cost:
            columns[3:3] = _COST
        if terminal_width() < _NARROW:
            columns.remove("agent")
        if not any(_has_own_queue(line.job) for line in lines):
            columns.remove("queue")
    rows = [[_shown(name, line) for name in columns] for line in lines]
    # A column in which no job has anything is left out.
    kept = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    headings = [_COLUMNS[columns[number]][0] for number in kept]
    colours = [STATE_COLOURS.get(line.state) for line in lines]
    print_table(headings, [[row[number] for number in kept] for row in rows], colours)


def _shown(name: str, line: _Line) -> str:
    if name == "queue" and not _has_own_queue(line.job):
        return ""
    if name == "folder":
        return short_folder(line.folder)
    return _COLUMNS[name][1](line)


def _has_own_queue(job: Outline) -> bool:
    """Return whether a person chose the queue of the job: it is neither that of the agent nor that of a session."""
    kind, _, name = job.agent_session.partition(":")
    return not (kind in ("submit", "agent") or (kind == "tmux" and agent_name(name) == job.agent))


def _tokens(job: Outline) -> str:
    return str(total_usage(job.usage)["tokens"]) if job.usage else ""


def _cost(job: Outline) -> str:
    """Return the cost of all attempts; "unknown" if that of one is."""
    cost = total_usage(job.usage)["cost_usd"]
    return "" if not job.usage else "unknown" if cost is None else usd_text(cost)


def _moment(ns: int | None) -> str:
    return "" if ns is None else format_micros(ns)


VERBS = (
    Verb("list", (
        opt.STATUS,
        opt.QUEUE.but(help="show only jobs of this queue (default: all)"),
        # Not "agent": that would be the agent setting.
        opt.AGENT.but(dest="for_agent", help="show only jobs for this agent (default: all)"),
        opt.ONE_LABEL, opt.NEEDS_ME, opt.SINCE, opt.NEWER_THAN, opt.OLDER_THAN, opt.ALL_HOMES, opt.COST, opt.COLUMNS,
        opt.LIMIT, opt.CURSOR, opt.JSON,
        opt.SHOW_SECRETS.but(help="print signing keys and passwords, with --json (default: hidden)"),
    ), list_jobs),
)  # fmt: skip
