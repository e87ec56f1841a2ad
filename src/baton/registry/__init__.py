"""Store jobs and their events: the verbs once (`verbs`), over three stores that are chosen by url.

The registry decides every change of a job, in one transaction. It does not know the wire or the history."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from baton.config import Settings, hide_password
from baton.core.clock import Clock
from baton.core.errors import InvalidValue, RegistryMoved, RegistryUnavailable
from baton.own_files import why_shared
from baton.registry.verbs import Registry
from baton.storage.files import outside, read_file, refuse_network_fs

DATABASE = "registry.db"
MOVED_NOTE = ".moved"
# The note of a folder whose registry is its own files, of version 2. A 0.1.0 process opens the database that it names,
# and stops: that database is empty, and of a newer version.
NEWER_DATABASE = ".schema-2.db"
FILES_NOTE = f"sqlite:{NEWER_DATABASE}"
_RECORD = re.compile(r"([0-9a-f]{8,32})\.json", re.ASCII)
_MOST_MOVES = 100  # notes that lead in a circle end there
LOCAL_SCHEMES = ("sqlite", "file")
SERVERS = ("postgresql:", "postgres:")


def open_registry(settings: Settings, *, clock: Clock | None = None) -> Registry:
    """Open the registry that the settings name, or the one in the registry folder; else a new SQLite one."""
    url = registry_url(settings)
    _refuse_shared(settings, url)
    registry = open_url(url, clock=clock, allow_network_fs=settings.allow_network_fs)
    # The first write makes that of the home. A session names its registry to every process in it.
    named = settings.registry is not None and "BATON_SESSION_ID" not in os.environ
    registry.must_exist = named and leaves(registry.url, settings.home)
    return registry


def _refuse_shared(settings: Settings, url: str) -> None:
    """Refuse a registry outside the home that others can change: its jobs run as this user."""
    scheme, _, rest = url.partition(":")
    if scheme not in LOCAL_SCHEMES or not leaves(url, settings.home):
        return
    path = rest.removeprefix("//")
    if (why := why_shared(path)) is not None:  # guard: registry-of-others
        raise RegistryUnavailable(f"{path} {why}")


def registry_url(settings: Settings) -> str:
    """Return the url of the registry. The note of a migration in the folder is followed to a place inside; an address
    elsewhere must be the one that the user's map of folders has for the home."""
    if settings.registry is not None:
        return own_server(settings, "registry", settings.registry)
    folder = settings.registry_dir
    if settings.moved_to is not None and settings.sources["registry_dir"] == "default":
        return settings.moved_to
    moved = _last_move(folder)
    if moved is not None:
        if leaves(moved, settings.home) and leaves(moved, folder):  # guard: moved-out-of-the-home
            raise RegistryUnavailable(
                f"{os.path.join(folder, MOVED_NOTE)} leads to {hide_password(moved)}, which you have not confirmed; "
                f"name it with --registry, or once and for all with: baton trust --registry {hide_password(moved)}"
            )
        return moved
    database = os.path.join(folder, DATABASE)
    if not os.path.exists(database) and os.path.isdir(folder) and holds_records(folder):
        return f"file:{folder}"
    return f"sqlite:{database}"


def holds_records(folder: str) -> bool:
    """Return whether the folder holds a job record of a file registry."""
    return next(record_ids(folder), None) is not None


def record_ids(folder: str) -> Iterator[str]:
    """Return the ids of the job records in the folder of a file registry."""
    try:
        with os.scandir(folder) as entries:
            yield from (match[1] for entry in entries if (match := _RECORD.fullmatch(entry.name)))
    except FileNotFoundError:
        return


def own_server(settings: Settings, setting: str, url: str) -> str:
    """Return the url of a setting. Refuse a server that only the file of the home names: the user's login would go
    there, and the jobs that come from there would run."""
    if settings.sources[setting] == settings.home_file and leaves(url, "/"):  # guard: own-server
        raise RegistryUnavailable(
            f"{settings.home_file} names the server {hide_password(url)}, which only your own settings may do; if it "
            f"is yours, set BATON_{setting.upper()} to it"
        )
    return url


def open_url(url: str, *, clock: Clock | None = None, allow_network_fs: bool = False) -> Registry:
    scheme, _, rest = url.partition(":")
    if scheme in LOCAL_SCHEMES:
        path = rest.removeprefix("//")
        if not path:
            raise InvalidValue("registry", f"{url!r} names no path; write {scheme}:PATH")
        if not allow_network_fs:
            refuse_network_fs(path)
        if scheme == "file":
            from baton.registry.files import FileRegistry

            return FileRegistry(path, clock=clock)
        from baton.registry.sqlite import SqliteRegistry

        return SqliteRegistry(path, clock=clock)
    if scheme in ("postgresql", "postgres"):
        from baton.registry.postgres import PostgresRegistry

        return PostgresRegistry(url, clock=clock)
    raise InvalidValue(
        "registry", f"must be a url (sqlite:PATH, file:FOLDER or postgresql://...), not {hide_password(url)!r}"
    )


def registry_is_of_home(settings: Settings, url: str) -> bool:
    """Return whether the registry is in the home, and the user has not named it."""
    return (
        settings.registry is None and settings.sources["registry_dir"] == "default" and not leaves(url, settings.home)
    )


def leaves(url: str, folder: str) -> bool:
    """Return whether a registry is not in this folder."""
    scheme, _, path = url.partition(":")
    return scheme not in LOCAL_SCHEMES or outside(path.removeprefix("//"), folder)


def moved_to(folder: str) -> str | None:
    """Return the url to which a migration moved the registry of this folder, or None."""
    url = read_note(folder)
    if url == FILES_NOTE:
        return f"file:{folder}"
    scheme, _, path = url.partition(":")
    if scheme in LOCAL_SCHEMES:
        return f"{scheme}:{os.path.normpath(os.path.join(folder, path))}"
    return url or None


def _last_move(folder: str) -> str | None:
    """Follow the notes of one migration after another, inside this folder's home or out of it."""
    url, before = moved_to(folder), None
    for _ in range(_MOST_MOVES):
        scheme, _, path = (url or "").partition(":")
        if url == before or scheme not in LOCAL_SCHEMES:
            break
        url, before = moved_to(path if scheme == "file" else os.path.dirname(path)) or url, url
    return url


def read_note(folder: str) -> str:
    try:
        return read_file(os.path.join(folder, MOVED_NOTE)).decode().strip()
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return ""


def refuse_moved(folder: str, own_url: str) -> None:
    """Raise when the registry with that url was moved elsewhere. Writers call it with the lock held: after a migration
    that was interrupted at its end, the old registry is still in place."""
    url = moved_to(folder)
    if url is not None and url != own_url:
        raise RegistryMoved(
            f"this registry was moved to {hide_password(url)}; start again without --registry to use that one"
        )


def other_registry_here(settings: Settings) -> str | None:
    """Return one line about records of another backend in the registry folder that are not in use, or None."""
    folder = settings.registry_dir
    database = os.path.join(folder, DATABASE)
    url = registry_url(settings)
    if url == f"sqlite:{database}" and holds_records(folder):
        hint = f"`--registry file:{folder}` shows them"
        return f"{folder} also holds JSON records, which are not used: {DATABASE} is; {hint}"
    if url == f"file:{folder}" and os.path.exists(database):
        return f"{folder} also holds {DATABASE}, which is not used: the JSON records are"
    return None
