"""Print for people and programs: tables on a terminal, tab-separated lines in a pipe, JSON, relative times."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence

from baton.cli.options import UNIT_SEC
from baton.core.errors import BatonError
from baton.core.fields import one_line, printable
from baton.core.job import TERMINAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.job import Job

STATUS_COLOURS = {
    "pending": "yellow", "running": "cyan", "completed": "green", "error": "red", "cancelled": "bright_black",
}  # fmt: skip
STATE_COLOURS = STATUS_COLOURS | {
    "starting": "cyan", "working": "cyan", "waiting": "bold yellow", "failed": "red", "disputed": "red",
    "unknown": "magenta", "blocked": "bold yellow", "stalled": "red", "idle": "yellow", "retrying": "yellow",
    "limited": "yellow", "verified": "green",
}  # fmt: skip
_CODES = {
    "yellow": "33", "cyan": "36", "green": "32", "red": "31", "magenta": "35", "bright_black": "90",
    "bold yellow": "1;33",
}  # fmt: skip
_LEAST_COLUMN = 6
_SHOWN_IDS = 5


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


def drop_typed() -> None:
    """Forget what was typed on the terminal and not read yet."""
    import termios

    termios.tcflush(sys.stdin, termios.TCIFLUSH)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], colours: Sequence[str | None] = ()) -> None:
    """Print a table as wide as the terminal; in a pipe, print the rows with tabs between the cells and no headings.

    `colours` has one entry for each row, for its second cell. What does not fit is cut, in the widest columns; a text
    with nothing after it may use the rest of the line.
    """
    rows = [[one_line(cell, 1000) for cell in row] for row in rows]
    if not on_terminal():
        for row in rows:
            print("\t".join(row))
        return
    from baton.cli.terminal import cut_text, print_styled, terminal_width, text_width

    widths = [max(map(text_width, column)) for column in zip(headings, *rows, strict=True)]
    last, room = len(widths) - 1, terminal_width()
    # The first column is what the user types again, the second one is short: neither is cut while others can be.
    while sum(widths) + 2 * last > room and max(widths[2:] or [0]) > _LEAST_COLUMN:
        widest = max(range(2, len(widths)), key=lambda column: (widths[column], column))
        widths[widest] -= 1

    def line(cells: Sequence[str], styles: Sequence[str]) -> list[tuple[str, str]]:
        parts, start = [], 0
        for column, (cell, style) in enumerate(zip(cells, styles, strict=True)):
            is_last = not any(cells[column + 1 :])
            width = max(room - start, _LEAST_COLUMN) if is_last else widths[column]
            text = cell if column == 0 else cut_text(cell, width)
            parts.append((text, style))
            if is_last:
                break
            parts.append((" " * (widths[column] - text_width(text) + 2), ""))
            start += widths[column] + 2
        return parts

    lines = [line(headings, ["1"] * len(headings))]
    for row, colour in zip(rows, colours or [None] * len(rows), strict=True):
        lines.append(line(row, ["", _CODES.get(colour or "", ""), *[""] * last][: len(row)]))
    print_styled(lines)


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


def say_ends(jobs: Sequence[Job]) -> None:
    """Say how jobs ended and what decided that, except on a terminal, where a table has shown it; and how to go on with
    their work that is in worktrees on this machine."""
    if not on_terminal():
        from baton.core.ending import describe_end

        for job in jobs:
            if job.status in TERMINAL:
                say(describe_end(job))
    say_worktrees(jobs)


def say_worktrees(jobs: Iterable[Job]) -> None:
    """Say how to go on with the work of completed jobs that is in worktrees on this machine."""
    here = [
        job
        for job in jobs
        if job.status == "completed" and job.checkout is not None and os.path.isdir(job.checkout.get("path") or "")
    ]
    _say_worktrees([job.job_id for job in here if job.changed], "work is", "baton diff {0}, baton merge {0}")
    # The runner of an older version has not looked.
    _say_worktrees([job.job_id for job in here if job.changed is None], "changes, if any, are", "baton diff {0}")


def _say_worktrees(ids: Sequence[str], what: str, commands: str) -> None:
    if len(ids) == 1:
        say(f"its {what} in a worktree: {commands.format(ids[0])}")
    elif ids:
        more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
        each = f"each of {' '.join(ids[:_SHOWN_IDS])}{more}"
        say(f"their {what} in worktrees: {commands.format('ID')} for {each}")


def ago(then_ns: int, now_ns: int) -> str:
    """Return how long ago that was: `3m ago`, `2h ago`, `5d ago`."""
    return f"{age(then_ns, now_ns)} ago" if then_ns <= now_ns else "in future"


def age(then_ns: int, now_ns: int) -> str:
    """Return the time since then: `3m`, `2h`, `5d`; `0s` for a time to come."""
    seconds = max(now_ns - then_ns, 0) // 10**9
    for unit in ("w", "d", "h", "m"):
        if seconds >= UNIT_SEC[unit] * (2 if unit == "w" else 1):
            return f"{seconds // UNIT_SEC[unit]}{unit}"
    return f"{seconds}s"
