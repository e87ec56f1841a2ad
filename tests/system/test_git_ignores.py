"""Folders that baton makes inside a repository of the user: git ignores them, and nothing else."""

from __future__ import annotations

import subprocess

import pytest

from support.command import Baton


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


@pytest.fixture
def baton(repository, tmp_path):
    return Baton(repository, HOME=str(tmp_path), BATON_STATE_DIR=str(tmp_path / "state"))


def untracked(folder):
    done = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.split()[1::2]


@pytest.mark.parametrize("registry", ["--registry-dir=deep/jobs", "--registry=file:deep/jobs"])
def test_the_registry_and_the_logs_are_ignored_when_they_are_first_written(baton, repository, registry):
    for empty in (False, True):
        logs = "logs-2" if empty else "logs"
        if empty:
            (repository / logs).mkdir()
        job = baton("register", "x", registry, DELEGATE_JOB_LOGS_DIR=logs).text
        baton("status", job, "--set", "cancelled", registry, DELEGATE_JOB_LOGS_DIR=logs)
        assert (repository / logs / job / "events.ndjson").exists()
    assert len(baton("list", "--json", registry).json) == 2
    assert untracked(repository) == []


def test_a_folder_with_content_of_the_user_is_not_hidden(baton, repository):
    (repository / "data").mkdir()
    (repository / "data" / "mine.txt").write_text("mine")
    baton("register", "x", "--registry-dir", "data", DELEGATE_JOB_LOGS_DIR="data")
    assert "data/mine.txt" in untracked(repository)
    baton("register", "x", "--registry-dir", ".")
    assert "data/mine.txt" in untracked(repository)
    assert not (repository / ".gitignore").exists()


def test_outside_a_repository_there_is_nothing_to_ignore(tmp_path):
    baton = Baton(tmp_path)
    baton("register", "x", "--registry-dir", "jobs", DELEGATE_JOB_LOGS_DIR="logs")
    assert [*tmp_path.glob("jobs/.gitignore"), *tmp_path.glob("logs/.gitignore")] == []


def test_a_folder_named_git_that_is_no_repository_stays_as_it_is(tmp_path):
    (tmp_path / ".git").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    baton = Baton(work, HOME=str(tmp_path))
    baton("register", "x", "--registry-dir", "jobs", DELEGATE_JOB_LOGS_DIR="logs")
    baton("register", "x")
    assert list((tmp_path / ".git").iterdir()) == []
    assert [*work.glob("jobs/.gitignore"), *work.glob("logs/.gitignore")] == []
