"""The demo, the quick verbs and every text of the command line, with each Python from 3.11 on that this machine has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig

import pytest
import pythons

import baton as package
from support.command import Baton
from support.terminal import Terminal

PYTHONS = pythons.find_all()
# What the command line says: the help of all verbs in some widths, and what it answers to wrong options and values.
_TEXTS = """
import json, os
from baton.cli import parser
from baton.cli.main import VERBS, describe, overview
from baton.core.errors import BatonError
texts = {}
verbs = [describe(verb) for verb, (_, text) in VERBS.items() if text]
parsers = [each for verb in verbs for each in (verb, *verb.actions.values())]
for width in ("60", "80", "120", "200"):
    os.environ["COLUMNS"] = width
    parser.help_width.cache_clear()
    texts[width] = [overview(), *(each.format_help() for each in parsers)]
for each in parsers:
    lines = [["--nonsense"], ["-x"], ["one", "two", "three"], []]
    lines += [[each.names[-1], *more] for each in each.options if each is not parser.HELP
              for more in ([], ["nonsense"], ["--"], ["1e9"], [""])]
    for line in lines:
        try:
            texts[f"{each.name} {line}"] = sorted(map(str, vars(each.parse(line))))
        except BatonError as error:
            texts[f"{each.name} {line}"] = str(error)
print(json.dumps(texts))
"""
# An error that baton does not expect, of which the user is asked to report the traceback.
_UNEXPECTED = """
import sys
from baton.cli import main
main.run_verb = lambda *_: 1 / 0
sys.argv = ["baton", "list", "--debug"]
main.run()
"""


def texts(python, env):
    done = subprocess.run(
        [python, "-P", "-c", _TEXTS], env=env | {"FORCE_COLOR": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def texts_here():
    return texts(sys.executable, dict(os.environ))


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


def test_every_text_of_the_command_line_is_the_same(baton, texts_here):
    found = texts(os.path.join(os.path.dirname(baton.program), "python"), baton.env)
    assert {name: text for name, text in found.items() if text != texts_here[name]} == {}
    assert found.keys() == texts_here.keys()
    assert "\033" not in str(found)


def test_a_traceback_can_be_read_on_a_terminal(baton):
    python = os.path.join(os.path.dirname(baton.program), "python")
    with Terminal([python, "-P", "-c", _UNEXPECTED], cwd=baton.folder, env=baton.env) as terminal:
        terminal.see("in run\r\n")  # a colour in it would be shown as a character that cannot be printed
        terminal.see("ZeroDivisionError: division by zero\r\n")
        assert terminal.process.wait(20) == 1
