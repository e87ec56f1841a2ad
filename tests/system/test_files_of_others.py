"""What decides what runs is used only if no other user can change or replace it: settings, rules, the state and homes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.command import Baton


@pytest.fixture
def baton(tmp_path):
    (tmp_path / "work").mkdir()
    return Baton(tmp_path / "work", HOME=str(tmp_path), BATON_AGENT="shell", MQTT_BROKER="127.0.0.1", MQTT_PORT="9")


def write(path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)


def share(way: str, path, tmp_path) -> str:
    """Let another user change or replace a file of the user in some way; return what a refusal must say."""
    folder = path.parent
    if way == "file":
        path.chmod(0o666)
        return f"{path} can be written by other users (mode 0666); run `chmod go-w {path}`\n"
    if way in ("folder", "folder above"):
        folder = folder if way == "folder" else folder.parent
        folder.chmod(0o777)
        return f"is reached through {folder}, which other users can write (mode 0777); run `chmod go-w {folder}`\n"
    if way == "group":
        os.chown(path, 0, 1)
        path.chmod(0o660)
        return f"{path} can be written by other users (mode 0660, group daemon); run `chmod go-w {path}`\n"
    if way == "folder of a group":
        os.chown(folder, 0, 1)
        folder.chmod(0o770)
        return f"which other users can write (mode 0770, group daemon); run `chmod go-w {folder}`\n"
    if way == "owner":
        os.chown(path, 65533, 65533)
        return f"{path} belongs to another user (id 65533); use a copy of your own in its place\n"
    if way == "link to a file of another user":
        theirs = path.rename(tmp_path / "theirs")
        os.chown(theirs, 65533, 65533)
        path.symlink_to(theirs)
        return (
            f"{path} leads to {theirs}, which belongs to another user (id 65533); use a copy of your own in its place\n"
        )
    assert way == "link to a folder of all"
    (tmp_path / "all").mkdir()
    path.symlink_to(path.rename(tmp_path / "all" / "file"))
    (tmp_path / "all").chmod(0o777)
    return f"{path} is reached through {tmp_path}/all, which other users can write (mode 0777); run "


WAYS = [
    pytest.param(["file", "folder", "folder above", "link to a folder of all"], id="of this user"),
    pytest.param(
        ["group", "folder of a group", "owner", "link to a file of another user"],
        marks=pytest.mark.as_root, id="of others",
    ),
]  # fmt: skip


@pytest.mark.parametrize("ways", WAYS)
def test_settings_that_others_can_write_stop_every_command_and_run_nothing(baton, tmp_path, ways):
    job = baton("register", "true").text
    (tmp_path / "bell.toml").write_text("[notify]\nbell = true\n")
    baton("publish", job, "--event", "error", "--attempts", "1", BATON_CONFIG=str(tmp_path / "bell.toml"))
    for number, way in enumerate(ways):
        folder = tmp_path / str(number) / "config"
        path = folder / "baton" / "baton.toml"
        write(path, f'[notify]\ncommand = ["touch", "{tmp_path}/notified"]\n')
        why = share(way, path, tmp_path / str(number))
        usual = baton.refused("monitor", "--once", code=64, XDG_CONFIG_HOME=str(folder))
        named = baton.refused("list", code=64, BATON_CONFIG=str(path)) if number == 0 else usual
        for refusal in (usual, named):
            assert refusal.startswith(f"baton: config file {path} ")
            assert why in refusal
    assert not (tmp_path / "notified").exists()
    assert "sent" in baton("monitor", "--once", BATON_CONFIG=str(tmp_path / "bell.toml")).out  # it was due


@pytest.mark.parametrize("ways", WAYS)
def test_rules_that_others_can_write_answer_nothing(baton, tmp_path, ways):
    for number, way in enumerate(ways):
        folder = tmp_path / str(number) / "config"
        path = folder / "baton" / "rules.toml"
        write(path, '[[rule]]\ndecision = "allow"\ntool = "Bash"\ncommand = ["ls"]\n')
        test = ("rules", "test", "--tool", "Bash", "--command", "ls")
        if number == 0:
            assert baton(*test, XDG_CONFIG_HOME=str(folder)).out.startswith("allow")
        why = share(way, path, tmp_path / str(number))[:-1]
        refusal = baton.refused(*test, XDG_CONFIG_HOME=str(folder))
        assert refusal.startswith(f"baton: {path} ")
        assert why in refusal
        assert refusal.endswith("; no rule is used until it is fixed\n")
    checks = baton("doctor", "--json", code=1, XDG_CONFIG_HOME=str(folder)).json
    (found,) = [each for each in checks if each["what"] == "rules"]
    assert found["state"] == "broken"
    assert why in found["detail"]


@pytest.mark.parametrize("way", ["file", pytest.param("group", marks=pytest.mark.as_root)])
def test_settings_in_a_home_that_others_can_write_name_no_program(baton, tmp_path, way):
    baton("register", "true")
    path = (baton.folder / ".hermes").resolve() / "baton.toml"
    write(path, f'[agents.other]\nheadless = ["touch", "{tmp_path}/started"]\n')
    why = share(way, path, tmp_path)
    assert why in baton.refused("submit", "x", "--agent", "other", "--headless", code=64)
    assert not (tmp_path / "started").exists()


def test_a_state_that_others_can_write_is_not_used(baton, tmp_path):
    baton("register", "true")
    state = tmp_path / ".local" / "state"
    for folder in (state, state / "baton", state / "baton" / "homes", (baton.folder / ".hermes").resolve()):
        folder.chmod(0o777)
        refusal = baton.refused("list")
        assert f"(mode 0777); run `chmod go-w {folder}`" in refusal
        assert ("or set BATON_STATE_DIR to a folder of your own" in refusal) is (folder.name in ("state", "baton"))
        folder.chmod(0o755)
    assert baton("list").out


@pytest.mark.parametrize(
    "name",
    ["jobs", "sessions", "delegate_job_logs", "home.json", "jobs/registry.db", "agent-sessions.db"]
    + [f"../../{name}" for name in ("homes", "folders", "broker", "registry")],
)
def test_what_others_can_write_in_a_home_that_they_can_enter_is_not_used(baton, tmp_path, name):
    """A job that another user writes into the registry would run as this user."""
    baton("register", "true")
    home = (baton.folder / ".hermes").resolve()
    path = Path(os.path.normpath(home / name))
    if not path.exists() and path.suffix:
        path.touch()
    elif not path.exists():
        path.mkdir()
    usual = path.stat().st_mode & 0o777
    path.chmod(0o666 if path.is_file() else 0o777)
    if path.name != "homes":  # then it is not on the way
        assert baton("list").out, "the home is closed to others"
    for folder in (home, home.parent, home.parents[1]):
        if folder != path:
            folder.chmod(0o755)
    for command in (["list"], ["pick"], ["worker", "--until-empty"], ["submit", "true"]):
        refusal = baton.refused(*command)
        assert f"{path} can be written by other users" in refusal or f"through {path}, which other" in refusal
    path.chmod(usual)
    assert baton("list").out


def test_a_registry_elsewhere_that_others_can_write_is_not_used(baton, tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    for option in (
        ["--registry-dir", str(folder)],
        ["--registry", f"sqlite:{folder}/x.db"],
        ["--registry", f"file:{folder}"],
    ):
        folder.chmod(0o755)
        baton("register", "true", *option)
        folder.chmod(0o777)
        refusal = baton.refused("list", *option)
        assert f"{folder}" in refusal
        assert f"run `chmod go-w {folder}`" in refusal
    folder.chmod(0o1777)  # others can replace nothing
    baton("list", "--registry", f"sqlite:{folder}/x.db")
    (folder / "x.db").chmod(0o666)
    assert f"{folder}/x.db can be written by other users" in baton.refused(
        "list", "--registry", f"sqlite:{folder}/x.db"
    )


def test_worktrees_are_not_made_where_others_can_change_them(baton, tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=baton.folder, check=True)
    author = ["-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run(["git", *author, "commit", "-q", "--allow-empty", "-m", "x"], cwd=baton.folder, check=True)
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o777)
    refusal = baton.refused("submit", "--worktree", "true", code=64, XDG_DATA_HOME=str(tmp_path / "all"))
    assert f"{tmp_path}/all, which other users can write (mode 0777); run " in refusal
    assert refusal.endswith("or set XDG_DATA_HOME\n")
    assert baton("list", "--json").json == []


def test_a_state_is_not_made_where_others_can_replace_it(baton, tmp_path):
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o777)
    assert "all, which other users can write" in baton.refused("register", "x", BATON_STATE_DIR=f"{tmp_path}/all/mine")
    assert os.listdir(tmp_path / "all") == []
    (tmp_path / "all").chmod(0o1777)
    baton("register", "x", BATON_STATE_DIR=f"{tmp_path}/all/mine")


@pytest.mark.as_root
def test_what_an_editor_writes_with_the_umask_of_users_with_a_group_of_their_own_is_used(baton, tmp_path):
    before = os.umask(0o002)
    try:
        for name, text in (
            ("baton.toml", 'agent = "codex"\n'),
            ("rules.toml", '[[rule]]\ndecision = "ask"\ntool = "x"\n'),
        ):
            path = tmp_path / ".config" / "baton" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.stat().st_mode & 0o777 == 0o664
        assert path.parent.stat().st_mode & 0o777 == 0o775
        baton.env.pop("BATON_AGENT")
        assert f"agent\tcodex\t{tmp_path}/.config/baton/baton.toml\n" in baton("config", "show").out
        assert "tool x" in baton("rules", "list").out
        baton("register", "x")
    finally:
        os.umask(before)


@pytest.mark.parametrize("command", [["config", "init"], ["rules", "add", "ask", "--tool", "x"], ["register", "x"]])
def test_what_baton_writes_is_accepted_afterwards_whatever_the_umask(baton, command):
    before = os.umask(0)
    try:
        baton(*command)
    finally:
        os.umask(before)
    baton("register", "x")
    assert "no rule" not in baton("rules", "list").err.replace("there are no rules", "")
