"""Write the page of the documentation that says how often the status is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from truth.programs import ALL, UNTOLD
from truth.results import read

if TYPE_CHECKING:
    from truth.results import Result

_HEAD = """\
# How often the status is right

baton says what an agent is doing, and how its job ended. This page is the result of a run that compares both with what was so. The run
uses the real agent programs against a scripted stand-in for their models, on the terminal and headless. A person at the keyboard is
played by keys that tmux sends. What was so comes from the script and from outside baton: the log of the stand-in, files, processes.
What baton said is read every 200 ms.

A row is right if baton said the expected activity and outcome, and nothing else, and noticed each change within 2 s of its signal. An
end for which baton first ends the agent, or which only a limit tells, counts within 5 s; `baton session stop`, within 12 s.

A row may begin `working` up to 4 s before the model is asked, because the turn begins first; for opencode, which loads its plugins in its
first turn, up to 10 s. The page shows the newest run of each row, not the share of all runs: a wrong row may have been run again. In the
newest whole run of all six programs, on 2026-11-18 beside `make crash` on two cores, every row was right at its first try.

Run it again with `make truth`; `make truth AGENT="codex qwen" ROWS="T3 T8"` runs some rows, and changes these here. It installs the
programs from npm, and runs them without any network but loopback where the system allows that. `make test` replays recorded messages of
the rows.

Newest runs of all rows, {dates}: **{right} of {all} rows right**.
"""


def matrix(results: list[Result]) -> list[str]:
    """Return the table of seconds by what was so and what baton said."""
    total: dict[tuple[str, str], float] = {}
    for result in results:
        for pair, sec in result.seconds.items():
            so, _, said = pair.partition("/")
            total[so, said] = total.get((so, said), 0.0) + sec
    columns = sorted({said for _, said in total})
    lines = [f"{'was so / said':<14}" + "".join(f"{each[:10]:>11}" for each in columns)]
    for so in sorted({so for so, _ in total}):
        cells = (total.get((so, said)) for said in columns)
        lines.append(f"{so:<14}" + "".join(f"{f'{sec:.1f} s' if sec else '·':>11}" for sec in cells))
    return lines


def write(path: str) -> None:
    results = read()
    dates = sorted({each.date for each in results})
    spoken = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    right = sum(not each.wrong for each in results)
    lines = [_HEAD.format(dates=spoken, right=right, all=len(results)), *_by_agent(results), "", *_untold()]
    lines += [
        "",
        "Each row:",
        "",
        "| row | scenario | agent | mode | baton said | noticed within | |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in results:
        slowest = "" if each.slowest_sec is None else f"{each.slowest_sec:.1f} s"
        row = each.row
        lines.append(
            f"| {_name(each)} | {row.title} | {row.agent} | {row.mode} | {each.said} | {slowest} | {_verdict(each)} |"
        )
    lines += ["", "Seconds by what was so (rows) and what baton said (columns). Off the diagonal is the time until baton noticed a change.",
              "", "```text", *matrix(results), "```", ""]  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


def _by_agent(outcomes: list[Result]) -> list[str]:
    """Return the table of rows by agent. A cell has the modes: t for the terminal, h for headless."""
    versions = {each.row.agent: each.version for each in outcomes}
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


def _cell(outcome: Result) -> str:
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


def _name(outcome: Result) -> str:
    return outcome.row.number + (f" {outcome.row.name}" if outcome.row.name else "")


def _verdict(outcome: Result) -> str:
    return "wrong" if outcome.wrong else "untold" if _is_untold(outcome) else "right"


def _is_untold(outcome: Result) -> bool:
    return (outcome.row.agent, outcome.row.scenario) in UNTOLD
