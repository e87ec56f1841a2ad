"""Record in the history which events listeners received, each once."""

from __future__ import annotations

import os

from baton.history import read
from baton.history.append import append_lines, locked_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Received:
    """The event numbers that the log of one job has as received, as far as it was read."""

    __slots__ = ("_end", "_numbers")

    def __init__(self) -> None:
        self._end = 0
        self._numbers: set[int] = set()

    def read_on(self, fd: int) -> set[int]:
        """Read what was appended since the last call: a log may be long, and this runs for every event."""
        if os.fstat(fd).st_size < self._end:
            self._end = 0
        content = os.pread(fd, os.fstat(fd).st_size - self._end, self._end)
        whole = content[: content.rfind(b"\n") + 1]
        self._end += len(whole)
        for raw in whole.split(b"\n"):
            line = read.parse_line(raw) if b'"received"' in raw else None
            if line is not None and line.get("event") == "received" and isinstance(line.get("seq"), int):
                self._numbers.add(line["seq"])
        return self._numbers


def append_received(
    job_id: str, events: Iterable[tuple[int, str]], known: Received, *, now_ns: int, logs_dir: str | None = None
) -> None:
    """Append a `received` line for each event number that has none, from this or any other listener.

    A job never uses a number twice, in whatever attempt.
    """
    with locked_log(job_id, logs_dir) as (fd, folder):
        there = known.read_on(fd)
        lines = [{"event": "received", "seq": seq, "name": name} for seq, name in events if seq not in there]
        if lines:
            append_lines(fd, folder, lines, now_ns, None)
