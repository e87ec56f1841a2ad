"""Find each Python on PATH and in pyenv with which baton can be tried."""

from __future__ import annotations

import glob
import os
import re
import subprocess

LEAST = 11  # of Python 3
_WHAT_IT_NEEDS = "import sqlite3, ssl, sys, venv; print(sys.executable)"


def find_all() -> dict[str, str]:
    """Return the path of the first usable Python of each version from 3.11 on, by its version."""
    found: dict[str, str] = {}
    for path in _candidates():
        version = os.path.basename(path).removeprefix("python")
        if int(version.removeprefix("3.")) < LEAST or version in found:
            continue
        try:  # pyenv puts programs on PATH that only say which version is not chosen
            answer = subprocess.check_output([path, "-c", _WHAT_IT_NEEDS], stderr=subprocess.DEVNULL, text=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        found[version] = answer.strip()
    return dict(sorted(found.items(), key=lambda each: int(each[0].removeprefix("3."))))


def _candidates() -> list[str]:
    pyenv = os.path.expanduser(os.environ.get("PYENV_ROOT", "~/.pyenv"))
    folders = [*os.get_exec_path(), *sorted(glob.glob(f"{glob.escape(pyenv)}/versions/3.*/bin"))]
    paths = [path for folder in folders for path in glob.glob(f"{glob.escape(folder)}/python3.*")]
    return [path for path in paths if re.fullmatch(r"python3\.\d+", os.path.basename(path))]
