"""Write files that survive a crash: atomic replacement with fsync, locks, private folders, refusal of network file
systems."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable

from baton.core.clock import Clock
from baton.core.errors import NetworkFileSystem, RegistryBusy, describe_system_error
from baton.core.value import IO, Self

LOCK_TIMEOUT_SEC = 30.0
_NOTICE_SEC = 5.0
IGNORE_ALL = b"*\n"
LONGEST_FILE = 1024**3
_LONGEST_LINE = 16 * 1024**2
SYSTEM_FAILED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ENOSPC})
"""Errors that say nothing about the file or process that was to be read."""
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "ncpfs"}
)
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.lxcfs"})


_first_writes: dict[str, Callable[[], None]] = {}


tell_waiting: Callable[[str], None] | None = None
"""What tells a user at a terminal that this process waits for a lock."""


def on_first_write(folder: str, action: Callable[[], None]) -> None:
    """Call the action once, when this process first asks `make_private_dir` for a folder at or below this one."""
    _first_writes[folder] = action


def make_private_dir(path: str) -> None:
    """Create the folder and its missing parents, 0700 whatever the umask. Existing folders stay as they are."""
    if not _first_writes and os.path.isdir(path):
        return
    place = os.path.abspath(path)
    # Also if the folder exists: another command may be making the home in it, and has not recorded all of it.
    for folder in [each for each in _first_writes if f"{place}/".startswith(f"{each}/")]:
        action = _first_writes.pop(folder)
        try:
            action()
        except BaseException:
            _first_writes[folder] = action
            raise
    if os.path.isdir(path):
        return
    parent = os.path.dirname(place)
    if not os.path.isdir(parent):
        make_private_dir(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, "is a file, not a folder", path) from None
        return
    os.chmod(path, 0o700)
    fsync_dir(parent)


def make_store_dir(path: str) -> None:
    """Create a private folder whose name is on disk before anything is put into it. The lock file, which every writer
    creates next, shows that a process has completed this."""
    make_private_dir(path)
    if not os.path.exists(os.path.join(path, ".lock")):
        from baton.storage.git_ignores import ignore_in_git

        ignore_in_git(path)
        fsync_parents(path)


def fsync_parents(path: str) -> None:
    """Make the names of a folder and of its parent durable."""
    parent = os.path.dirname(os.path.abspath(path))
    fsync_dir(parent)
    fsync_dir(os.path.dirname(parent))


def make_home(path: str) -> None:
    """Create the home folder, which git ignores."""
    make_private_dir(path)
    ignore = os.path.join(path, ".gitignore")
    if not os.path.lexists(ignore):
        replace_file(ignore, IGNORE_ALL)


def open_private(path: str, flags: int, *, owner: int | None = None) -> int:
    """Return a descriptor of a regular file of the user; follow no link. With O_CREAT the file is 0600, whatever the
    umask, also one that existed. `owner`: the user whose files are accepted in place of the caller's."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise _explain(error, path) from None
    try:
        found = os.fstat(fd)
        check_own_file(found, path, owner)
        if flags & os.O_CREAT and found.st_mode & 0o777 != 0o600:  # guard: private-file-mode
            os.fchmod(fd, 0o600)
    except OSError:
        os.close(fd)
        raise
    return fd


def check_own_file(found: os.stat_result, path: str, owner: int | None = None) -> None:
    """Refuse what is not a regular file, which might never end, and a file of another user, who may change it."""
    if stat.S_ISLNK(found.st_mode):
        raise _link_refused(path)
    if not stat.S_ISREG(found.st_mode):  # guard: regular-file
        raise OSError(errno.EINVAL, "is not a regular file; baton opens no pipe, device or folder here", path)
    check_owner(found, path, owner)


def check_if_exists(path: str) -> None:
    """Refuse a file that is not a regular one of the user; accept a missing one."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    check_own_file(found, path)


def check_owner(found: os.stat_result, path: str, owner: int | None = None) -> None:
    if found.st_uid not in (os.geteuid(), 0, owner):  # guard: own-file
        raise PermissionError(errno.EPERM, f"belongs to another user (id {found.st_uid})", path)


def user_name(number: int) -> str:
    """Return how a message names a user."""
    import pwd

    try:
        return f"the user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"the user {number}"


def why_closed(folder: str) -> str | None:
    """Return why a program cannot work in this folder; None if it can."""
    here = folder = os.path.abspath(folder)
    above = [here]
    while here != os.path.dirname(here):
        above.append(here := os.path.dirname(here))
    for each in reversed(above):
        if not os.path.isdir(each):
            return f"{folder} is not a folder"
        try:
            os.stat(os.path.join(each, "."))
        except PermissionError:
            owner = os.stat(each).st_uid
            whose = "" if owner == os.geteuid() else f"belongs to {user_name(owner)} and "
            return f"{each} {whose}is closed to you; choose a folder that you may enter, or have it opened: chmod +x"
    return None


def refuse_link(path: str) -> None:
    """Refuse a link, and a folder of another user; accept what does not exist. What baton writes below `path` must not
    go elsewhere."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(found.st_mode):  # guard: no-links
        raise _link_refused(path)
    check_owner(found, path)


def _link_refused(path: str) -> OSError:
    return OSError(errno.ELOOP, "is a link, which baton does not follow; replace it by what it points to", path)


def _explain(error: OSError, path: str) -> OSError:
    """Return the error of an open that follows no link and waits for no pipe, in words that say what was found."""
    if error.errno == errno.ELOOP:
        return _link_refused(path)
    if error.errno == errno.ENXIO:
        return OSError(errno.EINVAL, "is a pipe or a device, not a regular file", path)
    return error


def write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def append_line(path: str, line: str) -> bool:
    """Append a line to a private file; return False if it cannot be written."""
    try:
        with open(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb") as file:
            write_all(file.fileno(), line.encode() + b"\n")
    except OSError:
        return False
    return True


def replace_file(
    path: str, content: bytes, *, durable: bool = True, sync_folder: bool = True, owner: tuple[int, int] | None = None
) -> None:
    """Replace the content as a whole: a reader finds all of the new or all of the old, also after a power cut
    (`durable`). Without `sync_folder` a power cut may bring the old content back. `owner`: the user and group of the
    new file."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name.removesuffix('.json')}.{os.urandom(4).hex()}.tmp")
    fd = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            write_all(fd, content)
            if owner is not None:
                os.fchown(fd, *owner)
            if durable:  # guard: fsync-replaced-file
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException as error:
        remove_file(temporary)
        if isinstance(error, OSError):
            error.filename, error.filename2 = path, None  # a write names no file, and the user knows no temporary one
        raise
    if durable and sync_folder:
        fsync_dir(folder)


def overwrite_from(fd: int, start: int, content: bytes) -> None:
    """Replace everything from `start` on, durably. After a failed write the file ends at `start`."""
    os.ftruncate(fd, start)
    os.lseek(fd, start, os.SEEK_SET)
    try:
        write_all(fd, content)
        os.fsync(fd)
    except OSError:
        os.ftruncate(fd, start)
        raise


def remove_file(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # another process has removed it


def set_aside_files(folder: str, names: Iterable[str]) -> str:
    """Move files into a new folder inside of theirs; return its path, "" when there are none."""
    names = list(names)
    if not names:
        return ""
    aside = os.path.join(folder, f"set-aside-{time.strftime('%Y%m%dT%H%M%S')}-{os.urandom(2).hex()}")
    make_private_dir(aside)
    for name in names:
        os.replace(os.path.join(folder, name), os.path.join(aside, name))
    fsync_dir(aside)
    fsync_dir(folder)
    return aside


def read_file(path: str, longest: int = LONGEST_FILE) -> bytes:
    """Return the content of a regular file of the user. Refuse a link, a pipe, a device, and more than `longest`
    bytes."""
    with open(open_private(path, os.O_RDONLY), "rb") as file:
        return read_open_file(file, path, longest)


def read_start(path: str, length: int) -> bytes:
    """Return the first bytes of a regular file of the user."""
    with open(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read(length)


def open_given_file(path: str) -> IO[bytes]:
    """Open a regular file that the user named: it may be a link, or belong to another user."""
    file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")  # noqa: SIM115  the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return file


def read_given_file(path: str, longest: int = LONGEST_FILE) -> bytes:
    """Return the content of a file that the user named."""
    with open_given_file(path) as file:
        return read_open_file(file, path, longest)


def read_open_file(file: IO[bytes], path: str, longest: int = LONGEST_FILE) -> bytes:
    """Return the content of an open file; refuse more than `longest` bytes, which might not fit into memory."""
    if os.fstat(file.fileno()).st_size > longest:
        raise OSError(errno.EFBIG, f"is longer than {longest} bytes", path)
    return file.read()


def os_error_text(error: OSError, path: str) -> str:
    return f"{describe_system_error(error, path)}; nothing was changed"


def exists(path: str) -> bool:
    """Return whether the file exists. Unlike os.path.exists, a missing permission is an error."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def outside(name: str, folder: str) -> bool:
    """Return whether a name leads out of the folder, also by a link."""
    inside = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(inside, name))
    return path != inside and not path.startswith(inside.rstrip("/") + "/")


def last_line(fd: int, size: int) -> tuple[bytes, int]:
    """Return the last whole line of a file, and where it ends. Ignore half a line after it."""
    window = min(size, 4096)
    while True:
        tail = os.pread(fd, window, size - window)
        newline = tail.rfind(b"\n")
        start = tail.rfind(b"\n", 0, max(newline, 0))
        if window == size or start != -1:
            return tail[start + 1 : newline + 1], size - window + newline + 1
        if window > _LONGEST_LINE:
            raise OSError(errno.EFBIG, f"its last line is longer than {_LONGEST_LINE} bytes")
        window = min(size, window * 8)


def fsync_dir(path: str) -> None:
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FileLock:
    """An exclusive flock on a file, for `with`. The kernel serves waiters in turn and releases the lock of a holder
    that dies. A holder that is stopped is reported after `timeout_sec`."""

    def __init__(self, path: str, timeout_sec: float = LOCK_TIMEOUT_SEC) -> None:
        self.path = path
        self.timeout_sec = timeout_sec
        self._fd = -1

    def __enter__(self) -> Self:
        while True:
            fd = open_private(self.path, os.O_RDWR | os.O_CREAT)
            try:
                lock_within(fd, self.path, self.timeout_sec)  # guard: file-lock
                if _is_at(fd, self.path):
                    self._fd = fd
                    return self
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # the file was removed meanwhile: no other process can find this lock

    def __exit__(self, *_error: object) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


def try_lock(path: str) -> int | None:
    """Return a descriptor that holds the lock of that file until it is closed; None when another process has it."""
    while True:
        fd = open_private(path, os.O_RDWR | os.O_CREAT)
        locked = _lock_at_once(fd)
        if locked and _is_at(fd, path):  # guard: removed-lock-file
            return fd
        os.close(fd)
        if not locked:
            return None


def is_locked(path: str) -> bool:
    """Return whether another process holds the lock of that file; False without the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        return not _lock_at_once(fd)
    finally:
        os.close(fd)


def lock_within(fd: int, path: str, timeout_sec: float = LOCK_TIMEOUT_SEC) -> None:
    """Take an exclusive flock on an open file; RegistryBusy when another process keeps it for too long.

    Wait in the kernel's queue, which is fair where polling is not. That call has no time limit, so a thread makes it,
    on its own descriptor: a lock that comes too late is released with that descriptor."""
    if _lock_at_once(fd):
        return
    if timeout_sec <= 0:
        raise RegistryBusy(f"{path} is locked by another process")
    from threading import Event, Thread  # only here: a lock is nearly always free at once

    done = Event()
    own = os.dup(fd)
    failure: list[OSError] = []

    def block() -> None:
        try:
            fcntl.flock(own, fcntl.LOCK_EX)
        except OSError as error:
            failure.append(error)
        os.close(own)
        done.set()

    Thread(target=block, daemon=True).start()
    locked = done.wait(min(_NOTICE_SEC, timeout_sec))
    if not locked and timeout_sec > _NOTICE_SEC:
        if tell_waiting is not None:
            tell_waiting(f"waiting for {path}, which another process has locked (find it with: fuser {path})")
        locked = done.wait(timeout_sec - _NOTICE_SEC)
    if not locked:
        raise RegistryBusy(
            f"{path} has been locked for {timeout_sec:g} s; another baton is stuck, stopped or busy with a migration "
            f"(find it with: fuser {path})"
        )
    if failure:
        raise failure[0]


def _lock_at_once(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def network_fs_kind(path: str, mountinfo: str | None = None) -> str | None:
    """Return the type of the network file system of `path`; None when it is local or unknown."""
    _, kind = find_mount(path, mountinfo)
    shared = kind in _NETWORK or (kind.split(".")[0] == "fuse" and kind not in _LOCAL_FUSE)
    return kind if shared else None


def find_mount(path: str, mountinfo: str | None = None) -> tuple[str, str]:
    """Return where the file system of `path` is mounted, and its type; "" when the system does not say."""
    if mountinfo is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                mountinfo = file.read()
        except OSError:
            return "", ""
    path = os.path.realpath(path)
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        mount = fields[4]
        if "\\" in mount:
            for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
                mount = mount.replace(code, character)
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):  # a later mount on the same folder hides the earlier one
            best, kind = mount, right.split(" ", 1)[0]
    return best, kind


def refuse_network_fs(path: str) -> None:
    kind = network_fs_kind(path)
    if kind is not None:  # guard: network-file-system
        raise NetworkFileSystem(path, kind)


class BootStamp:
    """A modification time that baton gives a folder after its own changes. A crash in the middle of a change, another
    program's change, or a reboot leave another time there: what was derived from the folder must be derived again."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def is_current(self) -> bool:
        """Return whether the folder carries the stamp; True for a missing folder, from which nothing was derived."""
        try:
            return os.stat(self._folder).st_mtime_ns == self._time_ns()
        except FileNotFoundError:
            return True

    def set(self) -> None:
        self._set_time(self._time_ns())

    def clear(self) -> None:
        self._set_time(self._clock.wall_ns())

    def _set_time(self, ns: int) -> None:
        try:
            os.utime(self._folder, ns=(ns, ns))
        except OSError:
            pass  # another user's folder, or read-only: everything is derived again each time

    def _time_ns(self) -> int:
        """Return a time long past that no writer leaves by accident. It differs after each boot: changes that were not
        on disk when the power went are not trusted."""
        import zlib

        return (900_000_000 + zlib.crc32((self._clock.boot_id() or "").encode()) % 10**8) * 10**9
