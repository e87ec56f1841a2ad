"""A disk of its own for a test: small, so that it can be full, and read-only when the test says so."""

from __future__ import annotations

import errno
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = os.sysconf("SC_PAGE_SIZE")  # the least room that a file with anything in it takes there


class SmallDisk:
    """A tmpfs, which only root can mount; leaving the `with` block unmounts it."""

    def __init__(self, folder: str, size_kib: int = 1024) -> None:
        self.folder = folder
        self._size_kib = size_kib
        self._filler = os.path.join(folder, "filler")

    def __enter__(self) -> Self:
        os.mkdir(self.folder)
        self._mount("-t", "tmpfs", "-o", f"size={self._size_kib}k,mode=700", "tmpfs")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)

    @contextmanager
    def full(self, pages_left: int = 0) -> Iterator[None]:
        """No room for more than that many pages."""
        free = os.statvfs(self.folder)
        room = bytes((free.f_bavail - pages_left) * free.f_frsize)
        try:
            with open(self._filler, "wb", buffering=0) as filler:
                while room:
                    room = room[filler.write(room) :]
        except OSError as error:  # another process has written meanwhile: it is full all the same
            if error.errno != errno.ENOSPC or pages_left:
                raise
        try:
            yield
        finally:
            os.unlink(self._filler)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self._mount("-o", "remount,ro")
        try:
            yield
        finally:
            self._mount("-o", "remount,rw")

    def _mount(self, *options: str) -> None:
        subprocess.run(["mount", *options, self.folder], check=True)
