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
from baton.origin import obeyed_environment
from baton.storage.files import make_private_dir, read_given_file, remove_file, replace_file
from baton.worktrees import trees
from baton.worktrees.git import Git, Repository, find_repository, gitlinks, work_tree_git
from baton.worktrees.keeping import keep_own
from baton.worktrees.removal import drop_emptied, drop_folder, drop_submodules, forget_submodule, undo, unregister
from baton.worktrees.trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        checked_out = False
        try:
            self._check_out(source.git(self._started, durable=False), tree.path, source.base, new=tree.branch)
            checked_out = True
            self._fill(source, tree, needs)
        except (BatonError, OSError) as error:
            if not checked_out and _EXISTS in str(error):  # guard: branch-of-another
                trees.forget(tree)  # what is there is not of this attempt
            else:
                undo(tree)
            raise self._refusal(error) from None
        return trees.write(tree.replace(ready=True), durable=False)

    def _refusal(self, error: BatonError | OSError) -> BatonError:
        if self._stopped:
            return WorktreeRefused("the worktree was not made: the session was stopped")
        if isinstance(error, WorktreeRefused):
            return error
        why = error.strerror if isinstance(error, OSError) else str(error)
        return GitFailed(f"the worktree could not be made: {why}")

    def restore(self, folder: str, name: str, source: Repository, needs: Needs, *, base: str, title: str) -> Tree:
        """Return the record of an earlier worktree. If its folder is gone, make it again at the same place, from its
        branch or from what was merged of it. WorktreeRefused if there is neither."""
        path = os.path.join(folder, name)
        tree = trees.read(path) or _record(folder, name, source, base, title)
        if os.path.isdir(path):
            if tree.removing and os.path.lexists(os.path.join(path, ".git")):
                return self._bring_back(source, tree)
            if tree.removing:
                drop_emptied(path)
            elif tree.ready:
                return tree
            else:  # its making was interrupted: no agent has worked in it since
                drop_submodules(tree, path)
                drop_folder(path)
        git = source.git(self._started)
        tip, branch = tree.tip(), f"refs/heads/{tree.branch}"
        if tip is None:
            raise WorktreeRefused(f"the worktree {path} is gone, and so is its branch {tree.branch}; submit a new job")
        keep_own(tree)
        unregister(git, path)
        if git.commit(branch) is None:
            git.run("update-ref", branch, tip, "")
        tree = trees.write(tree.replace(ready=False, removing=False), durable=False)
        try:
            self._check_out(git, path, tree.branch)
            self._fill(source, tree, needs)
        except (BatonError, OSError) as error:
            undo(tree)
            raise self._refusal(error) from None
        return trees.write(tree.replace(ready=True), durable=False)

    def _bring_back(self, source: Repository, tree: Tree) -> Tree:
        """Put the files back that an interrupted removal has removed."""
        git = work_tree_git(tree.path, self._started)
        if missing := git.run("ls-files", "--deleted", "-z"):
            git.run("checkout-index", "-z", "--stdin", stdin=missing)
        self._fill_submodules(source, tree, tree.path)
        return trees.write(tree.replace(removing=False))

    def _check_stop(self) -> None:
        if self._stopped:
            raise WorktreeRefused("stopped")

    def _check_out(self, git: Git, path: str, commit: str, *, new: str | None = None) -> None:
        """Check out a branch, or a commit on a new branch. The files are written by a call of their own: configuration
        that holds in the new worktree alone, by includeIf, may name programs, too."""
        branch = ("-b", new) if new is not None else ()
        how = ("--quiet", "--no-checkout", "--lock", "--reason", "made by baton")  # guard: git-checkout-in-worktree
        git.run("worktree", "add", *how, *branch, "--", path, commit)
        self._check_stop()
        work_tree_git(path, self._started).run("read-tree", "--reset", "-u", "HEAD")
        self._check_stop()

    def _fill(self, source: Repository, tree: Tree, needs: Needs) -> None:
        """Bring what is not in the commit."""
        self._fill_submodules(source, tree, tree.path)
        self._copy(tree, needs.copy)
        self._set_up(tree, needs.setup)
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
            if os.path.lexists(os.path.join(here, ".git")):
                continue
            if (inner := _filled_submodule(there, commit)) is not None:
                self._check_out_submodule(inner, tree, here, commit)
                self._fill_submodules(inner, tree, here)

    def _check_out_submodule(self, inner: Repository, tree: Tree, path: str, commit: str) -> None:
        git, branch = inner.git(self._started), f"refs/heads/{tree.branch}"
        tip = git.commit(branch)
        if tip is not None:  # of an earlier worktree at this place
            forget_submodule(tree, inner.common, path)
            tip = git.commit(branch)
        if tip is None:
            self._check_out(git, path, commit, new=tree.branch)
        else:
            self._check_out(git, path, tree.branch if tip == commit else commit)

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
                    copied.append([each, *(size_and_times(there) or ())])
        if copied:
            replace_file(f"{tree.path}.copied", json.dumps(copied).encode(), durable=False)

    def _set_up(self, tree: Tree, command: str | None) -> None:
        """Run the command of the user's settings. Its output goes to a file, which is there if it fails."""
        if command is None:
            return
        log = f"{tree.path}.setup.log"
        environment = {**obeyed_environment(), "BATON_REPOSITORY": tree.top}
        with open(log, "wb") as output:
            process = subprocess.Popen(  # noqa: S602  the command of the user, from the user's own settings
                command,
                shell=True,  # nosec B602
                cwd=tree.path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._started(process)
            code = process.wait()
        if self._stopped:
            remove_file(log)
        self._check_stop()
        if code != 0:
            printed = read_given_file(log, 10 * _LOG_BYTES)[-_LOG_BYTES:].decode(errors="replace")
            last = one_line((printed.strip().splitlines() or [""])[-1], 200)
            raise WorktreeRefused(
                f"worktree_setup failed with exit code {code}" + (f": {last}" if last else "") + f"; see {log}"
            )
        remove_file(log)


def size_and_times(path: str) -> list[int] | None:
    """Return size and times of a file, by which a change of it is seen; None if there is none. No program can put the
    time of the change back."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


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
