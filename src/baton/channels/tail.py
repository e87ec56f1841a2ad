"""Follow a file that another program appends lines to."""

from __future__ import annotations

import os

from baton.storage.files import open_given_file

_READ_BYTES = 1024 * 1024  # at one look
_LINE_BYTES = 4 * 1024 * 1024  # what is longer is skipped


class Tail:
    """The lines of a file from now on, or `from_start`. `folder` is where the file must be: a path that leads elsewhere
    is ignored."""

    def __init__(self, path: str, folder: str, *, from_start: bool = False) -> None:
        self.path = path
        self._folder = os.path.realpath(folder)
        self._rest = b""
        self._skipping = False
        self._offset = 0 if from_start else self._size()

    def _size(self) -> int:
        if not os.path.realpath(self.path).startswith(self._folder + os.sep):  # guard: transcript-folder
            return 0
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0  # the program has not written it yet

    def read(self) -> list[bytes]:
        """Return the complete lines that are new, up to a limit."""
        size = self._size()
        if size < self._offset:
            self._offset, self._rest = 0, b""
        if size == self._offset:
            return []
        try:
            with open_given_file(self.path) as file:
                file.seek(self._offset)
                content = file.read(_READ_BYTES)
        except OSError:
            return []  # it is not a regular file, or gone
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        if self._skipping and lines:
            del lines[0]
            self._skipping = False
        if len(self._rest) > _LINE_BYTES:
            self._rest, self._skipping = b"", True
        return lines
