"""Print for people and programs: tables on a terminal, tab-separated lines in a pipe, JSON, relative times."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence

from baton.cli.options import UNIT_SEC
from baton.core.errors import BatonError
from baton.core.fields import one_line, printable

STATUS_COLOURS = {
    "pending": "yellow", "running": "cyan", "completed": "green", "error": "red", "cancelled": "bright_black",
}  # fmt: skip
STATE_COLOURS = STATUS_COLOURS | {
    "starting": "cyan", "working": "cyan", "waiting": "bold yellow", "failed": "red", "disputed": "red",
    "unknown": "magenta",
}  # fmt: skip


def on_terminal() -> bool:
    return sys.stdout.isatty()


def say(message: str) -> None:
    """Print a message, as opposed to data: one printable line on standard error."""
    print(printable(" ".join(message.splitlines())), file=sys.stderr)


def ask(question: str) -> bool:
    """Ask the user on the terminal, and return whether the answer is yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise BatonError("nothing was changed: answer on a terminal, or add --yes")
    print(f"{one_line(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], colours: Sequence[str | None] = ()) -> None:
    """Print a table as wide as the terminal; in a pipe, print the rows with tabs between the cells and no headings.

    `colours` has one entry for each row, for its second cell. The last column takes the rest of the width.
    """
    rows = [[one_line(cell, 1000) for cell in row] for row in rows]
    if not on_terminal():
        for row in rows:
            print("\t".join(row))
        return
    from rich.table import Table
    from rich.text import Text

    from baton.cli.terminal import new_console

    console = new_console()
    table = Table(box=None, pad_edge=False, header_style="" if console.no_color else "bold")
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


def share_width(room: int, first: int, second: int, least: int) -> tuple[int, int]:
    """Return how many columns two texts get that need `first` and `second`, with two spaces between them. A text gets
    0 when less than `least` would be left for it: the second one first."""
    if not second or room < 2 * least + 2:
        return (min(first, room) if room >= min(first, least) else 0), 0
    wanted = min(second, room - 2 - min(first, (room - 2) // 2))
    return min(first, room - 2 - wanted), wanted


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON in which characters are escaped that a terminal acts on or hides: it prints it as it is."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isascii() and "\x7f" not in text:
        return text
    return re.sub("[^ -~\n]", lambda each: each[0] if printable(each[0]) == each[0] else _escape(each[0]), text)


def _escape(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


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
