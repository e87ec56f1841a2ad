"""Worktrees with real git: making, examining, merging, saving and removing them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from baton.core.errors import BatonError, GitFailed, GitUnusable, InvalidValue, WorktreeRefused
from baton.worktrees import trees
from baton.worktrees.contents import examine, ignored_files, note_products
from baton.worktrees.git import find_repository
from baton.worktrees.making import Maker, Needs
from baton.worktrees.merging import commit_rest, commits_of, diff, merge
from baton.worktrees.removal import file_system_time
from baton.worktrees.salvage import remove, salvage
from baton.worktrees.trees import UseLock
from support.repositories import Repo, git
from support.small_disk import SmallDisk
from support.waiting import poll

A, B, C = ("aaaaaaaa-1", "bbbbbbbb-1", "cccccccc-1")


@pytest.fixture
def repo(tmp_path):
    return Repo(tmp_path)


def files(top) -> set[str]:
    return {str(path.relative_to(top)) for path in Path(top).rglob("*") if path.is_file() and ".git" not in path.parts}


# -- making ------------------------------------------------------------------------------------------------------------


def test_a_worktree_has_its_own_branch_outside_of_the_repository_and_is_locked(repo):
    tree = repo.make(A)
    assert tree.path.startswith(repo.data)
    assert git(tree.path, "symbolic-ref", "--short", "HEAD") == "baton/aaaaaaaa-1"
    assert "locked made by baton" in repo("worktree", "list", "--porcelain")
    assert (examine(tree).words, repo.status()) == ("", "")
    assert oct(os.stat(os.path.dirname(tree.path)).st_mode)[-3:] == "700"


def test_a_base_is_a_commit_a_branch_or_a_tag(repo):
    first = repo("rev-parse", "HEAD")
    repo.write({"later.txt": "later\n"})
    repo.commit("later")
    repo("tag", "old", first)
    for number, base in enumerate((first, first[:10], "old", "HEAD~1")):
        assert "later.txt" not in files(repo.make(f"{number:08x}-1", base=base).path)
    with pytest.raises(InvalidValue, match="base 'nonsense' is no commit"):
        repo.make(A, base="nonsense")


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda folder: None, "^--worktree: /.* is not in a git repository$"),
        (lambda folder: git(folder, "init", "-q", "--bare"), "is a bare repository"),
        (lambda folder: git(folder, "init", "-q"), "has no commit yet"),
    ],
)
def test_what_cannot_have_worktrees_gets_one_line(tmp_path, prepare, why):
    prepare(tmp_path)
    with pytest.raises(InvalidValue, match=why) as caught:
        find_repository(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_branch_named_baton_gets_one_line(repo):
    repo("branch", "baton")
    with pytest.raises(InvalidValue, match=r"a branch named 'baton'.*git branch -m"):
        find_repository(repo.top)


def test_worktrees_inside_of_the_repository_are_refused(repo):
    with pytest.raises(InvalidValue, match="set XDG_DATA_HOME"):
        trees.Trees(f"{repo.top}/.local").folder_of(repo.top, f"{repo.top}/.git")


def test_the_settings_bring_what_the_repository_needs(repo):
    repo.write({".gitignore": ".env\nmodules/\n"})
    repo.commit("ignore")
    repo.write({".env": "KEY=1\n", "modules/one/x.js": "x\n", "modules/two/y.js": "y\n"})
    os.symlink("x.js", f"{repo.top}/modules/one/link.js")
    needs = Needs(copy=[".env", "mod*", "../*", "missing"], setup='echo "$BATON_REPOSITORY" > made')
    tree = repo.make(A, needs)
    assert Path(tree.path, "made").read_text().strip() == repo.top
    assert os.readlink(f"{tree.path}/modules/one/link.js") == "x.js"
    assert examine(tree).words == "1 untracked file"  # what was copied is no work ...
    Path(tree.path, ".env").write_text("KEY=2\n")
    assert examine(tree).ignored == [".env"]  # ... until it is changed
    assert b"KEY" not in diff(tree)[0]


def test_a_setup_that_fails_leaves_nothing(repo):
    with pytest.raises(WorktreeRefused, match=r"worktree_setup failed with exit code 3: no module") as caught:
        repo.make(A, Needs(setup="echo no module; exit 3"))
    assert "setup.log" in str(caught.value)
    assert repo("branch", "--list", "baton/*") == ""
    assert list(repo.trees.all()) == []


def test_a_branch_of_that_name_is_left_alone(repo):
    repo("branch", "baton/aaaaaaaa-1")
    with pytest.raises(GitFailed, match="already exists"):
        repo.make(A)
    assert repo("rev-parse", "baton/aaaaaaaa-1") == repo("rev-parse", "HEAD")
    assert list(repo.trees.all()) == []


def test_a_stop_ends_the_making_and_leaves_nothing(repo, tmp_path):
    maker, source = Maker(), find_repository(repo.top)
    folder = repo.trees.folder_of(source.top, source.common)
    errors = []

    def run():
        try:
            maker.make(folder, A, source, Needs(setup=f"touch {tmp_path}/began; sleep 60"))
        except BatonError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    poll((tmp_path / "began").exists, 10)
    maker.stop()
    thread.join(10)
    assert "was not made" in str(errors[0])
    assert (list(repo.trees.all()), repo("branch", "--list", "baton/*")) == ([], "")


@pytest.mark.as_root
def test_a_full_disk_leaves_nothing(tmp_path):
    repo = Repo(tmp_path, {"big": "x" * 4_000_000})
    with SmallDisk(str(tmp_path / "small")) as disk:
        repo.trees = trees.Trees(disk.folder)
        with pytest.raises(GitFailed, match=r"could not be made: .*(No space|unable to write)"):
            repo.make(A)
        assert list(repo.trees.all()) == []
        assert (repo("branch", "--list", "baton/*"), repo.status()) == ("", "")
        assert repo("worktree", "list").count("\n") == 0


def test_submodules_are_filled_from_the_work_tree(repo, tmp_path):
    origin = repo.add_submodule(tmp_path)
    os.rename(origin, f"{origin}-offline")
    tree = repo.make(A)
    assert Path(tree.path, "sub/inner.txt").read_text() == "inner\n"
    assert examine(tree).words == ""
    repo.write({"sub/inner.txt": "changed\n"}, tree.path)
    assert examine(tree).submodules == ["sub"]
    with pytest.raises(WorktreeRefused, match=r"1 changed submodule \("):
        remove(tree)
    with pytest.raises(WorktreeRefused, match=r"the submodule sub .* has uncommitted work"):
        merge(tree, repo.top, title="x")
    git(f"{tree.path}/sub", "commit", "-qam", "inner work")
    done = merge(tree, repo.top, title="new inner")
    commit = git(f"{tree.path}/sub", "rev-parse", "HEAD")
    assert repo("rev-parse", "HEAD:sub") == commit
    remove(done.tree)
    assert git(f"{repo.top}/sub", "show", f"{commit}:inner.txt") == "changed"
    assert git(f"{repo.top}/sub", "branch", "--list", "baton/*") != ""


def test_a_sparse_checkout_stays_sparse(repo):
    repo.write({"one/x": "x\n", "two/y": "y\n"})
    repo.commit("folders")
    repo("sparse-checkout", "set", "--cone", "one")
    tree = repo.make(A)
    assert {"one/x", "a.txt"} <= files(tree.path)
    assert "two/y" not in files(tree.path)
    assert examine(tree).words == ""
    repo.write({"one/x": "changed\n"}, tree.path)
    merge(tree, repo.top, title="x")
    assert repo("show", "HEAD:two/y") == "y"
    assert repo("show", "HEAD:one/x") == "changed"


def test_lfs_pointers_stay_pointers(repo):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 5\n"
    repo.write({".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "big.bin": pointer})
    repo.commit("pointer")
    for way in ("clean", "smudge", "process"):
        repo("config", f"filter.lfs.{way}", f"no-such-program {way}")
    repo("config", "filter.lfs.required", "true")
    tree = repo.make(A)
    assert Path(tree.path, "big.bin").read_text() == pointer
    os.utime(f"{tree.path}/big.bin")
    assert examine(tree).words == ""
    repo.write({"plain.txt": "x\n"}, tree.path)
    merge(tree, repo.top, title="x")
    other = repo.make(B)
    repo.write({"big.bin": "content\n"}, other.path)
    with pytest.raises(WorktreeRefused, match=r"big\.bin: git runs a filter"):
        merge(other, repo.top, title="y")


# -- merging -----------------------------------------------------------------------------------------------------------


def test_a_diff_shows_what_is_committed_uncommitted_and_untracked(repo):
    tree = repo.make(A)
    repo.write({"committed.txt": "1\n"}, tree.path)
    git(tree.path, "add", "-A")
    git(tree.path, "commit", "-qm", "one")
    repo.write({"a.txt": "changed\n", "untracked.txt": "2\n", "ignored.o": "3\n"}, tree.path)
    shown = diff(tree)[0].decode()
    assert [name in shown for name in ("committed.txt", "+changed", "untracked.txt", "ignored.o")] == [1, 1, 1, 0]
    assert b"3 files changed" in diff(tree, stat=True)[0]
    assert git(tree.path, "status", "--porcelain").splitlines() == [" M a.txt", "?? untracked.txt"]


def test_a_merge_commits_the_rest_and_is_recorded(repo):
    tree = repo.make(A)
    repo.write({"a.txt": "changed\n", "new.txt": "new\n"}, tree.path)
    done = merge(tree, repo.top, title="A title")
    assert repo("log", "-1", "--format=%s") == "A title"
    assert (repo.status(), done.into, done.result) == ("", "refs/heads/main", repo("rev-parse", "HEAD"))
    assert repo("rev-parse", "baton/aaaaaaaa-1") == done.tree.merged["tip"]
    assert examine(done.tree).words == ""
    assert merge(done.tree, repo.top, title="again").already
    assert remove(done.tree).kept == []
    assert (list(repo.trees.all()), repo("branch", "--list", "baton/*")) == ([], "")


def test_a_second_job_becomes_a_merge_commit(repo):
    one, two = repo.make(A), repo.make(B)
    repo.write({"one.txt": "1\n"}, one.path)
    repo.write({"two.txt": "2\n"}, two.path)
    for tree in (one, two):
        merge(tree, repo.top, title="work")
    assert {"one.txt", "two.txt"} <= files(repo.top)
    assert repo("log", "-1", "--format=%s %p").startswith("Merge job bbbbbbbb: work ")
    assert len(commits_of(two)) == 1


def test_a_squash_counts_as_merged_and_more_work_can_follow(repo):
    tree = repo.make(A)
    for number in range(3):
        repo.write({"a.txt": f"step {number}\n" * 5}, tree.path)
        git(tree.path, "commit", "-qam", f"step {number}")
    done = merge(tree, repo.top, title="All steps", squash=True)
    assert repo("rev-list", "--count", "HEAD") == "2"
    assert examine(done.tree).words == ""
    repo.write({"a.txt": "step 3\n" * 5}, tree.path)
    assert examine(done.tree).words == "1 uncommitted file"
    done = merge(done.tree, repo.top, title="One more", squash=True)  # no conflict with what was squashed
    assert repo("log", "--format=%s").splitlines() == ["One more", "All steps", "first"]
    tip = done.tree.merged["tip"]
    assert remove(done.tree).kept == []
    repo("reflog", "expire", "--expire=now", "--all")
    repo("gc", "-q", "--prune=now")
    assert repo("show", f"{tip}~2:a.txt").startswith("step 1")


def test_a_conflict_leaves_everything_as_it_was(repo):
    one, two = repo.make(A), repo.make(B)
    for tree in (one, two):
        repo.write({"a.txt": f"by {tree.name}\n"}, tree.path)
    merge(one, repo.top, title="one")
    before = (repo("rev-parse", "HEAD"), repo.status(), repo("rev-parse", "baton/bbbbbbbb-1"))
    with pytest.raises(WorktreeRefused, match=r"conflicts with main in a\.txt; nothing was changed"):
        merge(two, repo.top, title="two")
    assert (repo("rev-parse", "HEAD"), repo.status(), repo("rev-parse", "baton/bbbbbbbb-1")) == before
    assert git(two.path, "status", "--porcelain") == " M a.txt"


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({"a.txt": "dirty\n"}, "has uncommitted changes"),
        ({"new.txt": "mine\n"}, "which git does not know"),
        ({"new.o": "mine\n"}, "which git does not know"),
        ({"folder": "a file in place of a folder\n"}, "which git does not know"),
        ({"place/precious.o": "mine\n"}, "which git does not know"),
    ],
)
def test_nothing_of_the_user_is_replaced(repo, there, why):
    tree = repo.make(A)
    work = {"a.txt": "changed\n", "new.txt": "new\n", "folder/x": "x\n", "place": "a file\n"}
    repo.write(work, tree.path)
    repo.write({"new.o": "o\n"}, tree.path)
    git(tree.path, "add", "-f", "-A", "new.o")
    repo.write(there)
    before = (repo("rev-parse", "HEAD"), repo.status())
    with pytest.raises(WorktreeRefused, match=why) as caught:
        merge(tree, repo.top, title="x")
    assert "uncommitted" in why or f"or ignore it in the job's worktree ({tree.path})" in str(caught.value)
    assert (repo("rev-parse", "HEAD"), repo.status()) == before
    for name, text in there.items():
        assert Path(repo.top, name).read_text() == text


def test_a_failing_check_leaves_everything_as_it_was(repo):
    tree = repo.make(A)
    repo.write({"new.txt": "new\n"}, tree.path)
    seen = []

    def check(path):
        seen.append(files(path))
        return "the tests fail"

    with pytest.raises(WorktreeRefused, match="on the merged result, the tests fail"):
        merge(tree, repo.top, title="x", check=check)
    assert "new.txt" in seen[0]
    assert (repo.status(), repo("branch", "--list", "*check*"), len(list(repo.trees.all()))) == ("", "", 1)
    assert merge(tree, repo.top, title="x", check=lambda _: None).result


def test_a_merge_that_was_killed_is_taken_back_or_completed(repo):
    tree = repo.make(A)
    repo.write({"a.txt": "changed\n", "new.txt": "new\n"}, tree.path)
    tip = commit_rest(tree, "work")
    old = repo("rev-parse", "HEAD")
    intent = {"into": "refs/heads/main", "old": old, "new": tip, "tip": tip}
    # Killed after git wrote some files: of one a part, of another all.
    tree = trees.write(tree.replace(merging=intent))
    repo.write({"a.txt": "cha", "new.txt": "new\n"})
    assert merge(tree, repo.top, title="work").result == tip
    assert (repo.status(), Path(repo.top, "a.txt").read_text()) == ("", "changed\n")
    # Killed between the files and the branch.
    repo("update-ref", "refs/heads/main", old)
    tree = trees.write(tree.replace(merging=intent))
    merge(tree, repo.top, title="work")
    assert (repo("rev-parse", "HEAD"), repo.status()) == (tip, "")
    # A file that the user has changed since is left alone.
    repo("update-ref", "refs/heads/main", old)
    repo("reset", "-q", "--hard")
    trees.write(tree.replace(merging=intent))
    repo.write({"a.txt": "mine\n"})
    with pytest.raises(WorktreeRefused, match=r"was killed, and a\.txt .* changed since"):
        merge(tree.replace(merging=intent), repo.top, title="work")
    assert Path(repo.top, "a.txt").read_text() == "mine\n"


def test_an_old_git_is_named(repo, tmp_path, monkeypatch):
    one, two = repo.make(A), repo.make(B)
    for tree in (one, two):
        repo.write({f"{tree.name}.txt": "x\n"}, tree.path)
    merge(one, repo.top, title="one")
    script = tmp_path / "bin" / "git"
    script.parent.mkdir()
    real = next(path for path in ("/usr/bin/git", "/usr/local/bin/git", "/bin/git") if os.path.exists(path))
    script.write_text(
        f'#!/bin/sh\ncase "$1" in merge-tree) echo "usage: git merge-tree <a> <b> <c>" >&2; exit 129;;\n'
        f'version) echo "git version 2.30.2"; exit;; esac\nexec {real} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    with pytest.raises(GitUnusable, match=r"needs git 2\.38 or newer; this is 2\.30\.2"):
        merge(two, repo.top, title="two")


def test_a_signal_waits_for_the_end_of_a_merge(repo):
    tree = repo.make(A)
    repo.write({"new.txt": "new\n"}, tree.path)
    got = []
    before = signal.signal(signal.SIGINT, lambda *_: got.append(repo("log", "-1", "--format=%s")))
    try:
        merge(tree, repo.top, title="work", check=lambda _: os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert got
    assert repo.status() == ""


# -- removing ----------------------------------------------------------------------------------------------------------


def test_commits_stay_on_their_branch(repo):
    tree = repo.make(A)
    repo.write({"new.txt": "new\n"}, tree.path)
    commit_rest(tree, "work")
    assert remove(tree).kept == ["baton/aaaaaaaa-1"]
    assert not os.path.exists(tree.path)
    assert repo("show", "baton/aaaaaaaa-1:new.txt") == "new"
    (kept,) = repo.trees.all()
    assert merge(kept, repo.top, title="later").result == repo("rev-parse", "baton/aaaaaaaa-1")


@pytest.mark.parametrize("name", ["a.txt", "untracked.txt", "ignored.o", "deep/er/ignored.o"])
def test_work_is_not_removed_and_is_saved_byte_by_byte(repo, name):
    tree = repo.make(A)
    content = b"\x00\xff mixed\r\n endings\n"
    path = Path(tree.path, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(WorktreeRefused, match=f"such as {name}"):
        remove(tree)
    saved = salvage(tree)
    assert not os.path.exists(tree.path)
    repo("checkout", "-q", saved.ref)
    assert Path(repo.top, name).read_bytes() == content


def test_what_git_cannot_hold_is_moved(repo):
    tree = repo.make(A)
    repo.write({"nested/x": "x\n", "cache.o/inner/y": "y\n"}, tree.path)
    for folder in ("nested", "cache.o/inner"):
        git(f"{tree.path}/{folder}", "init", "-q")
    os.mkfifo(f"{tree.path}/pipe")
    assert examine(tree).words == "2 nested repositories, 1 special file"
    saved = salvage(tree)
    assert Path(saved.kept, "nested/x").read_text() == "x\n"
    assert Path(saved.kept, "cache.o/inner/y").read_text() == "y\n"
    assert git(f"{saved.kept}/nested", "status", "--porcelain") == "?? x"
    assert not os.path.exists(tree.path)


def test_files_that_git_was_asked_not_to_look_at_are_work(repo):
    tree = repo.make(A)
    git(tree.path, "update-index", "--assume-unchanged", "a.txt")
    git(tree.path, "update-index", "--skip-worktree", "b.txt")
    repo.write({"a.txt": "hidden\n", "b.txt": "hidden, too\n"}, tree.path)
    assert git(tree.path, "status", "--porcelain") == ""
    with pytest.raises(WorktreeRefused, match="2 uncommitted files"):
        remove(tree)
    saved = salvage(tree)
    assert repo("show", f"{saved.ref}:a.txt") == "hidden"


@pytest.mark.parametrize("relative", ["false", "true"])
def test_commits_that_left_the_branch_are_kept(repo, relative):
    repo("config", "worktree.useRelativePaths", relative)  # git 2.48 and newer
    tree = repo.make(A)
    git(tree.path, "checkout", "-q", "--detach")
    repo.write({"new.txt": "new\n"}, tree.path)
    git(tree.path, "add", "-A")
    git(tree.path, "commit", "-qm", "aside")
    (ref,) = remove(tree).kept
    assert repo("show", f"{ref}:new.txt") == "new"


def test_a_worktree_that_was_removed_by_hand_is_no_obstacle(repo):
    tree = repo.make(A)
    repo.write({"new.txt": "new\n"}, tree.path)
    commit_rest(tree, "work")
    shutil.rmtree(tree.path)
    with pytest.raises(GitFailed, match="is gone: it was not removed by baton"):
        salvage(tree)
    assert b"new.txt" in diff(tree)[0]
    assert remove(tree).kept == ["baton/aaaaaaaa-1"]
    assert "aaaaaaaa" not in repo("worktree", "list")


def test_a_worktree_in_use_is_left_alone(repo):
    tree = repo.make(A)
    with UseLock(tree.path), pytest.raises(WorktreeRefused, match="is in use"), UseLock(tree.path):
        pass


def test_a_record_that_names_another_folder_is_damaged(repo):
    tree = repo.make(A)
    record = json.loads(Path(f"{tree.path}.json").read_text())
    Path(f"{tree.path}.json").write_text(json.dumps(record | {"path": repo.top}))
    damaged: list[BatonError] = []
    assert list(repo.trees.all(damaged)) == []
    assert "is damaged" in str(damaged[0])


def test_a_folder_in_place_of_the_worktree_is_left_alone(repo):
    tree = repo.make(A)
    Path(tree.path, ".git").unlink()
    git(tree.path, "init", "-q")
    with pytest.raises(GitFailed, match=r"its \.git leads elsewhere"):
        remove(tree)
    assert os.path.exists(f"{tree.path}/a.txt")


def test_a_half_removed_worktree_merges_its_commits_alone(repo):
    tree = repo.make(A)
    repo.write({"new.txt": "new\n"}, tree.path)
    commit_rest(tree, "work")
    for name in os.listdir(tree.path):
        os.unlink(f"{tree.path}/{name}")
    tree = trees.write(tree.replace(removing=True))  # killed in the middle of its removal
    merge(tree, repo.top, title="work")
    assert {"a.txt", "new.txt"} <= files(repo.top)
    (left,) = repo.trees.all()
    assert remove(left).kept == []
    assert not os.path.exists(tree.path)


def test_what_a_second_validation_changes_of_the_first_is_no_work_and_later_changes_are(repo):
    tree = repo.make(A)
    for text in ("first\n", "second\n"):
        before, since_ns = ignored_files(tree), file_system_time(tree.folder)
        repo.write({"cache.o": text}, tree.path)
        note_products(tree, before, since_ns)
        assert examine(tree).ignored == []
    repo.write({"cache.o": "third.\n"}, tree.path)
    assert examine(tree).ignored == ["cache.o"]
