"""Run git without running anything that a repository names.

A clone may carry, and an agent may write, configuration that makes git start programs: hooks, filters, file system
monitors, diff and merge drivers, transports. Every call of baton goes through `Git`, which turns all of that off.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess

from baton.core.errors import GitFailed, GitUnusable, InvalidValue
from baton.core.fields import one_line
from baton.core.value import Any, Self
from baton.origin import obeyed_environment
from baton.storage.files import read_given_file, user_name, why_closed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Process = subprocess.Popen[bytes]

_IDENTITY = ("NAME", "EMAIL", "DATE")
_KEPT = frozenset(f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in _IDENTITY)
_VARIABLES = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch what is missing, by a program that it names
    "GIT_SSH_COMMAND": "false",
    "GIT_ASKPASS": "true",
    "GIT_EDITOR": "true",
    "GIT_PAGER": "cat",
}
# What a configuration file may not decide.
_FIXED = {
    "core.hooksPath": "/dev/null",  # guard: git-hooks
    "core.fsmonitor": "false",  # guard: git-fsmonitor
    "core.untrackedCache": "false",
    "core.ignoreStat": "false",
    "core.checkStat": "default",
    "core.trustCtime": "true",
    "core.quotePath": "false",
    "color.ui": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "merge.renormalize": "false",
    "status.submoduleSummary": "false",
    "submodule.recurse": "false",
    "advice.addEmbeddedRepo": "false",
}
_NAMED = re.compile(
    r"(filter|merge|hook)\.(.+)\.(clean|smudge|process|required|driver|event|command|enabled)", re.DOTALL
)
# A custom merge driver is a program. In its place git merges the texts as it does without one.
_MERGE = "git merge-file -q --marker-size=%L %A %O %B"
# What git says to type about a repository of another user.
_EXCEPTION = re.compile(r"^\s*(git config --global --add safe\.directory .+)$", re.MULTILINE)
_ERROR = re.compile(r"^(?:fatal|error): (.*)", re.MULTILINE)


class Git:
    """git on one work tree, or on a repository alone. `started` gets each process, to end it from another thread.
    Without `durable`, what git writes survives a power cut as far as the user's own settings of git say."""

    def __init__(
        self,
        git_dir: str,
        work_tree: str | None,
        started: Callable[[Process], None] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        self.git_dir = git_dir
        self.work_tree = work_tree
        self.started = started
        self._durable = {"core.fsync": "committed,reference"} if durable else {}
        self.inherited: tuple[int, ...] = ()  # locks that a process keeps until it has ended, whatever becomes of this
        self._drivers: dict[str, str] | None = None

    @property
    def is_linked(self) -> bool:
        """Whether this is a worktree of a repository that lies elsewhere."""
        return os.path.isfile(os.path.join(self.git_dir, "commondir"))

    def at(self, git_dir: str, work_tree: str | None) -> Self:
        """Return git on another work tree or repository."""
        return type(self)(git_dir, work_tree, self.started)

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        codes: Iterable[int] = (0,),
        variables: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return what a command of git prints; raise GitFailed with its message if it ends with another exit code."""
        if self._drivers is None:
            self._drivers = self._find_drivers()
        return self._call(arguments, stdin, codes, {**self._drivers}, variables or {})[1]

    def answer(self, *arguments: str, codes: Iterable[int] = (0, 1)) -> int:
        """Return the exit code of a command that answers a question by it."""
        if self._drivers is None:
            self._drivers = self._find_drivers()
        return self._call(arguments, b"", codes, self._drivers, {})[0]

    def text(self, *arguments: str, **more: Any) -> str:
        """Return what a command prints as text, without the line break at its end."""
        return os.fsdecode(self.run(*arguments, **more)).rstrip("\n")

    def names(self, *arguments: str, **more: Any) -> list[str]:
        """Return what a command with -z prints, as a list."""
        return os.fsdecode(self.run(*arguments, **more)).split("\0")[:-1]

    def commit(self, name: str) -> str | None:
        """Return the commit that a ref or an abbreviated id names; None if there is none."""
        wanted = f"{name}^{{commit}}"
        found = self.text("rev-parse", "--verify", "--quiet", "--end-of-options", wanted, codes=(0, 1, 128))
        return found or None

    def is_ancestor(self, older: str, newer: str) -> bool:
        return self.answer("merge-base", "--is-ancestor", older, newer) == 0

    def filters(self) -> set[str]:
        """Return the names of the filters that the configuration has, and that no call runs."""
        if self._drivers is None:
            self._drivers = self._find_drivers()
        return {key.removeprefix("filter.").removesuffix(".clean") for key in self._drivers if key.endswith(".clean")}

    def _find_drivers(self) -> dict[str, str]:
        """Return the settings that turn off each filter, merge driver and hook of the configuration, by its name: git
        knows no option for all of them. The user's own are turned off, too."""
        listed = self._call(("config", "--list", "--name-only", "-z"), b"", (0,), {}, {})[1]
        found: dict[str, str] = {}
        for key in set(os.fsdecode(listed).split("\0")):
            match = _NAMED.fullmatch(key)
            if match is not None and match[1] == "filter":  # guard: git-filters
                found |= {f"filter.{match[2]}.{name}": "" for name in ("clean", "smudge", "process")}
                found[f"filter.{match[2]}.required"] = "false"
            elif match is not None and match[3] == "driver":  # guard: git-merge-drivers
                found[f"merge.{match[2]}.driver"] = _MERGE
            elif match is not None and match[1] == "hook":  # guard: git-hook-settings
                found[f"hook.{match[2]}.enabled"] = "false"
        return found

    def _call(
        self,
        arguments: Iterable[str],
        stdin: bytes,
        codes: Iterable[int],
        drivers: Mapping[str, str],
        variables: Mapping[str, str],
    ) -> tuple[int, bytes]:
        place = {"GIT_DIR": self.git_dir}
        if self.work_tree is not None:
            place["GIT_WORK_TREE"] = self.work_tree
        folder = self.work_tree or self.git_dir
        code, out, error = call(
            arguments,
            folder,
            stdin=stdin,
            settings={**self._durable, **drivers},
            variables={**place, **variables},
            started=self.started,
            inherited=self.inherited,
        )
        if code not in codes:
            raise GitFailed(first_error(error) or f"git {next(iter(arguments))} ended with exit code {code}")
        return code, out


def call(
    arguments: Iterable[str],
    folder: str,
    *,
    stdin: bytes = b"",
    settings: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    started: Callable[[Process], None] | None = None,
    inherited: tuple[int, ...] = (),
) -> tuple[int, bytes, bytes]:
    """Run git in a folder; return its exit code, its output and its messages. Ctrl-C does not reach it."""
    given = obeyed_environment().items()
    environment = {name: value for name, value in given if not name.startswith("GIT_") or name in _KEPT}
    environment |= _VARIABLES
    fixed = {**_FIXED, **(settings or {})}
    environment["GIT_CONFIG_COUNT"] = str(len(fixed))
    for number, (key, value) in enumerate(fixed.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    try:
        with subprocess.Popen(
            ["git", *arguments],
            cwd=folder,
            env=environment | dict(variables or {}),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=inherited,
        ) as process:
            if started is not None:
                started(process)
            try:
                out, error = process.communicate(stdin or None)
            except BaseException:
                process.terminate()  # git removes what it has begun
                raise
    except FileNotFoundError:
        if not os.path.isdir(folder):
            raise GitFailed(f"{folder} is gone") from None
        raise GitUnusable("worktrees need the program 'git', which is not on your PATH") from None
    except PermissionError:
        if (closed := why_closed(folder)) is None:
            raise
        raise GitFailed(closed) from None
    return process.returncode, out, error


def first_error(messages: bytes) -> str:
    """Return the first error in git's messages as one line; "" without one."""
    text = messages.decode(errors="replace")
    if (command := _EXCEPTION.search(text)) is not None:
        path = shlex.split(command[1])[-1]
        whose = user_name(os.stat(path).st_uid) if os.path.exists(path) else "another user"
        return f"the repository {path} belongs to {whose}; if you trust it, let git use it: {command[1]}"
    found = _ERROR.search(text)
    return one_line(found[1] if found is not None else text.strip(), 300)


def refuse_foreign_repository(repository: Repository) -> None:
    """Raise InvalidValue for a repository in which the user may not write: git keeps the branch of a worktree there."""
    if not os.access(repository.common, os.W_OK):
        owner = user_name(os.stat(repository.common).st_uid)
        raise _unfit(
            f"{repository.common} belongs to {owner} and you may not write there, where git keeps the branch of a "
            f"worktree; make a clone of your own: git clone {shlex.quote(repository.top)}"
        )


class Repository:
    """A repository with a work tree: where it is, and the commit that a worktree begins with."""

    def __init__(self, top: str, git_dir: str, common: str, base: str) -> None:
        self.top = top  # of the work tree
        self.git_dir = git_dir  # of this work tree
        self.common = common  # the same for all its work trees
        self.base = base

    def at(self, commit: str) -> Repository:
        """Return the same repository with another commit."""
        return Repository(self.top, self.git_dir, self.common, commit)

    def git(self, started: Callable[[Process], None] | None = None, *, durable: bool = True) -> Git:
        return Git(self.git_dir, self.top, started, durable=durable)

    def names_its_work_tree(self) -> bool:
        """Return whether the folder of a linked work tree names this work tree, as git has written it there."""
        try:
            with open(os.path.join(self.git_dir, "gitdir"), "rb") as file:
                named = os.fsdecode(file.read(8192)).strip()
        except OSError:
            return False
        return os.path.realpath(os.path.join(self.git_dir, named)) == os.path.join(self.top, ".git")


_BLOCKER = "refs/heads/baton"


def _unfit(why: str) -> InvalidValue:
    error = InvalidValue("worktree", why)
    error.args = (f"--worktree: {why}",)
    return error


def find_repository(folder: str, base: str = "HEAD") -> Repository:
    """Return the repository that a folder lies in, with the commit of `base`. InvalidValue if worktrees of it cannot be
    made, or if there is no such commit."""
    if not base or base.startswith("-"):  # guard: base-is-no-option
        raise InvalidValue("base", f"{one_line(base, 80)!r} is no commit, branch, tag or job")
    asked = ("--is-bare-repository", "--show-toplevel", "--absolute-git-dir", "--git-common-dir", f"{base}^{{commit}}")
    glob = "--glob=" + _BLOCKER[:-1] + "[n]"  # with a pattern, it is no error if there is none
    code, out, messages = call(("rev-parse", *asked, "--symbolic-full-name", glob), folder)
    lines = os.fsdecode(out).splitlines()
    if lines[:1] == ["true"]:
        raise _unfit(f"{folder} is a bare repository: a job needs its work tree; clone it first")
    if len(lines) < 4:
        why = first_error(messages)
        raise _unfit(f"{folder} is not in a git repository" if "not a git" in why else why)
    top, git_dir, common = lines[1], lines[2], os.path.realpath(os.path.join(folder, lines[3]))
    inside = os.path.realpath(folder)
    if inside != top and not inside.startswith(top.rstrip("/") + "/"):  # guard: foreign-work-tree
        raise _unfit(f"{folder} is not in the work tree of its repository ({top}): see core.worktree")
    if _BLOCKER in lines:
        raise _unfit(
            f"{top} has a branch named 'baton', which blocks branches such as baton/JOB-1; rename it: "
            "git branch -m baton OTHER-NAME",
        )
    found = lines[4] if code == 0 else ""
    if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", found) is None:
        if base == "HEAD":
            raise _unfit(f"{top} has no commit yet; make one first: git commit")
        raise InvalidValue("base", f"{one_line(base, 80)!r} is no commit of {top}")
    return Repository(top, git_dir, common, found)


def known_repository(top: str, base: str) -> Repository:
    """Return the repository with this work tree, which `find_repository` has found before, and a commit of it. Start no
    process if the work tree is a usual one."""
    git_dir = os.path.join(top, ".git")
    if os.path.isfile(os.path.join(git_dir, "HEAD")) and not os.path.islink(git_dir):
        return Repository(top, git_dir, git_dir, base)
    return find_repository(top, base)


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
