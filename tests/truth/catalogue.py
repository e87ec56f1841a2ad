"""The catalogue of rows: a scenario, the number of its row, and how the agent runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

TERMINAL, HEADLESS = "terminal", "headless"
CLAUDE = "claude-code"


class Row(NamedTuple):
    """`number` is that of the row, such as T3. `name` says which variant of it."""

    number: str
    name: str
    mode: str
    title: str
    play: Callable
    agent: str = CLAUDE

    @property
    def scenario(self) -> str:
        return "-".join(part for part in (self.number, self.name, self.mode) if part)

    @property
    def label(self) -> str:
        return self.scenario if self.agent == CLAUDE else f"{self.scenario}-{self.agent}"

    def is_called(self, name: str) -> bool:
        """Return whether this is its number, its label, or the beginning of that."""
        return name == self.number or f"{self.scenario}-{self.agent}-".startswith(f"{name}-")


ROWS: list[Row] = []


def row(number: str, *modes: str, name: str = "", title: str = "", agents: tuple[str, ...] = (CLAUDE,)):
    """Add a scenario to the catalogue, once for each mode and agent. Its title is its docstring."""

    def add(play: Callable) -> Callable:
        text = title or (play.__doc__ or "").strip().rstrip(".")
        ROWS.extend(Row(number, name, mode, text, play, agent) for agent in agents for mode in modes or (TERMINAL,))
        return play

    return add
