"""Remove sessions that ended long ago: their rows and their folders. The archive keeps their entries."""

import os
import re
from collections.abc import Iterator
from enum import StrEnum
from shutil import rmtree

from baton.core.clock import parse_time
from baton.core.errors import ManifestGone, ManifestInvalid
from baton.core.value import Value
from baton.sessions.inventory import Inventory
from baton.sessions.manifest import read_manifest
from baton.sessions.session import Session, State

_SESSION_ID = re.compile(r"[0-9a-f]{16}")


class Verdict(StrEnum):
    ENDED = "ended"  # removed
    ORPHAN = "orphan"  # removed: a folder that belongs to no session
    RESUMABLE = "resumable"  # kept: it was stopped, and its conversation can be continued
    ALIVE = "alive"  # kept: its process runs, or that is unknown


class Judged(Value):
    """What became of an old session, or of a folder without one (`name` is None). `error`: why the folder remains."""

    session_id: str
    name: str | None
    verdict: Verdict
    error: str | None


def prune_sessions(
    inventory: Inventory, host: str, before_ns: int, *, stopped_too: bool = False, dry_run: bool = False
) -> Iterator[Judged]:
    """Remove the sessions that ended before this time, and yield what became of each.

    `stopped_too` removes also sessions that could be resumed. `host` is this machine."""
    going = []
    for session in inventory.all(State.STOPPED, State.TERMINATED, State.ARCHIVED):
        if parse_time(session.ended_at or session.updated_at) >= before_ns:
            continue
        verdict = _verdict(session, host)
        if verdict is Verdict.ENDED or (verdict is Verdict.RESUMABLE and stopped_too):
            going.append(session)
        else:
            yield Judged(session_id=session.session_id, name=session.name, verdict=verdict, error=None)
    for session in inventory.forget(going) if going and not dry_run else going:
        error = None if dry_run else _remove(inventory.folder_of(session))
        yield Judged(session_id=session.session_id, name=session.name, verdict=Verdict.ENDED, error=error)
    yield from _orphans(inventory, host, before_ns, dry_run=dry_run)


def _verdict(session: Session, host: str) -> Verdict:
    elsewhere = session.host != host
    if session.state is State.ARCHIVED if elsewhere else session.has_live_runner():
        return Verdict.ALIVE
    return Verdict.RESUMABLE if session.state is State.STOPPED and session.conversation_id else Verdict.ENDED


def _orphans(inventory: Inventory, host: str, before_ns: int, *, dry_run: bool) -> Iterator[Judged]:
    """Remove folders without a row: of a session whose name was reused, a failed creation, an interrupted prune."""
    folders = dict(_old_folders(os.path.join(inventory.home, "sessions"), before_ns))
    # The rows are read after the folders: a session that is created meanwhile has a new folder.
    for session_id in folders.keys() - {session.session_id for session in inventory.all()}:
        verdict = Verdict.ALIVE if _may_live(folders[session_id], inventory, host) else Verdict.ORPHAN
        error = None if dry_run or verdict is Verdict.ALIVE else _remove(folders[session_id])
        yield Judged(session_id=session_id, name=None, verdict=verdict, error=error)


def _old_folders(parent: str, before_ns: int) -> Iterator[tuple[str, str]]:
    try:
        entries = os.scandir(parent)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if _SESSION_ID.fullmatch(entry.name) and _is_old_folder(entry, before_ns):
                yield entry.name, entry.path


def _is_old_folder(entry: os.DirEntry[str], before_ns: int) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime_ns < before_ns
    except FileNotFoundError:
        return False  # another process has just removed it


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


def _remove(folder: str) -> str | None:
    try:
        rmtree(folder)
    except OSError as error:
        return str(error) if os.path.exists(folder) else None
    return None
