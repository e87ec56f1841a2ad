"""R13: worktrees are made, changed, merged, salvaged, removed and pruned in random order, and each of these is killed at
random. Every byte that an agent wrote is found again: in a worktree, in a kept folder, or in a commit that git keeps."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from baton.core.errors import BatonError
from baton.delegation.prune import Prune
from baton.jobs.verbs import open_jobs
from baton.sessions.inventory import Inventory
from baton.storage.homes import load_settings
from baton.worktrees.merging import merge
from baton.worktrees.salvage import remove, salvage
from baton.worktrees.trees import Tree, Trees, UseLock
from support.memory import folder_in_memory
from support.processes import processes_with
from support.repositories import Repo, git
from support.waiting import poll

STEPS = 20  # of a round
_TOKEN = re.compile(rb"token-[0-9a-f]{16}")


@pytest.mark.timeout(1800)
def test_no_byte_of_work_is_lost(figure, full, seed, monkeypatch):
    chance = Random(seed)
    rounds = 50 if full else 5
    written = kills = 0
    lost: list[str] = []
    surprises: list[str] = []
    with folder_in_memory() as folder:
        monkeypatch.setenv("HOME", folder)
        os.makedirs(os.path.join(folder, "template"))
        Repo(os.path.join(folder, "template")).add_submodule(folder)
        for number in range(rounds):
            world = World(folder, number, chance)
            for _ in range(STEPS):
                world.step()
            poll(lambda: not processes_with("HOME", folder), 20)  # git that outlived its killed command
            lost += world.lost()
            surprises += world.surprises
            written += len(world.tokens)
            kills += world.kills
            shutil.rmtree(world.folder)
    figure(
        "R13 worktrees",
        f"{rounds * STEPS:,} steps, {kills} kills, {written} pieces of work, "
        + ("; ".join([*lost[:3], *surprises[:3]]) or "0 lost"),
        held=not lost and not surprises,
        seed=seed,
    )


# The seed repeats what is done, and about when it is killed.
class World:
    """A repository with a submodule, worktrees of it, and agents that write into them."""

    def __init__(self, folder: str, number: int, chance: Random) -> None:
        self.folder = os.path.join(folder, f"round-{number}")
        self.chance = chance
        shutil.copytree(os.path.join(folder, "template"), self.folder, symlinks=True)
        self.repo = Repo.__new__(Repo)
        self.repo.top, self.repo.data = os.path.join(self.folder, "repo"), os.path.join(self.folder, "data")
        self.repo.trees = Trees(self.repo.data)
        self.settings = load_settings({"home": os.path.join(self.folder, "home")}, dict(os.environ), self.folder)
        self.tokens: dict[str, str] = {}
        self.kills = 0
        self.surprises: list[str] = []
        self.new_tree()
        self.write()

    def step(self) -> None:
        self.write()
        verbs = (self.new_tree, self.merge, self.merge, self.remove, self.remove, self.salvage, self.prune, self.tidy)
        verb = self.chance.choice(verbs)
        if self.chance.random() < 0.5:
            self.in_child(verb)
        else:
            with self.late_writer():
                self.guarded(verb)

    @contextmanager
    def late_writer(self):
        """Write to worktrees again and again while the block runs, as an agent does that was not stopped."""
        chance, over = Random(self.chance.random()), threading.Event()

        def write() -> None:
            while not over.wait(chance.uniform(0, 0.03)):
                for tree in self.repo.trees.all():
                    token = f"token-{chance.randrange(16**16):016x}"
                    name = chance.choice(("a.txt", f"late/{token[6:]}.txt", f"{token[6:]}.o"))
                    if tree.ready and chance.random() < 0.05 and late_write(os.path.join(tree.path, name), token):
                        self.tokens[token] = f"late {name} in {tree.name}"

        writer = threading.Thread(target=write)
        writer.start()
        yield
        over.set()
        writer.join()

    def guarded(self, verb) -> None:
        try:
            verb()
        except BatonError:
            pass  # it was refused: nothing may have changed
        except Exception as error:  # shown with the figure
            self.surprises.append(f"{verb.__name__}: {error!r}")

    def in_child(self, verb) -> None:
        """Do it in a process that is killed at a random moment."""
        seed = self.chance.random()
        pid = os.fork()
        if pid == 0:
            self.chance = Random(seed)
            self.guarded(verb)
            os._exit(0)
        time.sleep(self.chance.uniform(0, 0.15))  # the moment of the kill is random
        os.kill(pid, signal.SIGKILL)
        self.kills += os.waitpid(pid, 0)[1] == signal.SIGKILL

    # -- what baton does -----------------------------------------------------------------------------------------------

    def any_tree(self) -> Tree:
        found = list(self.repo.trees.all())
        if not found:
            raise BatonError("there is none")
        return self.chance.choice(found)

    def new_tree(self) -> None:
        """A new job, or a retry: each has its own worktree."""
        self.repo.make(f"{self.chance.randrange(16**8):08x}-1")

    def merge(self) -> None:
        tree = self.any_tree()
        with UseLock(tree.path):
            merge(tree, self.repo.top, title="work", squash=self.chance.random() < 0.5)

    def remove(self) -> None:
        tree = self.any_tree()
        with UseLock(tree.path):
            remove(tree)

    def salvage(self) -> None:
        tree = self.any_tree()
        with UseLock(tree.path):
            salvage(tree)

    def prune(self) -> None:
        with open_jobs(self.settings) as jobs:
            Prune(self.settings, jobs, Inventory(self.settings), time.time_ns() + 10**12).run()

    def tidy(self) -> None:
        """What git itself removes in time."""
        git(self.repo.top, "worktree", "prune")

    # -- what an agent does --------------------------------------------------------------------------------------------

    def write(self) -> None:
        ready = [
            tree for tree in self.repo.trees.all() if tree.ready and not tree.removing and os.path.isdir(tree.path)
        ]
        if not ready:
            return
        tree = self.chance.choice(ready)
        kinds = (self.change, self.untracked, self.ignored, self.commit, self.commit_and_delete, self.nested)
        kinds += (self.in_submodule, self.commit_in_submodule, self.hidden, self.detached, self.staged, self.deep)
        kinds += (self.backdated, self.put_aside, self.off_branch_in_submodule, self.refused_name, self.other_case)
        kind = self.chance.choice(kinds)
        token = f"token-{self.chance.randrange(16**16):016x}"
        try:
            kind(tree, token)
        except (BatonError, AssertionError, OSError):
            return  # a killed command left the worktree so that git refuses this: the agent has not written it
        self.tokens[token] = f"{kind.__name__} in {tree.name}"

    def put(self, tree: Tree, name: str, token: str, mode: str = "w") -> str:
        path = os.path.join(tree.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, mode) as file:
            file.write(f"{token}\n")
        return path

    def change(self, tree, token):
        self.put(tree, "a.txt", token, "a")

    def untracked(self, tree, token):
        self.put(tree, f"new/{token[6:]}.txt", token)

    def ignored(self, tree, token):
        self.put(tree, f"build/{token[6:]}.o", token)

    def deep(self, tree, token):
        self.put(tree, f'odd name\n{token[6:]}/\u00fc "quoted".o', token)

    def commit(self, tree, token):
        self.put(tree, f"{token[6:]}.txt", token)
        git(tree.path, "add", f"{token[6:]}.txt")
        git(tree.path, "commit", "-q", "-m", "work")

    def commit_and_delete(self, tree, token):
        self.commit(tree, token)
        git(tree.path, "rm", "-q", f"{token[6:]}.txt")
        git(tree.path, "commit", "-q", "-m", "not needed")

    def staged(self, tree, token):
        self.put(tree, f"{token[6:]}.txt", token)
        git(tree.path, "add", f"{token[6:]}.txt")

    def hidden(self, tree, token):
        git(tree.path, "update-index", "--assume-unchanged", "b.txt")
        self.put(tree, "b.txt", token, "a")

    def detached(self, tree, token):
        git(tree.path, "checkout", "-q", "--detach")
        self.commit(tree, token)

    def backdated(self, tree, token):
        """A change that keeps size and time: git trusts both."""
        name = f"{token[6:]}.txt"
        path = self.put(tree, name, token[::-1])
        os.utime(path, (10**9, 10**9))
        git(tree.path, "add", name)
        git(tree.path, "commit", "-q", "-m", "before")
        self.put(tree, name, token)
        os.utime(path, (10**9, 10**9))

    def put_aside(self, tree, token):
        """Work that a rebase has put aside, in the middle of a conflict."""
        self.put(tree, "d.txt", token)
        git(tree.path, "add", "d.txt")
        git(tree.path, "commit", "-q", "-m", "theirs")
        own = f"mine-{token}"
        git(tree.path, "branch", own)
        git(tree.path, "checkout", "-q", "--detach", "HEAD~1")
        self.put(tree, "d.txt", "other")
        git(tree.path, "add", "d.txt")
        git(tree.path, "commit", "-q", "-m", "ours")
        self.put(tree, "a.txt", token, "a")
        subprocess.run(["git", "rebase", "-q", "--autostash", own], cwd=tree.path, capture_output=True, check=False)

    def off_branch_in_submodule(self, tree, token):
        git(os.path.join(tree.path, "sub"), "checkout", "-q", "--detach")
        self.commit_in_submodule(tree, token)
        git(tree.path, "commit", "-q", "-m", "newer submodule", "sub")

    def refused_name(self, tree, token):
        self.put(tree, f"odd/.GIT/{token[6:]}", token)

    def other_case(self, tree, token):
        git(self.repo.top, "config", "core.ignoreCase", "true")
        self.put(tree, "B.TXT", token, "a")

    def nested(self, tree, token):
        inside = f"{self.chance.choice(('vendor', 'x.o'))}/{token[6:]}"
        self.put(tree, f"{inside}/file", token)
        git(os.path.join(tree.path, inside), "init", "-q")

    def in_submodule(self, tree, token):
        if not os.path.exists(os.path.join(tree.path, "sub", ".git")):
            raise OSError
        self.put(tree, f"sub/{token[6:]}.txt", token)

    def commit_in_submodule(self, tree, token):
        self.in_submodule(tree, token)
        git(os.path.join(tree.path, "sub"), "add", f"{token[6:]}.txt")
        git(os.path.join(tree.path, "sub"), "commit", "-q", "-m", "inner work")

    # -- what is left --------------------------------------------------------------------------------------------------

    def lost(self) -> list[str]:
        found: set[bytes] = set()
        repositories = []
        for place, folders, names in os.walk(self.folder):
            if place.endswith("/.git") or {"objects", "refs", "HEAD"} <= {*folders, *names}:
                repositories.append(place)
            for name in names:
                if "/objects/" in place or not os.path.isfile(path := os.path.join(place, name)):
                    continue
                with open(path, "rb") as file:
                    found.update(_TOKEN.findall(file.read()))
        for repository in repositories:
            found.update(_TOKEN.findall(_reachable(repository)))
        return [f"{token}: {what}" for token, what in self.tokens.items() if token.encode() not in found]


def late_write(path: str, token: str) -> bool:
    """Add a line to a file in a worktree, if its folder is there; return whether it was written."""
    try:
        if not os.path.isdir(os.path.dirname(path)):
            os.mkdir(os.path.dirname(path))
        with open(path, "a") as file:
            file.write(f"{token}\n")
    except OSError:
        return False  # it is gone
    return True


def _reachable(git_dir: str) -> bytes:
    """The content of all that git keeps by a ref, as the HEAD of a worktree, in the stash, or put aside by a rebase."""
    stashed = _output(git_dir, "log", "-g", "--format=%H", "refs/stash").decode().split()
    stashed += [each.read_text().strip() for each in Path(git_dir).glob("worktrees/*/rebase-merge/autostash")]
    listed = _output(git_dir, "rev-list", "--objects", "--all", *stashed)
    names = b"".join(line.split(b" ")[0] + b"\n" for line in listed.splitlines())
    return _output(git_dir, "cat-file", "--batch", stdin=names)


def _output(git_dir: str, *arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        ["git", *arguments], cwd=git_dir, input=stdin, capture_output=True, check=False,
        env={**os.environ, "GIT_DIR": git_dir},
    )  # fmt: skip
    return done.stdout
