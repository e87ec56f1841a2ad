"""How things look to a person: tables on a terminal, plain lines in a pipe, relative times."""

from __future__ import annotations

import json
import os
import re
import sys

from baton.cli.options import UNIT_SEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Final

STATUS_COLOURS: Final = {
    "pending": "yellow",
    "running": "cyan",
    "completed": "green",
    "error": "red",
    "cancelled": "bright_black",
}
_UNSEEN: Final = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def on_terminal() -> bool:
    return sys.stdout.isatty()


def say(message: str) -> None:
    """Talk, as opposed to data."""
    print(message, file=sys.stderr)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], colours: Sequence[str | None]) -> None:
    """A table as wide as the terminal; the last column takes what is left. `colours` has one entry a row, for
    its second cell. In a pipe: the rows, separated by tabs, without headings."""
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
    for column, heading in enumerate(headings):
        # The first column is what one types again: it is never cut.
        least = max((line[0].cell_len for line in lines), default=0) if column == 0 else None
        table.add_column(heading, no_wrap=True, min_width=least)
    others = sum(
        2 + max([len(heading), *(line[column].cell_len for line in lines)])
        for column, heading in enumerate(headings[:-1])
    )
    for line, colour in zip(lines, colours, strict=True):
        line[-1].truncate(max(console.width - others, 10), overflow="ellipsis")
        if colour:
            line[1].stylize(colour)
        table.add_row(*line)
    console.print(table)


def json_text(value: object, indent: int | None = None) -> str:
    """JSON for people and programs: what a terminal would act on is written as an escape."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False, indent=indent))


def one_line(text: str, longest: int = 200) -> str:
    """Text of a stranger, safe to print: control characters, escapes and text-direction tricks taken out."""
    flat = " ".join(text.split())
    # The joiner and the selector that emoji are made with are harmless, though not printable by themselves.
    clean = "".join(each if each.isprintable() or each in "\u200d\ufe0f" else "\ufffd" for each in flat)
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"


def counted(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ago(then_ns: int, now_ns: int) -> str:
    """`3m`, `2h`, `5d`: how long ago that was."""
    seconds = (now_ns - then_ns) // 10**9
    if seconds < 0:
        return "in future"
    for unit in ("w", "d", "h", "m"):
        if seconds >= UNIT_SEC[unit] * (2 if unit == "w" else 1):
            return f"{seconds // UNIT_SEC[unit]}{unit} ago"
    return f"{seconds}s ago"
