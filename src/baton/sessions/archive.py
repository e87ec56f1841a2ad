"""Sessions that have ended, for people to read: a YAML file, replaced as a whole, with the one before it as `.bak`."""

from __future__ import annotations

import os
import time

from baton.fsio import FileLock, read_file, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from baton.sessions.model import Session

_HEADER: Final = b"# Sessions that have ended. An archive: `baton session list` shows what is running.\n"
_NOT_SHOWN: Final = frozenset({"ending", "pane_id", "pane_pid", "pane_started", "job_id"})


class Archive:
    def __init__(self, path: str) -> None:
        self._path = path

    def put(self, session: Session) -> None:
        entry = {name: str(value) if isinstance(value, str) else value for name, value in session.record().items()}
        shown = {name: value for name, value in entry.items() if value is not None and name not in _NOT_SHOWN}
        self._change(lambda entries: [*_without(entries, session.session_id), shown])

    def remove(self, session_id: str) -> None:
        self._change(lambda entries: _without(entries, session_id))

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

    def _change(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        import yaml

        with FileLock(self._path + ".lock"):
            try:
                before = self.entries()
            except (ValueError, yaml.YAMLError):
                # Somebody edited it into something else: it is theirs to mend, not ours to overwrite.
                now = f"{time.strftime('%Y%m%dT%H%M%S')}.{time.time_ns() % 10**9:09d}"
                os.replace(self._path, f"{self._path}.damaged-{now}")
                before = []
            after = change(before)
            if after == before:
                return
            if os.path.exists(self._path):
                replace_file(self._path + ".bak", read_file(self._path))
            replace_file(self._path, _HEADER + _yaml({"sessions": after}).encode())


def _yaml(content: dict[str, Any]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Left to itself, it writes unusual line breaks in a way that it reads as spaces."""

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')

    Dumper.add_representer(str, represent_text)
    return yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True)


def _without(entries: list[dict[str, Any]], session_id: str) -> list[dict[str, Any]]:
    return [entry for entry in entries if not isinstance(entry, dict) or entry.get("session_id") != session_id]
