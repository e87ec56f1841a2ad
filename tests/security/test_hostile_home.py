"""S8: a hostile home under every verb. Before `baton trust`, nothing in it has any effect; after it, what is hostile is
refused, and nothing hangs."""

from __future__ import annotations

import os
import re
import shutil

import pytest

from support.command import Baton
from support.every_verb import options_of_verbs, right_command
from support.homes import trust_in_place
from support.hostile_home import KINDS, NOBODY, HostileFolder
from support.many_commands import ManyCommands
from support.traced_commands import HANGS_SEC, traced

COMMANDS = {" ".join(words): right_command(words, options) for words, options in options_of_verbs()}
COMMANDS["submit"] += ["true", "--agent", "shell"]
COMMANDS["register"] += ["true"]
# These read no settings and no home. `trust` has tests of its own; `demo` works in a temporary folder;
# `mcp` opens a home with each call of a tool, and answers with the refusal (tests/system/test_mcp.py).
WITHOUT_A_HOME = {"version", "completion", "config init", "demo", "mcp", "skills install", "trust", "hook"} | {
    f"rules {action}" for action in ("list", "add", "remove", "test")
}
QUICK_SEC = 2.0
GROUPS = 4


@pytest.fixture
def hostile(tmp_path):
    folder = HostileFolder(tmp_path)
    folder.fill()
    yield folder
    folder.close()


def split(number: int, all_: list[str]) -> list[str]:
    return all_[number::GROUPS]


def each_kind(at: HostileFolder) -> None:
    """Everything at once: before the user trusts a home, its content does not matter."""
    for kind in ("settings", "trigger", "moved", "pipes", "links", "journal"):
        KINDS[kind](at)


def clone(at: HostileFolder) -> None:
    each_kind(at)


def of_another_user(at: HostileFolder) -> None:
    each_kind(at)
    for place, folders, files in os.walk(at.folder):
        for path in (place, *(os.path.join(place, name) for name in (*folders, *files))):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def link_elsewhere(at: HostileFolder) -> None:
    each_kind(at)
    shutil.move(at.home, os.path.join(at.base, "elsewhere"))
    os.symlink(os.path.join(at.base, "elsewhere"), at.home)


# -- before trust ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(GROUPS))
@pytest.mark.parametrize("arrival", [clone, link_elsewhere])
def test_before_trust_every_verb_is_refused_and_nothing_is_run_reached_or_written(
    hostile, arrival, number, figure, full
):
    arrival(hostile)
    commands = {name: COMMANDS[name] for name in split(number, [n for n in COMMANDS if n not in WITHOUT_A_HOME])}
    done = traced(hostile, commands, installed=full)
    wrong = []
    for name, result in done.items():
        refused = result["code"] == 1 and result["out"] == "" and result["err"].count("\n") == 1
        named = "baton trust" in result["err"] and hostile.folder in result["err"]
        if not (refused and named and result["seconds"] < (HANGS_SEC if full else QUICK_SEC)) or result["calls"]:
            wrong.append((name, result))
    wrong += [("outside", each) for each in hostile.was_reached()]
    assert not wrong, wrong
    figure("S8 before trust", f"{arrival.__name__}: {len(done)} verbs refused, 0 effects", held=True)


@pytest.mark.as_root
def test_a_home_of_another_user_is_passed_over(hostile):
    of_another_user(hostile)
    commands = {name: COMMANDS[name] for name in ("list", "get", "session list", "logs", "config show")}
    for name, result in traced(hostile, commands, installed=False).items():
        assert f"{hostile.home} belongs to another user and is not used" in result["err"], (name, result)
        assert [call for call in result["calls"] if not call.startswith("openat")] == [], (name, result)
    assert hostile.was_reached() == []


@pytest.mark.parametrize("name", sorted(WITHOUT_A_HOME - {"demo"}))
def test_verbs_without_a_home_use_nothing_of_one(hostile, name):
    clone(hostile)
    arguments = {"skills install": ["skills", "install", "--dir", os.path.join(hostile.base, "skills")]}
    Baton(hostile.folder, **hostile.env)(*arguments.get(name, COMMANDS[name]), code=None)
    assert hostile.was_reached() == []
    assert not os.path.islink(hostile.home)


# -- after trust -----------------------------------------------------------------------------------------------------

# What starts servers or agents that go on, where it is not refused: `demo` in a folder of its own.
GOES_ON = {"demo", "broker up", "trust"}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.as_root] if kind == "foreign" else []) for kind in KINDS]
)
def test_after_trust_in_place_nothing_is_run_reached_or_waited_for(hostile, kind, figure, full):
    """The user has trusted the home where it is; then a checkout brings something hostile into it."""
    trust_in_place(hostile.home, hostile.env)
    KINDS[kind](hostile)
    names = [name for name in COMMANDS if name not in GOES_ON]
    if not full:
        first = sorted(KINDS).index(kind)
        names = [name for name in names if name in USED or names.index(name) % 3 == first % 3]
    env = hostile.env | {"BATON_HOME": hostile.home, "MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "1"}
    hung, unexpected = [], []
    with ManyCommands(hostile.folder, env | {"PYTHONWARNINGS": "ignore"}) as run:
        for name in names:
            shown = run(*COMMANDS[name], seconds=HANGS_SEC)
            if shown.code is None:
                hung.append(name)
            if "unexpected" in shown.err or "Traceback" in shown.err:
                unexpected.append((name, shown))
    Baton(hostile.folder, **hostile.env)("broker", "down", code=None)
    assert (hung, unexpected, hostile.was_reached()) == ([], [], [])
    figure("S8 after trust", f"{kind}: {len(names)} verbs, 0 hung, 0 effects", held=True)


# The verbs that use what a home holds run at every size with every kind.
USED = {
    "list", "get", "register", "submit", "publish", "pick", "monitor", "doctor", "logs", "session list", "session show",
    "session resume", "session prune", "session attach", "attach", "session stop", "cancel", "wait", "prune",
}  # fmt: skip


def test_trust_names_what_it_refuses_and_changes_nothing(hostile):
    each_kind(hostile)
    before = sorted(os.walk(hostile.home))
    line = Baton(hostile.folder, **hostile.env)("trust", "--yes", code=1).err
    assert re.search(r"is a named pipe|is a link that leaves", line), line
    assert sorted(os.walk(hostile.home)) == before
    assert hostile.was_reached() == []


def test_the_agents_of_a_home_in_place_are_not_run(hostile):
    KINDS["settings"](hostile)
    baton = Baton(hostile.folder, **hostile.env)
    baton("trust", "--yes", "--in-place")
    baton("doctor", code=None)
    assert "ignore" in baton("config", "show").out + baton("config", "show").err
    assert "no agent 'evil'" in baton("submit", "true", code=64).err
    assert hostile.was_reached() == []
