"""doctor on the systems that people have: what it finds broken, and what it says to do about it."""

from __future__ import annotations

import os
import sys

import pytest

import baton as baton_package
from support.command import BATON, Baton
from support.terminal import Terminal


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path)


def finding(baton, what, *, code=None, **env):
    """State and detail of one line."""
    found = {each["what"]: each for each in baton("doctor", "--json", code=code, **env).json}
    return (found[what]["state"], found[what]["detail"]) if what in found else None


def program(folder, name, script):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo tmux: error while loading shared libraries: libx.so.2 >&2; exit 127", "libraries: libx.so.2"),
        ("kill -4 $$", "exit code -4"),
    ],
)
def test_a_tmux_that_cannot_run_is_broken_and_refused(baton, tmp_path, script, why):
    path = f"{program(tmp_path / 'bin', 'tmux', script)}:{baton.env['PATH']}"
    state, detail = finding(baton, "tmux", code=1, PATH=path)
    assert state == "broken"
    assert detail.startswith(f"{tmp_path}/bin/tmux cannot run: ")
    assert why in detail
    assert f"{tmp_path}/bin/tmux cannot run: " in baton.refused("submit", "--agent", "shell", "true", PATH=path)


def test_an_agent_that_cannot_run_is_not_called_ok(baton, tmp_path):
    path = f"{program(tmp_path / 'bin', 'gemini', 'echo node: not found >&2; exit 127')}:{baton.env['PATH']}"
    state, detail = finding(baton, "agent gemini", PATH=path)
    assert state == "warning"
    assert detail.startswith("unknown version (node: not found) at ")


@pytest.mark.parametrize(
    ("env", "state", "detail"),
    [
        ({"LC_ALL": "C"}, "warning", "LC_ALL=C is not UTF-8"),
        ({"LC_ALL": "de_DE.ISO-8859-1"}, "warning", "LC_ALL=de_DE.ISO-8859-1 is not UTF-8"),
        ({"LANG": ""}, "ok", "UTF-8"),
    ],
)
def test_the_locale_is_what_tmux_and_agents_take_it_for(baton, env, state, detail):
    found = finding(baton, "locale", **env)
    assert found[0] == state
    assert found[1].startswith(detail)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("xterm", "ok       terminal: xterm"),
        (
            "xterm-of-tomorrow",
            "warning  terminal: this machine does not know xterm-of-tomorrow; attach treats it as xterm",
        ),
        ("pet-2001", "warning  terminal: this machine does not know the terminal pet-2001"),
        ("dumb", "warning  terminal: TERM is dumb"),
    ],
)
def test_a_terminal_that_the_machine_does_not_know_is_named(baton, name, line):
    with Terminal([BATON, "doctor"], cwd=baton.folder, env=baton.env | {"TERM": name}) as terminal:
        terminal.see(line)


def test_without_a_terminal_none_is_looked_for(baton):
    assert finding(baton, "terminal", code=0, TERM="pet-2001") is None


@pytest.mark.parametrize("name", ["baton.toml", "rules.toml"])
@pytest.mark.parametrize("content", [b"this is [ not TOML", b"nonsense = 1", None])
def test_a_file_that_will_be_refused_is_broken_and_all_else_is_looked_at(baton, tmp_path, name, content):
    path = tmp_path / ".config" / "baton" / name
    path.parent.mkdir(parents=True)
    path.mkdir() if content is None else path.write_bytes(content)
    states = {each["what"]: each["state"] for each in baton("doctor", "--json", code=1).json}
    what = "config" if name == "baton.toml" else "rules"
    assert states | {what: "broken", "tmux": "ok", "extra tls": states["extra tls"]} == states
    assert f"broken   {what}: " in (shown := baton("doctor", code=1).out)
    assert str(path) in shown


def test_rules_that_are_used_are_counted(baton):
    baton("rules", "add", "allow", "--command", "git status")
    state, detail = finding(baton, "rules", code=0)
    assert state == "ok"
    assert ": 1 rule, " in detail


def test_a_local_broker_that_cannot_start_is_named(tmp_path):
    """nats-server is in no folder of PATH, and not beside baton: from its sources, without what it needs."""
    found = Baton(tmp_path)
    assert finding(found, "broker")[0] == "ok"
    found.prefix, found.program = [sys._base_executable, "-P", "-m"], "baton"
    sources = os.path.dirname(os.path.dirname(baton_package.__file__))
    state, detail = finding(found, "broker", PYTHONPATH=sources, PATH="/usr/bin:/bin")
    assert state == "warning"
    assert detail.startswith("nats-server is not installed: ")
