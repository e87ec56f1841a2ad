"""Store live agents as files, in the layout of the earlier scripts, for the agents of one user on one machine.

    live_agents/<agent_id>/record.json    the record; replacing it publishes it
    locks/<agent_id>                      flock around every compare-and-write of that id
    names/<canonical name>/<agent_id>     empty files, one for each record of that name
    names/.whole                          exists if no such file is missing, as long as the boot stamp is valid
    quarantine/                           entries that could not be read
    .lock                                 flock around adding and removing an agent's folder

A name's file is made before the record that needs it, and checked against the record when it is used: there may be one
too many, never one too few. A folder that another program adds invalidates the boot stamp of `live_agents`, and the
next look-up by name makes all files again. While a record cannot be read, every look-up reads all records: another
program may repair it in place at any time.
"""

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from baton.core.clock import Clock, SystemClock
from baton.core.errors import RegistryUnavailable
from baton.live_agents.contract import Directory
from baton.live_agents.names import check_agent_id, derived_id, is_agent_id
from baton.live_agents.record import MAX_RECORD_BYTES, AgentRecord, Entry, State, parse_entry
from baton.storage import files
from baton.storage.homes import make_state

RECORD = "record.json"
# The files of baton in an agent's folder. It deletes no other.
_OURS = re.compile(r"record\.json|\.record\.[0-9a-f]{8}\.tmp", re.ASCII)
_TRIES = 20
_TICK_NS = 10**8  # longer than a tick of the clock that stamps files


class FileDirectory(Directory):
    multi_host = False

    def __init__(
        self, folder: str, *, state_dir: str | None = None, clock: Clock | None = None, allow_network_fs: bool = False
    ) -> None:
        """`state_dir`: the user's state, if the folder is in it."""
        if not allow_network_fs:
            files.refuse_network_fs(folder)
        self.where = folder
        self._state_dir = state_dir
        self._clock: Clock = clock or SystemClock()
        self._agents = os.path.join(folder, "live_agents")
        self._names = os.path.join(folder, "names")
        self._whole_path = os.path.join(self._names, ".whole")
        self._lock_path = os.path.join(folder, ".lock")
        self._stamp = files.BootStamp(self._agents, self._clock)

    def now_ns(self) -> int:
        return self._clock.wall_ns()

    def folder_of(self, agent_id: str) -> str:
        return os.path.join(self._agents, check_agent_id(agent_id))

    def get(self, agent_id: str) -> Entry:
        folder = self.folder_of(agent_id)
        touched_ns = 0
        try:
            found = os.lstat(folder)
            touched_ns = found.st_mtime_ns
            if stat.S_ISDIR(found.st_mode):
                content, touched_ns = _read_record(os.path.join(folder, RECORD))
                return parse_entry(agent_id, content, self.now_ns(), touched_ns)
            state, why = State.MALFORMED, "is not a folder"
        except (FileNotFoundError, NotADirectoryError):
            state, why = State.MISSING, "there is no record"
        except OSError as error:  # MALFORMED: a folder, a pipe, a link in place of the file
            unreadable = isinstance(error, PermissionError) or error.errno in files.SYSTEM_FAILED
            state = State.UNREADABLE if unreadable else State.MALFORMED
            why = f"cannot be read: {error.strerror}"
        return Entry(agent_id=agent_id, state=state, why=why, touched_ns=touched_ns)

    def find_named(self, canonical_name: str) -> list[Entry]:
        derived = derived_id(canonical_name)
        if not self._is_whole():
            try:
                self._add_all_names()
            except RegistryUnavailable:  # the folder can be read, but not written
                return [each for each in self.all() if each.agent_id == derived or each.is_called(canonical_name)]
        ids = {derived, *_list_folder(os.path.join(self._names, canonical_name))}
        return [self.get(agent_id) for agent_id in sorted(ids) if is_agent_id(agent_id)]

    def all(self) -> Iterator[Entry]:
        for agent_id in sorted(_list_folder(self._agents)):
            if is_agent_id(agent_id):
                yield self.get(agent_id)

    def names(self) -> list[str]:
        return [name for name in _list_folder(self._names) if not name.startswith(".")]

    @contextmanager
    def locked(self, agent_id: str) -> Iterator[Entry]:
        folder = self.folder_of(agent_id)
        if self._state_dir is not None:
            make_state(self._state_dir)
        with self._translated_errors():
            lock = os.path.join(self.where, "locks", agent_id)
            files.make_private_dir(os.path.dirname(lock))
            with files.FileLock(lock):  # guard: agent-name-lock
                try:
                    yield self.get(agent_id)
                finally:
                    if not os.path.lexists(folder):
                        files.remove_file(lock)  # the last step: a process that waits for it makes it again

    def put(self, entry: Entry, record: AgentRecord) -> None:
        folder = self.folder_of(record.agent_id)
        self._add_name(record.agent_name, record.agent_id)
        is_new = not os.path.isdir(folder)
        try:
            if is_new:
                with self._changing_folders():
                    os.mkdir(folder, 0o700)
                os.chmod(folder, 0o700)
            files.replace_file(os.path.join(folder, RECORD), record.content())
        except BaseException:
            if is_new:
                _remove_empty(folder)  # interrupted: a folder without its record would look corrupt
            raise
        if entry.record is not None and not entry.is_called(record.agent_name):
            self._drop_names(entry)

    def remove(self, entry: Entry) -> None:
        """Remove the entry's folder. If it holds files of another program, move it aside as a whole."""
        folder = self.folder_of(entry.agent_id)
        names = _list_folder(folder)
        if not all(_OURS.fullmatch(name) and os.path.isfile(os.path.join(folder, name)) for name in names):
            self.quarantine(entry)
            return
        for name in sorted(names, key=lambda name: name != RECORD):  # the record first: without it the entry is gone
            files.remove_file(os.path.join(folder, name))
        with self._changing_folders():
            os.rmdir(folder)
        self._drop_names(entry)

    def quarantine(self, entry: Entry) -> str:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.now_ns() // 10**9))
        place = os.path.join(self.where, "quarantine", f"{entry.agent_id}-{stamp}-{os.urandom(4).hex()}")
        files.make_private_dir(os.path.dirname(place))
        with self._changing_folders():
            os.rename(self.folder_of(entry.agent_id), place)
        self._drop_names(entry)
        return place

    @contextmanager
    def _changing_folders(self) -> Iterator[None]:
        """Hold the lock while an agent's folder is made or removed, so that the boot stamp tells this change from those
        of other programs."""
        files.make_private_dir(self._agents)
        with files.FileLock(self._lock_path):
            whole = self._is_whole() or not _list_folder(self._agents)
            yield
            if whole:
                self._note_whole()
        files.fsync_dir(self._agents)

    def _is_whole(self) -> bool:
        """Return whether every record has its file under `names`."""
        return self._stamp.is_current() and (os.path.exists(self._whole_path) or not os.path.exists(self._agents))

    def _note_whole(self) -> None:
        if not os.path.exists(self._whole_path):
            files.make_private_dir(self._names)
            os.close(files.open_private(self._whole_path, os.O_WRONLY | os.O_CREAT))
        self._stamp.set()

    def _add_name(self, canonical_name: str, agent_id: str) -> None:
        path = os.path.join(self._names, canonical_name, agent_id)
        if os.path.exists(path):
            return
        for _ in range(_TRIES):
            files.make_private_dir(os.path.dirname(path))
            try:
                os.close(files.open_private(path, os.O_WRONLY | os.O_CREAT))
                return
            except FileNotFoundError:
                continue  # another process has just removed the folder with the last agent of that name
        raise RegistryUnavailable(f"{path} cannot be made: another process keeps removing its folder")

    def _drop_names(self, entry: Entry) -> None:
        for name in self.names() if entry.record is None else [entry.record.agent_name]:
            folder = os.path.join(self._names, name)
            files.remove_file(os.path.join(folder, entry.agent_id))
            _remove_empty(folder)

    def _add_all_names(self) -> None:
        """Make the file under `names` of every record."""
        with self._translated_errors(), files.FileLock(self._lock_path):
            if self._is_whole():
                return
            before_ns = os.stat(self._agents).st_mtime_ns
            # Another change within the same tick would leave the same time.
            whole = abs(time.time_ns() - before_ns) > _TICK_NS
            for entry in self.all():
                if entry.record is None:
                    whole = False
                else:
                    self._add_name(entry.record.agent_name, entry.agent_id)
            if whole and os.stat(self._agents).st_mtime_ns == before_ns:
                self._note_whole()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = error.filename or self.where
            raise RegistryUnavailable(f"{place}: {error.strerror}; fix this and try again") from error


def _remove_empty(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        pass  # it does not exist, or it is not empty


def _list_folder(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read_record(path: str) -> tuple[bytes, int]:
    """Return the content, cut after the size of a record, and the time of the last write. Follow no link."""
    with open(files.open_private(path, os.O_RDONLY), "rb") as file:
        return file.read(MAX_RECORD_BYTES + 1), os.fstat(file.fileno()).st_mtime_ns
