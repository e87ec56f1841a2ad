"""Find out whether the folder of a home is gone, and remove a home with its entry in the map of folders.

A home is first set aside, as `.<id>.gone` beside the others. Then its entry is removed, then its content. Until the
entry is removed nothing is lost: a removal that was interrupted before puts the home back, one after goes on.
"""

import os
import re
import tempfile
from shutil import rmtree

from baton.config import Home
from baton.core.errors import BatonError
from baton.storage.files import FileLock, find_mount, fsync_dir
from baton.storage.homes import check_state, home_path, known, look_up, read_mount
from baton.storage.new_homes import forget
from baton.storage.removal import entries_of, size_of

EXISTS = "its folder exists"
_ASIDE = re.compile(r"\.([0-9a-f]{16})\.gone")
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108  they are only compared with
_MOUNTED_ON_DEMAND = ("/media", "/mnt", "/run/media", "/net")
_OF_BATON = re.compile(
    r"home\.json|\.gitignore|baton\.toml|jobs|outputs|delegate_job_logs|sessions|monitor\.(lock|json)"
    r"|(agent|baton)-sessions\.(db|yaml).*|\..*\.tmp"
)


def why_not_gone(folder: str, mount: str) -> str | None:
    """Return why the folder may exist; None if it is gone. `mount`: where its file system was mounted, "" if that is
    unknown. A folder that is missing may be on a file system that is not mounted."""
    try:
        os.lstat(folder)
    except FileNotFoundError:
        return _why_perhaps_not_mounted(folder, mount)
    except OSError as error:
        return f"its folder cannot be looked at: {error.strerror}"
    return EXISTS


def _why_perhaps_not_mounted(folder: str, mount: str) -> str | None:
    parent = os.path.dirname(folder)
    is_temporary = _is_below(folder, (*_TEMPORARY, tempfile.gettempdir()))
    while is_temporary and not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    try:
        names = os.listdir(parent)
    except FileNotFoundError:
        return f"{parent} is missing, too: it may be on a file system that is not mounted"
    except OSError as error:
        return f"{parent} cannot be looked at: {error.strerror}"
    if mount:
        return None if find_mount(parent)[0] == mount else f"the file system {mount} is not mounted"
    if not is_temporary and (not names or _is_below(folder, _MOUNTED_ON_DEMAND)):
        return f"{parent} may be where a file system is mounted that is not there now"
    return None


def mount_of(home: Home) -> str:
    """Return where the file system of a home's folder was mounted; "" if that is unknown, as with older homes."""
    return "" if home.in_place else read_mount(home.path)


def find_foreign(home: Home) -> str | None:
    """Return a file in a home that is not of baton; None if there is none."""
    foreign = (name for name in sorted(os.listdir(home.path)) if not _OF_BATON.fullmatch(name))
    return next(foreign, None)


def exists(home: Home) -> bool:
    """Return whether there is anything to remove but the entry in the map of folders."""
    return not home.in_place and os.path.lexists(home.path)


def remove_home(state_dir: str, home: Home, mount: str) -> tuple[int, str | None]:
    """Remove a home; return how much of the disk it took, and why it was kept, if it was. The caller holds its lock."""
    state = check_state(state_dir)
    with FileLock(os.path.join(state, "trust.lock")):
        if look_up(state, home.folder) not in (home, home.replace(made=False)):
            return 0, "it was changed meanwhile"
        if not exists(home):
            if (why := why_not_gone(home.folder, mount)) is None:
                forget(state, home)
            return 0, why
        size, aside = size_of(home.path), _aside(state, home.home_id)
        os.rename(home.path, aside)
        fsync_dir(os.path.dirname(aside))
        if (why := why_not_gone(home.folder, mount)) is not None:  # guard: folder-that-reappears
            os.rename(aside, home.path)
            return 0, why
        forget(state, home)
        rmtree(aside)
    return size, None


def finish_removals(state_dir: str) -> None:
    """Put back each home whose removal was interrupted before its entry was removed, and remove the rest of others."""
    state = check_state(state_dir)
    if not os.path.isdir(state):
        return
    with FileLock(os.path.join(state, "trust.lock")):
        unreadable: list[BatonError] = []
        recorded = {home.home_id for home in known(state, unreadable.append)}
        for match, entry in entries_of(os.path.join(state, "homes"), _ASIDE):
            aside, path = entry.path, home_path(state, match[1])
            if match[1] not in recorded and not unreadable:
                rmtree(aside)
            elif match[1] in recorded and not os.path.lexists(path):
                os.rename(aside, path)


def _aside(state: str, home_id: str) -> str:
    return os.path.join(state, "homes", f".{home_id}.gone")


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path.startswith(os.path.realpath(folder).rstrip("/") + "/") for folder in folders)
