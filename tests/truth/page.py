"""Write the page of the documentation that says how often the status is right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from truth.programs import ALL, UNTOLD

if TYPE_CHECKING:
    from truth.truth import Outcome

_HEAD = """\
# How often the status is right

baton says what an agent is doing, and how its job ended. This page is the result of a run that compares both with what was so. The run
uses the real agent programs against a scripted stand-in for their models, on the terminal and headless. A person at the keyboard is
played by keys that tmux sends. What was so comes from the script and from outside baton: the log of the stand-in, files, processes.
What baton said is read every 200 ms.

A row is right if baton said the expected activity and outcome, and nothing else, and noticed each change within 2 s of its signal. An
end for which baton first ends the agent, or which only a limit tells, counts within 5 s; `baton session stop`, within 12 s.

Run it again with `make truth`; `make truth AGENT="codex qwen" ROWS="T3 T8"` runs some rows. It installs the programs from npm, and runs
them without any network but loopback where the system allows that. `make test` replays recorded messages of the rows.

Run of {date}: **{right} of {all} rows right**.
"""


def write(path: str, outcomes: list[Outcome], matrix: list[str], versions: dict[str, str]) -> None:
    right = sum(not each.wrong for each in outcomes)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    lines = [_HEAD.format(date=date, right=right, all=len(outcomes)), *_by_agent(outcomes, versions), "", *_untold()]
    lines += [
        "",
        "Each row:",
        "",
        "| row | scenario | agent | mode | baton said | noticed within | |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        slowest = "" if each.slowest_sec is None else f"{each.slowest_sec:.1f} s"
        row = each.row
        lines.append(
            f"| {_name(each)} | {row.title} | {row.agent} | {row.mode} | {each.said} | {slowest} | {_verdict(each)} |"
        )
    lines += ["", "Seconds by what was so (rows) and what baton said (columns). Off the diagonal is the time until baton noticed a change.",
              "", "```text", *matrix, "```", ""]  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


def _by_agent(outcomes: list[Outcome], versions: dict[str, str]) -> list[str]:
    """Return the table of rows by agent. A cell has the modes: t for the terminal, h for headless."""
    lines = ["`t` is the terminal, `h` headless. Bold is wrong, `?` marks what the program does not tell (below). Empty: the row makes no",
             "sense for that agent, or is not run.", "",
             "| row | " + " | ".join(f"{agent} {versions.get(agent, '')}".strip() for agent in ALL) + " |",
             "|---|" + "---|" * len(ALL)]  # fmt: skip
    for name in dict.fromkeys(_name(each) for each in outcomes):
        cells = [
            " ".join(_cell(each) for each in outcomes if _name(each) == name and each.row.agent == agent)
            for agent in ALL
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _cell(outcome: Outcome) -> str:
    mode = outcome.row.mode[0]
    if outcome.wrong:
        return f"**{mode} wrong**"
    return f"{mode}?" if _is_untold(outcome) else mode


def _untold() -> list[str]:
    if not UNTOLD:
        return []
    lines = ["What a program does not tell, and what shows that:", ""]
    lines += [f"- {agent}, {scenario}: {untold.fact}" for (agent, scenario), untold in UNTOLD.items()]
    return lines


def _name(outcome: Outcome) -> str:
    return outcome.row.number + (f" {outcome.row.name}" if outcome.row.name else "")


def _verdict(outcome: Outcome) -> str:
    return "wrong" if outcome.wrong else "untold" if _is_untold(outcome) else "right"


def _is_untold(outcome: Outcome) -> bool:
    return (outcome.row.agent, outcome.row.scenario) in UNTOLD
