"""Watch what the present job of a session costs, and ask the user before it costs more than its budget."""

from __future__ import annotations

from baton.core.request import RequestKind
from baton.core.signal import ALLOW, Asked
from baton.core.spending import usd_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.core.job import Job
    from baton.core.request import Request
    from baton.core.spending import Price, Spent
    from baton.jobs.verbs import Jobs

KEY = "budget-"  # begins the key of a question about the budget
_EXACT_USD = 1e-6  # amounts are kept to the millionth


class Budget:
    """The budget of one job. `allowed_usd` is what it may cost in all attempts; None: it has no budget. `asks_late`:
    the agent's program keeps to what is left itself, and says what it spent when it has ended its turn."""

    def __init__(self, jobs: Jobs, job: Job | None, prices: Mapping[str, Price], *, asks_late: bool) -> None:
        self._prices, self._asks_late = prices, asks_late
        self._asked = 0
        self._step_usd = self.allowed_usd = None if job is None else job.budget_usd
        self._earlier_usd: float | None = 0.0
        if job is None or job.budget_usd is None:
            return
        costs = [each["cost_usd"] for each in job.usage if each["attempt"] != job.attempt]
        self._earlier_usd = None if None in costs else sum(costs)
        if job.attempt > 1:
            earlier = jobs.registry.list_requests(job_id=job.job_id, open_only=False)
            self.allowed_usd = max([job.budget_usd, *(_allowed_by(each) for each in earlier)])

    def left_usd(self, spent: Spent) -> float | None:
        """Return what the job may still cost; None without a budget, or if its cost so far is unknown."""
        cost = self._cost(spent)
        return None if self.allowed_usd is None or cost is None else max(self.allowed_usd - cost, _EXACT_USD)

    def _cost(self, spent: Spent) -> float | None:
        now = spent.total_usd(self._prices) if spent.cost_usd is not None or spent.unpriced else 0.0
        return None if now is None or self._earlier_usd is None else now + self._earlier_usd

    def question(self, spent: Spent, uncounted: str = "") -> Asked | None:
        """Return what to ask before the job goes on; None while it is within its budget, or has none. `uncounted`: why
        its agent does not say what it spends."""
        if self.allowed_usd is None or self._step_usd is None:
            return None
        cost = None if uncounted and spent.cost_usd is None and not spent.unpriced else self._cost(spent)
        if cost is None and self._asks_late:
            return None
        if cost is not None and cost < self.allowed_usd - _EXACT_USD:
            return None
        more_usd = round(max(self.allowed_usd, cost or 0.0) + self._step_usd, 6)
        if cost is None and uncounted and not spent.unpriced:
            why = f"its cost is unknown: telemetry {uncounted}"
        elif cost is None:
            models = ", ".join(filter(None, spent.without_price(self._prices))) or "its model"
            why = f"its cost is unknown: there is no price for {models}"
        else:
            why = f"{usd_text(cost)} USD are spent of {usd_text(self.allowed_usd)}"
        self._asked += 1
        known = {"spent_usd": None if cost is None else round(cost, 6), "budget_usd": self.allowed_usd}
        call = {"description": f"{why}; approve to allow {usd_text(more_usd)} in all", **known, "allowed_usd": more_usd}
        return Asked(key=f"{KEY}{self._asked}", kind=RequestKind.BUDGET.value, tool="budget", call=call)

    def allow(self, asked: Asked) -> None:
        """Raise what the job may cost, as the user has approved it."""
        self.allowed_usd = float(asked.call["allowed_usd"])
        if asked.call["spent_usd"] is None:
            self.allowed_usd = self._step_usd = None  # without a price there is nothing to compare: the user knows


def _allowed_by(request: Request) -> float:
    """Return what an answered request allows; 0 for every other one."""
    is_allowed = request.kind is RequestKind.BUDGET and request.answer == ALLOW
    given = request.call.get("allowed_usd") if is_allowed and isinstance(request.call, dict) else None
    return float(given) if isinstance(given, int | float) else 0.0
