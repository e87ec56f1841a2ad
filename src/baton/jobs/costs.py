"""Sum up what jobs have used since a moment: by day, by agent and by label."""

from __future__ import annotations

from baton.core.clock import parse_time
from baton.core.job import Status
from baton.core.value import Value
from baton.registry.contract import JobFilter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from baton.core.job import Job
    from baton.jobs.verbs import Jobs

NO_LABEL = ""


class Sum(Value):
    """What some attempts used. `cost_usd` adds up the known costs; None: none is known. `unknown` counts the attempts
    whose cost is not known: it is missing in the sum."""

    attempts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    unknown: int = 0

    def plus(self, entry: Mapping[str, Any]) -> Sum:
        cost = entry["cost_usd"]
        return Sum(
            attempts=self.attempts + 1,
            input_tokens=self.input_tokens + entry["input_tokens"],
            output_tokens=self.output_tokens + entry["output_tokens"],
            cost_usd=self.cost_usd if cost is None else round((self.cost_usd or 0.0) + cost, 6),
            unknown=self.unknown + (cost is None),
        )


class Costs(Value):
    """What attempts used since a moment. An attempt counts on the day (UTC) of its last figure, and under each label of
    its job; NO_LABEL stands for jobs without one."""

    total: Sum
    by_day: Mapping[str, Sum]
    by_agent: Mapping[str, Sum]
    by_label: Mapping[str, Sum]

    def record(self) -> dict[str, Any]:
        """Return the sums as JSON."""
        parts = {"day": self.by_day, "agent": self.by_agent, "label": self.by_label}
        groups = {
            f"by_{name}": [{name: key or None, **each.as_dict()} for key, each in part.items()]
            for name, part in parts.items()
        }
        return {"total": self.total.as_dict(), **groups}


def sum_costs(jobs: Jobs, since_ns: int) -> Costs:
    """Return what the attempts used whose last figure came at `since_ns` or later, failed ones included. Jobs that no
    holder has left since, and that do not run, are not read."""
    total = Sum()
    days: dict[str, Sum] = {}
    agents: dict[str, Sum] = {}
    labels: dict[str, Sum] = {}
    for job in recent_jobs(jobs, since_ns):
        for entry in job.usage:
            if parse_time(entry["at"]) < since_ns:
                continue
            total = total.plus(entry)
            _add(days, entry["at"][:10], entry)
            _add(agents, job.agent, entry)
            for label in dict.fromkeys(job.labels) or (NO_LABEL,):
                _add(labels, label, entry)
    return Costs(total=total, by_day=_sorted(days), by_agent=_sorted(agents), by_label=_sorted(labels))


def recent_jobs(jobs: Jobs, since_ns: int) -> Iterator[Job]:
    """Yield the jobs that run, or that a holder has left since that moment."""
    seen = set()
    for where in (JobFilter(statuses=[Status.RUNNING]), JobFilter(left_from_ns=since_ns)):
        for job in jobs.each_job(where):
            if job.job_id not in seen:
                seen.add(job.job_id)
                yield job


def _add(groups: dict[str, Sum], key: str, entry: Mapping[str, Any]) -> None:
    groups[key] = groups.get(key, Sum()).plus(entry)


def _sorted(groups: dict[str, Sum]) -> dict[str, Sum]:
    return {key: groups[key] for key in sorted(groups)}
