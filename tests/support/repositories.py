"""Git repositories for tests, with worktrees of them as baton makes them."""

from __future__ import annotations

import os
import subprocess

from baton.worktrees.git import find_repository
from baton.worktrees.making import Maker, Needs
from baton.worktrees.trees import Tree, Trees


def git(folder, *arguments: str) -> str:
    """What git prints there, with nothing of this machine's own configuration."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    environment |= {f"GIT_{who}_{what}": f"test@{who}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout.rstrip("\n")


class Repo:
    """A repository with one commit, and the folder of its worktrees."""

    def __init__(self, folder, files: dict[str, str] | None = None) -> None:
        self.top = os.path.realpath(os.path.join(folder, "repo"))
        self.data = os.path.join(os.path.realpath(folder), "data")
        self.trees = Trees(self.data)
        os.makedirs(self.top)
        git(self.top, "init", "-q", "-b", "main")
        self.write(files or {"a.txt": "one\n" * 5, "b.txt": "two\n" * 5, ".gitignore": "*.o\n"})
        self.commit("first")

    def __call__(self, *arguments: str) -> str:
        return git(self.top, *arguments)

    def write(self, files: dict[str, str], top: str | None = None) -> None:
        for name, text in files.items():
            path = os.path.join(top or self.top, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)

    def commit(self, message: str) -> str:
        self("add", "-A")
        self("commit", "-q", "-m", message)
        return self("rev-parse", "HEAD")

    def make(self, name: str, needs: Needs | None = None, base: str = "HEAD") -> Tree:
        source = find_repository(self.top, base)
        folder = self.trees.folder_of(source.top, source.common)
        return Maker().make(folder, name, source, needs or Needs(), title=f"work of {name}")

    def status(self) -> str:
        return self("status", "--porcelain", "--untracked-files=all", "--ignored")

    def add_submodule(self, folder, name: str = "sub") -> str:
        """Add a submodule with one file; return the path of its repository."""
        other = os.path.join(os.path.realpath(folder), f"{name}-origin")
        os.makedirs(other)
        git(other, "init", "-q", "-b", "main")
        self.write({"inner.txt": "inner\n"}, other)
        git(other, "add", "-A")
        git(other, "commit", "-q", "-m", "inner")
        self("submodule", "add", "-q", other, name)
        self.commit(f"add {name}")
        return other
