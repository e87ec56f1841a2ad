"""A repository full of programs that git would start: none of them runs by a git call of baton's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from baton.core.errors import InvalidValue, WorktreeRefused
from baton.worktrees.contents import examine, own_git
from baton.worktrees.git import find_repository
from baton.worktrees.making import Needs
from baton.worktrees.merging import commit_rest, commits_of, diff, merge
from baton.worktrees.salvage import git_identity, remove, salvage
from support.processes import processes_with
from support.repositories import Repo, git
from support.sessions import SessionDesk

HOOKS = (
    "applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout", "post-commit",
    "post-index-change", "post-merge", "post-rewrite", "pre-applypatch", "pre-auto-gc", "pre-commit",
    "pre-merge-commit", "pre-push", "pre-rebase", "prepare-commit-msg", "push-to-checkout", "reference-transaction",
    "sendemail-validate", "update", "post-update", "pre-receive", "proc-receive",
)  # fmt: skip


class Hostile(Repo):
    """Every program that its configuration names leaves a file."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.folder = os.path.realpath(folder)
        self.canaries = os.path.join(self.folder, "canaries")
        os.makedirs(self.canaries)

    def canary(self, name: str) -> str:
        path = os.path.join(self.folder, f"run-{name}")
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\ntouch {self.canaries}/{name}\ncat\n")
        os.chmod(path, 0o755)
        return path

    def poison(self, git_dir: str, mark: str = "") -> None:
        """Name programs everywhere in the configuration of a repository."""
        os.makedirs(os.path.join(git_dir, "hooks"), exist_ok=True)
        for name in HOOKS:
            path = os.path.join(git_dir, "hooks", name)
            with open(path, "w") as file:
                file.write(f"#!/bin/sh\ntouch {self.canaries}/hook-{name}{mark}\n")
            os.chmod(path, 0o755)
        settings = {f"alias.{each}": f"!{self.canary('alias')}" for each in ("status", "add", "worktree", "diff")}
        settings |= {
            "core.fsmonitor": self.canary(f"fsmonitor{mark}"),
            "core.sshCommand": self.canary("ssh"),
            "core.pager": self.canary("pager"),
            "core.editor": self.canary("editor"),
            "core.askPass": self.canary("askpass"),
            "core.gitProxy": self.canary("proxy"),
            "core.alternateRefsCommand": self.canary("alternates"),
            "credential.helper": f"!{self.canary('credential')}",
            "diff.external": self.canary("diff-external"),
            "diff.evil.command": self.canary("diff-command"),
            "diff.evil.textconv": self.canary("textconv"),
            "diff.submodule": "log",
            "merge.evil.driver": f"{self.canary('merge-driver')} %A %O %B",
            "merge.default": "evil",
            "merge.renormalize": "true",
            "commit.gpgSign": "true",
            "gpg.program": self.canary("gpg"),
            "log.showSignature": "true",
            "gc.auto": "1",
            "submodule.recurse": "true",
            "submodule.sub.update": f"!{self.canary('submodule')}",
            "protocol.ext.allow": "always",
            "remote.evil.url": f"ext::{self.canary('transport')}",
            "remote.evil.promisor": "true",
            "remote.evil.partialclonefilter": "blob:none",
        }
        for driver in ("evil", "with=equals", "with space"):
            for way in ("clean", "smudge"):
                settings[f"filter.{driver}.{way}"] = self.canary(f"filter-{way}{mark}")
            settings[f"filter.{driver}.required"] = "true"
        for event in HOOKS:  # from git 2.54 on
            settings |= {
                f"hook.my {event}.event": event,
                f"hook.my {event}.command": self.canary(f"setting-{event}{mark}"),
                f"hook.my {event}.enabled": "true",
                f"hook.{event}.enabled": "true",
            }
        with open(os.path.join(self.folder, "included"), "w") as file:
            file.write(f'[filter "inner"]\n\tprocess = {self.canary("filter-process")}\n\trequired = true\n')
        with open(os.path.join(self.folder, "included-late"), "w") as file:
            file.write(f'[filter "late"]\n\tsmudge = {self.canary("filter-late")}\n\trequired = true\n')
            file.write(f'[hook "late"]\n\tcommand = {self.canary("setting-late")}\n\tevent = post-checkout\n')
            file.write("\tevent = post-index-change\n\tevent = reference-transaction\n")
        settings["include.path"] = os.path.join(self.folder, "included")
        # These hold in a worktree alone.
        settings["includeIf.gitdir:**/worktrees/**.path"] = os.path.join(self.folder, "included-late")
        settings["includeIf.onbranch:baton/**.path"] = os.path.join(self.folder, "included-late")
        with open(os.path.join(git_dir, "config"), "a") as file:
            for key, value in settings.items():
                section, _, rest = key.partition(".")
                part, _, name = rest.rpartition(".")
                quoted = f' "{part}"' if part else ""
                file.write(f'[{section}{quoted}]\n\t{name} = "{value}"\n')

    def ran(self) -> list[str]:
        return sorted(os.listdir(self.canaries))


ATTRIBUTES = "*.txt filter=evil diff=evil merge=evil\n*.dat filter=inner\n*.x filter=with=equals\nlate filter=late\n"


@pytest.fixture
def hostile(tmp_path):
    repo = Hostile(tmp_path)
    repo.write({".gitattributes": ATTRIBUTES, "c.dat": "data\n", "d.x": "x\n", "late": "late\n"})
    repo.commit("attributes")
    repo.add_submodule(tmp_path)
    repo.poison(os.path.join(repo.top, ".git"))
    repo.poison(os.path.join(repo.top, ".git", "modules", "sub"), "-in-sub")
    return repo


def test_the_programs_would_run(hostile):
    """Otherwise the other tests would prove nothing."""
    hostile.write({"a.txt": "changed\n"})
    os.utime(os.path.join(hostile.top, "b.txt"))
    with pytest.raises(AssertionError):  # its filters cat what they get, and the filter process says nothing useful
        git(hostile.top, "worktree", "add", "-q", "-b", "plain", str(hostile.folder) + "/plain")
        git(hostile.top, "diff")
        git(hostile.top, "commit", "-q", "-am", "x")
    assert {"hook-reference-transaction", "fsmonitor"} <= set(hostile.ran())


def test_no_program_of_the_repository_runs(hostile):
    one, two, three = (hostile.make(f"{each * 8}-1") for each in "abc")
    for tree in (one, two, three):
        assert Path(tree.path, "a.txt").read_text() == "one\n" * 5
        assert Path(tree.path, "sub/inner.txt").read_text() == "inner\n"
        assert examine(tree).words == ""
        hostile.poison(os.path.join(hostile.top, ".git", "worktrees", tree.name))  # an agent may write there, too
    for number, tree in enumerate((one, two, three)):
        lines = ["one\n"] * 5
        lines[2 * number] = f"changed by {tree.name}\n"
        hostile.write({"a.txt": "".join(lines), f"new-{number}.txt": "new\n", "sub/more.txt": "x\n"}, tree.path)
        os.utime(f"{tree.path}/c.dat")
        os.utime(f"{tree.path}/sub/inner.txt")
    nested = os.path.join(three.path, "nested")
    os.makedirs(nested)
    git(nested, "init", "-q")
    hostile.poison(os.path.join(nested, ".git"), "-in-nested")
    assert examine(one).submodules == ["sub"]
    for stat in (False, True):
        assert b"new-0.txt" in diff(one, stat=stat)[0]
    with pytest.raises(WorktreeRefused, match="submodule"):
        merge(one, hostile.top, title="one")
    os.unlink(f"{two.path}/sub/more.txt")
    with pytest.raises(WorktreeRefused, match="filter"):  # git would convert these files, baton does not
        commit_rest(two, "two")
    with pytest.raises(WorktreeRefused, match="found nowhere else"):
        remove(one)
    saved = salvage(three)
    assert saved.paths == ["nested", "sub"]
    assert hostile("show", f"{saved.ref}:new-2.txt") == "new"
    remove(two, discard=True)
    assert hostile.ran() == []


def test_hooks_of_the_configuration_are_turned_off_by_name(hostile):
    """Also where git is too old to run them."""
    safe = own_git(hostile.make("aaaaaaaa-1"))
    for event in HOOKS:
        assert safe.text("config", "--bool", f"hook.my {event}.enabled") == "false"


def test_merging_runs_no_driver(hostile):
    first, second = hostile.make("aaaaaaaa-1"), hostile.make("bbbbbbbb-1")
    for number, tree in enumerate((first, second)):
        lines = ["one\n"] * 5
        lines[4 * number] = f"changed by {tree.name}\n"
        hostile.write({"a.txt": "".join(lines), f"plain-{number}": "plain\n"}, tree.path)
        safe = own_git(tree)
        safe.run("commit", "-q", "-m", "work", "a.txt", variables=git_identity(safe))
    for path in ("a.txt", "b.txt", "c.dat"):
        os.utime(os.path.join(hostile.top, path), (1, 1))
    assert len(commits_of(first)) == 1
    merge(first, hostile.top, title="first")
    checked = []
    merge(second, hostile.top, title="second", check=checked.append, needs=Needs())
    assert checked
    text = Path(hostile.top, "a.txt").read_text()
    assert "changed by aaaaaaaa-1" in text
    assert "changed by bbbbbbbb-1" in text
    third = hostile.make("cccccccc-1")
    hostile.write({"third": "third\n"}, third.path)
    merge(third, hostile.top, title="third", squash=True)
    assert hostile.ran() == []


def test_a_work_tree_elsewhere_is_refused(tmp_path):
    repo = Repo(tmp_path)
    other = tmp_path / "precious"
    other.mkdir()
    repo("config", "core.worktree", str(other))
    with pytest.raises(InvalidValue, match=r"core\.worktree"):
        find_repository(repo.top)


def test_a_base_is_never_an_option(tmp_path):
    repo = Repo(tmp_path)
    for base in ("--git-dir=/etc", "-h", ""):
        with pytest.raises(InvalidValue, match="is no commit, branch, tag or job"):
            find_repository(repo.top, base)


def test_the_environment_names_no_program(tmp_path, monkeypatch):
    repo = Repo(tmp_path)
    canary = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {canary}\n")
    script.chmod(0o755)
    for name in ("GIT_EXTERNAL_DIFF", "GIT_EDITOR", "GIT_PAGER", "GIT_ASKPASS", "GIT_SSH"):
        monkeypatch.setenv(name, str(script))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.fsmonitor={script}'")
    tree = repo.make("aaaaaaaa-1")
    repo.write({"a.txt": "changed\n"}, tree.path)
    assert b"changed" in diff(tree)[0]
    merge(tree, repo.top, title="work")
    assert not canary.exists()
    assert not (tmp_path / "index").exists()


def test_no_command_runs_a_program_of_the_repository(hostile):
    """submit with its runner, and every command about worktrees, as a user types them."""
    desk = SessionDesk(hostile.top, BATON_AGENT="shell", HOME=hostile.folder)
    desk.processes = lambda: processes_with("HOME", hostile.folder)
    try:
        ids = []
        for number in range(3):
            script = f"echo {number} > plain-{number}; touch c.dat sub/inner.txt"
            desk("submit", "--worktree", script, "--validate", f"test -f plain-{number}", "--base", "main")
            ids.append(desk("list", "--json").json[0]["job_id"])
        first, second, third = ids
        for job_id in ids:
            desk("diff", job_id)
            desk("diff", job_id, "--stat")
        desk("worktree", "list")
        desk("merge", first, "--check")
        desk("merge", second, "--squash")
        assert desk("result", second, "--json").json["commits"]
        desk("worktree", "remove", third, code=1)
        desk("worktree", "salvage", third)
        desk("retry", first)
        again = desk("list", "--json").json[0]["job_id"]
        desk("worktree", "remove", again, "--force")
        desk("worktree", "list")
        desk("doctor", code=None)
        assert hostile.ran() == []
    finally:
        desk.close()
