"""Decide which worktree a submitted job gets: of which repository, and from which commit on."""

from __future__ import annotations

import os

from baton.adapters.contract import Agent
from baton.config import Settings
from baton.core.errors import InvalidValue
from baton.core.job import LIVE_QUEUE, Job
from baton.core.value import Any
from baton.jobs.verbs import Jobs, open_jobs
from baton.storage.files import make_private_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SEVERAL = "is required after several jobs with worktrees: name the commit, branch or job to begin with"


def plan_worktree(settings: Settings, given: dict[str, Any], workdir: str | None) -> dict[str, Any]:
    """Return the fields of a new job that say where it works: `workdir`, and of a job with a worktree also `worktree`
    and `checkout`. Without --after the commit is decided now; otherwise when the job is claimed."""
    wanted, base, queue = given.get("worktree"), given.get("base"), given.get("queue")
    is_session = queue is not None and queue.startswith(LIVE_QUEUE)
    if wanted and is_session:
        raise InvalidValue("worktree", "is for new sessions: this one runs already, in its own folder; leave it out")
    if wanted is None:
        wanted = settings.worktree and not is_session
    if not wanted:
        if base is not None:
            raise InvalidValue("base", "is where a worktree begins; give --worktree, too")
        return {"workdir": workdir}
    from baton.sessions.preparation import resolve_base
    from baton.worktrees.git import find_repository, refuse_foreign_repository
    from baton.worktrees.trees import Trees

    if workdir is None:
        raise InvalidValue("worktree", "needs a work folder in a git repository")
    base = base or settings.worktree_base
    workdir = os.path.realpath(workdir)
    source = find_repository(workdir)
    refuse_foreign_repository(source)
    trees = Trees(settings.data_dir)
    trees.folder_of(source.top, source.common)
    fields = {"workdir": workdir, "worktree": {"repository": source.top, "base": base}}
    for name in given.get("expect") or ():
        if os.path.isabs(name):
            raise InvalidValue("expect", f"{name!r} must be relative to the work folder, which is in a new worktree")
    if not given.get("after"):
        commit = source.base
        if base is not None:
            with open_jobs(settings) as jobs:
                commit = resolve_base(settings, jobs, base, source)
        fields["checkout"] = {"base": commit}
    trees.make_root()
    return fields


def refuse_unclear_base(jobs: Jobs, drafts: Sequence[Job]) -> None:
    """Raise InvalidValue for a job that comes after several jobs with worktrees and names no base."""
    by_id = {job.job_id: job for job in drafts}
    for job in drafts:
        if job.worktree is None or job.worktree["base"] is not None or len(job.after) < 2:
            continue
        before = [by_id.get(each) or jobs.get_job(each) for each in job.after]
        if sum(each.worktree is not None for each in before) > 1:
            raise InvalidValue("base", _SEVERAL)


def repeated_checkout(job: Job) -> dict[str, Any] | None:
    """Return where a retry of a job works: in a new worktree from the same commit on. One that follows another job goes
    on in the worktree of that: its conversation is bound to the folder."""
    if job.checkout is None or job.checkout.get("job") not in (None, job.job_id):
        return job.checkout
    return {"base": job.checkout["base"]}


def trust_place(settings: Settings, agent: Agent, job: Job) -> str:
    """Return the folder that the user has to trust for the agent of a job: its work folder; of a job with a worktree,
    the repository if trust in that holds in its worktrees, else the folder of all its worktrees."""
    if job.worktree is None:
        return job.workdir or "."
    top = str(job.worktree["repository"])
    if agent.trusts_worktrees or type(agent).startup_blockers is Agent.startup_blockers:  # it asks nothing
        return top
    from baton.worktrees.git import known_repository
    from baton.worktrees.trees import Trees

    source = known_repository(top, "HEAD")
    folder = Trees(settings.data_dir).folder_of(source.top, source.common)
    make_private_dir(folder)  # the user may have to start the agent there once
    return folder
