"""Compare the table of what baton can do with each agent (docs/agents.md) with the results of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.adapters import find_agent
from baton.adapters.contract import Mode
from baton.config import Settings
from truth.catalogue import HEADLESS, TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from truth.results import Result

# What a cell of the table says, by the rows that show it.
_BY_BATON = ("T11-approve", "T11-deny")
_BY_SCREEN = ("T9",)
_RESUMES = ("T28",)


def contradictions(agent: str, results: Iterable[Result]) -> list[str]:
    """Return what the table says of an agent and its newest results do not show, or show otherwise."""
    mine = {each.row.scenario: each for each in results if each.row.agent == agent}
    adapter = find_agent(Settings(env={}), agent)
    versions = {each.version for each in mine.values()}
    found = [f"{agent}: version {each} was run, the table says {adapter.tested_version}"
             for each in sorted(versions - {adapter.tested_version})]  # fmt: skip
    for mode, claimed, scenarios in _claims(agent):
        for scenario in scenarios:
            result = mine.get(f"{scenario}-{mode}")
            if claimed and (result is None or result.wrong):
                what = "no result shows" if result is None else "its result is wrong for"
                found.append(f"{agent} ({mode}): the table says it can do {scenario}, and {what} it")
            elif not claimed and result is not None and not result.wrong:
                found.append(f"{agent} ({mode}): {scenario} is right, and the table does not say that it can do it")
    return found


def _claims(agent: str) -> Iterator[tuple[str, bool, tuple[str, ...]]]:
    """Yield what the table says of an agent: the mode, whether it can do it, and the rows that show it."""
    adapter = find_agent(Settings(env={}), agent)
    assert adapter.on_terminal is not None, agent
    assert adapter.when_headless is not None, agent
    for mode, about in ((TERMINAL, adapter.on_terminal), (HEADLESS, adapter.when_headless)):
        yield mode, "baton approve" in about.answered_by, _BY_BATON
    yield TERMINAL, "own screen" in adapter.on_terminal.answered_by, _BY_SCREEN
    yield TERMINAL, adapter.resumes(Mode.INTERACTIVE), _RESUMES
