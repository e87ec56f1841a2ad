"""Decide by the user's rules what an agent may do: deny, ask or allow. The caller reads the file and resolves paths.

An allow rule errs on the side of asking, a deny or an ask rule on the side of matching:

    allow    the command is exactly the words of the rule; if the last word of the rule is `*`, further words may follow
    deny,    the words of the rule occur in this order anywhere in the command, also in quotes, after another program
    ask      (`sudo`, `env`, `xargs`), behind `;` or `|`, and with a folder before the program
"""

from __future__ import annotations

import re

from baton.core.clock import parse_time
from baton.core.fields import one_line
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DENY, ASK, ALLOW = DECISIONS = ("deny", "ask", "allow")  # the first that matches wins
ANY = "*"
# A command with one of these may run more, or other words, than it shows. `^` is for other shells than bash.
ACTIVE = frozenset(";|&<>$(){}*?[]~\\#!`^")
_LONGEST_COMMAND = 4096
# Arguments of tools that name a command, the folder of a command, or files.
_COMMANDS = ("command", "cmd", "commands", "script")
_FOLDERS = ("cwd", "workdir", "directory", "dir_path")
_FILES = (
    "file_path", "notebook_path", "path", "paths", "file", "files", "filename", "absolute_path", "filePath", "dir_path",
    "directory",
)  # fmt: skip
_PATTERNS = ("pattern", "glob")
_HARMLESS = ("description", "timeout", "run_in_background")
# Text for a program that runs, and a command that waits for a person: no rule for tools or commands allows them.
_FOR_PEOPLE = ("typed", "checkpoint")
# In the work folder: what changes what git, baton or an agent does later.
_OUT_OF_BOUNDS = frozenset({
    ".git", ".gitmodules", ".hermes", ".mam", ".claude", ".claude.json", "claude.md", "claude.local.md", ".mcp.json",
    ".codex", "agents.md", "agents.override.md", ".gemini", "gemini.md", ".qwen", "qwen.md", ".opencode",
    "opencode.json", "opencode.jsonc", ".copilot", ".agents", ".acp", ".cursor", ".cursorrules",
})  # fmt: skip


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

            parts.append(f"command {' '.join(word if word == ANY else quote(word) for word in self.command)}")
        if self.path is not None:
            parts.append(f"path {self.path}")
        return one_line(f"{self.decision} {', '.join(parts) or 'everything'}", 300)


class Answerer(Value):
    """An agent that may answer requests of other jobs; with `label`, only while its own job has this label."""

    agent: str
    label: str | None = None


class RuleBook(Value):
    """The content of a rules file."""

    rules: tuple[Rule, ...] = ()
    answerers: tuple[Answerer, ...] = ()


class Call(Value):
    """What rules decide about. `command` is a line for a shell, or words for a program. `paths` has, for each file that
    the call names, its real path and its path as it is written; both absolute. `workdir` and `reserved`, the places
    that no rule allows, are real paths. `odd`: an argument may change what the call does in a way that rules do not
    know."""

    agent: str
    tool: str
    exact: bool = True
    command: str | tuple[str, ...] | None = None
    paths: tuple[tuple[str, str], ...] = ()
    workdir: str = "/"
    reserved: tuple[str, ...] = ()
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
    return all(_may_be_allowed(real, call) and _lies_in(real, rule, call) for real, _ in call.paths)


def _are_words_of(rule: Sequence[str], words: Sequence[str] | None) -> bool:
    if words is None:
        return False
    if rule[-1] == ANY:
        return tuple(words[: len(rule) - 1]) == tuple(rule[:-1])
    return tuple(words) == tuple(rule)  # guard: rule-exact-words


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
        return call.command is not None and _occur_in(rule.command, call.command)
    if rule.path is not None:
        return any(_lies_in(path, rule, call) for pair in call.paths for path in pair)
    return True


def _occur_in(rule: Sequence[str], command: str | Sequence[str]) -> bool:
    """Return whether the words of a rule occur in this order in a command, however it is quoted or combined."""
    line = command if isinstance(command, str) else " ".join(command)
    words = iter(re.split(r"[\s;|&<>$(){}`,=]+", re.sub(r"\\\n|[\"'\\]", "", line).casefold()))
    wanted = [word.casefold() for word in rule if word != ANY]
    return all(any(each in (word, word.rpartition("/")[2]) for word in words) for each in wanted)


def _lies_in(path: str, rule: Rule, call: Call) -> bool:
    """Return whether a path is what the rule names, or below it."""
    assert rule.path is not None
    place = _absolute(rule.path, call.workdir, call.user_home)
    if rule.decision != ALLOW:
        path, place = path.casefold(), place.casefold()
    return path == place or path.startswith(place.rstrip("/") + "/")


def _may_be_allowed(path: str, call: Call) -> bool:
    """Return whether an allow rule may match this real path: inside the work folder, and nothing that changes what git,
    baton or an agent does later."""
    folder = call.workdir.rstrip("/") + "/"
    if not path.isprintable() or not f"{path}/".startswith(folder):  # guard: rule-outside
        return False
    is_reserved = any(f"{path}/".startswith(f"{each}/") or f"{each}/".startswith(f"{path}/") for each in call.reserved)
    if is_reserved:  # guard: rule-reserved
        return False
    parts = {part.rstrip(". ").casefold() for part in path[len(folder) :].split("/")}
    return parts.isdisjoint(_OUT_OF_BOUNDS) and "/.git/" not in folder  # guard: rule-out-of-bounds


def _absolute(path: str, workdir: str, user_home: str) -> str:
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


# -- calls -----------------------------------------------------------------------------------------------------------


def read_call(
    agent: str,
    tool: str,
    arguments: Any,
    *,
    exact: bool,
    workdir: str | None,
    resolve: Callable[[str], str],
    user_home: str = "",
    reserved: Sequence[str] = (),
) -> Call:
    """Return what rules decide about, from the arguments of a tool call. `resolve` returns the real path of an absolute
    path."""
    given: Mapping[str, Any] = arguments if isinstance(arguments, dict) else {}
    folder = resolve(workdir) if workdir else "/"
    commands = [_command(value) for name, value in given.items() if name in _COMMANDS]
    command = commands[0] if commands else None
    paths: list[tuple[str, str]] = []
    odd = workdir is None or not isinstance(arguments, dict) or len(commands) > 1 or (commands == [None])
    for name, value in given.items():
        odd = odd or name in _FOR_PEOPLE  # guard: rule-for-people
        if command is not None:
            is_here = name in _FOLDERS and _is_text(value) and resolve(_absolute(value, folder, "")) == folder
            odd = odd or not (is_here or name in _COMMANDS or name in _HARMLESS)
        if name in _FILES and value is not None and (command is None or name not in _FOLDERS):
            texts = value if isinstance(value, list) else [value]
            # A name that is no path is none to any rule; a tool may expand `~`, or not.
            odd = odd or not all(_is_text(each) and not each.startswith("~") for each in texts)
            written = [_absolute(each, folder, user_home) for each in texts if _is_text(each)]
            joined = [each if each.startswith("/") else f"{folder}/{each}" for each in texts if _is_text(each)]
            paths += [(resolve(each), path) for each, path in zip(joined, written, strict=True)]
        if name in _PATTERNS and command is None:  # it may name files elsewhere
            odd = odd or not _is_text(value) or value[:1] in ("/", "~") or ".." in value
    return Call(
        agent=agent, tool=tool, exact=exact, command=command, paths=tuple(paths), workdir=folder,
        reserved=tuple(reserved), user_home=user_home, odd=odd,
    )  # fmt: skip


def _command(value: object) -> str | tuple[str, ...] | None:
    if isinstance(value, str):
        return value
    return tuple(value) if isinstance(value, list) and value and all(isinstance(each, str) for each in value) else None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value
