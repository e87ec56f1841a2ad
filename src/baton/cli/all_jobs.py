"""Ask the user which jobs a command with `--all` means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton.cli.output import ask, counted, say
from baton.cli.parser import Options
from baton.core.errors import BatonError, UsageError
from baton.core.fields import one_line
from baton.core.job import Job, check_status
from baton.jobs.verbs import Jobs
from baton.registry.contract import JobFilter

_SHOWN = 20


def confirm_all(
    jobs: Jobs,
    options: Options,
    verb: str,
    statuses: Sequence[str],
    wanted: Callable[[Job], bool] = lambda _job: True,
) -> list[str]:
    """Return the ids of the jobs with one of these statuses, oldest first, if the user agrees on the terminal or with
    --yes."""
    if options.ids or options.job:
        raise UsageError("give either job IDs or --all")
    chosen = JobFilter(statuses=[check_status(each) for each in statuses])
    found = [job for job in jobs.each_job(chosen) if wanted(job)][::-1]
    if not found:
        say(f"no jobs to {verb} in {jobs.place}")
    elif not options.yes:
        for job in found[:_SHOWN]:
            say(f"  {job.job_id}  {job.status:<9}  {one_line(job.title or job.prompt, 60)}")
        if len(found) > _SHOWN:
            say(f"  and {len(found) - _SHOWN} more")
        if not ask(f"{verb} {counted(len(found), 'job')}?"):
            raise BatonError("nothing was changed")
    return [job.job_id for job in found]
