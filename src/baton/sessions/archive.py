"""Sessions that have ended, for people to read: a YAML file, replaced as a whole, with the one before it as `.bak`.

agent-sessions.yaml                  those that ended last
agent-sessions.2026-07-29-1.yaml     one that was full then: it is not touched any more
"""

from __future__ import annotations

import os
import re
import time

from baton.core.hashing import sha256
from baton.storage.files import FileLock, fsync_dir, read_file, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from baton.sessions.session import Session

_HEADER: Final = b"# Sessions that have ended. An archive: `baton session list` shows what is running.\n"
_SEAL: Final = b"# As baton wrote it, if this is the SHA-256 of what stands above: "
# Characters, of about 500 sessions: whoever ends one writes all of it, and the others wait meanwhile.
_FULL: Final = 256 * 1024
_NOT_SHOWN: Final = frozenset({"ending", "stopper", "pane_id", "pane_pid", "pane_started", "job_id"})


class Archive:
    """A file as we wrote it is changed as text: taking thousands of entries apart and together again takes seconds, and
    everybody waits meanwhile. One that somebody edited is read as what it is."""

    def __init__(self, path: str) -> None:
        self._path = path

    def put(self, session: Session) -> None:
        entry = {name: str(value) if isinstance(value, str) else value for name, value in session.record().items()}
        shown = {name: value for name, value in entry.items() if value is not None and name not in _NOT_SHOWN}
        self._change(session.session_id, _yaml([shown]))

    def remove(self, session_id: str) -> None:
        """From the present file: those that were full are history."""
        self._change(session_id, "")

    def entries(self) -> list[dict[str, Any]]:
        import yaml

        try:
            content = read_file(self._path)
        except FileNotFoundError:
            return []
        found = yaml.safe_load(content)
        entries = found.get("sessions") if isinstance(found, dict) else None
        if not isinstance(entries, list):
            raise ValueError("it has no list of sessions")
        return entries

    def _change(self, session_id: str, added: str) -> None:
        with FileLock(self._path + ".lock"):
            before = self._texts()
            mine = re.compile(rf"^(?:- |  )session_id: '?{re.escape(session_id)}'?$", re.MULTILINE)
            others = [text for text in before if not mine.search(text)]
            if added and others == before and sum(map(len, others)) >= _FULL:
                self._move_aside()
                before = others = []
            after = others + ([added] if added else [])
            if after == before:
                return
            if os.path.exists(self._path):
                replace_file(self._path + ".bak", read_file(self._path))
            body = _HEADER + ("sessions:\n" + "".join(after) if after else "sessions: []\n").encode()
            replace_file(self._path, body + _seal(body))

    def _move_aside(self) -> None:
        stem = f"{self._path.removesuffix('.yaml')}.{time.strftime('%Y-%m-%d', time.gmtime())}"
        number = 1
        while os.path.lexists(f"{stem}-{number}.yaml"):
            number += 1
        os.rename(self._path, f"{stem}-{number}.yaml")
        fsync_dir(os.path.dirname(self._path))  # before a new one takes its name

    def _texts(self) -> list[str]:
        """Each entry, as it stands there."""
        import yaml

        try:
            content = read_file(self._path)
        except FileNotFoundError:
            return []
        body, mark, _ = content.rpartition(_SEAL)
        if mark and content == body + _seal(body):
            return re.split(r"^(?=- )", body.decode(), flags=re.MULTILINE)[1:]
        try:
            return [_yaml([entry]) for entry in self.entries()]
        except (ValueError, yaml.YAMLError):
            # Somebody edited it into something else: it is theirs to mend, not ours to overwrite.
            now = f"{time.strftime('%Y%m%dT%H%M%S')}.{time.time_ns() % 10**9:09d}"
            os.replace(self._path, f"{self._path}.damaged-{now}")
            return []


def _seal(body: bytes) -> bytes:
    digest: str = sha256(body).hexdigest()
    return _SEAL + digest.encode() + b"\n"


def _yaml(content: list[Any]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Left to itself, it writes unusual line breaks in a way that it reads as spaces."""

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')

    Dumper.add_representer(str, represent_text)
    return yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True)
