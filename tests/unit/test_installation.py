"""The advice about an extra package that is missing: a command that works for this installation."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from baton.storage import installation

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_a_clone_is_named_by_its_path():
    """These tests run with what `make` has installed from this folder."""
    code = "import sys; sys.modules['psycopg'] = None; import baton.storage.postgres"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"PostgreSQL needs an extra package: pip install '{ROOT}[postgres]'" in done.stderr


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        ("/home/me/.local/share/uv/tools/tmux-baton", "uv tool install --force"),
        ("/home/me/.local/share/pipx/venvs/tmux-baton", "pipx install --force"),
        ("/home/me/project/.venv", "pip install"),
    ],
)
def test_the_tool_that_installed_it_is_named(prefix, command, monkeypatch):
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(installation, "_source", lambda: "/clone of mine")
    assert installation.install_command("tls") == f"{command} '/clone of mine[tls]'"
