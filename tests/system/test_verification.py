"""No agent talks its way around the checks of its work; a person may skip them, and that shows."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

import baton
from baton.jobs.verbs import open_jobs
from support.office import Office
from support.waiting import wait_until


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office


# How an agent may call baton: as it is, without the variables of its session, and far from its own process.
WAYS = {
    "plainly": "sh call",
    "without variables": "env -u BATON_SESSION_ID -u BATON_SESSION_DIR sh call",
    "from a process of its own": 'env -i PATH="$PATH" HOME="$HOME" setsid sh -c \'(sh call) &\'',
    "by tmux": 'tmux run-shell -b "env -i PATH=$PATH HOME=$HOME sh $PWD/call"',
    "from other namespaces": 'env -i PATH="$PATH" HOME="$HOME" unshare -c -p -f sh call',
}


def prompt(office, way, *command):
    """An agent that makes this call and waits for its end; answer and exit code go into files."""
    home = os.path.join(office.folder, ".hermes")
    where = ["--home", home, "--registry-dir", os.path.join(home, "jobs")]  # for an empty environment
    call = f"baton {' '.join([*command, *where])} > answer 2>&1; echo $? > code.new; mv code.new code"
    with open(os.path.join(office.folder, "call"), "w") as file:
        file.write(f"cd {office.folder}; {call}")
    return f'echo "$BATON_JOB_ID" > id; {WAYS[way]}; until test -e code; do sleep 0.05; done'


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_cannot_skip_the_checks(office, tmp_path, way):
    skip = prompt(office, way, "publish", "--job", "$(cat id)", "--event", "completed", "--no-verify")
    assert office.start("submit", skip, "--validate", "false").end().code == 1
    assert "--no-verify is refused inside a session" in (tmp_path / "answer").read_text()
    assert (tmp_path / "code").read_text() == "1\n"
    job = office.the_job()
    assert job["status"] == "error"
    assert "the validation failed" in job["detail"]


@pytest.mark.parametrize("way", ["plainly", "from a process of its own"])
def test_setting_the_status_verifies_as_publish_does(office, tmp_path, way):
    claim = prompt(office, way, "status", "$(cat id)", "--set", "completed")
    assert office.start("submit", claim, "--expect", "result").end().code == 1
    assert "result is missing" in (tmp_path / "answer").read_text()
    assert office.the_job()["status"] == "error"


def test_setting_the_status_skips_the_checks_for_a_person_only(office, tmp_path):
    job = office("register", "work", "--expect", "result").text
    office("pick", "--agent", "shell")
    assert "result is missing" in office.refused("status", job, "--set", "completed")
    assert office("status", job, "--set", "completed", "--no-verify").text == "completed"
    assert office.job(job)["unverified"]
    assert office.job(job)["verified_by"] == []


def test_the_record_names_the_checks_that_ran(office, tmp_path):
    office.submit("echo 1 > out", "--expect", "out", "--validate", "test -s out")
    job = office.the_job()
    assert job["verified_by"] == ["expect: out", "validate: test -s out"]
    assert job["unverified"] is None
    said = f"job {job['job_id']} verified: test -s out passed, out is there\n"
    assert office("wait", job["job_id"]).err == said, "no warning"


def test_a_job_without_conditions_has_neither(office):
    office.submit("true")
    job = office.the_job()
    assert (job["verified_by"], job["unverified"]) == ([], None)


def test_a_person_skips_the_checks_and_those_who_wait_are_warned(office, tmp_path):
    submitted = office.start("submit", "until test -e go; do sleep 0.05; done", "--validate", "false")
    job = wait_until(lambda: (found := office.jobs("running")) and found[0]["job_id"])
    office("publish", job, "--event", "completed", "--no-verify")
    (tmp_path / "go").touch()
    ended = submitted.end()
    assert ended.code == 0
    assert "its results were not verified: skipped by" in ended.err
    assert "skipped by --no-verify" in office("logs", job).out
    waited = office("wait", job)
    assert "its results were not verified: skipped by" in waited.err


def test_a_completion_without_any_check_is_exit_code_1(office, tmp_path):
    """A program that writes to the registry itself."""
    job = office("register", "work", "--expect", "result").text
    state = str(tmp_path / ".local" / "state" / "baton")
    baton.record_event(job, "completed", home=str(tmp_path / ".hermes"), state_dir=state)
    waited = office("wait", job, code=1)
    assert "no check of its results is recorded" in waited.err


# -- which program validates ---------------------------------------------------------------------------------------


def false_program(folder, name, text="exit 0"):
    folder.mkdir()
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return folder


def test_an_agent_cannot_hide_the_environment_of_its_session(office, tmp_path):
    """In another user namespace it may not look into its runner."""
    forged = false_program(tmp_path / "forged", "judge")
    script = f'PATH="{forged}:$PATH" unshare -c baton publish --event completed > answer 2>&1'
    honest = false_program(tmp_path / "honest", "judge", "exit 1")
    office("submit", script, "--validate", "judge", code=1, PATH=f"{honest}:{os.environ['PATH']}")
    assert "the environment of its session cannot be read" in (tmp_path / "answer").read_text()


@pytest.mark.parametrize("claim", ["publish --event completed", "status --set completed $BATON_JOB_ID"])
def test_an_agent_cannot_put_another_program_before_the_one_that_validates(office, tmp_path, claim):
    honest = false_program(tmp_path / "honest", "judge", "echo honest; exit 1")
    forged = false_program(tmp_path / "forged", "judge")
    script = f'PATH="{forged}:$PATH" baton {claim} > answer 2>&1'
    path = f"{honest}:{os.environ['PATH']}"
    assert office("submit", script, "--validate", "judge", code=1, PATH=path).code == 1
    assert "the validation failed with exit code 1: honest" in (tmp_path / "answer").read_text()
    assert office.the_job()["status"] == "error"


def test_the_agents_other_variables_do_not_reach_the_validation(office, tmp_path):
    script = "PLANTED=1 baton publish --event completed > answer 2>&1"
    office.submit(script, "--validate", 'test -z "$PLANTED" && test "$GIVEN" = yes', GIVEN="yes")
    assert office.the_job()["verified_by"]


def test_a_validation_knows_its_job(office, tmp_path):
    words = 'printf "%s|%s|%s" "$BATON_JOB_ID" "$BATON_WORKDIR" "$BATON_EXPECTED" > seen'
    office.submit("echo 1 > a; echo 2 > 'b c'", "--expect", "a", "--expect", "b c", "--validate", words)
    job = office.the_job()["job_id"]
    assert (tmp_path / "seen").read_text() == f"{job}|{tmp_path}|a\nb c"


def test_a_validation_of_a_job_without_a_session_knows_it_too(office, tmp_path):
    words = 'printf "%s|%s|%s" "$BATON_JOB_ID" "$BATON_WORKDIR" "$BATON_EXPECTED" > seen'
    job = office("register", "work", "--validate", words).text
    office("publish", job, "--event", "completed")
    assert (tmp_path / "seen").read_text() == f"{job}|{tmp_path}|"


def test_an_agent_cannot_choose_the_folder_of_a_job_that_names_none(office, tmp_path):
    (tmp_path / "forged").mkdir()
    (tmp_path / "forged" / "result").write_text("no result")
    script = "cd forged && baton publish --event completed > ../answer 2>&1"
    office("cancel", office("register", "the home is made").text)
    with open_jobs(office.settings) as jobs:
        job = jobs.register_job(script, agent="shell", expected_artifacts=["result"])
    office("worker", "--until-empty")
    assert "result is missing" in (tmp_path / "answer").read_text()
    assert office.job(job.job_id)["status"] == "error"


# -- what else an agent may not ask for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["submit", "true", "--yolo"],
        ["retry", "abcd1234", "--yolo"],
        ["worker", "--until-empty", "--yolo"],
        ["session", "create", "other", "--yolo"],
    ],
    ids=lambda command: command[0],
)
def test_an_agent_cannot_have_agents_that_do_not_ask(office, tmp_path, command):
    office.submit(f"env -u BATON_SESSION_ID baton {shlex.join(command)} > answer 2>&1; echo $? > code")
    assert "--yolo is refused inside a session" in (tmp_path / "answer").read_text()
    assert (tmp_path / "code").read_text() == "1\n"


def test_nor_by_a_line_of_a_batch(office, tmp_path):
    (tmp_path / "batch").write_text('{"prompt": "true", "agent": "claude-code", "yolo": true}\n')
    office.submit("baton submit --batch batch > answer 2>&1; echo $? > code")
    assert "--yolo is refused inside a session" in (tmp_path / "answer").read_text()


def test_nor_by_the_record_of_a_job(office, tmp_path):
    """A worker outside of the session would start it."""
    program = "import baton; baton.open_jobs().register_job('x', start_options={'yolo': True})"
    office.submit(f"env -u BATON_SESSION_ID {sys.executable} -c {shlex.quote(program)} > answer 2>&1; echo $? > code")
    assert "(yolo) is refused inside a session" in (tmp_path / "answer").read_text()
    assert [job["status"] for job in office.jobs()] == ["completed"]
