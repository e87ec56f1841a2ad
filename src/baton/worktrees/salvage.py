"""Remove worktrees, and save what is in them: as a commit that no branch shows, and in a folder for what git cannot
hold."""

from __future__ import annotations

import os
import stat
import time

from baton.core.errors import BatonError, WorktreeRefused
from baton.core.value import Value
from baton.storage.files import fsync_dir, make_private_dir, remove_file
from baton.worktrees import trees
from baton.worktrees.contents import Contents, count_unmerged, examine, index_copy, own_git
from baton.worktrees.git import Git, work_tree_git
from baton.worktrees.keeping import git_identity, keep_own, new_salvage_ref, set_aside
from baton.worktrees.removal import (
    Listing,
    drop_emptied,
    drop_folder,
    drop_listed,
    drop_submodules,
    file_system_time,
    undo,
    unregister,
)
from baton.worktrees.trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Removal(Value):
    """What a removal left: the refs that have commits which are found nowhere else."""

    tree: Tree
    kept: list[str]


def remove(tree: Tree, *, discard: bool = False) -> Removal:
    """Remove a worktree in which everything is committed; keep its branch, unless that has nothing that is not merged.

    WorktreeRefused if it holds anything else. `discard`: remove all of it, and the branch. The caller holds its
    lock."""
    if not tree.ready and not tree.removing:
        undo(tree)  # no agent has worked in it
        left = trees.read(tree.path)
        if left is None:
            return Removal(tree=tree, kept=[])
        if not left.ready:
            raise BatonError(f"{tree.path} could not be removed as a whole; try again")
        tree = left
    if os.path.isdir(tree.path):
        _drop(tree, discard=discard)
    kept = [] if discard else keep_own(tree)
    unregister(tree.git(), tree.path)
    return Removal(tree=tree, kept=kept + _forget_branch(tree, discard=discard))


def _drop(tree: Tree, *, discard: bool) -> None:
    """Remove the folder, if it holds nothing that is found nowhere else."""
    if discard:
        tree = trees.write(tree.replace(removing=True))
        drop_submodules(tree, tree.path)
        drop_folder(tree.path)
    elif tree.removing and not os.path.lexists(os.path.join(tree.path, ".git")):
        drop_emptied(tree.path)  # the removal was interrupted at its end
    else:
        before_ns = file_system_time(tree.folder)
        contents = examine(tree)
        if contents.unsaved:  # guard: remove-work
            raise WorktreeRefused(
                f"the worktree {tree.name} holds what is found nowhere else: {', '.join(contents.unsaved)} "
                f"(such as {_example(contents)}); `baton worktree salvage {tree.name}` saves it, --force discards it"
            )
        _drop_examined(tree, before_ns)


def _drop_examined(tree: Tree, before_ns: int) -> None:
    """Remove the folder of a worktree in which everything is found elsewhere. It was examined after this time."""
    listing = Listing(tree.path, before_ns)
    drop_listed(trees.write(tree.replace(removing=True)), listing)


def _example(contents: Contents) -> str:
    paths = [
        *contents.changed, *contents.untracked, *contents.nested, *contents.submodules, *contents.former,
        *contents.unsupported, *contents.ignored,
    ]  # fmt: skip
    return paths[0] if paths else "its state"


def _forget_branch(tree: Tree, *, discard: bool, saved: str | None = None) -> list[str]:
    """Remove the branch if its commits are found elsewhere, or in the saved commit, and then the record. Return the
    branch if it stays."""
    git, ref = tree.git(), f"refs/heads/{tree.branch}"
    tip = git.commit(ref)
    is_saved = tip is not None and saved is not None and git.is_ancestor(tip, saved)
    if tip is not None and not discard and not is_saved and count_unmerged(tree, None):  # guard: unmerged-branch
        trees.write(tree.replace(removing=False))
        return [tree.branch]
    if tip is not None:
        git.run("update-ref", "-d", ref, tip)
    for name in (".copied", ".setup.log"):
        remove_file(f"{tree.path}{name}")
    trees.forget(tree)
    return []


class Saved(Value):
    """What a salvage saved. `ref` has the commits and the files; None if there were none. `kept` is the folder of what
    git cannot hold, with these paths in it."""

    tree: Tree
    ref: str | None
    commit: str | None
    files: int
    kept: str | None
    paths: list[str]


def salvage(tree: Tree) -> Saved:
    """Save everything in a worktree that is found nowhere else, byte by byte, then remove the worktree and its branch.

    Whatever interrupts it, nothing is lost: it removes only what it has saved. The caller holds the lock."""
    git = own_git(tree)
    contents = examine(tree)
    beyond = [*contents.nested, *contents.submodules, *contents.unsupported]
    kept = _move(tree, git, beyond, contents.former) if beyond or contents.former else None
    beyond += contents.former
    if kept is not None:
        contents = examine(tree)
    files = [*contents.changed, *contents.untracked, *contents.ignored]
    before = _stats(tree.path, files)
    commit = _commit(git, tree, contents, files)
    ref = None
    if commit is not None:
        repository = tree.git()
        ref = new_salvage_ref(repository, tree)
        repository.run("update-ref", ref, commit, "")
    tree = trees.write(tree.replace(salvaged={"ref": ref, "commit": commit, "kept": kept}))
    before_ns = file_system_time(tree.folder)
    again = examine(tree)
    if [*again.changed, *again.untracked, *again.ignored] != files or _stats(tree.path, files) != before:
        raise WorktreeRefused(f"files in {tree.path} changed while they were saved to {ref}; run it again")
    saved = Saved(tree=tree, ref=ref, commit=commit, files=len(files), kept=kept, paths=beyond)
    _drop_examined(tree, before_ns)
    keep_own(tree, saved=commit)
    unregister(tree.git(), tree.path)
    _forget_branch(tree, discard=False, saved=commit)
    return saved


def _stats(top: str, files: Iterable[str]) -> list[tuple[int, int, int] | None]:
    found: list[tuple[int, int, int] | None] = []
    for name in files:
        try:
            each = os.lstat(os.path.join(top, name))
            found.append((each.st_ino, each.st_size, each.st_ctime_ns))
        except (FileNotFoundError, NotADirectoryError):
            found.append(None)
    return found


def _move(tree: Tree, git: Git, names: list[str], former: Sequence[str]) -> str:
    """Move what git cannot hold into a new folder beside the worktrees, and return that. Each move is one step."""
    folder = os.path.join(tree.folder, "kept", f"{tree.name}-{time.strftime('%Y%m%dT%H%M%S')}-{os.urandom(2).hex()}")
    make_private_dir(folder)
    for name in names:
        path, there = os.path.join(tree.path, name), os.path.join(folder, name)
        os.makedirs(os.path.dirname(there), mode=0o700, exist_ok=True)
        linked = _linked_git_dir(path)
        os.rename(path, there)
        if linked is not None and linked.startswith(os.path.join(git.git_dir, "modules") + os.sep):
            # Its repository goes with the worktree: bring it along.
            os.unlink(os.path.join(there, ".git"))
            os.rename(linked, os.path.join(there, ".git"))
            _forget_work_tree(Git(os.path.join(there, ".git"), there))
        elif linked is not None and os.path.basename(os.path.dirname(linked)) == "worktrees":
            git.at(os.path.dirname(os.path.dirname(linked)), None).run("worktree", "repair", "--", there, codes=(0, 1))
    for name in former:
        there = os.path.join(folder, name)
        os.makedirs(os.path.dirname(there), mode=0o700, exist_ok=True)
        os.rename(os.path.join(git.git_dir, name), there)
        _forget_work_tree(Git(there, there))
    fsync_dir(folder)
    fsync_dir(tree.path)
    return folder


def _forget_work_tree(git: Git) -> None:
    """Let the repository of a submodule forget where its work tree was."""
    git.run("config", "--local", "--unset-all", "core.worktree", codes=(0, 5))


def _linked_git_dir(path: str) -> str | None:
    """Return the git folder that the file `.git` in a folder names; None if there is no such file."""
    if os.path.islink(path) or not os.path.isfile(os.path.join(path, ".git")):
        return None
    try:
        return work_tree_git(path).git_dir
    except BatonError:
        return None  # it is no repository


def _commit(git: Git, tree: Tree, contents: Contents, files: list[str]) -> str | None:
    """Return a commit of all files as they are, on top of HEAD; None if HEAD is all there is and is found elsewhere.
    What was staged and then changed again is a second parent, as with `git stash`, and so is what git has put aside."""
    aside = set_aside(git)
    if not files and not aside:
        return contents.head if contents.commits else None
    identity = git_identity(git)
    with index_copy(git) as variables:
        staged = git.text("write-tree", variables=variables, codes=(0, 128))  # "" if it has conflicts
        entries = b"".join(_entries(git, tree.path, files, "0" * len(tree.base)))
        git.run("update-index", "-z", "--index-info", stdin=entries, variables=variables)
        held = set(git.names("ls-files", "-z", variables=variables))
        whole = git.text("write-tree", variables=variables)
    lost = [name for name in files if name not in held and os.path.lexists(os.path.join(tree.path, name))]
    if lost:  # guard: not-held  git ignores a name that it refuses
        raise WorktreeRefused(f"git cannot hold {lost[0]} of {tree.path}; move it elsewhere first")
    parents = [] if contents.head is None else [contents.head]
    branch = git.commit(f"refs/heads/{tree.branch}")
    if branch is not None and branch not in parents and not (parents and git.is_ancestor(branch, parents[0])):
        parents.append(branch)
    if staged and staged not in (whole, git.text("rev-parse", f"{contents.head}^{{tree}}")):
        note = ("commit-tree", staged, "-m", f"index of {tree.name}")
        parents.append(git.text(*note, *_parents(parents[:1]), variables=identity))
    parents += [each for each in aside if each not in parents]
    message = f"Saved from the worktree {tree.name}: {tree.title}".rstrip(": ")
    return git.text("commit-tree", whole, "-m", message, *_parents(parents), variables=identity)


def _parents(commits: Iterable[str]) -> list[str]:
    return [word for commit in commits for word in ("-p", commit)]


def _entries(git: Git, top: str, files: list[str], none: str) -> list[bytes]:
    """Return the lines for `update-index --index-info` that store these files without any conversion. `none` is the id
    of no object."""
    lines: list[str] = []
    regular: list[tuple[str, str]] = []
    for name in files:
        path = os.path.join(top, name)
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            lines.insert(0, f"0 {none}\t{name}\0")  # first, so that a folder may take the place of a file
            continue
        if stat.S_ISLNK(mode):
            target = git.text("hash-object", "-w", "--stdin", stdin=os.fsencode(os.readlink(path)))
            lines.append(f"120000 {target}\t{name}\0")
        elif stat.S_ISDIR(mode):
            lines.insert(0, f"0 {none}\t{name}\0")
        else:
            regular.append((name, "100755" if mode & 0o100 else "100644"))
    if regular:
        quoted = b"".join(_quoted(os.path.join(top, name)) + b"\n" for name, _ in regular)
        hashes = git.text("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=quoted).split("\n")
        lines += [f"{mode} {found}\t{name}\0" for (name, mode), found in zip(regular, hashes, strict=True)]
    return [os.fsencode(line) for line in lines]


def _quoted(path: str) -> bytes:
    """Return a path as git reads it from a line: in C quotes."""
    escaped = "".join(f"\\{byte:03o}" if byte < 32 or byte in b'"\\' else chr(byte) for byte in os.fsencode(path))
    return b'"' + escaped.encode("latin-1") + b'"'
