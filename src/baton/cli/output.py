"""Print for people and programs: tables on a terminal, tab-separated lines in a pipe, JSON, relative times."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence

from baton.cli.options import UNIT_SEC
from baton.core.fields import one_line, printable

STATUS_COLOURS = {
    "pending": "yellow", "running": "cyan", "completed": "green", "error": "red", "cancelled": "bright_black",
}  # fmt: skip
# Characters that JSON leaves as they are and that a terminal acts on or hides.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def on_terminal() -> bool:
    return sys.stdout.isatty()


def say(message: str) -> None:
    """Print a message, as opposed to data: one printable line on standard error."""
    print(printable(" ".join(message.splitlines())), file=sys.stderr)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], colours: Sequence[str | None] = ()) -> None:
    """Print a table as wide as the terminal; in a pipe, print the rows with tabs between the cells and no headings.

    `colours` has one entry for each row, for its second cell. The last column takes the rest of the width.
    """
    rows = [[one_line(cell, 1000) for cell in row] for row in rows]
    if not on_terminal():
        for row in rows:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    plain = bool(os.environ.get("NO_COLOR"))
    console = Console(no_color=plain or None)
    table = Table(box=None, pad_edge=False, header_style="" if plain else "bold")
    lines = [[Text(cell) for cell in row] for row in rows]
    widths = [
        max([len(heading), *(line[column].cell_len for line in lines)]) for column, heading in enumerate(headings[:-1])
    ]
    for column, heading in enumerate(headings):
        # The first column is what the user types again: it is never cut.
        table.add_column(heading, no_wrap=True, min_width=widths[0] if column == 0 else None)
    for line, colour in zip(lines, colours or [None] * len(lines), strict=True):
        line[-1].truncate(max(console.width - sum(width + 2 for width in widths), 10), overflow="ellipsis")
        if colour:
            line[1].stylize(colour)
        table.add_row(*line)
    console.print(table)


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON that is safe on a terminal: characters that a terminal acts on are escaped."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False, indent=indent))


def counted(number: int, noun: str) -> str:
    """Return `1 job` or `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ago(then_ns: int, now_ns: int) -> str:
    """Return how long ago that was: `3m ago`, `2h ago`, `5d ago`."""
    seconds = (now_ns - then_ns) // 10**9
    if seconds < 0:
        return "in future"
    for unit in ("w", "d", "h", "m"):
        if seconds >= UNIT_SEC[unit] * (2 if unit == "w" else 1):
            return f"{seconds // UNIT_SEC[unit]}{unit} ago"
    return f"{seconds}s ago"
