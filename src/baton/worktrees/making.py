"""Make a worktree for an attempt at a job: check it out, fill the submodules, and do what the user's settings say.

The runner does this in a thread and may stop it at any moment. What fails or is stopped leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

from baton.core.clock import format_micros
from baton.core.errors import BatonError, GitFailed, InvalidValue, WorktreeRefused
from baton.core.fields import one_line
from baton.core.value import Value
from baton.storage.files import make_private_dir, read_given_file, remove_file, replace_file
from baton.worktrees import trees
from baton.worktrees.git import Git, Repository, find_repository
from baton.worktrees.trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from baton.worktrees.git import Process

_LOG_BYTES = 1 << 20
_EXISTS = "already exists"  # git says this of the branch and of the folder


class Needs(Value):
    """What a repository needs to run, from the user's settings: files to copy from the work tree, by pattern, and a
    command to run in the new worktree."""

    copy: Sequence[str] = ()
    setup: str | None = None


class Maker:
    """Makes one worktree. `stop` may be called from another thread."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._stopped = False

    def stop(self) -> None:
        """End the making: `make` raises WorktreeRefused."""
        self._stopped = True
        if self._process is not None:
            _end(self._process)

    def _started(self, process: Process) -> None:
        self._process = process
        if self._stopped:
            _end(process)

    def make(self, folder: str, name: str, source: Repository, needs: Needs, *, title: str = "") -> Tree:
        """Make the worktree `name` of a repository, from `source.base` on, in this folder, and return its record.

        Raise GitFailed or WorktreeRefused, with nothing left behind, if that fails or is stopped."""
        make_private_dir(folder)
        tree = _record(folder, name, source, source.base, title)
        if os.path.lexists(f"{tree.path}.json"):
            raise WorktreeRefused(f"a worktree {name} exists already; `baton worktree list` shows it")
        trees.write(tree, durable=False)
        try:
            self._check_out(source.git(self._started, durable=False), tree.path, tree.branch, source.base)
            self._fill_submodules(source, tree, tree.path)
            self._copy(tree, needs.copy)
            self._set_up(tree, needs.setup)
            self._check_stop()
        except (BatonError, OSError) as error:
            if _EXISTS in str(error):  # guard: branch-of-another
                trees.forget(tree)  # what is there is not of this attempt
            else:
                undo(tree)
            if self._stopped:
                raise WorktreeRefused("the worktree was not made: the session was stopped") from None
            if isinstance(error, WorktreeRefused):
                raise
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise GitFailed(f"the worktree could not be made: {why}") from None
        return trees.write(tree.replace(ready=True), durable=False)

    def restore(self, folder: str, name: str, source: Repository, *, base: str, title: str) -> Tree:
        """Return the record of an earlier worktree. If its folder is gone, check it out again at the same place, from
        its branch or from what was merged of it. WorktreeRefused if there is neither."""
        path = os.path.join(folder, name)
        tree = trees.read(path) or _record(folder, name, source, base, title)
        if os.path.isdir(path):
            return tree
        git = source.git(self._started)
        tip, branch = tree.tip(), f"refs/heads/{tree.branch}"
        if tip is None:
            raise WorktreeRefused(f"the worktree {path} is gone, and so is its branch {tree.branch}; submit a new job")
        if path in registered(git):
            git.run("worktree", "remove", "--force", "--force", "--", path)
        if git.commit(branch) is None:
            git.run("update-ref", branch, tip, "")
        trees.write(tree.replace(ready=False), durable=False)
        git.run("worktree", "add", "--quiet", "--lock", "--reason", "made by baton", "--", path, tree.branch)
        self._check_stop()
        return trees.write(tree.replace(ready=True, removing=False), durable=False)

    def _check_stop(self) -> None:
        if self._stopped:
            raise WorktreeRefused("stopped")

    def _check_out(self, git: Git, path: str, branch: str | None, commit: str) -> None:
        new = ("-b", branch) if branch is not None else ("--detach",)
        git.run("worktree", "add", "--quiet", "--lock", "--reason", "made by baton", *new, "--", path, commit)
        self._check_stop()

    def _fill_submodules(self, source: Repository, tree: Tree, path: str) -> None:
        """Check out the submodules that the user's own work tree has, from there: nothing is fetched. Each is a
        worktree of the submodule's repository, so that commits in it are kept there."""
        if not os.path.lexists(os.path.join(path, ".gitmodules")):
            return
        for name, commit in gitlinks(work_tree_git(path, self._started)):
            there, here = os.path.join(source.top, name), os.path.join(path, name)
            if not os.path.lexists(os.path.join(there, ".git")) or not os.path.isdir(here):
                continue  # the user has not filled it either, or it is outside of the sparse checkout
            if (inner := _filled_submodule(there, commit)) is not None:
                self._check_out(inner.git(self._started), here, tree.branch, commit)
                self._fill_submodules(inner, tree, here)

    def _copy(self, tree: Tree, patterns: Sequence[str]) -> None:
        if not patterns:
            return
        import glob
        import shutil

        copied = []
        for pattern in patterns:
            for name in glob.glob(pattern, root_dir=tree.top, recursive=True, include_hidden=True):
                for each in _files_at(tree.top, name):
                    self._check_stop()
                    there = os.path.join(tree.path, each)
                    if os.path.lexists(there):
                        continue  # git has it
                    os.makedirs(os.path.dirname(there), exist_ok=True)
                    shutil.copy2(os.path.join(tree.top, each), there, follow_symlinks=False)
                    found = os.lstat(there)
                    copied.append([each, found.st_size, found.st_mtime_ns])
        if copied:
            replace_file(f"{tree.path}.copied", json.dumps(copied).encode(), durable=False)

    def _set_up(self, tree: Tree, command: str | None) -> None:
        """Run the command of the user's settings. Its output goes to a file, which is there if it fails."""
        if command is None:
            return
        log = f"{tree.path}.setup.log"
        environment = os.environ | {"BATON_REPOSITORY": tree.top}
        with open(log, "wb") as output:
            process = subprocess.Popen(  # noqa: S602  the command of the user, from the user's own settings
                command,
                shell=True,
                cwd=tree.path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._started(process)
            code = process.wait()
        self._check_stop()
        if code != 0:
            printed = read_given_file(log, 10 * _LOG_BYTES)[-_LOG_BYTES:].decode(errors="replace")
            last = one_line((printed.strip().splitlines() or [""])[-1], 200)
            raise WorktreeRefused(
                f"worktree_setup failed with exit code {code}" + (f": {last}" if last else "") + f"; see {log}"
            )
        remove_file(log)


def _record(folder: str, name: str, source: Repository, base: str, title: str) -> Tree:
    return Tree(
        name=name,
        path=os.path.join(folder, name),
        common=source.common,
        top=source.top,
        branch=f"baton/{name}",
        base=base,
        title=title,
        made_at=format_micros(time.time_ns()),
    )


def _filled_submodule(path: str, commit: str) -> Repository | None:
    """Return the repository of a submodule; None if it does not have this commit: `worktree_setup` may fetch it."""
    try:
        found = find_repository(path, commit)
    except InvalidValue:
        return None
    return found if found.top == os.path.realpath(path) else None


def _end(process: Process) -> None:
    """End a process and what it started. It leads a process group, and is not waited for yet."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGTERM)
        except ProcessLookupError:
            return  # it has ended


def work_tree_git(path: str, started: Callable[[Process], None] | None = None) -> Git:
    """Return git on a work tree, of which the `.git` file names the folder. GitFailed if it is none of a repository."""
    entry = os.path.join(path, ".git")
    try:
        if os.path.isdir(entry):
            return Git(entry, path, started)
        content = read_given_file(entry, 65536).decode(errors="surrogateescape")
    except FileNotFoundError:
        raise GitFailed(f"{path} is no worktree any more") from None
    if not content.startswith("gitdir: "):
        raise GitFailed(f"{path} is no worktree: its file .git does not name a repository")
    git_dir = os.path.normpath(os.path.join(path, content[8:].strip()))
    return Git(git_dir, path, started)


def gitlinks(git: Git) -> list[tuple[str, str]]:
    """Return path and commit of each submodule in the index."""
    entries = (each.split(" ", 2) for each in git.names("ls-files", "--stage", "-z"))
    return [(rest.partition("\t")[2], commit) for mode, commit, rest in entries if mode == "160000"]


def _files_at(top: str, name: str) -> Iterator[str]:
    """Yield the files at a path inside of the folder, as paths relative to it. Links are not followed."""
    if os.path.normpath(name).split("/")[0] in ("..", "", ".git") or os.path.isabs(name):
        return
    path = os.path.join(top, name)
    if not os.path.isdir(path) or os.path.islink(path):
        if os.path.isfile(path) or os.path.islink(path):
            yield os.path.normpath(name)
        return
    for folder, folders, files in os.walk(path):
        links = [each for each in folders if os.path.islink(os.path.join(folder, each))]
        for each in (*files, *links):
            whole = os.path.join(folder, each)
            if os.path.isfile(whole) or os.path.islink(whole):
                yield os.path.relpath(whole, top)


def undo(tree: Tree) -> None:
    """Remove a worktree in which no agent has worked, with its branch, as far as that can be done."""
    git = tree.git()
    try:
        drop_submodules(tree, tree.path)
        drop_checkout(git, tree.path)
        if git.commit(f"refs/heads/{tree.branch}") == tree.base:
            git.run("update-ref", "-d", f"refs/heads/{tree.branch}", tree.base)
        remove_file(f"{tree.path}.copied")
        trees.forget(tree)
    except (BatonError, OSError):
        return  # its record stays, and `baton worktree remove` tries again


def drop_checkout(git: Git, path: str) -> None:
    """Remove the folder of a worktree, and what git notes about it. Whatever is in it goes."""
    import shutil

    if os.path.lexists(path):
        shutil.rmtree(path, ignore_errors=True)
        _make_writable_and_remove(path)
    for each in registered(git):
        if each == path:
            git.run("worktree", "remove", "--force", "--force", "--", path)


def registered(git: Git) -> list[str]:
    """Return the paths of all work trees that git has noted."""
    lines = git.names("worktree", "list", "--porcelain", "-z")
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")]


def _make_writable_and_remove(path: str) -> None:
    """Remove what is left of a folder because parts of it were not writable."""
    import shutil

    if not os.path.lexists(path):
        return
    for folder, folders, _ in os.walk(path):
        for each in (folder, *(os.path.join(folder, name) for name in folders)):
            if not os.path.islink(each):
                os.chmod(each, 0o700)
    shutil.rmtree(path)


def drop_submodules(tree: Tree, path: str) -> None:
    """Remove the worktrees of submodules below a worktree, and their branches if these have nothing new."""
    if not os.path.lexists(os.path.join(path, ".gitmodules")) or not os.path.lexists(os.path.join(path, ".git")):
        return
    for name, _commit in gitlinks(work_tree_git(path)):
        here = os.path.join(path, name)
        if not os.path.isfile(os.path.join(here, ".git")):
            continue
        drop_submodules(tree, here)
        inner = work_tree_git(here)
        if os.path.basename(os.path.dirname(inner.git_dir)) != "worktrees":
            continue  # the agent filled it: its repository lies below the worktree, and goes with it
        common = inner.at(os.path.dirname(os.path.dirname(inner.git_dir)), None)
        drop_checkout(common, here)
        branch = f"refs/heads/{tree.branch}"
        tip = common.commit(branch)
        if tip is not None and is_elsewhere(common, tip, branch):
            common.run("update-ref", "-d", branch, tip)


def is_elsewhere(git: Git, commit: str, *but: str) -> bool:
    """Return whether a branch or a tag of the user has this commit; `but`: not these."""
    refs = git.text(
        "for-each-ref", "--contains", commit, "--format=%(refname)", "refs/heads", "refs/remotes", "refs/tags"
    )
    return any(ref not in but and not ref.startswith("refs/heads/baton/") for ref in refs.split("\n") if ref)
