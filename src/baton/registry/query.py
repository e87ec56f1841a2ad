"""Select jobs of a list, and say where its next page begins."""

from __future__ import annotations

from baton.core.clock import parse_time
from baton.core.errors import InvalidValue
from baton.core.fields import check_job_id
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from baton.core.job import Job, Status


class JobFilter(Value):
    """Conditions that must all hold. None: no condition. Times are nanoseconds since 1970."""

    statuses: Collection[Status] | None = None
    agent: str | None = None
    agent_session: str | None = None
    created_from_ns: int | None = None
    created_until_ns: int | None = None
    updated_from_ns: int | None = None

    def matches(self, job: Job) -> bool:
        created = parse_time(job.created_at)
        return (
            (not self.statuses or job.status in self.statuses)
            and (self.agent is None or job.agent == self.agent)
            and (self.agent_session is None or job.agent_session == self.agent_session)
            and (self.created_from_ns is None or created >= self.created_from_ns)
            and (self.created_until_ns is None or created <= self.created_until_ns)
            and (self.updated_from_ns is None or parse_time(job.updated_at) >= self.updated_from_ns)
        )


def format_cursor(created_ns: int, job_id: str) -> str:
    return f"{created_ns}-{job_id}"


def parse_cursor(text: str) -> tuple[int, str]:
    created, _, job_id = text.rpartition("-")
    try:
        moment = int(created)
        if abs(moment) >= 2**63:
            raise ValueError
        return moment, check_job_id(job_id)
    except (ValueError, InvalidValue):
        raise InvalidValue("cursor", "must be the `next` of the page before") from None
