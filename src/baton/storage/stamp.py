"""Notice that a file was written, without reading it."""

from __future__ import annotations

import os
import time

_COARSE_NS = 50_000_000  # longer than a tick of the clock by which the kernel dates writes


def stamp_of(path: str, *others: str) -> object:
    """Return a value that differs after each later write to the first of these files that exists, () while there is
    none. None for a moment after a write: the next one may get the same time."""
    try:
        file = os.stat(path)
    except FileNotFoundError:
        return stamp_of(*others) if others else ()
    is_settled = file.st_mtime_ns < time.time_ns() - _COARSE_NS
    return (path, file.st_ino, file.st_size, file.st_mtime_ns) if is_settled else None
