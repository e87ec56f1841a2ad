"""session create | stop | resume | list | show | attach | send | capture | prune, and attach, send: agents in tmux."""

import os
import signal
import sys
import time
from collections import Counter

from baton.adapters import find_agent
from baton.adapters.contract import Mode
from baton.cli import options as opt
from baton.cli.options import job_and_text, job_of, parse_duration
from baton.cli.output import ago, counted, json_text, on_terminal, print_table, say
from baton.cli.parser import OneOf, Options, Verb, read_text
from baton.config import Settings
from baton.core.clock import parse_time
from baton.core.errors import InvalidValue, SessionGone, TmuxUnavailable, UsageError
from baton.core.fields import one_line, printable
from baton.core.job import TERMINAL, Status
from baton.jobs.verbs import Jobs, open_jobs
from baton.sessions.attach import attach as attach_client
from baton.sessions.attach import client_of
from baton.sessions.inventory import Inventory
from baton.sessions.keyboard import check_text, type_for_job, type_into
from baton.sessions.launch import LAST_SCREEN, check_prompt, create_session, resume_session
from baton.sessions.of_job import named_session, not_here, running_session_of, session_of
from baton.sessions.session import Session, State
from baton.sessions.tmux import TmuxSnapshot, check_keys, live_pane
from baton.storage.files import read_file

_COLOURS = {"running": "green", "stopped": "yellow", "lost": "red"}
_LIFE = {True: "running", False: "lost", None: "unknown"}
_ENDED = {Status.COMPLETED: "completed", Status.ERROR: "failed", Status.CANCELLED: "was cancelled"}


def create(options: Options, settings: Settings) -> None:
    agent, workdir, prompt, job = options.agent, options.workdir, options.prompt, None
    if options.job is not None:
        if prompt is not None:
            raise UsageError("--job has its own prompt; leave --prompt out")
        with open_jobs(settings) as jobs:
            job = jobs.with_id(options.job, jobs.get_job)
        agent = agent or job.agent
        workdir = job.workdir or workdir
    elif options.headless and prompt is None:
        raise UsageError("--headless needs a task: --prompt or --job")
    session = create_session(
        settings,
        Inventory(settings),
        options.name,
        agent=agent or settings.agent,
        workdir=workdir,
        mode=Mode.HEADLESS if options.headless else Mode.INTERACTIVE,
        prompt=None if prompt is None else read_text("prompt", prompt),
        job=job,
        yolo=options.yolo,
        replace=options.replace,
    )
    _print_started(options, session)
    if session.mode is Mode.INTERACTIVE:
        for problem in find_agent(settings, session.agent).startup_blockers(session.workdir, os.environ):
            say(f"baton: note: {problem}")


def stop(options: Options, settings: Settings) -> None:
    from baton.sessions.stop import StopMode, stop_session

    if not 0 <= options.grace <= 3600:
        raise InvalidValue("--grace", "must be from 0 to 3600 seconds")
    # When the command runs inside the session, its terminal closes before everything is recorded.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    inventory = Inventory(settings)
    name = named_session(settings, inventory, options.name).name
    with open_jobs(settings) as jobs:
        stopped = stop_session(
            settings,
            inventory,
            jobs,
            name,
            mode=StopMode(options.mode),
            reason=one_line(options.reason, 200),
            capture_id=options.capture_id,
            grace_sec=options.grace,
        )
    session = stopped.session
    if options.json:
        ended = [{"pid": process.pid, "command": process.command} for process in stopped.ended]
        print(json_text(session.record() | {"ended": ended}, indent=2))
        return
    print(printable(session.conversation_id or "-") if options.capture_id else f"{session.name}\t{session.state}")
    if stopped.ended:
        processes = ", ".join(f"{process.command} ({process.pid})" for process in stopped.ended)
        say(f"ended {len(stopped.ended)} process{'es' if len(stopped.ended) > 1 else ''}: {processes}")


def resume(options: Options, settings: Settings) -> None:
    prompt = None if options.prompt is None else read_text("prompt", options.prompt)
    check_prompt(prompt)
    inventory = Inventory(settings)
    name = named_session(settings, inventory, options.name).name
    session = resume_session(settings, inventory, name, prompt=prompt)
    if not find_agent(settings, session.agent).keeps_conversation:
        say(f"baton: note: {session.agent} keeps no conversation: it starts again in {session.workdir}")
    _print_started(options, session)


def _print_started(options: Options, session: Session) -> None:
    if options.json:
        print(json_text(session.record(), indent=2))
    else:
        print(session.name)
        say(f"attach to it: baton session attach {session.name}")


def prune(options: Options, settings: Settings) -> int:
    from baton.sessions.prune import Verdict, prune_sessions

    inventory = Inventory(settings)
    before_ns = time.time_ns() - parse_duration("--older-than", options.older_than)
    shown, counts, failed = [], Counter[str](), False
    dry_run = options.dry_run
    for each in prune_sessions(
        inventory,
        settings.host,
        before_ns,
        stopped_too=options.stopped,
        invalid_too=options.invalid,
        dry_run=dry_run,
    ):
        counts[each.verdict] += 1
        if each.verdict is Verdict.INVALID and each.error is not None:
            say(f"baton: {one_line(each.error)}")
        elif each.error is not None:
            failed = True
            say(f"baton: {each.error}; the next prune tries again")
        if options.json:
            shown.append({"session_id": each.session_id, "name": each.name, "verdict": each.verdict})
        elif dry_run and each.verdict in (Verdict.ENDED, Verdict.ORPHAN):
            print(f"would remove\t{each.name or '-'}\t{each.session_id}")
    ended, orphans = counted(counts[Verdict.ENDED], "session"), counts[Verdict.ORPHAN]
    with_orphans = f", and {counted(orphans, 'folder')} without a session" if orphans else ""
    text = f"{ended}{with_orphans}; their archive stays in {inventory.home}"
    if dry_run and not options.json:
        say(f"would remove {text}")
    else:
        print(json_text(shown, indent=2) if options.json else f"removed {text}")
    if counts[Verdict.RESUMABLE]:
        say(f"kept {counts[Verdict.RESUMABLE]} that can be resumed; --stopped removes them too")
    if counts[Verdict.ALIVE]:
        say(f"kept {counts[Verdict.ALIVE]} whose process is alive, or cannot be checked from this host")
    return 1 if failed else 0


def list_sessions(options: Options, settings: Settings) -> None:
    inventory = Inventory(settings)
    if options.name is not None:
        sessions = [named_session(settings, inventory, options.name)]
    else:
        sessions = inventory.all() if options.all else inventory.all(State.RUNNING)
    if (note := inventory.note()) is not None:
        say(f"baton: note: {note}")
    for error in inventory.invalid():
        say(f"baton: {one_line(str(error))}")
    tmux = TmuxSnapshot()
    if options.json:
        print(json_text([_shown(session, tmux) for session in sessions], indent=2))
        return
    if not sessions:
        say("no sessions" if options.all else "no running sessions; --all shows ended ones")
        return
    rows, colours, now_ns = [], [], time.time_ns()
    for each in sessions:
        state = _LIFE[_is_alive(each, tmux)] if each.state is State.RUNNING else each.state
        since = ago(parse_time(each.ended_at or each.created_at), now_ns)
        rows.append((each.name, state, each.agent, each.job_id or "-", since, each.reason or each.workdir))
        colours.append(_COLOURS.get(state))
    print_table(("NAME", "STATE", "AGENT", "JOB", "SINCE", "WHERE"), rows, colours)


def _is_alive(session: Session, tmux: TmuxSnapshot) -> bool | None:
    """Return whether the pane of a running session is there; None when its tmux server does not answer."""
    try:
        return tmux.pane_of(session) is not None
    except TmuxUnavailable:
        return None


def show(options: Options, settings: Settings) -> None:
    inventory = Inventory(settings)
    session = named_session(settings, inventory, options.name)
    print(json_text(_shown(session, TmuxSnapshot()) | {"folder": inventory.folder_of(session)}, indent=2))


def _shown(session: Session, tmux: TmuxSnapshot) -> dict[str, object]:
    return session.record() | {"alive": _is_alive(session, tmux) if session.state is State.RUNNING else None}


def attach(options: Options, settings: Settings) -> int:
    session = named_session(settings, Inventory(settings), options.name)
    with open_jobs(settings) as jobs:
        message = _asked_there(jobs, session)
    return _attach_to(session, read_only=options.read_only, message=message)


def _asked_there(jobs: Jobs, session: Session) -> str | None:
    """Return what to say to a person who attaches to a session whose agent waits for an answer: its own screen may show
    nothing of it, as with a subagent in the background."""
    count = len(jobs.registry.list_requests(job_id=session.job_id)) if session.job_id is not None else 0
    if not count:
        return None
    wait = "1 request waits" if count == 1 else f"{count} requests wait"
    return f"{wait} for an answer, perhaps not on this screen: baton requests"


def _attach_to(session: Session, *, read_only: bool, message: str | None) -> int:
    """Replace this process by tmux, attached to the session: it does not return."""
    tmux, _ = live_pane(session)
    if not (sys.stdin.isatty() and on_terminal()):
        raise UsageError("attach needs a terminal; `baton session capture` prints what the session shows")
    client = client_of(tmux, session.name, read_only=read_only)
    notes = [*filter(None, (client.note, message))]
    for note in notes:
        say(f"baton: note: {note}")
    sys.stdout.flush()
    attach_client(client, "; ".join(notes) or None)  # tmux discards what the terminal has not shown yet


def attach_job(options: Options, settings: Settings) -> int:
    """Attach to the session that runs a job, or name what is left of an ended job."""
    with open_jobs(settings) as jobs:
        job = jobs.with_id(job_of(options), jobs.get_job)
        session = session_of(Inventory(settings), job)
        message = None if session is None else _asked_there(jobs, session)
    if session is not None and session.state is State.RUNNING:
        return _attach_to(session, read_only=options.read_only, message=message)
    if job.status not in TERMINAL:
        raise not_here(job)
    when = "" if job.finished_at is None else f" {ago(parse_time(job.finished_at), time.time_ns())}"
    offer = f"`baton result {job.job_id}` shows its answer"
    if session is not None and find_agent(settings, session.agent).keeps_conversation:
        offer += f", `baton session resume {job.job_id}` opens its conversation again"
    raise SessionGone(f"job {job.job_id} {_ENDED[job.status]}{when}: {offer}")


def send(options: Options, settings: Settings) -> None:
    text = _text_to_send(options)
    session = named_session(settings, Inventory(settings), options.name)
    typed = {"text": text, "keys": options.key, "enter": not options.no_enter}
    if session.job_id is None:
        type_into(session, **typed)
    else:
        with open_jobs(settings) as jobs:
            type_for_job(jobs, jobs.get_job(session.job_id), session, **typed)
    _print_sent(session, text, options)


def send_to_job(options: Options, settings: Settings) -> None:
    """Type into the session that runs a job."""
    job_id = job_and_text(options, "text")
    text = _text_to_send(options)
    with open_jobs(settings) as jobs:
        job = jobs.with_id(job_id, jobs.get_job)
        if job.status in TERMINAL:
            more = f"`baton follow-up {job.job_id} TEXT` continues its conversation"
            raise SessionGone(f"job {job.job_id} is {job.status}, so nothing is typed; {more}")
        session = running_session_of(Inventory(settings), job)
        if session is None:
            raise not_here(job)
        type_for_job(jobs, job, session, text=text, keys=options.key, enter=not options.no_enter)
    _print_sent(session, text, options)


def _text_to_send(options: Options) -> str | None:
    """Return the text to type; None for keys."""
    if (options.text is None) == (not options.key):
        raise UsageError("give either a TEXT to type or --key")
    check_keys(options.key)
    text = None if options.key else read_text("text", options.text)
    if text is not None:
        check_text(text)
    return text


def _print_sent(session: Session, text: str | None, options: Options) -> None:
    if options.json:
        sent = {"keys": options.key} if text is None else {"sent": len(text)}
        print(json_text({"session": session.name, "job_id": session.job_id} | sent))


def capture(options: Options, settings: Settings) -> None:
    if options.lines is not None and not 0 < options.lines <= 1_000_000:
        raise InvalidValue("--lines", "must be from 1 to 1000000")
    inventory = Inventory(settings)
    session = named_session(settings, inventory, options.name)
    last = os.path.join(inventory.folder_of(session), LAST_SCREEN)
    if session.state is not State.RUNNING and os.path.exists(last):
        screen = read_file(last).decode(errors="replace")
        say(f"baton: note: session {session.name!r} is {session.state}; this is its last screen")
    else:
        tmux, pane_id = live_pane(session)
        screen = tmux.capture(pane_id, options.lines)
    lines = [printable(line.expandtabs()) for line in screen.rstrip("\n").split("\n")]
    print(json_text({"session": session.name, "lines": lines}) if options.json else "\n".join(lines))


_ACTIONS = (
    Verb("create", (
        opt.NAME.but(help="give the session this name"), opt.AGENT, opt.WORKDIR.but(default="."),
        opt.JOB_ID.but(help="run this pending job; the session ends with it (default: none)"),
        opt.FIRST_PROMPT,
        opt.HEADLESS.but(default=False, help="run one task without a screen, then end (default: interactive)"),
        opt.YOLO.but(default=False), opt.REPLACE, opt.TMUX_SOCKET, opt.ALLOW_PLAINTEXT,
    ), create, "start an agent in a new tmux session"),
    Verb("stop", (
        opt.NAME, OneOf(opt.STOP_MODE, opt.GRACEFUL),
        opt.REASON.but(default="", help="record this reason in the archive (default: none)"),
        opt.CAPTURE_ID, opt.GRACE,
    ), stop, "stop a session and every process its agent started; its conversation is kept"),
    Verb("resume", (opt.NAME, opt.FIRST_PROMPT, opt.ALLOW_PLAINTEXT), resume,
         "start the agent of an ended session again, with its conversation"),
    Verb("list", (
        opt.NAME.but(nargs="?", help="show only this session, or that of the job with this id (default: all)"), opt.ALL,
    ), list_sessions, "show sessions and whether they are alive"),
    Verb("show", (opt.NAME,), show, "print everything about a session"),
    Verb("attach", (opt.NAME, opt.READ_ONLY), attach,
         "attach the terminal to a session (leave with Ctrl-b d; inside your own tmux, Ctrl-b Ctrl-b d)"),
    Verb("send", (opt.NAME, opt.TEXT, opt.NO_ENTER, opt.KEY), send, "type a text into a session"),
    Verb("capture", (opt.NAME, opt.LINES), capture, "print what a session shows"),
    Verb("prune", (
        opt.OLDER_THAN.but(default="30d", help="remove sessions that ended this long ago (default: 30d)"),
        opt.STOPPED, opt.INVALID, opt.DRY_RUN,
    ), prune, "remove sessions that ended long ago; their archive is kept"),
)  # fmt: skip
VERBS = (
    Verb("session", (opt.JSON,), actions=_ACTIONS),
    Verb("attach", (*opt.JOB, opt.READ_ONLY), attach_job),
    Verb("send", (*opt.JOB_AND, opt.TEXT, opt.NO_ENTER, opt.KEY, opt.JSON), send_to_job),
)
