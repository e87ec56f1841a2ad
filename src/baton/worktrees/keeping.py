"""Keep commits that only git's own folder of a worktree names: of a HEAD that left its branch, what git put aside, and
what was staged."""

from __future__ import annotations

import os

from baton.storage.files import read_given_file
from baton.worktrees.git import Git
from baton.worktrees.trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# In the git folder of a work tree: what a merge or a rebase put aside, and where the rebase began.
_ASIDE = ("MERGE_AUTOSTASH", "rebase-merge/autostash", "rebase-apply/autostash",
          "rebase-merge/orig-head", "rebase-apply/orig-head")  # fmt: skip


def is_elsewhere(git: Git, commit: str, *but: str) -> bool:
    """Return whether a branch or a tag of the user has this commit; `but`: not these."""
    refs = git.text(
        "for-each-ref", "--contains", commit, "--format=%(refname)", "refs/heads", "refs/remotes", "refs/tags"
    )
    return any(ref not in but and not ref.startswith("refs/heads/baton/") for ref in refs.split("\n") if ref)


def submodule_repositories(common: str) -> Iterator[str]:
    """Yield the repositories of submodules that lie in the folder of a repository."""
    for folder, folders, files in os.walk(os.path.join(common, "modules")):
        if "HEAD" in files and "objects" in folders:
            folders[:] = [name for name in folders if name == "modules"]
            yield folder


def set_aside(git: Git) -> list[str]:
    """Return the commits that only the git folder of a worktree names, beside its HEAD."""
    names = [name for name in _ASIDE if os.path.isfile(os.path.join(git.git_dir, name))]
    found = [git.commit(read_given_file(os.path.join(git.git_dir, name), 4096).decode().strip()) for name in names]
    if os.path.isdir(os.path.join(git.git_dir, "refs", "worktree")):
        found += git.text("for-each-ref", "--format=%(objectname)", "refs/worktree").split()
    return [each for each in found if each is not None]


def git_folder(tree: Tree) -> str | None:
    """Return git's own folder of a worktree, also if the worktree was removed; None if git knows it no more."""
    root = os.path.join(tree.common, "worktrees")
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        entry = os.path.join(root, name, "gitdir")
        if os.path.isfile(entry):
            there = read_given_file(entry, 65536).decode(errors="surrogateescape").rstrip("\n")
            # It may be relative: see worktree.useRelativePaths.
            if os.path.normpath(os.path.join(root, name, there)) == os.path.join(tree.path, ".git"):
                return os.path.join(root, name)
    return None


def head_of_gone(tree: Tree) -> str | None:
    """Return the HEAD of a worktree whose folder is gone; None if git knows it no more."""
    folder = git_folder(tree)
    return None if folder is None else Git(folder, None).commit("HEAD")


def keep_own(tree: Tree, *, saved: str | None = None) -> list[str]:
    """Keep the commits that go with git's folder of a worktree. Return the new refs. `saved` is a commit that has all
    that was in the worktree, what was staged too."""
    folder = git_folder(tree)
    if folder is None:
        return []
    git = Git(folder, None)
    head = git.commit("HEAD")
    tips = [*([] if head is None else [head]), *set_aside(git)]
    if saved is None and head is not None and os.path.exists(os.path.join(folder, "index")):
        staged = git.text("write-tree", codes=(0, 128))  # "" if it has conflicts
        if staged and staged != git.text("rev-parse", f"{head}^{{tree}}"):
            note = ("commit-tree", staged, "-p", head, "-m", f"Saved from the index of {tree.name}")
            tips.append(git.text(*note, variables=git_identity(git)))
    return _keep(tree, [tip for tip in tips if saved is None or not git.is_ancestor(tip, saved)])


def _keep(tree: Tree, tips: Iterable[str]) -> list[str]:
    """Make a ref for each of the commits that no other ref keeps. Return these refs."""
    git, refs = tree.git(), []
    branch = git.commit(f"refs/heads/{tree.branch}")
    for tip in tips:
        if branch is not None and git.is_ancestor(tip, branch):
            continue
        if tip == tree.base or is_elsewhere(git, tip) or is_merged(git, tree, tip):
            continue
        refs.append(new_salvage_ref(git, tree))
        git.run("update-ref", refs[-1], tip, "")  # guard: detached-commits
    return refs


def is_merged(git: Git, tree: Tree, commit: str) -> bool:
    """Return whether a merge has brought this commit elsewhere."""
    tip = (tree.merged or {}).get("tip")
    return tip is not None and git.commit(tip) is not None and git.is_ancestor(commit, tip)


def new_salvage_ref(git: Git, tree: Tree) -> str:
    """Return a ref for saved work that does not exist yet."""
    number, ref = 1, f"refs/baton/salvage/{tree.name}"
    while git.commit(ref) is not None:
        number += 1
        ref = f"refs/baton/salvage/{tree.name}.{number}"
    return ref


def git_identity(git: Git) -> dict[str, str]:
    """Return the variables that name the author of a commit, if git knows no name of the user."""
    if git.answer("var", "GIT_COMMITTER_IDENT", codes=(0, 1, 128)) == 0:
        return {}
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    address = f"{name}@{os.uname().nodename}"
    return {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", name), ("EMAIL", address))}  # fmt: skip
