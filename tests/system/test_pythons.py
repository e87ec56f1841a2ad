"""The demo and the quick verbs, with each Python from 3.11 on that this machine has."""

from __future__ import annotations

import os
import subprocess
import sysconfig

import pytest
import pythons

import baton as package
from support.command import Baton

PYTHONS = pythons.find_all()


@pytest.fixture(params=PYTHONS)
def baton(request, tmp_path):
    """The command in an environment of this Python, with the packages of the environment of the tests: those that
    baton needs run with each Python."""
    place = tmp_path / "environment"
    made = subprocess.run(
        [PYTHONS[request.param], "-m", "venv", "--without-pip", place], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made
    (site,) = place.glob("lib/python*/site-packages")
    source = os.path.dirname(os.path.dirname(package.__file__))
    (site / "baton.pth").write_text(f"{source}\n{sysconfig.get_path('purelib')}\n")
    program = place / "bin" / "baton"
    program.write_text(f"#!{place}/bin/python -P\nfrom baton.__main__ import run\nrun()\n")
    program.chmod(0o755)
    (tmp_path / "work").mkdir()
    command = Baton(tmp_path / "work", HOME=str(tmp_path), PATH=f"{place}/bin:{os.environ['PATH']}")
    command.program = str(program)
    command.env["PYTHONWARNINGS"] = "error::DeprecationWarning"  # what a later release of Python refuses
    (python,) = [each["detail"] for each in command("doctor", "--json").json if each["what"] == "python"]
    assert python.startswith(f"{request.param}.")
    return command


def test_the_demo_and_the_quick_verbs(baton):
    baton("demo")
    job = baton("register", "work", "--queue", "q").text
    assert baton("pick", "--queue", "q").text == job
    baton("publish", job, "--event", "progress", "--detail", "half way")
    baton("publish", job, "--event", "completed")
    assert baton("status", job).text == "completed"
    assert baton("get", job).json["status"] == "completed"
    baton("broker", "down")
