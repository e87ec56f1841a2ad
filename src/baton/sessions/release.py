"""Find out which release of an agent's program is installed, and which the user knows are not tested.

A program is asked once (`--version`), and its answer kept in the user's state until one of its files changes. Nothing
waits for an answer, and no job fails without one."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import stat
import subprocess
import time
from shutil import which

from baton.core.fields import json_object
from baton.core.value import Any
from baton.sessions.in_thread import InThread
from baton.storage.files import make_private_dir, read_file, read_given_file, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from baton.adapters.contract import Agent

_KEPT = "releases.json"  # in the user's state
_LIMIT_SEC = 10.0
_MOST = 50  # programs, and releases that the user knows
_MOST_FILES = 200  # of a package with a native program
_NATIVE_BYTES = 1 << 20  # a native program is longer
_LONGEST = 1 << 16  # bytes that a program may print
_UPWARDS = 4  # folders from a launcher to its package.json
_NUMBER = re.compile(r"\d+(?:\.\d+)+[\w.+-]*", re.ASCII)
_ELF = b"\x7fELF"


def release_in(printed: str) -> str | None:
    """Return the release in what a program prints for `--version`; None if there is none."""
    found = _NUMBER.search(printed)
    return None if found is None else found[0].rstrip(".+-")[:80]


def known_release(state_dir: str, agent: Agent, environment: Mapping[str, str]) -> str | None:
    """Return the release of the installed program, if that is known already."""
    program = _find_program(agent, environment)
    files = None if program is None else _files_of(program)
    if program is None or files is None:
        return None
    entry = _kept(state_dir)["programs"].get(program)
    return str(entry["release"]) if isinstance(entry, dict) and entry.get("files") == files else None


class Reading:
    """Ask an agent's program for its release, in a thread. `wake` is called at its answer, or without one in time."""

    def __init__(
        self, state_dir: str, agent: Agent, environment: Mapping[str, str], folder: str, wake: Callable[[], None]
    ) -> None:
        """`folder`: where the program is run. A work folder may have files that change what it does."""
        self._state_dir, self._agent, self._environment, self._folder = state_dir, agent, environment, folder
        self._found = known_release(state_dir, agent, environment) if agent.tested_version else None
        asks = self._found is None and bool(agent.tested_version)
        self._asking = InThread(self._ask, wake) if asks else None
        self._is_taken = False

    @property
    def is_done(self) -> bool:
        return self._asking is None or self._asking.is_done

    def take(self) -> str | None:
        """Return the release once it is known, once; else None."""
        if self._is_taken or not self.is_done:
            return None
        self._is_taken = True
        return self.release

    @property
    def release(self) -> str | None:
        """Return the release, if it is known."""
        if self._asking is None or not self._asking.is_done:
            return self._found
        found: str | None = self._asking.result()
        return found

    def correct(self, release: str) -> None:
        """Keep what the running program says, if the installed one has said something else."""
        if self.is_done and release != self.release:
            self._found, self._asking = release, None
            _keep_release(self._state_dir, _find_program(self._agent, self._environment), release)

    def _ask(self) -> str | None:
        program = _find_program(self._agent, self._environment)
        try:
            release = None if program is None else release_in(_ask(program, self._folder, self._environment))
            _keep_release(self._state_dir, program, release)
        except (OSError, ValueError):
            return None  # it stays unknown
        return release


def note_untested(state_dir: str, agent: Agent, release: str | None) -> str | None:
    """Return what to say of a release with which baton was not tested, once for each release; else None."""
    if release is None or not agent.tested_version or release == agent.tested_version:
        return None
    name, kept = f"{agent.name} {release}", _kept(state_dir)
    if name in kept["noted"]:
        return None
    _write(state_dir, kept | {"noted": [*kept["noted"], name][-_MOST:]})
    return f"{name} was not tested with this release of baton, which was tested with {agent.tested_version}"


def _find_program(agent: Agent, environment: Mapping[str, str]) -> str | None:
    found = which(agent.program, path=environment.get("PATH"))
    return None if found is None else os.path.abspath(found)


def _ask(program: str, folder: str, environment: Mapping[str, str]) -> str:
    """Return what the program prints for `--version`, within the time limit."""
    until, printed = time.monotonic() + _LIMIT_SEC, b""
    with subprocess.Popen(
        [program, "--version"], cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, process_group=0,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        try:
            while (
                len(printed) < _LONGEST and select.select([child.stdout], [], [], max(0.0, until - time.monotonic()))[0]
            ):
                more = os.read(child.stdout.fileno(), _LONGEST)
                if not more:
                    break
                printed += more
        finally:
            if child.poll() is None:
                _end_group(child, until)
    return printed.decode(errors="replace")


def _end_group(child: subprocess.Popen[bytes], until: float) -> None:
    """End the program and what it has started, unless it ends by itself in time."""
    try:
        child.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # it was not waited for: no other process has its id


# -- which program it is -----------------------------------------------------------------------------------------------


def _files_of(program: str) -> list[list[Any]] | None:
    """Return what names the installed program: its launcher, its package.json and its native programs, each with inode,
    size and time of change. None for a launcher that may choose another program each time."""
    launcher = os.path.realpath(program)
    try:
        package = _package_of(launcher)
        if package is None and not _is_native(launcher, os.path.basename(program)):
            return None
        files = [launcher] if package is None else [launcher, package, *_native_programs(package)]
        return [[path, about.st_ino, about.st_size, about.st_ctime_ns] for path in files for about in [os.stat(path)]]
    except OSError:
        return None


def _is_native(launcher: str, name: str) -> bool:
    """Return whether this is the program itself: it has its name, or, in a folder of releases, that of a release. A
    program that starts others has its own name."""
    called = os.path.basename(launcher)
    with open(launcher, "rb") as file:
        return file.read(len(_ELF)) == _ELF and (called == name or release_in(called) == called)


def _package_of(launcher: str) -> str | None:
    """Return the package.json that names this launcher among its programs."""
    folder = os.path.dirname(launcher)
    for _ in range(_UPWARDS):
        path = os.path.join(folder, "package.json")
        if os.path.isfile(path):
            named = json_object(read_given_file(path)).get("bin")
            paths = named.values() if isinstance(named, dict) else [named]
            real = [os.path.realpath(os.path.join(folder, each)) for each in paths if isinstance(each, str)]
            return path if launcher in real else None
        folder = os.path.dirname(folder)
    return None


def _native_programs(package: str) -> Iterator[str]:
    """Yield the files of the packages for this system that the package brings along: npm installs one of several."""
    folder, names = os.path.dirname(package), json_object(read_given_file(package)).get("optionalDependencies")
    modules = [
        os.path.join(folder, "node_modules"),
        folder.partition(f"{os.sep}node_modules{os.sep}")[0] + "/node_modules",
    ]
    for name in sorted(names) if isinstance(names, dict) else ():
        for place in (os.path.join(each, name) for each in modules):
            if os.path.isdir(place):
                yield from _long_programs(place)


def _long_programs(place: str) -> Iterator[str]:
    """Yield the package.json in this folder, and the programs of a native size in and below it."""
    left = _MOST_FILES
    for folder, folders, files in os.walk(place):
        folders.sort()
        for path in (os.path.join(folder, name) for name in sorted(files)):
            left -= 1
            if left < 0:
                return
            about = os.lstat(path)
            is_program = stat.S_ISREG(about.st_mode) and about.st_mode & 0o111 and about.st_size >= _NATIVE_BYTES
            if is_program or path == os.path.join(place, "package.json"):
                yield path


# -- what is kept ------------------------------------------------------------------------------------------------------


def _kept(state_dir: str) -> dict[str, Any]:
    """Return what is kept: by program its files and its release, and releases that the user knows."""
    try:
        found = json_object(read_file(os.path.join(state_dir, _KEPT)))
    except OSError:
        found = {}
    programs, noted = found.get("programs"), found.get("noted")
    return {
        "programs": programs if isinstance(programs, dict) else {},
        "noted": [each for each in noted if isinstance(each, str)] if isinstance(noted, list) else [],
    }


def _keep_release(state_dir: str, program: str | None, release: str | None) -> None:
    files = None if program is None else _files_of(program)
    if program is None or release is None or files is None:
        return
    kept = _kept(state_dir)
    programs = {path: entry for path, entry in kept["programs"].items() if path != program}
    programs[program] = {"files": files, "release": release}
    _write(state_dir, kept | {"programs": dict(list(programs.items())[-_MOST:])})


def _write(state_dir: str, kept: Mapping[str, Any]) -> None:
    """Write what is kept. What cannot be written, or is lost because two processes write at once, is learned again."""
    try:
        make_private_dir(state_dir)
        replace_file(os.path.join(state_dir, _KEPT), json.dumps(kept, indent=1).encode(), durable=False)
    except OSError:
        return
