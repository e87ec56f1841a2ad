"""Remove files and folders, and say how much of the disk they took."""

import os
import re
import stat
from collections.abc import Iterator


def size_of(path: str) -> int:
    """Return how much of the disk a file or a folder with everything in it takes, in bytes. Follow no link."""
    size, waiting = 0, [path]
    while waiting:
        each = waiting.pop()
        found = os.lstat(each)
        size += found.st_blocks * 512
        if stat.S_ISDIR(found.st_mode):
            waiting += (os.path.join(each, name) for name in os.listdir(each))
    return size


def remove_sized(path: str, *, dry_run: bool = False) -> int:
    """Remove a file; return how much of the disk it took. With `dry_run`, only that."""
    size = size_of(path)
    if not dry_run:
        os.unlink(path)
    return size


def remove_known(folder: str, known: re.Pattern[str], *, dry_run: bool = False) -> int:
    """Remove a folder whose files all have known names; return how much of the disk it took. If there are others, they
    stay, with the folder, and OSError names one of them."""
    if os.path.islink(folder):  # guard: prune-link
        raise OSError(f"{folder} is a link and was left as it is")
    size, others = size_of(folder), []
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not known.fullmatch(name) or os.path.isdir(path):  # guard: prune-foreign-file
            others.append(path)
        elif not dry_run:
            os.unlink(path)
    if others:
        raise OSError(f"{others[0]} is not a file of baton and was left as it is")
    if not dry_run:
        os.rmdir(folder)
    return size


def entries_of(folder: str, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], os.DirEntry[str]]]:
    """Yield the entries of a folder whose names match; none if the folder does not exist."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if match := pattern.fullmatch(entry.name):
            yield match, entry


def is_older(entry: os.DirEntry[str], before_ns: int) -> bool:
    """Return whether an entry was last changed before that time; False if it has just been removed."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns < before_ns
    except FileNotFoundError:
        return False
