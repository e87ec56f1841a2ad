"""Reserve the client ids of listeners: one file for each id, locked while a listener uses it."""

import fcntl
import hashlib
import os
import re

from baton.core.errors import BrokerUnavailable
from baton.storage.files import make_private_dir, open_private, try_lock, write_all

_MOST_LISTENERS = 1000
_FILE = re.compile(r"[0-9a-f]{16}-\d{1,4}")


def reserve_client_id(state_dir: str, broker: str, topics: list[str]) -> tuple[int, str]:
    """Return the lock that reserves a client id, and the id. A restarted listener gets the same id. Two listeners never
    share one: a broker closes the older of two connections with one id, so they would disconnect each other."""
    folder = _folder(state_dir)
    make_private_dir(folder)
    about = f"{os.uname().nodename} {_random_id(folder)} {broker} {' '.join(topics)}"
    name = hashlib.sha256(about.encode()).hexdigest()[:16]
    for number in range(_MOST_LISTENERS):
        fd = try_lock(os.path.join(folder, f"{name}-{number}"))
        if fd is not None:
            return fd, f"baton-sub-{name}-{number}"
    raise BrokerUnavailable("a thousand listeners to the same jobs on one machine", transient=False)


def remove_unused(state_dir: str, before_ns: int, *, dry_run: bool = False) -> list[int]:
    """Remove the files that were made before that time and that no listener uses; return what each took on disk. The
    next listener makes its file again."""
    from baton.storage.removal import entries_of, is_older, remove_sized  # a listener needs none of it

    sizes = []
    for _, entry in entries_of(_folder(state_dir), _FILE):
        if entry.is_file(follow_symlinks=False) and is_older(entry, before_ns):
            lock = try_lock(entry.path)
            if lock is not None:
                sizes.append(remove_sized(entry.path, dry_run=dry_run))
                os.close(lock)
    return sizes


def _folder(state_dir: str) -> str:
    return os.path.join(state_dir, "listeners")


def _random_id(folder: str) -> str:
    """Return the random id of this state folder, which is another for other users of the host."""
    fd = open_private(os.path.join(folder, "id"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if not os.fstat(fd).st_size:
            write_all(fd, os.urandom(16).hex().encode())
        return os.pread(fd, 64, 0).decode(errors="replace")
    finally:
        os.close(fd)
