"""Read and write the text of a rules file: `[[rule]]` and `[[answerer]]` in TOML. The caller reads and writes the file.

A file with anything wrong in it has no rules at all: what its user meant is not known."""

from __future__ import annotations

import json
import re

from baton.core import fields
from baton.core.rules import ACTIVE, ALLOW, ANY, DECISIONS, Answerer, Rule, RuleBook, plain_words
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LONGEST_FILE = 1 << 20
_MOST_RULES = 1000
# Further words of these programs are a command: `*` would allow every program.
_RUN_OTHERS = frozenset({
    "sh", "bash", "dash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox", "env", "sudo", "doas", "su", "xargs",
    "parallel", "eval", "exec", "command", "builtin", "source", ".", "nohup", "nice", "ionice", "time", "timeout",
    "setsid", "stdbuf", "watch", "ssh", "script", "chroot", "unshare", "nsenter", "runuser", "setpriv", "flock",
    "strace", "ltrace", "gdb", "tmux", "screen", "npx", "uvx",
})  # fmt: skip


def parse_rules(text: str) -> RuleBook:
    """Return the rules in a file; raise ValueError, with the reason, unless every part of it is valid."""
    import tomllib

    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"is not valid TOML: {error}") from None
    for name in content:
        if name not in ("rule", "answerer"):
            raise ValueError(f"has an unknown part {name[:40]!r}; it may have [[rule]] and [[answerer]]")
    return RuleBook(
        rules=tuple(_tables(content, "rule", read_rule)),
        answerers=tuple(_tables(content, "answerer", _read_answerer)),
    )


def read_rule(table: Mapping[str, Any]) -> Rule:
    """Return the rule that these fields describe; raise ValueError if it is not valid, or could never match."""
    _refuse_unknown(table, Rule.fields())
    decision = table.get("decision")
    if decision not in DECISIONS:
        raise ValueError(f"decision must be deny, ask or allow, not {str(decision)[:40]!r}")
    texts = {name: _line(name, table[name]) for name in ("agent", "tool", "path") if table.get(name) is not None}
    command = None if table.get("command") is None else _read_command(table["command"])
    if command is not None and "path" in texts:
        raise ValueError("command and path exclude each other: write two rules")
    if decision == ALLOW:
        _check_allow(texts, command)
    expires = table.get("expires")
    return Rule(decision=decision, command=command, expires=None if expires is None else _read_time(expires), **texts)


def format_rule(rule: Rule) -> str:
    """Return the rule as a table of the rules file."""
    lines = ["[[rule]]"]
    for field, content in rule.as_dict().items():
        if content is not None:
            plain = list(content) if isinstance(content, tuple) else content
            lines.append(f"{field} = {json.dumps(plain, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def without_rule(text: str, number: int) -> str:
    """Return the text of a rules file without the rule of this number, from 1 on; everything else stays as it is. Raise
    ValueError if the file is not written with `[[rule]]` on a line of its own."""
    book = parse_rules(text)
    lines = text.splitlines(keepends=True)
    starts = [place for place, line in enumerate(lines) if re.match(r"\s*\[", line)]
    own = [place for place in starts if re.match(r"\s*\[\[\s*rule\s*\]\]\s*(#.*)?$", lines[place])]
    start = own[number - 1] if len(own) == len(book.rules) else 0
    end = next((place for place in starts if place > start), len(lines))
    while end < len(lines) and re.match(r"\s*(#.*)?$", lines[end - 1]):
        end -= 1  # a comment above the next table belongs to that one
    kept = "".join(lines[:start] + lines[end:]).lstrip("\n")
    # Not if a line of a long text looks like a table, or the rules are written in another way.
    if not own or not _is(kept, book.replace(rules=book.rules[: number - 1] + book.rules[number:])):
        raise ValueError("cannot be changed by a command; edit it yourself")
    return kept


def _is(text: str, book: RuleBook) -> bool:
    try:
        return parse_rules(text) == book
    except ValueError:
        return False


def _tables(content: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise ValueError(f"must have each {name} as [[{name}]]")
    if len(tables) > _MOST_RULES:
        raise ValueError(f"has {len(tables)} of [[{name}]], at most {_MOST_RULES} are allowed")
    found = []
    for number, table in enumerate(tables, 1):
        try:
            found.append(read(table))
        except ValueError as error:
            raise ValueError(f"has a wrong [[{name}]] (number {number}): {error}") from None
    return found


def _read_answerer(table: Mapping[str, Any]) -> Answerer:
    _refuse_unknown(table, Answerer.fields())
    if "agent" not in table:
        raise ValueError("agent is missing")
    return Answerer(**{name: _line(name, value) for name, value in table.items()})


def _check_allow(texts: Mapping[str, str], command: tuple[str, ...] | None) -> None:
    if command is None and "path" not in texts and "tool" not in texts:
        raise ValueError("an allow rule needs tool, command or path")
    if command is not None:
        fixed = command[:-1] if command[-1] == ANY else command
        if plain_words(fixed) is None:
            shown = " ".join(sorted(ACTIVE))
            raise ValueError(f"an allow rule matches no command with `=` before its program or with any of {shown}")
        if fixed != command and fixed[0].rpartition("/")[2] in _RUN_OTHERS:  # guard: rule-runs-others
            raise ValueError(f"{fixed[0]} runs other programs: with * it would allow every program")
    place = texts.get("path", "")
    if place.startswith(("/", "~")) or ".." in place.split("/") or any(each in place for each in "*?["):
        raise ValueError("the path of an allow rule is a file or a folder in the work folder, without patterns")


def _read_command(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError('command must be a list of words, such as ["git", "status"]')
    words = tuple(_line("command", word) for word in value)
    if ANY in (words[0], *words[:-1]):
        raise ValueError("command may have * only as its last word, after a program")
    return words


def _read_time(value: Any) -> str:
    text = value if isinstance(value, str) else value.isoformat() if hasattr(value, "isoformat") else ""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        text += "T00:00:00Z"
    try:
        return str(fields.time(text))
    except ValueError as error:
        raise ValueError(f"expires {error}") from None


def _line(name: str, value: Any) -> str:
    try:
        return fields.line(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in table:
        if name not in known:
            raise ValueError(f"there is no {name[:40]!r}; there are {', '.join(known)}")
