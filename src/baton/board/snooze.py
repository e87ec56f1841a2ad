"""Keep which jobs the user has snoozed, in the user's state: all boards of the user share it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from baton.core.fields import parse_json
from baton.storage.files import read_file, replace_file
from baton.storage.homes import make_state
from baton.storage.stamp import stamp_of

_MOST = 1000
_LONGEST = 1 << 20


class Snoozed:
    """The snoozed jobs by their key: until when (nanoseconds since 1970), and what for."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._path = os.path.join(state_dir, "board", "snoozed.json")
        self._stamp: object = None
        self._entries: dict[str, tuple[int, str]] = {}

    def read(self, now_ns: int) -> Mapping[str, str]:
        """Return what each job is snoozed for whose time is not over."""
        self._load()
        return {key: what for key, (until, what) in self._entries.items() if until > now_ns}

    def put(self, key: str, until_ns: int, what: str) -> None:
        """Snooze a job."""
        self._load()
        self._entries.pop(key, None)
        self._entries[key] = (until_ns, what)
        self._write()

    def drop(self, key: str) -> None:
        """End the snooze of a job, if it has one."""
        self._load()
        if self._entries.pop(key, None) is not None:
            self._write()

    def _load(self) -> None:
        stamp = stamp_of(self._path)
        if stamp is not None and stamp == self._stamp:
            return
        self._stamp, self._entries = stamp, {}
        try:
            content = read_file(self._path)
            found = parse_json(content) if len(content) <= _LONGEST else {}
            for key, (until, what) in found.items():
                if isinstance(until, int) and isinstance(what, str):
                    self._entries[key] = (until, what)
        except (OSError, ValueError, TypeError, AttributeError):
            return  # a file that is missing or damaged snoozes nothing

    def _write(self) -> None:
        make_state(self._state_dir, "board")
        kept = dict(list(self._entries.items())[-_MOST:])
        replace_file(self._path, json.dumps(kept).encode())
        self._entries, self._stamp = kept, None
