"""Remove the folder of a worktree, and what git notes about it.

A process may write while a worktree is removed. Therefore a worktree that an agent had is removed by a `Listing`: only
what was in it when it was examined, and has not been touched since."""

from __future__ import annotations

import os
import stat
import time

from baton.core.errors import BatonError, WorktreeRefused
from baton.storage.files import remove_file
from baton.worktrees import trees
from baton.worktrees.git import Git, gitlinks, work_tree_git
from baton.worktrees.keeping import is_elsewhere, keep_own
from baton.worktrees.trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TICK_SEC = 2.5  # the longest tick of a file system's clock
_SHOWN = 3  # paths that a message names


def file_system_time(folder: str) -> int:
    """Return the time of a file system's own clock, in nanoseconds. Whatever is changed from now on has a later one."""
    until = time.monotonic() + _TICK_SEC
    os.utime(folder)
    now = os.stat(folder).st_ctime_ns
    while os.stat(folder).st_ctime_ns == now and time.monotonic() < until:
        time.sleep(0.001)
        os.utime(folder)
    return now


def changed_ns(path: str) -> int | None:
    """Return when a file was touched last, which no program can put back; None without the file."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return None


class Listing:
    """All files and folders of a worktree. WorktreeRefused if one of them was touched after `since_ns`: the worktree
    was examined later than that."""

    def __init__(self, top: str, since_ns: int) -> None:
        self._files: list[tuple[str, int]] = []
        self._folders: list[str] = []  # each before what is in it
        left = [(top, os.lstat(top))]
        while left:
            path, found = left.pop()
            if found.st_ctime_ns > since_ns:  # guard: written-meanwhile
                raise WorktreeRefused(f"{path} was changed while the worktree was examined; try again")
            if stat.S_ISDIR(found.st_mode):
                self._folders.append(path)
                with os.scandir(path) as entries:
                    left += [(entry.path, entry.stat(follow_symlinks=False)) for entry in entries]
            elif os.path.basename(path) != ".git":  # it goes last: without it, nothing could be examined again
                self._files.append((path, found.st_ctime_ns))

    def remove(self) -> None:
        """Remove the files that are as they were, and the folders that are empty then."""
        for path, before_ns in self._files:
            if changed_ns(path) == before_ns:  # guard: changed-meanwhile
                _writable(remove_file, path)
        self.remove_folders()

    def remove_folders(self) -> None:
        for path in reversed(self._folders):
            if os.path.isdir(path) and not os.listdir(path):
                _remove_empty(path)


def _writable(remove: Callable[[str], None], path: str) -> None:
    """Remove a path from a folder that may have to be made writable for it."""
    try:
        remove(path)
    except PermissionError:
        os.chmod(os.path.dirname(path), 0o700)
        remove(path)


def _remove_empty(path: str) -> None:
    """Remove an empty folder. WorktreeRefused if it is not empty."""
    try:
        _writable(os.rmdir, path)
    except FileNotFoundError:
        return
    except OSError:
        if not (names := sorted({*os.listdir(path)} - {".git"})):
            raise
        raise WorktreeRefused(
            f"{', '.join(names[:_SHOWN])} in {path} was written while the worktree was removed, and is still there"
        ) from None


def drop_listed(tree: Tree, listing: Listing) -> None:
    """Remove the folder of a worktree, as far as it is as listed. WorktreeRefused if anything else is in it."""
    listing.remove()
    drop_submodules(tree, tree.path, listing)
    listing.remove_folders()
    drop_emptied(tree.path)


def drop_emptied(path: str) -> None:
    """Remove a folder in which nothing but the file `.git` is left. WorktreeRefused if there is anything else."""
    if set(os.listdir(path)) <= {".git"}:
        remove_file(os.path.join(path, ".git"))
    _remove_empty(path)


def undo(tree: Tree) -> None:
    """Remove a worktree in which no agent has worked, with its branch if that has no commit, as far as that can be
    done."""
    git = tree.git()
    try:
        drop_submodules(tree, tree.path)
        drop_folder(tree.path)
        unregister(git, tree.path)
        tip = git.commit(f"refs/heads/{tree.branch}")
        if tip not in (None, tree.base) and not tree.is_temporary:
            # It was made again, from the commits of an earlier one.
            trees.write(tree.replace(ready=True, removing=False))
            return
        if tip is not None:
            git.run("update-ref", "-d", f"refs/heads/{tree.branch}", tip)
        remove_file(f"{tree.path}.copied")
        trees.forget(tree)
    except (BatonError, OSError):
        return  # its record stays, and `baton worktree remove` tries again


def drop_folder(path: str) -> None:
    """Remove a folder with whatever is in it, also where it is not writable."""
    import shutil

    if not os.path.lexists(path):
        return
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        for folder, folders, _ in os.walk(path):
            for each in (folder, *(os.path.join(folder, name) for name in folders)):
                if not os.path.islink(each):
                    os.chmod(each, 0o700)
        shutil.rmtree(path)


def unregister(git: Git, path: str) -> None:
    """Let git forget a worktree whose folder is gone."""
    if path in registered(git):
        git.run("worktree", "remove", "--force", "--force", "--", path)


def registered(git: Git) -> list[str]:
    """Return the paths of all work trees that git has noted."""
    lines = git.names("worktree", "list", "--porcelain", "-z")
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")]


def drop_submodules(tree: Tree, path: str, listing: Listing | None = None) -> None:
    """Remove the worktrees of submodules below a worktree, and their branches if these have nothing new. Without a
    listing, whatever is in them goes."""
    if not os.path.lexists(os.path.join(path, ".git")):
        return
    for name, _commit in gitlinks(work_tree_git(path)):
        here = os.path.join(path, name)
        if not os.path.isfile(os.path.join(here, ".git")):
            continue
        drop_submodules(tree, here, listing)
        inner = work_tree_git(here)
        if not inner.is_linked:
            continue  # the agent filled it: its repository lies below the worktree, and goes with it
        if listing is None:
            drop_folder(here)
        else:
            listing.remove_folders()
            drop_emptied(here)
        forget_submodule(tree, os.path.dirname(os.path.dirname(inner.git_dir)), here)


def forget_submodule(tree: Tree, common: str, path: str) -> None:
    """Let the repository of a submodule forget a worktree whose folder is gone. Its commits stay."""
    own = tree.replace(path=path, common=common, merged=None)
    git, branch = own.git(), f"refs/heads/{tree.branch}"
    keep_own(own)
    unregister(git, path)
    tip = git.commit(branch)
    if tip is not None and is_elsewhere(git, tip, branch):
        git.run("update-ref", "-d", branch, tip)
