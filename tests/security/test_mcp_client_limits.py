"""What a client of `baton mcp` that is held in a sandbox may not reach through the server: a shell, a folder outside of
the one in which it started the server, an agent that asks for nothing, and a dialog on the screen of an agent."""

from __future__ import annotations

import json
import os
import sys

import pytest

from support import acp_agent
from support.mcp import McpClient, allow
from support.processes import processes_with
from support.repositories import git
from support.sessions import SessionDesk
from support.waiting import wait_until

SHELL = 'add "shell" to allow in [mcp] of'
SHELL_JOB = ("--agent", "shell", "--json", "--detach")
ENDS = ["end", "end_turn"]


class Desk(SessionDesk):
    """A user with a project, whose settings name the agent `parrot`, which follows the script in its folder, and two
    commands: `run-it`, and `listener`, which takes what is typed and does nothing."""

    def __init__(self, folder) -> None:
        super().__init__(os.path.join(folder, "project"))
        self.user = str(folder)
        self.env["HOME"] = self.user
        os.makedirs(self.folder)
        self.settings_file = os.path.join(self.user, ".config", "baton", "baton.toml")
        self.allow()

    def processes(self):
        return processes_with("HOME", self.user)

    def allow(self, *what: str, more: str = "") -> None:
        """Write the user's settings, with these words in [mcp] allow."""
        command = json.dumps([sys.executable, acp_agent.__file__])
        more += f"[agents.parrot]\nacp = {command}\nyolo = ['--yolo']\n"
        more += "[agents.run-it]\nheadless = ['sh', '-c', '{prompt}']\n"
        more += "[agents.listener]\ninteractive = ['tail', '-f', '/dev/null']\nyolo = ['-q']\n"
        allow(self.user, *what, more=more)

    def script(self, *turns: list, folder: str | None = None) -> None:
        with open(os.path.join(folder or self.folder, "acp.json"), "w", encoding="utf-8") as file:
            json.dump({"turns": turns}, file)

    def client(self, folder=None, **more) -> McpClient:
        return McpClient(folder or self.folder, self.env, **more)

    def jobs(self) -> list[dict]:
        return self("list", "--json").json


@pytest.fixture
def desk(tmp_path):
    desk = Desk(str(tmp_path))
    yield desk
    desk.close()


@pytest.fixture
def client(desk):
    with desk.client() as client:
        yield client


# -- submit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["shell", "run-it"])
def test_a_command_as_the_prompt_is_refused_until_the_user_allows_it(desk, client, agent):
    task = {"prompt": "echo ran > ran", "agent": agent, "headless": True}
    refused = client.refused("submit", **task)
    assert f'add "{agent}" to allow in [mcp] of {desk.settings_file}' in refused
    assert desk.jobs() == []
    desk.allow(agent)
    job = client.call("submit", **task)["job_id"]
    assert client.until_ended(job)["jobs"][0]["ok"] is True
    assert os.path.exists(os.path.join(desk.folder, "ran"))


def test_shell_allows_every_command_and_a_name_that_agent_alone(desk, client):
    desk.allow("run-it")
    assert SHELL in client.refused("submit", prompt="true", agent="shell")
    desk.allow("shell")
    job = client.call("submit", prompt="true", agent="run-it", headless=True)["job_id"]
    client.until_ended(job)


@pytest.mark.parametrize("where", ["file", "environment"])
def test_a_command_is_refused_as_the_default_agent_too(desk, where):
    desk.allow(more="agent = 'shell'\n" if where == "file" else "")
    desk.env |= {"BATON_AGENT": "shell"} if where == "environment" else {}
    with desk.client() as client:
        assert SHELL in client.refused("submit", prompt="echo ran > ran")
    assert desk.jobs() == []


def test_a_validation_is_refused_until_the_user_allows_it(desk, client):
    desk.script([["say", "Done."], ENDS], [["say", "Done."], ENDS])
    task = {"prompt": "work", "agent": "parrot", "validate": "touch ran"}
    assert 'add "validate" to allow in [mcp] of' in client.refused("submit", **task)
    assert 'add "validate" to allow' in client.refused("submit", **task | {"validate": ""})
    assert desk.jobs() == []
    desk.allow("validate")
    client.until_ended(client.call("submit", **task)["job_id"])
    assert os.path.exists(os.path.join(desk.folder, "ran"))


def test_a_work_folder_outside_is_refused_however_it_is_named(desk, client, tmp_path):
    os.makedirs(tmp_path / "other")
    os.makedirs(tmp_path / "project-2")
    os.symlink(tmp_path / "other", os.path.join(desk.folder, "link"))
    os.makedirs(os.path.join(desk.folder, "inside"))
    os.symlink("inside", os.path.join(desk.folder, "link-inside"))
    outside = ("/", "..", str(tmp_path), str(tmp_path / "other"), "link", "inside/../../other", "link/..",
               "../project-2", "link-inside/../..")  # fmt: skip
    for workdir in outside:
        refused = client.refused("submit", prompt="work", agent="parrot", workdir=workdir)
        assert 'add "workdir" to allow in [mcp] of' in refused, workdir
    assert desk.jobs() == []
    for workdir in ("", ".", "inside", "link-inside", desk.folder, "inside/..", f"{tmp_path}/project/inside"):
        desk.script([["say", "Done."], ENDS])
        desk.script([["say", "Done."], ENDS], folder=os.path.join(desk.folder, "inside"))
        client.until_ended(client.call("submit", prompt="work", agent="parrot", workdir=workdir)["job_id"])
    desk.allow("workdir")
    desk.script([["say", "Done."], ENDS], folder=tmp_path / "other")
    job = client.call("submit", prompt="work", agent="parrot", workdir="link")["job_id"]
    assert client.until_ended(job)["jobs"][0]["ok"] is True


def test_a_work_folder_that_becomes_a_link_before_the_job_starts_is_refused(desk, client, tmp_path):
    os.makedirs(tmp_path / "other")
    os.makedirs(inside := os.path.join(desk.folder, "inside"))
    desk.script([["say", "Done."], ENDS], folder=tmp_path / "other")
    first = desk("submit", "until [ -e go ]; do sleep 0.05; done", *SHELL_JOB).json["job_id"]
    job = client.call("submit", prompt="work", agent="parrot", workdir="inside", after=[first])["job_id"]
    os.rename(inside, inside + ".old")
    os.symlink(tmp_path / "other", inside)
    open(os.path.join(desk.folder, "go"), "w").close()
    (ended,) = client.until_ended(job)["jobs"]
    assert (ended["ok"], ended["ended_by"]) == (False, "refused")
    assert "outside" in ended["reason"]
    assert not os.path.exists(tmp_path / "other" / "heard.jsonl")


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "link/secret"])
def test_an_expected_file_outside_is_refused(desk, client, tmp_path, name):
    (tmp_path / "secret").write_text("x")
    os.symlink(tmp_path, os.path.join(desk.folder, "link"))
    assert "lies outside" in client.refused("submit", prompt="work", agent="parrot", expect=[name])
    assert desk.jobs() == []


def repository(path) -> str:
    os.makedirs(path, exist_ok=True)
    git(path, "init", "-q", "-b", "main")
    for name in ("name", "email"):
        git(path, "config", f"user.{name}", "test")
    git(path, "commit", "-q", "--allow-empty", "-m", "first")
    return str(path)


def test_a_worktree_of_a_repository_elsewhere_is_refused(desk, client, tmp_path):
    """A `.git` file can name any repository of the user."""
    other = repository(tmp_path / "other")
    git(other, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
    names = (f"{other}/.git", f"{other}/.git/worktrees/tree")
    for number, name in enumerate(names):
        os.makedirs(folder := os.path.join(desk.folder, f"sub{number}"))
        with open(os.path.join(folder, ".git"), "w", encoding="utf-8") as file:
            file.write(f"gitdir: {name}\n")
        os.makedirs(link := os.path.join(desk.folder, f"link{number}"))
        os.symlink(name, os.path.join(link, ".git"))
        for workdir in (folder, link):
            refused = client.refused("submit", prompt="work", agent="parrot", workdir=workdir, worktree=True)
            assert 'add "workdir" to allow in [mcp] of' in refused, workdir
    assert desk.jobs() == []
    assert git(other, "branch", "--list", "baton/*") == ""


def test_worktrees_of_the_folder_s_own_repository_are_made(desk, tmp_path):
    """Also where the client was started in a linked work tree, or below the top of the repository."""
    top = repository(tmp_path / "top")
    os.makedirs(below := os.path.join(top, "below"))
    with open(os.path.join(below, "acp.json"), "w", encoding="utf-8") as file:
        json.dump({"turns": [[["say", "Done."], ENDS]]}, file)
    with open(os.path.join(top, "acp.json"), "w", encoding="utf-8") as file:
        json.dump({"turns": [[["say", "Done."], ENDS]]}, file)
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "second")
    git(top, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    for folder in (top, below, str(tmp_path / "linked")):
        with desk.client(folder) as client:
            job = client.call("submit", prompt="work", agent="parrot", worktree=True)["job_id"]
            assert client.until_ended(job)["jobs"][0]["ok"] is True, folder
            assert client.call("result", job_id=job)["branch"] == f"baton/{job}-1"


def test_a_live_agent_is_bound_by_the_same_limits(desk, client, tmp_path):
    desk.create("sh")
    assert SHELL in client.refused("submit", prompt="echo ran > ran", to="sh")
    desk.create("near", agent="listener")
    assert 'add "listener" to allow' in client.refused("submit", prompt="work", to="near")
    desk.allow("listener")
    os.makedirs(tmp_path / "other")
    desk.create("far", "--workdir", str(tmp_path / "other"), agent="listener")
    assert 'add "workdir" to allow' in client.refused("submit", prompt="work", to="far")
    desk.create("free", "--yolo", agent="listener")
    assert "--yolo" in client.refused("submit", prompt="work", to="free")
    more = {"workdir": str(tmp_path / "other")}
    assert 'add "workdir" to allow' in client.refused("submit", prompt="work", to="near", **more)
    assert desk.jobs() == []
    client.call("cancel", job_id=client.call("submit", prompt="work", to="near")["job_id"])
    for name in ("sh", "free", "far", "near"):
        desk("session", "stop", name, "--mode", "hard")


# -- the setting -------------------------------------------------------------------------------------------------------


def test_the_setting_is_shown_with_its_source(desk):
    shown = desk("config", "show", "--json").json["mcp.allow"]
    assert shown == {"value": [], "source": "default"}
    desk.allow("workdir", "run-it")
    shown = desk("config", "show", "--json").json["mcp.allow"]
    assert shown == {"value": ["workdir", "run-it"], "source": desk.settings_file}
    assert ["mcp.allow", "workdir,", "run-it", desk.settings_file] in [
        line.split() for line in desk("config", "show").out.splitlines()
    ]


@pytest.mark.parametrize(
    ("table", "why"),
    [("[mcp]\nallow = ['shel']", "'shel', which is none of shell, validate, workdir, listener, parrot, run-it"),
     ("[mcp]\nallow = ['nonesuch']", "'nonesuch'"), ("[mcp]\nallow = ['']", "''"), ("[mcp]\nallow = 'shell'", "a list"),
     ("[mcp]\nallow = [1]", "a list"), ("[mcp]\nallow = true", "a list"), ("[mcp]\nallows = ['shell']", "'allows'"),
     ("[mcp.allow]\nshell = true", "a list"), ("mcp = ['shell']", "'mcp'")],
)  # fmt: skip
def test_a_wrong_setting_is_refused_in_one_line_and_allows_nothing(desk, table, why):
    desk.allow(more=table + "\n")
    assert why in desk.refused("config", "show", code=64)
    with desk.client() as client:
        assert why in client.refused("submit", prompt="true", agent="shell")


@pytest.mark.parametrize("named", ["home", "--home"])
def test_a_home_allows_nothing(desk, named):
    """What lies in a folder may come from anywhere."""
    if named == "home":
        desk("list")
        desk.register("true")
        file, options = os.path.join(desk.home, "baton.toml"), ()
    else:
        file = os.path.join(desk.user, "other", "baton.toml")
        options = ("--home", os.path.dirname(file))
        desk("register", "true", "--agent", "shell", *options)
    with open(file, "w", encoding="utf-8") as toml:
        toml.write('[mcp]\nallow = ["shell"]\n')
    with McpClient(desk.folder, desk.env, *options) as client:
        refused = client.refused("submit", prompt="echo ran > ran", agent="shell")
    assert "[mcp]" in refused
    assert not os.path.exists(os.path.join(desk.folder, "ran"))


# -- message -----------------------------------------------------------------------------------------------------------


def is_working(desk, job: str) -> bool:
    return (desk.job(job).get("activity") or {}).get("kind") == "working"


def test_no_message_continues_a_job_that_asks_for_nothing(desk, client):
    """Neither while it runs, nor when it has ended, nor in a session of the user that goes on."""
    desk.allow("shell", "validate", "workdir")  # this is never allowed
    desk.script([["say", "Done."], ENDS], [["say", "More."], ENDS])
    job = desk("submit", "work", "--agent", "parrot", "--yolo", "--json", "--detach").json["job_id"]
    client.until_ended(job)
    assert "--yolo" in client.refused("message", job_id=job, text="more")
    desk.create("free", "--yolo", agent="listener")
    job = desk("submit", "work", "--session", "free", "--json", "--detach").json["job_id"]
    wait_until(lambda: is_working(desk, job))
    assert "--yolo" in client.refused("message", job_id=job, text="more")
    desk("publish", "--job", job, "--event", "completed", "--detail", "done")
    assert "--yolo" in client.refused("message", job_id=job, text="more")
    assert len(desk.jobs()) == 2
    desk("session", "stop", "free", "--mode", "hard")


def test_a_message_is_no_way_into_a_shell(desk, client):
    job = desk("submit", "read line; eval $line", "--agent", "shell", "--json", "--detach").json["job_id"]
    wait_until(lambda: is_working(desk, job))
    assert SHELL in client.refused("message", job_id=job, text="echo ran > ran")
    client.call("cancel", job_id=job)
    desk.create("sh")
    ended = desk("submit", "true", "--session", "sh", "--json", "--detach").json["job_id"]
    client.until_ended(ended)
    assert SHELL in client.refused("message", job_id=ended, text="echo ran > ran")
    assert not os.path.exists(os.path.join(desk.folder, "ran"))
    desk("session", "stop", "sh", "--mode", "hard")


def test_a_message_reaches_no_work_folder_outside(desk, client, tmp_path):
    os.makedirs(tmp_path / "other")
    desk.script([["say", "Done."], ENDS], [["say", "More."], ENDS], folder=tmp_path / "other")
    options = ("--agent", "parrot", "--workdir", str(tmp_path / "other"), "--json", "--detach")
    job = desk("submit", "work", *options).json["job_id"]
    client.until_ended(job)
    assert 'add "workdir" to allow' in client.refused("message", job_id=job, text="more")
    desk.allow("workdir")
    client.until_ended(client.call("message", job_id=job, text="more")["job_id"])
