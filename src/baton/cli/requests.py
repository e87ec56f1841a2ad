"""requests, approve, deny, answer: show what agents ask, and answer it."""

from __future__ import annotations

import sys
import time

from baton.cli import options as opt
from baton.cli.homes import OF_OTHERS, all_homes, short_folder, this_home
from baton.cli.jobs import each_of
from baton.cli.output import age, ago, ask, counted, drop_typed, json_text, on_terminal, print_table, say
from baton.cli.parser import Options, Verb
from baton.cli.request_view import how_to_answer
from baton.config import Settings
from baton.core.clock import format_micros, parse_time
from baton.core.errors import BatonError, UsageError
from baton.core.fields import one_line, visible
from baton.core.outline import WAITING, reason_of
from baton.core.request import DENIED, Answer, Request, RequestKind, RequestState, notes
from baton.core.rules import ALLOW, DENY
from baton.jobs.requests import (
    EVIDENCE_SEC,
    answer_by_hand,
    call_lines,
    choose,
    find_request,
    list_at_screens,
    outcome,
    public_record,
    since_ns,
    wait_for_use,
)
from baton.jobs.verbs import Jobs, open_jobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from baton.cli.homes import Home
    from baton.core.job import Job
    from baton.core.outline import Outline

_LOOK_SEC = 0.5
_LIST_SEC = 5.0  # a request also closes by time, without a write
_MOST = 1000
_DONE = {ALLOW: "allowed", DENY: "denied"}


class _Found:
    """A request in one of the user's homes, with its job, if that can be read."""

    def __init__(self, home: Home, request: Request, job: Job | None) -> None:
        self.request = request
        self.folder = home.folder
        self.agent = job.agent if job is not None else "-"
        self.title = job.title or job.prompt if job is not None else ""

    def record(self, *, with_folder: bool) -> dict[str, object]:
        record = public_record(self.request, self.agent)
        return record | {"folder": self.folder} if with_folder else record


def requests(options: Options, settings: Settings) -> None:
    if options.id is not None:
        if options.all_homes or options.follow or options.all:
            raise UsageError("with a request ID, leave out --all-homes, --follow and --all")
        _show_one(options, settings)
        return
    homes = all_homes(options, settings) if options.all_homes else [this_home(settings)]
    try:
        if options.follow:
            _follow(homes, options)
            return
        found = _find(homes, open_only=not options.all)
        if options.json:
            print(json_text([each.record(with_folder=options.all_homes) for each in found], indent=2))
            return
        at_screens = [each for home in homes for each in _at_screens_of(home)]
        if found or at_screens or not on_terminal():
            if found:
                _print(found, options)
            _print_at_screens(at_screens, options)
        else:
            where = counted(len(homes), "home") if options.all_homes else f"{homes[0].jobs.place}; {OF_OTHERS}"
            say(f"no {'' if options.all else 'open '}requests in {where}")
    finally:
        for home in homes:
            home.jobs.registry.close()


def _find(homes: Sequence[Home], *, open_only: bool) -> list[_Found]:
    """Return the requests of all homes, oldest first. Name each home that cannot be read."""
    return _oldest_first([each for home in homes for each in _find_in(home, open_only=open_only)])


def _find_in(home: Home, *, open_only: bool) -> list[_Found]:
    found = []
    with home.skipping():
        known: dict[str, Job | None] = {}
        for request in home.jobs.registry.list_requests(open_only=open_only, limit=_MOST):
            if request.job_id not in known:
                known[request.job_id] = _job(home.jobs, request.job_id)
            found.append(_Found(home, request, known[request.job_id]))
        home.release()
    return found


def _at_screens_of(home: Home) -> list[tuple[str, Outline]]:
    """Return the jobs of a home whose agents wait at their own screens, each with the folder."""
    found: list[tuple[str, Outline]] = []
    with home.skipping():
        found = [(home.folder, job) for job in list_at_screens(home.jobs)]
        home.release()
    return found


def _print_at_screens(found: Sequence[tuple[str, Outline]], options: Options) -> None:
    """Print what agents ask at their own screens. In a pipe these are rows as those of requests, without an id."""
    if not found:
        return
    now_ns = time.time_ns()
    what = f"at their screens, where no command answers them: {counted(len(found), 'job')}"
    print(what) if on_terminal() else say(what)
    rows = []
    for folder, job in found:
        asked = age(since_ns(job), now_ns) if on_terminal() else format_micros(since_ns(job))
        where = [short_folder(folder) if on_terminal() else folder] if options.all_homes else []
        state = ["open"] if options.all and not on_terminal() else []
        row = [asked, job.job_id, job.agent, *state, *where, one_line(reason_of(job, WAITING), 400)]
        rows.append(row if on_terminal() else ["-", "screen", *row])
    headings = ["AGE", "JOB", "AGENT", *(["FOLDER"] if options.all_homes else []), "ASKS"]
    print_table(headings, rows, ["bold yellow"] * len(rows))


def _oldest_first(found: Sequence[_Found]) -> list[_Found]:
    return sorted(found, key=lambda each: (parse_time(each.request.asked_at), each.request.request_id))


def _job(jobs: Jobs, job_id: str) -> Job | None:
    try:
        return jobs.get_job(job_id)
    except BatonError:
        return None  # `baton list` names a record that cannot be read


def _print(found: Sequence[_Found], options: Options) -> None:
    now_ns = time.time_ns()
    headings = ["ID", "KIND", "AGE", "JOB", "AGENT", *(["STATE"] if options.all or options.follow else [])]
    rows = []
    for each in found:
        request = each.request
        asked = age(parse_time(request.asked_at), now_ns) if on_terminal() else request.asked_at
        row = [request.request_id, request.kind.value, asked, request.job_id, each.agent]
        row += [_state(request)] if options.all or options.follow else []
        row += [short_folder(each.folder) if on_terminal() else each.folder] if options.all_homes else []
        rows.append([*row, request.summary if request.exact else f"(not exact) {request.summary}"])
    headings += ["FOLDER", "ASKS"] if options.all_homes else ["ASKS"]
    print_table(headings, rows, ["bold yellow" if each.request.state is RequestState.OPEN else None for each in found])


def _state(request: Request) -> str:
    return (
        _DONE.get(request.answer or "", "answered") if request.state is RequestState.ANSWERED else request.state.value
    )


def _follow(homes: Sequence[Home], options: Options) -> None:
    """Print each request when it opens, and again when it closes, until interrupted."""
    shown: dict[tuple[str, str], _Found] = {}
    followed = [_Followed(home) for home in homes]
    while True:
        if any([each.look() for each in followed]):  # noqa: C419  each of them looks
            open_now = _oldest_first([found for each in followed for found in each.open])
            found = {(each.folder, each.request.request_id): each for each in open_now}
            closed = [key for key in shown if key not in found]
            news = [each for key, each in found.items() if key not in shown]
            news += [each for key in closed if (each := _again(homes, shown.pop(key))) is not None]
            shown |= found
            if options.json:
                for each in news:
                    print(json_text(each.record(with_folder=options.all_homes)), flush=True)
            elif news:
                _print(news, options)
        time.sleep(_LOOK_SEC)


class _Followed:
    """The open requests of one home. It is read again when it has changed."""

    def __init__(self, home: Home) -> None:
        self.open: list[_Found] = []
        self._home = home
        self._stamp: object = None
        self._read_at = 0.0

    def look(self) -> bool:
        """Return whether the home was read again."""
        try:
            stamp = self._home.jobs.registry.answers_stamp()
            self._home.release()
        except (BatonError, OSError) as error:
            if self._home.alone:
                raise
            stamp = str(error)  # the read below names this home, once
        is_old = bool(self.open) and time.monotonic() - self._read_at > _LIST_SEC
        if stamp is not None and stamp == self._stamp and not is_old:
            return False
        self._stamp, self._read_at = stamp, time.monotonic()
        self.open = _find_in(self._home, open_only=True)
        return True


def _again(homes: Sequence[Home], before: _Found) -> _Found | None:
    """Return a request that was open, as it is now."""
    home = next(home for home in homes if home.folder == before.folder)
    with home.skipping():
        before.request = home.jobs.registry.get_request(before.request.request_id)
        return before
    return None


def _show_one(options: Options, settings: Settings) -> None:
    with open_jobs(settings) as jobs:
        request = find_request(jobs, options.id)
        job = _job(jobs, request.job_id)
    if options.json:
        print(json_text(public_record(request, job.agent if job is not None else None), indent=2))
        return
    for line in _lines(request, job):
        print(visible(line))
    if request.state is RequestState.OPEN:
        say(f"to answer: {_commands(request)}")


def _lines(request: Request, job: Job | None) -> Iterator[str]:
    """Yield everything that is known about a request, the whole call at the end."""
    now_ns = time.time_ns()
    about = f" ({job.agent}): {one_line(job.title or job.prompt, 80)}" if job is not None else ""
    subagent = f" by subagent {request.agent_ref}" if request.agent_ref else ""
    yield f"request  {request.request_id}: {request.kind.value}, {request.state.value}"
    yield f"job      {request.job_id}, attempt {request.attempt}{about}"
    yield f"asked    {ago(parse_time(request.asked_at), now_ns)}{subagent}"
    if not request.exact:
        yield f"exact    no: {request.why_inexact}; approve needs --inexact"
    yield from (f"note     {line}" for line in notes(request.replace(exact=True)))
    yield from (f"{name:<8} {value}" for name, value in _answer_lines(request, now_ns))
    yield f"tool     {request.tool}"
    yield from (f"  {line}" for line in call_lines(request.call))
    for number, question in enumerate(request.questions, 1):
        yield f"question {number}: {question.get('question')}"
        yield from (f"  {place}  {choice}" for place, choice in enumerate(question.get("choices") or (), 1))
        if question.get("several"):
            yield "  (several may be chosen, such as 1,2)"


def _answer_lines(request: Request, now_ns: int) -> list[tuple[str, str]]:
    found = []
    if request.answer is not None or request.answered_by is not None:
        by = f" by {request.answered_by}" if request.answered_by else ""
        when = f", {ago(parse_time(request.answered_at), now_ns)}" if request.answered_at else ""
        found.append(("answer", f"{_DONE.get(request.answer or '', 'decided')}{by} (via {request.via}){when}"))
    found += [("choice", f"{question}: {choice}") for question, choice in request.choices.items()]
    if request.rule:
        found.append(("rule", request.rule))
    if request.reason:
        found.append(("reason", request.reason))
    if request.overridden_by:
        found.append(("but", f"the answer was not used: {request.overridden_by}"))
    return found


def _commands(request: Request) -> str:
    if request.screen_only:
        return how_to_answer(request.request_id, request.kind, screen_only=True)
    if request.kind is RequestKind.QUESTION:
        choice = "CHOICE" if len(request.questions) == 1 else "1=CHOICE 2=CHOICE"
        return f"baton answer {request.request_id} {choice}, or baton deny {request.request_id}"
    more = "" if request.exact else " --inexact"
    return f"baton approve {request.request_id}{more}, or baton deny {request.request_id} --reason TEXT"


# -- answering ---------------------------------------------------------------------------------------------------------


def approve(options: Options, settings: Settings) -> int:
    given = Answer(answer=ALLOW, by="", via="cli", scope="job" if options.for_job else "once")

    def find(jobs: Jobs, typed: str) -> Request:
        if not _asks_here():
            return find_request(jobs, typed, to_allow=True)
        request = find_request(jobs, typed)
        if not request.request_id.startswith(typed):
            _confirm(request, _job(jobs, request.job_id), inexact=options.inexact)
        return request

    return _answer_each(options, settings, options.ids, lambda _: given, find, inexact=options.inexact)


def _asks_here() -> bool:
    """Return whether there is a terminal on which the user can be shown a call and asked about it."""
    return all(each is not None and each.isatty() for each in (sys.stdin, sys.stderr))


def _confirm(request: Request, job: Job | None, *, inexact: bool) -> None:
    """Show the whole call that a job asks, and ask the user about it. Raise BatonError for any answer but yes."""
    may_be_allowed = request.kind is not RequestKind.QUESTION and (request.exact or inexact)
    if request.state is not RequestState.OPEN or request.screen_only or not may_be_allowed:
        return  # it is refused, with the reason
    for line in _lines(request, job):
        print(visible(line), file=sys.stderr)
    questions = [f"allow request {request.request_id}?"]
    if request.consent.default_no:  # guard: confirm-default-no
        questions.append("the agent's own default is no; allow it all the same?")
    for question in questions:
        drop_typed()  # what was typed before is not an answer
        if not ask(question):  # guard: approve-by-job-asks
            hint = f"`baton deny {request.request_id}` denies it"
            raise BatonError(f"request {request.request_id} was not answered; {hint}")


def deny(options: Options, settings: Settings) -> int:
    given = Answer(answer=DENY, by="", via="cli", reason=options.reason or DENIED)
    return _answer_each(options, settings, options.ids, lambda _: given)


def answer(options: Options, settings: Settings) -> int:
    def chosen(request: Request) -> Answer:
        choices = choose(request, options.choice, own_words=options.text)
        return Answer(answer=ALLOW, by="", via="cli", choices=choices)

    return _answer_each(options, settings, [options.id], chosen)


def _answer_each(
    options: Options,
    settings: Settings,
    typed: Sequence[str],
    decide: Callable[[Request], Answer],
    find: Callable[[Jobs, str], Request] = find_request,
    *,
    inexact: bool = False,
) -> int:
    """Answer each request that the user named, wait a moment for what becomes of it, and print that. The exit code is 1
    if an approval is not known to be used by then; a denial holds also if the agent has not taken it yet."""
    typed = list(dict.fromkeys(typed))
    with open_jobs(settings) as jobs:

        def one(each: str) -> Request:
            request = find(jobs, each)
            return answer_by_hand(jobs, request.request_id, decide(request), inexact=inexact)

        done, code = each_of(typed, one)
        found = wait_for_use(jobs, [each.request_id for each in done], timeout_sec=EVIDENCE_SEC)
        agents = {each.job_id: job.agent for each in found if (job := _job(jobs, each.job_id)) is not None}
    if options.json:
        records = [public_record(each, agents.get(each.job_id)) for each in found]
        print(json_text(records if len(typed) > 1 else records[0], indent=2))
    for request in found:
        is_denial = request.answer == DENY and request.applied != "no"
        if request.applied != "yes" and not is_denial:  # guard: goes-on-without-evidence
            say(f"baton: request {request.request_id}: {outcome(request)}")
            code = 1
        elif not options.json:
            print(one_line(f"{request.request_id} {outcome(request)}: {request.summary}", 400))
    return code


_ONE = opt.JOB[0].but(help="show this request whole; the id of a job with one open request will do")
_SEVERAL = opt.JOBS[0].but(nargs="+", help="answer these requests; the id of a job with one open request will do")
VERBS = (
    Verb("requests", (
        _ONE,
        opt.ALL.but(help="show closed requests too (default: open ones)"),
        opt.ALL_HOMES.but(help="show the requests of all your folders (default: of this folder)"),
        opt.FOLLOW.but(help="print each request when it opens and when it closes, until interrupted (default: list)"),
        opt.JSON,
    ), requests),
    Verb("approve", (
        _SEVERAL.but(help="allow these requests; the id of a job shows its open request on a terminal and asks"),
        opt.FOR_JOB, opt.INEXACT, opt.JSON,
    ), approve),
    Verb("deny", (
        _SEVERAL, opt.REASON.but(default=None, help="give the agent this reason (default: the user denied this)"),
        opt.JSON,
    ), deny),
    Verb("answer", (_ONE.but(nargs=None, help="answer this question"), opt.CHOICE, opt.OWN_WORDS, opt.JSON), answer),
)  # fmt: skip
