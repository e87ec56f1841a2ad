"""Watch what the present job of a session costs, and ask the user before it costs more than its budget. What the jobs
cost that its agent started counts, too."""

from __future__ import annotations

from baton.core.clock import parse_time
from baton.core.errors import JobNotFound
from baton.core.request import RequestKind
from baton.core.signal import ALLOW, Asked
from baton.core.spending import usd_text
from baton.jobs.costs import recent_jobs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from baton.core.job import Job
    from baton.core.request import Request
    from baton.core.spending import Price, Spent
    from baton.jobs.verbs import Jobs

KEY = "budget-"  # begins the key of a question about the budget
_OF_JOB = "budget_of"  # in the call of a question: the job above whose budget it is
_EXACT_USD = 1e-6  # amounts are kept to the millionth


class _Limit:
    """One budget: that of the job, or of a job above it. `allowed_usd` is what that job and all below it may cost;
    `others_usd` what they have cost but for the present attempt; None: that is unknown."""

    __slots__ = ("allowed_usd", "job", "others_usd", "step_usd")

    def __init__(self, job: Job, allowed_usd: float) -> None:
        self.job = job
        self.step_usd = job.budget_usd
        self.allowed_usd: float | None = allowed_usd
        self.others_usd: float | None = 0.0


class Budget:
    """What one job may cost, in all attempts and with all jobs that its agent started: its own budget, and those of the
    jobs above it. `asks_late`: the agent's program keeps to what is left itself, and says what it spent when it has
    ended its turn."""

    def __init__(self, jobs: Jobs, job: Job | None, prices: Mapping[str, Price], *, asks_late: bool) -> None:
        self._jobs, self._job, self._prices, self._asks_late = jobs, job, prices, asks_late
        self._asked = 0
        self._limits: list[_Limit] = []
        if job is None:
            return
        owners = [job, *(_jobs_above(jobs, job) if job.above else ())]
        self._limits = [_Limit(each, each.budget_usd) for each in owners if each.budget_usd is not None]
        for limit in self._limits:
            is_own = limit.job is job
            limit.others_usd = _sum(each["cost_usd"] for each in job.usage if each["attempt"] != job.attempt)
            if job.attempt > 1 or not is_own:
                earlier = jobs.registry.list_requests(job_id=job.job_id, open_only=False)
                allowed = [_allowed_by(each, None if is_own else limit.job.job_id) for each in earlier]
                limit.allowed_usd = max([limit.job.budget_usd or 0.0, *allowed])

    def look(self) -> None:
        """Read what the other jobs of each budget have cost, and whether the user has allowed the job above more."""
        if self._job is None or not self._limits:
            return
        others = list(recent_jobs(self._jobs, min(parse_time(limit.job.created_at) for limit in self._limits)))
        for limit in self._limits:
            of_limit = limit.job.job_id
            below = [each for each in others if of_limit == each.job_id or of_limit in each.above]
            limit.others_usd = _sum(
                entry["cost_usd"]
                for each in below
                for entry in each.usage
                if (each.job_id, entry["attempt"]) != (self._job.job_id, self._job.attempt)
            )
            if limit.job is not self._job and limit.allowed_usd is not None:
                answered = self._jobs.registry.list_requests(job_id=of_limit, open_only=False)
                limit.allowed_usd = max([limit.allowed_usd, *(_allowed_by(each, None) for each in answered)])

    def left_usd(self, spent: Spent) -> float | None:
        """Return what the job may still cost; None without a budget, or if its cost so far is unknown."""
        left = []
        for limit in self._limits:
            cost = self._cost(limit, spent)
            if limit.allowed_usd is not None and cost is not None:
                left.append(max(limit.allowed_usd - cost, _EXACT_USD))
        return min(left, default=None)

    def _cost(self, limit: _Limit, spent: Spent) -> float | None:
        now = spent.total_usd(self._prices) if spent.cost_usd is not None or spent.unpriced else 0.0
        return None if now is None or limit.others_usd is None else now + limit.others_usd

    def question(self, spent: Spent, uncounted: str = "") -> Asked | None:
        """Return what to ask before the job goes on; None while it is within its budgets, or has none. `uncounted`: why
        its agent does not say what it spends."""
        return next(filter(None, (self._ask(limit, spent, uncounted) for limit in self._limits)), None)

    def _ask(self, limit: _Limit, spent: Spent, uncounted: str) -> Asked | None:
        if limit.allowed_usd is None or limit.step_usd is None:
            return None
        cost = None if uncounted and spent.cost_usd is None and not spent.unpriced else self._cost(limit, spent)
        if cost is None and self._asks_late:
            return None
        if cost is not None and cost < limit.allowed_usd - _EXACT_USD:
            return None
        more_usd = round(max(limit.allowed_usd, cost or 0.0) + limit.step_usd, 6)
        is_own = limit.job is self._job
        if limit.others_usd is None:
            why = f"its cost is unknown: that of another job below {limit.job.job_id}, or of an attempt before, is"
        elif cost is None and uncounted and not spent.unpriced:
            why = f"its cost is unknown: telemetry {uncounted}"
        elif cost is None:
            models = ", ".join(filter(None, spent.without_price(self._prices))) or "its model"
            why = f"its cost is unknown: there is no price for {models}"
        else:
            why = f"{usd_text(cost)} USD are spent of {usd_text(limit.allowed_usd)}"
            why += "" if is_own else f" that job {limit.job.job_id} and all jobs below it may cost"
        self._asked += 1
        known = {"spent_usd": None if cost is None else round(cost, 6), "budget_usd": limit.allowed_usd}
        call = {"description": f"{why}; approve to allow {usd_text(more_usd)} in all", **known, "allowed_usd": more_usd}
        if not is_own:
            call[_OF_JOB] = limit.job.job_id
        return Asked(key=f"{KEY}{self._asked}", kind=RequestKind.BUDGET.value, tool="budget", call=call)

    def allow(self, asked: Asked) -> None:
        """Raise what the job may cost, as the user has approved it."""
        assert self._job is not None
        of_job = asked.call.get(_OF_JOB, self._job.job_id)
        for limit in self._limits:
            if limit.job.job_id == of_job:
                is_known = asked.call["spent_usd"] is not None  # else there is nothing to compare: the user knows
                limit.allowed_usd = float(asked.call["allowed_usd"]) if is_known else None


def has_budget(jobs: Jobs, job: Job) -> bool:
    """Return whether the job, or one of those whose agents led to it, has a budget."""
    return job.budget_usd is not None or any(each.budget_usd is not None for each in _jobs_above(jobs, job))


def _jobs_above(jobs: Jobs, job: Job) -> Iterator[Job]:
    """Yield the jobs of this registry whose agents led to this one."""
    for job_id in job.above:
        try:
            yield jobs.get_job(job_id)
        except JobNotFound:
            continue  # a session without a job, a job of another home, or one that was pruned


def _allowed_by(request: Request, of_job: str | None) -> float:
    """Return what an answered request allows of its own budget, or of that of a job above; 0 for every other one."""
    call = request.call if request.kind is RequestKind.BUDGET and request.answer == ALLOW else None
    given = call.get("allowed_usd") if isinstance(call, dict) and call.get(_OF_JOB) == of_job else None
    return float(given) if isinstance(given, int | float) else 0.0


def _sum(costs: Iterable[float | None]) -> float | None:
    """Return the sum; None if one of them is unknown."""
    known = list(costs)
    return None if None in known else sum(each for each in known if each is not None)
