"""Read lines from a pipe, and write to one, without waiting."""

from __future__ import annotations

import os

_READ_BYTES = 1 << 20  # in one go, so that an agent with much output does not hold up the runner
_LINE_BYTES = 16 << 20  # of a line; a longer one is dropped
MAX_WAITING_BYTES = 4 << 20  # that a program has not taken, before more is refused


class LineReader:
    """The lines that a program writes. `fd` is closed at its end."""

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self.dropped = 0  # lines that were too long
        self._parts: list[bytes] = []  # of the line that is not complete
        self._length = 0
        os.set_blocking(fd, False)

    def read(self) -> list[str]:
        """Return the complete lines that can be read now, up to a limit; at the end of the output also the last one."""
        lines: list[str] = []
        done = 0
        while self.fd is not None and done < _READ_BYTES:
            try:
                more = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            done += len(more)
            if not more:
                self.close()
                if self._length:
                    self._end_line(b"", lines)
            *ends, rest = more.split(b"\n")
            for end in ends:
                self._end_line(end, lines)
            self._add(rest)
        return lines

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        if self._length > _LINE_BYTES:
            self._parts.clear()
        else:
            self._parts.append(part)

    def _end_line(self, end: bytes, lines: list[str]) -> None:
        self._add(end)
        if self._length > _LINE_BYTES:
            self.dropped += 1
        else:
            lines.append(b"".join(self._parts).decode(errors="replace"))
        self._parts.clear()
        self._length = 0

    def close(self) -> None:
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)


class Writer:
    """What a program reads. Text that it does not take yet is kept and written by `flush`."""

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self._rest = bytearray()
        self._ends = False
        os.set_blocking(fd, False)

    @property
    def is_open(self) -> bool:
        return self.fd is not None and not self._ends

    @property
    def waits(self) -> bool:
        """Return whether there is text that the program has not taken."""
        return bool(self._rest)

    def write(self, text: str) -> bool:
        """Write the text now or as soon as the program reads. Return False if it reads no more, or too little."""
        if not self.is_open or len(self._rest) > MAX_WAITING_BYTES:
            return False
        self._rest += text.encode(errors="replace")
        self.flush()
        return self.fd is not None

    def flush(self) -> None:
        try:
            while self.fd is not None and self._rest:
                del self._rest[: os.write(self.fd, self._rest)]
        except BlockingIOError:
            return
        except OSError:  # the program has closed it
            self._rest.clear()
            self._ends = True
        if self._ends:
            self.close()

    def end(self) -> None:
        """Close the pipe once everything is written."""
        self._ends = True
        self.flush()

    def close(self) -> None:
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)
