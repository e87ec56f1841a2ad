"""Building a registry beside the one in use, and swapping files of a registry folder."""

from __future__ import annotations

import os
import shutil
import time

from baton.storage.files import fsync_dir, make_private_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_STAGING = ".migrating"


def staging_dir(folder: str) -> str:
    """An empty folder for a new registry; what an interrupted migration left there is removed."""
    path = os.path.join(folder, _STAGING)
    if os.path.isdir(path):
        shutil.rmtree(path)
    make_private_dir(path)
    return path


def adopt_files(folder: str, comes_last: Callable[[str], bool]) -> None:
    """Moves everything from the staging folder up; what `comes_last` after all others: the file that makes something
    visible must find it complete."""
    path = os.path.join(folder, _STAGING)
    for name in sorted(os.listdir(path), key=comes_last):
        if name != ".lock":
            os.replace(os.path.join(path, name), os.path.join(folder, name))
    fsync_dir(folder)
    shutil.rmtree(path)


def set_aside_files(folder: str, names: Iterable[str]) -> str:
    """Moves files into a new folder in the registry's; returns its path, "" when there was nothing."""
    names = list(names)
    if not names:
        return ""
    aside = os.path.join(folder, f"set-aside-{time.strftime('%Y%m%dT%H%M%S')}-{os.urandom(2).hex()}")
    make_private_dir(aside)
    for name in names:
        os.replace(os.path.join(folder, name), os.path.join(aside, name))
    fsync_dir(aside)
    fsync_dir(folder)
    return aside
