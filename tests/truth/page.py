"""Write the page of the documentation that says how often the status is right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from truth.truth import Outcome

_HEAD = """\
# How often the status is right

baton says what an agent is doing, and how its job ended. This page is the result of a run that compares both with what was so. The run
uses the real Claude Code against a scripted stand-in for its model, on the terminal and headless. A person at the keyboard is played by
keys that tmux sends. What was so comes from the script and from outside baton: the log of the stand-in, files, processes. What baton
said is read every 200 ms.

A row is right if baton said the expected activity and outcome, and nothing else, and noticed each change within 2 s of its signal. An
end for which baton first ends the agent, or which only a limit tells, counts within 5 s; `baton session stop`, within 12 s.

Run it again with `make truth`; `make truth ROWS="T3 T8"` runs some rows. It installs Claude Code from npm. `make test` replays the
recorded messages of the rows.

Run of {date}, {version}: **{right} of {all} rows right**.
"""


def write(path: str, outcomes: list[Outcome], matrix: list[str], version: str) -> None:
    right = sum(not each.wrong for each in outcomes)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    lines = [_HEAD.format(date=date, version=version, right=right, all=len(outcomes))]
    lines += ["| row | scenario | mode | baton said | noticed within | |", "|---|---|---|---|---|---|"]
    for each in sorted(outcomes, key=lambda outcome: int(outcome.row.number[1:])):
        name = each.row.number + (f" {each.row.name}" if each.row.name else "")
        slowest = "" if each.slowest_sec is None else f"{each.slowest_sec:.1f} s"
        verdict = "wrong" if each.wrong else "right"
        lines.append(f"| {name} | {each.row.title} | {each.row.mode} | {each.said} | {slowest} | {verdict} |")
    lines += ["", "Seconds by what was so (rows) and what baton said (columns). Off the diagonal is the time until baton noticed a change.",
              "", "```text", *matrix, "```", ""]  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
