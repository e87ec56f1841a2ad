"""What is in the wheel: the package as people get it, outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def pip(python, *arguments):
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments],
        cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(folder), ROOT)
    (file,) = os.listdir(folder)
    return os.path.join(folder, file)


def test_the_skills_are_inside(wheel):
    with zipfile.ZipFile(wheel) as content:
        skills = {name.removeprefix("baton/") for name in content.namelist() if name.startswith("baton/skills/")}
    in_checkout = {
        os.path.relpath(os.path.join(folder, name), ROOT)
        for folder, _, names in os.walk(os.path.join(ROOT, "skills"))
        for name in names
        if not name.endswith(".pyc")
    }
    assert skills == in_checkout


def test_the_skills_can_be_installed_from_it(wheel, tmp_path):
    venv.create(tmp_path / "env")
    # What comes with it is not needed here, and not fetched.
    pip(sys.executable, "--python", str(tmp_path / "env"), "install", "--no-deps", wheel)
    done = subprocess.run(
        [tmp_path / "env/bin/baton", "skills", "install", "--claude"],
        cwd=tmp_path, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    script = tmp_path / ".claude/skills/tmux-agent-orchestrate-delegate-job/scripts/registry.py"
    done = subprocess.run(
        [tmp_path / "env/bin/python", script, "register", "--prompt", "x"],
        cwd=tmp_path, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert len(done.stdout.strip()) == 8
