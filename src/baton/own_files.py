"""Judge whether only the user can change a file, and whether only the user can read it.

A file that decides what runs, or that answers for the user, must be the user's own. One rule for all of them:

- The file, each folder on the way to it and each link belong to the user or to root. In a user namespace, a folder or a
  link may also belong to a user whom the namespace does not know: root of the machine is one of them.
- Other users cannot write the file or such a folder. A folder with the sticky bit is accepted: others can add files
  there, and replace none.
- A group may write if it is the private group of the user: many systems give one to each user, with the umask 0002.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import cache

_MOST_LINKS = 40
_ACL = "system.posix_acl_access"


def others_can_read(found: os.stat_result) -> bool:
    """Return whether other users can read a file with a password or a key. Any group counts as other users."""
    return bool(found.st_mode & 0o077)


def why_shared(path: str, opened: os.stat_result | None = None) -> str | None:
    """Return why another user can change or replace what is at a path, and what to do; None if only the user can. The
    text continues a line that begins with the path. If nothing is there, only the folders on the way are judged.

    `opened`: the status of the file that was opened there, which may be gone from the path by now."""
    real, found, why = _follow(path)
    found = opened or found
    if why is not None or found is None:
        return why
    what = "" if real == os.path.abspath(path) else f"leads to {real}, which "
    if found.st_uid not in (os.geteuid(), 0):  # guard: files-of-others
        return f"{what}belongs to another user (id {found.st_uid}); use a copy of your own in its place"
    if (writers := _writers(real, found)) is not None:
        return f"{what}can be written by other users ({writers}); run {_chmod('go-w', real, found)}"
    return None


def is_closed(folder: os.stat_result) -> bool:
    """Return whether no other user, and no group, can enter a folder: then only the user reaches what is in it."""
    return not folder.st_mode & 0o011


def why_replaceable(path: str) -> str | None:
    """Return why another user can replace what is at a path, and what to do; None if only the user can."""
    return _follow(path)[2]


def _follow(path: str) -> tuple[str, os.stat_result | None, str | None]:
    """Follow a path from `/` on, link by link. Return the real path, its status (None: nothing is there), and the first
    reason why another user can replace what is there."""
    root = os.stat("/")
    place, found = "/", root
    left = os.path.join("" if path.startswith("/") else os.getcwd(), path).split("/")[::-1]
    links = 0
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = os.path.dirname(place)
            found = os.lstat(place)
            continue
        if (why := _why_folder_shared(place, found)) is not None:  # guard: folders-of-others
            return place, found, why
        entry = os.path.join(place, name)
        try:
            status = os.lstat(entry)
        except FileNotFoundError:
            return entry, None, None
        if not stat.S_ISLNK(status.st_mode):
            place, found = entry, status
            continue
        if not _is_trusted(status.st_uid):  # guard: links-of-others
            why = f"is reached by {entry}, a link of another user (id {status.st_uid}); use a path without it"
            return place, found, why
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(entry)
        if target.startswith("/"):
            place, found = "/", root
        left += target.split("/")[::-1]
    return place, found, None


def _why_folder_shared(folder: str, found: os.stat_result) -> str | None:
    if not _is_trusted(found.st_uid):
        return f"is reached through {folder}, which belongs to another user (id {found.st_uid}); use another folder"
    if found.st_mode & stat.S_ISVTX or (writers := _writers(folder, found)) is None:
        return None
    change = "go-w" if found.st_uid == os.geteuid() else "+t"  # a folder of root may be meant for several users
    return f"is reached through {folder}, which other users can write ({writers}); run {_chmod(change, folder, found)}"


def _chmod(change: str, path: str, found: os.stat_result) -> str:
    from shlex import quote

    return f"`{'' if os.geteuid() in (found.st_uid, 0) else 'sudo '}chmod {change} {quote(path)}`"


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), 0) or _is_unmapped(uid)


@cache
def _is_unmapped(uid: int) -> bool:
    """Return whether the id stands for users that are unknown in the user namespace of this process. In a sandbox or a
    container, root of the machine is one of them, and owns the folders on the way."""
    try:
        with open("/proc/self/uid_map") as known, open("/proc/sys/fs/overflowuid") as overflow:
            return known.read().split() != ["0", "0", "4294967295"] and uid == int(overflow.read())
    except (OSError, ValueError):
        return False


def _writers(path: str, found: os.stat_result) -> str | None:
    """Return the mode by which other users can write, and who; None if they cannot."""
    mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
    if found.st_mode & stat.S_IWOTH:
        is_read_only = stat.S_ISDIR(found.st_mode) and os.statvfs(path).f_flag & os.ST_RDONLY
        return None if is_read_only else mode  # settings that a cluster mounts are in such a folder
    if not found.st_mode & stat.S_IWGRP:
        return None
    group = _shared_group(found.st_gid, os.geteuid())
    if group is not None:
        return f"{mode}, group {group}"
    return f"{mode}, and an access control list" if _has_access_list(path) else None


def _has_access_list(path: str) -> bool:
    """Return whether users or groups are named who may write: then the group in the mode stands for them, too."""
    try:
        return _ACL in os.listxattr(path)
    except OSError:
        return False  # a file system without such lists


@cache
def _shared_group(gid: int, own: int) -> str | None:
    """Return the name of the group; None if it is the private group of the user with the id `own`.

    That is the user's primary group, without another member but root. Some directory services do not list their
    accounts, so that their primary groups are unknown: a user of one has a private group if it has the user's name."""
    import grp
    import pwd

    try:
        account = pwd.getpwuid(own)
        user, primary = account.pw_name, account.pw_gid
    except KeyError:  # a container may run as an id without an account
        user, primary = "", os.getegid()
    try:
        group, members = (entry := grp.getgrgid(gid)).gr_name, entry.gr_mem
    except KeyError:
        group, members = str(gid), []
    if gid != primary or any(member not in (user, "root") for member in members):
        return group
    accounts = pwd.getpwall()
    if any(each.pw_gid == gid and each.pw_uid not in (own, 0) for each in accounts):
        return group
    is_listed = not user or any(each.pw_uid == own for each in accounts)
    return None if is_listed or group == user else group
