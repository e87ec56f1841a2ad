"""Run the scenarios of what an agent is doing with the real agent programs, and print how often baton is right.

    make truth                                  all rows of all agents, one agent after the other
    make truth AGENT="codex qwen" ROWS="T3 T8"  these rows of these agents

Expected states come from the scenarios and from outside baton: the log of the model's stand-in, files, processes, keys.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, NamedTuple

_TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, _TESTS)

from support.brokers import Broker  # noqa: E402
from truth import page, rows_of_people, rows_of_screens, rows_of_services, rows_of_work  # noqa: E402, F401
from truth.capabilities import contradictions  # noqa: E402
from truth.catalogue import ROWS, Row  # noqa: E402
from truth.judge import changes, judge  # noqa: E402
from truth.programs import ALL, PROGRAMS, UNTOLD  # noqa: E402
from truth.recording import keep_recording  # noqa: E402
from truth.results import Result, keep, read  # noqa: E402
from truth.stage import NotReached, Stage  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


class Outcome(NamedTuple):
    """What came of a row."""

    row: Row
    expected: str
    said: str
    slowest_sec: float | None
    wrong: list[str]
    seconds: dict[tuple[str, str], float]
    took_sec: float


def play(row: Row, broker: Broker, options: argparse.Namespace) -> Outcome:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="truth-", ignore_cleanup_errors=True) as folder:
        stage = Stage(pathlib.Path(folder), broker, row)
        wrong: list[str] = []
        try:
            row.play(stage)
            wrong += [told for reader in stage.readers[:1] if (told := reader.spot_check())]
        except NotReached as error:
            wrong.append(str(error))
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {' '.join(str(error).split())[-500:]}")
        finally:
            try:
                stage.close()
            except Exception as error:
                wrong.append(f"at the end: {error}")
        samples = stage.readers[0].samples if stage.readers else []
        phases = [phase._replace(within=phase.within + options.slack) for phase in stage.phases]
        seconds, slowest = {}, None
        if phases and samples:
            judgement = judge(phases, samples)
            wrong += judgement.wrong
            seconds = judgement.seconds
            slowest = max((each for each, phase in zip(judgement.notices, phases, strict=True)
                           if each is not None and phase.within < 60), default=None)  # fmt: skip
        wrong += stage.wrong
        if options.keep is not None:
            keep_recording(row, stage, options.keep)
    expected = " → ".join(dict.fromkeys("|".join(phase.states[:1]) for phase in phases))
    return Outcome(row, expected, " → ".join(changes(samples)), slowest, wrong, seconds, time.monotonic() - began)


def chosen(names: list[str], agents: list[str]) -> list[Row]:
    """Return the rows of these numbers or labels and of these agents; all if none is given."""
    if unknown := set(agents) - set(ALL):
        sys.exit(f"no such agent: {' '.join(unknown)}; there are {', '.join(ALL)}")
    rows = [
        row for row in ROWS if (row.agent in agents or not agents) and (not names or any(map(row.is_called, names)))
    ]
    if not rows:
        numbers = dict.fromkeys(row.number for row in ROWS if row.agent in (agents or ALL))
        sys.exit(f"no such row: {' '.join(names)}; there are {', '.join(numbers)}")
    return rows


def run(rows: list[Row], broker: Broker, options: argparse.Namespace) -> Iterator[Outcome]:
    """Run the rows, those of one agent after those of another; return each as it ends."""
    for agent in ALL:
        mine = [row for row in rows if row.agent == agent]
        at_once = min(options.parallel or PROGRAMS[agent].at_once, len(mine))
        if at_once:
            with ThreadPoolExecutor(at_once) as pool:
                for done in as_completed([pool.submit(play, row, broker, options) for row in mine]):
                    yield done.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="T3, T24-kill9, T1-headless, T1-headless-codex")
    parser.add_argument("--agent", action="append", default=[], help=", ".join(ALL))
    parser.add_argument("--parallel", type=int, help="rows at once (default: what the memory allows, by agent)")
    parser.add_argument(
        "--slack", type=float, default=0.0, help="seconds that a change may take longer, on a busy machine"
    )
    parser.add_argument("--keep", help="write what the runners heard to this folder")
    parser.add_argument("--page", help="keep the results, and write those of all rows to this page")
    options = parser.parse_args()
    rows = chosen(options.rows, options.agent)
    if options.slack:
        print(f"each change may take {options.slack:g} s longer than it should", flush=True)
    broker = Broker("nats")
    outcomes = []
    try:
        for outcome in run(rows, broker, options):
            outcomes.append(outcome)
            _print(outcome)
    finally:
        broker.remove()
    outcomes.sort(key=lambda each: (int(each.row.number[1:]), ROWS.index(each.row)))
    versions = {agent: _version(agent) for agent in ALL if any(each.row.agent == agent for each in outcomes)}
    results = [_result(each, versions[each.row.agent]) for each in outcomes]
    print("\nseconds by what was so (rows) and what baton said (columns)\n" + "\n".join(page.matrix(results)) + "\n")
    for agent in ALL:
        mine = [each for each in outcomes if each.row.agent == agent]
        if mine:
            print(f"{agent}: {sum(not each.wrong for each in mine)} of {len(mine)} right, {_untold(mine)} untold")
    wrong = [each for each in outcomes if each.wrong]
    print(f"{len(outcomes) - len(wrong)} of {len(outcomes)} right")
    for each in wrong:
        print(f"wrong: {each.row.label}")
    false = []
    if options.page:
        keep(results)
        page.write(options.page)
        false = [each for agent in versions for each in contradictions(agent, read())]
        print(*(f"docs/agents.md is wrong: {each}" for each in false), sep="\n", end="\n" if false else "")
    return 1 if wrong or false else 0


def _result(outcome: Outcome, version: str) -> Result:
    seconds = {f"{so}/{said}": round(sec, 1) for (so, said), sec in outcome.seconds.items()}
    slowest = None if outcome.slowest_sec is None else round(outcome.slowest_sec, 1)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return Result(outcome.row, outcome.said, slowest, bool(outcome.wrong), seconds, date, version)


def _untold(outcomes: list[Outcome]) -> int:
    return sum((each.row.agent, each.row.scenario) in UNTOLD for each in outcomes)


def _version(agent: str) -> str:
    """Return the version of the program; the name of its command is the first word of the name of the agent."""
    done = subprocess.run(
        [agent.partition("-")[0], "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    found = re.search(r"\d+(?:\.\d+)+", done.stdout)
    return found.group() if found else "?"


def _print(outcome: Outcome) -> None:
    slowest = "" if outcome.slowest_sec is None else f"{outcome.slowest_sec:.1f} s"
    verdict = "WRONG" if outcome.wrong else "right"
    print(f"{verdict}  {outcome.row.label:<28} {outcome.row.title}\n"
          f"       expected {outcome.expected}\n       said     {outcome.said}   noticed within {slowest}"
          f"   (took {outcome.took_sec:.0f} s)", flush=True)  # fmt: skip
    for each in outcome.wrong:
        print(f"       - {each}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
