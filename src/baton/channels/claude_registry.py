"""Read what Claude Code says about itself in its registry of sessions: `sessions/PID.json` in its configuration folder.

Any program of the user can write there, and another process may have had the pid before. An entry counts only if the
process that runs under this pid has the start time that it names, in the process namespace that it names, and is the
agent's own. Claude writes the file in place, so a look may find half of it."""

from __future__ import annotations

import errno
import os
import re
import stat

from baton.channels.child_commands import children_of, stat_fields
from baton.core.fields import UNEXPECTED_SHAPE, json_object, one_line
from baton.core.signal import Attention, Noted, Unblocked
from baton.core.value import Any, Value
from baton.storage.files import read_given_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.core.signal import Signal

IDLE, BUSY, WAITING = "idle", "busy", "waiting"
_STATUSES = (IDLE, BUSY, WAITING)
# The oldest release of which it was measured that it writes the file, and none before its first dialogs are closed.
_WRITES_SINCE = (2, 1, 197)
_MAX_BYTES = 64 * 1024
_MAX_WORDS = 200  # characters
_HALF_LOOKS = 10  # in a row that find half a file
_PACKAGE_BYTES = 1024 * 1024
_DEEPEST = 3  # processes below the one that was started: the command may be a script that starts the program
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})")
_DOMAIN = re.compile(r"linux:([^:]*):(pid:\[\d+\])")
_MACHINE = re.compile(r"[0-9a-f]{32}")


class Entry(Value):
    """What a process of Claude Code says about itself. `status` is one of IDLE, BUSY, WAITING; "" if it names none.
    `waiting_for` is in its own words."""

    pid: int
    started: int
    conversation_id: str
    status: str = ""
    waiting_for: str = ""
    domain: str = ""


def parse_entry(content: bytes) -> Entry | None:
    """Return what the file says; None if it is half written, or not of this form."""
    try:
        found = json_object(content.decode())
        pid, started = found["pid"], int(str(found["procStart"])[:20])
        if type(pid) is not int:
            return None
        status, waiting_for = _text(found.get("status")), _text(found.get("waitingFor"))
        return Entry(
            pid=pid,
            started=started,
            conversation_id=_text(found.get("sessionId")),
            status=status if status in _STATUSES else "",
            waiting_for=one_line(waiting_for, _MAX_WORDS) if status == WAITING else "",
            domain=_text(found.get("pidDomain")),
        )
    except UNEXPECTED_SHAPE:
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def read_session_file(folder: str, pid: int) -> bytes | None:
    """Return the file of this process; None if there is none. OSError if it is not a plain small file of the user."""
    sessions = os.open(os.path.join(folder, "sessions"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        flags |= os.O_NOFOLLOW  # guard: claude-registry-link
        file = os.open(f"{pid}.json", flags, dir_fd=sessions)
    except FileNotFoundError:
        return None
    finally:
        os.close(sessions)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):  # guard: claude-registry-kind
            raise OSError(errno.EINVAL, "is not a regular file")
        if found.st_uid != os.geteuid():  # guard: claude-registry-owner
            raise OSError(errno.EPERM, "belongs to another user")
        if found.st_size > _MAX_BYTES:  # guard: claude-registry-size
            raise OSError(errno.EFBIG, f"is longer than {_MAX_BYTES} bytes")
        return os.read(file, _MAX_BYTES + 1)
    finally:
        os.close(file)


class OwnEntry:
    """The entry of the agent that was started as process `pid`. `trouble` says why there is none, or "" if it is
    followed."""

    def __init__(self, folder: str, pid: int) -> None:
        self._folder, self._pid = folder, pid
        self._followed: Entry | None = None
        self._half = 0  # looks in a row that found half a file
        self.trouble = "no file yet"

    def look(self, conversation_id: str | None) -> Entry | None:
        """Return the entry as it is now; None if there is none. `conversation_id` is the session's."""
        before = self._followed
        if before is not None and (entry := self._read(before.pid)) is not None and entry.started == before.started:
            self._followed = entry
            return entry
        self._followed = next(self._find(conversation_id), None)
        if self._followed is not None:
            self.trouble = ""
        elif before is not None:
            self.trouble = self.trouble or "its file is gone"
        return self._followed

    def _find(self, conversation_id: str | None) -> Iterator[Entry]:
        """Yield the entry of the process itself, or of one below it that works on the session's conversation. Another
        `claude`, which a tool has started, works on a conversation of its own."""
        level = [self._pid]
        for depth in range(_DEEPEST + 1):
            for pid in level:
                entry = self._read(pid)
                if entry is not None and (depth == 0 or entry.conversation_id == conversation_id):
                    yield entry
            level = [child for pid in level for child in children_of(pid)]

    def _read(self, pid: int) -> Entry | None:
        try:
            content = read_session_file(self._folder, pid)
        except OSError as error:
            self.trouble = _why_not(error)
            return None
        if content is None:
            return None
        entry = parse_entry(content)
        if entry is None:
            self._half += 1
            self.trouble = "the file is not valid"
            is_followed = self._followed is not None and self._followed.pid == pid
            return self._followed if is_followed and self._half <= _HALF_LOOKS else None
        self._half = 0
        why = why_foreign(entry, pid)
        self.trouble = why
        return None if why else entry

    @property
    def pids(self) -> list[int]:
        """Return the process that was started, and those below it that may be the program."""
        found = [self._pid]
        for _ in range(_DEEPEST):
            found += [child for pid in found for child in children_of(pid) if child not in found]
        return found


def why_foreign(entry: Entry, pid: int) -> str:
    """Return why an entry is not that of the process which runs under this pid now; "" if it is."""
    if entry.pid != pid:  # guard: claude-registry-pid
        return "the file is of another process"
    if _start_of(pid) != entry.started:  # guard: claude-registry-start
        return "the file is of an earlier process"
    if _is_elsewhere(entry.domain):  # guard: claude-registry-domain
        return "the file is of another process namespace"
    return ""


def _start_of(pid: int) -> int | None:
    """Return the start time of a process, in ticks since boot; None when it has ended, also as a zombie."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def _is_elsewhere(domain: str) -> bool:
    """Return whether this names another process namespace, or that of another machine, which shares the folder. A name
    of another form decides nothing, and some releases give none."""
    found = _DOMAIN.fullmatch(domain)
    if found is None:
        return False
    machine, namespace = found[1], found[2]
    own = _machine()
    is_other_machine = bool(own) and _MACHINE.fullmatch(machine) is not None and machine != own
    return is_other_machine or namespace != _namespace()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _machine() -> str:
    try:
        return read_given_file("/etc/machine-id", 64).decode(errors="replace").strip()
    except OSError:
        return ""


def _why_not(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "the file is a link"
    if error.errno in (errno.EINVAL, errno.EPERM, errno.EFBIG) and error.strerror:
        return f"the file {error.strerror}"
    return "no file yet" if error.errno == errno.ENOENT else f"the file cannot be read: {error.strerror}"


def signals_of(before: Entry | None, now: Entry | None) -> Iterator[Signal]:
    """Yield what a change of the entry means."""
    if before is None and now is not None:
        yield Unblocked()
    was, is_ = (("", "") if each is None else (each.status, each.waiting_for) for each in (before, now))
    if was == is_:
        return
    if is_[0]:
        yield Noted(fact="its own status", value=f"{is_[0]}: {is_[1]}" if is_[1] else is_[0])
    if is_[0] == WAITING:
        yield Attention(what=is_[1] or "it does not say what", stands=True)
    elif was[0] == WAITING:
        yield Attention(what=None)


# -- releases ----------------------------------------------------------------------------------------------------------


def writes_entries(pids: list[int]) -> bool:
    """Return whether one of these processes is a release of Claude Code that is known to write an entry. Of a program
    whose release cannot be read, nothing is known."""
    return any(release is not None and release >= _WRITES_SINCE for release in map(release_of, pids))


def release_of(pid: int) -> tuple[int, ...] | None:
    """Return the release of the Claude Code that runs as this process, by the files of the program: that of the package
    it lies in, or the name of its file, where its own installer put it. None if that does not say."""
    try:
        path = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return None
    folder, name = os.path.split(path)
    if os.path.basename(folder) == "versions" and (found := _VERSION.fullmatch(name)):
        return tuple(map(int, found.groups()))
    for place in (folder, os.path.dirname(folder)):
        package = _package(os.path.join(place, "package.json"))
        if str(package.get("name")).startswith("@anthropic-ai/claude-code"):
            found = _VERSION.match(str(package.get("version")))
            return None if found is None else tuple(map(int, found.groups()))
    return None


def _package(path: str) -> Mapping[str, Any]:
    try:
        return json_object(read_given_file(path, _PACKAGE_BYTES).decode(errors="replace"))
    except OSError:
        return {}


class Start:
    """The start of a program, until its entry is there. `is_held_up` tells a dialog from a slow start."""

    _LIMIT_SEC, _LATEST_SEC, _QUIET_SEC = 5.0, 30.0, 1.0

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._waited_sec = self._quiet_sec = 0.0
        self._ticks = 0

    def is_held_up(self, passed_sec: float) -> bool:
        """Return whether the program has had its time, and does nothing: it shows a dialog. `passed_sec` is the time
        since the last call."""
        self._waited_sec += passed_sec
        fields = stat_fields(self._pid)
        if len(fields) < 20:
            return False
        ticks, before = int(fields[11]) + int(fields[12]), self._ticks
        self._ticks = ticks
        is_at_work = fields[0] == b"R" or (ticks - before) / os.sysconf("SC_CLK_TCK") > 0.2 * passed_sec
        self._quiet_sec = 0.0 if is_at_work else self._quiet_sec + passed_sec
        has_settled = self._quiet_sec >= self._QUIET_SEC or self._waited_sec >= self._LATEST_SEC
        return self._waited_sec >= self._LIMIT_SEC and has_settled
