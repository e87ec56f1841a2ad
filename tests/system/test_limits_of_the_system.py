"""No more open files, processes or room when a job is started: the job is ended with the reason, or the command says
that it is pending and what to type."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.office import Office
from support.small_disk import SmallDisk

FILES, PROCESSES, ROOM = "ulimit -n 1024", "ulimit -u", "free some and try again"
NO_BROKER = "192.0.2.1"  # which is refused at once: it is on another machine
ANOTHER_USER = 61234
# A user whose processes are counted, and who may read the interpreter wherever it lies. Root has no limit.
AS_ANOTHER_USER = (
    "setpriv", f"--reuid={ANOTHER_USER}", f"--regid={ANOTHER_USER}", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
)  # fmt: skip


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path, MQTT_BROKER=NO_BROKER) as office:
        yield office


def expect_the_truth(office, done, advice):
    """The job has ended with the reason, or is pending and the last line says so and what to type."""
    assert done.code == 1, done
    assert "Traceback" not in done.err, done
    assert "unexpected" not in done.err, done
    assert "baton wait" not in done.err, done
    assert advice in done.out + done.err, done
    job = office.jobs()[0]
    assert job["status"] in ("pending", "error", "cancelled"), job
    if job["status"] == "pending":
        assert f"baton cancel {job['job_id']} && baton retry {job['job_id']}" in done.err, done
    if job["status"] == "error":
        assert advice in job["reason"], job


@pytest.mark.parametrize("number", [11, 12, 13])
def test_a_job_that_too_few_open_files_keep_from_starting_is_ended(office, number):
    office.prefix = ["prlimit", f"--nofile={number}"]
    done = office.submit("true", code=None)
    office.prefix = []
    expect_the_truth(office, done, FILES)


def test_detached_and_in_python_such_a_job_is_ended_and_the_error_names_it(office):
    office.prefix = ["prlimit", "--nofile=12"]
    said = office.submit("true", "--detach", code=1).err
    program = "import baton\ntry: baton.submit('true', agent='shell', detach=True)\nexcept baton.BatonError as error: print(error)"
    python = subprocess.run(
        ["prlimit", "--nofile=14", sys.executable, "-c", program],
        cwd=office.folder, env=office.env, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    office.prefix = []
    for job, text in zip(reversed(office.jobs()), (said, python.stdout), strict=True):
        assert job["status"] == "error", (job, text)
        assert FILES in job["reason"]
        assert FILES in text
        assert f"baton retry {job['job_id']}" in text
    assert not office.sessions()


@pytest.mark.as_root
def test_a_job_that_too_few_processes_keep_from_starting_is_ended(tmp_path):
    os.chown(tmp_path, ANOTHER_USER, ANOTHER_USER)
    with Office(tmp_path, MQTT_BROKER=NO_BROKER) as office:
        office.prefix = [*AS_ANOTHER_USER, "prlimit", "--nproc=2"]
        done = office.submit("true", code=1)
        office.prefix = [*AS_ANOTHER_USER]
        (job,) = json.loads(office("list", "--json").out)
        assert (job["status"], job["reason"] in done.out) == ("error", True), (job, done)
        assert PROCESSES in job["reason"]


@pytest.mark.as_root
@pytest.mark.parametrize("pages_left", [24, 28, 32, 36])
def test_a_job_that_a_full_disk_keeps_from_starting_is_ended_or_said_to_be_pending(tmp_path, pages_left):
    with (
        SmallDisk(str(tmp_path / ".hermes"), size_kib=4096) as disk,
        Office(tmp_path, BATON_HOME=disk.folder, MQTT_BROKER=NO_BROKER) as office,
    ):
        office("cancel", office("register", "the home has what a job needs").text)
        with disk.full(pages_left):
            done = office.submit("true", code=None)
        expect_the_truth(office, done, ROOM)
        office.submit("true")


# -- what belongs to another user ------------------------------------------------------------------------------------


@pytest.fixture
def open_folder():
    """A folder that every user may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="bt-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def user(open_folder):
    """The command as an ordinary user with a home of his own."""
    mine = open_folder / "mine"
    mine.mkdir()
    os.chown(mine, ANOTHER_USER, ANOTHER_USER)
    with Office(mine, MQTT_BROKER=NO_BROKER) as office:
        office.prefix = [*AS_ANOTHER_USER]
        yield office


@pytest.mark.as_root
def test_a_repository_of_another_user_is_refused_with_its_owner_and_the_whole_command(user, open_folder):
    theirs = open_folder / "theirs"
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run([*git, "init", "-q", theirs], check=True)
    subprocess.run([*git, "-C", theirs, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    submit = ("submit", "--worktree", "--workdir", str(theirs), "true")
    command = f"git config --global --add safe.directory {theirs}"
    said = f"--worktree: the repository {theirs} belongs to the user root; if you trust it, let git use it: {command}"
    assert user.refused(*submit, code=64) == f"baton: {said}\n"
    subprocess.run([*user.prefix, *command.split()], env=user.env, check=True)
    said = user.refused(*submit, code=64)
    assert f"{theirs}/.git belongs to the user root and you may not write there" in said
    assert f"git clone {theirs}" in said


@pytest.mark.as_root
def test_a_closed_work_folder_is_named_with_its_owner(open_folder):
    folder = open_folder / "closed"
    (folder / "inside").mkdir(parents=True)
    # By its own process: the other tests run as a user who may enter each folder, also that of the interpreter.
    program = f"""
import os, pwd, shutil, sys
from baton.adapters import find_agent
from baton.sessions.launch import check_launch
from baton.storage.homes import load_settings
settings = load_settings(dict(agent="shell"))
check_launch(settings, "shell", workdir="/", prompt="true")  # loads what it needs
os.setgroups([]), os.setgid({ANOTHER_USER}), os.setuid({ANOTHER_USER})
try:
    check_launch(settings, "shell", workdir=sys.argv[1], prompt="true")
except Exception as error:
    print(error)
"""
    folder.chmod(0o700)
    told = subprocess.run(
        [sys.executable, "-c", program, folder / "inside"], capture_output=True, text=True, check=True
    ).stdout
    assert told.startswith(f"workdir {folder} belongs to the user root and is closed to you; "), told


@pytest.mark.as_root
@pytest.mark.parametrize("verb", [["submit", "true"], ["register", "x"], ["session", "create", "a"]])
def test_a_home_folder_that_cannot_be_written_is_refused_with_what_to_set(user, open_folder, verb):
    (open_folder / "theirs").mkdir()
    theirs = str(open_folder / "theirs")
    said = user.refused(*verb, HOME=theirs)
    assert f"{theirs}/.local: Permission denied" in said
    assert "set BATON_STATE_DIR to a folder that you may write" in said
    assert f"{theirs} is not writable; set BATON_STATE_DIR" in user("doctor", code=1, HOME=theirs).out
    user("register", "x", HOME=theirs, BATON_STATE_DIR=str(open_folder / "mine" / "state"))


# -- the length of files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kib", [1, 40])
def test_a_file_that_may_not_become_longer_is_named(office, kib):
    office("register", "x")
    office.prefix = ["prlimit", f"--fsize={kib * 1024}"]
    said = office.refused("register", "x" * 50_000)
    assert (
        "registry.db: File too large (files of this process may not become longer; raise the limit: ulimit -f" in said
    )


def test_a_file_of_the_broker_that_may_not_become_longer_is_named(office):
    office.prefix = ["prlimit", "--fsize=100"]
    said = office.refused("broker", "up", MQTT_BROKER="")
    assert re.search(r"/broker/\S+: File too large", said), said


# -- the local broker ------------------------------------------------------------------------------------------------


@pytest.mark.as_root
def test_a_local_broker_that_does_not_start_is_said_once_and_in_a_sentence(user, open_folder):
    programs = open_folder / "programs"  # the folder of the interpreter may be closed to this user
    programs.mkdir()
    shutil.copy(Path(sys.executable).parent / "nats-server", programs)
    user.env |= {"MQTT_BROKER": "", "PATH": f"{programs}:{user.env['PATH']}"}
    user.prefix.extend(["prlimit", "--nproc=4"])
    line = user.refused("broker", "up")
    assert line.startswith("baton: the local broker did not start: Resource temporarily unavailable")
    assert PROCESSES in line
    said = user.submit("true", code=None).err
    assert said.count("the local broker did not start") == 1, said
    assert "goroutine" not in said
