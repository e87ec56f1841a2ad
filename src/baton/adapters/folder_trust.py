"""Read which folders the user of Gemini or Qwen trusts. Both keep that in `trustedFolders.json`, in the same form."""

from __future__ import annotations

import json
import os


def trusts(path: str, workdir: str) -> bool:
    """Return whether the file says that the folder is trusted: by the nearest folder upwards that it names."""
    try:
        with open(path, encoding="utf-8") as file:
            known = json.load(file)
        rules = {os.path.realpath(folder): str(level) for folder, level in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    rules |= {os.path.dirname(folder): "TRUST_FOLDER" for folder, level in rules.items() if level == "TRUST_PARENT"}
    folder = os.path.realpath(workdir)
    while folder not in rules and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return rules.get(folder, "").startswith("TRUST_")
