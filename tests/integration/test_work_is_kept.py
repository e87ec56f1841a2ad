"""Attempts to lose work in a worktree: what git overlooks, what only the folder of git knows, and processes that write
while a worktree is removed."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from baton.core.errors import BatonError, WorktreeRefused
from baton.worktrees import contents, trees
from baton.worktrees import salvage as salvaging
from baton.worktrees.contents import examine
from baton.worktrees.git import find_repository
from baton.worktrees.making import Maker, Needs
from baton.worktrees.merging import diff, merge
from baton.worktrees.salvage import remove, salvage
from support.repositories import Repo, git
from support.waiting import poll

A, B = ("aaaaaaaa-1", "bbbbbbbb-1")


@pytest.fixture
def repo(tmp_path):
    return Repo(tmp_path)


def is_kept(repo, commit) -> bool:
    """Whether a ref, and no reflog, has a commit."""
    return commit in repo("rev-list", "--all").split()


def texts(repo) -> str:
    """The content of all files that refs have."""
    names = [line.split()[0] for line in repo("rev-list", "--objects", "--all").splitlines()]
    return "\n".join(repo("cat-file", "-p", name) for name in names if repo("cat-file", "-t", name) == "blob")


# -- what git overlooks ------------------------------------------------------------------------------------------------


def test_a_change_in_the_same_second_as_the_index_is_seen(repo):
    """git reads a file again whose time is not older than its index: a copy of the index has to keep the time of it."""
    tree = repo.make(A)
    repo("config", "core.trustCtime", "false")
    path, index = os.path.join(tree.path, "a.txt"), f"{repo.top}/.git/worktrees/{os.path.basename(tree.path)}/index"
    poll(lambda: time.time() % 1 < 0.3, 2)  # git compares the time of the last change, too, by seconds
    for text in ("step 2\n", "step 3\n"):
        repo.write({"a.txt": text}, tree.path)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        if text == "step 2\n":
            git(tree.path, "commit", "-qam", "step 2")
        os.utime(index, (1_700_000_000, 1_700_000_000))
    assert examine(tree).words == "1 unmerged commit, 1 uncommitted file"
    assert "+step 3" in diff(tree)[0].decode()
    assert git(tree.path, "status", "--porcelain") == " M a.txt"  # last: it writes the index anew


@pytest.mark.parametrize(("key", "value"), [("core.trustctime", "false"), ("core.checkStat", "minimal")])
def test_a_change_that_keeps_size_and_time_is_seen(repo, key, value):
    repo("config", key, value)
    tree = repo.make(A)
    path = Path(tree.path, "a.txt")
    past = os.stat(path).st_mtime - 100
    os.utime(path, (past, past))
    git(tree.path, "update-index", "--refresh")
    before = os.stat(path)
    path.write_text("ONE\n" * 5)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert examine(tree).changed == ["a.txt"]


def test_a_copy_that_keeps_size_and_time_and_was_changed_is_work(repo):
    repo.write({".gitignore": ".env\n", ".env": "SECRET=1\n"})
    repo("add", ".gitignore")
    repo("commit", "-q", "-m", "ignore")
    tree = repo.make(A, Needs(copy=[".env"]))
    path = Path(tree.path, ".env")
    before = os.stat(path)
    path.write_text("SECRET=2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert examine(tree).ignored == [".env"]


def test_a_file_whose_name_differs_only_in_case_is_work(repo):
    repo("config", "core.ignoreCase", "true")  # the repository came from a system that ignores it
    tree = repo.make(A)
    Path(tree.path, "A.TXT").write_text("work\n")
    assert examine(tree).untracked == ["A.TXT"]


@pytest.mark.parametrize("expect", ["false", "true"])
def test_files_outside_of_a_sparse_checkout_are_work(repo, expect):
    repo.write({"in/x.txt": "x\n", "out/y.txt": "y\n"})
    repo.commit("folders")
    repo("sparse-checkout", "set", "--cone", "--sparse-index", "in")
    tree = repo.make(A)
    repo("config", "sparse.expectFilesOutsideOfPatterns", expect)
    assert examine(tree).words == ""
    Path(tree.path, "out").mkdir()
    Path(tree.path, "out/y.txt").write_text("changed\n")
    Path(tree.path, "out/new.txt").write_text("new\n")
    found = examine(tree)
    assert (list(found.changed), list(found.untracked)) == (["out/y.txt"], ["out/new.txt"])


def test_a_split_index_is_read(repo):
    repo("config", "core.splitIndex", "true")
    tree = repo.make(A)
    git(tree.path, "update-index", "--split-index")
    git(tree.path, "update-index", "--assume-unchanged", "b.txt")
    Path(tree.path, "b.txt").write_text("work\n")
    assert examine(tree).changed == ["b.txt"]
    salvage(tree)
    assert "work" in texts(repo)


@pytest.mark.parametrize("name", ["sub/.GIT", ".GIT/config", "git~1", "x/.git :stream"])
def test_names_that_git_refuses_are_saved(repo, name):
    tree = repo.make(A)
    Path(tree.path, name).parent.mkdir(exist_ok=True)
    Path(tree.path, name).write_text("work\n")
    with pytest.raises(WorktreeRefused):
        remove(tree)
    saved = salvage(tree)
    assert saved.kept is not None
    assert Path(saved.kept, name).read_text() == "work\n"


def test_a_name_that_git_refuses_for_another_reason_stays(repo, monkeypatch):
    monkeypatch.setattr(contents, "_REFUSED", re.compile("nothing"))
    tree = repo.make(A)
    Path(tree.path, ".GIT").write_text("work\n")
    with pytest.raises(WorktreeRefused, match=r"cannot hold \.GIT"):
        salvage(tree)
    assert Path(tree.path, ".GIT").read_text() == "work\n"


def test_a_worktree_in_the_middle_of_a_conflict_is_saved(repo):
    tree = repo.make(A)
    Path(tree.path, "a.txt").write_text("theirs\n")
    git(tree.path, "commit", "-q", "-a", "-m", "theirs")
    repo.write({"a.txt": "ours\n"})
    repo.commit("ours")
    with pytest.raises(AssertionError):
        git(tree.path, "merge", "main")
    Path(tree.path, "new.txt").write_text("work\n")
    with pytest.raises(WorktreeRefused, match="a merge in progress"):
        remove(tree)
    saved = salvage(tree)
    assert "<<<<<<<" in repo("show", f"{saved.ref}:a.txt")
    assert repo("show", f"{saved.ref}:new.txt") == "work"


def test_a_repository_with_long_ids_is_saved(tmp_path):
    os.makedirs(tmp_path / "repo")
    git(tmp_path / "repo", "init", "-q", "-b", "main", "--object-format=sha256")
    repo = Repo.__new__(Repo)
    repo.top, repo.data = str(tmp_path / "repo"), str(tmp_path / "data")
    repo.trees = trees.Trees(repo.data)
    repo.write({"a.txt": "a\n"})
    repo.commit("first")
    tree = repo.make(A)
    os.unlink(os.path.join(tree.path, "a.txt"))
    Path(tree.path, "new.txt").write_text("work\n")
    saved = salvage(tree)
    assert repo("ls-tree", "--name-only", str(saved.ref)) == "new.txt"


# -- what only git's folder of the worktree knows ----------------------------------------------------------------------


def test_the_work_that_a_rebase_put_aside_is_saved(repo):
    tree = repo.make(A)
    Path(tree.path, "a.txt").write_text("theirs\n")
    git(tree.path, "commit", "-q", "-a", "-m", "theirs")
    repo.write({"a.txt": "ours\n"})
    repo.commit("ours")
    Path(tree.path, "b.txt").write_text("put aside\n")
    with pytest.raises(AssertionError):
        git(tree.path, "rebase", "--autostash", "main")
    with pytest.raises(WorktreeRefused):
        remove(tree)
    salvage(tree)
    assert "put aside" in texts(repo)


def test_commits_off_a_branch_that_a_rebase_moves_are_saved(repo):
    tree = repo.make(A)
    git(tree.path, "checkout", "-q", "--detach")
    Path(tree.path, "c.txt").write_text("first\n")
    git(tree.path, "add", "c.txt")
    git(tree.path, "commit", "-q", "-m", "first")
    Path(tree.path, "a.txt").write_text("theirs\n")
    git(tree.path, "commit", "-q", "-a", "-m", "theirs")
    Path(tree.path, "d.txt").write_text("last\n")
    git(tree.path, "add", "d.txt")
    git(tree.path, "commit", "-q", "-m", "last")
    last = git(tree.path, "rev-parse", "HEAD")
    repo.write({"a.txt": "ours\n"})
    repo.commit("ours")
    with pytest.raises(AssertionError):
        git(tree.path, "rebase", "main")
    salvage(tree)
    assert is_kept(repo, last)


def test_commits_of_a_folder_that_was_removed_by_hand_are_kept(repo):
    tree = repo.make(A)
    git(tree.path, "checkout", "-q", "--detach")
    git(tree.path, "commit", "-q", "--allow-empty", "-m", "off the branch")
    commit = git(tree.path, "rev-parse", "HEAD")
    shutil.rmtree(tree.path)
    remove(tree)
    assert is_kept(repo, commit)


def test_a_follow_up_after_a_removal_by_hand_loses_no_commit(repo):
    tree = repo.make(A)
    git(tree.path, "checkout", "-q", "--detach")
    git(tree.path, "commit", "-q", "--allow-empty", "-m", "off the branch")
    commit = git(tree.path, "rev-parse", "HEAD")
    shutil.rmtree(tree.path)
    Maker().restore(tree.folder, A, find_repository(repo.top), Needs(), base=tree.base, title="")
    assert is_kept(repo, commit)


def test_what_was_staged_in_a_folder_that_was_removed_by_hand_is_kept(repo):
    tree = repo.make(A)
    Path(tree.path, "new.txt").write_text("staged work\n")
    git(tree.path, "add", "new.txt")
    shutil.rmtree(tree.path)
    remove(tree)
    assert "staged work" in texts(repo)


def test_commits_that_left_the_branch_of_a_submodule_are_kept(repo, tmp_path):
    repo.add_submodule(tmp_path)
    tree = repo.make(A)
    inner = os.path.join(tree.path, "sub")
    git(inner, "checkout", "-q", "--detach")
    git(inner, "commit", "-q", "--allow-empty", "-m", "inner work")
    commit = git(inner, "rev-parse", "HEAD")
    git(tree.path, "commit", "-q", "-a", "-m", "newer submodule")
    merge(tree, repo.top, title="x")
    try:
        remove(trees.read(tree.path))
    except WorktreeRefused:
        return
    assert commit in git(os.path.join(repo.top, "sub"), "rev-list", "--all").split()


def test_the_repository_of_a_submodule_that_was_left_is_kept(repo, tmp_path):
    other = repo.add_submodule(tmp_path)
    tree = repo.make(A, base="HEAD~1")
    git(tree.path, "submodule", "add", "-q", other, "mine")
    inner = os.path.join(tree.path, "mine")
    git(inner, "commit", "-q", "--allow-empty", "-m", "inner work")
    commit = git(inner, "rev-parse", "HEAD")
    git(tree.path, "rm", "-q", "-f", "mine")
    git(tree.path, "rm", "-q", "-f", "--ignore-unmatch", ".gitmodules")
    with pytest.raises(WorktreeRefused):
        remove(tree)
    saved = salvage(tree)
    assert saved.kept
    found = [str(path.parent) for path in Path(saved.kept).rglob("HEAD") if (path.parent / "objects").is_dir()]
    assert any(commit in git(each, "rev-list", "--all") for each in found)


# -- what goes on meanwhile --------------------------------------------------------------------------------------------


def meanwhile(monkeypatch, act, after: int = 1):
    """Act when the contents have been examined for the last time, before anything is removed."""
    calls = []

    def examining(tree, **how):
        found = examine(tree, **how)
        calls.append(1)
        if len(calls) == after:
            act()
        return found

    monkeypatch.setattr(salvaging, "examine", examining)


@pytest.mark.parametrize("name", ["new.txt", "a.txt", "x.o", "deep/er/new.txt"])
def test_what_is_written_while_a_worktree_is_removed_stays(repo, monkeypatch, name):
    tree = repo.make(A)

    def write():
        path = Path(tree.path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("late work\n")

    meanwhile(monkeypatch, write)
    with pytest.raises(BatonError):
        remove(tree)
    assert Path(tree.path, name).read_text() == "late work\n"
    monkeypatch.undo()
    with pytest.raises(WorktreeRefused):
        remove(trees.read(tree.path))
    salvage(trees.read(tree.path))
    assert "late work" in texts(repo)


def test_what_is_written_after_the_listing_stays(repo, monkeypatch):
    tree = repo.make(A)
    listed = salvaging.Listing

    class Late(listed):
        def remove(self):
            Path(tree.path, "a.txt").write_text("late work\n")
            super().remove()

    monkeypatch.setattr(salvaging, "Listing", Late)
    with pytest.raises(WorktreeRefused, match=r"a\.txt in .* was written while the worktree was removed"):
        remove(tree)
    assert Path(tree.path, "a.txt").read_text() == "late work\n"


def test_a_folder_that_is_moved_in_while_a_worktree_is_removed_stays(repo, monkeypatch, tmp_path):
    tree = repo.make(A)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("late work\n")
    meanwhile(monkeypatch, lambda: os.rename(tmp_path / "other", os.path.join(tree.path, "moved")))
    with pytest.raises(BatonError):
        remove(tree)
    assert Path(tree.path, "moved/file").read_text() == "late work\n"


def test_what_is_written_while_a_worktree_is_salvaged_stays(repo, monkeypatch):
    tree = repo.make(A)
    Path(tree.path, "a.txt").write_text("work\n")
    meanwhile(monkeypatch, lambda: Path(tree.path, "new.txt").write_text("late work\n"), after=2)
    with pytest.raises(BatonError):
        salvage(tree)
    assert Path(tree.path, "new.txt").read_text() == "late work\n"


def test_a_restored_worktree_that_was_killed_is_made_again_before_an_agent_works_in_it(repo):
    tree = repo.make(A)
    Path(tree.path, "new.txt").write_text("work\n")
    git(tree.path, "add", "-A")
    git(tree.path, "commit", "-q", "-m", "work")
    shutil.rmtree(tree.path)
    source = find_repository(repo.top)
    restored = Maker().restore(tree.folder, A, source, Needs(), base=tree.base, title="")
    trees.write(restored.replace(ready=False))  # as if killed in the middle of the checkout
    os.unlink(os.path.join(tree.path, "a.txt"))
    again = Maker().restore(tree.folder, A, source, Needs(), base=tree.base, title="")
    assert (again.ready, examine(again).words) == (True, "1 unmerged commit")
    Path(tree.path, "later.txt").write_text("work of the follow-up\n")
    with pytest.raises(WorktreeRefused):
        remove(trees.read(tree.path))


def test_a_follow_up_in_a_half_removed_worktree_finds_all_files(repo):
    tree = repo.make(A)
    trees.write(tree.replace(removing=True))  # as if killed in the middle of the removal
    os.unlink(os.path.join(tree.path, "a.txt"))
    again = Maker().restore(tree.folder, A, find_repository(repo.top), Needs(), base=tree.base, title="")
    assert (again.removing, examine(again).words) == (False, "")


def test_a_removal_that_was_killed_can_be_completed(repo):
    tree = repo.make(A)
    trees.write(tree.replace(removing=True))
    for name in os.listdir(tree.path):
        os.unlink(os.path.join(tree.path, name))
    remove(trees.read(tree.path))
    assert not os.path.exists(tree.path)


def test_a_setup_that_fails_with_any_words_leaves_nothing(repo):
    with pytest.raises(WorktreeRefused, match="already exists"):
        repo.make(A, Needs(setup="echo the network already exists; exit 1"))
    assert (repo("worktree", "list").count("\n"), repo("branch", "--list", "baton/*")) == (0, "")


def test_a_worktree_that_is_made_again_has_all_that_it_needs(repo, tmp_path):
    repo.add_submodule(tmp_path)
    repo.write({".env": "SECRET=1\n"})
    tree = repo.make(A)
    inner = os.path.join(tree.path, "sub")
    git(inner, "commit", "-q", "--allow-empty", "-m", "inner work")
    commit = git(inner, "rev-parse", "HEAD")
    git(tree.path, "commit", "-q", "-m", "newer submodule", "sub")
    merge(tree, repo.top, title="x")
    remove(trees.read(tree.path))
    needs = Needs(copy=[".env"], setup="echo set up > made.o")
    again = Maker().restore(tree.folder, A, find_repository(repo.top), needs, base=tree.base, title="")
    assert git(inner, "rev-parse", "HEAD") == commit
    assert git(inner, "symbolic-ref", "--short", "HEAD") == f"baton/{A}"
    assert (Path(tree.path, ".env").read_text(), examine(again).words) == ("SECRET=1\n", "1 ignored file")
