"""Keep what the agent of a job printed, in the home where it ran: appended as it comes, up to a limit.

    <home>/outputs/<job_id>/<attempt>.<part>.out

A part takes half of the limit. When it is full, the next one begins and the one before it is removed: the end is kept.
Several processes may append at the same time.
"""

from __future__ import annotations

import os
import re

from baton.core.result import HIDDEN, own_keys
from baton.storage.files import make_private_dir, open_private, refuse_link, remove_file, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from baton.core.job import Job

OUTPUTS = "outputs"
PART = re.compile(r"(\d{1,9})\.(\d{1,9})\.out", re.ASCII)
_CHUNK = 1 << 16
_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-OQ-WYZ\\`-~])|\r+(?=\n)"
)
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?|(?<!\r)\r+)\Z")
_LONGEST_ESCAPE = 4096


def output_folder(home: str, job_id: str) -> str:
    """Return the folder of the outputs of a job. Refuse a link in its place, which may leave the home."""
    folder = os.path.join(home, OUTPUTS, job_id)
    for each in (os.path.dirname(folder), folder):
        refuse_link(each)
    return folder


class OutputWriter:
    """Appends to the output of one attempt at a job, without baton's own keys (`keys`). `limit` is in bytes."""

    def __init__(self, home: str, job: Job, limit: int, keys: Iterable[str | None]) -> None:
        self._folder = output_folder(home, job.job_id)
        self._attempt = job.attempt
        self._half = max(limit // 2, 1)
        self._keys = [key.encode() for key in own_keys(keys)]
        self._rest = b""

    def write(self, content: bytes) -> None:
        """Append the content now, but for an end that may be the beginning of a key or of an escape sequence."""
        content, self._rest = self._split(self._rest + content)
        self._append(content)

    def write_line(self, text: str) -> None:
        self.write(text.encode(errors="replace") + b"\n")

    def flush(self) -> None:
        """Append what `write` has held back."""
        rest, self._rest = self._rest, b""
        self._append(rest)

    def _split(self, content: bytes) -> tuple[bytes, bytes]:
        content = _ESCAPE.sub(b"", content)
        for key in self._keys:
            content = content.replace(key, HIDDEN.encode())  # guard: keys-in-output
        held = 0
        unfinished = _UNFINISHED.search(content, max(len(content) - _LONGEST_ESCAPE, 0))
        if unfinished is not None:
            held = len(unfinished[0])
        for key in self._keys:
            held = max([held, *(length for length in range(1, len(key)) if content.endswith(key[:length]))])
        end = len(content) - held
        return content[:end].replace(b"\r", b"\n"), content[end:]

    def _append(self, content: bytes) -> None:
        if not content:
            return
        make_private_dir(self._folder)
        part = max(parts_of(self._folder, self._attempt), default=0)
        content = content[-self._half :]
        fd = self._open(part)
        try:
            if os.fstat(fd).st_size + len(content) > self._half and os.fstat(fd).st_size:
                os.close(fd)
                fd = self._open(part + 1)
                remove_file(self._path(part - 1))
            write_all(fd, content)
        finally:
            os.close(fd)

    def _open(self, part: int) -> int:
        return open_private(self._path(part), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _path(self, part: int) -> str:
        return os.path.join(self._folder, f"{self._attempt}.{part}.out")


def parts_of(folder: str, attempt: int) -> list[int]:
    """Return the numbers of the parts of an attempt's output, in order. Without part 0, the beginning is not kept."""
    try:
        found = [PART.fullmatch(name) for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match[2]) for match in found if match is not None and int(match[1]) == attempt)


class OutputReader:
    """Reads the output of an attempt from its beginning on, while it may still be written."""

    def __init__(self, home: str, job: Job) -> None:
        self._folder = output_folder(home, job.job_id)
        self._attempt = job.attempt
        self._part = -1
        self._fd: int | None = None
        self._cut = False

    @property
    def begins_late(self) -> bool:
        """Return whether the beginning is not kept."""
        return min(parts_of(self._folder, self._attempt), default=0) > 0

    def exists(self) -> bool:
        return bool(parts_of(self._folder, self._attempt))

    def read(self) -> Iterator[bytes]:
        """Yield what has been written since the last call."""
        while True:
            if self._fd is not None:
                while chunk := os.read(self._fd, _CHUNK):
                    chunk = self._from_line_start(chunk)
                    if chunk:
                        yield chunk
            if not self._open_next():
                return

    def _from_line_start(self, chunk: bytes) -> bytes:
        if not self._cut:
            return chunk
        _, broken, rest = chunk.partition(b"\n")
        self._cut = not broken
        return rest

    def _open_next(self) -> bool:
        """Open the next part, if there is one, after the last of the present one has been read."""
        following = [part for part in parts_of(self._folder, self._attempt) if part > self._part]
        if not following:
            return False
        if self._fd is not None:
            rest = os.fstat(self._fd).st_size - os.lseek(self._fd, 0, os.SEEK_CUR)
            if rest > 0:
                return True  # written between the last read and the beginning of the next part
        try:
            fd = open_private(os.path.join(self._folder, f"{self._attempt}.{following[0]}.out"), os.O_RDONLY)
        except FileNotFoundError:
            return True  # removed meanwhile: there is a later one
        self.close()
        self._cut = following[0] > self._part + 1 and following[0] > 0
        self._fd, self._part = fd, following[0]
        return True

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
