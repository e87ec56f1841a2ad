"""Say how a job looks on the terminal board: its symbol and colour, and its columns in the width of the list."""

from __future__ import annotations

import os
import unicodedata
from functools import cache

from rich.cells import cell_len

from baton.core.clock import SECOND_NS
from baton.core.fields import one_line, printable

# A state has a symbol beside its colour: a terminal without colours, or eyes that do not see them, tell it too.
SYMBOLS = {
    "waiting": "?", "blocked": "!", "disputed": "!", "failed": "✗", "stalled": "!", "limited": "‖", "unknown": "~",
    "idle": "…", "retrying": "↻", "verified": "✓", "done": "○", "working": "▶", "starting": "▷", "pending": "·",
    "cancelled": "-",
}  # fmt: skip
COLOURS = {
    "waiting": "bold yellow", "blocked": "bold yellow", "disputed": "bold red", "failed": "bold red",
    "stalled": "bold magenta", "limited": "magenta", "unknown": "magenta", "idle": "yellow", "retrying": "yellow",
    "verified": "green", "done": "", "working": "cyan", "starting": "cyan", "pending": "", "cancelled": "dim",
}  # fmt: skip
# The groups of the head line: the symbol, the word and the style of each need.
GROUPS = {
    "waiting": ("?", "waiting", "bold yellow"), "failed": ("✗", "failed", "bold red"),
    "stalled": ("!", "stalled", "bold magenta"), "limited": ("‖", "limited", "magenta"),
    "finished": ("✓", "finished", "green"), "working": ("▶", "working", "cyan"), "pending": ("·", "pending", ""),
    "done": ("", "done", "dim"), "snoozed": ("z", "snoozed", "dim"),
}  # fmt: skip
DIM = "dim"
_INVISIBLE = str.maketrans("", "", "\u200d\ufe0f")  # terminals do not agree on the width of what these join
_LEAST_TEXT = 10


def age(then_ns: int, now_ns: int) -> str:
    """Return the time since then in at most 4 characters: `3m`, `2h`, `5d`."""
    seconds = max(now_ns - then_ns, 0) // SECOND_NS
    for unit, unit_sec in (("w", 14 * 86400), ("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= unit_sec:
            return f"{seconds // (7 * 86400 if unit == 'w' else unit_sec)}{unit}"
    return f"{seconds}s"


def short_folder(folder: str) -> str:
    """Return a folder for a person: `~` for the user's own."""
    user = os.path.expanduser("~")
    return f"~{folder[len(user) :]}" if f"{folder}/".startswith(f"{user}/") else folder


def clean_line(text: str, longest: int = 400) -> str:
    """Return an untrusted text as one line whose width every terminal counts alike."""
    return one_line(text, longest).translate(_INVISIBLE)


def clean_lines(text: str, style: str = "") -> list[tuple[str, str]]:
    """Return an untrusted text as lines of printable characters, each with this style."""
    return [(printable(line.expandtabs(4)).translate(_INVISIBLE), style) for line in text.split("\n")]


def cells(text: str) -> int:
    """Return how many columns a text takes at most: terminals do not agree on some characters."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


@cache
def _cells_of(character: str) -> int:
    if "\U0001f3fb" <= character <= "\U0001f3ff" or "\u3248" <= character <= "\u324f":
        return 2  # the colour of a hand, which stands alone in some terminals; a number in a square
    return cell_len(character) or int(unicodedata.category(character) == "Mc")


def cut(text: str, width: int) -> str:
    """Return as much of the text as has room in this many columns."""
    if text.isascii():
        return text[:width]
    for place, character in enumerate(text):
        width -= _cells_of(character)
        if width < 0:
            return text[:place]
    return text


def fit(text: str, width: int) -> str:
    """Return the text in exactly this many columns, with an ellipsis where it is cut."""
    if (missing := width - cells(text)) >= 0:
        return text + " " * missing
    if width <= 0:
        return ""
    kept = cut(text, width - 1)
    return f"{kept}…" + " " * (width - 1 - cells(kept))


def fit_path(path: str, width: int) -> str:
    """Return the path in exactly this many columns: where it is cut, its end is kept."""
    if cells(path) <= width or width < 2:
        return fit(path, width)
    return fit(f"…{cut(path[::-1], width - 1)[::-1]}", width)


def share(room: int, wanted: list[int]) -> list[int]:
    """Return how many columns each text gets that wants so many: the widest give first. A text that would get fewer
    than 10 columns gets none, the last one first."""
    widths = list(wanted)
    while widths:
        if sum(widths) <= room:
            break
        widest = max(range(len(widths)), key=lambda place: (widths[place], place))
        widths[widest] -= 1
        small = [place for place, width in enumerate(widths) if 0 < width < min(_LEAST_TEXT, wanted[place])]
        if small:
            widths[small[-1]] = 0
    return widths
