"""Jobs in git worktrees, as a user types it: submit, diff, merge, worktree list, remove, salvage."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from support.repositories import Repo, git
from support.sessions import SessionDesk
from support.waiting import wait_until

PARROT = '#!/bin/sh\npwd >> "$HOME/places"\nexec sh "$2"\n'
TABLE = """\
[agents.parrot]
interactive = ["parrot", "{conversation_id}", "{prompt_file}"]
headless = ["parrot", "{conversation_id}", "{prompt_file}"]
resume_interactive = ["parrot", "{conversation_id}", "{prompt_file}"]
resume_headless = ["parrot", "{conversation_id}", "{prompt_file}"]
chooses_id = true
"""


COMMIT = "git -c user.name=x -c user.email=x@y commit -q --allow-empty"


class Office(SessionDesk):
    def __init__(self, folder) -> None:
        self.repo = Repo(folder)
        super().__init__(self.repo.top, BATON_AGENT="shell")
        self.env["HOME"] = str(folder)
        self.env["GIT_CONFIG_GLOBAL"] = "/dev/null"
        self.data = os.path.join(folder, ".local", "share", "baton", "worktrees")

    def processes(self):
        from support.processes import processes_with

        return processes_with("HOME", self.env["HOME"])

    def settings(self, text: str) -> None:
        path = Path(self.env["HOME"], ".config", "baton", "baton.toml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def job(self, *arguments: str, code: int = 0) -> dict:
        """Run a job to its end, and return its record."""
        before = {each["job_id"] for each in self("list", "--json").json}
        self("submit", "--worktree", *arguments, code=code)
        (job,) = (each for each in self("list", "--json").json if each["job_id"] not in before)
        return job

    def trees(self) -> list[dict]:
        return self("worktree", "list", "--json").json

    def until_free(self) -> list[dict]:
        wait_until(lambda: all(each["state"] != "in use" for each in self.trees()), what="no worktree in use")
        return self.trees()


@pytest.fixture
def office(tmp_path):
    office = Office(tmp_path)
    yield office
    office.close()


def test_a_job_works_in_its_own_worktree_until_it_is_merged(office):
    office.repo.write({"part/x.txt": "x\n"})
    office.repo.commit("part")
    validate = 'test "$(cat made.txt)" = done && pwd'
    office.folder = os.path.join(office.repo.top, "part")
    job = office.job("echo done > made.txt; pwd", "--expect", "made.txt", "--validate", validate, "--title", "Make it")
    path = job["checkout"]["path"]
    assert job["status"] == "completed"
    assert path.startswith(office.data)
    assert office("result", job["job_id"]).text == os.path.join(path, "part")
    assert office.repo.status() == "!! .hermes" or ".hermes" in office.repo.status()
    assert "+done" in office("diff", job["job_id"]).out
    assert "1 file changed" in office("diff", job["job_id"], "--stat").out
    (tree,) = office.until_free()
    assert (tree["state"], tree["holds"], tree["title"]) == ("unmerged", "1 untracked file", "Make it")
    merged = office("merge", job["job_id"], "--check", "--json").json
    assert Path(office.repo.top, "part", "made.txt").read_text() == "done\n"
    assert office.repo("log", "-1", "--format=%s") == "Make it"
    result = office("result", job["job_id"], "--json").json
    assert (result["worktree"], result["commits"]) == (path, [merged["commit"]])
    assert "was merged already" in office("merge", job["job_id"]).out
    assert (office.trees(), os.path.exists(path)) == ([], False)


def test_a_job_that_changed_nothing_is_not_merged(office):
    idle = office.job("true", "--title", "Idle")
    busy = office.job("echo x > busy.txt", "--title", "Busy")
    office.until_free()
    office("merge", busy["job_id"])
    head = office.repo("rev-parse", "HEAD")
    found = office("merge", idle["job_id"])
    assert found.text == f"{idle['job_id']}-1 has no changes: nothing was merged"
    assert head[:12] not in found.out + found.err
    assert office.repo("rev-parse", "HEAD") == head
    assert idle["job_id"] not in office.repo("for-each-ref", "refs/baton")
    assert office.trees() == []
    second = office.job("true")
    office.until_free()
    record = office("merge", second["job_id"], "--json").json
    assert (record["commit"], record["already"], record["kept"]) == (None, False, "")


def test_submit_and_wait_say_how_to_go_on_with_the_work_in_a_worktree(office):
    done = office("submit", "--worktree", "echo x > x.txt")
    (first,) = (each["job_id"] for each in office("list", "--json").json)
    line = f"its work is in a worktree: baton diff {first}, baton merge {first}"
    assert line in done.err.splitlines()
    assert line in office("wait", first).err.splitlines()
    assert "worktree" not in office("wait", first, "--json").err
    second = office.job("echo y > y.txt")["job_id"]
    both = f"their work is in worktrees: baton diff ID, baton merge ID for each of {first} {second}"
    assert both in office("wait", first, second).err.splitlines()
    office.until_free()
    office("merge", first)
    assert "worktree" not in office("wait", first).err
    assert "worktree" not in office("submit", "true").err
    assert "worktree" not in office("submit", "false", "--worktree", code=1).err


def test_what_a_validation_made_and_git_ignores_is_no_work(office):
    validate = 'mkdir .cache && echo "*" > .cache/.gitignore && echo x > .cache/x && echo y > y.o && test -e made.txt'
    job = office.job("echo done > made.txt", "--validate", validate)
    (tree,) = office.until_free()
    assert tree["holds"] == "1 untracked file"
    assert office("merge", job["job_id"], "--json").json["kept"] == ""
    assert (office.trees(), os.path.exists(job["checkout"]["path"])) == ([], False)
    assert not {".cache", "y.o"} & set(os.listdir(office.repo.top))


@pytest.mark.parametrize(
    ("task", "validate"),
    [
        ("echo work > work.o", "true"),
        ("echo work > work.o", "echo more >> work.o"),
        ("echo work > work.txt", "mv work.txt work.o"),
        ("true", "echo file > plain.txt"),
        ("(until test -e go.o; do sleep 0.02; done; echo work > work.o) > /dev/null 2>&1 &",
         "touch go.o; until test -s work.o; do sleep 0.02; done"),
    ],
    ids=["before", "changed", "moved", "not-ignored", "background"],
)  # fmt: skip
def test_what_may_be_work_is_kept_after_a_validation(office, task, validate):
    job = office.job(task, "--validate", validate)
    (tree,) = office.until_free()
    name = "plain.txt" if "plain" in validate else "work.o"
    assert tree["holds"], name
    assert "such as" in office("worktree", "remove", job["job_id"], code=1).err
    assert os.path.getsize(os.path.join(job["checkout"]["path"], name))


def test_a_validation_in_a_worktree_leaves_no_bytecode_unless_the_user_wants_it(office):
    office.env.pop("PYTHONDONTWRITEBYTECODE", None)
    job = office.job("echo x = 1 > module.py", "--validate", "python3 -c 'import module'")
    office.until_free()
    assert "__pycache__" not in os.listdir(job["checkout"]["path"])
    office.env["PYTHONDONTWRITEBYTECODE"] = ""
    job = office.job("echo x = 1 > module.py", "--validate", "python3 -c 'import module'")
    office.until_free()
    assert "__pycache__" in os.listdir(job["checkout"]["path"])


def test_a_batch_works_side_by_side_and_a_conflict_changes_nothing(office):
    lines = [{"prompt": f"echo {name} > a.txt; echo {name} > {name}.txt", "worktree": True} for name in ("one", "two")]
    lines.append({"prompt": "echo plain", "worktree": False})
    office("submit", "--batch", "-", stdin="\n".join(map(json.dumps, lines)), BATON_WORKTREE="1")
    jobs = {each["prompt"].split()[1]: each for each in office("list", "--json").json}
    assert jobs["plain"]["worktree"] is None
    one, two = jobs["one"]["job_id"], jobs["two"]["job_id"]
    office("merge", one, "--squash")
    before = (office.repo("rev-parse", "HEAD"), office.repo.status())
    assert "conflicts with main in a.txt; nothing was changed" in office.refused("merge", two)
    assert (office.repo("rev-parse", "HEAD"), office.repo.status()) == before
    assert "holds what is found nowhere else" in office.refused("worktree", "remove", two)
    office("worktree", "salvage", two)
    left = [(each["state"], each["ref"]) for each in office.trees() if each["state"] != "squashed"]
    assert left == [("salvaged", f"refs/baton/salvage/{two}-1")]
    assert office.repo("show", f"refs/baton/salvage/{two}-1:two.txt") == "two"
    office("prune", "--older-than", "0s")
    assert office.repo("show", f"refs/baton/salvage/{two}-1:two.txt") == "two"


def test_the_single_commits_of_a_squashed_job_are_listed(office):
    job = office.job(f"{COMMIT} -m first; {COMMIT} -m second; echo x > x.txt")
    office.until_free()
    office("merge", job["job_id"], "--squash")
    (left,) = office.trees()
    assert (left["state"], left["ref"]) == ("squashed", f"refs/baton/merged/{job['job_id']}-1")
    assert "squashed jobs (1) stay" in office("worktree", "list").err


def test_a_worktree_that_was_removed_by_hand_has_nothing_to_merge(office):
    job = office.job("echo new > new.txt")
    (tree,) = office.until_free()
    shutil.rmtree(tree["path"])
    assert "is gone: what was not committed there is gone, too" in office("diff", job["job_id"]).err
    merged = office("merge", job["job_id"])
    assert "has no changes: nothing was merged" in merged.out
    assert "is gone: what was not committed" in merged.err
    assert office.trees() == []


def test_what_a_job_left_in_a_submodule_is_listed(office, tmp_path):
    office.repo.add_submodule(tmp_path)
    job = office.job(f"(cd sub && {COMMIT} -m inner) && {COMMIT} -m outer sub")
    office.until_free()
    office("merge", job["job_id"])
    (left,) = office.trees()
    assert (left["state"], left["holds"]) == ("branch", f"refs/heads/baton/{job['job_id']}-1")
    assert left["repository"].endswith("modules/sub")


def test_the_settings_of_the_repository_prepare_the_worktree(office):
    office.settings(
        f'[repository."{office.repo.top}"]\nworktree = true\nworktree_copy = [".env"]\n'
        'worktree_setup = "echo prepared > setup.o"\nworktree_keep = "always"\n'
    )
    office.repo.write({".env": "key\n", ".gitignore": "*.o\n.env\n.hermes\n"})
    office.repo("add", ".gitignore")
    office.repo("commit", "-qm", "ignore")
    office("submit", "cat .env setup.o; touch new")
    (job,) = office("list", "--json").json
    assert office("result", job["job_id"]).text == "key\nprepared"
    office("merge", job["job_id"])
    (tree,) = office.trees()
    assert (tree["state"], tree["holds"]) == ("merged", "1 ignored file")
    assert "nothing to remove" in office("worktree", "remove", "--merged").err
    office("worktree", "remove", "--merged", "--force")
    assert office.trees() == []
    home = Path(office.home).resolve() / "baton.toml"
    home.write_text('worktree_setup = "touch /tmp/x"\n')
    assert "belongs into [repository" in office.refused("list", code=64)


def test_a_follow_up_goes_on_in_the_worktree_and_a_retry_gets_another(office, tmp_path):
    office.settings(TABLE)
    program = tmp_path / "bin" / "parrot"
    program.parent.mkdir()
    program.write_text(PARROT)
    program.chmod(0o755)
    office.env["PATH"] = f"{program.parent}:{office.env['PATH']}"
    publish = 'baton publish --event completed --detail ok; echo "$BATON_JOB_ID" >> list.txt'
    first = office.job(publish, "--agent", "parrot", "--headless")
    office("follow-up", first["job_id"], publish)
    office("retry", first["job_id"])
    retried, followed, _ = office("list", "--json").json
    assert followed["checkout"] == first["checkout"]
    assert retried["checkout"]["path"] != first["checkout"]["path"]
    assert retried["checkout"]["base"] == first["checkout"]["base"]
    path = Path(first["checkout"]["path"])
    assert (path / "list.txt").read_text().split() == [first["job_id"], followed["job_id"]]
    places = (tmp_path / "places").read_text().split()
    assert places == [str(path), str(path), retried["checkout"]["path"]]
    office("merge", followed["job_id"])
    assert not path.exists()
    office("follow-up", followed["job_id"], publish)  # the worktree is made again, where it was
    assert (path / "list.txt").read_text().split()[:2] == [first["job_id"], followed["job_id"]]


def test_another_job_is_a_base(office):
    first = office.job("echo one > one.txt", "--title", "First")
    second = office.job("cat one.txt; echo two > two.txt", "--base", first["job_id"])
    assert office("result", second["job_id"]).text == "one"
    assert office.repo("log", "-1", "--format=%s", f"baton/{first['job_id']}-1") == "First"
    office("merge", second["job_id"])
    assert {"one.txt", "two.txt"} <= set(os.listdir(office.repo.top))
    assert "merged" in office("merge", first["job_id"]).out


def test_a_job_after_another_begins_with_its_work(office):
    lines = [
        {"prompt": "echo 1 > one.txt", "title": "one"},
        {"prompt": "cat one.txt; echo 2 > two.txt", "title": "two", "after": ["one"]},
        {"prompt": "ls", "title": "three", "after": ["one", "two"], "base": "main"},
    ]
    office("submit", "--worktree", "--batch", "-", stdin="\n".join(map(json.dumps, lines)))
    jobs = {each["title"]: each["job_id"] for each in office("list", "--json").json}
    assert office("result", jobs["two"]).text == "1"
    assert "one.txt" not in office("result", jobs["three"]).text
    assert office.repo("rev-parse", f"baton/{jobs['two']}-1~1") == office.repo("rev-parse", "main")
    more = ("--after", jobs["one"], "--after", jobs["two"])
    assert "base is required after several" in office.refused("submit", "--worktree", "true", *more, code=64)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--base", "nonsense"), "base 'nonsense' is no commit"),
        (("--base=-x",), "base '-x' is no commit, branch"),
        (("--workdir", "/tmp"), "--worktree: /tmp is not in a git repository"),
        (("--expect", "/etc/passwd"), "must be relative"),
    ],
)
def test_a_worktree_that_cannot_be_made_is_refused_before_anything_is(office, arguments, why):
    assert why in office.refused("submit", "--worktree", "true", *arguments, code=64)
    assert office("list", "--json").json == []
    assert not os.path.exists(office.data)


def test_a_base_without_a_worktree_and_commands_without_one_are_refused(office):
    assert "give --worktree, too" in office.refused("submit", "true", "--base", "HEAD", code=64)
    office("submit", "true")
    (job,) = office("list", "--json").json
    for verb in ("diff", "merge"):
        assert "has no worktree" in office.refused(verb, job["job_id"])
    assert "no worktree of a job" in office.refused("worktree", "remove", job["job_id"])


def test_a_cancelled_preparation_leaves_nothing(office, tmp_path):
    office.settings(f'[repository."{office.repo.top}"]\nworktree_setup = "touch {tmp_path}/began; sleep 600"\n')
    job_id = office("submit", "--worktree", "--detach", "echo never > never").text
    wait_until((tmp_path / "began").exists, what="the setup")
    wait_until(lambda: (office("get", job_id).json["activity"] or {}).get("kind") == "starting", what="its activity")
    explained = office("explain", job_id, "--json").json
    assert (explained["state"], explained["cause"]) == ("starting", "its worktree is being made")
    office("monitor", "--once")
    assert office.trees()[0]["state"] == "in use"
    office("cancel", job_id)
    wait_until(lambda: not office.runners(), what="its runner has ended")
    assert (office.trees(), office.repo("branch", "--list", "baton/*")) == ([], "")
    assert list(Path(office.data).glob("*/*.log")) == []


def test_a_killed_runner_leaves_its_work_and_the_next_attempt_has_another_worktree(office, tmp_path):
    script = f"echo $BATON_ATTEMPT >> work.txt; [ $BATON_ATTEMPT = 2 ] || {{ touch {tmp_path}/began; sleep 600; }}"
    job_id = office("submit", "--worktree", "--detach", "--max-attempts", "2", script).text
    wait_until((tmp_path / "began").exists, what="the first attempt")
    (runner,) = office.runners()
    os.kill(runner.pid, signal.SIGKILL)
    wait_until(
        lambda: office("monitor", "--once") and office("status", job_id).text == "completed", what="the second attempt"
    )
    paths = {each["name"]: Path(each["path"], "work.txt").read_text() for each in office.until_free()}
    assert paths == {f"{job_id}-1": "1\n", f"{job_id}-2": "2\n"}
    assert "names several worktrees" in office.refused("worktree", "salvage", job_id)
    office("worktree", "salvage", f"{job_id}-1")
    office("merge", job_id)
    assert Path(office.repo.top, "work.txt").read_text() == "2\n"


def test_python_gives_a_job_a_worktree(office, monkeypatch):
    import baton

    for name, value in office.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(office.repo.top)
    outcome = baton.submit("echo x > new.txt", agent="shell", worktree=True, base="main").check()
    assert git(outcome.job.checkout["path"], "status", "--porcelain") == "?? new.txt"
    assert baton.result(outcome.job.job_id).worktree == outcome.job.checkout["path"]
