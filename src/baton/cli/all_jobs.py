"""Ask the user which jobs a command with `--all` means."""

from __future__ import annotations

from collections.abc import Sequence

from baton.cli.output import ask, counted, say
from baton.core.errors import BatonError
from baton.core.fields import one_line
from baton.core.job import check_status
from baton.jobs.verbs import Jobs
from baton.registry.contract import JobFilter

_SHOWN = 20


def confirm_all(jobs: Jobs, statuses: Sequence[str], verb: str, *, sure: bool) -> list[str]:
    """Return the ids of the jobs with one of these statuses, oldest first, if the user agrees or is `sure`."""
    found = list(jobs.each_job(JobFilter(statuses=[check_status(each) for each in statuses])))[::-1]
    if not found:
        say(f"no jobs to {verb} in {jobs.registry.where}")
    elif not sure:
        for job in found[:_SHOWN]:
            say(f"  {job.job_id}  {job.status:<9}  {one_line(job.title or job.prompt, 60)}")
        if len(found) > _SHOWN:
            say(f"  and {len(found) - _SHOWN} more")
        if not ask(f"{verb} {counted(len(found), 'job')}?"):
            raise BatonError("nothing was changed")
    return [job.job_id for job in found]
