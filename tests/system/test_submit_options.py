"""Titles, labels, priorities, queues, keys and parents of jobs, and batches that run without their command."""

from __future__ import annotations

import json
import subprocess

import pytest

from support.command import BATON, Baton
from support.office import Office, together


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path, BATON_AGENT="shell")


def about(record):
    return [record[name] for name in ("title", "labels", "priority", "agent_session", "idempotency_key")]


WORDS = [
    "--title",
    "the title",
    "--label",
    "a",
    "--label",
    "b",
    "--priority",
    "-3",
    "--queue",
    "q",
    "--idempotency-key",
    "k",
]
FIELDS = ["the title", ["a", "b"], -3, "q", "k"]


@pytest.mark.parametrize("verb", [["register"], ["submit", "--detach"]])
def test_a_job_has_a_title_labels_a_priority_and_a_queue(baton, verb):
    job = baton(*verb, "true", *WORDS).text
    assert about(baton("get", job).json) == FIELDS
    assert baton(*verb, "false", "--queue", "q", "--priority", "-2").text == baton("pick", "--queue", "q").text
    assert baton("pick", "--agent-session", "q").text == job
    assert "title must be one line" in baton.refused(*verb, "true", "--title", "two\nlines", code=64)


def test_a_line_of_a_batch_has_the_same_names(baton):
    lines = [
        {"prompt": "1", "title": "own", "labels": ["c"], "priority": 4, "queue": "other", "idempotency_key": "k1"},
        {"prompt": "2", "label": "d"},
        {"prompt": "3", "agent_session": "old"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    command = ["submit", "--batch", "-", "--detach", *WORDS]
    assert "each line of the batch its own" in baton.refused(*command, stdin=text, code=64)
    jobs = baton(*command[:-2], stdin=text).out.split()
    assert [about(job) for job in baton("get", *jobs).json] == [
        ["own", ["a", "b", "c"], 4, "other", "k1"],
        ["the title", ["a", "b", "d"], -3, "q", None],
        ["the title", ["a", "b"], -3, "old", None],
    ]
    assert "label must be a list" in baton.refused(*command[:-2], stdin='{"prompt": "x", "label": 7}', code=64)


class TestIdempotencyKeys:
    @pytest.mark.parametrize("verb", [["register"], ["submit", "--detach", "--queue", "q"]])
    def test_the_same_submission_again_is_the_same_job(self, baton, verb):
        job = baton(*verb, "true", "--idempotency-key", "k").text
        assert baton(*verb, "true", "--idempotency-key", "k").text == job
        assert "whose prompt differ" in baton.refused(*verb, "false", "--idempotency-key", "k")
        assert "whose labels, title differ" in baton.refused(
            *verb, "true", "--idempotency-key", "k", "--title", "t", "--label", "l"
        )
        baton("cancel", job)
        assert baton(*verb, "true", "--idempotency-key", "k").text == job
        assert [line.split()[1] for line in baton("logs", job).out.splitlines()] == ["registered", "status_changed"]

    def test_a_submission_waits_for_the_job_of_its_key_and_starts_it_once(self, office, tmp_path):
        command = [BATON, "submit", "echo x >> began", "--expect", "began", "--idempotency-key", "k", "--json"]
        both = [subprocess.Popen(command, cwd=tmp_path, env=office.env, stdout=subprocess.PIPE) for _ in range(2)]
        outputs = [process.communicate(timeout=40)[0].decode() for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert len({json.loads(line)["job_id"] for output in outputs for line in output.splitlines()}) == 1
        assert (tmp_path / "began").read_text() == "x\n"
        again = office.submit("echo x >> began", "--expect", "began", "--idempotency-key", "k", "--json")
        assert again.out.splitlines()[-1] == outputs[0].splitlines()[-1]
        assert (tmp_path / "began").read_text() == "x\n"


def test_a_job_that_an_agent_makes_has_its_job_as_parent_and_so_has_its_session(office, tmp_path):
    office.submit(f"{BATON} submit true --title one > child", "--expect", "child")
    child, parent = office("list", "--json").json
    assert (child["title"], child["parent"], parent["parent"]) == ("one", parent["job_id"], None)
    assert office.session_of(child["job_id"])["parent"] == parent["job_id"]
    assert office.session_of(parent["job_id"])["parent"] is None


def test_a_batch_runs_without_its_command(office, tmp_path):
    lines = [{"prompt": together(number, 2)} for number in range(4)] + [{"prompt": "exit 7"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = office("submit", "--batch", "-", "--detach", "--parallel", "2", stdin=text)
    jobs = done.out.split()
    assert len(jobs) == 5
    assert done.err == f"wait for them: baton wait {' '.join(jobs)}\n"
    waited = office("wait", *jobs, code=1)
    assert [line.split("\t")[1] for line in waited.out.splitlines()] == ["completed"] * 4 + ["error"]
    assert max(int(line) for line in (tmp_path / "counts").read_text().split()) == 2


def test_what_keeps_a_batch_from_being_registered_is_said(office):
    office("register", "x", "--queue", "q", "--idempotency-key", "k")
    text = '{"prompt": "true", "idempotency_key": "k"}\n{"prompt": "true"}\n'
    assert "idempotency key 'k' belongs to job" in office.refused("submit", "--batch", "-", "--detach", stdin=text)
    assert len(office("list", "--json").json) == 1
