"""session list | show | attach | send | capture, and attach: look at sessions in tmux and type into them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from baton.cli.options import job_of
from baton.cli.output import ago, json_text, on_terminal, print_table, say
from baton.cli.parser import read_text
from baton.config import Settings
from baton.core.clock import parse_time
from baton.core.errors import InvalidValue, SessionGone, UsageError
from baton.core.fields import printable
from baton.core.job import TERMINAL
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.sessions.launch import LAST_SCREEN
from baton.sessions.session import Session, State
from baton.sessions.tmux import NoServer, Pane, Tmux
from baton.storage.files import read_file

Panes = dict[tuple[str, str], Pane]  # by tmux server and pane id

_COLOURS = {"running": "green", "stopped": "yellow", "lost": "red"}


def list_sessions(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    sessions = inventory.all() if options.all else inventory.all(State.RUNNING)
    panes = find_panes(sessions)
    if options.json:
        print(json_text([_shown(session, panes) for session in sessions], indent=2))
        return 0
    if not sessions:
        say("no sessions" if options.all else "no running sessions; --all shows ended ones")
        return 0
    now_ns = time.time_ns()
    rows = [
        (
            session.name,
            session.state if session.state is not State.RUNNING or pane_of(session, panes) else "lost",
            session.agent,
            session.job_id or "-",
            ago(parse_time(session.ended_at or session.created_at), now_ns),
            session.reason or session.workdir,
        )
        for session in sessions
    ]
    print_table(
        ("NAME", "STATE", "AGENT", "JOB", "SINCE", "WHERE"), rows, [_COLOURS.get(state) for _, state, *_ in rows]
    )
    return 0


def show(options: argparse.Namespace, settings: Settings) -> int:
    inventory = Inventory(settings)
    session = inventory.get(options.name)
    print(json_text(_shown(session, find_panes([session])) | {"folder": inventory.folder_of(session)}, indent=2))
    return 0


def find_panes(sessions: Sequence[Session]) -> Panes:
    """Return the panes of every tmux server that these sessions use. One call for each server."""
    found: Panes = {}
    for socket in {session.socket for session in sessions if session.state is State.RUNNING}:
        try:
            found.update({(socket, pane.pane_id): pane for pane in Tmux(socket).panes()})
        except NoServer:
            continue  # all its sessions are gone
    return found


def pane_of(session: Session, panes: Panes) -> Pane | None:
    """Return the pane in which the session's runner lives, or None."""
    pane = panes.get((session.socket, session.pane_id or ""))
    return pane if pane is not None and pane.pid == session.pane_pid and not pane.dead else None


def _shown(session: Session, panes: Panes) -> dict[str, object]:
    alive = pane_of(session, panes) is not None
    return session.record() | {"alive": alive if session.state is State.RUNNING else None}


def attach(options: argparse.Namespace, settings: Settings) -> int:
    return _attach_to(options.name, Inventory(settings), read_only=options.read_only)


def _attach_to(name: str, inventory: Inventory, *, read_only: bool) -> int:
    """Replace this process by tmux, attached to the session: it does not return."""
    session, tmux, _ = _live(name, inventory)
    if not (sys.stdin.isatty() and on_terminal()):
        raise UsageError("attach needs a terminal; `baton session capture` prints what the session shows")
    sys.stdout.flush()
    tmux.attach(session.name, read_only=read_only)


def attach_job(options: argparse.Namespace, settings: Settings) -> int:
    """Attach to the session that runs a job."""
    with open_jobs(settings) as jobs:
        job = jobs.get_job(job_of(options))
    inventory = Inventory(settings)
    for session in inventory.all(State.RUNNING):
        if job.job_id in (session.job_id, session.made_for):
            return _attach_to(session.name, inventory, read_only=options.read_only)
    if job.status in TERMINAL:
        raise SessionGone(f"job {job.job_id} is {job.status}, no session runs it; `baton logs {job.job_id}` shows why")
    holder = f", held by {job.claimed_by}" if job.claimed_by else ""
    raise SessionGone(f"no session on this host runs job {job.job_id}: it is {job.status}{holder}")


def send(options: argparse.Namespace, settings: Settings) -> int:
    if (options.text is None) == (not options.key):
        raise UsageError("give either a TEXT to type or --key")
    text = None if options.key else read_text("text", options.text)
    session, tmux, pane_id = _live(options.name, Inventory(settings))
    if text is None:
        tmux.press(pane_id, options.key)
        return 0
    if "\0" in text:
        raise InvalidValue("text", "must not contain a NUL character")
    tmux.paste(pane_id, text, enter=not options.no_enter)
    if options.json:
        print(json_text({"session": session.name, "sent": len(text)}))
    return 0


def capture(options: argparse.Namespace, settings: Settings) -> int:
    if options.lines is not None and not 0 < options.lines <= 1_000_000:
        raise InvalidValue("--lines", "must be from 1 to 1000000")
    inventory = Inventory(settings)
    session = inventory.get(options.name)
    last = os.path.join(inventory.folder_of(session), LAST_SCREEN)
    if session.state is not State.RUNNING and os.path.exists(last):
        screen = read_file(last).decode(errors="replace")
        say(f"baton: note: session {session.name!r} is {session.state}; this is its last screen")
    else:
        session, tmux, pane_id = _live(options.name, inventory)
        screen = tmux.capture(pane_id, options.lines)
    lines = [printable(line.expandtabs()) for line in screen.rstrip("\n").split("\n")]
    print(json_text({"session": session.name, "lines": lines}) if options.json else "\n".join(lines))
    return 0


def _live(name: str, inventory: Inventory) -> tuple[Session, Tmux, str]:
    """Return a session that runs, its tmux server and its pane; SessionGone when it does not run."""
    session = inventory.get(name)
    if session.state is not State.RUNNING:
        raise SessionGone(f"session {name!r} is {session.state}; `baton session resume {name}` starts it again")
    pane = pane_of(session, find_panes([session]))
    if pane is None:
        raise SessionGone(f"session {name!r} is gone from tmux; `baton monitor --once` records how it ended")
    return session, Tmux(session.socket), pane.pane_id
