"""A registry folder's note of where its registry went."""

from __future__ import annotations

import os

from baton.config import hide_password
from baton.core.errors import RegistryUnavailable
from baton.storage.files import read_file, replace_file

_NOTE = ".moved"
_LOCAL = ("sqlite", "file")


def mark_moved(folder: str, url: str) -> None:
    """Notes that the registry of this folder is at that url now: the next command uses that one, and a process that
    still has the old one open is told. A place inside the folder is noted as such, so that the folder can be moved."""
    scheme, _, path = url.partition(":")
    inside = os.path.relpath(path, os.path.abspath(folder))
    if scheme in _LOCAL and not inside.startswith(".."):
        url = f"{scheme}:{inside}"
    replace_file(os.path.join(folder, _NOTE), url.encode() + b"\n")


def moved_to(folder: str) -> str | None:
    """The url that the registry of this folder was moved to, or None."""
    try:
        url = read_file(os.path.join(folder, _NOTE)).decode().strip()
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return None
    scheme, _, path = url.partition(":")
    if scheme in _LOCAL:
        return f"{scheme}:{os.path.normpath(os.path.join(folder, path))}"
    return url or None


def refuse_moved(folder: str, own_url: str) -> None:
    """Raises when the registry with that url was moved elsewhere; to be called by writers, with the lock held."""
    url = moved_to(os.path.abspath(folder))
    if url is not None and url != own_url:
        raise RegistryUnavailable(
            f"this registry was moved to {hide_password(url)}; start again without --registry to use that one"
        )
