"""Keep what baton puts into a folder of the user out of git: by a `.gitignore` of its own, or the exclude file of the
repository."""

from __future__ import annotations

import os
import re
import stat

from baton.storage import files, homes


def top_of_repository(folder: str) -> str | None:
    """Return the top of the git work tree that a folder is in; None if it is in none. As for git, a folder .git without
    HEAD is no repository."""
    while True:
        git = os.path.join(folder, ".git")
        if os.path.lexists(os.path.join(git, "HEAD")) or (os.path.lexists(git) and not os.path.isdir(git)):
            return folder
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)


def ignore_in_git(path: str) -> None:
    """Make git ignore an empty folder of a repository. Below a home, which git ignores as a whole, nothing is needed.
    A folder with content of the user stays as it is."""
    with os.scandir(path) as entries:
        if next(entries, None) is not None:
            return
    parent = os.path.dirname(os.path.abspath(path))
    if top_of_repository(parent) is None:
        return
    try:
        ignored = files.read_file(os.path.join(parent, ".gitignore"), len(files.IGNORE_ALL) + 1) == files.IGNORE_ALL
    except OSError:
        ignored = False
    if not ignored:
        files.replace_file(os.path.join(path, ".gitignore"), files.IGNORE_ALL)


def exclude_from_git(folder: str, name: str) -> None:
    """Add the link to `.git/info/exclude` of the repository that the folder is in. Leave everything alone that is not
    what git makes there: a link may lead anywhere."""
    if (top := top_of_repository(folder)) is None:
        return
    git = os.path.join(top, ".git")
    if not os.path.isdir(git) and (git := homes.linked_git_dir(top) or homes.submodule_git_dir(top) or "") == "":
        return
    place = os.path.join(os.path.relpath(folder, top), name)
    pattern = "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", os.path.normpath(place))
    info = os.path.join(git, "info")
    if "\n" in pattern or any(os.path.islink(each) for each in (git, info)):
        return
    try:
        if not os.path.isdir(info):
            os.mkdir(info)  # not `.git` itself, which may be removed right now
        path = os.path.join(info, "exclude")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError:
        return  # git shows the link as untracked
    with open(fd, "rb+", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        lines = file.read(1 << 20).split(b"\n")
        wanted = os.fsencode(pattern)
        if wanted not in lines:
            files.write_all(fd, (b"\n" if lines[-1] else b"") + wanted + b"\n")
