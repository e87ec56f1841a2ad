"""Compare live agents with their tmux sessions: check one before it is controlled, and remove the stale ones.

Each failed check has its own error: a record never leads to another session. The clean-up gives a reason for each
entry, and keeps what it cannot observe."""

import os
from collections.abc import Iterator
from enum import StrEnum

from baton.config import Settings
from baton.core import errors
from baton.core.value import Value
from baton.live_agents.contract import Directory
from baton.live_agents.record import AgentRecord, Entry, State, in_seconds
from baton.sessions.adopt import LeftOver, forget_adopted, sweep_manifests
from baton.sessions.manifest import Manifest, read_manifest
from baton.sessions.tmux import NoServer, NoSocket, Tmux, TmuxSnapshot

DEFAULT_GRACE_SEC = 300
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
    if (there := host_of(record)) is not None and there != host:  # guard: session-host
        raise errors.RemoteAgent(name, there)
    if not os.path.isabs(record.manifest_path):
        raise errors.ManifestPathRelative(f"{name}: manifest path {record.manifest_path!r} is not absolute")
    manifest = read_manifest(record.manifest_path)
    if manifest.backend != "tmux":
        raise errors.NotInTmux(f"{name} runs by {manifest.backend!r}, not in tmux; baton cannot control it")
    for what in ("agent_name", "agent_id", "generation_id"):
        theirs, ours = getattr(manifest, what), getattr(record, what)
        if theirs != ours:  # guard: manifest-identity
            raise errors.IdentityMismatch(
                f"{name}: {what} is {ours} in its record and {theirs} in {record.manifest_path}"
            )
    if (manifest.session_name, manifest.socket) != (record.session_name, record.socket):
        raise errors.SessionMismatch(
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
        raise errors.SessionGone(f"{name}: {error}") from None
    if not panes:
        raise errors.SessionGone(f"{name}: tmux at socket {tmux.socket} has no session {manifest.session_name!r}")
    meant = [pane for pane in panes if manifest.pane_pid in (None, pane.pid) or not pane.pid]
    if meant and all(pane.dead for pane in meant):
        raise errors.SessionGone(f"{name}: tmux still shows session {manifest.session_name!r}, but its pane is dead")
    if not meant or manifest.process_lives() is False:
        raise errors.SessionMismatch(
            f"{name}: tmux session {manifest.session_name!r} is another one now: process {manifest.pane_pid} is gone"
        )


def _agent_def_dir(record: AgentRecord, override: str | None, *, needed: bool) -> str | None:
    if override is None and not needed:
        return record.agent_def_dir
    path = record.agent_def_dir if override is None else override
    if path is None:
        raise errors.AgentDefDirUnusable(
            f"{record.agent_name}: its record names no agent_def_dir; give --agent-def-dir"
        )
    hint = f"{record.agent_name}: agent_def_dir" if override is None else "--agent-def-dir"
    if not os.path.isabs(path):
        raise errors.AgentDefDirUnusable(f"{hint} {path!r} is not absolute")
    if not os.path.isdir(path):
        raise errors.AgentDefDirUnusable(f"{hint} {path!r} is not a folder; give --agent-def-dir")
    return path


class Action(StrEnum):
    KEEP = "keep"
    REMOVE = "remove"
    QUARANTINE = "quarantine"


class Decision(Value):
    """What to do with an entry. `failed`: the action failed, and the entry was kept."""

    entry: Entry
    action: Action
    why: str
    failed: bool = False


class Observer:
    """Find out whether sessions run: ask each tmux server once, and the system about the process in the manifest."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._tmux = TmuxSnapshot()

    def look(self, record: AgentRecord) -> tuple[bool | None, str]:
        """Return whether the session runs, None if that is unknown, and the reason.

        A session is gone if the tmux server at the full path of its socket does not list it, or has ended, and the
        process in its manifest is not running. If the socket does not exist, the process must be known to be gone."""
        if (there := host_of(record)) is not None and there != self.host:
            return None, f"it is on {there}"
        socket = record.socket or TMUX_OWN_SOCKET
        sessions = self._sessions(socket)
        if isinstance(sessions, frozenset) and record.session_name in sessions:
            return True, f"its tmux session {record.session_name!r} is running"
        try:
            lives = _process_lives(record)
        except errors.ManifestInvalid:
            return None, f"{record.manifest_path} is not a manifest"
        if lives:
            return True, f"its process is running, but tmux shows no session {record.session_name!r}"
        if not socket.startswith("/"):
            return None, f"its tmux session is not at socket {socket!r} here, but may be at another user's"
        ended = type(sessions) is NoServer or (isinstance(sessions, NoSocket) and lives is False)
        gone = (False, f"its tmux session {record.session_name!r} is gone")
        return gone if ended or isinstance(sessions, frozenset) else (None, str(sessions))

    def _sessions(self, socket: str) -> frozenset[str] | errors.TmuxUnavailable:
        try:
            return frozenset(pane.session_name for pane in self._tmux.panes(socket).values())
        except errors.TmuxUnavailable as error:
            return error


def host_of(record: AgentRecord) -> str | None:
    """Return the host of the record's session: by its manifest, if this machine has changed its name since."""
    if record.host is None or record.host == os.uname().nodename or not os.path.isabs(record.manifest_path):
        return record.host
    try:
        manifest = read_manifest(record.manifest_path)
    except errors.ControlRefused:
        return record.host
    is_its_own = manifest.machine is not None and manifest.generation_id == record.generation_id
    return manifest.host if is_its_own else record.host


def _process_lives(record: AgentRecord) -> bool | None:
    """Return whether the process in the session's manifest runs; None if no manifest of this session names one."""
    if not os.path.isabs(record.manifest_path):
        return None
    try:
        manifest = read_manifest(record.manifest_path)
    except errors.ManifestGone:
        return None
    is_its_own = (manifest.agent_id, manifest.generation_id) == (record.agent_id, record.generation_id)
    return manifest.process_lives() if is_its_own else None


def cleanup(
    settings: Settings,
    directory: Directory,
    *,
    tmux_check: bool = True,
    grace_sec: float = DEFAULT_GRACE_SEC,
    dry_run: bool = False,
) -> Iterator[Decision | LeftOver]:
    """Yield a decision for each entry, then each manifest without an entry. A failure does not stop the rest."""
    observer = Observer(settings.host) if tmux_check else None
    for decision in cleanup_entries(directory, observer=observer, grace_sec=grace_sec, dry_run=dry_run):
        if decision.action is Action.REMOVE and decision.entry.record is not None and not dry_run:
            try:
                forget_adopted(settings, directory, decision.entry.record)
            except (errors.BatonError, OSError):
                pass  # sweep_manifests reports the manifest
        yield decision
    yield from sweep_manifests(settings, directory, grace_sec=grace_sec, dry_run=dry_run)


def cleanup_entries(
    directory: Directory, *, observer: Observer | None, grace_sec: float = DEFAULT_GRACE_SEC, dry_run: bool = False
) -> Iterator[Decision]:
    """Yield a decision for each entry; carry it out unless `dry_run`. Without an observer the lease alone decides."""
    if not 0 <= grace_sec < float("inf"):
        raise errors.InvalidValue("grace_sec", "must be a number of seconds, 0 or more")
    grace_ns = int(grace_sec * 10**9)
    for entry in directory.all():
        intent = "decide about"
        try:
            decision = _decide(entry, directory.now_ns(), grace_ns, observer)
            if decision.action is not Action.KEEP and not dry_run:
                intent = decision.action
                decision = _carry_out(directory, entry.agent_id, grace_ns, observer)
        except (errors.BatonError, OSError) as error:
            why = f"could not {intent} it: {error}"
            decision = Decision(entry=entry, action=Action.KEEP, why=why, failed=True)
        yield decision


def _carry_out(directory: Directory, agent_id: str, grace_ns: int, observer: Observer | None) -> Decision:
    with directory.locked(agent_id) as entry:
        # Another process may have published since: decide again by the present entry and the present sessions.
        decision = _decide(entry, directory.now_ns(), grace_ns, observer and Observer(observer.host))
        if decision.action is Action.REMOVE:
            directory.remove(entry)
        elif decision.action is Action.QUARANTINE:
            decision = decision.replace(why=f"{decision.why}; now in {directory.quarantine(entry)}")
    return decision


def _decide(entry: Entry, now_ns: int, grace_ns: int, observer: Observer | None) -> Decision:
    if entry.record is None:
        action, why = _decide_unfit(entry, now_ns, grace_ns)
    else:
        action, why = _decide_record(entry, entry.record, now_ns, grace_ns, observer)
    return Decision(entry=entry, action=action, why=why)


def _decide_unfit(entry: Entry, now_ns: int, grace_ns: int) -> tuple[Action, str]:
    if entry.absent:
        return Action.KEEP, "it is already gone"
    if entry.state in (State.NEWER, State.UNREADABLE):
        return Action.KEEP, f"its record {entry.why}; it is kept, however old"
    if now_ns - entry.touched_ns <= grace_ns:
        return Action.KEEP, f"{entry.state}, but touched less than {grace_ns / 10**9:g} s ago"
    if entry.state is State.MISSING:
        return Action.REMOVE, "its record is missing"
    return Action.QUARANTINE, f"its record is {entry.state}: {entry.why}"


def _decide_record(
    entry: Entry, record: AgentRecord, now_ns: int, grace_ns: int, observer: Observer | None
) -> tuple[Action, str]:
    """Decide about a readable record. One whose lease is valid is removed only if its session is certainly gone."""
    fresh = entry.state is State.FRESH
    lease = f"{'fresh until' if fresh else 'its lease expired at'} {in_seconds(record.lease_expires_at)}"
    if fresh and (observer is None or now_ns - entry.touched_ns <= grace_ns):
        return Action.KEEP, lease
    if not fresh and now_ns - record.expires_ns() <= grace_ns:
        return Action.KEEP, f"its lease expired less than {grace_ns / 10**9:g} s ago"
    if observer is None:
        return Action.REMOVE, lease
    runs, seen = observer.look(record)
    if runs is False:
        return Action.REMOVE, seen if fresh else f"{lease}, {seen}"
    if fresh:
        return Action.KEEP, f"{lease}, {seen}"
    return Action.KEEP, f"{lease}, but {seen}{'; refresh it' if runs else ''}"
