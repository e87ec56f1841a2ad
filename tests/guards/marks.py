"""Find the marks `# guard: NAME` in the sources, and remove the guard that a mark names.

A mark stands on a line of the guarded statement, or alone on the line above it. One line may carry several names,
separated by commas. A rule says what becomes of the marked statement; rules never match exact source text where the
syntax tree is enough, so a guard may be reworded and moved to another module together with its mark.
"""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
from collections.abc import Callable
from typing import NamedTuple

_MARK = re.compile(r"#\s*guard:\s*([a-z0-9-]+(?:,\s*[a-z0-9-]+)*)")


class Mark(NamedTuple):
    name: str
    path: str
    line: int  # of the statement it guards, counted from 1


class Header(NamedTuple):
    """A statement without its body: `if x:` and not what follows, in offsets of the source text."""

    node: ast.stmt
    start: int
    end: int


Rule = Callable[[str, Header], str]
"""Return the source text without the guard."""


def find_marks(package: str) -> list[Mark]:
    """Return every mark below a folder."""
    found = []
    for folder, _, files in os.walk(package):
        for file in sorted(files):
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                with open(path, encoding="utf-8") as source:
                    text = source.read()
                if "guard:" in text:
                    found += [Mark(name, path, line) for name, line in _marks_in(text)]
    return found


def _marks_in(text: str) -> list[tuple[str, int]]:
    lines = text.splitlines()
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        match = _MARK.search(token.string)
        if match:
            line = token.start[0]
            while lines[line - 1].lstrip().startswith("#"):
                line += 1
            found += [(name.strip(), line) for name in match[1].split(",")]
    return found


def without_guard(text: str, line: int, rule: Rule) -> str:
    """Return the source text after the rule was applied to the statement at a line. Raises ValueError when the rule
    does not fit that statement, changes nothing or leaves text that does not compile."""
    changed = rule(text, _header_at(text, line))
    if changed == text:
        raise ValueError("the rule changes nothing")
    try:
        compile(changed, "<without the guard>", "exec")
    except SyntaxError as error:
        raise ValueError(f"the rule leaves source that does not compile: {error}") from None
    return changed


def _header_at(text: str, line: int) -> Header:
    starts = [0]
    for each in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(each))
    found = None
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        last = node.end_lineno or node.lineno
        if body:
            last = max(node.lineno, body[0].lineno - 1)
        if node.lineno <= line <= last and (found is None or node.lineno >= found[0].lineno):
            found = (node, last)
    if found is None:
        raise ValueError(f"no statement at line {line}")
    node, last = found
    return Header(node, starts[node.lineno - 1], starts[last])


def condition(value: str) -> Rule:
    """Replace the condition of the marked `if` or `elif`."""

    def rule(text: str, header: Header) -> str:
        if not isinstance(header.node, ast.If):
            raise ValueError("the marked line is not an if or elif")
        return _replace_header(text, header, f"{value}:\n", keep=r"\s*(?:el)?if\b")

    return rule


def drop(text: str, header: Header) -> str:
    """Replace the marked statement by `pass`, or the marked `with` by `if True`."""
    if isinstance(header.node, ast.With):
        return _replace_header(text, header, "if True:\n")
    if hasattr(header.node, "body"):
        raise ValueError("the marked statement has a body; replace its condition instead")
    return _replace_header(text, header, "pass\n")


def replace(pattern: str, by: str) -> Rule:
    """Replace what a regular expression matches within the marked statement, which it must match exactly once."""

    def rule(text: str, header: Header) -> str:
        there = text[header.start : header.end]
        if len(re.findall(pattern, there)) != 1:
            raise ValueError(f"{pattern!r} does not match the marked statement exactly once")
        return text[: header.start] + re.sub(pattern, by, there) + text[header.end :]

    return rule


def insert_before(statement: str) -> Rule:
    """Insert a statement before the marked one. Each attribute that it uses must occur elsewhere in the module."""

    def rule(text: str, header: Header) -> str:
        for name in re.findall(r"self\.\w+", statement):
            if not re.search(rf"{re.escape(name)}\b", text):
                raise ValueError(f"{name} does not occur in the module")
        indent = " " * header.node.col_offset
        return text[: header.start] + f"{indent}{statement}\n" + text[header.start :]

    return rule


def _replace_header(text: str, header: Header, by: str, *, keep: str = r"\s*") -> str:
    kept = re.match(keep, text[header.start : header.end])
    if kept is None:
        raise ValueError("the marked statement does not stand at the start of its line")
    space = " " if kept[0].strip() else ""
    return text[: header.start] + kept[0] + space + by + text[header.end :]
