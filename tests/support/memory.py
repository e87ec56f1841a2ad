"""A folder in memory. What a killed process left behind is the same there, and comes ten times as fast."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def folder_in_memory() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="baton-crash-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
