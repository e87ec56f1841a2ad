"""session create | stop | resume | list | show | attach | send | capture | prune"""

from __future__ import annotations

import os
import signal
import sys
import time

from baton.adapters import find_agent
from baton.adapters.contract import Mode
from baton.cli import options as opt
from baton.cli.options import parse_duration
from baton.cli.output import ago, counted, json_text, on_terminal, one_line, print_table, say
from baton.cli.parser import Verb
from baton.cli.prompt import read_text
from baton.core.clock import parse_time
from baton.core.errors import InvalidValue, SessionGone, UsageError
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.launch import LAST_SCREEN
from baton.sessions.session import State
from baton.sessions.tmux import NoServer, Tmux
from baton.storage.files import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any, Final, NoReturn

    from baton.config import Settings
    from baton.sessions.session import Session
    from baton.sessions.tmux import Pane

_COLOURS: Final = {State.RUNNING: "green", State.STOPPED: "yellow"}


# -- create, stop, resume ------------------------------------------------------------------------------------


def _create(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    from baton.sessions.launch import create_session

    agent, workdir, prompt, job = options.agent, options.workdir, options.prompt, None
    if options.job is not None:
        if prompt is not None:
            raise UsageError("--job brings its own prompt; leave --prompt out")
        with open_jobs(settings) as jobs:
            job = jobs.get_job(options.job)
        agent = agent or job.agent
        workdir = job.workdir or workdir
    elif options.headless and prompt is None:
        raise UsageError("--headless needs something to do: --prompt or --job")
    session = create_session(
        settings,
        inventory,
        options.name,
        agent=agent or settings.agent,
        workdir=workdir,
        mode=Mode.HEADLESS if options.headless else Mode.INTERACTIVE,
        prompt=None if prompt is None else read_text("prompt", prompt),
        job=job,
        yolo=options.yolo,
        replace=options.replace,
    )
    _tell(options, session, f"look at it: baton session attach {session.name}")
    if session.mode is Mode.INTERACTIVE:
        for problem in find_agent(settings, session.agent).startup_blockers(session.workdir, os.environ):
            say(f"baton: note: {problem}")
    return 0


def _stop(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    from baton.sessions.stop import StopMode, stop_session

    if not 0 <= options.grace <= 3600:
        raise InvalidValue("--grace", "must be from 0 to 3600 seconds")
    # From inside the session itself: its terminal goes before everything is written down.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with open_jobs(settings) as jobs:
        stopped = stop_session(
            settings,
            inventory,
            jobs,
            options.name,
            mode=StopMode(options.mode),
            reason=one_line(options.reason),
            capture_id=options.capture_id,
            grace_sec=options.grace,
        )
    session = stopped.session
    if options.json:
        shown = session.record() | {"ended": [{"pid": each.pid, "command": each.command} for each in stopped.ended]}
        print(json_text(shown, indent=2))
        return 0
    print(session.conversation_id or "-" if options.capture_id else f"{session.name}\t{session.state}")
    if stopped.ended:
        listed = ", ".join(f"{each.command} ({each.pid})" for each in stopped.ended)
        say(f"ended {len(stopped.ended)} process{'es' if len(stopped.ended) > 1 else ''}: {listed}")
    return 0


def _resume(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    from baton.sessions.launch import resume_session

    prompt = None if options.prompt is None else read_text("prompt", options.prompt)
    session = resume_session(settings, inventory, options.name, prompt=prompt)
    if not find_agent(settings, session.agent).keeps_conversation:
        say(f"baton: note: {session.agent} keeps no conversation: it begins anew in {session.workdir}")
    _tell(options, session, f"look at it: baton session attach {session.name}")
    return 0


# -- looking -------------------------------------------------------------------------------------------------


def _list(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    sessions = inventory.all() if options.all else inventory.all(State.RUNNING)
    panes = _panes(sessions)
    if options.json:
        print(json_text([_shown(session, panes) for session in sessions], indent=2))
        return 0
    if not sessions:
        say("no sessions" if options.all else "no running sessions; --all shows those that have ended")
        return 0
    now_ns = time.time_ns()
    rows = [
        (
            session.name,
            session.state if session.state is not State.RUNNING or _pane_of(session, panes) else "lost",
            session.agent,
            session.job_id or "-",
            ago(parse_time(session.ended_at or session.created_at), now_ns),
            session.reason or session.workdir,
        )
        for session in sessions
    ]
    colours = [_COLOURS.get(row[1], "red" if row[1] == "lost" else None) for row in rows]  # type: ignore[call-overload]
    print_table(("NAME", "STATE", "AGENT", "JOB", "SINCE", "WHERE"), rows, colours)
    return 0


def _show(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    session = inventory.get(options.name)
    print(json_text(_shown(session, _panes([session])) | {"folder": inventory.folder_of(session)}, indent=2))
    return 0


def _panes(sessions: Sequence[Session]) -> dict[tuple[str, str], Pane]:
    """The panes of every tmux server that these sessions are on: one call each."""
    found = {}
    for socket in {session.socket for session in sessions if session.state is State.RUNNING}:
        try:
            found.update({(socket, pane.pane_id): pane for pane in Tmux(socket).panes()})
        except NoServer:
            continue
    return found


def _pane_of(session: Session, panes: dict[tuple[str, str], Pane]) -> Pane | None:
    pane = panes.get((session.socket, session.pane_id or ""))
    return pane if pane is not None and pane.pid == session.pane_pid and not pane.dead else None


def _shown(session: Session, panes: dict[tuple[str, str], Pane]) -> dict[str, Any]:
    alive = _pane_of(session, panes) is not None
    return session.record() | {"alive": alive if session.state is State.RUNNING else None}


# -- talking to it -------------------------------------------------------------------------------------------


def _attach(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    attach_to(options.name, inventory, read_only=options.read_only)


def attach_to(name: str, inventory: Inventory, *, read_only: bool) -> NoReturn:
    session, tmux = _live(name, inventory)
    if not (sys.stdin.isatty() and on_terminal()):
        raise UsageError("attach needs a terminal; `baton session capture` prints what the session shows")
    sys.stdout.flush()
    tmux.attach(session.name, read_only=read_only)


def _send(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    if (options.text is None) == (not options.key):
        raise UsageError("send takes a TEXT to type, or --key")
    text = None if options.key else read_text("text", options.text)
    session, tmux = _live(options.name, inventory)
    if text is None:
        assert session.pane_id is not None
        tmux.press(session.pane_id, options.key)
        return 0
    if "\0" in text:
        raise InvalidValue("text", "must not contain a NUL character")
    assert session.pane_id is not None
    tmux.paste(session.pane_id, text, enter=not options.no_enter)
    if options.json:
        print(json_text({"session": session.name, "sent": len(text)}))
    return 0


def _capture(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    if options.lines is not None and not 0 < options.lines <= 1_000_000:
        raise InvalidValue("--lines", "must be from 1 to 1000000")
    session = inventory.get(options.name)
    last = os.path.join(inventory.folder_of(session), LAST_SCREEN)
    if session.state is not State.RUNNING and os.path.exists(last):
        shown = read_file(last).decode(errors="replace")
        say(f"baton: note: session {session.name!r} is {session.state}; this is what it showed last")
    else:
        session, tmux = _live(options.name, inventory)
        assert session.pane_id is not None
        shown = tmux.capture(session.pane_id, options.lines)
    lines = [_clean(line) for line in shown.rstrip("\n").split("\n")]
    print(json_text({"session": session.name, "lines": lines}) if options.json else "\n".join(lines))
    return 0


def _clean(line: str) -> str:
    return "".join(each if each.isprintable() else "\ufffd" for each in line.expandtabs())


# -- forgetting ----------------------------------------------------------------------------------------------


def _prune(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    from collections import Counter

    from baton.sessions.prune import Verdict, prune_sessions

    before_ns = time.time_ns() - parse_duration("--older-than", options.older_than)
    shown, counts, failed = [], Counter[str](), False
    for each in prune_sessions(
        inventory, settings.host, before_ns, stopped_too=options.stopped, dry_run=options.dry_run
    ):
        counts[each.verdict] += 1
        if each.error is not None:
            failed = True
            say(f"baton: {one_line(each.error, 1000)}; the next prune tries again")
        if options.json:
            shown.append({"session_id": each.session_id, "name": each.name, "verdict": each.verdict})
        elif options.dry_run and each.verdict in (Verdict.ENDED, Verdict.ORPHAN):
            print(f"would forget\t{each.name or '-'}\t{each.session_id}")
    if options.json:
        print(json_text(shown, indent=2))
    else:
        orphans = f", and {counted(counts[Verdict.ORPHAN], 'folder')} of none" if counts[Verdict.ORPHAN] else ""
        ended = counted(counts[Verdict.ENDED], "session")
        stays = f"the archive of them stays in {inventory.home}"
        if options.dry_run:
            say(f"{ended} would be forgotten{orphans}; {stays}")
        else:
            print(f"{ended} forgotten{orphans}; {stays}")
    if counts[Verdict.RESUMABLE]:
        say(f"kept {counts[Verdict.RESUMABLE]} that could be resumed; --stopped forgets them, too")
    if counts[Verdict.ALIVE]:
        say(f"kept {counts[Verdict.ALIVE]} whose process lives, or cannot be seen from here")
    return 1 if failed else 0


# -- what they share -----------------------------------------------------------------------------------------


def _live(name: str, inventory: Inventory) -> tuple[Session, Tmux]:
    session = inventory.get(name)
    if session.state is State.RUNNING:
        if _pane_of(session, _panes([session])) is not None:
            return session, Tmux(session.socket)
        raise SessionGone(f"session {name!r} is gone from tmux; `baton monitor --once` notes what became of it")
    raise SessionGone(f"session {name!r} is {session.state}; `baton session resume {name}` brings it back")


def _tell(options: argparse.Namespace, session: Session, hint: str) -> None:
    if options.json:
        print(json_text(session.record(), indent=2))
    else:
        print(session.name)
        say(hint)


VERBS = (
    Verb(
        "session",
        (opt.JSON,),
        actions=(
            Verb(
                "create",
                (
                    opt.NAME,
                    opt.AGENT,
                    opt.WORKDIR.but(default="."),
                    opt.JOB_ID.but(help="run this pending job; the session ends with it (default: none)"),
                    opt.FIRST_PROMPT,
                    opt.HEADLESS.but(default=False, help="run one task without questions, then end"),
                    opt.YOLO.but(default=False),
                    opt.REPLACE,
                    opt.TMUX_SOCKET,
                ),
                _create,
                "start an agent in a new tmux session",
            ),
            Verb(
                "stop",
                (
                    opt.NAME,
                    opt.STOP_MODE,
                    opt.REASON.but(default="", help="record this reason in the archive (default: none)"),
                    opt.CAPTURE_ID,
                    opt.GRACE,
                ),
                _stop,
                "stop a session and every process its agent started; its conversation is kept",
            ),
            Verb(
                "resume",
                (opt.NAME, opt.FIRST_PROMPT),
                _resume,
                "start the agent of an ended session again, with its conversation",
            ),
            Verb("list", (opt.ALL,), _list, "show sessions and whether they are alive"),
            Verb("show", (opt.NAME,), _show, "print everything about a session"),
            Verb(
                "attach",
                (opt.NAME, opt.READ_ONLY),
                _attach,
                "attach the terminal to a session (leave with Ctrl-b d; inside your own tmux, Ctrl-b Ctrl-b d)",
            ),
            Verb("send", (opt.NAME, opt.TEXT, opt.NO_ENTER, opt.KEY), _send, "type a text into a session"),
            Verb("capture", (opt.NAME, opt.LINES), _capture, "print what a session shows"),
            Verb(
                "prune",
                (
                    opt.OLDER_THAN.but(default="30d", help="remove sessions that ended this long ago (default: 30d)"),
                    opt.STOPPED,
                    opt.DRY_RUN,
                ),
                _prune,
                "remove sessions that ended long ago; their archive is kept",
            ),
        ),
    ),
)
