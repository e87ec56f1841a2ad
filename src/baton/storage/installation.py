"""Find out how baton was installed: where its programs are, and which command adds an extra package to it."""

from __future__ import annotations

import os
import sys

EXTRAS = {"postgres": "psycopg", "tls": "cryptography", "board": "textual"}
"""The module that each extra brings."""


def own_program(name: str, package: str = "tmux_baton") -> str | None:
    """Return the path of a program that was installed with baton: from the list of files that pip, uv and pipx keep for
    its package, or beside the interpreter. It may be in no folder of PATH. None if it is in neither place."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    return next((each for each in (*_recorded(name, package), beside) if os.access(each, os.X_OK)), None)


def _recorded(name: str, package: str) -> list[str]:
    # importlib.metadata reads the same files, but takes 35 ms to import.
    for folder in sys.path:
        try:
            found = [each for each in os.listdir(folder) if each.startswith(f"{package}-")]
        except OSError:
            continue  # sys.path also names archives, and folders that do not exist
        for each in found:
            try:
                with open(os.path.join(folder, each, "RECORD"), encoding="utf-8") as file:
                    files = [line.partition(",")[0] for line in file]
            except (OSError, ValueError):
                continue  # it is not the list of an installed package
            return [os.path.normpath(os.path.join(folder, file)) for file in files if os.path.basename(file) == name]
    return []


def path_advice() -> str:
    """Return what the user does to make shells find the `baton` command."""
    commands = {"pipx": "pipx ensurepath", "uv": "uv tool update-shell"}
    if (tool := _tool()) in commands:
        return f"run `{commands[tool]}`, then open a new terminal"
    return f"add {os.path.dirname(own_program('baton') or sys.executable)}"


def install_command(extra: str) -> str:
    """Return the command that installs an extra into this installation: from the folder it was installed from, if that
    is still there, with the tool that installed it."""
    from importlib.util import find_spec
    from shlex import quote

    tool, extras = _tool(), {extra}
    if tool != "pip":  # the others would remove the extras that the command does not name
        extras |= {name for name, module in EXTRAS.items() if find_spec(module) is not None}
    command = {"uv": "uv tool install --force", "pipx": "pipx install --force"}.get(tool) or _pip_install()
    source, is_editable = _source()
    what = f"{source}[{','.join(sorted(extras))}]"
    return f"{command} {'-e ' * is_editable}{quote(what)}"


def _tool() -> str:
    """Return what installed baton, by the file that it keeps in the environment: uv, pipx or pip."""
    notes = {"uv-receipt.toml": "uv", "pipx_metadata.json": "pipx"}
    return next((tool for note, tool in notes.items() if os.path.exists(os.path.join(sys.prefix, note))), "pip")


def _pip_install() -> str:
    """Return the command of pip that installs into the place where baton is."""
    import shutil
    import site
    import sysconfig
    from shlex import quote

    if sys.prefix != sys.base_prefix:
        own = os.path.join(os.path.dirname(sys.executable), "pip")
        return f"{quote(own)} install" if os.path.exists(own) and shutil.which("pip") != own else "pip install"
    command = f"{quote(sys.executable)} -m pip install"
    if (own_program("baton") or "").startswith(os.path.join(site.getuserbase(), "")):
        command += " --user"
    if os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")):
        command += " --break-system-packages"
    return command


def _source() -> tuple[str, bool]:
    """Return the folder that baton was installed from, such as a clone, or its name if that is not known; and whether
    baton runs from there."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        note = json.loads(distribution("tmux-baton").read_text("direct_url.json") or "{}")
        info = note.get("dir_info")
        folder = unquote(urlsplit(note.get("url", "")).path) if info is not None else ""
    except (PackageNotFoundError, ValueError, OSError):
        folder = ""
    return (folder, bool(info.get("editable"))) if os.path.isdir(folder) else ("tmux-baton", False)
