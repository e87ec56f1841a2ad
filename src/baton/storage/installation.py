"""Find out how baton was installed, to name the command that adds an extra package to it."""

from __future__ import annotations

import sys


def install_command(extra: str) -> str:
    """Return the command that installs an extra into this installation: from the folder it was installed from, if that
    is still there, with the tool that installed it."""
    from shlex import quote

    tool = next((tool for part, tool in _TOOLS.items() if part in sys.prefix), "pip install")
    return f"{tool} {quote(f'{_source()}[{extra}]')}"


_TOOLS = {"/uv/tools/": "uv tool install --force", "/pipx/venvs/": "pipx install --force"}


def _source() -> str:
    """Return the folder that baton was installed from, such as a clone; its name if that is not known."""
    import json
    import os
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        note = json.loads(distribution("tmux-baton").read_text("direct_url.json") or "{}")
        folder = unquote(urlsplit(note.get("url", "")).path) if "dir_info" in note else ""
    except (PackageNotFoundError, ValueError, OSError):
        folder = ""
    return folder if os.path.isdir(folder) else "tmux-baton"
