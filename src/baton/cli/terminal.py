"""Clean everything that goes to a terminal: names, prompts and messages may come from a file, a process or the network.

`main` puts a `TerminalStream` in the place of each standard stream that is a terminal: no command can forget it.
"""

from __future__ import annotations

import os
import sys

from baton.core.fields import printable_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TextIO

    from rich.console import Console


class TerminalStream:
    """A text stream to a terminal that replaces every character that the terminal would act on or hide."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable_lines(text))  # guard: clean-terminal
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def clean_terminals() -> None:
    """Let every standard stream that is a terminal clean what is written to it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream.isatty() and not isinstance(stream, TerminalStream):
            setattr(sys, name, TerminalStream(stream))


def write_control(text: str, stream: TextIO, *, flush: bool = True) -> None:
    """Write a text of baton itself, with a colour or a carriage return in it."""
    while isinstance(stream, TerminalStream):
        stream = stream.stream
    stream.write(text)
    if flush:
        stream.flush()


def print_coloured(text: str, colour: int | None) -> None:
    """Print a line on standard output, in a colour on a terminal that wants colours."""
    if colour is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        print(text, flush=True)
        return
    write_control(f"\033[{colour}m", sys.stdout)
    print(text, end="")
    write_control("\033[0m\n", sys.stdout)


def print_styled(lines: Iterable[Sequence[tuple[str, str]]]) -> None:
    """Print lines on a terminal. Each consists of texts with the code of their style, "" for none."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    for line in lines:
        for text, style in line:
            if style and not plain:
                write_control(f"\033[{style}m", sys.stdout, flush=False)
            sys.stdout.write(text)
            if style and not plain:
                write_control("\033[0m", sys.stdout, flush=False)
        sys.stdout.write("\n")
    sys.stdout.flush()


def terminal_width() -> int:
    """Return the number of columns: of $COLUMNS, of the terminal, or 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def text_width(text: str) -> int:
    """Return how many columns a printable text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(each) in ("Mn", "Me", "Cf") else 2 if east_asian_width(each) in "WF" else 1 for each in text
    )


def cut_text(text: str, room: int) -> str:
    """Return as much of a text as fits into so many columns, with an ellipsis where it is cut."""
    if text_width(text) <= room:
        return text
    kept = text[: max(room - 1, 0)]
    while text_width(kept) > room - 1 and kept:
        kept = kept[:-1]
    return kept + "…"


def new_console() -> Console:
    """Return a console of rich on standard output. It makes the colours itself, and cleans every text in between."""
    from rich.console import Console
    from rich.segment import Segment

    class CleanConsole(Console):
        def render(self, *arguments: Any) -> Iterable[Segment]:
            for each in super().render(*arguments):
                yield each if each.control else Segment(printable_lines(each.text), each.style)

    return CleanConsole(
        file=getattr(sys.stdout, "stream", sys.stdout), no_color=bool(os.environ.get("NO_COLOR")) or None
    )
