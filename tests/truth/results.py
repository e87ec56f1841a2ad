"""Keep the newest result of each row."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from truth.catalogue import ROWS

if TYPE_CHECKING:
    from truth.catalogue import Row

_PATH = os.path.join(os.path.dirname(__file__), "results.json")


class Result(NamedTuple):
    """The newest run of a row. `seconds` are those of what was so and what baton said, with `/` between."""

    row: Row
    said: str
    slowest_sec: float | None
    wrong: bool
    seconds: dict[str, float]
    date: str
    version: str


def read() -> list[Result]:
    """Return the newest results in the order of the rows."""
    with open(_PATH, encoding="utf-8") as file:
        known = json.load(file)
    rows = sorted(ROWS, key=lambda row: (int(row.number[1:]), ROWS.index(row)))
    return [Result(row, **known[row.label]) for row in rows if row.label in known]


def keep(results: list[Result]) -> None:
    """Store these results in place of older ones of the same rows."""
    known: dict[str, Any] = {}
    if os.path.exists(_PATH):
        with open(_PATH, encoding="utf-8") as file:
            known = json.load(file)
    for each in results:
        known[each.row.label] = {name: value for name, value in each._asdict().items() if name != "row"}
    with open(_PATH, "w", encoding="utf-8") as file:
        lines = [f"{json.dumps(label)}: {json.dumps(known[label])}" for label in sorted(known)]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
