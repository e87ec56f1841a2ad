"""Write the help text of a verb: plain text, the same with every Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill, wrap

from baton.cli.parser import OneOf, Option, Parser

_WIDEST_COLUMN = 24
_Entry = tuple[str, str]  # what the user types, indented, and its help


def format_help(parser: Parser, width: int) -> str:
    """Return the usage, the options and their help, in lines of at most `width` characters where that is possible."""
    own = [option for row in parser.rows for option in (row.options if isinstance(row, OneOf) else (row,))]
    actions = [(f"    {name}", action.text) for name, action in parser.actions.items()]
    sections = {
        "positional arguments": [
            *_entries(option for option in own if option.is_positional),
            *_under("ACTION", actions),
        ],
        "options": [*_entries(option for option in own if not option.is_positional)],
        "options of every command": [*_entries(parser.common)],
    }
    column = max(len(typed) + 2 for entries in sections.values() for typed, _ in entries)
    column = min(column, _WIDEST_COLUMN, max(width - 20, 4))
    parts = [_usage(parser, width), fill(f"{parser.text[0].upper()}{parser.text[1:]}.", width)]
    for heading, entries in sections.items():
        if entries:
            parts.append("\n".join([f"{heading}:", *(_format_entry(*entry, column, width) for entry in entries)]))
    if parser.epilog:
        parts.append(fill(parser.epilog, width))
    return "\n\n".join(parts) + "\n"


def _entries(options: Iterable[Option]) -> Iterable[_Entry]:
    for option in options:
        if option.settings["help"]:
            yield (
                f"  {option.metavar if option.is_positional else _typed(option, *option.names)}",
                option.settings["help"],
            )


def _under(title: str, entries: Sequence[_Entry]) -> Sequence[_Entry]:
    return [(f"  {title}", ""), *entries] if entries else ()


def _format_entry(typed: str, text: str, column: int, width: int) -> str:
    lines = wrap(text, max(width - column, 11))
    if not lines or len(typed) > column - 2:
        lines = [typed, *(" " * column + line for line in lines)]
    else:
        lines = [typed.ljust(column) + lines[0], *(" " * column + line for line in lines[1:])]
    return "\n".join(lines)


def _usage(parser: Parser, width: int) -> str:
    options = [
        _exclusive_usage(row) if isinstance(row, OneOf) else _option_usage(row)
        for row in (*parser.rows, *parser.common)
        if isinstance(row, OneOf) or (not row.is_positional and row.settings["help"])
    ]
    arguments = [_argument_usage(option) for option in parser.options if option.is_positional]
    arguments += ["ACTION ..."] * bool(parser.actions)
    start = f"usage: baton {parser.name}"
    line = " ".join([start, *options, *arguments])
    if len(line) <= width:
        return line
    indent = " " * (len(start) + 1)
    lines = [*_filled(options, width - len(indent)), *_filled(arguments, width - len(indent))]
    return "\n".join([f"{start} {lines[0]}", *(indent + line for line in lines[1:])])


def _filled(parts: Sequence[str], width: int) -> list[str]:
    """Return the parts in lines. A part is not broken, also if it is longer than a line."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


def _typed(option: Option, *names: str) -> str:
    value = f" [{option.metavar}]" if option.nargs == "?" else f" {option.metavar}" if option.takes_value else ""
    return ", ".join(names or option.names[:1]) + value


def _option_usage(option: Option) -> str:
    return _typed(option) if option.is_required else f"[{_typed(option)}]"


def _exclusive_usage(row: OneOf) -> str:
    typed = " | ".join(map(_typed, row.options))
    return f"({typed})" if row.required else f"[{typed}]"


def _argument_usage(option: Option) -> str:
    shown = {"": "{}", "?": "[{}]", "*": "[{} ...]", "+": "{0} [{0} ...]"}[option.nargs]
    return shown.format(option.metavar)
