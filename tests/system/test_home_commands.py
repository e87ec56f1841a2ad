"""The home of a folder, with the installed command: what git, races, read-only folders and other users do to it."""

from __future__ import annotations

import hashlib
import os
import subprocess

import pytest

from baton.cli.main import VERBS, load_verb
from support.command import BATON, Baton
from support.repositories import Repo
from support.small_disk import SmallDisk

# What a verb needs on its command line.
ARGUMENTS = {
    "get": ["00000001"], "status": ["00000001"], "renew": ["00000001", "--attempt", "1", "--lease", "9"], "release": ["00000001"],
    "cancel": ["00000001"], "retry": ["00000001"], "follow-up": ["00000001", "x"], "send": ["00000001", "x"], "wait": ["00000001"], "attach": ["00000001"], "logs": ["00000001"],
    "publish": ["00000001", "--event", "started"], "subscribe": ["00000001"], "watch": ["00000001"], "submit": ["x"],
    "register": ["x"], "monitor": ["--once"], "prune": ["--older-than", "1d"],
    "session create": ["x"], "session stop": ["x"], "session resume": ["x"], "session show": ["x"],
    "session attach": ["x"], "session send": ["x", "y"], "session capture": ["x"],
    "agent refresh": ["x", "--generation", "g"], "agent resolve": ["x"], "agent show": ["x"],
    "agent remove": ["x", "--generation", "g"], "agent publish": ["x", "--session", "x"], "agent watch": ["x"],
    "registry prune": ["--older-than", "1d"], "registry migrate": ["--to", "sqlite:x.db"], "registry reconcile": ["00000001", "--keep", "registry"],
    "broker init": ["--nats", "set", "--host", "localhost"],
    "approve": ["00000001"], "deny": ["00000001"], "answer": ["00000001", "1"], "explain": ["00000001"],
}  # fmt: skip
# These use no home: they must work in any folder. `mcp` opens one with each call of a tool, and answers with the refusal.
WITHOUT = {"version", "completion", "demo", "hook", "mcp", "trust", "skills install", "config init"} | {
    f"rules {action}" for action in ("list", "add", "remove", "test")
}


def commands():
    for name in VERBS:
        verb = load_verb(name)
        for words in [f"{name} {action.name}" for action in verb.actions] or [name]:
            if words not in WITHOUT:
                yield words


def tree(folder):
    """Every name below a folder, with what is in it."""
    found = {}
    for top, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(top, name)
            if os.path.islink(path):
                found[path] = os.readlink(path)
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    found[path] = hashlib.sha256(file.read()).hexdigest()
    return found


@pytest.fixture
def baton(tmp_path):
    """The command in a folder that is not the user's home."""
    (tmp_path / "work").mkdir()
    return Baton(tmp_path / "work", HOME=str(tmp_path), GIT_CONFIG_GLOBAL="/dev/null")


@pytest.fixture
def state(tmp_path):
    return tmp_path / ".local" / "state" / "baton"


@pytest.fixture
def git(baton):
    def run(*arguments, folder=None):
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
        done = subprocess.run(command, cwd=folder or baton.folder, env=baton.env, capture_output=True, text=True)  # noqa: PLW1510
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("init", "-q", "-b", "main")
    (baton.folder / "file").write_text("x")
    run("add", "file")
    run("commit", "-q", "-m", "first")
    return run


def side_by_side(baton, number, *arguments):
    running = [
        subprocess.Popen(
            [BATON, *arguments],
            cwd=baton.folder,
            env=baton.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(number)
    ]
    done = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0] * number, done
    return {out.strip() for out, _ in done}


@pytest.mark.parametrize("home", [[], ["--home", "./here"]])
def test_commands_that_begin_at_once_share_one_home(baton, state, home):
    jobs = side_by_side(baton, 8, "register", "x", *home)
    assert len(jobs) == 8
    assert {job["job_id"] for job in baton("list", "--json", *home).json} == jobs
    assert len(os.listdir(state / "folders")) == 1
    assert len(os.listdir(state / "homes")) == 1 if not home else not (state / "homes").exists()


def test_commands_that_only_read_make_nothing(baton, state):
    for command in ("list", "config show", "session list", "session list --all", "logs --list", "agent list",
                    "registry stats", "monitor --once", "monitor --dry-run", "session prune"):  # fmt: skip
        baton(*command.split())
    baton("doctor", code=None)
    baton.refused("pick", code=3)
    for command in ("get", "status", "cancel", "logs", "wait", "publish --event started"):
        assert "00000001" in baton(*command.split(), "00000001", code=1).err
    baton.refused("register", "", code=64)
    assert os.listdir(baton.folder) == []
    assert not (state / "homes").exists()
    assert not (state / "folders").exists()


class TestGit:
    @pytest.mark.parametrize(
        "command",
        ["clean -ffdx", "clean -fdx", "checkout -q other", "stash -a", "merge -q other", "reset --hard -q other",
         "checkout -q -f other", "rebase -q other"],
    )  # fmt: skip
    def test_it_leaves_every_byte(self, baton, state, git, command):
        git("checkout", "-q", "-b", "other")
        (baton.folder / ".hermes" / "jobs").mkdir(parents=True)
        (baton.folder / ".hermes" / "jobs" / "registry.db").write_text("of the branch")
        git("add", "-f", ".hermes")
        git("commit", "-q", "-m", "hostile")
        git("checkout", "-q", "main")
        assert not (baton.folder / ".hermes").exists()
        job = baton("register", "x").text
        assert git("status", "--porcelain") == ""
        before = tree(state / "homes")
        git(*command.split())
        assert tree(state / "homes") == before
        assert baton("status", job).text == "pending"
        assert baton("status", job, "--set", "cancelled").text == "cancelled"

    def test_the_link_comes_back(self, baton, git):
        job = baton("register", "x").text
        git("clean", "-ffdx")
        assert not os.path.lexists(baton.folder / ".hermes")
        baton("list")
        assert (baton.folder / ".hermes" / "jobs" / "registry.db").exists()
        assert (baton.folder / ".hermes" / "delegate_job_logs" / job).is_dir()

    def test_work_trees_share_the_home_of_the_main_one(self, baton, git, tmp_path):
        git("worktree", "add", "-q", str(tmp_path / "linked"))
        linked = Baton(tmp_path / "linked", **{name: baton.env[name] for name in ("HOME", "GIT_CONFIG_GLOBAL")})
        job = linked("register", "x").text
        assert baton("list").out.startswith(job)
        assert not os.path.lexists(tmp_path / "linked" / ".hermes")
        assert git("status", "--porcelain") == git("status", "--porcelain", folder=tmp_path / "linked") == ""

    def test_a_clone_that_carries_a_home_stops_every_command(self, baton, git, tmp_path):
        """What the clone wants to run leaves a file behind."""
        (baton.folder / ".hermes").mkdir()
        evil = tmp_path / "evil"
        (baton.folder / ".hermes" / "baton.toml").write_text(
            f'agent = "evil"\n[agents.evil]\nheadless = ["touch", "{evil}"]\ncommand = ["touch", "{evil}"]\n'
        )
        git("add", "-f", ".hermes")
        git("commit", "-q", "-m", "hostile")
        git("clone", "-q", str(baton.folder), str(tmp_path / "clone"))
        clone = Baton(tmp_path / "clone", HOME=str(tmp_path))
        before = tree(tmp_path / "clone")
        for command in (["submit", "x"], ["doctor"], ["list"], ["monitor", "--once"], ["worker", "--until-empty"]):
            line = clone.refused(*command)
            assert f"{tmp_path}/clone/.hermes is not a home that you made here" in line
            assert line.rstrip().endswith(f"baton trust {tmp_path}/clone")
        assert tree(tmp_path / "clone") == before
        assert not evil.exists()
        assert "UntrustedHome" in clone("list", "--debug", code=1).err


@pytest.mark.parametrize("command", list(commands()))
def test_every_command_takes_a_home_and_checks_it(baton, state, command):
    (baton.folder / "other" / "jobs").mkdir(parents=True)
    line = baton.refused(*command.split(), *ARGUMENTS.get(command, []), "--home", "./other")
    assert f"baton trust {baton.folder}/other" in line
    assert sorted(os.listdir(baton.folder)) == ["other"]
    assert not state.exists()


class TestNames:
    def test_a_plain_name_is_that_of_the_link(self, baton, state):
        job = baton("register", "x", BATON_HOME=".mam").text
        assert (baton.folder / ".mam").resolve().parent == state / "homes"
        assert baton("list").out.startswith(job)
        assert (baton.folder / ".mam").resolve() == (baton.folder / ".hermes").resolve()

    def test_a_path_is_a_place(self, baton, tmp_path):
        job = baton("register", "x", "--home", "./a/b").text
        assert (baton.folder / "a" / "b" / "jobs" / "registry.db").exists()
        assert not os.path.lexists(baton.folder / ".hermes")
        assert baton("list", BATON_HOME=str(baton.folder / "a" / "b")).out.startswith(job)
        assert baton("list").out == ""

    def test_a_path_below_the_link_begins_a_home(self, baton, state):
        job = baton("register", "x", "--registry", "file:.hermes/jobs").text
        assert (baton.folder / ".hermes").is_symlink()
        assert baton("list").out.startswith(job)

    def test_what_waits_in_a_new_folder_finds_the_first_job(self, baton):
        waiting = subprocess.Popen(
            [BATON, "pick", "--wait", "30"], cwd=baton.folder, env=baton.env, stdout=subprocess.PIPE, text=True
        )
        job = baton("register", "x").text
        assert waiting.communicate(timeout=40)[0].strip() == job


class TestSettings:
    def test_a_home_in_place_cannot_say_what_to_run(self, baton, tmp_path):
        baton("register", "x", "--home", "./here")
        evil = tmp_path / "evil"
        (baton.folder / "here" / "baton.toml").write_text(
            f'timeout_sec = 77\nregistry = "postgresql://evil"\nmqtt_host = "evil.example"\n'
            f'[agents.shell]\nheadless = ["touch", "{evil}"]\n'
        )
        shown = baton("config", "show", "--home", "./here")
        assert (
            f"{baton.folder}/here/baton.toml is in a home in place; ignored: agents, mqtt_host, registry" in shown.err
        )
        assert "timeout_sec\t77\t" in shown.out
        assert "evil" not in shown.out
        baton("doctor", "--home", "./here", code=None)
        assert not evil.exists()

    def test_the_file_of_a_home_in_the_state_sets_what_the_user_wants(self, baton):
        baton("register", "x")
        (baton.folder / ".hermes" / "baton.toml").write_text('mqtt_host = "b.example"\n')
        assert "mqtt_host\tb.example\t" in baton("config", "show").out
        assert baton("config", "show").err == ""

    def test_a_repository_has_its_own_in_the_file_of_the_user(self, baton, git, tmp_path):
        config = tmp_path / ".config" / "baton" / "baton.toml"
        config.parent.mkdir(parents=True)
        config.write_text('agent = "codex"\n[repository."~/work"]\nagent = "gemini"\n')
        git("worktree", "add", "-q", str(tmp_path / "linked"))
        for folder, agent in ((baton.folder, "gemini"), (tmp_path / "linked", "gemini"), (tmp_path, "codex")):
            shown = Baton(folder, HOME=str(tmp_path))("config", "show").out
            assert f"agent\t{agent}\t{config}" in shown

    @pytest.mark.parametrize("kind", ["link", "pipe", "huge"])
    def test_a_file_that_is_none_is_refused(self, baton, kind, tmp_path):
        baton("register", "x")
        path = baton.folder / ".hermes" / "baton.toml"
        if kind == "link":
            (tmp_path / "other").write_text("")
            path.symlink_to(tmp_path / "other")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.write_text("#" * (1 << 20) + "\n")
        assert "baton.toml cannot be read" in baton.refused("list", code=64)


class TestState:
    @pytest.mark.parametrize("place", ["state", "../other state", ".hermes-state/deep", "link"])
    def test_it_may_be_anywhere(self, baton, tmp_path, place):
        (tmp_path / "real").mkdir(mode=0o700)
        (baton.folder / "link").symlink_to(tmp_path / "real")
        job = baton("register", "x", BATON_STATE_DIR=place).text
        assert baton("list", BATON_STATE_DIR=place).out.startswith(job)
        assert (baton.folder / ".hermes").resolve().is_relative_to((baton.folder / place).resolve())
        (baton.folder / "sub").mkdir()
        inside = Baton(baton.folder / "sub", HOME=str(tmp_path))
        assert inside("list", BATON_STATE_DIR=os.path.join(baton.folder, place)).out.startswith(job)

    def test_it_may_be_moved(self, baton, tmp_path):
        job = baton("register", "x", BATON_STATE_DIR=str(tmp_path / "before")).text
        (tmp_path / "before").rename(tmp_path / "after")
        assert baton("list", BATON_STATE_DIR=str(tmp_path / "after")).out.startswith(job)
        assert (baton.folder / ".hermes").resolve().is_relative_to(tmp_path / "after")

    @pytest.mark.as_root
    def test_one_of_another_user_is_refused(self, baton, tmp_path):
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 1, 1)
        for command in (["list"], ["register", "x"]):
            assert "theirs belongs to another user" in baton.refused(*command, BATON_STATE_DIR=str(tmp_path / "theirs"))

    def test_one_that_is_a_file_is_named(self, baton, tmp_path):
        (tmp_path / "file").touch()
        assert f"{tmp_path}/file" in baton.refused("register", "x", BATON_STATE_DIR=str(tmp_path / "file"))


@pytest.mark.as_root
def test_a_home_of_another_user_is_passed_over(baton):
    (baton.folder / ".hermes").mkdir()
    os.chown(baton.folder / ".hermes", 1, 1)
    registered = baton("register", "x")
    assert f"warning: {baton.folder}/.hermes belongs to another user and is not used\n" in registered.err
    assert baton("list").out.startswith(registered.text)
    assert os.listdir(baton.folder / ".hermes") == []
    (baton.folder / "their").mkdir()
    os.chown(baton.folder / "their", 1, 1)
    assert "belongs to another user" in baton.refused("list", "--home", "./their")


@pytest.mark.as_root
def test_a_folder_that_cannot_be_written_works_without_a_link(tmp_path):
    with SmallDisk(str(tmp_path / "disk")) as disk, disk.read_only():
        baton = Baton(disk.folder, HOME=str(tmp_path))
        job = baton("register", "x")
        assert job.err == ""
        assert baton("list").out.startswith(job.text)
        assert os.listdir(disk.folder) == []


@pytest.mark.as_root
@pytest.mark.parametrize(
    "command",
    [["register", "x"], ["web"], ["monitor", "--all-homes"]],
    ids=lambda command: command[0],
)
def test_where_the_state_cannot_be_made_the_line_names_its_variable(tmp_path, command):
    with SmallDisk(str(tmp_path / "disk")) as disk, disk.read_only():
        baton = Baton(tmp_path, HOME=disk.folder)
        refusal = baton.refused(*command)
        assert "Read-only file system, so baton cannot make" in refusal
        assert "set BATON_STATE_DIR to a folder that you may write" in refusal


@pytest.mark.as_root
def test_where_a_worktree_cannot_be_made_no_job_is_registered_and_the_line_names_the_variable(tmp_path):
    repo = Repo(tmp_path)
    with SmallDisk(str(tmp_path / "disk")) as disk, disk.read_only():
        baton = Baton(repo.top, HOME=disk.folder, BATON_STATE_DIR=str(tmp_path / "state"), BATON_AGENT="shell")
        refusal = baton.refused("submit", "--worktree", "true", code=64)
        assert f"{disk.folder}/.local: Read-only file system" in refusal
        assert "set XDG_DATA_HOME to a folder that you may write" in refusal
        assert baton("list", "--json").json == []


@pytest.mark.as_root
def test_the_search_ends_at_the_file_system(tmp_path):
    outside = Baton(tmp_path)
    outside("register", "x")
    with SmallDisk(str(tmp_path / "disk")) as disk:
        assert Baton(disk.folder, HOME="/nowhere", BATON_STATE_DIR=str(tmp_path / "s"))("list").out == ""
        inside = Baton(disk.folder, HOME=str(tmp_path / "user"), XDG_STATE_HOME=str(tmp_path / ".local" / "state"))
        assert inside("list").out == ""


def test_doctor_does_not_call_ok_what_is_not_installed(tmp_path):
    """Only the agent of the settings is worth a warning."""
    baton = Baton(tmp_path, PATH="/usr/bin:/bin", BATON_AGENT="gemini")
    states = {each["what"]: each["state"] for each in baton("doctor", "--json").json}
    assert (states["agent gemini"], states["agent codex"], states["agent shell"]) == ("warning", "-", "ok")
    assert "\n-        agent codex: codex is not installed: " in baton("doctor").out


@pytest.mark.parametrize("version", ["2.1.197", "9.9.9"])
def test_doctor_warns_of_an_agent_that_baton_is_not_tested_with(tmp_path, version):
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho unpacked >&2\necho '{version} (Claude Code)'\n")
    program.chmod(0o755)
    baton = Baton(tmp_path)
    found = baton("doctor", "--json", code=None, PATH=f"{program.parent}:{baton.env['PATH']}").json
    (claude,) = (each for each in found if each["what"] == "agent claude-code")
    assert claude["state"] == ("ok" if version == "2.1.197" else "warning")
    assert claude["detail"].startswith(f"{version} (Claude Code) at {program}")
    if claude["state"] == "warning":
        assert claude["detail"].endswith("this release was not tested, baton was tested with 2.1.197")
