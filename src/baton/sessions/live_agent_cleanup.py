"""Remove stale entries from the directory of live agents, each with a reason. Keep what cannot be observed."""

from __future__ import annotations

import os
from enum import StrEnum

from baton.core.errors import BatonError, InvalidValue, ManifestGone, ManifestInvalid, TmuxUnavailable
from baton.core.value import Value
from baton.live_agents.contract import State
from baton.live_agents.record import in_seconds
from baton.sessions.adopt import forget_adopted, sweep_manifests
from baton.sessions.live_agent_control import TMUX_OWN_SOCKET
from baton.sessions.manifest import read_manifest
from baton.sessions.tmux import NoServer, NoSocket, Tmux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.config import Settings
    from baton.live_agents.contract import Directory, Entry
    from baton.live_agents.record import AgentRecord
    from baton.sessions.adopt import LeftOver

DEFAULT_GRACE_SEC = 300


class Action(StrEnum):
    KEEP = "keep"
    REMOVE = "remove"
    QUARANTINE = "quarantine"


class Decision(Value):
    """What to do with an entry. `failed`: the action failed, and the entry was kept."""

    entry: Entry
    action: Action
    why: str
    failed: bool


class Liveness(StrEnum):
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


class Observer:
    """Find out whether sessions run: ask each tmux server once, and the system about the process in the manifest."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._seen: dict[str, frozenset[str] | TmuxUnavailable] = {}

    def fresh(self) -> Observer:
        """Return an observer without remembered answers."""
        return Observer(self._host)

    def look(self, record: AgentRecord) -> tuple[Liveness, str]:
        """Return whether the session runs, and the reason.

        A session is gone if the tmux server at the full path of its socket does not list it, or has ended, and the
        process in its manifest is not running. If the socket does not exist, the process must be known to be gone."""
        if record.host is not None and record.host != self._host:
            return Liveness.UNKNOWN, f"it is on {record.host}"
        socket = record.socket or TMUX_OWN_SOCKET
        sessions = self._sessions(socket)
        if isinstance(sessions, frozenset) and record.session_name in sessions:
            return Liveness.ALIVE, f"its tmux session {record.session_name!r} is running"
        process = _process(record)
        if process in (Liveness.ALIVE, Liveness.UNKNOWN):
            lives = f"its process is running, but tmux shows no session {record.session_name!r}"
            return process, lives if process is Liveness.ALIVE else f"{record.manifest_path} is not a manifest"
        if not socket.startswith("/"):
            return (
                Liveness.UNKNOWN,
                f"its tmux session is not at socket {socket!r} here, but may be at another user's",
            )
        ended = type(sessions) is NoServer or (isinstance(sessions, NoSocket) and process is Liveness.GONE)
        if isinstance(sessions, frozenset) or ended:
            return Liveness.GONE, f"its tmux session {record.session_name!r} is gone"
        return Liveness.UNKNOWN, str(sessions)

    def _sessions(self, socket: str) -> frozenset[str] | TmuxUnavailable:
        if socket not in self._seen:
            try:
                self._seen[socket] = frozenset(pane.session_name for pane in Tmux(socket).panes())
            except TmuxUnavailable as error:
                self._seen[socket] = error
        return self._seen[socket]


def _process(record: AgentRecord) -> Liveness | None:
    """Return whether the process in the session's manifest runs; None if no manifest of this session names one."""
    if not os.path.isabs(record.manifest_path):
        return None
    try:
        manifest = read_manifest(record.manifest_path)
    except ManifestGone:
        return None
    except ManifestInvalid:
        return Liveness.UNKNOWN
    lives = manifest.process_lives()
    if lives is None or (manifest.agent_id, manifest.generation_id) != (record.agent_id, record.generation_id):
        return None
    return Liveness.ALIVE if lives else Liveness.GONE


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
            except (BatonError, OSError):
                pass  # sweep_manifests reports the manifest
        yield decision
    yield from sweep_manifests(settings, directory, grace_sec=grace_sec, dry_run=dry_run)


def cleanup_entries(
    directory: Directory, *, observer: Observer | None, grace_sec: float = DEFAULT_GRACE_SEC, dry_run: bool = False
) -> Iterator[Decision]:
    """Yield a decision for each entry; carry it out unless `dry_run`. Without an observer the lease alone decides."""
    if not 0 <= grace_sec < float("inf"):
        raise InvalidValue("grace_sec", "must be a number of seconds, 0 or more")
    grace_ns = int(grace_sec * 10**9)
    for entry in directory.all():
        intent = "decide about"
        try:
            decision = decide(entry, directory.now_ns(), grace_ns, observer)
            if decision.action is not Action.KEEP and not dry_run:
                intent = decision.action
                decision = _carry_out(directory, decision, grace_ns, observer)
        except (BatonError, OSError) as error:
            why = f"could not {intent} it: {error}"
            decision = Decision(entry=entry, action=Action.KEEP, why=why, failed=True)
        yield decision


def _carry_out(directory: Directory, decision: Decision, grace_ns: int, observer: Observer | None) -> Decision:
    with directory.locked(decision.entry.agent_id) as slot:
        # Another process may have published since: decide again by the present entry and the present sessions.
        decision = decide(slot.entry, directory.now_ns(), grace_ns, observer and observer.fresh())
        if decision.action is Action.REMOVE:
            slot.remove()
        elif decision.action is Action.QUARANTINE:
            decision = decision.replace(why=f"{decision.why}; now in {slot.quarantine()}")
    return decision


def decide(entry: Entry, now_ns: int, grace_ns: int, observer: Observer | None) -> Decision:
    action, why = _decide(entry, now_ns, grace_ns, observer)
    return Decision(entry=entry, action=action, why=why, failed=False)


def _decide(entry: Entry, now_ns: int, grace_ns: int, observer: Observer | None) -> tuple[Action, str]:
    record = entry.record
    if record is None:
        return _decide_unfit(entry, now_ns, grace_ns)
    if entry.state is State.FRESH:
        return _decide_fresh(entry, record, now_ns, grace_ns, observer)
    if now_ns - record.expires_ns() <= grace_ns:
        return Action.KEEP, f"its lease expired less than {_seconds(grace_ns)} ago"
    expired = f"its lease expired at {in_seconds(record.lease_expires_at)}"
    if observer is None:
        return Action.REMOVE, expired
    liveness, seen = observer.look(record)
    if liveness is Liveness.GONE:
        return Action.REMOVE, f"{expired}, {seen}"
    hint = "refresh it" if liveness is Liveness.ALIVE else "--no-tmux-check removes it anyway"
    return Action.KEEP, f"{expired}, but {seen}; {hint}"


def _decide_unfit(entry: Entry, now_ns: int, grace_ns: int) -> tuple[Action, str]:
    if entry.absent:
        return Action.KEEP, "it is already gone"
    if entry.state in (State.NEWER, State.UNREADABLE):
        return Action.KEEP, f"its record {entry.why}; it is kept, however old"
    if now_ns - entry.touched_ns <= grace_ns:
        return Action.KEEP, f"{entry.state}, but touched less than {_seconds(grace_ns)} ago"
    if entry.state is State.MISSING:
        return Action.REMOVE, "its record is missing"
    return Action.QUARANTINE, f"its record is {entry.state}: {entry.why}"


def _decide_fresh(
    entry: Entry, record: AgentRecord, now_ns: int, grace_ns: int, observer: Observer | None
) -> tuple[Action, str]:
    """Decide about an entry whose lease is valid: keep it, unless its session is certainly gone."""
    if observer is None or now_ns - entry.touched_ns <= grace_ns:
        return Action.KEEP, f"fresh until {in_seconds(record.lease_expires_at)}"
    liveness, seen = observer.look(record)
    if liveness is Liveness.GONE:
        return Action.REMOVE, seen
    return Action.KEEP, f"fresh until {in_seconds(record.lease_expires_at)}, {seen}"


def _seconds(ns: int) -> str:
    return f"{ns / 10**9:g} s"
