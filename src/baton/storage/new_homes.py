"""Make homes: the entry in the map of folders, the folder of the home, its link, and the line in git's exclude file."""

from __future__ import annotations

import json
import os
import stat
import time

from baton.config import Home
from baton.core.errors import BatonError
from baton.storage import files, homes
from baton.storage.git_ignores import exclude_from_git

SCHEMA_VERSION = 1
_LOOKS, _LOOK_SEC = 100, 0.02


def make(state_dir: str, home: Home) -> Home:
    """Make the home and its link; return it. Of several commands that begin at once, all use the same home. The entry
    in the map comes first: what is made without one belongs to no folder."""
    state = homes.make_state(state_dir)
    files.make_private_dir(os.path.join(state, "folders"))
    if not home.home_id:
        home = home.replace(home_id=os.urandom(8).hex())
    if not record(state, home):
        for _ in range(_LOOKS):  # a home in place that is being made has no id yet
            if (winner := homes.look_up(state, home.folder)) is not None:
                break
            time.sleep(_LOOK_SEC)
        if winner is None or winner.path != home.path:
            raise BatonError(f"{home.folder} was given another home meanwhile; run this command again")
        home = winner.replace(link=home.link, warnings=home.warnings)
    write_home(home)
    return keep_link(state, home.replace(made=True))


def record(state: str, home: Home, *, replace: bool = False) -> bool:
    """Write the entry of a home into the map, durably. Return False if its folder has one already; `replace` it."""
    entry = {"path": home.folder, "home": home.home_id, "in_place": home.in_place, "uid": os.geteuid()}
    content = json.dumps(entry | {"link": home.link, "registry": home.registry}).encode() + b"\n"
    path = homes.entry_path(state, home.folder)
    if replace:
        files.replace_file(path, content)
        return True
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    fd = files.open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            files.write_all(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
        try:
            os.link(temporary, path)  # guard: one-home-per-folder
        except FileExistsError:
            return False
    finally:
        files.remove_file(temporary)
    files.fsync_dir(os.path.dirname(path))
    return True


def keep_registry(state_dir: str, home_id: str, url: str | None) -> None:
    """Write into the map that the jobs of a home are at this url; None: in the home."""
    for home in homes.known(state_dir):
        if home.home_id == home_id and home.registry != url:
            record(homes.check_state(state_dir), home.replace(registry=url), replace=True)


def forget(state: str, home: Home) -> None:
    """Remove the entry of a home from the map. The home itself stays."""
    path = homes.entry_path(state, home.folder)
    files.remove_file(path)
    files.fsync_dir(os.path.dirname(path))


def write_home(home: Home, *, again: bool = False) -> None:
    """Create the folder of a home and its `home.json`, where they are missing. `again`: its folder has changed."""
    files.make_private_dir(home.path)
    if again or homes.read_home_id(home.path) != home.home_id:
        mount, _ = files.find_mount(home.folder)
        content = {"schema_version": SCHEMA_VERSION, "home_id": home.home_id, "folder": home.folder, "mount": mount}
        files.replace_file(os.path.join(home.path, homes.HOME_FILE), json.dumps(content).encode() + b"\n")
    files.make_home(home.path)  # after home.json: another command may look at a home in place now


# -- the link --------------------------------------------------------------------------------------------------------


def keep_link(state_dir: str, home: Home) -> Home:
    """Put the link to the home into its folder if the name is free there; else return the home with a warning.
    A folder that cannot be written has no link, and works without."""
    if home.link is None:
        return home
    place = os.path.join(home.folder, home.link)
    try:
        found = os.lstat(place)
    except OSError:
        found = None
    warning = found and _why_not_replaced(state_dir, home, place, found)
    if warning is None:
        try:
            if found:
                os.unlink(place)
            os.symlink(home.path, place)
            exclude_from_git(home.folder, home.link)
        except OSError:
            return home  # a read-only folder, or another command was faster
    return home.replace(warnings=(*home.warnings, warning)) if warning else home


def _why_not_replaced(state_dir: str, home: Home, place: str, found: os.stat_result) -> str | None:
    """Return a warning about what has the name of the link; "" for the link itself. None for a link that may be
    replaced: it leads to where the state was before, or to a home that is gone."""
    if found.st_uid != os.geteuid():
        return f"{place} belongs to another user and is not used"
    if not stat.S_ISLNK(found.st_mode):
        return f"{place} is not used: the home of {home.folder} is {home.path}; rename it"
    target = os.readlink(place)
    if target == home.path:
        return ""
    if os.path.basename(target) == home.home_id or _is_dead(state_dir, target):
        return None
    return f"{place} is a link that leads elsewhere and is not followed; rename it"


def _is_dead(state_dir: str, target: str) -> bool:
    """Return whether a link leads to a home of this state that does not exist any more."""
    homes = os.path.join(os.path.realpath(state_dir), "homes")
    return os.path.dirname(target) == homes and not os.path.lexists(target)
