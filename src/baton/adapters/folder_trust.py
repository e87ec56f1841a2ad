"""Read which folders the user trusts: Gemini and Qwen keep that in `trustedFolders.json`, in the same form; for other
agents, trust in a repository holds in its worktrees."""

from __future__ import annotations

import os

from baton.core.fields import parse_json
from baton.storage.homes import main_work_tree


def trusts(path: str, workdir: str) -> bool:
    """Return whether the file says that the folder is trusted: by the nearest folder upwards that it names."""
    try:
        with open(path, encoding="utf-8") as file:
            known = parse_json(file.read())
        rules = {os.path.realpath(folder): str(level) for folder, level in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    rules |= {os.path.dirname(folder): "TRUST_FOLDER" for folder, level in rules.items() if level == "TRUST_PARENT"}
    folder = os.path.realpath(workdir)
    while folder not in rules and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return rules.get(folder, "").startswith("TRUST_")


def main_repositories(workdir: str) -> list[str]:
    """Return the main work trees of the linked ones that a folder lies in."""
    folder, found = os.path.realpath(workdir), []
    while folder != os.path.dirname(folder):
        found += [main] if (main := main_work_tree(folder)) is not None else []
        folder = os.path.dirname(folder)
    return found
