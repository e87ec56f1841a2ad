"""Read and write the text of a rules file: `[[rule]]` and `[[answerer]]` in TOML. The caller reads and writes the file.

A file with anything wrong in it has no rules at all: what its user meant is not known. A rule of an earlier release
that can match nothing now is not wrong: it stays without effect, and `marks` says so."""

from __future__ import annotations

import json
import re

from baton.core import fields
from baton.core.fields import one_line
from baton.core.program_runners import runs_others
from baton.core.rules import (
    ACTIVE,
    ALLOW,
    ANY,
    DECISIONS,
    PLAIN,
    STARS,
    Answerer,
    Rule,
    RuleBook,
    out_of_bounds,
    plain_words,
)
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LONGEST_FILE = 1 << 20
_MOST_RULES = 1000
_RELEASE = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}", re.ASCII)
_LESS = "allows less than in 0.2.0:"
_NOTHING = "no line does; baton asks you"
RELEASE = "0.3.0"  # since this one a rule means what it does now


def parse_rules(text: str) -> RuleBook:
    """Return the rules in a file; raise ValueError, with the reason, unless every part of it is valid."""
    import tomllib

    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"is not valid TOML: {error}") from None
    for name in content:
        if name not in ("rule", "answerer", "release"):
            raise ValueError(f"has an unknown part {name[:40]!r}; it may have release, [[rule]] and [[answerer]]")
    release = content.get("release")
    if release is not None and (not isinstance(release, str) or _RELEASE.fullmatch(release) is None):
        raise ValueError(f'must have the release of baton for which it was written as release = "{RELEASE}"')
    return RuleBook(
        rules=tuple(_tables(content, "rule", _read_rule)),
        answerers=tuple(_tables(content, "answerer", _read_answerer)),
        release=release,
    )


def read_rule(table: Mapping[str, Any]) -> Rule:
    """Return the rule that these fields describe; raise ValueError if it is not valid, or could never match."""
    rule = _read_rule(table)
    if (void := _void(rule)) is not None:
        raise ValueError(f"it {void[0]}")
    return rule


def _read_rule(table: Mapping[str, Any]) -> Rule:
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


class Mark(Value):
    """Why the rule of this number allows less than in an earlier release, and what restores it."""

    number: int
    why: str
    restore: str

    def describe(self) -> str:
        """Return the mark as one line."""
        return one_line(f"{self.why}; to restore it: {self.restore}", 500)


def marks(book: RuleBook) -> list[Mark]:
    """Return a mark for each rule that could match nothing and, unless the file was written for this release, for each
    that allows less than in 0.2.0."""
    is_new = book.release is not None and _version(book.release) >= _version(RELEASE)
    found = [(number, _void(rule) or (None if is_new else _less(rule))) for number, rule in enumerate(book.rules, 1)]
    return [Mark(number=number, why=each[0], restore=each[1]) for number, each in found if each is not None]


def _void(rule: Rule) -> tuple[str, str] | None:
    """Return why an allow rule matches nothing, and what to write instead; None if it may match."""
    if rule.decision != ALLOW:
        return None
    if rule.command is not None and rule.command[-1] in STARS and runs_others(rule.command[:-1]):
        fixed = rule.command[:-1]
        why = f"allows nothing: {' '.join(fixed)} runs other programs, so {rule.command[-1]} would allow every program"
        return why, f"for each command, {_words([*fixed, 'PROGRAM', 'WORD'])}"
    if rule.path is not None and (part := out_of_bounds(rule.path)):
        return f"allows nothing: {part} may change what other programs do, and no rule allows that", _NOTHING
    return None


def _less(rule: Rule) -> tuple[str, str] | None:
    """Return what a rule of 0.2.0 no longer allows, and what restores it."""
    if rule.decision != ALLOW:
        return None
    if rule.command is not None:
        if rule.command[-1] != PLAIN:
            return None
        why = f"{_LESS} no that begin with `-` or set a variable (NAME=value)"
        return why, _words([*rule.command[:-1], ANY])
    if rule.path is not None:
        return (
            f"{_LESS} no files such as .github, .vscode, .env and HEAD, and no paths that tools may read in two ways",
            _NOTHING,
        )
    return f"{_LESS} no calls with an argument that baton does not know", _NOTHING


def _words(words: Sequence[str]) -> str:
    return f"command = {json.dumps(list(words), ensure_ascii=False)}"


def _version(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


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
        fixed = command[:-1] if command[-1] in STARS else command
        if plain_words(fixed) is None:
            shown = " ".join(sorted(ACTIVE))
            raise ValueError(f"an allow rule matches no command with `=` before its program or with any of {shown}")
    place = texts.get("path", "")
    if place.startswith(("/", "~")) or ".." in place.split("/") or any(each in place for each in "*?["):
        raise ValueError("the path of an allow rule is a file or a folder in the work folder, without patterns")


def _read_command(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError('command must be a list of words, such as ["git", "status"]')
    words = tuple(_line("command", word) for word in value)
    if not {words[0], *words[:-1]}.isdisjoint(STARS):
        raise ValueError("command may have * or ** only as its last word, after a program")
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
