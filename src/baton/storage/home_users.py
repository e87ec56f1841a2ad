"""Find the processes that use a home: baton does not take it over, or upgrade its registry, while they run."""

from __future__ import annotations

import os

from baton.core.errors import RegistryBusy
from baton.core.fields import one_line, parse_json
from baton.core.value import Value
from baton.storage.files import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_RUNNER = "baton.sessions.runner"
_MOST_SHOWN = 10
_LONGEST_MANIFEST = 64 * 1024


class HomeUser(Value):
    """A process that uses a home. `session` is the folder of the session that it belongs to."""

    pid: int
    what: str
    session: str | None = None
    is_runner: bool = False


def refuse_processes(source: str, folder: str, *, by_files: bool) -> None:
    """Raise RegistryBusy while processes of baton use a home that serves the folder; `by_files`: also while any other
    process has a file in it open."""
    found = _one_of_each_session(_users(source, folder, by_files=by_files))
    if found:  # guard: home-of-a-process
        raise RegistryBusy(f"{source} is in use: {how_to_end(found)}; nothing was changed")


def runners_of_0_1_0(home: str) -> list[HomeUser]:
    """Return the runners of sessions that baton 0.1.0 created in this home. Its manifests do not name the home."""
    found = _one_of_each_session(_users(home, home, by_files=False))
    return [user for user in found if user.is_runner and "home_id" not in _read_manifest(user.session or "")]


def how_to_end(users: list[HomeUser]) -> str:
    """Return what these processes are, and how the user ends them."""
    named = ", ".join(f"process {user.pid} ({user.what})" for user in users[:_MOST_SHOWN])
    more = f" and {len(users) - _MOST_SHOWN} more" if len(users) > _MOST_SHOWN else ""
    pids = " ".join(str(user.pid) for user in users[:_MOST_SHOWN])
    them, end = ("it", "ends") if len(users) == 1 else ("them", "end")
    return f"{named}{more}; stop {them} (kill {pids}), or wait until {'they' if len(users) > 1 else 'it'} {end}"


def _one_of_each_session(users: Iterable[HomeUser]) -> list[HomeUser]:
    """Return the users without those that end with another one: of each session its runner, if that runs."""
    found: dict[object, HomeUser] = {}
    for user in users:
        known = found.get(user.session or user.pid)
        if known is None or (user.is_runner and not known.is_runner):
            found[user.session or user.pid] = user
    return list(found.values())


def _users(source: str, folder: str, *, by_files: bool) -> Iterator[HomeUser]:
    inside = os.path.realpath(source) + "/"
    callers = list(_callers())
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if pid not in callers and (user := use_of(pid, inside, folder, by_files=by_files)) is not None:
            yield user


def _callers() -> Iterator[str]:
    """Yield this process, the one that started it, such as `sudo baton trust`, and so on."""
    pid = str(os.getpid())
    while pid != "0":
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = file.read().rpartition(b")")[2].split()[1].decode()
        except OSError:
            return  # the system hides it from this user


def use_of(pid: str, inside: str, folder: str, *, by_files: bool) -> HomeUser | None:
    """Return how a process uses a home: as a session, as a command of baton in the folder, or by an open file. A
    command that waits for a registry of files has none of them open."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")]
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = [os.fsdecode(each) for each in file.read().split(b"\0")]
        works_in = os.readlink(f"/proc/{pid}/cwd") + "/"
        paths = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")] if by_files else []
    except OSError:
        return None  # it has ended, or belongs to another user
    marks = [*words, *(each.partition("=")[2] for each in variables if each.startswith("BATON_SESSION_DIR="))]
    sessions = f"{inside}sessions/"
    below = next((path for path in map(os.path.realpath, marks) if path.startswith(sessions)), None)
    if below is not None:
        session = sessions + below.removeprefix(sessions).partition("/")[0]
        name = one_line(str(_read_manifest(session).get("session_name") or os.path.basename(session)), 64)
        is_runner = _RUNNER in words
        what = f"the runner of session {name}" if is_runner else f"of session {name}"
        return HomeUser(pid=int(pid), what=what, session=session, is_runner=is_runner)
    places = [place for place, word in enumerate(words[:3]) if os.path.basename(word) == "baton"]
    if places and works_in.startswith(folder + "/"):
        verb = one_line(" ".join(words[places[0] + 1 : places[0] + 2]), 20)
        return HomeUser(pid=int(pid), what=f"baton {verb}".strip())
    used = next((path for path in [*paths, *words] if path.startswith(inside)), None) if by_files else None
    return None if used is None else HomeUser(pid=int(pid), what=f"uses {used}")


def _read_manifest(session: str) -> dict[str, Any]:
    """Return the manifest of a session, as far as it can be read."""
    try:
        found = parse_json(read_file(os.path.join(session, "manifest.json"), _LONGEST_MANIFEST))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
