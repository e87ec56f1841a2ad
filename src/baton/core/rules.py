"""Decide by the user's rules what an agent may do: deny, ask or allow. The caller reads the file and resolves paths.

An allow rule errs on the side of asking, a deny or an ask rule on the side of matching:

    allow    the command is exactly the words of the rule. If the last word of the rule is `*`, further words may follow
             that are no options and no variables; if it is `**`, any further words.
    deny,    the words of the rule occur in this order anywhere in the command, also in quotes, after another program
    ask      (`sudo`, `env`, `xargs`), behind `;` or `|`, and with a folder before the program
"""

from __future__ import annotations

import re

from baton.core.clock import parse_time
from baton.core.fields import one_line
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DENY, ASK, ALLOW = DECISIONS = ("deny", "ask", "allow")  # the first that matches wins
PLAIN, ANY = STARS = ("*", "**")  # the last word of a rule: plain words, or any, may follow
# A command with one of these may run more, or other words, than it shows. `^` is for other shells than bash.
ACTIVE = frozenset(";|&<>$(){}*?[]~\\#!`^")
_LONGEST_COMMAND = 4096
# Names of files and folders that change, by being there, what git, baton, an agent, an editor, a shell, a package
# manager or a service that builds the repository does later.
_OUT_OF_BOUNDS = frozenset({
    ".git", ".gitmodules", ".gitattributes", ".gitconfig", ".hg", ".hgrc", ".jj", ".svn", ".husky",
    ".pre-commit-config.yaml", ".pre-commit-hooks.yaml", "lefthook.yml", "lefthook.yaml", ".lefthook.yml",
    ".lefthook.yaml", ".lefthook", ".hermes", ".mam", ".claude", ".claude.json", ".claude-plugin", "claude.md",
    "claude.local.md", ".mcp.json", ".lsp.json", ".codex", ".codex-plugin", "agents.md", "agents.override.md",
    "agent.md", ".gemini", "gemini.md", "gemini-extension.json", ".qwen", "qwen.md", "qwen-extension.json",
    ".opencode", "opencode.json", "opencode.jsonc", ".copilot", ".agents", ".acp", ".cursor", ".cursorrules",
    ".windsurf", ".windsurfrules", ".clinerules", ".roo", ".roomodes", ".continue", ".goose", ".goosehints", ".kiro",
    ".junie", ".amp", ".crush", ".github", ".gitlab", ".gitlab-ci.yml", ".gitea", ".forgejo", ".circleci",
    ".travis.yml", ".buildkite", ".drone.yml", ".woodpecker", ".woodpecker.yml", ".cirrus.yml", "azure-pipelines.yml",
    "bitbucket-pipelines.yml", "jenkinsfile", ".vscode", ".idea", ".fleet", ".zed", ".devcontainer",
    ".devcontainer.json", ".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".dir-locals.el", ".gdbinit", ".lldbinit",
    ".pdbrc", ".direnv", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile",
    ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".inputrc", ".config", ".local", ".ssh", ".gnupg", ".netrc",
    ".npmrc", ".yarnrc", ".yarnrc.yml", ".yarn", ".pnpmfile.cjs", ".pnpmfile.mjs", "bunfig.toml", ".bundle", ".cargo",
    ".mise.toml", "mise.toml", ".mise", ".tool-versions",
})  # fmt: skip
_OUT_OF_BOUNDS_SO = (".env", ".huskyrc", ".lintstagedrc", ".aider")  # names that begin so, such as .env.local, .envrc


class Rule(Value):
    """One rule of the user. What is None matches every call, but see `decide`."""

    decision: str
    agent: str | None = None
    tool: str | None = None
    command: tuple[str, ...] | None = None
    path: str | None = None
    expires: str | None = None

    def describe(self) -> str:
        """Return the rule as one line."""
        parts = [f"{name} {value}" for name in ("agent", "tool") if (value := getattr(self, name)) is not None]
        if self.command is not None:
            from shlex import quote

            parts.append(f"command {' '.join(word if word in STARS else quote(word) for word in self.command)}")
        if self.path is not None:
            parts.append(f"path {self.path}")
        return one_line(f"{self.decision} {', '.join(parts) or 'everything'}", 300)


class Answerer(Value):
    """An agent that may answer requests of other jobs; with `label`, only while its own job has this label."""

    agent: str
    label: str | None = None


class RuleBook(Value):
    """The content of a rules file. `release` is the release of baton that its user wrote, or has checked, it for."""

    rules: tuple[Rule, ...] = ()
    answerers: tuple[Answerer, ...] = ()
    release: str | None = None


class Bound(Value):
    """Within which folder the agent works that started a job: `within`, None if that is not known. The job works in
    `folder`, which stands for the folder `asked` that the agent chose. All are real paths."""

    folder: str
    asked: str
    within: str | None


class Call(Value):
    """What rules decide about. `command` is a line for a shell, or words for a program; `more_commands` are others in
    the call. `paths` has, for each file that the call names, every place that a tool may take it for; `hints` are
    places that another argument may mean. `searches`: without a path, it looks through the work folder. `workdir` and
    `reserved`, the places that no rule allows, are real paths. `bounds` are those of the job, of the job whose agent
    started it, and so on. `odd`: an argument may change what the call does in a way that rules do not know."""

    agent: str
    tool: str
    exact: bool = True
    command: str | tuple[str, ...] | None = None
    more_commands: tuple[str | tuple[str, ...], ...] = ()
    paths: tuple[tuple[str, ...], ...] = ()
    hints: tuple[str, ...] = ()
    searches: bool = False
    workdir: str = "/"
    reserved: tuple[str, ...] = ()
    bounds: tuple[Bound, ...] = ()
    user_home: str = ""
    odd: bool = False


# -- deciding --------------------------------------------------------------------------------------------------------


def decide(rules: Sequence[Rule], call: Call, *, now_ns: int) -> Rule | None:
    """Return the rule that decides about a call: deny beats ask beats allow. None: no rule matches, so it is asked.

    An allow rule without a command matches no call with a command, and one without a path no call that names a file."""
    valid = [rule for rule in rules if rule.expires is None or now_ns < parse_time(rule.expires)]
    for decision in DECISIONS:
        matches = _is_allowed if decision == ALLOW else _is_concerned
        found = next((rule for rule in valid if rule.decision == decision and matches(rule, call)), None)
        is_open = found is not None and decision == ALLOW and any(_lies_below(rule, call) for rule in valid)
        if is_open:  # guard: rule-below-folder
            return None
        if found is not None:
            return found
    return None


def _is_allowed(rule: Rule, call: Call) -> bool:
    if not call.exact or call.odd:  # guard: rule-inexact
        return False
    if rule.agent not in (None, call.agent) or rule.tool not in (None, call.tool):
        return False
    is_wider = (rule.command is None) is not (call.command is None) or (rule.path is None) is bool(call.paths)
    if is_wider:  # guard: rule-wider-call
        return False
    if rule.command is not None and call.command is not None:
        return _are_words_of(rule.command, plain_words(call.command))
    each = [place for places in call.paths for place in places]
    return all(
        _may_be_allowed(place, call) and _is_bound(place, call) and _lies_in(place, rule, call) for place in each
    )


def _are_words_of(rule: Sequence[str], words: Sequence[str] | None) -> bool:
    if words is None:
        return False
    if rule[-1] not in STARS:
        return tuple(words) == tuple(rule)  # guard: rule-exact-words
    from baton.core.program_runners import runs_others

    fixed, further = tuple(rule[:-1]), words[len(rule) - 1 :]
    if rule[-1] == PLAIN and not all(map(_is_plain, further)):  # guard: rule-plain-words
        return False
    return tuple(words[: len(fixed)]) == fixed and not runs_others(fixed)  # guard: rule-runs-others


def _is_plain(word: str) -> bool:
    """Return whether a word is neither an option nor a variable, which is one to `make`."""
    return not word.startswith("-") and re.match(r"[^\W\d]\w*[+:?]*=", word) is None


def plain_words(command: str | Sequence[str]) -> tuple[str, ...] | None:
    """Return the words of a command that every shell reads in the same way, and that starts one program; else None."""
    line = command if isinstance(command, str) else " ".join(command)
    if len(line) > _LONGEST_COMMAND or not line.isprintable() or not ACTIVE.isdisjoint(line):  # guard: rule-characters
        return None
    words = list(command)
    if isinstance(command, str):
        from shlex import split

        try:
            words = split(command)
        except ValueError:
            return None  # a quote is not closed
    # An assignment before the program, or a word that zsh replaces.
    if not words or "=" in words[0] or any(word.startswith("=") for word in words):  # guard: rule-assignment
        return None
    return tuple(words)


def _is_concerned(rule: Rule, call: Call) -> bool:
    if rule.agent not in (None, call.agent) or (rule.tool is not None and rule.tool.lower() != call.tool.lower()):
        return False
    if rule.command is not None:
        commands = (*([] if call.command is None else [call.command]), *call.more_commands)
        return any(_occur_in(rule.command, each) for each in commands)
    if rule.path is not None:
        return any(_lies_in(path, rule, call) for places in (*call.paths, call.hints) for path in places)
    return True


def _lies_below(rule: Rule, call: Call) -> bool:
    """Return whether a deny or an ask rule is about a part of what the call names: of a folder that it searches."""
    if rule.decision == ALLOW or rule.path is None:
        return False
    if rule.agent not in (None, call.agent) or (rule.tool is not None and rule.tool.lower() != call.tool.lower()):
        return False
    named = [place for places in call.paths for place in places] + ([call.workdir] if call.searches else [])
    for seen, folder in [view for place in named for view in _views(place, call)]:
        if _is_in(absolute(rule.path, folder, call.user_home).casefold(), seen.casefold()):
            return True
    return False


def _occur_in(rule: Sequence[str], command: str | Sequence[str]) -> bool:
    """Return whether the words of a rule occur in this order in a command, however it is quoted or combined."""
    line = command if isinstance(command, str) else " ".join(command)
    words = iter(re.split(r"[\s;|&<>$(){}`,=]+", re.sub(r"\\\n|[\"'\\]", "", line).casefold()))
    wanted = [word.casefold() for word in rule if word not in STARS]
    return all(any(each in (word, word.rpartition("/")[2]) for word in words) for each in wanted)


def _lies_in(path: str, rule: Rule, call: Call) -> bool:
    """Return whether a path is what the rule names, or below it. For a deny or an ask rule, a relative path counts from
    the work folder of each job above, too: an agent may start a job in another folder."""
    assert rule.path is not None
    if rule.decision == ALLOW:
        return _is_in(path, absolute(rule.path, call.workdir, call.user_home))
    for seen, folder in _views(path, call):
        if _is_in(seen.casefold(), absolute(rule.path, folder, call.user_home).casefold()):
            return True
    return False


def _views(path: str, call: Call) -> Iterator[tuple[str, str]]:
    """Yield a path as it is, and as it would be without the worktrees of the jobs above, with each of their folders."""
    yield path, call.workdir
    for bound in call.bounds:
        path = _as_asked(path, bound)
        folders = [folder for folder in (bound.asked, bound.within) if folder is not None]
        yield from ((path, folder) for folder in folders)  # guard: rule-denied-above


def _as_asked(path: str, bound: Bound) -> str:
    """Return the path in the folder that the agent asked for, of a path in the worktree that the job got."""
    if bound.folder == bound.asked or not _is_in(path, bound.folder):
        return path
    return bound.asked.rstrip("/") + path[len(bound.folder) :] or "/"


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def _is_bound(path: str, call: Call) -> bool:
    """Return whether a path is within the work folder of every job above: an agent chooses the folder of a job that it
    starts, but not what the user's rules allow there."""
    for bound in call.bounds:
        path = _as_asked(path, bound)
        if bound.within is None or not _is_in(path, bound.within):  # guard: rule-within-parent
            return False
    return True


def _may_be_allowed(path: str, call: Call) -> bool:
    """Return whether an allow rule may match this path: inside the work folder, and nothing that changes what git,
    baton, an agent, or another program does later."""
    if not path.isprintable() or not _is_in(path, call.workdir):  # guard: rule-outside
        return False
    if any(_is_in(path, each) or _is_in(each, path) for each in call.reserved):  # guard: rule-reserved
        return False
    inside = path[len(call.workdir.rstrip("/")) :]
    return not out_of_bounds(inside) and "/.git/" not in f"{call.workdir}/"  # guard: rule-out-of-bounds


def out_of_bounds(path: str) -> str:
    """Return the part of a path in the work folder that no rule allows; "" without one."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for part in parts:
        name = part.rstrip(". ").casefold()
        if name in _OUT_OF_BOUNDS or name.startswith(_OUT_OF_BOUNDS_SO):
            return part
    # With `config`, `objects` and `refs` beside it, a file HEAD makes a folder a repository: git obeys that `config`.
    return parts[-1] if parts and parts[-1].rstrip(". ").casefold() == "head" else ""  # guard: rule-head-of-repository


def absolute(path: str, workdir: str, user_home: str) -> str:
    """Return a path as absolute, without `.`, `..` and empty parts."""
    if path == "~" or path.startswith("~/"):
        path = user_home + path[1:]
    parts: list[str] = []
    for part in (path if path.startswith("/") else f"{workdir}/{path}").split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
