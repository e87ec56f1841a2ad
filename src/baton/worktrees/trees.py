"""Keep a record of each worktree that baton made: which attempt at which job it is for, and what became of its work.

<data>/worktrees/<repository>/<job>-<attempt>/       the worktree
<data>/worktrees/<repository>/<job>-<attempt>.json   its record, which outlives the folder and the job
<data>/worktrees/<repository>/<job>-<attempt>.lock   locked by the runner, or the command, that uses it
<data>/worktrees/<repository>/<job>-<attempt>.copied files that settings or a validation brought, with size and times
<data>/worktrees/<repository>/kept/                  what was saved and git cannot hold
"""

from __future__ import annotations

import json
import os
import re

from baton.core import fields
from baton.core.errors import BatonError, InvalidValue, RegistryBusy, WorktreeRefused
from baton.core.fields import parse_json
from baton.core.hashing import sha256
from baton.core.value import Any, Self, Value
from baton.own_files import why_shared
from baton.storage.files import FileLock, is_locked, make_private_dir, read_file, remove_file, replace_file
from baton.worktrees.git import Git, find_repository

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.core.job import Job

_NAME = re.compile(rf"({fields.JOB_ID.pattern})-([1-9][0-9]{{0,8}})(-check)?", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
_BUSY_SEC = 60.0


class Tree(Value):
    """The record of a worktree.

    `common` is the git folder that all work trees of the repository share; `top` the work tree that the job was
    submitted in. `ready`: the checkout was complete. `removing`: everything in it was found elsewhere, and its removal
    has begun. `merging` is a merge that has begun: `into` (a ref), `old`, `new`, `tip`. `merged` is the last one:
    `into`, `result`, `tip`, `at`. `salvaged` names the ref and the folder of what was saved."""

    name: str
    path: str
    common: str
    top: str
    branch: str
    base: str
    title: str
    made_at: str
    ready: bool = False
    removing: bool = False
    merging: dict[str, Any] | None = None
    merged: dict[str, Any] | None = None
    salvaged: dict[str, Any] | None = None

    @property
    def job_id(self) -> str:
        return self.name.partition("-")[0]

    @property
    def attempt(self) -> int:
        return int(self.name.split("-")[1])

    @property
    def is_temporary(self) -> bool:
        """Whether `merge --check` made it, to run a validation in it."""
        return self.name.endswith("-check")

    @property
    def folder(self) -> str:
        """Of the repository, in the folder of worktrees."""
        return os.path.dirname(self.path)

    @property
    def merged_ref(self) -> str:
        """The ref of the commits of a merged job: after a squash, no branch has them."""
        return f"refs/baton/merged/{self.name}"

    def git(self) -> Git:
        """Return git on the repository, without a work tree."""
        return Git(self.common, None)

    def tip(self) -> str | None:
        """Return the newest commit of the job, of its branch or of what was merged; None if git has neither."""
        git = self.git()
        return git.commit(f"refs/heads/{self.branch}") or git.commit(self.merged_ref)

    @classmethod
    def of_job(cls, job: Job) -> Tree:
        """Return what the record of a job says about its worktree, also if the worktree was removed after a merge."""
        assert job.worktree is not None
        assert job.checkout is not None
        source = find_repository(job.worktree["repository"])
        path, base, branch = (job.checkout[name] for name in ("path", "base", "branch"))
        return cls(
            name=os.path.basename(path), path=path, common=source.common, top=source.top, branch=branch, base=base,
            title=job.title or "", made_at=job.created_at, ready=True,
        )  # fmt: skip

    @classmethod
    def parse(cls, content: bytes, path: str) -> Tree:
        """Return the record in a file; BatonError if it is not valid."""
        try:
            found = parse_json(content)
            values = {name: found[name] for name in cls.fields() if name in found}
            tree = cls(**values)
            for name in ("name", "path", "common", "top", "branch", "base", "title", "made_at"):
                fields.text(getattr(tree, name))
            if _NAME.fullmatch(tree.name) is None or tree.path != path.removesuffix(".json"):  # guard: worktree-record
                raise ValueError("it names another worktree")
            if _HEX.fullmatch(tree.base) is None or not tree.branch.startswith("baton/"):
                raise ValueError("it names no commit or no branch of baton")
        except (ValueError, TypeError, KeyError) as error:
            raise BatonError(f"{path} is damaged ({error}); its worktree stays as it is") from None
        return tree


class Trees:
    """All worktrees that baton made for this user."""

    def __init__(self, data_dir: str) -> None:
        self.root = os.path.join(data_dir, "worktrees")

    def folder_of(self, top: str, common: str) -> str:
        """Return the folder for the worktrees of a repository; it need not exist."""
        main = os.path.dirname(common) if os.path.basename(common) == ".git" else common
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(main)).strip(".-")[:40] or "repository"
        folder = os.path.join(self.root, f"{name}-{sha256(os.fsencode(common)).hexdigest()[:8]}")
        if f"{os.path.realpath(folder)}/".startswith(f"{top.rstrip('/')}/"):  # guard: worktrees-outside
            raise InvalidValue("worktree", f"cannot be made: {folder} lies in the repository {top}; set XDG_DATA_HOME")
        return folder

    def make_root(self) -> None:
        """Create the folder of all worktrees. InvalidValue if it cannot be created or if others can change it: what is
        in it runs."""
        try:
            make_private_dir(self.root)
        except OSError as error:
            why = f"{error.filename or self.root}: {error.strerror}"
            raise InvalidValue(
                "worktree", f"cannot be made in {self.root} ({why}); set XDG_DATA_HOME to a folder that you may write"
            ) from None
        if (why_not := why_shared(self.root)) is not None:  # guard: worktrees-of-others
            raise InvalidValue("worktree", f"cannot be made: {self.root} {why_not}, or set XDG_DATA_HOME")

    def all(self, damaged: list[BatonError] | None = None) -> Iterator[Tree]:
        """Yield every recorded worktree, the newest first of each repository. Add the errors of others to `damaged`."""
        for folder in sorted(_names_in(self.root)):
            found = []
            for name in _names_in(os.path.join(self.root, folder)):
                path = os.path.join(self.root, folder, name)
                try:
                    tree = self.find_exact(path.removesuffix(".json")) if name.endswith(".json") else None
                except BatonError as error:
                    tree = None
                    if damaged is not None:
                        damaged.append(error)
                found += [] if tree is None else [tree]
            yield from sorted(found, key=lambda tree: tree.made_at, reverse=True)

    def find(self, typed: str) -> list[Tree]:
        """Return the worktrees of a job, oldest first; of `JOB-ATTEMPT`, that of this attempt. Ids may be shortened."""
        job, _, rest = typed.partition("-")
        known = [tree for tree in self.all() if tree.job_id.startswith(job)]
        if rest:
            known = [tree for tree in known if tree.name.partition("-")[2] == rest]
        return sorted(known, key=lambda tree: (tree.job_id, tree.attempt))

    def find_exact(self, path: str) -> Tree | None:
        """Return the record of the worktree at this path."""
        return read(path) if os.path.dirname(os.path.dirname(path)) == self.root else None


def read(path: str) -> Tree | None:
    """Return the record of the worktree at this path; None if there is none."""
    try:
        return Tree.parse(read_file(f"{path}.json"), f"{path}.json")
    except FileNotFoundError:
        return None


def write(tree: Tree, *, durable: bool = True) -> Tree:
    """Write the record."""
    make_private_dir(tree.folder)
    replace_file(f"{tree.path}.json", json.dumps(tree.as_dict()).encode(), durable=durable)
    return tree


def forget(tree: Tree) -> None:
    """Remove the record of a worktree of which nothing is left."""
    remove_file(f"{tree.path}.json")
    remove_file(f"{tree.path}.lock")


class UseLock(FileLock):
    """Keeps a worktree from being used by two at once. The runner holds it as long as it lives."""

    def __init__(self, path: str, timeout_sec: float = 0.0) -> None:
        folder, self._name = os.path.split(path)
        make_private_dir(folder)
        super().__init__(f"{path}.lock", timeout_sec)

    def __enter__(self) -> Self:
        try:
            super().__enter__()
        except RegistryBusy:
            why = f"the worktree {self._name} is in use: its session, or another command, works in it"
            raise WorktreeRefused(f"{why}; try again when that has ended") from None
        return self


def is_used(tree: Tree) -> bool:
    return is_locked(f"{tree.path}.lock")


class MergeLock(FileLock):
    """Lets one merge into a repository go on at a time."""

    def __init__(self, tree: Tree) -> None:
        make_private_dir(tree.folder)
        super().__init__(os.path.join(tree.folder, ".merge.lock"), _BUSY_SEC)

    def fileno(self) -> int:
        """Return the descriptor that holds the lock."""
        return self._fd


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
