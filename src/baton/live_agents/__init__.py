"""Find the session that owns a name now: names, records, ownership, look-up.

It stores pointers only. It does not ask tmux and starts nothing: that is the task of sessions."""

import os

from baton.config import Settings
from baton.core.errors import InvalidValue
from baton.live_agents.contract import Directory
from baton.live_agents.files import FileDirectory
from baton.registry import SERVERS, own_server, registry_url


def open_directory(settings: Settings) -> Directory:
    """Open the directory that the settings name; else the one of a PostgreSQL registry; else the user's files."""
    url = settings.directory
    if url is not None:
        own_server(settings, "directory", url)
    elif (jobs := registry_url(settings)).startswith(SERVERS):
        url = jobs
    if url is not None and url.startswith(SERVERS):
        from baton.live_agents.postgres import PostgresDirectory

        return PostgresDirectory(url)
    if url is not None and not url.startswith("file:/"):
        # A relative path would be another directory in each folder.
        raise InvalidValue("directory", "must be file:/FOLDER, with its whole path, or postgresql://...")
    if url is None:
        folder, state_dir = os.path.join(settings.state_dir, "registry"), settings.state_dir
    else:
        folder, state_dir = url.removeprefix("file:"), None
    return FileDirectory(folder, state_dir=state_dir, allow_network_fs=settings.allow_network_fs)
