"""Compare the work in a worktree with its base, and merge it into the user's work tree: all of it, or nothing.

The result is computed before anything is touched. Then one sequence of steps changes the job's branch, the user's files
and the user's branch; its beginning is recorded, so that the next merge can take back what a crash left half done."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import contextmanager

from baton.core.clock import format_micros
from baton.core.errors import GitFailed, GitUnusable, WorktreeRefused
from baton.core.fields import one_line
from baton.core.value import Value
from baton.worktrees import trees
from baton.worktrees.contents import Contents, examine, has_uncommitted, head_of, index_copy, own_git
from baton.worktrees.git import Git, Repository, find_repository, gitlinks
from baton.worktrees.keeping import git_identity
from baton.worktrees.making import Maker, Needs
from baton.worktrees.removal import undo
from baton.worktrees.trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWN = 3  # paths that a message names


class Work(Value):
    """The work of a job as one tree of git: the newest commit, and everything that is not committed yet. `left_out` are
    nested repositories, which no commit of this repository can hold."""

    commit: str
    tree: str
    is_committed: bool
    left_out: list[str]


def work_of(tree: Tree, variables: dict[str, str] | None = None) -> Work:
    """Return the work of a job, as far as git can hold it and does not ignore it. Objects are written, nothing else.
    `variables` may name another place for them."""
    variables = variables or {}
    if tree.removing or not os.path.isdir(tree.path):  # guard: half-removed-worktree
        tip = tree.tip()
        if tip is None:
            raise WorktreeRefused(f"the worktree {tree.name} and its branch {tree.branch} are gone")
        return Work(commit=tip, tree=tree.git().text("rev-parse", f"{tip}^{{tree}}"), is_committed=True, left_out=[])
    git, contents = own_git(tree), examine(tree, thorough=False)
    assert contents.head is not None
    with index_copy(git) as index:
        changed = os.fsencode("".join(f"{name}\0" for name in (*contents.changed, *contents.untracked)))
        how = ("--add", "--remove", "--replace", "-z", "--stdin")
        git.run("update-index", *how, stdin=changed, variables=index | variables)
        for name, _ in gitlinks(git):
            if (now := head_of(os.path.join(tree.path, name))) is not None:
                git.run("update-index", "--cacheinfo", f"160000,{now},{name}", variables=index | variables)
        whole = git.text("write-tree", variables=index | variables)
    committed = whole == git.text("rev-parse", f"{contents.head}^{{tree}}")
    return Work(commit=contents.head, tree=whole, is_committed=committed, left_out=list(contents.nested))


@contextmanager
def _spare_objects(tree: Tree) -> Iterator[dict[str, str]]:
    """Yield the variables that make git write new objects into a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        objects = os.path.join(tree.common, "objects")
        yield {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}


def diff(tree: Tree, *, stat: bool = False) -> tuple[bytes, list[str]]:
    """Return the changes of a job since its base: committed, uncommitted and untracked; and what they do not show."""
    with _spare_objects(tree) as variables:
        work = work_of(tree, variables)
        how = ("--stat=100",) if stat else ("--patch",)
        options = ("--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short")  # guard: git-diff-programs
        shown = tree.git().run("diff", *how, *options, tree.base, work.tree, "--", variables=variables)
        return shown, work.left_out


def commits_of(tree: Tree) -> list[str]:
    """Return the commits of a job that its base does not have, the oldest first."""
    tip = tree.tip()
    if tip is None:
        return []
    return tree.git().text("rev-list", "--reverse", tip, f"^{tree.base}").split()


class Merged(Value):
    """How a merge ended. `result` is the new commit of the branch `into`, None if the job has changed nothing; `notes`
    are lines for the user."""

    tree: Tree
    into: str
    result: str | None
    already: bool
    notes: list[str]


class Plan(Value):
    """A merge that was computed and not done. `new` is None where there is nothing to do."""

    git: Git
    into: str
    old: str
    new: str | None
    tip: str
    work: Work
    added: list[str]
    changed: list[str]


def merge(
    tree: Tree,
    folder: str,
    *,
    title: str,
    squash: bool = False,
    check: Callable[[str], str | None] | None = None,
    needs: Needs | None = None,
) -> Merged:
    """Merge the work of a job into the branch that is checked out in a folder of its repository.

    `check` gets the folder of the merged result and returns why that is not good; None: it is. WorktreeRefused, with
    everything as it was, if the check fails, files conflict, the work tree has changes, or the merge would replace a
    file that git does not have. The caller holds the lock of the worktree."""
    target = find_repository(folder)
    if target.common != tree.common:
        raise WorktreeRefused(f"job {tree.job_id} belongs to another repository: run it in {tree.top}")
    with trees.MergeLock(tree) as lock:
        tree = _take_back(tree, target)
        target = find_repository(folder)  # as it is now that no other merge goes on
        plan = _plan(tree, target, title, squash=squash)
        plan.git.inherited = (lock.fileno(),)  # git goes on if this process is killed
        if plan.new is not None and check is not None:
            _check(tree, target, plan.new, check, needs or Needs())
        has_changes = plan.new is not None or plan.tip != tree.base
        if has_changes:
            tree = _do(tree, plan)
    ignored = _filtered(plan.git, [*plan.added, *plan.changed]) if plan.new is not None else []
    notes = [note] if (note := note_if_gone(tree)) else []
    if plan.work.left_out:
        notes.append(f"not merged: nested repositories ({_some(plan.work.left_out)}); they stay in {tree.path}")
    if ignored:
        notes.append(
            f"{_some(ignored)}: written as git holds them; their filter did not run (git lfs checkout runs LFS)"
        )
    result = (plan.new or plan.old) if has_changes else None
    return Merged(tree=tree, into=plan.into, result=result, already=has_changes and plan.new is None, notes=notes)


def note_if_gone(tree: Tree) -> str:
    """Return a line for the user if the folder of a worktree was removed by hand; "" if not."""
    if os.path.lexists(tree.path) or not os.path.lexists(f"{tree.path}.json"):
        return ""
    return f"{tree.path} is gone: what was not committed there is gone, too"


# -- computing ---------------------------------------------------------------------------------------------------------


def _plan(tree: Tree, target: Repository, title: str, *, squash: bool) -> Plan:
    git = target.git()
    into = git.text("symbolic-ref", "--quiet", "HEAD", codes=(0, 1))
    if not into:
        raise WorktreeRefused(f"{target.top} is not on a branch; check one out first: git switch BRANCH")
    if into == f"refs/heads/{tree.branch}":
        raise WorktreeRefused(f"{target.top} is the worktree of the job; run it in the work tree to merge into")
    _refuse_changes(git, target)
    if os.path.isdir(tree.path) and not tree.removing:
        _refuse_unfit(tree, examine(tree, thorough=False))
    work = work_of(tree)
    tip = work.commit if work.is_committed else _commit_rest(tree, work, title)
    old = target.base
    plan = Plan(git=git, into=into, old=old, new=None, tip=tip, work=work, added=[], changed=[])
    if git.is_ancestor(tip, old) or (tree.merged or {}).get("tip") == tip:
        return plan
    new = tip if not squash and git.is_ancestor(old, tip) else _merge_commit(git, tree, old, tip, title, squash=squash)
    if new is None:
        return plan  # the branch has all of it already
    added, changed = _changes(git, old, new)
    _refuse_untracked(tree, target, added)
    return plan.replace(new=new, added=added, changed=changed)


def _refuse_changes(git: Git, target: Repository) -> None:
    dirty = git.names(
        "status", "--porcelain=v1", "-z", "--untracked-files=no", "--ignore-submodules=dirty", "--no-renames"
    )
    if dirty:  # guard: merge-dirty
        paths = [each[3:] for each in dirty]
        hint = "; run `git status` there first: a filter of these files may confuse it" if _filtered(git, paths) else ""
        raise WorktreeRefused(f"{target.top} has uncommitted changes ({_some(paths)}); commit or stash them{hint}")


def _refuse_unfit(tree: Tree, contents: Contents) -> None:
    """Refuse work that a commit by baton would not hold as the user means it."""
    git = own_git(tree)
    if contents.operation:
        raise WorktreeRefused(f"{tree.path} is in the middle of {contents.operation}; end it there first")
    for name in contents.submodules:
        if has_uncommitted(os.path.join(tree.path, name)):
            raise WorktreeRefused(f"the submodule {name} in {tree.path} has uncommitted work; commit it there first")
    paths = _filtered(git, [*contents.changed, *contents.untracked])
    if paths:  # guard: merge-filtered
        raise WorktreeRefused(
            f"{_some(paths)}: git runs a filter on these files, and baton does not; commit them in {tree.path} yourself"
        )
    branch = git.commit(f"refs/heads/{tree.branch}")
    if branch is None or contents.head is None or not git.is_ancestor(branch, contents.head):
        raise WorktreeRefused(f"{tree.path} has left its branch {tree.branch}; merge what it is on with git")


def commit_rest(tree: Tree, title: str) -> str:
    """Commit the uncommitted work of an ended job on its branch, and return the newest commit. The caller holds the
    lock of the worktree."""
    _refuse_unfit(tree, examine(tree, thorough=False))
    work = work_of(tree)
    if work.is_committed:
        return work.commit
    tip = _commit_rest(tree, work, title)
    with _undisturbed():
        _settle_branch(tree, tip)
    return tip


def _commit_rest(tree: Tree, work: Work, title: str) -> str:
    """Return a commit of the uncommitted work on top of the rest. No branch has it yet."""
    git = own_git(tree)
    return git.text("commit-tree", work.tree, "-p", work.commit, "-m", title, variables=git_identity(git))


def _merge_commit(git: Git, tree: Tree, old: str, tip: str, title: str, *, squash: bool) -> str | None:
    """Return the commit of the merged result; None if it changes nothing. WorktreeRefused if files conflict."""
    ours, earlier = old, tree.merged
    if earlier is not None and not git.is_ancestor(earlier["tip"], old) and git.is_ancestor(earlier["result"], old):
        # After a squash git does not know what was merged already: a commit that nothing refers to says so.
        known = ("-p", earlier["tip"], "-m", "merged")
        ours = git.text("commit-tree", f"{old}^{{tree}}", *known, variables=git_identity(git))
    try:
        printed = git.names("merge-tree", "--write-tree", "--name-only", "-z", "--no-messages", ours, tip, codes=(0, 1))
    except GitFailed as error:
        if "usage" in str(error) or "129" in str(error):
            version = git.text("version").removeprefix("git version ")
            raise GitUnusable(f"baton merge needs git 2.38 or newer; this is {one_line(version, 40)}") from None
        raise
    merged, conflicts = printed[0], sorted(set(printed[1:]))
    if conflicts:  # guard: merge-conflict
        raise WorktreeRefused(
            f"job {tree.job_id} conflicts with {_short(git)} in {_some(conflicts)}; nothing was changed: commit "
            f"and merge in {tree.path} yourself, or let a follow-up do it"
        )
    if merged == git.text("rev-parse", f"{old}^{{tree}}"):
        return None
    message = title if squash else f"Merge job {tree.job_id}: {title}"
    parents = ("-p", old) if squash else ("-p", old, "-p", tip)
    return git.text("commit-tree", merged, *parents, "-m", message, variables=git_identity(git))


def _short(git: Git) -> str:
    return git.text("symbolic-ref", "--short", "HEAD")


def _changes(git: Git, old: str, new: str) -> tuple[list[str], list[str]]:
    """Return the paths that the merge adds, and those that it changes or removes."""
    listed = git.names("diff-tree", "-r", "-z", "--name-status", "--no-renames", old, new)
    kinds = list(zip(listed[::2], listed[1::2], strict=True))
    return [path for kind, path in kinds if kind == "A"], [path for kind, path in kinds if kind != "A"]


def _refuse_untracked(tree: Tree, target: Repository, added: list[str]) -> None:
    """Refuse to add a path that exists already, as an untracked or ignored file, or where a file is in place of one of
    its folders."""
    known = set(target.git().names("ls-files", "-z"))

    def blocks(path: str) -> bool:
        whole = os.path.join(target.top, path)
        if os.path.lexists(whole) and (not os.path.isdir(whole) or os.path.islink(whole) or _has_untracked(whole)):
            return True
        parent = os.path.dirname(path)
        while parent:
            there = os.path.join(target.top, parent)
            if os.path.lexists(there):
                return parent not in known and (os.path.islink(there) or not os.path.isdir(there))
            parent = os.path.dirname(parent)
        return False

    def _has_untracked(folder: str) -> bool:
        return any(
            os.path.relpath(os.path.join(place, name), target.top) not in known
            for place, _, names in os.walk(folder)
            for name in names
        )

    blocked = [path for path in added if blocks(path)]
    if blocked:  # guard: merge-untracked
        raise WorktreeRefused(
            f"{target.top} has {_some(blocked)}, which git does not know and the merge would replace; move or remove "
            f"it there, or ignore it in the job's worktree ({tree.path}), and merge again"
        )


def _filtered(git: Git, paths: list[str]) -> list[str]:
    """Return those of the paths on which git would run a filter, by their attributes and the configuration."""
    if not paths:
        return []
    stdin = os.fsencode("\0".join(paths) + "\0")
    found = git.names("check-attr", "-z", "--stdin", "filter", stdin=stdin)
    known = git.filters()
    return [path for path, value in zip(found[::3], found[2::3], strict=True) if value in known]


def _some(paths: list[str]) -> str:
    shown = ", ".join(one_line(path, 80) for path in paths[:_SHOWN])
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"


def _check(tree: Tree, target: Repository, commit: str, check: Callable[[str], str | None], needs: Needs) -> None:
    """Run a check on the merged result, in a worktree that is removed again."""
    name = f"{tree.name}-check"
    old = trees.read(os.path.join(tree.folder, name))
    if old is not None:
        undo(old)  # of a check that was killed
    made = Maker().make(tree.folder, name, target.at(commit), needs, title=f"check of {tree.name}")
    try:
        why = check(made.path)
    finally:
        undo(made)
    if why is not None:  # guard: merge-check
        raise WorktreeRefused(f"not merged: on the merged result, {why}")


# -- doing -------------------------------------------------------------------------------------------------------------


def _do(tree: Tree, plan: Plan) -> Tree:
    """Do what was planned. Ctrl-C waits for the end of it."""
    with _undisturbed():
        if plan.new is not None:
            intent = {"into": plan.into, "old": plan.old, "new": plan.new, "tip": plan.tip}
            tree = trees.write(tree.replace(merging=intent))
        if not plan.work.is_committed:
            _settle_branch(tree, plan.tip)
        done = False
        if plan.new is not None:
            plan.git.run("update-index", "-q", "--refresh", codes=(0, 1))  # files that were only touched
            try:
                plan.git.run("read-tree", "-m", "-u", plan.old, plan.new)
                done = True
                plan.git.run("update-ref", "-m", f"baton merge {tree.job_id}", plan.into, plan.new, plan.old)
            except GitFailed as error:
                if done:
                    plan.git.run("read-tree", "-m", "-u", plan.new, plan.old)
                else:
                    _restore(plan.git, plan.old, plan.new)  # the disk may be full
                trees.write(tree.replace(merging=None))
                raise WorktreeRefused(f"not merged: {error}") from None
        tree.git().run("update-ref", tree.merged_ref, plan.tip)
        result = plan.new or plan.old
        at = format_micros(time.time_ns())
        merged = {"into": plan.into, "result": result, "tip": plan.tip, "at": at}
        return trees.write(tree.replace(merging=None, merged=merged))


def _settle_branch(tree: Tree, tip: str) -> None:
    """Put the commit of the rest on the branch of the job, and make the worktree's index know it."""
    git = own_git(tree)
    before = git.commit(f"refs/heads/{tree.branch}")
    git.run("update-ref", "-m", "baton: commit the rest", f"refs/heads/{tree.branch}", tip, before or "")
    if git.commit("HEAD") != tip:
        git.run("update-ref", "-m", "baton: commit the rest", "--no-deref", "HEAD", tip)
    git.run("read-tree", tip)
    git.run("update-index", "-q", "--refresh", codes=(0, 1))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep signals waiting inside of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_back(tree: Tree, target: Repository) -> Tree:
    """Complete an earlier merge of this job that was killed, or take it back: put the files that it had changed back.
    WorktreeRefused if one of them is neither as before nor as after it."""
    merging = tree.merging
    if merging is None:
        return tree
    git, old, new = target.git(), merging["old"], merging["new"]
    here = git.text("symbolic-ref", "-q", "HEAD", codes=(0, 1)) == merging["into"]
    if here and git.commit(merging["into"]) == old:
        with index_copy(git) as variables:
            staged = git.text("write-tree", variables=variables, codes=(0, 128))
        if staged == git.text("rev-parse", f"{new}^{{tree}}"):
            git.run("update-ref", "-m", f"baton merge {tree.job_id}", merging["into"], new, old)
        elif torn := _restore(git, old, new):
            raise WorktreeRefused(
                f"an earlier merge of job {tree.job_id} was killed, and {_some(torn)} in {target.top} changed since; "
                "put it right with git first"
            )
    return trees.write(tree.replace(merging=None))


def _restore(git: Git, old: str, new: str) -> list[str]:
    """Put the files back that a merge had begun to change. Return those that are neither as before nor as after it:
    they stay as they are."""
    added, changed = _changes(git, old, new)
    torn, begun = [], []
    for path in (*added, *changed):
        before, after = (git.run("cat-file", "blob", f"{each}:{path}", codes=(0, 128)) for each in (old, new))
        content = _content(os.path.join(git.work_tree or "", path))
        if path in added and content is not None and after.startswith(content):
            os.unlink(os.path.join(git.work_tree or "", path))
        elif path in changed and (content is None or (content != before and after.startswith(content))):
            begun.append(path)
        elif content != (before if path in changed else None):
            torn.append(path)
    if begun:
        git.run("checkout-index", "--force", "-z", "--stdin", stdin=os.fsencode("\0".join(begun) + "\0"))
        git.run("update-index", "-q", "--refresh", codes=(0, 1, 128))
    return torn


def _content(path: str) -> bytes | None:
    """Return the content of a file, or the target of a link; None if there is none."""
    if os.path.islink(path):
        return os.fsencode(os.readlink(path))
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
