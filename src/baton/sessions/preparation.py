"""Make the worktree of a job in a thread: meanwhile the runner renews the lease and obeys a stop."""

from __future__ import annotations

import os

from baton.config import Settings
from baton.core.errors import AmbiguousId, JobNotFound, WorktreeRefused
from baton.core.fields import is_id_beginning, one_line
from baton.core.job import TERMINAL, Job
from baton.core.parking import was_parked
from baton.jobs.verbs import Jobs, open_jobs
from baton.sessions.in_thread import InThread
from baton.sessions.inventory import Inventory
from baton.sessions.session import Session
from baton.worktrees.git import Repository, find_repository, known_repository
from baton.worktrees.making import Maker, Needs
from baton.worktrees.trees import Tree, Trees, UseLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TITLE = 72  # characters
_LOCK_SEC = 20.0  # the runner of an ended job still ends its session


class Preparation:
    """The making of one worktree. Its `lock` keeps the worktree for this process until that ends."""

    def __init__(self, settings: Settings, job: Job, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._job = job
        self._maker = Maker()
        self.lock: UseLock | None = None
        self._call = InThread(self._tree, wake)

    @property
    def is_done(self) -> bool:
        return self._call.is_done

    def stop(self) -> None:
        """End it: `result` then raises WorktreeRefused."""
        self._maker.stop()

    def result(self, jobs: Jobs) -> Job:
        """Note the worktree in the record of the job, and return the job; raise what went wrong."""
        checkout = checkout_of(self._call.result())
        return jobs.registry.set_checkout(self._job.job_id, checkout, attempt=self._job.attempt)

    def _tree(self) -> Tree:
        """Return the worktree of the first job for a follow-up, and that of the last attempt for one that goes on after
        a usage limit, else a new one."""
        job, trees = self._job, Trees(self._settings.data_dir)
        assert job.worktree is not None
        assert job.workdir is not None
        checkout = job.checkout or {}
        if checkout.get("base") is None:
            source = find_repository(job.worktree["repository"])
            with open_jobs(self._settings) as jobs:
                source = source.at(base_commit(self._settings, jobs, job, source))
        else:
            source = known_repository(job.worktree["repository"], checkout["base"])
        folder = trees.folder_of(source.top, source.common)
        needs = Needs(copy=self._settings.worktree_copy, setup=self._settings.worktree_setup)
        if checkout.get("job") not in (None, job.job_id) or (was_parked(job) and checkout.get("path")):
            name = f"{checkout['job']}-{checkout['attempt']}"
            self.lock = UseLock(os.path.join(folder, name), _LOCK_SEC).__enter__()
            return self._maker.restore(folder, name, source, needs, base=checkout["base"], title=title_of(job))
        name = f"{job.job_id}-{job.attempt}"
        self.lock = UseLock(os.path.join(folder, name)).__enter__()
        return self._maker.make(folder, name, source, needs, title=title_of(job))


def checkout_of(tree: Tree) -> dict[str, object]:
    """Return what the record of a job says about its worktree."""
    return {"base": tree.base, "job": tree.job_id, "attempt": tree.attempt, "path": tree.path, "branch": tree.branch}


def title_of(job: Job) -> str:
    """Return the title of a job, or the beginning of its prompt, as one line."""
    return one_line(job.title or job.prompt, _TITLE)


def tree_of(settings: Settings, job: Job) -> Tree | None:
    """Return the record of the last worktree of a job on this machine; None if there is none."""
    path = (job.checkout or {}).get("path")
    return None if path is None else Trees(settings.data_dir).find_exact(path)


def base_commit(settings: Settings, jobs: Jobs, job: Job, source: Repository) -> str:
    """Return the commit that the worktree of a job begins with. Of a job that waited for others, it is decided now:
    after exactly one with a worktree, it goes on from that one."""
    assert job.worktree is not None
    base = job.worktree.get("base")
    if base is None:
        before = [each for name in job.after if (each := _find(jobs, name)) and each.worktree]
        if len(before) > 1:
            names = ", ".join(each.job_id for each in before)
            raise WorktreeRefused(f"jobs {names} have worktrees, and no base says which of them to begin with")
        return tip_of_job(settings, before[0], source) if before else source.base
    return resolve_base(settings, jobs, base, source)


def resolve_base(settings: Settings, jobs: Jobs, base: str, source: Repository) -> str:
    """Return the commit that the user means by a base: the work of a job, or a ref. InvalidValue if it is neither."""
    if is_id_beginning(base) and (job := _find(jobs, base)) is not None and job.worktree is not None:
        return tip_of_job(settings, job, source)
    return find_repository(source.top, base).base


def tip_of_job(settings: Settings, job: Job, source: Repository) -> str:
    """Return the newest commit of a job. Of a job that has ended, commit the rest of its work first."""
    from baton.worktrees.merging import commit_rest

    tree = tree_of(settings, job)
    if tree is None or tree.common != source.common:
        raise WorktreeRefused(f"job {job.job_id} has no worktree of {source.top} here, so nothing can begin with it")
    if job.status in TERMINAL and os.path.isdir(tree.path) and not tree.removing:
        with UseLock(tree.path, _LOCK_SEC):
            return commit_rest(tree, title_of(job))
    tip = tree.tip()
    if tip is None:
        raise WorktreeRefused(f"the branch {tree.branch} of job {job.job_id} is gone, so nothing can begin with it")
    return tip


def _find(jobs: Jobs, typed: str) -> Job | None:
    try:
        return jobs.with_id(typed, jobs.get_job)
    except (JobNotFound, AmbiguousId):
        return None


def enter(inventory: Inventory, session: Session, job: Job) -> Session:
    """Let a session work in the worktree of its job from now on, and return it."""
    assert job.folder is not None
    if not os.path.isdir(job.folder):
        raise WorktreeRefused(f"the base of the worktree has no folder {os.path.basename(job.folder)!r} to work in")
    workdir = job.folder
    return inventory.change(session, lambda current: current.replace(workdir=workdir))
