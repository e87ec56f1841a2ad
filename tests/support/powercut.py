"""What a disk may hold after the power went: a program's file operations recorded with strace, cut at every
point, and replayed with what was not yet synced left out.

POSIX promises little, and no more is assumed here: the content of a file survives once the file was synced, a
name (made, renamed, removed) once its folder was. Whatever came later may survive in whole, in part, or not.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from random import Random

    Image = Mapping[str, bytes | None]  # path: content, or None for a folder

_UNDERSTOOD = (
    "openat", "close", "write", "pwrite64", "lseek", "ftruncate", "fsync", "fdatasync",
    "rename", "unlink", "mkdir",
)  # fmt: skip
_NOT_UNDERSTOOD = (
    "open", "creat", "writev", "pwritev", "pwritev2", "truncate", "fallocate", "copy_file_range", "sendfile",
    "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlinkat", "rmdir", "mkdirat",
    "dup", "dup2", "dup3",
)  # fmt: skip
_CALL = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_RECORDING_TIMEOUT_SEC = 60


class Operation(NamedTuple):
    """One call on a file below the recorded folder; `path` is relative to it. An acknowledgement is the line
    the program wrote to its stdout, as `data`."""

    call: str
    path: str
    to: str = ""
    offset: int = 0
    data: bytes = b""


def record(command: Sequence[str], folder: str, *, env: Mapping[str, str] | None = None) -> list[Operation]:
    """Runs the command and returns what it did to the files below the folder, and what it printed, in order.
    The command names files by absolute paths and is a single thread."""
    trace = f"{folder}.trace"
    strace = ["strace", "-f", "-xx", "-s", "10000000", "-o", trace]
    strace += ["-e", f"trace={','.join(_UNDERSTOOD + _NOT_UNDERSTOOD)}"]
    try:
        done = subprocess.run(
            [*strace, *command],
            capture_output=True,
            text=True,
            env=env,
            timeout=_RECORDING_TIMEOUT_SEC,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the recorded program failed: {done.stderr}")
        with open(trace, encoding="ascii") as lines:
            return list(_Parser(folder).operations(lines))
    finally:
        if os.path.exists(trace):
            os.unlink(trace)


class _Parser:
    def __init__(self, folder: str) -> None:
        self._below = folder.rstrip("/") + "/"
        self._open: dict[int, str] = {}
        self._position: dict[int, int] = {}

    def operations(self, lines: Iterator[str]) -> Iterator[Operation]:
        for line in lines:
            match = _CALL.match(line)
            if match is None:
                if "unfinished" in line:
                    raise RuntimeError(f"two threads at once, whose order cannot be told: {line[:200]}")
                continue
            call, arguments, result = match[1], match[2], int(match[3])
            if result >= 0:
                yield from self._operation(call, arguments, result)

    def _operation(self, call: str, arguments: str, result: int) -> Iterator[Operation]:
        texts = [bytes.fromhex(found[1].replace("\\x", "")) for found in _TEXT.finditer(arguments)]
        if any(found[2] for found in _TEXT.finditer(arguments)):
            raise RuntimeError("strace cut a text short")
        if call in ("openat", "rename", "unlink", "mkdir") or (call in _NOT_UNDERSTOOD and texts):
            paths = [self._relative(os.fsdecode(text)) for text in texts]
            if any(path is not None for path in paths):
                if None in paths or call in _NOT_UNDERSTOOD:
                    raise RuntimeError(f"cannot replay {call}({arguments[:300]})")
                yield from self._named(call, [path for path in paths if path is not None], arguments, result)
            return
        fd = int(arguments.partition(",")[0])
        if fd == 1 and call == "write":
            yield Operation("acknowledge", "", data=texts[0])
        if fd not in self._open:
            return
        path = self._open[fd]
        if call == "close":
            del self._open[fd]
        elif call == "lseek":
            self._position[fd] = result
        elif call == "write":
            yield Operation("write", path, offset=self._position[fd], data=texts[0][:result])
            self._position[fd] += result
        elif call == "pwrite64":
            yield Operation("write", path, offset=int(arguments.rpartition(",")[2]), data=texts[0][:result])
        elif call == "ftruncate":
            yield Operation("truncate", path, offset=int(arguments.rpartition(",")[2]))
        elif call in ("fsync", "fdatasync"):
            yield Operation("sync", path)
        else:
            raise RuntimeError(f"cannot replay {call} of {path}")

    def _named(self, call: str, paths: list[str], arguments: str, result: int) -> Iterator[Operation]:
        if call == "openat":
            self._open[result] = paths[0]
            self._position[result] = 0
            if "O_CREAT" in arguments:
                yield Operation("create", paths[0])
            if "O_TRUNC" in arguments:
                yield Operation("truncate", paths[0])
            return
        if call == "rename":
            # A file that is open while it is renamed goes on under its new name.
            for fd, path in self._open.items():
                if path == paths[0]:
                    self._open[fd] = paths[1]
        yield Operation(call, paths[0], to=paths[-1])

    def _relative(self, path: str) -> str | None:
        if path + "/" == self._below:
            return ""
        return path.removeprefix(self._below) if path.startswith(self._below) else None


# -- the disk ----------------------------------------------------------------------------------------------


class _File:
    """What is safe, and the writes since: a write has an offset and data, a truncation an offset and None."""

    def __init__(self, safe: bytes = b"") -> None:
        self.safe = safe
        self.unsafe: list[tuple[int, bytes | None]] = []

    def with_writes(self, writes: Sequence[tuple[int, bytes | None]]) -> bytes:
        content = bytearray(self.safe)
        for offset, data in writes:
            end = offset + len(data or b"")
            content += bytes(max(0, end - len(content)))
            if data is None:
                del content[offset:]
            else:
                content[offset:end] = data
        return bytes(content)

    def sync(self) -> None:
        self.safe = self.with_writes(self.unsafe)
        self.unsafe = []


class _Folder:
    """The names that are safe, and the changes of names since: what each name stands for, None for nothing."""

    def __init__(self) -> None:
        self.safe: dict[str, _File | _Folder] = {}
        self.unsafe: list[dict[str, _File | _Folder | None]] = []

    def with_changes(self, count: int) -> dict[str, _File | _Folder]:
        names: dict[str, _File | _Folder | None] = {**self.safe}
        for change in self.unsafe[:count]:
            names |= change
        return {name: node for name, node in names.items() if node is not None}

    def sync(self) -> None:
        self.safe = self.with_changes(len(self.unsafe))
        self.unsafe = []

    @property
    def now(self) -> dict[str, _File | _Folder]:
        return self.with_changes(len(self.unsafe))


def _no_names(_folder: _Folder) -> int:
    return 0


def _all_names(folder: _Folder) -> int:
    return len(folder.unsafe)


def _no_writes(file: _File) -> bytes:
    return file.safe


def _all_writes(file: _File) -> bytes:
    return file.with_writes(file.unsafe)


def _zeros_for_writes(file: _File) -> bytes:
    """The file has grown, but not what was written there."""
    return file.safe.ljust(len(_all_writes(file)), b"\0")


# What a cut may leave of that which was not synced: of the names, of the contents.
_CUTS: dict[str, tuple[Callable[[_Folder], int], Callable[[_File], bytes]]] = {
    "all": (_all_names, _all_writes),
    "synced only": (_no_names, _no_writes),
    "names without content": (_all_names, _no_writes),
    "names with zeros": (_all_names, _zeros_for_writes),
    "content without names": (_no_names, _all_writes),
}


class Disk:
    """A folder on a disk, where everything that was there at the start is safe."""

    def __init__(self, start: Image) -> None:
        self._root = _Folder()
        for path, content in sorted(start.items()):
            self._parent(path).safe[os.path.basename(path)] = _Folder() if content is None else _File(content)

    def apply(self, operation: Operation) -> None:
        call, path = operation.call, operation.path
        if call == "acknowledge":
            return
        if call == "sync":
            self._find(path).sync()
        elif call == "write":
            self._file(path).unsafe.append((operation.offset, operation.data))
        elif call == "truncate":
            self._file(path).unsafe.append((operation.offset, None))
        elif call == "mkdir":
            self._rename({path: _Folder()})
        elif call == "create":
            if os.path.basename(path) not in self._parent(path).now:
                self._rename({path: _File()})
        elif call == "unlink":
            self._rename({path: None})
        elif call == "rename":
            self._rename({path: None, operation.to: self._find(path)})

    def images(self, random: Random, mixes: int) -> Iterator[tuple[str, Image]]:
        """Every way the power may go now: the corner cases, and that many random mixes of them."""
        for kind, (names, content) in _CUTS.items():
            yield kind, self._image(names, content)
        for _ in range(mixes):
            yield "mixed", self._image(lambda folder: random.randint(0, len(folder.unsafe)), _some_writes(random))

    def _image(self, names: Callable[[_Folder], int], content: Callable[[_File], bytes]) -> Image:
        image: dict[str, bytes | None] = {}

        def walk(folder: _Folder, prefix: str) -> None:
            for name, node in folder.with_changes(names(folder)).items():
                if isinstance(node, _Folder):
                    image[prefix + name] = None
                    walk(node, f"{prefix}{name}/")
                else:
                    image[prefix + name] = content(node)

        walk(self._root, "")
        return image

    def _rename(self, changes: dict[str, _File | _Folder | None]) -> None:
        """Inside one folder, a rename is one change; between two, it is one in each."""
        by_folder: dict[str, dict[str, _File | _Folder | None]] = {}
        for path, node in changes.items():
            by_folder.setdefault(os.path.dirname(path), {})[os.path.basename(path)] = node
        for folder, names in by_folder.items():
            parent = self._find(folder)
            assert isinstance(parent, _Folder)
            parent.unsafe.append(names)

    def _find(self, path: str) -> _File | _Folder:
        node: _File | _Folder = self._root
        for part in filter(None, path.split("/")):
            assert isinstance(node, _Folder)
            node = node.now[part]
        return node

    def _file(self, path: str) -> _File:
        node = self._find(path)
        assert isinstance(node, _File)
        return node

    def _parent(self, path: str) -> _Folder:
        node = self._find(os.path.dirname(path))
        assert isinstance(node, _Folder)
        return node


def _some_writes(random: Random) -> Callable[[_File], bytes]:
    def content(file: _File) -> bytes:
        kept: list[tuple[int, bytes | None]] = []
        for offset, data in file.unsafe:
            fate = random.choice(("lost", "kept", "torn"))
            if fate == "torn" and data:
                kept.append((offset, data[: random.randrange(len(data))]))
            elif fate != "lost":
                kept.append((offset, data))
        return file.with_writes(kept)

    return content


# -- images and real folders -------------------------------------------------------------------------------


def read_image(folder: str) -> dict[str, bytes | None]:
    image: dict[str, bytes | None] = {}
    for parent, folders, files in os.walk(folder):
        for name in folders:
            image[os.path.relpath(os.path.join(parent, name), folder)] = None
        for name in files:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                image[os.path.relpath(path, folder)] = file.read()
    return image


def write_image(image: Image, folder: str) -> None:
    os.mkdir(folder)
    for path, content in sorted(image.items()):
        target = os.path.join(folder, path)
        if content is None:
            os.mkdir(target)
        else:
            with open(target, "wb") as file:
                file.write(content)
