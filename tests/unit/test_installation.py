"""What is known of an installation: where its programs are, and the command that adds an extra package to it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import baton
from baton.storage import installation

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BESIDE = os.path.dirname(sys.executable)


def test_a_clone_is_named_by_its_path():
    """These tests run with what `make` has installed from this folder, and from which it runs."""
    code = "import sys; sys.modules['psycopg'] = None; import baton.storage.postgres"
    for path, pip in ((BESIDE, "pip"), ("/usr/bin", f"{BESIDE}/pip")):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PATH": path}, capture_output=True, text=True, check=False
        )
        assert f"PostgreSQL needs an extra package: {pip} install -e '{ROOT}[postgres]'" in done.stderr


@pytest.mark.parametrize(
    ("note", "command", "advice"),
    [
        ("uv-receipt.toml", "uv tool install --force '/my clone[board,tls]'", "run `uv tool update-shell`, then"),
        ("pipx_metadata.json", "pipx install --force '/my clone[board,tls]'", "run `pipx ensurepath`, then"),
        ("pip", "pip install '/my clone[tls]'", f"add {BESIDE}"),
    ],
)
def test_the_tool_that_installed_it_keeps_what_is_installed(note, command, advice, monkeypatch, tmp_path):
    """The folders of pipx and uv may have any name."""
    (tmp_path / note).touch()
    monkeypatch.setenv("PATH", BESIDE)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(installation, "_source", lambda: ("/my clone", False))
    monkeypatch.setattr(installation, "EXTRAS", {"postgres": "no_such_module", "tls": "no_such", "board": "sys"})
    assert installation.install_command("tls") == command
    assert installation.path_advice().startswith(advice)


def test_the_programs_of_a_clone_of_a_user_are_found_in_the_folder_of_the_user(tmp_path):
    """`pip install --user -e`: neither the interpreter nor the package is near them."""
    site = tmp_path / "lib/site-packages"
    (site / "tmux_baton-0.1.0.dist-info").mkdir(parents=True)
    (site / "tmux_baton-0.1.0.dist-info/RECORD").write_text("../../bin/baton,sha256=x,200\nclone.pth,,\n")
    (site / "clone.pth").write_text(os.path.dirname(os.path.dirname(baton.__file__)))
    program = tmp_path / "bin" / "baton"
    code = f"import site; site.addsitedir({str(site)!r}); from baton.storage.installation import own_program as own; "
    for listed in (False, True):
        if listed:
            program.parent.mkdir()
            program.write_text("#!/bin/sh")
            program.chmod(0o755)
        told = subprocess.check_output(
            [sys._base_executable, "-I", "-c", code + "print(own('baton'), own('no-such'))"], text=True
        )
        assert told.split() == [str(program) if listed else "None", "None"]
