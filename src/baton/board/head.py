"""Write the first line of the terminal board: how many jobs are in which group, and what is filtered and marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from baton.board.looks import GROUPS, cells, clean_line
from baton.board.text_view import Line

_QUIET = ("done", "snoozed")  # groups that are left out first


class Listed(NamedTuple):
    """What the list shows: the number of the selected job, how many there are of how many, and how many are marked."""

    place: int
    shown: int
    total: int
    marked: int = 0
    words: str = ""  # of the filter


def head_line(counts: Mapping[str, int], listed: Listed, width: int) -> list[Line]:
    """Return the parts of the line. Where there is no room for all, groups lose their words, the last ones first."""
    front: list[Line] = [(" baton ", "bold reverse")]
    if not listed.total:
        front.append((" no jobs yet: `baton submit` starts one ", ""))
    back: list[Line] = []
    if listed.shown > 1:
        back.append((f"   {listed.place + 1}/{listed.shown}", "dim"))
    if listed.words:
        words = f" /{clean_line(listed.words, 30)}: {listed.shown} of {listed.total} "
        back += [("  ", ""), (words, "bold reverse")]
    if listed.marked:
        back += [("  ", ""), (f" * {listed.marked} marked ", "bold reverse")]
    groups = [(name, count) for name in GROUPS if (count := counts.get(name))]
    loud = [(name, count) for name, count in groups if name not in _QUIET]
    parts = front
    for named, shown in ((len(groups), groups), (len(loud), loud), (2, loud), (0, loud), (0, loud[:4])):
        parts = [*front, *(_group(*each, with_word=place < named) for place, each in enumerate(shown)), *back]
        if sum(cells(text) for text, _ in parts) <= width:
            break
    return parts


def _group(name: str, count: int, *, with_word: bool) -> Line:
    symbol, word, style = GROUPS[name]
    return "  " + " ".join(each for each in (symbol, str(count), word if with_word else "") if each), style
