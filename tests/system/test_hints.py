"""What a user types who knows other programs, or has made a mistake, leads to what baton has."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import baton as package
from baton.cli.main import VERBS
from support.command import Baton


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path)


def test_verbs_of_other_programs_and_near_misses_name_the_verb(baton):
    for typed, verb in (
        ("kill", "cancel"), ("ps", "list"), ("ls", "list"), ("show", "get"), ("run", "submit"),
        *([("output", "result")] if "result" in VERBS else []),
        ("sumbit", "submit"), ("lst", "list"), ("LOGS", "logs"), ("cancle", "cancel"), ("retyr", "retry"),
    ):  # fmt: skip
        assert baton.refused(typed, "x", code=64).endswith(f"did you mean `baton {verb}`?\n"), typed
    for typed in ("frobnicate", "hook2", "\x1b[31m"):
        assert baton.refused(typed, code=64).endswith("see `baton --help`\n"), typed


def test_a_near_miss_of_an_option_names_the_option(baton):
    for verb, words, option in (
        ("submit", ["--agnet", "shell"], "--agent"), ("list", ["--statsu=error"], "--status"),
        ("session list", ["--jsno"], "--json"), ("session create", ["x", "--headles"], "--headless"),
    ):  # fmt: skip
        refused = baton.refused(*verb.split(), *words, code=64)
        assert f"; did you mean {option}?; see `baton {verb} --help`" in refused, words
    assert "did you mean" not in baton.refused("list", "--frobnicate", code=64)
    assert "did you mean" not in baton.refused("list", "agent", code=64)


def test_words_that_are_no_status_name_the_status_and_the_option(baton):
    for typed in ("failed", "waiting"):
        said = baton.refused("list", "--status", typed, code=64)
        assert "has the status error; --needs-me shows the jobs that wait for you" in said


def test_a_change_that_cannot_be_is_refused_in_plain_words(baton):
    job = baton("register", "x").text
    assert f"job {job} has not started and cannot fail; pick it first" in baton.refused("status", job, "--set", "error")
    baton("status", job, "--set", "running")
    baton("status", job, "--set", "error")
    assert f"job {job} has failed already and cannot be cancelled\n" in baton.refused("cancel", job)


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_a_registry_that_does_not_exist_cannot_be_read(baton, tmp_path, scheme):
    url = f"{scheme}:{tmp_path}/missing/jobs"
    for verb in (["list"], ["get", "abcd1234"], ["get", "abcd"], ["status", "abcd1234"], ["registry", "stats"]):
        assert f"{url} does not exist; check the url" in baton.refused(*verb, "--registry", url), verb
        assert "does not exist" in baton.refused(*verb, BATON_REGISTRY=url), verb
    assert not (tmp_path / "missing").exists()
    assert baton("list").out == ""
    job = baton("register", "x", "--registry", url).text
    assert job in baton("list", "--registry", url).out


def test_the_advice_for_an_extra_names_the_folder_that_baton_was_installed_from(tmp_path):
    """The package as installed here, without its extras."""
    code = """
import sys
sys.modules["psycopg"] = None
sys.argv = ["baton", "list", "--registry", "postgresql://127.0.0.1:1/x"]
from baton.cli.main import run
run()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    root = os.path.dirname(os.path.dirname(os.path.dirname(package.__file__)))
    advised = re.search(r"pip install (?:-e )?'(.*)\[postgres\]'\n", done.stderr)[1]
    assert advised in (root, "tmux-baton")
    if os.path.exists(os.path.join(root, "pyproject.toml")):
        assert advised == root


def test_register_refuses_what_submit_refuses(baton, tmp_path):
    for verb in (["register"], ["submit", "--queue", "q"], ["submit"]):
        assert "there is no agent 'hal'" in baton.refused(*verb, "x", "--agent", "hal", code=64)
        line = baton.refused(*verb, "x", "--agent", "shell", "--expect", "../up", code=64)
        assert f"'../up' lies outside the work folder {tmp_path}" in line
    assert baton("list").out == ""
