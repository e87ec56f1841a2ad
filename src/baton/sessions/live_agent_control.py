"""The second stage: whether it is safe to touch the session that a fresh record points at. Each way in which it is not
has an error of its own: a record that leads to the wrong session must never quietly lead to some other."""

from __future__ import annotations

import os

from baton.core.errors import (
    AgentDefDirUnusable,
    IdentityMismatch,
    ManifestPathRelative,
    NotInTmux,
    RemoteAgent,
    SessionGone,
    SessionMismatch,
)
from baton.core.value import Value
from baton.sessions.manifest import read_manifest
from baton.sessions.tmux import NoServer, Tmux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.live_agents.record import AgentRecord
    from baton.sessions.manifest import Manifest

# Where a record names no socket, the one that tmux itself uses.
TMUX_OWN_SOCKET = "default"


class Target(Value):
    """A session that may be controlled: everything that was checked agrees."""

    record: AgentRecord
    manifest: Manifest
    tmux: Tmux
    agent_def_dir: str | None


def control_target(
    record: AgentRecord, *, host: str, needs_agent_def_dir: bool = False, agent_def_dir: str | None = None
) -> Target:
    """What the record points at, checked; a ControlRefused otherwise. `agent_def_dir` wins over the record's own."""
    name = record.agent_name
    if record.host is not None and record.host != host:  # guard: session-host
        raise RemoteAgent(name, record.host)
    if not os.path.isabs(record.manifest_path):
        raise ManifestPathRelative(f"{name}: manifest path {record.manifest_path!r} is not absolute")
    manifest = read_manifest(record.manifest_path)
    if manifest.backend != "tmux":
        raise NotInTmux(f"{name} runs by {manifest.backend!r}, not in tmux; it cannot be controlled by its name")
    for what in ("agent_name", "agent_id", "generation_id"):
        theirs, ours = getattr(manifest, what), getattr(record, what)
        if theirs != ours:  # guard: manifest-identity
            raise IdentityMismatch(f"{name}: {what} is {ours} in its record and {theirs} in {record.manifest_path}")
    if (manifest.session_name, manifest.socket) != (record.session_name, record.socket):
        raise SessionMismatch(
            f"{name}: its record points at tmux session {record.session_name!r}, its manifest at "
            f"{manifest.session_name!r}{'' if manifest.socket == record.socket else ' on another socket'}"
        )
    tmux = Tmux(record.socket or TMUX_OWN_SOCKET)
    _check_session(name, manifest, tmux)
    return Target(
        record=record,
        manifest=manifest,
        tmux=tmux,
        agent_def_dir=_agent_def_dir(record, agent_def_dir, needed=needs_agent_def_dir),
    )


def _check_session(name: str, manifest: Manifest, tmux: Tmux) -> None:
    try:
        panes = [pane for pane in tmux.panes() if pane.session_name == manifest.session_name]
    except NoServer as error:
        raise SessionGone(f"{name}: {error}") from None
    if not panes:
        raise SessionGone(f"{name}: tmux at socket {tmux.socket} has no session {manifest.session_name!r}")
    meant = [pane for pane in panes if manifest.pane_pid in (None, pane.pid)]
    if meant and all(pane.dead for pane in meant):
        raise SessionGone(f"{name}: tmux still shows session {manifest.session_name!r}, but its pane is dead")
    if not meant or manifest.process_lives() is False:
        raise SessionMismatch(
            f"{name}: tmux session {manifest.session_name!r} is another by now: process {manifest.pane_pid} is gone"
        )


def _agent_def_dir(record: AgentRecord, override: str | None, *, needed: bool) -> str | None:
    if override is not None:
        path, hint = override, "--agent-def-dir"
    elif not needed:
        return record.agent_def_dir
    elif record.agent_def_dir is None:
        raise AgentDefDirUnusable(f"{record.agent_name}: its record names no agent_def_dir; give --agent-def-dir")
    else:
        path, hint = record.agent_def_dir, f"{record.agent_name}: agent_def_dir"
    if not os.path.isabs(path):
        raise AgentDefDirUnusable(f"{hint} {path!r} is not absolute")
    if not os.path.isdir(path):
        raise AgentDefDirUnusable(f"{hint} {path!r} is no folder (any more); give --agent-def-dir")
    return path
