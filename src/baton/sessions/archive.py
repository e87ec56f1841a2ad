"""Keep the archive of ended sessions: a YAML file for people, replaced as a whole, with its last version as `.bak`."""

import os
import re
import time
from collections.abc import Container

from baton.core.clock import parse_time
from baton.sessions.session import Session
from baton.storage.files import FileLock, read_file, read_start, remove_file, replace_file

_HEADER = "# Sessions that have ended. An archive: `baton session list` shows what is running.\n"
_CHECKSUM_OF_0_1_0 = re.compile(r"^# As baton wrote it, .*\n", re.MULTILINE)
# Each entry begins with "- " and its other lines are indented, so entries can be added and removed as text. Parsing
# thousands of entries takes seconds, while every process that ends a session waits for the lock.
_LAYOUT = re.compile(r"(?:#.*\n)*sessions:(?: \[\])?\n(?P<entries>(?:- .*\n(?:(?:  |#).*\n)*+)*+)")
_FIELD = re.compile(r"^(?:- |  )(session_id|ended_at): (.*)$", re.MULTILINE)
_HIDDEN = frozenset({"ending", "stopper", "pane_id", "pane_pid", "pane_started", "job_id"})


def is_foreign(path: str) -> bool:
    """Return whether a file has this name that another tool wrote."""
    try:
        return read_start(path, len(_HEADER)) != _HEADER.encode()
    except FileNotFoundError:
        return False


class Archive:
    def __init__(self, path: str) -> None:
        self.path = path

    def put(self, session: Session) -> None:
        """Write the session as the last entry, and remove an earlier entry of it."""
        entry = {name: str(value) if isinstance(value, str) else value for name, value in session.record().items()}
        shown = {name: value for name, value in entry.items() if value is not None and name not in _HIDDEN}
        self._change(session.session_id, _yaml([shown]))

    def remove(self, session_id: str) -> None:
        """Remove the entry of a session, if there is one."""
        self._change(session_id, "")

    def prune(self, before_ns: int, keep: Container[str], *, dry_run: bool = False) -> list[int]:
        """Remove the entries of sessions that ended before that time, except those of the ids in `keep`. Return the
        length of each."""

        def goes(text: str) -> bool:
            found = {name: value.strip("'\"") for name, value in _FIELD.findall(text)}
            try:
                return found.get("session_id") not in keep and parse_time(found.get("ended_at", "")) < before_ns
            except ValueError:
                return False

        with FileLock(self.path + ".lock"):
            staying: list[str] = []
            going: list[str] = []
            for text in self._entry_texts():
                (going if goes(text) else staying).append(text)
            if going and not dry_run:
                self._write(staying)
                remove_file(self.path + ".bak")  # it holds them, too
        return [len(text.encode()) for text in going]

    def entries(self) -> list[object]:
        """Return all entries. Raise ValueError or YAMLError when the file is not an archive."""
        import yaml

        try:
            content = read_file(self.path)
        except FileNotFoundError:
            return []
        found = yaml.safe_load(content)
        entries = found.get("sessions") if isinstance(found, dict) else None
        if not isinstance(entries, list):
            raise ValueError("it has no list of sessions")
        return entries

    def _change(self, session_id: str, added: str) -> None:
        with FileLock(self.path + ".lock"):
            before = self._entry_texts()
            mine = re.compile(rf"^(?:- |  )session_id: '?{re.escape(session_id)}'?$", re.MULTILINE)
            after = [text for text in before if not mine.search(text)] + ([added] if added else [])
            if after == before:
                return
            if os.path.exists(self.path):
                replace_file(self.path + ".bak", read_file(self.path))
            self._write(after)

    def _write(self, entries: list[str]) -> None:
        body = "sessions:\n" + "".join(entries) if entries else "sessions: []\n"
        replace_file(self.path, (_HEADER + body).encode())

    def _entry_texts(self) -> list[str]:
        """Return the text of each entry. A file that is not an archive is set aside, for the user to fix."""
        import yaml

        try:
            content = read_file(self.path)
        except FileNotFoundError:
            return []
        try:
            layout = _LAYOUT.fullmatch(_CHECKSUM_OF_0_1_0.sub("", content.decode()))
            if layout is not None:
                return re.split(r"^(?=- )", layout["entries"], flags=re.MULTILINE)[1:]
            return [_yaml([entry]) for entry in self.entries()]
        except (ValueError, yaml.YAMLError):
            now = f"{time.strftime('%Y%m%dT%H%M%S')}.{time.time_ns() % 10**9:09d}"
            os.replace(self.path, f"{self.path}.damaged-{now}")
            return []


def _yaml(content: list[object]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quote text with unusual line breaks: the default style writes them so that they are read as spaces."""

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')

    Dumper.add_representer(str, represent_text)
    return yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True)
