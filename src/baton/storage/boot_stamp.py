"""Whether anybody else has added to a folder or taken from it since we last looked after it."""

from __future__ import annotations

import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.clock import Clock


class Seal:
    """A modification time that we give a folder: a crash of ours in the middle, somebody else's change, or a reboot
    leave another one there. What we derived from the folder's content is then to be derived anew."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def holds(self) -> bool:
        """Also of a folder that is not there: nothing was derived from it."""
        try:
            return os.stat(self._folder).st_mtime_ns == self._moment_ns()
        except FileNotFoundError:
            return True

    def put(self) -> None:
        moment = self._moment_ns()
        try:
            os.utime(self._folder, ns=(moment, moment))
        except PermissionError:
            pass  # the folder is somebody else's: what we derive from it is derived anew each time

    def break_(self) -> None:
        try:
            os.utime(self._folder)
        except OSError:
            pass  # not ours, or read-only: then nobody relies on it either

    def _moment_ns(self) -> int:
        """A moment long past that no writer leaves by accident, another one after each boot: what was not yet on disk
        when the power went is not trusted either."""
        return (900_000_000 + zlib.crc32((self._clock.boot_id() or "").encode()) % 10**8) * 10**9
