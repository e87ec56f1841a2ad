"""Give Gemini a home of its own for one session: the user's files by links, and settings with the session's hooks.

Gemini takes hooks from its settings alone, and its settings from its home alone. It writes an existing file through its
link. A file that it creates, or replaces by another, is moved to the user's folder and linked. What it writes into the
settings holds for the session: the user's settings are never written.
"""

from __future__ import annotations

import os
import shutil

from baton.storage.files import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "gemini-home"  # in the session's folder
GEMINI = ".gemini"
SETTINGS = "settings.json"
_ALWAYS = ("tmp", "history")  # folders that Gemini makes at its first start: conversations, checkpoints
_BESIDE = (".env", ".agents")  # what Gemini reads in the home besides
_UNFINISHED = (".tmp", ".lock")  # files that Gemini is about to rename or remove


def gemini_home(environment: Mapping[str, str]) -> str:
    """Return the folder that has the user's `.gemini`."""
    return environment.get("GEMINI_CLI_HOME") or environment.get("HOME") or os.path.expanduser("~")


class GeminiHome:
    """The home for one session, in the session's folder. `path` is for GEMINI_CLI_HOME."""

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self.path = os.path.join(folder, FOLDER)
        self._users_home = gemini_home(environment)
        self.users = os.path.join(self._users_home, GEMINI)
        self._own = os.path.join(self.path, GEMINI)

    def make(self, settings: str) -> None:
        """Make the home, or bring one of an earlier start up to date."""
        os.makedirs(self._own, mode=0o700, exist_ok=True)
        self.return_files(everything=True)
        for name in _ALWAYS:
            os.makedirs(os.path.join(self.users, name), mode=0o700, exist_ok=True)
        for name in os.listdir(self.users):
            if name != SETTINGS:
                _link(os.path.join(self.users, name), os.path.join(self._own, name))
        for name in _BESIDE:
            if os.path.lexists(os.path.join(self._users_home, name)):
                _link(os.path.join(self._users_home, name), os.path.join(self.path, name))
        replace_file(os.path.join(self._own, SETTINGS), settings.encode())

    def return_files(self, *, everything: bool = False) -> None:
        """Move the files that Gemini has created or replaced to the user's folder. `everything`: also its folders, and
        what looks unfinished: Gemini does not run."""
        try:
            entries = list(os.scandir(self._own))
        except OSError:
            return  # there is no home yet
        for entry in entries:
            is_file = entry.is_file(follow_symlinks=False)
            if entry.is_symlink() or entry.name == SETTINGS or (entry.name.endswith(_UNFINISHED) and not everything):
                continue
            users = os.path.join(self.users, entry.name)
            if is_file:
                self._return_file(entry.path, users)
            elif everything and entry.is_dir(follow_symlinks=False):
                self._return_folder(entry.path, users)

    def _return_file(self, own: str, users: str) -> None:
        """Replace the user's file, and then this one by a link: at every moment both names lead to a whole file."""
        beside = f"{users}.{os.getpid()}.baton"
        try:
            os.makedirs(os.path.dirname(users), exist_ok=True)
            shutil.copy2(own, beside, follow_symlinks=False)
            os.replace(beside, users)
            _link(users, own)
        except OSError:
            return  # Gemini has replaced it again: the next look finds it

    def _return_folder(self, own: str, users: str) -> None:
        for folder, _, names in os.walk(own):
            for name in names:
                path = os.path.join(folder, name)
                target = os.path.normpath(os.path.join(users, os.path.relpath(path, own)))
                if not os.path.islink(path):
                    self._return_file(path, target)
        shutil.rmtree(own, ignore_errors=True)
        if os.path.isdir(users):
            _link(users, own)


def _link(target: str, path: str) -> None:
    """Make a link, in place of whatever file has its name."""
    if os.path.islink(path) and os.readlink(path) == target:
        return
    made = f"{path}.{os.getpid()}.link"
    os.symlink(target, made)
    try:
        os.replace(made, path)
    except OSError:
        os.unlink(made)  # a folder has its name
