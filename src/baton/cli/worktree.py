"""worktree, diff, merge: what jobs have done in their git worktrees, and what becomes of it."""

import os
import sys
from typing import Any

from baton.cli import options as opt
from baton.cli.jobs import each_of
from baton.cli.options import job_of, jobs_of
from baton.cli.output import json_text, on_terminal, print_table, say
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.errors import BatonError, GitFailed, JobNotFound, UsageError, WorktreeRefused
from baton.core.fields import check_id_beginning
from baton.core.job import TERMINAL, Job
from baton.jobs.caller import refuse_inside_session
from baton.jobs.verbs import Jobs, open_jobs
from baton.sessions.preparation import title_of
from baton.worktrees import contents, keeping, merging, salvage, trees
from baton.worktrees.git import Git, Repository, find_repository
from baton.worktrees.making import Needs
from baton.worktrees.trees import Tree, Trees, UseLock

_ENDING_SEC = 20.0  # in which the session of an ended job ends


def list_trees(options: Options, settings: Settings) -> int:
    """Show every worktree, branch and salvaged commit that baton has made."""
    damaged: list[BatonError] = []
    found = list(Trees(settings.data_dir).all(damaged))
    rows = [_describe(tree) for tree in found]
    here = _repository_here()
    for common in dict.fromkeys([*(tree.common for tree in found), *([here.common] if here else [])]):
        for repository in (common, *keeping.submodule_repositories(common)):
            rows += _refs_without_record(repository, {row["name"] for row in rows} if repository == common else set())
    rows += [_kept_row(path) for path in _kept_folders(settings)]
    for error in damaged:
        say(f"baton: {error}")
    shown = [row for row in rows if row["state"] != "squashed"]
    if options.json:
        print(json_text(rows, indent=2))
    elif shown:
        print_table(
            ("WORKTREE", "STATE", "HOLDS", "TITLE", "PATH"),
            [
                (row["name"], row["state"], row["holds"] or "-", row["title"] or "-", row["path"] or "-")
                for row in shown
            ],
        )
    else:
        say("baton has no worktrees; `baton submit --worktree` makes one")
    if len(rows) > len(shown) and not options.json:
        say(f"the single commits of squashed jobs ({len(rows) - len(shown)}) stay under refs/baton/merged/")
    return 1 if damaged else 0


def _describe(tree: Tree) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": tree.name, "job_id": tree.job_id, "attempt": tree.attempt, "title": tree.title,
        "repository": tree.top, "branch": tree.branch, "base": tree.base, "merged": tree.merged,
        "path": tree.path if os.path.isdir(tree.path) else None, "ref": None,
    }  # fmt: skip
    try:
        state, holds = _state(tree)
    except (BatonError, OSError) as error:
        state, holds = "unknown", str(error)
    return {**row, "state": state, "holds": holds}


def _state(tree: Tree) -> tuple[str, str]:
    """Return in a word how it stands with a worktree, and what it holds that is found nowhere else."""
    if trees.is_used(tree):
        return "in use", ""
    if tree.is_temporary or not tree.ready:
        return "unfinished", ""
    if not os.path.isdir(tree.path):
        commits = contents.count_unmerged(tree, keeping.head_of_gone(tree))
        holds = contents.Contents(commits=commits).words
        return ("folder gone" if tree.git().commit(f"refs/heads/{tree.branch}") else "gone"), holds
    found = contents.examine(tree, thorough=False)
    if found.commits:
        return "unmerged", found.words
    if tree.merged is not None:
        return "merged", found.words
    return ("unmerged" if found.unsaved else "no changes"), found.words


def _repository_here() -> Repository | None:
    """Return the repository of the current folder, if there is one."""
    try:
        return find_repository(os.getcwd())
    except (BatonError, OSError):
        return None


def _refs_without_record(common: str, known: set[str]) -> list[dict[str, Any]]:
    """Return rows for branches and saved commits of baton that no record names, and for commits of squashed jobs."""
    git = Git(common, None)
    try:
        listed = git.text("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/baton", "refs/baton")
    except GitFailed:
        return []  # the repository is gone
    rows = []
    for line in filter(None, listed.split("\n")):
        ref, commit = line.split(" ")
        kind, _, name = ref.removeprefix("refs/baton/").removeprefix("refs/heads/").partition("/")
        state = {"salvage": "salvaged", "merged": "squashed"}.get(kind, "branch")
        holds = "" if keeping.is_elsewhere(git, commit) else ref
        if state == "salvaged" or (name not in known and (holds or state == "branch")):
            rows.append(
                {"name": name, "job_id": name.partition("-")[0], "attempt": None, "title": None, "branch": None,
                 "repository": common, "base": None, "merged": None, "path": None, "ref": ref, "state": state,
                 "holds": holds}
            )  # fmt: skip
    return rows


def _kept_folders(settings: Settings) -> list[str]:
    root = Trees(settings.data_dir).root
    found = []
    for folder in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        kept = os.path.join(root, folder, "kept")
        found += [os.path.join(kept, each) for each in sorted(os.listdir(kept))] if os.path.isdir(kept) else []
    return found


def _kept_row(path: str) -> dict[str, Any]:
    name = "-".join(os.path.basename(path).split("-")[:2])
    return {"name": name, "job_id": name.partition("-")[0], "attempt": None, "title": None, "branch": None,
            "repository": None, "base": None, "merged": None, "path": path, "ref": None, "state": "kept",
            "holds": "what git cannot hold"}  # fmt: skip


# -- remove, salvage ---------------------------------------------------------------------------------------------------


def remove(options: Options, settings: Settings) -> int:
    if options.merged == bool(options.ids or options.job):
        raise UsageError("give either IDs or --merged")
    if options.force:
        refuse_inside_session("--force")
    if options.merged:
        typed = [tree.name for tree in Trees(settings.data_dir).all() if _is_done(tree, force=options.force)]
        if not typed:
            say("nothing to remove: each worktree holds something that is not merged; see `baton worktree list`")
    else:
        typed = jobs_of(options)
    results, code = each_of(typed, lambda each: _remove(_one(settings, each), force=options.force))
    if options.json:
        print(json_text(results))
    return code


def _is_done(tree: Tree, *, force: bool) -> bool:
    """Return whether a worktree holds nothing else than what is merged; with `force`, beside ignored files."""
    try:
        state, holds = _state(tree)
        if state == "merged" and force:
            found = contents.examine(tree)
            holds = found.replace(ignored=()).words
        return state in ("merged", "no changes", "gone", "unfinished") and not holds
    except (BatonError, OSError):
        return False


def _remove(tree: Tree, *, force: bool) -> dict[str, Any]:
    with UseLock(tree.path, _ENDING_SEC):
        done = salvage.remove(_fresh(tree), discard=force)
    for ref in done.kept:
        say(f"removed {tree.path}; its commits stay on {ref}")
    if not done.kept:
        say(f"removed {tree.name}")
    return {"name": tree.name, "kept": done.kept}


def save(options: Options, settings: Settings) -> int:
    results, code = each_of(jobs_of(options), lambda each: _save(_one(settings, each)))
    if options.json:
        print(json_text(results))
    return code


def _save(tree: Tree) -> dict[str, Any]:
    with UseLock(tree.path, _ENDING_SEC):
        saved = salvage.salvage(_fresh(tree))
    if saved.ref is not None:
        files = f"{saved.files} file{'' if saved.files == 1 else 's'}"
        say(f"saved {files} and the commits of {tree.name}: git show {saved.ref}")
    if saved.kept is not None:
        say(f"moved what git cannot hold ({', '.join(saved.paths)}) to {saved.kept}")
    if saved.ref is None and saved.kept is None:
        say(f"{tree.name} held nothing that is not found elsewhere")
    say(f"removed {tree.name}")
    return {"name": tree.name, "ref": saved.ref, "commit": saved.commit, "kept": saved.kept}


def _fresh(tree: Tree) -> Tree:
    """Read the record again, under the lock."""
    return trees.read(tree.path) or tree


def _one(settings: Settings, typed: str) -> Tree:
    """Return the worktree that a user names by its job, or by JOB-ATTEMPT."""
    check_id_beginning(typed.partition("-")[0])
    found = Trees(settings.data_dir).find(typed)
    if not found:
        raise BatonError(f"no worktree of a job {typed!r} is here; `baton worktree list` shows all")
    if len(found) > 1:
        names = ", ".join(tree.name for tree in found)
        raise WorktreeRefused(f"{typed!r} names several worktrees: {names}; name one of them")
    return found[0]


# -- diff, merge -------------------------------------------------------------------------------------------------------


def _tree_of(settings: Settings, jobs: Jobs, typed: str) -> tuple[Tree, Job | None]:
    """Return the worktree of the last attempt at a job, or of JOB-ATTEMPT, and the job if the registry has it."""
    name = typed.partition("-")[0]
    try:
        job = jobs.with_id(name, jobs.get_job)
    except JobNotFound:
        job = None
    if job is None or name != typed:
        tree = _one(settings, typed)
        return tree, job if job is not None and job.job_id == tree.job_id else None
    path = (job.checkout or {}).get("path")
    if path is None:
        raise WorktreeRefused(
            f"job {job.job_id} has no worktree"
            + ("; `baton submit --worktree` gives a job one" if job.worktree is None else " yet")
        )
    return Trees(settings.data_dir).find_exact(path) or Tree.of_job(job), job


def diff(options: Options, settings: Settings) -> None:
    with open_jobs(settings) as jobs:
        tree, _ = _tree_of(settings, jobs, job_of(options))
    shown, left_out = merging.diff(tree, stat=options.stat)
    if on_terminal():
        from baton.cli.terminal import print_styled

        print_styled([(line, _style(line))] for line in shown.decode(errors="replace").splitlines())
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(shown)
        sys.stdout.buffer.flush()
    if note := merging.note_if_gone(tree):
        say(f"baton: note: {note}")
    for name in left_out:
        say(f"baton: not shown: the nested repository {name} in {tree.path}")


def _style(line: str) -> str:
    """Return the style of a line of a diff, for a terminal."""
    if line.startswith(("diff ", "+++ ", "--- ", "index ")):
        return "1"
    return {"+": "32", "-": "31", "@": "36"}.get(line[:1], "")


def merge(options: Options, settings: Settings) -> None:
    with open_jobs(settings) as jobs:
        tree, job = _tree_of(settings, jobs, job_of(options))
    if job is not None and job.status not in TERMINAL:
        raise WorktreeRefused(f"job {job.job_id} is {job.status}: wait for its end, or cancel it, before you merge it")
    if options.check and (job is None or not job.validate):
        raise UsageError("--check runs the validation of the job, which has none (`submit --validate CMD`)")
    title = title_of(job) if job is not None else tree.title
    needs = Needs(copy=settings.worktree_copy, setup=settings.worktree_setup)
    with UseLock(tree.path, _ENDING_SEC):
        tree = _fresh(tree)
        done = merging.merge(
            tree, _target(tree), title=title, squash=options.squash, needs=needs,
            check=(lambda path: _validate(job, path)) if options.check and job is not None else None,
        )  # fmt: skip
        kept = "" if settings.worktree_keep == "always" else _tidy(done.tree)
    branch = done.into.removeprefix("refs/heads/")
    for note in done.notes:
        say(f"baton: note: {note}")
    what = "was merged already into" if done.already else "merged into"
    if options.json:
        record = {"job_id": tree.job_id, "into": branch, "commit": done.result, "already": done.already, "kept": kept}
        print(json_text(record))
    elif done.result is None:
        print(f"{tree.name} has no changes: nothing was merged")
    else:
        print(f"{tree.name} {what} {branch}: {done.result[:12]}")
    if kept:
        say(f"kept {tree.path}: {kept}")


def _target(tree: Tree) -> str:
    """Return the work tree to merge into: that of the current folder, if it is one of the repository, else the one that
    the job was submitted in."""
    here = _repository_here()
    if here is not None and here.common == tree.common and here.top != tree.path:
        return here.top
    if os.path.isdir(tree.top):
        return tree.top
    raise WorktreeRefused(f"{tree.top} is gone; run it in a work tree of the repository")


def _validate(job: Job, path: str) -> str | None:
    """Return why the validation of a job fails in another checkout of its repository; None if it succeeds."""
    from baton.jobs.verification import check_results

    checkout = {**(job.checkout or {}), "path": path}
    found = check_results(job.replace(expected_artifacts=(), checkout=checkout, claimed_by=None))
    if found.problems and found.validation:
        say(found.validation)
    return "; ".join(found.problems) or None


def _tidy(tree: Tree) -> str:
    """Remove a merged worktree; return why it stays, if it holds anything else."""
    try:
        salvage.remove(tree)
    except WorktreeRefused:
        return f"it also holds {contents.examine(tree).words}; `baton worktree remove {tree.name} --force` removes it"
    except (BatonError, OSError) as error:
        return str(error)
    return ""


_TREES = tuple(
    each.but(help=f"{each.settings['help'].partition(' (')[0]}, or the worktree JOB-ATTEMPT (default: $BATON_JOB_ID)")
    for each in opt.JOBS
)
VERBS = (
    Verb("worktree", (opt.JSON,), actions=(
        Verb("list", (), list_trees, "show all worktrees, and what each holds that is found nowhere else"),
        Verb("remove", (
            *_TREES, opt.MERGED,
            opt.FORCE.but(help="discard what is found nowhere else, and the branch; with --merged, ignored files alone "
                               "(default: refuse)"),
        ), remove, "remove worktrees in which everything is committed; their branches stay until they are merged"),
        Verb("salvage", _TREES, save, "save everything in worktrees as commits without a branch, then remove them"),
    )),
    Verb("diff", (*opt.JOB, opt.STAT), diff),
    Verb("merge", (*opt.JOB, opt.SQUASH, opt.CHECK_MERGE, opt.JSON), merge),
)  # fmt: skip
