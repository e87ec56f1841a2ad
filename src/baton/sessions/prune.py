"""Remove sessions that ended long ago: their rows and their folders. The archive keeps their entries."""

import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from shutil import rmtree

from baton.core.clock import parse_time
from baton.core.errors import ManifestGone, ManifestInvalid
from baton.core.value import Value
from baton.sessions.inventory import Inventory
from baton.sessions.manifest import read_manifest
from baton.sessions.session import SESSION_ID, Session, State
from baton.storage.removal import entries_of, is_older, size_of


class Verdict(StrEnum):
    ENDED = "ended"  # removed
    ORPHAN = "orphan"  # removed: a folder that belongs to no session
    INVALID = "invalid"  # a row that is not a session
    RESUMABLE = "resumable"  # kept: it was stopped, and its conversation can be continued
    ALIVE = "alive"  # kept: its process runs, or that is unknown


class Judged(Value):
    """What became of an old session, or of a folder without one (`name` is None). `size` is what its folder took on
    disk; `error` says why the folder remains."""

    session_id: str
    name: str | None
    verdict: Verdict
    size: int = 0
    error: str | None = None


def prune_sessions(
    inventory: Inventory,
    host: str,
    before_ns: int,
    *,
    stopped_too: bool = False,
    is_gone: Callable[[str], bool] = lambda _job_id: False,
    invalid_too: bool = False,
    dry_run: bool = False,
) -> Iterator[Judged]:
    """Remove the sessions that ended before this time, and yield what became of each.

    `stopped_too` removes also sessions that could be resumed; `is_gone` says for which jobs those that were made for
    them go, too. `invalid_too` removes rows that are no sessions, whatever their age. `host` is this machine."""
    going = []
    for session in inventory.all(State.STOPPED, State.TERMINATED, State.ARCHIVED):
        if parse_time(session.ended_at or session.updated_at) >= before_ns:
            continue
        verdict = _verdict(session, host)
        if verdict is Verdict.RESUMABLE and (stopped_too or (session.made_for and is_gone(session.made_for))):
            verdict = Verdict.ENDED
        if verdict is Verdict.ENDED:
            going.append(session)
        else:
            yield Judged(session_id=session.session_id, name=session.name, verdict=verdict)
    for session in inventory.forget(going) if going and not dry_run else going:
        folder = os.path.join(inventory.home, "sessions", session.session_id)  # a link stays: rmtree refuses it
        size, error = _remove(folder, dry_run=dry_run)
        yield Judged(session_id=session.session_id, name=session.name, verdict=Verdict.ENDED, size=size, error=error)
    invalid = inventory.remove_invalid() if invalid_too and not dry_run else inventory.invalid()
    for row in invalid:
        yield Judged(session_id="-", name=row.name, verdict=Verdict.INVALID, error=None if invalid_too else str(row))
    yield from _orphans(inventory, host, before_ns, dry_run=dry_run)


def _verdict(session: Session, host: str) -> Verdict:
    elsewhere = session.host != host
    if session.state is State.ARCHIVED if elsewhere else session.has_live_runner():
        return Verdict.ALIVE
    return Verdict.RESUMABLE if session.state is State.STOPPED and session.conversation_id else Verdict.ENDED


def _orphans(inventory: Inventory, host: str, before_ns: int, *, dry_run: bool) -> Iterator[Judged]:
    """Remove folders without a row: of a session whose name was reused, a failed creation, an interrupted prune."""
    entries = entries_of(os.path.join(inventory.home, "sessions"), SESSION_ID)
    found = [entry for _, entry in entries if entry.is_dir(follow_symlinks=False) and is_older(entry, before_ns)]
    folders = {entry.name: entry.path for entry in found}
    # The rows are read after the folders: a session that is created meanwhile has a new folder.
    for session_id in folders.keys() - inventory.ids():
        verdict = Verdict.ALIVE if _may_live(folders[session_id], inventory, host) else Verdict.ORPHAN
        size, error = _remove(folders[session_id], dry_run=dry_run or verdict is Verdict.ALIVE)
        yield Judged(session_id=session_id, name=None, verdict=verdict, size=size, error=error)


def _may_live(folder: str, inventory: Inventory, host: str) -> bool:
    try:
        manifest = read_manifest(os.path.join(folder, "manifest.json"))
    except ManifestGone:
        return False
    except ManifestInvalid:
        return True
    if manifest.home_id not in (None, inventory.home_id):
        return False  # a copy of the folder: the process belongs to the original
    return manifest.host != host or manifest.process_lives() is not False


def _remove(folder: str, *, dry_run: bool) -> tuple[int, str | None]:
    """Remove a folder; return how much of the disk it took, and why it remains, if it does."""
    size = 0
    try:
        size = size_of(folder)
        if not dry_run:
            rmtree(folder)
    except OSError as error:
        return size, str(error) if os.path.exists(folder) else None
    return size, None
