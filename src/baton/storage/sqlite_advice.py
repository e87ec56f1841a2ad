"""Explain an error of SQLite to the user: what is wrong with the file, and what to do."""

from __future__ import annotations

import errno
import os

from baton.core.errors import describe_shortage
from baton.storage.sqlite import TRANSACTION_SEC

_FILES = 4  # that SQLite opens at once: the database, its log, its shared memory, the folder
_STEP = 128 * 1024  # by which its files grow at most
_ADVICE = (
    ("disk is full", "No space left on device; nothing was changed, free some and try again"),
    ("readonly", "the file or its folder is read-only; nothing was changed"),
    ("unable to open", "cannot be opened; too many open files, or no permission for its folder"),
    ("database is locked", "locked by another program; try again"),
    ("not a database", "is not a SQLite database; move it away"),
    ("interrupted", f"took longer than {TRANSACTION_SEC:g} s; it is damaged, move it away and restore a copy"),
    ("malformed", "is damaged; move it away and restore a copy, the audit logs still hold the history"),
)


def explain(message: str, lock_path: str) -> str:
    """Return what SQLite's message means, and, where it does not say why, what the system says. The lock lies in the
    folder of the database."""
    if "unable to open" in message:
        # Never open the database itself here: closing it again would drop the locks of this process.
        opened: list[int] = []
        try:
            for _ in range(_FILES):
                opened.append(os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600))  # noqa: PERF401  closed if one fails
        except OSError as error:
            return f"{describe_shortage(error) or error.strerror}; nothing was changed"
        finally:
            for fd in opened:
                os.close(fd)
    folder = os.path.dirname(lock_path)
    if "disk I/O error" in message:
        import resource  # not before: a process without open files to spare cannot import it

        if _longest(folder) + _STEP > resource.getrlimit(resource.RLIMIT_FSIZE)[0] >= 0:
            return f"{describe_shortage(OSError(errno.EFBIG, os.strerror(errno.EFBIG)))}; nothing was changed"
    # On a full disk, SQLite also takes its half-written files for damaged ones.
    if "disk I/O error" in message or "malformed" in message:
        room = os.statvfs(folder)
        message = "disk is full" if room.f_bavail * room.f_frsize < 1024 * 1024 else message
    return next((advice for part, advice in _ADVICE if part in message), message)


def _longest(folder: str) -> int:
    """Return the size of the longest file in a folder."""
    with os.scandir(folder) as entries:
        return max((entry.stat(follow_symlinks=False).st_size for entry in entries), default=0)
