"""The change numbers of a file registry: a line for each number, in its order, that names the job.

Lines have one length, so that the place of a number in the file is known, and the end of the file says which is next.
The first line is the number of the second. The log is a part of the index: after a crash it begins anew, with a number
that was never used, and a reader that knows older numbers reads every job again.
"""

from __future__ import annotations

import os
import re

from baton.storage.files import make_private_dir, open_private, read_file, remove_file, replace_file

_WIDTH = 33  # of a line: the longest id and its line end
_MOST = 20_000  # lines, before the older ones are dropped
_KEPT = 5_000
_TEMPORARY = re.compile(r"\.changes\.[0-9a-f]{8}\.tmp", re.ASCII)


class ChangeLog:
    """Writers hold the registry's lock."""

    def __init__(self, path: str) -> None:
        self._path = path

    def following(self) -> int | None:
        """Return the number of the next change; None when there is no valid log."""
        try:
            fd = open_private(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return _following(os.read(fd, _WIDTH), os.lseek(fd, 0, os.SEEK_END))
        finally:
            os.close(fd)

    def add(self, job_id: str) -> None:
        fd = open_private(self._path, os.O_WRONLY)
        try:
            size = os.lseek(fd, 0, os.SEEK_END)
            os.pwrite(fd, _line(job_id), size)  # half a line is found by the length of the file
        finally:
            os.close(fd)
        if size > _MOST * _WIDTH:
            content = read_file(self._path)
            first = (_following(content, len(content)) or 0) - _KEPT
            replace_file(self._path, _line(f"{first:032d}") + content[-_KEPT * _WIDTH :], durable=False)

    def restart(self, last: int) -> None:
        """Begin anew after `last`, the highest number of a record, and after all numbers that the log had. One number
        is left out, so that every reader knows an older one than the first."""
        first = max(last + 1, self.following() or 0) + 1
        folder = os.path.dirname(self._path)
        make_private_dir(folder)
        for name in os.listdir(folder):
            if _TEMPORARY.fullmatch(name):  # of a process that died
                remove_file(os.path.join(folder, name))
        replace_file(self._path, _line(f"{first:032d}"), durable=False)

    def sync(self) -> None:
        try:
            fd = open_private(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return
        os.fdatasync(fd)
        os.close(fd)

    def read(self, number: int, limit: int) -> tuple[list[str] | None, int] | None:
        """Return the jobs that changed with this number or later, each once, and the number to go on with. At most
        `limit` jobs. None instead of jobs when the log does not reach back so far; None when there is no log."""
        try:
            content = read_file(self._path)
        except FileNotFoundError:
            return None
        following = _following(content, len(content))
        if following is None:
            return None
        first = int(content[:_WIDTH])
        if not first <= number <= following:
            return None, following
        found: dict[str, None] = {}
        for start in range((number - first + 1) * _WIDTH, (following - first + 1) * _WIDTH, _WIDTH):
            job_id = content[start : start + _WIDTH].decode().strip()
            if job_id not in found and len(found) == limit:
                return list(found), first + start // _WIDTH - 1
            found[job_id] = None
        return list(found), following

    def stamp(self) -> object:
        """Return a value that differs after each change."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size


def _line(text: str) -> bytes:
    return text.ljust(_WIDTH - 1).encode() + b"\n"


def _following(start: bytes, size: int) -> int | None:
    try:
        first = int(start[:_WIDTH])
    except ValueError:
        return None
    return first + size // _WIDTH - 1 if size % _WIDTH == 0 else None
