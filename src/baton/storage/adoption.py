"""Take a folder over as a home of the user: find out what is there, move or copy its content, and record it.

The content is built up beside its place in the user's state and becomes the home with the entry in the map of folders;
only then the old folder is removed, file by file. A failure before that entry changes nothing and records nothing.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from shutil import copyfileobj, rmtree

from baton.config import Home
from baton.core.errors import BatonError, InvalidValue, RegistryBusy
from baton.core.value import Value
from baton.storage.files import FileLock, fsync_dir, lock_within, make_private_dir, open_private, outside, remove_file
from baton.storage.home_users import refuse_processes
from baton.storage.homes import check_state, home_path, known, look_up, make_state, read_home_id, read_served_folder
from baton.storage.inspection import Contents, Found, each_entry, holds_job_records, inspect, open_folder, why_refused
from baton.storage.new_homes import forget, keep_link, record, write_home

_LOCKS = ("jobs/.lock", "agent-sessions.db.lock", "baton-sessions.db.lock", "monitor.lock")
_COPY_WAIT_SEC = 10.0
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)
_LOGS = "delegate_job_logs/"
_IN_A_HOME = ("home.json", "agent-sessions.db", "delegate_job_logs", "jobs/registry.db", "jobs/.lock")


class Kind(StrEnum):
    NOTHING = "nothing"  # the folder has no home, and nothing that could become one
    KNOWN = "known"  # the user has trusted it
    FOLDER = "folder"  # a real folder, to become a home
    COPY = "copy"  # a link to the home of another folder that still exists
    MOVED = "moved"  # a home whose folder was moved here
    AGAIN = "again"  # a home that the user had removed from the map


class Candidate(Value):
    """What `trust` found. `content` is the folder that holds it; `folder` is what it serves or would serve, which is
    `content` itself for a home that is named by its path. `home` is the entry that is there; None for a new home."""

    kind: Kind
    folder: str
    content: str
    link: str | None
    home: Home | None = None


def find_candidate(state_dir: str, directory: str, name: str, *, moved_from: str | None = None) -> Candidate:
    """Return what there is to trust in a folder. `name` is that of the link or folder in it; "" for a folder that is a
    home itself, named by its path."""
    state = check_state(state_dir)
    path = os.path.abspath(directory)
    if os.path.basename(path) == name:
        path = os.path.dirname(path)
    folder = os.path.realpath(path)
    if not os.path.isdir(folder):
        raise InvalidValue("DIR", f"{directory} is not a folder")
    if not outside(folder, state):  # guard: trust-in-the-state
        raise InvalidValue("DIR", f"{folder} is inside of your own state; name the folder that the home serves")
    place = os.path.join(folder, name).rstrip("/")
    if moved_from is not None:
        return _find_moved(state, folder, place, name, moved_from)
    if (home := look_up(state, folder) or look_up(state, place)) is not None:
        is_real = not home.in_place and os.path.isdir(place) and not os.path.islink(place)
        if is_real:
            raise BatonError(
                f"{folder} has a home already, {home.path}, so {place} is not used; rename it, or forget the home "
                f"first with: baton trust --remove {folder}"
            )
        return Candidate(kind=Kind.KNOWN, folder=folder, content=home.path, link=home.link, home=home)
    return _find_linked(state, folder, place, name) if os.path.islink(place) else _find_real(state, folder, place, name)


def _find_real(state: str, folder: str, place: str, name: str) -> Candidate:
    if os.path.isdir(place):
        return Candidate(kind=Kind.FOLDER, folder=folder, content=place, link=name or None)
    if (home := _forgotten(state, folder, name)) is not None:
        return Candidate(kind=Kind.AGAIN, folder=folder, content=home.path, link=name, home=home)
    if any(os.path.lexists(os.path.join(folder, each)) for each in _IN_A_HOME) or holds_job_records(folder):
        return Candidate(kind=Kind.FOLDER, folder=folder, content=folder, link=None)
    return Candidate(kind=Kind.NOTHING, folder=folder, content=place, link=name)


def _find_moved(state: str, folder: str, place: str, name: str, moved_from: str) -> Candidate:
    """Return the home of a folder that was moved here. BatonError if that folder still exists or had no home."""
    old = os.path.realpath(moved_from)
    if look_up(state, folder) is not None or look_up(state, place) is not None:
        raise BatonError(f"{folder} has a home already; forget it first with: baton trust --remove {folder}")
    entries = {home.folder: home for home in known(state)}
    home = entries.get(old) or entries.get(os.path.join(old, name))
    if home is None:
        raise BatonError(f"no home is known for {old}; `baton trust --list` shows all")
    if os.path.lexists(old):  # guard: copy-of-a-folder
        raise BatonError(f"{old} still exists, so {folder} is a copy; trust it without --from, with a home of its own")
    if not home.in_place:
        return Candidate(kind=Kind.MOVED, folder=folder, content=home.path, link=name, home=home)
    content = folder if home.folder == old else place
    if read_home_id(content) != home.home_id:
        raise BatonError(f"{content} is not the home that was in {old}; trust it without --from")
    return Candidate(kind=Kind.MOVED, folder=content, content=content, link=None, home=home)


def _find_linked(state: str, folder: str, place: str, name: str) -> Candidate:
    """Return what a link leads to: the home of a folder that was copied or moved. Follow no other link."""
    target = os.path.normpath(os.path.join(folder, os.readlink(place)))
    home_id = os.path.basename(target)
    if target != home_path(state, home_id) or read_home_id(target) != home_id:
        raise BatonError(f"{place} is a link to {target}, which is not one of your homes; rename the link")
    entry = next((home for home in known(state) if home.home_id == home_id and not home.in_place), None)
    served = entry.folder if entry is not None else read_served_folder(target)
    if served != folder and os.path.isdir(served):
        return Candidate(kind=Kind.COPY, folder=folder, content=target, link=name, home=entry)
    kind = Kind.AGAIN if entry is None else Kind.MOVED
    home = entry or Home(path=target, home_id=home_id, folder=folder, link=name)
    return Candidate(kind=kind, folder=folder, content=target, link=name, home=home)


def _forgotten(state: str, folder: str, name: str) -> Home | None:
    """Return the newest home in the user's state that served this folder and is not in the map."""
    recorded = {home.home_id for home in known(state)}
    homes = os.path.join(state, "homes")
    found = []
    for home_id in os.listdir(homes) if os.path.isdir(homes) else ():
        path = os.path.join(homes, home_id)
        if home_id not in recorded and read_home_id(path) == home_id and read_served_folder(path) == folder:
            home = Home(path=path, home_id=home_id, folder=folder, link=name)
            found.append((os.stat(os.path.join(path, "home.json")).st_mtime_ns, home))
    return max(found, key=lambda each: each[0])[1] if found else None


def is_copy(state_dir: str, candidate: Candidate, contents: Contents) -> bool:
    """Return whether the content has the id of a home that exists at another path."""
    if candidate.kind is not Kind.FOLDER:
        return candidate.kind is Kind.COPY
    others = [home for home in known(state_dir) if home.home_id == contents.home_id]
    return any(home.path != candidate.content and os.path.isdir(home.path) for home in others)


# -- taking over -----------------------------------------------------------------------------------------------------


def take_over(
    state_dir: str,
    candidate: Candidate,
    contents: Contents,
    *,
    in_place: bool = False,
    owner: int,
    registry: str | None = None,
    end_copied_work: Callable[[str], None] | None = None,
) -> tuple[Home, str | None]:
    """Make the candidate a home of the user, and return it, with the folder of files that could not be removed.

    `contents` is what the user has seen: BatonError if it is different now. `owner` is the user whose files are taken.
    `registry` is the url of jobs that a migration moved. `end_copied_work` prepares the content of a copy."""
    state = make_state(state_dir)
    for part in ("folders", "homes"):
        make_private_dir(os.path.join(state, part))
    with FileLock(os.path.join(state, "trust.lock")):
        _remove_unfinished(state)
        if look_up(state, candidate.folder) is not None:
            raise BatonError(f"{candidate.folder} got a home meanwhile; nothing was changed")
        if candidate.home is not None and candidate.kind in (Kind.MOVED, Kind.AGAIN):
            return _take_entry(state, candidate, candidate.home), None
        stays = in_place or candidate.link is None
        if candidate.kind is Kind.FOLDER and (end_copied_work is None or not stays):
            refuse_processes(candidate.content, candidate.folder, by_files=not stays)
        if stays:
            return _take_in_place(state, candidate, registry, end_copied_work), None
        return _move(state, candidate, contents, owner, registry, end_copied_work)


def _take_entry(state: str, candidate: Candidate, old: Home) -> Home:
    """Record the folder with a home that exists, and forget the folder that it served before."""
    home = old.replace(folder=candidate.folder, link=candidate.link)
    if home.in_place:
        home = home.replace(path=candidate.content)
    _record(state, home)
    write_home(home, again=True)
    if old.folder != home.folder:
        forget(state, old)
    return keep_link(state, home)


def _take_in_place(
    state: str, candidate: Candidate, registry: str | None, end_copied_work: Callable[[str], None] | None
) -> Home:
    path = candidate.content
    home = Home(path=path, home_id=os.urandom(8).hex(), folder=path, in_place=True, registry=registry)
    if end_copied_work is not None:
        end_copied_work(path)
    write_home(home)
    _record(state, home)
    return home


def _record(state: str, home: Home) -> None:
    if not record(state, home):
        raise BatonError(f"{home.folder} got a home meanwhile; nothing was changed")


def _move(
    state: str,
    candidate: Candidate,
    contents: Contents,
    owner: int,
    registry: str | None,
    end_copied_work: Callable[[str], None] | None,
) -> tuple[Home, str | None]:
    source, stays = candidate.content, candidate.kind is Kind.COPY
    if not outside(state, source):
        raise BatonError(f"your state, {state}, is inside {source}; set BATON_STATE_DIR to another folder")
    home_id = os.urandom(8).hex()
    home = Home(
        path=home_path(state, home_id), home_id=home_id, folder=candidate.folder, link=candidate.link, registry=registry
    )
    if registry is not None and f":{source}/" in registry:  # it moves with the content
        home = home.replace(registry=registry.replace(f":{source}/", f":{home.path}/", 1))
    staged = os.path.join(state, "homes", f".{home_id}.new")
    with ExitStack() as locks:
        locks.enter_context(lock_home(source, wait=stays))
        if not stays:  # again: one may have begun before the locks were taken
            refuse_processes(source, candidate.folder, by_files=True)
        try:
            copy = stays or end_copied_work is not None or owner != os.geteuid()
            entries = _stage(source, staged, owner=owner, copy=copy)
            if stays:
                locks.close()  # the original goes on
            _sync(staged, entries)
            if not stays:
                _compare(source, staged, contents, state)
            if end_copied_work is not None:
                end_copied_work(staged)
            write_home(home.replace(path=staged))
            fsync_dir(staged)
            os.rename(staged, home.path)
            fsync_dir(os.path.dirname(home.path))
            _record(state, home)
        except BaseException:
            recorded = look_up(state, home.folder)
            if recorded is None or recorded.home_id != home_id:
                rmtree(staged, ignore_errors=True)
                rmtree(home.path, ignore_errors=True)
            raise
        left = None if stays else _remove(source, entries, home_id)
    if stays:
        remove_file(os.path.join(candidate.folder, candidate.link or ""))  # the link to the other folder's home
    return keep_link(state, home), left


def _compare(source: str, staged: str, contents: Contents, scratch: str) -> None:
    """Raise BatonError unless the content is what the user has seen."""
    if inspect(staged, scratch=scratch, owner=os.geteuid()) != contents:  # guard: adopt-what-was-shown
        raise BatonError(f"{source} was changed after it was shown; nothing was changed, look at it again")


def _remove_unfinished(state: str) -> None:
    """Remove what an interrupted `trust` has built up."""
    homes = os.path.join(state, "homes")
    for name in os.listdir(homes):
        if name.startswith(".") and name.endswith(".new"):
            rmtree(os.path.join(homes, name))


@contextmanager
def lock_home(source: str, *, wait: bool) -> Iterator[None]:
    """Keep other processes of baton out. RegistryBusy when one holds a lock; `wait`: when it holds it for long."""
    with ExitStack() as stack:
        for name in _LOCKS[:3] if wait else _LOCKS:
            path = os.path.join(source, name)
            if not os.path.lexists(path):
                continue  # no process has used it
            fd = open_private(path, os.O_RDWR, owner=os.lstat(source).st_uid)
            stack.callback(os.close, fd)
            if wait:
                lock_within(fd, path, _COPY_WAIT_SEC)
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # guard: home-in-use
            except BlockingIOError:
                raise RegistryBusy(
                    f"another process holds {path}; stop it first (fuser {path}), nothing was changed"
                ) from None
        yield


def _stage(source: str, staged: str, *, owner: int, copy: bool) -> dict[str, Found]:
    """Build the content up at another place and return its entries. Link audit logs where that is possible. Other files
    are copied, so that a process that has one open cannot change the home."""
    os.mkdir(staged, 0o700)
    entries = {}
    for entry, fd in each_entry(source):
        why = why_refused(source, entry, fd, owner=owner, in_place=False)
        if why is not None:
            raise BatonError(f"{os.path.join(source, entry.path)} {why}; nothing was changed")
        entries[entry.path] = entry
        name, new = os.path.basename(entry.path), os.path.join(staged, entry.path)
        if entry.is_folder:
            os.mkdir(new, 0o700)
        elif entry.is_link:
            os.symlink(os.readlink(name, dir_fd=fd), new)
        elif not entry.is_of_process and not name.endswith(".db-shm"):
            is_log = entry.path.startswith(_LOGS)  # guard: copied-when-adopted
            _stage_file(name, fd, new, entry, copy=copy or not is_log)
    return entries


def _sync(staged: str, entries: dict[str, Found]) -> None:
    """Make everything durable that was copied, and the names of everything."""
    for entry in reversed(entries.values()):
        path = os.path.join(staged, entry.path)
        if entry.is_link or not os.path.lexists(path):
            continue
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if entry.path != "jobs":  # its time says whether its index is current, which this copy does not know
                os.utime(fd, ns=(entry.status.st_atime_ns, entry.status.st_mtime_ns))
            if entry.is_folder or os.fstat(fd).st_nlink == 1:
                os.fsync(fd)
        finally:
            os.close(fd)


def _stage_file(name: str, folder: int, new: str, entry: Found, *, copy: bool) -> None:
    """Link or copy a file. One that is gone meanwhile was temporary."""
    if not copy and entry.status.st_nlink == 1:
        try:
            os.link(name, new, src_dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(os.lstat(new).st_mode):
                raise BatonError(f"{entry.path} was replaced meanwhile; nothing was changed")
            os.chmod(new, 0o600)
            return
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return
    with open(fd, "rb") as source:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BatonError(f"{entry.path} was replaced meanwhile; nothing was changed")
        with open(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as target:
            copyfileobj(source, target, 1 << 20)


def _remove(source: str, entries: dict[str, Found], home_id: str) -> str | None:
    """Remove what was taken over. What has appeared or changed since is set aside; return where it is. A folder that
    cannot be written stays."""
    left = f"{source}.left-{home_id}"
    try:
        fd = open_folder(source)
        try:
            _remove_below(fd, "", entries)
            is_empty = not os.listdir(fd)
        finally:
            os.close(fd)
        os.rmdir(source) if is_empty else os.rename(source, left)
        fsync_dir(os.path.dirname(source))
    except OSError:
        return source
    return None if is_empty else left


def _remove_below(fd: int, folder: str, entries: dict[str, Found]) -> None:
    for name in os.listdir(fd):
        entry = entries.get(os.path.join(folder, name))
        if entry is None or not _is_same(entry, os.stat(name, dir_fd=fd, follow_symlinks=False)):
            continue
        if not entry.is_folder:
            os.unlink(name, dir_fd=fd)
            continue
        below = open_folder(name, fd)
        try:
            _remove_below(below, entry.path, entries)
            is_empty = not os.listdir(below)
        finally:
            os.close(below)
        if is_empty:
            os.rmdir(name, dir_fd=fd)


def _is_same(entry: Found, now: os.stat_result) -> bool:
    before = entry.status
    if (before.st_dev, before.st_ino) != (now.st_dev, now.st_ino):
        return False
    same_content = (before.st_size, before.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
    return entry.is_folder or now.st_nlink > 1 or same_content  # with more names, the home has the same file
