"""Gives a name to a tmux session that somebody started by hand: writes the manifest that it does not have."""

from __future__ import annotations

import os

from baton.directory.names import check_generation_id
from baton.directory.record import AgentRecord, new_record
from baton.errors import SessionGone
from baton.fsio import make_private_dir, remove_file
from baton.manifest import Manifest
from baton.processes import started_at
from baton.tmux import NoServer, Tmux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.config import Settings


def adopted_record(
    settings: Settings,
    *,
    agent_name: str,
    agent_id: str,
    generation_id: str,
    tool: str,
    session_name: str,
    socket: str,
    now_ns: int,
    lease_ns: int,
    agent_def_dir: str | None = None,
) -> AgentRecord:
    """The record of a session that lives in tmux now, with its manifest written; SessionGone when there is none."""
    tmux = Tmux(socket)
    try:
        panes = [pane for pane in tmux.panes() if pane.session_name == session_name]
    except NoServer as error:
        raise SessionGone(f"{error}; start the session first, or name its socket with --tmux-socket") from None
    if not panes:
        option = "-S" if socket.startswith("/") else "-L"
        raise SessionGone(f"tmux at socket {socket} has no session {session_name!r}; see: tmux {option} {socket} ls")
    # The pane that a person would type into: the first one may be any.
    active = tmux.run("display-message", "-p", "-t", f"={session_name}:", "#{pane_id}").strip()
    pane = next((pane for pane in panes if pane.pane_id == active), panes[0])
    if pane.dead:
        raise SessionGone(f"the active pane of tmux session {session_name!r} is dead; start something in it first")
    path = _manifest_path(settings.state_dir, generation_id)
    record = new_record(
        agent_name,
        agent_id,
        generation_id,
        now_ns=now_ns,
        lease_ns=lease_ns,
        tool=tool,
        manifest_path=path,
        session_name=session_name,
        socket=tmux.socket_path(),
        host=settings.host,
        agent_def_dir=agent_def_dir,
    )
    make_private_dir(os.path.dirname(path))
    Manifest(
        agent_name=agent_name,
        agent_id=agent_id,
        generation_id=generation_id,
        backend=record.backend,
        tool=tool,
        session_name=session_name,
        socket=record.socket,
        host=settings.host,
        workdir=None,
        pane_pid=pane.pid,
        pane_started=started_at(pane.pid),
    ).write(path)
    return record


def forget_adopted(settings: Settings, generation_id: str) -> None:
    """Removes the manifest of that generation, if it is one that was written here."""
    remove_file(_manifest_path(settings.state_dir, check_generation_id(generation_id)))


def _manifest_path(state_dir: str, generation_id: str) -> str:
    return os.path.join(os.path.abspath(state_dir), "manifests", f"{generation_id}.json")
