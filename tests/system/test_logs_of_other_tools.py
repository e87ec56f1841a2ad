"""Audit logs that another tool wrote or writes: scripts call the functions of the seeds, and old logs go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import baton as package
from baton.core.errors import InvalidValue
from baton.history.verify import verify_log
from support.command import Baton

JOB = "abc12345"
RECORD = {
    "schema_version": 1, "job_id": JOB, "status": "running", "created_at": "2026-06-19T09:30:00Z",
    "updated_at": "2026-06-19T09:32:00Z", "prompt": "x", "agent": "shell", "agent_session": "tmux:shell",
    "broker": {"host": "127.0.0.1", "port": 1, "tls": False, "username": None, "password": None},
    "topic_prefix": f"python/mqtt/jobs/{JOB}", "timeout_sec": 3600, "idle_timeout_sec": 120, "expected_artifacts": [],
    "last_seq": 0, "auth_token": None,
}  # fmt: skip
FOREIGN = [
    {"ts": "2026-06-19T09:30:00Z", "event": "registered", "status": "pending"},
    {"ts": "2026-06-19T09:32:00Z", "event": "status_changed", "from": "pending", "to": "running"},
    {"timestamp": "2026-06-19T09:33:00Z", "event": "published", "payload": {"seq": 1, "event": "started"}},
]


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path)


@pytest.fixture
def logs(tmp_path, monkeypatch):
    monkeypatch.setenv("DELEGATE_JOB_LOGS_DIR", str(tmp_path / "logs"))
    return tmp_path / "logs"


def lines(logs, job=JOB):
    return [json.loads(line) for line in (logs / job / "events.ndjson").read_text().splitlines()]


def write_foreign(logs, count=3, **status):
    folder = logs / JOB
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps(RECORD))
    (folder / "events.ndjson").write_text("".join(json.dumps(line) + "\n" for line in FOREIGN[:count]))
    (folder / "status.json").write_text(json.dumps({"status": "running"} | status))
    return folder


class TestFunctionsOfTheSeeds:
    def test_they_need_no_further_arguments(self, logs):
        assert package.init_job_log(RECORD | {"status": "pending", "auth_token": "secret"})
        assert package.append_event(JOB, {"event": "note", "detail": "by a script"})
        assert package.update_logged_status(JOB, "running")
        assert package.update_logged_status(JOB, "running")  # nothing changes
        assert [(line["n"], line["event"]) for line in lines(logs)] == [
            (1, "registered"), (2, "note"), (3, "status_changed"),
        ]  # fmt: skip
        assert lines(logs)[2]["from"] == "pending"
        assert "secret" not in (logs / JOB / "meta.json").read_text()
        assert package.read_logged_status(JOB) == "running"
        assert verify_log(JOB, str(logs)).damage == []

    def test_a_script_that_writes_the_change_itself_keeps_a_log_that_verifies(self, logs):
        package.init_job_log(RECORD | {"status": "pending"})
        package.append_event(JOB, {"event": "status_changed", "from": "pending", "to": "running"})
        assert package.read_logged_status(JOB) == "running"
        package.update_logged_status(JOB, "running")
        assert verify_log(JOB, str(logs)).damage == []

    def test_a_time_before_the_last_line_is_refused(self, logs):
        package.append_event(JOB, {"event": "note", "ts": "2026-06-19T09:30:00Z"})
        package.append_event(JOB, {"event": "note", "ts": "2026-06-19T09:30:00.5+00:00"})
        with pytest.raises(InvalidValue, match=r"ts .* before the last line"):
            package.append_event(JOB, {"event": "note", "ts": "2026-06-19T09:30:00.499Z"})
        with pytest.raises(InvalidValue, match="ts"):
            package.append_event(JOB, {"event": "note", "ts": "yesterday"})
        assert [line["ts"] for line in lines(logs)] == ["2026-06-19T09:30:00Z", "2026-06-19T09:30:00.500Z"]
        assert package.append_event(JOB, {"event": "note"})
        assert verify_log(JOB, str(logs)).damage == []

    def test_a_clock_that_was_set_back_does_not_break_the_order(self, logs):
        package.append_event(JOB, {"event": "note", "ts": "2200-01-01T00:00:00Z"})
        assert package.append_event(JOB, {"event": "note"})
        assert lines(logs)[1]["ts"] == "2200-01-01T00:00:00Z"

    @pytest.mark.parametrize(
        "line", [{"n": 7}, {"prev": "0" * 64}, {"event": 5}, {"x": {1, 2}}, {"x": float("nan")}, ["event"], None]
    )
    def test_a_line_that_would_break_the_chain_is_refused(self, logs, line):
        with pytest.raises(InvalidValue):
            package.append_event(JOB, {"event": "note"} | line if isinstance(line, dict) else line)
        assert not (logs / JOB / "events.ndjson").exists() or lines(logs) == []

    def test_wrong_values_are_refused(self, logs):
        with pytest.raises(InvalidValue, match="job id"):
            package.append_event("../x", {"event": "note"})
        with pytest.raises(InvalidValue, match="status"):
            package.update_logged_status(JOB, "nonsense")
        for record in ({}, {"job_id": JOB}, {"job_id": JOB, "status": "later"}, None):
            with pytest.raises(InvalidValue):
                package.init_job_log(record)
        assert not logs.exists()

    def test_a_job_that_has_ended_stays_ended(self, logs):
        package.init_job_log(RECORD)
        package.update_logged_status(JOB, "completed")
        with pytest.raises(InvalidValue, match="completed"):
            package.update_logged_status(JOB, "running")
        assert package.read_logged_status(JOB) == "completed"

    def test_a_log_that_cannot_be_written_is_a_warning(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setenv("DELEGATE_JOB_LOGS_DIR", "/dev/null/nowhere")
        assert not package.append_event(JOB, {"event": "note"})
        assert not package.init_job_log(RECORD)
        assert not package.update_logged_status(JOB, "running")
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 3
        assert all(line.startswith(f"baton: warning: the audit log of job {JOB}") for line in said)


def test_logs_show_why_a_message_was_rejected(baton, logs):
    package.append_event(JOB, {"event": "rejected", "reason": "signature"})
    shown = baton("logs", JOB, DELEGATE_JOB_LOGS_DIR=str(logs)).text
    assert shown.split()[1:] == ["rejected", "signature"]


class TestLogsOfAnotherTool:
    def test_it_is_shown_and_named(self, baton, logs):
        write_foreign(logs)
        shown = baton("logs", JOB, DELEGATE_JOB_LOGS_DIR=str(logs)).out
        assert [line.split()[1] for line in shown.splitlines()] == ["registered", "status_changed", "published"]
        assert "2026-06-19T09:33:00Z  published       #1 started" in shown
        assert JOB in baton("logs", "--list", DELEGATE_JOB_LOGS_DIR=str(logs)).out
        refusal = baton.refused("logs", JOB, "--verify", DELEGATE_JOB_LOGS_DIR=str(logs))
        assert "lines 1-3 were written by another tool" in refusal
        assert "tampered" not in refusal

    def test_it_is_continued_and_chained(self, baton, logs):
        folder = write_foreign(logs)
        before = (folder / "events.ndjson").read_bytes(), (folder / "meta.json").read_bytes()
        assert package.append_event(JOB, {"event": "note"})
        assert (folder / "events.ndjson").read_bytes().startswith(before[0])
        assert (folder / "meta.json").read_bytes() == before[1]
        assert [(line["n"], line["event"]) for line in lines(logs)[3:]] == [(4, "continued"), (5, "note")]
        shown = baton("logs", JOB, DELEGATE_JOB_LOGS_DIR=str(logs)).out
        assert "continued       lines 1-3 were written by another tool" in shown
        verdict = baton("logs", JOB, "--verify", DELEGATE_JOB_LOGS_DIR=str(logs))
        assert "lines 1-3 were written by another tool, chained from 4" in verdict.err
        assert verdict.text == f"{JOB}: 5 lines, unbroken"
        assert package.read_logged_status(JOB) == "running"

    def test_one_line_is_named_as_one(self, logs):
        write_foreign(logs, count=1)
        package.append_event(JOB, {"event": "note"})
        assert verify_log(JOB, str(logs)).notes == ["line 1 was written by another tool, chained from 2"]

    @pytest.mark.parametrize("index", range(3))
    @pytest.mark.parametrize("change", ["edit", "remove", "repeat"])
    def test_from_then_on_a_change_of_the_old_lines_is_found(self, logs, index, change):
        folder = write_foreign(logs)
        package.append_event(JOB, {"event": "note"})
        raw = (folder / "events.ndjson").read_bytes().splitlines(keepends=True)
        if change == "edit":
            raw[index] = raw[index].replace(b"2026", b"2025")
        elif change == "remove":
            del raw[index]
        else:
            raw.insert(index, raw[index])
        (folder / "events.ndjson").write_bytes(b"".join(raw))
        assert verify_log(JOB, str(logs)).damage

    @pytest.mark.parametrize("left", [b'{"event": "received"}', b'{"event": "recei', b"\xff"])
    @pytest.mark.parametrize("count", [0, 3])
    def test_its_last_line_is_kept_though_it_has_no_end(self, logs, left, count):
        path = write_foreign(logs, count) / "events.ndjson"
        with path.open("ab") as file:
            file.write(left)
        before = path.read_bytes()
        found = verify_log(JOB, str(logs))
        assert (found.lines, found.foreign, found.damage) == (count + 1, count + 1, [])
        package.append_event(JOB, {"event": "note"})
        package.append_event(JOB, {"event": "note"})
        assert path.read_bytes().startswith(before + b"\n")
        own = [json.loads(line) for line in path.read_bytes()[len(before) + 1 :].splitlines()]
        assert [(line["n"], line["event"]) for line in own] == [
            (count + 2, "continued"), (count + 3, "note"), (count + 4, "note"),
        ]  # fmt: skip
        assert verify_log(JOB, str(logs)).damage == []

    def test_a_crash_in_the_first_line_of_baton_is_no_line_of_the_other_tool(self, logs):
        path = write_foreign(logs) / "events.ndjson"
        with path.open("ab") as file:
            file.write(b'{"n": 4, "prev": "ab')
        package.append_event(JOB, {"event": "note"})
        assert [(line["n"], line["event"]) for line in lines(logs)[3:]] == [
            (4, "continued"),
            (5, "mended"),
            (6, "note"),
        ]
        assert verify_log(JOB, str(logs)).damage == []

    def test_a_log_of_baton_without_its_numbers_is_damaged_and_not_foreign(self, logs):
        package.init_job_log(RECORD | {"auth_token": "secret"})
        package.append_event(JOB, {"event": "note"})
        path = logs / JOB / "events.ndjson"
        stripped = [{name: value for name, value in line.items() if name not in ("n", "prev")} for line in lines(logs)]
        path.write_text("".join(json.dumps(line) + "\n" for line in stripped))
        assert verify_log(JOB, str(logs)).damage
        (logs / JOB / "status.json").unlink()
        assert verify_log(JOB, str(logs)).damage
        package.append_event(JOB, {"event": "note"})
        assert verify_log(JOB, str(logs)).damage

    def test_baton_goes_on_with_the_job_of_the_other_tool(self, baton, logs, tmp_path):
        write_foreign(logs)
        registry = tmp_path / "jobs"
        registry.mkdir()
        (registry / f"{JOB}.json").write_text(json.dumps(RECORD))
        where = ["--registry-dir", str(registry)]
        baton("status", JOB, "--set", "completed", *where, DELEGATE_JOB_LOGS_DIR=str(logs))
        assert [(line["n"], line["event"]) for line in lines(logs)[3:]] == [(4, "continued"), (5, "status_changed")]
        assert verify_log(JOB, str(logs)).damage == []


def test_a_running_record_of_the_seeds_that_publish_touches_first_gets_a_whole_log(baton, tmp_path):
    registry, logs = tmp_path / "jobs", tmp_path / "logs"
    registry.mkdir()
    (registry / f"{JOB}.json").write_text(json.dumps(RECORD))
    where = ["--registry-dir", str(registry), "--attempts", "1"]
    baton("publish", "--job", JOB, "--event", "progress", *where, DELEGATE_JOB_LOGS_DIR=str(logs), code=None)
    found = lines(logs)
    assert [line["event"] for line in found] == ["registered", "published"]
    assert (found[0]["status"], found[0]["detail"]) == ("running", "begun later: there was no log of this job")
    assert json.loads((logs / JOB / "meta.json").read_text())["prompt"] == "x"
    assert package.read_logged_status(JOB, str(logs)) == "running"
    assert verify_log(JOB, str(logs)).damage == []


def test_the_functions_work_in_a_script_of_the_user(tmp_path):
    code = f"import baton; baton.init_job_log({RECORD!r}); baton.append_event({JOB!r}, {{'event': 'note'}})"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    folder = tmp_path / ".hermes" / "delegate_job_logs"
    assert [line["event"] for line in lines(folder)] == ["registered", "note"]
