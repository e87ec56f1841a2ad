"""Takes out of the directory what nobody needs any more: with a reason for each, and never what was not observed."""

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
    """`failed`: what was to be done could not be done, and the entry is kept for that."""

    entry: Entry
    action: Action
    why: str
    failed: bool


class Liveness(StrEnum):
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


class Observer:
    """Looks whether sessions live: asks each tmux server once, and the system about the process that a manifest names.
    `host` is this machine."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._seen: dict[str, frozenset[str] | TmuxUnavailable] = {}

    def anew(self) -> Observer:
        """One that has seen nothing yet."""
        return Observer(self._host)

    def look(self, record: AgentRecord) -> tuple[Liveness, str]:
        """A session is gone when the tmux server at its full path answers without it, or has ended; and no process that
        its manifest names lives. A socket that is not there may be out of our sight: then it takes that process."""
        if record.host is not None and record.host != self._host:
            return Liveness.UNKNOWN, f"it is on {record.host}"
        socket = record.socket or TMUX_OWN_SOCKET
        sessions = self._sessions(socket)
        if isinstance(sessions, frozenset) and record.session_name in sessions:
            return Liveness.ALIVE, f"its tmux session {record.session_name!r} lives"
        process = _process(record)
        if process in (Liveness.ALIVE, Liveness.UNKNOWN):
            lives = f"its process lives, though tmux shows no session {record.session_name!r}"
            return process, lives if process is Liveness.ALIVE else f"{record.manifest_path} is no manifest"
        if not socket.startswith("/"):
            return Liveness.UNKNOWN, f"its tmux session is not at socket {socket!r} here, but may be at another's"
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
    """What the session's manifest leads to; None when there is no manifest of it that names a process."""
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
    """One decision for each entry, then each manifest that is left over without one. What fails is told, and the others
    have their turn."""
    observer = Observer(settings.host) if tmux_check else None
    for decision in cleanup_entries(directory, observer=observer, grace_sec=grace_sec, dry_run=dry_run):
        if decision.action is Action.REMOVE and decision.entry.record is not None and not dry_run:
            try:
                forget_adopted(settings, directory, decision.entry.record)
            except (BatonError, OSError):
                pass  # it is left over then, and told as that
        yield decision
    yield from sweep_manifests(settings, directory, grace_sec=grace_sec, dry_run=dry_run)


def cleanup_entries(
    directory: Directory, *, observer: Observer | None, grace_sec: float = DEFAULT_GRACE_SEC, dry_run: bool = False
) -> Iterator[Decision]:
    """One decision for each entry, carried out unless `dry_run`. Without an observer the lease alone decides."""
    if not 0 <= grace_sec < float("inf"):
        raise InvalidValue("grace_sec", "must be a number of seconds, 0 or more")
    grace_ns = int(grace_sec * 10**9)
    for entry in directory.all():
        intent = "judge"
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
        # Somebody may have published meanwhile: what counts is what is there now, in the directory and in tmux.
        decision = decide(slot.entry, directory.now_ns(), grace_ns, observer and observer.anew())
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
        return Action.KEEP, f"its lease ran out less than {_seconds(grace_ns)} ago"
    expired = f"its lease ran out at {in_seconds(record.lease_expires_at)}"
    if observer is None:
        return Action.REMOVE, expired
    liveness, seen = observer.look(record)
    if liveness is Liveness.GONE:
        return Action.REMOVE, f"{expired}, {seen}"
    hint = "refresh it" if liveness is Liveness.ALIVE else "--no-tmux-check removes it all the same"
    return Action.KEEP, f"{expired}, but {seen}; {hint}"


def _decide_unfit(entry: Entry, now_ns: int, grace_ns: int) -> tuple[Action, str]:
    if entry.absent:
        return Action.KEEP, "it is gone already"
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
    """A lease that still runs keeps a name from others; a session that is certainly gone needs it no more."""
    if observer is None or now_ns - entry.touched_ns <= grace_ns:
        return Action.KEEP, f"fresh until {in_seconds(record.lease_expires_at)}"
    liveness, seen = observer.look(record)
    if liveness is Liveness.GONE:
        return Action.REMOVE, seen
    return Action.KEEP, f"fresh until {in_seconds(record.lease_expires_at)}, {seen}"


def _seconds(ns: int) -> str:
    return f"{ns / 10**9:g} s"
