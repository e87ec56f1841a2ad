"""Read an audit log as it grows."""

from __future__ import annotations

import os
from collections.abc import Iterator

from baton.core.fields import json_object
from baton.core.value import Any
from baton.history.log import EVENTS, job_log_path
from baton.storage.files import open_private


class GrowingLog:
    """The log of one job, read from its start."""

    def __init__(self, job_id: str, logs_dir: str | None = None) -> None:
        self.job_id = job_id
        self._path = os.path.join(job_log_path(job_id, logs_dir), EVENTS)
        self._read_to = 0

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that were added since the last call, without those that cannot be parsed. A line that is
        half written is left for the next call: a crash may have left it, and then it is replaced."""
        try:
            fd = open_private(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return
        with open(fd, "rb") as file:
            file.seek(self._read_to)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                self._read_to += len(raw)
                if line := json_object(raw):
                    yield line
