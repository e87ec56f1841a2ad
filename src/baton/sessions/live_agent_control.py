"""Check that the session of a fresh record is the one that the record means, before it is controlled.

Each failed check has its own error. A record never leads to another session."""

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
from baton.live_agents.record import AgentRecord
from baton.sessions.manifest import Manifest, read_manifest
from baton.sessions.tmux import NoServer, Tmux

# The socket of a record that names none: the default of tmux.
TMUX_OWN_SOCKET = "default"


class Target(Value):
    """A session that passed all checks and may be controlled."""

    record: AgentRecord
    manifest: Manifest
    tmux: Tmux
    agent_def_dir: str | None


def control_target(
    record: AgentRecord, *, host: str, needs_agent_def_dir: bool = False, agent_def_dir: str | None = None
) -> Target:
    """Return the session of the record, or raise a ControlRefused. `agent_def_dir` overrides the record's."""
    name = record.agent_name
    if record.host is not None and record.host != host:  # guard: session-host
        raise RemoteAgent(name, record.host)
    if not os.path.isabs(record.manifest_path):
        raise ManifestPathRelative(f"{name}: manifest path {record.manifest_path!r} is not absolute")
    manifest = read_manifest(record.manifest_path)
    if manifest.backend != "tmux":
        raise NotInTmux(f"{name} runs by {manifest.backend!r}, not in tmux; baton cannot control it")
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
    agent_def_dir = _agent_def_dir(record, agent_def_dir, needed=needs_agent_def_dir)
    return Target(record=record, manifest=manifest, tmux=tmux, agent_def_dir=agent_def_dir)


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
            f"{name}: tmux session {manifest.session_name!r} is another one now: process {manifest.pane_pid} is gone"
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
        raise AgentDefDirUnusable(f"{hint} {path!r} is not a folder; give --agent-def-dir")
    return path
