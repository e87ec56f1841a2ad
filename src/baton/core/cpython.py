"""Find what CPython keeps in private modules, because their public modules take too long to import for a quick verb.

Another interpreter, or a later release, may not have them: then each name comes from its public module. Beside each
name stands what the private module saves when `baton status` starts with Python 3.11 and with 3.15. What saves less
than half a millisecond with every release is not worth a name here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    import sqlite3
    from datetime import datetime, timedelta, timezone
    from hashlib import sha256
    from hmac import compare_digest
    from threading import RLock

__all__ = ["RLock", "compare_digest", "datetime", "sha256", "socket", "sqlite3", "timedelta", "timezone"]

# Each place: a module, and the name in it; without a name the module itself.
_PLACES: dict[str, tuple[tuple[str, str | None], ...]] = {
    "RLock": (("_thread", "RLock"), ("threading", "RLock")),  # 1.4 and 0.6 ms
    "compare_digest": (("_operator", "_compare_digest"), ("hmac", "compare_digest")),  # 2.7 and 1.7 ms
    "datetime": (("_datetime", "datetime"), ("datetime", "datetime")),  # 1.9 and 0.1 ms
    "timedelta": (("_datetime", "timedelta"), ("datetime", "timedelta")),
    "timezone": (("_datetime", "timezone"), ("datetime", "timezone")),
    # 2.2 and 1.7 ms: OpenSSL. `_sha2` is the place from Python 3.12 on, `_sha256` before.
    "sha256": (("_sha2", "sha256"), ("_sha256", "sha256"), ("hashlib", "sha256")),
    "socket": (("_socket", None), ("socket", None)),  # 3.2 and 1.2 ms
    "sqlite3": (("_sqlite3", None), ("sqlite3", None)),  # 2.1 and 0.7 ms: converters that baton does not use
}


def __getattr__(name: str) -> object:
    """Import a name when it is asked for, from the first place that has it."""
    for module, attribute in _PLACES.get(name, ()):
        try:
            found = __import__(module)
            value = found if attribute is None else getattr(found, attribute)
        except (ImportError, AttributeError):
            continue  # another release of Python: the public module is the last place
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
