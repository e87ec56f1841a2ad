"""Commands that read the homes of all folders: there may be more of them than a process may open files."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

from baton.jobs.verbs import open_jobs
from support.command import BATON
from support.homes import make_many, settings_in
from support.web import ask
from support.web import start as start_job

LOOK = """
import os, sys
from baton.board.query import Board
from baton.storage.homes import load_settings
board = Board(load_settings())
board.refresh()
print(len(board.cards), len(board.troubles), len(os.listdir("/proc/self/fd")))
"""


def env_of(root):
    return {"PATH": os.environ["PATH"], "HOME": str(root), "LANG": "C.UTF-8", "BATON_STATE_DIR": f"{root}/state"}


def start(root, files, *argv):
    """Start a program that may open so many files."""
    return subprocess.Popen(
        argv, cwd=root / "0", env=env_of(root), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
    )  # fmt: skip


def jobs_in(root, name):
    return open_jobs(settings_in(root / name, env_of(root)))


def run(root, files, *argv):
    process = start(root, files, *argv)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, ""), err[:1000]
    return out


def test_a_board_and_a_sweep_work_with_a_thousand_homes_under_1024_open_files(tmp_path):
    make_many(tmp_path, 1000, env_of(tmp_path))
    cards, troubles, files = map(int, run(tmp_path, 1024, sys.executable, "-c", LOOK).split())
    assert (cards, troubles) == (1000, 0)
    assert files < 128
    assert run(tmp_path, 1024, BATON, "monitor", "--all-homes", "--once") == ""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("homes")
    make_many(root, 120, env_of(root))
    return root


def test_lists_of_all_homes_open_fewer_files_than_there_are_homes(root):
    assert len(run(root, 110, BATON, "list", "--all-homes").splitlines()) == 120
    assert json.loads(run(root, 110, BATON, "requests", "--all-homes", "--json")) == []


def test_a_monitor_of_all_homes_keeps_no_file_open_for_each(root):
    with jobs_in(root, "99") as jobs:
        job = jobs.register_job("work", max_attempts=2)
        jobs.pick_job(job.job_id, lease_sec=0.05)
    process = start(root, 110, BATON, "monitor", "--all-homes", "--interval", "0.05")
    try:
        assert f"{root}/99: job {job.job_id}: the lease of" in process.stdout.readline()
    finally:
        process.terminate()
    assert "Too many" not in process.communicate()[1]


def test_the_requests_of_all_homes_are_followed_with_few_open_files(root):
    with jobs_in(root, "98") as one, jobs_in(root, "99") as two:
        first = ask(one, start_job(one, "work"), {"command": "make"})
        process = start(root, 110, BATON, "requests", "--all-homes", "--follow", "--json")
        try:
            assert json.loads(process.stdout.readline())["request_id"] == first.request_id
            second = ask(two, start_job(two, "work"), {"command": "make"})
            assert json.loads(process.stdout.readline())["request_id"] == second.request_id
        finally:
            process.terminate()
        assert process.communicate()[1] == ""
