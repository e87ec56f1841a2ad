"""The catalogue of rows: a scenario, the number of its row, and how the agent runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

TERMINAL, HEADLESS = "terminal", "headless"


class Row(NamedTuple):
    """`number` is that of the row, such as T3. `name` says which variant of it."""

    number: str
    name: str
    mode: str
    title: str
    play: Callable

    @property
    def label(self) -> str:
        return "-".join(part for part in (self.number, self.name, self.mode) if part)


ROWS: list[Row] = []


def row(number: str, *modes: str, name: str = "", title: str = ""):
    """Add a scenario to the catalogue, once for each mode. Its title is its docstring."""

    def add(play: Callable) -> Callable:
        text = title or (play.__doc__ or "").strip().rstrip(".")
        ROWS.extend(Row(number, name, mode, text, play) for mode in modes or (TERMINAL,))
        return play

    return add
