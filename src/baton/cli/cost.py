"""cost: show what jobs have used: tokens and US dollars, by day, agent and label."""

import time

from baton.cli import options as opt
from baton.cli.options import parse_since
from baton.cli.output import counted, json_text, on_terminal, print_table, say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.clock import format_micros
from baton.core.spending import usd_text
from baton.jobs.costs import Costs, Sum, sum_costs
from baton.jobs.verbs import open_jobs


def cost(options: Options, settings: Settings) -> None:
    since_ns = parse_since("--since", options.since, time.time_ns())
    with open_jobs(settings) as jobs:
        costs = sum_costs(jobs, since_ns)
    if options.json:
        print(json_text({"since": format_micros(since_ns), **costs.record()}, indent=2))
        return
    if not costs.total.attempts:
        say("no job has used anything since then, as far as the agents say")
        return
    _print(costs)
    if costs.total.unknown:
        unknown = counted(costs.total.unknown, "attempt")
        say(f'the cost of {unknown} is unknown and not in the sums: set [prices."MODEL"] in your baton.toml')


def _print(costs: Costs) -> None:
    parts = {"day": costs.by_day, "agent": costs.by_agent, "label": costs.by_label}
    rows = [[name, key or "(none)", *_cells(each)] for name, part in parts.items() for key, each in part.items()]
    print_table(["BY", "", "ATTEMPTS", "INPUT", "OUTPUT", "USD"], [*rows, ["total", "", *_cells(costs.total)]])
    if on_terminal():
        say("INPUT and OUTPUT are tokens; a job with several labels counts under each")


def _cells(each: Sum) -> list[str]:
    known = "unknown" if each.cost_usd is None else usd_text(each.cost_usd)
    more = f" + {each.unknown} unknown" if each.unknown and each.cost_usd is not None else ""
    return [str(each.attempts), str(each.input_tokens), str(each.output_tokens), known + more]


VERBS = (
    Verb("cost", (
        opt.SINCE.but(default="7d", help="count what was used since then: 7d or 12h ago, or a date (default: 7d)"),
        opt.JSON,
    ), cost),
)  # fmt: skip
