"""Record in the history of a job which of its events listeners have received."""

import os
from bisect import bisect_right
from collections.abc import Iterable

from baton.core.fields import json_object
from baton.history.log import append_lines, locked_log

_READ_BYTES = 1 << 20


class Ranges:
    """A set of whole numbers, kept as ranges: numbers that follow each other take no more room than two."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        position = bisect_right(self._starts, number)
        return position > 0 and number <= self._ends[position - 1]

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._starts)

    def add(self, number: int) -> None:
        if number in self:
            return
        position = bisect_right(self._starts, number)
        follows = position > 0 and self._ends[position - 1] == number - 1
        precedes = position < len(self) and self._starts[position] == number + 1
        if follows and precedes:
            del self._starts[position], self._ends[position - 1]
        elif follows:
            self._ends[position - 1] = number
        elif precedes:
            self._starts[position] = number
        else:
            self._starts.insert(position, number)
            self._ends.insert(position, number)


class Received:
    """The event numbers that the history of one job has as received, as far as it was read."""

    __slots__ = ("_end", "_numbers")

    def __init__(self) -> None:
        self._end = 0
        self._numbers = Ranges()

    def read_on(self, fd: int) -> Ranges:
        """Read what was appended since the last call: a history may be long, and this runs for every event."""
        if os.fstat(fd).st_size < self._end:
            self._end = 0
        while content := os.pread(fd, _READ_BYTES, self._end):
            whole = content[: content.rfind(b"\n") + 1]
            if not whole and len(content) < _READ_BYTES:
                break  # half a line, which a crash left
            self._end += len(whole or content)
            for raw in whole.split(b"\n"):
                line = json_object(raw) if b'"received"' in raw else {}
                if line.get("event") == "received" and isinstance(line.get("seq"), int):
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
