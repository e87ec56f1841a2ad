"""session create | stop | resume | prune, and the table of all session actions."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections import Counter

from baton.adapters import find_agent
from baton.adapters.contract import Mode
from baton.cli import options as opt
from baton.cli import session_view
from baton.cli.options import parse_duration
from baton.cli.output import counted, json_text, say
from baton.cli.parser import Verb, read_text
from baton.config import Settings
from baton.core.errors import InvalidValue, UsageError
from baton.core.fields import one_line, printable
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.session import Session


def create(options: argparse.Namespace, settings: Settings) -> int:
    from baton.sessions.launch import create_session

    agent, workdir, prompt, job = options.agent, options.workdir, options.prompt, None
    if options.job is not None:
        if prompt is not None:
            raise UsageError("--job has its own prompt; leave --prompt out")
        with open_jobs(settings) as jobs:
            job = jobs.get_job(options.job)
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
    return 0


def stop(options: argparse.Namespace, settings: Settings) -> int:
    from baton.sessions.stop import StopMode, stop_session

    if not 0 <= options.grace <= 3600:
        raise InvalidValue("--grace", "must be from 0 to 3600 seconds")
    # When the command runs inside the session, its terminal closes before everything is recorded.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with open_jobs(settings) as jobs:
        stopped = stop_session(
            settings,
            Inventory(settings),
            jobs,
            options.name,
            mode=StopMode(options.mode),
            reason=one_line(options.reason, 200),
            capture_id=options.capture_id,
            grace_sec=options.grace,
        )
    session = stopped.session
    if options.json:
        ended = [{"pid": process.pid, "command": process.command} for process in stopped.ended]
        print(json_text(session.record() | {"ended": ended}, indent=2))
        return 0
    print(printable(session.conversation_id or "-") if options.capture_id else f"{session.name}\t{session.state}")
    if stopped.ended:
        processes = ", ".join(f"{process.command} ({process.pid})" for process in stopped.ended)
        say(f"ended {len(stopped.ended)} process{'es' if len(stopped.ended) > 1 else ''}: {processes}")
    return 0


def resume(options: argparse.Namespace, settings: Settings) -> int:
    from baton.sessions.launch import resume_session

    prompt = None if options.prompt is None else read_text("prompt", options.prompt)
    session = resume_session(settings, Inventory(settings), options.name, prompt=prompt)
    if not find_agent(settings, session.agent).keeps_conversation:
        say(f"baton: note: {session.agent} keeps no conversation: it starts again in {session.workdir}")
    _print_started(options, session)
    return 0


def _print_started(options: argparse.Namespace, session: Session) -> None:
    if options.json:
        print(json_text(session.record(), indent=2))
    else:
        print(session.name)
        say(f"attach to it: baton session attach {session.name}")


def prune(options: argparse.Namespace, settings: Settings) -> int:
    from baton.sessions.prune import Verdict, prune_sessions

    inventory = Inventory(settings)
    before_ns = time.time_ns() - parse_duration("--older-than", options.older_than)
    shown, counts, failed = [], Counter[str](), False
    for each in prune_sessions(
        inventory, settings.host, before_ns, stopped_too=options.stopped, dry_run=options.dry_run
    ):
        counts[each.verdict] += 1
        if each.error is not None:
            failed = True
            say(f"baton: {each.error}; the next prune tries again")
        if options.json:
            shown.append({"session_id": each.session_id, "name": each.name, "verdict": each.verdict})
        elif options.dry_run and each.verdict in (Verdict.ENDED, Verdict.ORPHAN):
            print(f"would remove\t{each.name or '-'}\t{each.session_id}")
    ended, orphans = counted(counts[Verdict.ENDED], "session"), counts[Verdict.ORPHAN]
    with_orphans = f", and {counted(orphans, 'folder')} without a session" if orphans else ""
    if options.json:
        print(json_text(shown, indent=2))
    elif options.dry_run:
        say(f"would remove {ended}{with_orphans}; their archive stays in {inventory.home}")
    else:
        print(f"removed {ended}{with_orphans}; their archive stays in {inventory.home}")
    if counts[Verdict.RESUMABLE]:
        say(f"kept {counts[Verdict.RESUMABLE]} that can be resumed; --stopped removes them too")
    if counts[Verdict.ALIVE]:
        say(f"kept {counts[Verdict.ALIVE]} whose process is alive, or cannot be checked from this host")
    return 1 if failed else 0


_ACTIONS = (
    Verb("create", (
        opt.NAME, opt.AGENT, opt.WORKDIR.but(default="."),
        opt.JOB_ID.but(help="run this pending job; the session ends with it (default: none)"),
        opt.FIRST_PROMPT,
        opt.HEADLESS.but(default=False, help="run one task without questions, then end"),
        opt.YOLO.but(default=False), opt.REPLACE, opt.TMUX_SOCKET,
    ), create, "start an agent in a new tmux session"),
    Verb("stop", (
        opt.NAME, opt.STOP_MODE,
        opt.REASON.but(default="", help="record this reason in the archive (default: none)"),
        opt.CAPTURE_ID, opt.GRACE,
    ), stop, "stop a session and every process its agent started; its conversation is kept"),
    Verb("resume", (opt.NAME, opt.FIRST_PROMPT), resume,
         "start the agent of an ended session again, with its conversation"),
    Verb("list", (opt.ALL,), session_view.list_sessions, "show sessions and whether they are alive"),
    Verb("show", (opt.NAME,), session_view.show, "print everything about a session"),
    Verb("attach", (opt.NAME, opt.READ_ONLY), session_view.attach,
         "attach the terminal to a session (leave with Ctrl-b d; inside your own tmux, Ctrl-b Ctrl-b d)"),
    Verb("send", (opt.NAME, opt.TEXT, opt.NO_ENTER, opt.KEY), session_view.send, "type a text into a session"),
    Verb("capture", (opt.NAME, opt.LINES), session_view.capture, "print what a session shows"),
    Verb("prune", (
        opt.OLDER_THAN.but(default="30d", help="remove sessions that ended this long ago (default: 30d)"),
        opt.STOPPED, opt.DRY_RUN,
    ), prune, "remove sessions that ended long ago; their archive is kept"),
)  # fmt: skip
VERBS = (
    Verb("session", (opt.JSON,), actions=_ACTIONS),
    Verb("attach", (*opt.JOB, opt.READ_ONLY), session_view.attach_job),
)
