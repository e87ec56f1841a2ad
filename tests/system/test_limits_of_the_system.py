"""No more open files, processes or room when a job is started: the job is ended with the reason, or the command says
that it is pending and what to type."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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


@pytest.mark.as_root
def test_a_local_broker_that_does_not_start_is_said_once_and_in_a_sentence(tmp_path):
    os.chown(tmp_path, ANOTHER_USER, ANOTHER_USER)
    with Office(tmp_path) as office:
        office.prefix = [*AS_ANOTHER_USER, "prlimit", "--nproc=4"]
        (line,) = office("broker", "up", code=1).err.splitlines()
        assert line.startswith("baton: the local broker did not start: Resource temporarily unavailable")
        assert PROCESSES in line
        said = office.submit("true", code=None).err
        assert said.count("the local broker did not start") == 1, said
        assert "goroutine" not in said
