"""How a job ended is said in the same words everywhere: verified by which check, done by its own word, failed by what."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.mcp import McpClient
from support.office import Office
from support.repositories import Repo
from support.waiting import wait_until

UNCHECKED = "unchecked: only the word of its agent"


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office


@pytest.fixture
def repo(tmp_path):
    (tmp_path / "at").mkdir()
    return Repo(tmp_path / "at")


def ended(office, *arguments, code=0):
    """The id of a job that has ended, and what `submit` said."""
    done = office.submit(*arguments, code=code)
    return office.jobs()[0]["job_id"], done


def in_worktree(office, repo, *arguments, code=0):
    office.env["GIT_CONFIG_GLOBAL"] = "/dev/null"
    return ended(office, "--worktree", "--workdir", repo.top, *arguments, code=code)


CASES = [
    (["echo x > out.txt", "--validate", "test -s out.txt"], "completed", "verified", "test -s out.txt passed", "validated"),
    (["echo x > out.txt", "--expect", "out.txt"], "completed", "verified", "out.txt is there", "ran"),
    (["touch a; echo x | tee b c", "--expect", "b", "--expect", "c"], "completed", "verified", "its 2 files are there", "ran"),
    (["true"], "completed", "done", UNCHECKED, "said"),
    (["true", "--validate", "echo broken; false"], "error", "failed",
     "check: the validation failed with exit code 1: broken", None),
    (["exit 7"], "error", "failed", "the command ended with exit code 7", None),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "status", "word", "note", "grade"), CASES)
def test_every_surface_says_how_a_job_ended(office, arguments, status, word, note, grade):
    job_id, done = ended(office, *arguments, code=None)
    said = f"job {job_id} {word}: {note}"
    assert said in done.err.splitlines()
    assert "baton merge" not in done.err
    waited = office("wait", job_id, code=None)
    assert said in waited.err.splitlines()
    last = f"{word}: {note}" if status == "completed" else note.replace("check: ", "not completed: ")
    assert waited.text == f"{job_id}\t{status}\t{last}"
    line = office("list").text.split("\t")
    assert (line[1], line[8]) == (status, "-" if status == "completed" else last)  # as in 0.2.0
    assert line[9] == f"{word}: {note}"
    assert f"ended     {word}: {note} (attempt 1)" in office("explain", job_id).text
    assert f"{word}: {note}" in office("result", job_id, code=None).err
    for record in (
        office("get", job_id).json, office("list", "--json").json[0], office("result", job_id, "--json").json,
        office("wait", job_id, "--json", code=None).json, office("explain", job_id, "--json").json,
        office("status", job_id, "--json").json,
    ):  # fmt: skip
        assert (record["grade"], record["changed"]) == (grade, None)
        assert {"grade", "changed"} <= set(list(record)[-8:])
    with McpClient(office.folder, office.env) as client:
        (listed,) = client.call("list")["jobs"]
        (waited,) = client.call("wait", job_ids=[job_id])["jobs"]
        left = client.call("result", job_id=job_id, output=True)
    for shown in (listed, waited, left):
        assert (shown["status"], shown["state"], shown.get("grade")) == (status, word, grade)
        assert shown["reason"].startswith(note)


def test_an_agent_that_changed_nothing_is_done_even_where_its_check_passed(office, repo):
    job_id, done = in_worktree(office, repo, "true", "--validate", "touch from-the-check; test -e a.txt")
    assert f"job {job_id} done: changed nothing; touch from-the-check; test -e a.txt passed" in done.err
    assert "merge" not in done.err
    assert "merge" not in office("wait", job_id).err
    record = office("get", job_id).json
    assert (record["status"], record["grade"], record["changed"]) == ("completed", "validated", False)
    with McpClient(office.folder, office.env) as client:
        (waited,) = client.call("wait", job_ids=[job_id])["jobs"]
        assert (waited["state"], waited["ok"], waited["changed"]) == ("done", True, False)


def test_an_agent_that_changed_nothing_and_has_no_check_is_done(office, repo):
    job_id, done = in_worktree(office, repo, "true")
    assert f"job {job_id} done: changed nothing, unchecked" in done.err
    assert "merge" not in done.err


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("echo more >> a.txt", True),
        ("rm a.txt", True),
        ("echo new > new.txt", True),
        ("git -c user.name=x -c user.email=x@y commit -q --allow-empty -m x", True),
        ("git init -q inner && touch inner/x", True),
        ("echo x > built.o", False),  # ignored
        ("mkdir -p lib/__pycache__ node_modules/x && touch lib/__pycache__/x.pyc x.pyc node_modules/x/y", False),
    ],
)
def test_what_counts_as_a_change(office, repo, command, changed):
    job_id, done = in_worktree(office, repo, command)
    assert office.job(job_id)["changed"] is changed
    assert (f"baton merge {job_id}" in done.err) is changed
    assert (f"baton merge {job_id}" in office("wait", job_id).err) is changed
    office("worktree", "remove", job_id, "--force", code=None)


def test_a_product_that_is_expected_is_a_change(office, repo):
    job_id, _ = in_worktree(office, repo, "echo x > x.pyc", "--expect", "x.pyc")
    assert office.job(job_id)["changed"] is True


def test_a_failed_job_tells_whether_it_changed_anything(office, repo):
    job_id, done = in_worktree(office, repo, "echo new > new.txt; exit 3", code=1)
    assert (office.job(job_id)["changed"], office.job(job_id)["grade"]) == (True, None)
    assert "merge" not in done.err


def test_a_job_whose_change_is_not_known_offers_its_diff_alone(office, repo):
    job_id, _ = in_worktree(office, repo, "echo new > new.txt")
    with closing(sqlite3.connect(os.path.join(office.settings.home, "jobs", "registry.db"))) as db, db:
        db.execute("UPDATE jobs SET other_fields = json_remove(other_fields, '$.changed')")  # as 0.2.0 leaves it
    assert office.job(job_id)["changed"] is None
    said = office("wait", job_id).err
    assert f"its changes, if any, are in a worktree: baton diff {job_id}" in said
    assert "merge" not in said


def test_a_notification_says_how_a_job_ended(office):
    config = Path(office.env["HOME"], ".config", "baton", "baton.toml")
    config.parent.mkdir(parents=True)
    told = office.folder / "told"
    config.write_text(f'[notify]\ncommand = ["/bin/sh", "-c", "cat > {told}.new && mv {told}.new {told}"]\n')
    ended(office, "true", "--validate", "true")
    event = json.loads(wait_until(lambda: told.exists() and told.read_text(), what="the notification"))
    assert (event["kind"], event["ending"]) == ("completed", "verified: true passed")
    assert list(event)[-3:] == ["ending", "grade", "changed"]


def test_a_skipped_check_is_no_verification(office):
    job_id = office("register", "x", "--queue", "q", "--validate", "false").text
    office("status", job_id, "--set", "running")
    office("status", job_id, "--set", "completed", "--no-verify")
    shown = office("wait", job_id)
    assert shown.text.startswith(f"{job_id}\tcompleted\tdone: unchecked: skipped by ")
    assert office.job(job_id)["grade"] == "said"


def test_the_table_of_a_terminal_names_the_end(office):
    running = office.start("submit", "true", "--validate", "true", terminal=True)
    assert "1 verified in" in running.end().out
    assert "true passed" in running.screen
