"""Find the work in a worktree that is found nowhere else: what its removal would lose."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from contextlib import contextmanager

from baton.core.errors import GitFailed
from baton.core.fields import parse_json
from baton.core.value import Any, Value
from baton.storage.files import read_file, replace_file
from baton.worktrees.git import Git, gitlinks, work_tree_git
from baton.worktrees.keeping import is_elsewhere, is_merged
from baton.worktrees.making import size_and_times
from baton.worktrees.removal import changed_ns
from baton.worktrees.trees import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# In the git folder of a work tree, while such an operation waits for the user.
_REFUSED = re.compile(r"(\.git|git~1)[ .]*(:.*)?", re.IGNORECASE | re.DOTALL)  # on some systems they mean .git
# Untracked, these are no work: see `is_product`.
_PRODUCT_FOLDERS = frozenset({"__pycache__", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"})
_PRODUCT_FILES = (".pyc",)
_OPERATIONS = {
    "MERGE_HEAD": "a merge", "CHERRY_PICK_HEAD": "a cherry-pick", "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase", "rebase-apply": "a rebase", "BISECT_LOG": "a bisect",
}  # fmt: skip


class Contents(Value):
    """What is in a worktree. Paths are relative to it.

    `changed` are tracked files with uncommitted changes, `nested` repositories, `submodules` those with changes of
    their own, `former` the repositories of submodules that are not checked out any more, in git's folder of the
    worktree, `unsupported` what git cannot hold. `commits` counts those that no branch or tag of the user has and that
    no merge has brought elsewhere. `operation` waits for the user, such as a rebase. `copied` are the files that the
    user's settings or a validation brought and that are as they were: they are no work."""

    head: str | None = None
    changed: Sequence[str] = ()
    untracked: Sequence[str] = ()
    ignored: Sequence[str] = ()
    nested: Sequence[str] = ()
    submodules: Sequence[str] = ()
    former: Sequence[str] = ()
    unsupported: Sequence[str] = ()
    commits: int = 0
    operation: str | None = None
    copied: Sequence[str] = ()

    @property
    def unsaved(self) -> list[str]:
        """What its removal would lose, as words for the user: commits stay on their branch."""
        counts = {
            "uncommitted file": self.changed, "untracked file": self.untracked, "ignored file": self.ignored,
            "nested repository": self.nested, "changed submodule": self.submodules,
            "former submodule": self.former, "special file": self.unsupported,
        }  # fmt: skip
        words = [_counted(len(paths), what) for what, paths in counts.items() if paths]
        return [*words, *([f"{self.operation} in progress"] if self.operation else [])]

    @property
    def words(self) -> str:
        """What is in it that is found nowhere else, for the user; "" for nothing."""
        commits = [_counted(self.commits, "unmerged commit")] if self.commits else []
        return ", ".join([*commits, *self.unsaved])


def _counted(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def examine(tree: Tree, *, thorough: bool = True) -> Contents:
    """Return what is in a worktree. `thorough` also finds what git does not look at: files that are marked as
    unchanged in its index, repositories in ignored folders, pipes and sockets."""
    git = own_git(tree)
    found = _status(git, thorough=thorough)
    if tree.removing:  # it was interrupted: files are missing, and that is no work
        found = _without_missing(tree.path, found)
    copied = unchanged_copies(tree)
    links = gitlinks(git)
    names = {name for name, _ in links}
    nested = {name.rstrip("/") for name in (*found.untracked, *found.ignored) if name.endswith("/")}
    unsupported: list[str] = []
    if thorough:
        for name, kind in _beyond_git(tree.path, names):
            if kind == "repository":
                nested.add(name)
            else:
                unsupported.append(name)
    apart = nested | set(unsupported)
    return found.replace(
        untracked=_files(found.untracked, apart, copied),
        ignored=_files(found.ignored, apart, copied),
        nested=sorted(nested),
        submodules=[name for name, commit in links if _has_changes(tree, name, commit)],
        former=_former_submodules(tree, git, names) if thorough else (),
        unsupported=unsupported,
        commits=count_unmerged(tree, found.head),
        operation=next((what for file, what in _OPERATIONS.items() if os.path.exists(f"{git.git_dir}/{file}")), None),
        copied=sorted(copied),
    )


def has_changes(tree: Tree, expected: Sequence[str] = ()) -> bool:
    """Return whether a job has left a change in its worktree that `merge` can bring home or a user may want: a commit
    since its base, a changed or a new file, a repository. Ignored files are none, nor products of tools, except
    `expected` files."""
    git = own_git(tree)
    found, copied = _status(git, thorough=False), unchanged_copies(tree)
    tips = {tip for tip in (found.head, git.commit(f"refs/heads/{tree.branch}")) if tip not in (None, tree.base)}
    if tips and int(git.text("rev-list", "--count", *sorted(map(str, tips)), f"^{tree.base}")):
        return True
    files = (name for name in found.untracked if name not in copied)
    if found.changed or any(name in expected or not is_product(name) for name in files):
        return True
    return any(_has_changes(tree, name, commit) for name, commit in gitlinks(git))


def is_product(path: str) -> bool:
    """Return whether tools write a file of this path beside the sources, so that it is no work."""
    folders = path.split("/")[:-1]
    return path.endswith(_PRODUCT_FILES) or not _PRODUCT_FOLDERS.isdisjoint(folders)


def own_git(tree: Tree) -> Git:
    """Return git on the worktree. GitFailed if its folder is gone, or is not this worktree any more."""
    if not os.path.isdir(tree.path):
        raise GitFailed(f"the worktree {tree.path} is gone: it was not removed by baton")
    git = work_tree_git(tree.path)
    if os.path.realpath(os.path.join(git.git_dir, "..", "..")) != tree.common:  # guard: replaced-worktree
        raise GitFailed(f"{tree.path} is not the worktree that baton made: its .git leads elsewhere")
    return git


def count_unmerged(tree: Tree, head: str | None) -> int:
    """Return how many commits of the worktree are neither merged nor in a branch or tag of the user."""
    git = tree.git()
    branch = git.commit(f"refs/heads/{tree.branch}")
    tips = {tip for tip in (head, branch) if tip is not None}
    tips = {tip for tip in tips if tip != tree.base and not is_merged(git, tree, tip) and not is_elsewhere(git, tip)}
    if not tips:
        return 0
    return max(int(git.text("rev-list", "--count", *tips, f"^{tree.base}")), 1)


def unchanged_copies(tree: Tree) -> set[str]:
    """Return the files that the user's settings or a validation brought, and that are as they were."""
    noted = _noted_copies(tree)
    return {name for name, *before in noted if size_and_times(os.path.join(tree.path, name)) == before}


def _noted_copies(tree: Tree) -> list[list[Any]]:
    try:
        noted: list[list[Any]] = parse_json(read_file(f"{tree.path}.copied"))
    except (FileNotFoundError, ValueError):
        return []
    return noted


def ignored_files(tree: Tree) -> set[str]:
    """Return the ignored files in a worktree, without nested repositories and unchanged copies."""
    found = _status(own_git(tree), thorough=False).ignored
    return {name for name in found if not name.endswith("/")} - unchanged_copies(tree)


def note_products(tree: Tree, before: set[str], since_ns: int) -> None:
    """Note ignored files that a validation has made as files that are no work as long as they are unchanged: those that
    were not there before, and that were written since this time. A file that the validation moved has an older time,
    and may be work."""
    made = []
    for name in sorted(ignored_files(tree) - before):
        found = size_and_times(os.path.join(tree.path, name))
        if found is not None and found[1] > since_ns:  # guard: moved-by-validation
            made.append([name, *found])
    if made:
        names = {name for name, *_ in made}
        known = [each for each in _noted_copies(tree) if each[0] not in names]
        replace_file(f"{tree.path}.copied", json.dumps([*known, *made]).encode(), durable=False)


def _without_missing(top: str, found: Contents) -> Contents:
    return found.replace(changed=[name for name in found.changed if os.path.lexists(os.path.join(top, name))])


@contextmanager
def index_copy(git: Git, *, distrust: bool = False) -> Iterator[dict[str, str]]:
    """Yield the variables that make git use a copy of the work tree's index. `distrust`: in which it looks at the files
    themselves."""
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        index = os.path.join(folder, "index")
        if os.path.exists(own := os.path.join(git.git_dir, "index")):
            times = os.stat(own)  # git looks again at files that are not older than their index
            shutil.copyfile(own, index)
            os.utime(index, ns=(times.st_atime_ns, times.st_mtime_ns))  # guard: index-time
        variables = {"GIT_INDEX_FILE": index}
        if distrust:
            _distrust_touched(git, variables)
        yield variables


def has_uncommitted(path: str) -> bool:
    """Return whether a submodule has changes that no commit of it holds."""
    if not os.path.lexists(os.path.join(path, ".git")):
        return os.path.isdir(path) and bool(os.listdir(path))
    found = _status(work_tree_git(path), thorough=True)
    return bool(found.changed or found.untracked)


def head_of(path: str) -> str | None:
    """Return the commit that is checked out in a submodule; None if it is not filled."""
    return work_tree_git(path).commit("HEAD") if os.path.lexists(os.path.join(path, ".git")) else None


def _status(git: Git, *, thorough: bool) -> Contents:
    if not thorough:
        return _parse(git.names(*_STATUS))
    with index_copy(git, distrust=True) as variables:
        # A file `A` beside a tracked `a` is new, also in a repository that came from a system which ignores the case.
        return _parse(git.names("-c", "core.ignoreCase=false", *_STATUS, variables=variables))


_ENTRY = re.compile(rb"(\d+ [0-9a-f]+ \d)\t([^\0]*)\0  ctime: (\d+):(\d+)\n(?:  .*\n)*")


def _distrust_touched(git: Git, variables: dict[str, str]) -> None:
    """Make git read each file again that was touched since it was put into the index. A program may have put its old
    time back, and git compares the time of the last change by seconds, or not at all; or a user or an agent has
    marked it as one that git does not look at."""
    listed = git.run("ls-files", "--stage", "--debug", "-z", variables=variables)
    entries = list(_ENTRY.finditer(listed))
    if sum(len(entry[0]) for entry in entries) != len(listed):
        raise GitFailed("baton does not understand what git ls-files --debug shows; please report it")
    touched = []
    for entry in entries:
        found_ns = changed_ns(os.path.join(git.work_tree or "", os.fsdecode(entry[2])))
        if found_ns is not None and divmod(found_ns, 10**9) != (int(entry[3]), int(entry[4])):
            touched.append(b"%b\t%b\0" % (entry[1], entry[2]))
    if touched:  # guard: touched-files
        git.run("update-index", "-z", "--index-info", stdin=b"".join(touched), variables=variables)


_STATUS = (
    "status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all", "--ignored=traditional",
    "--ignore-submodules=all", "--no-renames",
)  # fmt: skip


def _parse(entries: list[str]) -> Contents:
    found: dict[str, list[str]] = {"changed": [], "?": [], "!": []}
    head = None
    for entry in entries:
        kind, _, rest = entry.partition(" ")
        if kind == "#":
            if rest.startswith("branch.oid ") and rest != "branch.oid (initial)":
                head = rest.split(" ")[1]
        elif kind in ("?", "!"):
            found[kind].append(rest)
        elif kind in ("1", "u"):
            found["changed"].append(rest.split(" ", 7 if kind == "1" else 9)[-1])
    return Contents(head=head, changed=found["changed"], untracked=found["?"], ignored=found["!"])


def _files(paths: Sequence[str], apart: set[str], copied: set[str]) -> list[str]:
    """Return the paths that are neither in what is saved apart, such as a nested repository, nor unchanged copies."""
    folders = tuple(f"{each}/" for each in apart)
    return [path for path in paths if path not in copied and not f"{path}/".startswith(folders)]


def _beyond_git(top: str, submodules: set[str]) -> Iterator[tuple[str, str]]:
    """Yield what git does not show or cannot hold, with its kind: repositories anywhere below, special files, names
    that git refuses, and folders that cannot be read."""
    closed: list[OSError] = []
    for folder, folders, files in os.walk(top, onerror=closed.append):
        inside = os.path.relpath(folder, top)
        if inside != "." and (".git" in folders or ".git" in files):
            folders.clear()
            if inside not in submodules:
                yield inside, "repository"
            continue
        refused = {name for name in (*folders, *files) if name != ".git" and _REFUSED.fullmatch(name)}
        folders[:] = [name for name in folders if name not in refused]
        yield from ((os.path.normpath(os.path.join(inside, name)), "refused") for name in refused)
        for name in set(files) - refused - {".git"}:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                yield os.path.relpath(path, top), "special"
    for error in closed:
        yield os.path.relpath(error.filename, top), "special"


def _former_submodules(tree: Tree, git: Git, submodules: set[str]) -> list[str]:
    """Return the repositories in git's folder of a worktree that no submodule of it uses, as paths relative to that:
    they go with the worktree."""
    places = [os.path.join(tree.path, name) for name in submodules]
    used = {work_tree_git(each).git_dir for each in places if os.path.lexists(os.path.join(each, ".git"))}
    found = []
    for folder, folders, files in os.walk(os.path.join(git.git_dir, "modules")):
        if "HEAD" in files and "objects" in folders:
            folders.clear()
            if folder not in used:
                found.append(os.path.relpath(folder, git.git_dir))
    return found


def _has_changes(tree: Tree, name: str, commit: str) -> bool:
    """Return whether a submodule has work that is not in the commit which the index names. Its repository may lie in
    the git folder of the worktree, and goes with that: then it counts as changed."""
    path = os.path.join(tree.path, name)
    if not os.path.lexists(os.path.join(path, ".git")):
        return os.path.isdir(path) and bool(os.listdir(path))
    git = work_tree_git(path)
    if not git.is_linked:
        return True
    found = _status(git, thorough=True)
    if tree.removing:
        found = _without_missing(path, found)
    if found.head != commit or found.changed or found.untracked or found.ignored:
        return True
    if any(True for _ in _beyond_git(path, {each for each, _ in gitlinks(git)})):
        return True
    inner = tree.replace(path=path)
    return any(_has_changes(inner, each, wanted) for each, wanted in gitlinks(git))
