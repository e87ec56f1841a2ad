"""Remove the homes of folders that are gone, if nothing in them is unfinished, unmerged or unsent."""

import os
from collections.abc import Iterable, Iterator

from baton.config import Home, Settings, hide_password
from baton.core.errors import BatonError
from baton.core.job import TERMINAL
from baton.core.value import Value
from baton.jobs.verbs import Jobs, open_jobs
from baton.registry import leaves
from baton.sessions.inventory import Inventory
from baton.sessions.notify import find_due
from baton.sessions.session import State
from baton.storage.adoption import lock_home
from baton.storage.gone_homes import EXISTS, exists, find_foreign, finish_removals, mount_of, remove_home, why_not_gone
from baton.storage.homes import known, settings_of
from baton.storage.removal import size_of
from baton.worktrees.keeping import is_elsewhere, is_merged
from baton.worktrees.trees import Tree, Trees


class GoneHome(Value):
    """A home whose folder is missing. `why` says why it is kept; None: it may be removed. `size` is what it takes on
    the disk."""

    home: Home
    size: int = 0
    why: str | None = None


def count_gone(state_dir: str) -> int:
    """Return the number of homes whose folder is gone, without a look at what is in them."""
    homes = known(state_dir)
    return sum(not os.path.lexists(home.folder) and why_not_gone(home.folder, mount_of(home)) is None for home in homes)


def find_gone(settings: Settings) -> Iterator[GoneHome]:
    """Yield the homes whose folder is missing. Go on with removals that were interrupted."""
    finish_removals(settings.state_dir)
    damaged: list[BatonError] = []
    trees = list(Trees(settings.data_dir).all(damaged)) if settings.data_dir else []
    for home in known(settings.state_dir):
        if os.path.lexists(home.folder):
            continue
        try:
            why = why_not_gone(home.folder, mount_of(home)) or _why_kept(settings.state_dir, home, trees, damaged)
            if why != EXISTS:
                size = size_of(home.path) if exists(home) else 0
                yield GoneHome(home=home, size=size, why=why)
        except (BatonError, OSError) as error:
            yield GoneHome(home=home, why=str(error))


def remove_gone(settings: Settings, found: Iterable[GoneHome]) -> Iterator[GoneHome]:
    """Remove these homes, and yield each, with the reason if it was kept. Look at it again, with its locks held."""
    damaged: list[BatonError] = []
    trees = list(Trees(settings.data_dir).all(damaged)) if settings.data_dir else []
    for each in found:
        home, state_dir = each.home, settings.state_dir
        try:
            mount = mount_of(home)
            with lock_home(home.path, wait=False):
                why, size = _why_kept(state_dir, home, trees, damaged), 0
                if why is None:
                    size, why = remove_home(state_dir, home, mount)
            yield GoneHome(home=home, size=size, why=why)
        except (BatonError, OSError) as error:
            yield GoneHome(home=home, why=str(error))


def _why_kept(state_dir: str, home: Home, trees: Iterable[Tree], damaged: list[BatonError]) -> str | None:
    """Return what in a home is unfinished, unmerged or unsent, or cannot be judged; None if there is nothing."""
    if not exists(home):
        return None
    if (foreign := find_foreign(home)) is not None:
        return f"it holds {foreign}, which is not of baton"
    settings = settings_of(state_dir, home)
    with open_jobs(settings) as jobs:
        if leaves(jobs.registry.url, home.path):
            return f"its jobs are in {hide_password(jobs.registry.url)}"
        return (
            _unfinished(settings, jobs)
            or _running(settings)
            or _unmerged(home, jobs, [tree for tree in trees if _is_of(tree, home, jobs)], damaged)
        )


def _unfinished(settings: Settings, jobs: Jobs) -> str | None:
    for page in jobs.outlines():
        if page.bad:
            return f"it holds a job that cannot be read: {page.bad[0]}"
        for job in page.jobs:
            if job.status not in TERMINAL:
                return f"job {job.job_id} is {job.status}"
    if events := jobs.unsent_events(limit=1):
        return f"an event of job {events[0].job_id} is not sent"
    if settings.notify is not None and (due := find_due(jobs)):
        return f"a notification of job {due[0].job.job_id} is not sent"
    return None


def _running(settings: Settings) -> str | None:
    inventory = Inventory(settings)
    if (note := inventory.note()) is not None:
        return note
    if invalid := inventory.invalid():
        return str(invalid[0])
    for session in inventory.all():
        if session.state is State.RUNNING:
            return f"session {session.name} runs; if it has died, `baton monitor --all-homes --once` records that"
        if session.state is State.STOPPED and session.conversation_id and os.path.lexists(session.workdir):
            return f"session {session.name} can be resumed in {session.workdir}"
    return None


def _is_of(tree: Tree, home: Home, jobs: Jobs) -> bool:
    return f"{tree.top}/".startswith(f"{home.folder}/") or bool(jobs.registry.find_ids(tree.job_id, limit=1))


def _unmerged(home: Home, jobs: Jobs, trees: Iterable[Tree], damaged: list[BatonError]) -> str | None:
    for tree in trees:
        if os.path.lexists(tree.path):
            return f"the worktree {tree.path} exists"
        if not os.path.isdir(tree.common):
            continue  # its repository is gone, and with it the work
        git = tree.git()
        ref = f"refs/heads/{tree.branch}"
        tip = git.commit(ref)
        if tip is not None and not is_merged(git, tree, tip) and not is_elsewhere(git, tip, ref):
            return f"the branch {tree.branch} is not merged"
    if damaged and any(job.checkout is not None for job in jobs.each_job()):
        return str(damaged[0])
    return None
