"""Explain an error of SQLite to the user: what is wrong with the file, and what to do."""

from __future__ import annotations

import os

from baton.storage.sqlite import TRANSACTION_SEC

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
        try:
            os.close(os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            return f"{error.strerror}; nothing was changed"
    if "disk I/O error" in message:
        room = os.statvfs(os.path.dirname(lock_path))
        message = "disk is full" if room.f_bavail * room.f_frsize < 1024 * 1024 else message
    return next((advice for part, advice in _ADVICE if part in message), message)
