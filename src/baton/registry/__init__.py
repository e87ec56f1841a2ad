"""Store jobs and their events: one contract (`contract`), three backends, chosen by url.

The registry decides every change of a job, in one transaction. It does not know the wire or the history."""

from __future__ import annotations

import os

from baton.config import hide_password
from baton.core.errors import InvalidValue
from baton.registry.moved import moved_to
from baton.storage.files import refuse_network_fs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.config import Settings
    from baton.core.clock import Clock
    from baton.registry.contract import Registry

DATABASE = "registry.db"


def open_registry(settings: Settings, *, clock: Clock | None = None) -> Registry:
    """The registry the settings name, or the one that lies in the registry folder; else a new SQLite one."""
    return open_url(registry_url(settings), clock=clock, allow_network_fs=settings.allow_network_fs)


def registry_url(settings: Settings) -> str:
    if settings.registry is not None:
        return settings.registry
    folder = settings.registry_dir
    moved = moved_to(folder)
    if moved is not None:
        return moved
    database = os.path.join(folder, DATABASE)
    if not os.path.exists(database) and os.path.isdir(folder):
        from baton.registry.files import holds_records

        if holds_records(folder):
            return f"file:{folder}"
    return f"sqlite:{database}"


def open_url(url: str, *, clock: Clock | None = None, allow_network_fs: bool = False) -> Registry:
    scheme, _, rest = url.partition(":")
    if scheme in ("sqlite", "file"):
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


def other_registry_here(settings: Settings) -> str | None:
    """One line about records of another backend in the registry folder that are not in use, or None."""
    from baton.registry.files import holds_records

    folder = settings.registry_dir
    database = os.path.join(folder, DATABASE)
    url = registry_url(settings)
    if url == f"sqlite:{database}" and holds_records(folder):
        return (
            f"{folder} also holds JSON records, which are not used: {DATABASE} is; "
            f"`--registry file:{folder}` shows them"
        )
    if url == f"file:{folder}" and os.path.exists(database):
        return f"{folder} also holds {DATABASE}, which is not used: the JSON records are"
    return None
