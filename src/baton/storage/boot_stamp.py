"""The boot stamp of a folder: it says whether what was derived from the folder, such as an index, is still current."""

from __future__ import annotations

import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.clock import Clock


class BootStamp:
    """A modification time that baton gives a folder after its own changes. A crash in the middle of a change, another
    program's change, or a reboot leave another time there: what was derived from the folder must be derived again."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def is_current(self) -> bool:
        """Return whether the folder carries the stamp; True for a missing folder, from which nothing was derived."""
        try:
            return os.stat(self._folder).st_mtime_ns == self._time_ns()
        except FileNotFoundError:
            return True

    def set(self) -> None:
        self._set_time(self._time_ns())

    def clear(self) -> None:
        self._set_time(self._clock.wall_ns())

    def _set_time(self, ns: int) -> None:
        try:
            os.utime(self._folder, ns=(ns, ns))
        except OSError:
            pass  # another user's folder, or read-only: everything is derived again each time

    def _time_ns(self) -> int:
        """Return a time long past that no writer leaves by accident. It differs after each boot: changes that were not
        on disk when the power went are not trusted."""
        return (900_000_000 + zlib.crc32((self._clock.boot_id() or "").encode()) % 10**8) * 10**9
