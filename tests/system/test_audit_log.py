"""The history of a job: what stands in it, and that no line changes quietly."""

from __future__ import annotations

import json
import random
import threading

import pytest

from baton.config import Settings
from baton.core.errors import InvalidValue
from baton.core.event import EventName
from baton.history.log import (
    append_event,
    init_job_log,
    iter_logged_events,
    job_log_path,
    list_logged_jobs,
    read_logged_meta,
    read_logged_status,
    update_logged_status,
)
from baton.history.verify import verify_log
from baton.jobs.verbs import open_jobs
from support.command import Baton

NOW = 1_800_000_000 * 10**9


@pytest.fixture
def baton(tmp_path):
    return Baton(tmp_path)


@pytest.fixture
def job(baton):
    job = baton("register", "x").text
    baton("pick")
    baton("release", job)
    baton("pick")
    baton("status", job, "--set", "completed")
    return job


@pytest.fixture
def log(job, tmp_path):
    return tmp_path / ".hermes" / "delegate_job_logs" / job / "events.ndjson"


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


class TestTampering:
    def verify(self, baton, job):
        return baton.refused("logs", job, "--verify")

    def test_an_unbroken_log(self, baton, job, log):
        assert baton("logs", job, "--verify").text == f"{job}: 5 lines, unbroken"
        assert baton("logs", job, "--verify", "--json").json["damage"] == []

    @pytest.mark.parametrize("index", range(5))
    def test_a_changed_byte(self, baton, job, log, index):
        lines = lines_of(log)
        lines[index] = lines[index].replace(b'"attempt": 1', b'"attempt": 7').replace(b"registered", b"registereD")
        lines[index] = lines[index].replace(b'"completed"', b'"cancelled"').replace(b'"attempt": 2', b'"attempt": 3')
        log.write_bytes(b"".join(lines))
        assert f"line {index + 1} was changed" in self.verify(baton, job)

    @pytest.mark.parametrize("index", range(4))
    def test_a_removed_line(self, baton, job, log, index):
        lines = lines_of(log)
        del lines[index]
        log.write_bytes(b"".join(lines))
        assert f"line {index + 1} missing" in self.verify(baton, job)

    def test_the_last_line_removed(self, baton, job, log):
        log.write_bytes(b"".join(lines_of(log)[:-1]))
        assert "cut short: it had 5 lines, it has 4" in self.verify(baton, job)

    @pytest.mark.parametrize("index", range(4))
    def test_two_swapped_lines(self, baton, job, log, index):
        lines = lines_of(log)
        lines[index], lines[index + 1] = lines[index + 1], lines[index]
        log.write_bytes(b"".join(lines))
        assert f"line {index + 1} stands at place {index + 2}" in self.verify(baton, job)

    @pytest.mark.parametrize("index", range(5))
    def test_an_inserted_line(self, baton, job, log, index):
        lines = lines_of(log)
        lines.insert(index + 1, lines[index])
        log.write_bytes(b"".join(lines))
        assert f"line {index + 1} stands at place {index + 2}" in self.verify(baton, job)

    def test_a_line_of_another_kind(self, baton, job, log):
        log.write_bytes(b"".join([*lines_of(log), b"hello\n"]))
        assert "line 6 is not a line of this log" in self.verify(baton, job)

    @pytest.mark.parametrize("name", ["meta.json", "status.json"])
    def test_the_files_beside_it(self, baton, job, log, name):
        path = log.parent / name
        path.write_bytes(
            path.read_bytes().replace(b"completed", b"cancelled").replace(b'"prompt": "x"', b'"prompt": "y"')
        )
        assert f"{name} was changed" in self.verify(baton, job)
        path.unlink()
        assert name in self.verify(baton, job)

    def test_a_log_that_was_emptied(self, baton, job, log):
        log.write_bytes(b"")
        assert "cut short" in self.verify(baton, job)

    def test_a_log_that_was_removed(self, baton, job, log):
        log.unlink()
        assert "events.ndjson is missing" in self.verify(baton, job)
        (log.parent / "status.json").unlink()
        assert "events.ndjson is missing" in self.verify(baton, job)
        (log.parent / "meta.json").unlink()
        assert "no line yet" in baton("logs", job, "--verify").err  # as far as a crash may leave it

    def test_a_log_that_cannot_be_read_is_neither_whole_nor_cut(self, baton, job, log):
        (log.parent / "status.json").unlink()
        log.unlink()
        log.symlink_to(log)
        said = self.verify(baton, job)
        assert "events.ndjson" in said
        assert "tampered" not in said

    def test_a_cut_stays_visible_after_the_log_goes_on(self, job, log):
        log.write_bytes(b"".join(lines_of(log)[:-1]))
        logs_dir = str(log.parent.parent)
        append_event(job, {"event": "received"}, now_ns=NOW, logs_dir=logs_dir)
        damage = verify_log(job, logs_dir).damage
        assert "the log ended at line 5, it now ends at 4" in damage[0]

    def test_any_change_at_all_is_found(self, job, log, full, seed, figure):
        """S6: a byte flipped, a line removed, swapped, repeated or cut anywhere in the three files."""
        logs_dir = str(log.parent.parent)
        draw = random.Random(seed)
        files = [log, log.parent / "status.json", log.parent / "meta.json"]
        originals = [path.read_bytes() for path in files]
        rounds, found = 50_000 if full else 1_000, 0
        for _ in range(rounds):
            index = draw.choices((0, 1, 2), (8, 1, 1))[0]
            changed = _mutate(originals[index], draw, lines=index == 0)
            files[index].write_bytes(changed)
            found += bool(verify_log(job, logs_dir).damage)
            files[index].write_bytes(originals[index])
        assert verify_log(job, logs_dir).damage == []
        figure("S6 audit tampering", f"{found:,} of {rounds:,} found", held=found == rounds, seed=seed)


def _mutate(original: bytes, draw: random.Random, *, lines: bool) -> bytes:
    while True:
        kind = draw.choice(("flip", "remove", "swap", "insert", "cut") if lines else ("flip", "cut"))
        content = bytearray(original)
        pieces = original.splitlines(keepends=True)
        if kind == "flip":
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            del content[draw.randrange(len(content)) :]
        elif kind == "remove":
            del pieces[draw.randrange(len(pieces))]
        elif kind == "swap":
            first, second = draw.sample(range(len(pieces)), 2)
            pieces[first], pieces[second] = pieces[second], pieces[first]
        else:
            pieces.insert(draw.randrange(len(pieces) + 1), draw.choice(pieces))
        changed = bytes(content) if kind in ("flip", "cut") else b"".join(pieces)
        if changed != original:
            return changed


class TestCrashes:
    def test_a_torn_last_line_is_noted_and_mended(self, baton, job, log):
        with log.open("ab") as file:
            file.write(b'{"n": 6, "prev": "abc')
        verdict = baton("logs", job, "--verify")
        assert "half written" in verdict.err
        assert "5 lines, unbroken" in verdict.out
        append_event(job, {"event": "received"}, now_ns=NOW, logs_dir=str(log.parent.parent))
        verdict = baton("logs", job, "--verify")
        assert "7 lines, unbroken" in verdict.out
        assert "half-written line removed" in verdict.err
        assert [json.loads(line)["n"] for line in lines_of(log)] == list(range(1, 8))

    def test_a_status_file_a_line_behind_is_only_noted(self, baton, job, log):
        status = log.parent / "status.json"
        before = status.read_bytes()
        append_event(job, {"event": "received"}, now_ns=NOW, logs_dir=str(log.parent.parent))
        status.write_bytes(before)
        assert "status.json is behind" in baton("logs", job, "--verify").err

    def test_a_change_the_log_missed_is_written_later(self, baton, tmp_path):
        job = baton("register", "x").text
        baton("pick", "--json", DELEGATE_JOB_LOGS_DIR="/dev/null/nowhere")
        lines = [line for line in baton("doctor").out.splitlines() if "audit: " in line]
        assert lines == [
            (
                f"warning  audit: job {job}: the audit log says pending (attempt 0, event 0), the registry running "
                f"(attempt 1, event 0): the log lacks changes; `baton logs {job}` adds them"
            )
        ]
        assert "written later" in baton("logs", job).out
        assert "no gaps" in baton("doctor").out

    def test_what_another_process_is_just_writing_is_not_written_twice(self, tmp_path):
        """The process that changed the registry has not written its line yet."""
        with open_jobs(Settings({"home": str(tmp_path / "home")}, env={"HOME": str(tmp_path)})) as jobs:
            job = jobs.register_job("x", agent="shell")
            jobs.pick_job(job.job_id)
            recorded = jobs.registry.record_event(job.job_id, EventName.COMPLETED)
            writer = threading.Timer(0.3, lambda: jobs.history.add_event(recorded.event))
            writer.start()
            jobs.fill_gap(job.job_id)
            writer.join()
            assert [line["event"] for line in jobs.history.lines(job.job_id)].count("published") == 1

    def test_a_log_that_cannot_be_written_is_a_warning(self, baton):
        result = baton("register", "x", DELEGATE_JOB_LOGS_DIR="/dev/null/nowhere")
        assert len(result.text) == 8
        assert "warning" in result.err
        assert result.err.count("\n") == 1


def test_many_appenders_make_one_chain(tmp_path):
    logs_dir = str(tmp_path)

    def append(number):
        for _ in range(25):
            append_event("abc12345", {"event": "received", "by": number}, now_ns=NOW, logs_dir=logs_dir)

    threads = [threading.Thread(target=append, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line["n"] for line in iter_logged_events("abc12345", logs_dir)] == list(range(1, 201))
    assert verify_log("abc12345", logs_dir).damage == []


def test_a_long_line_is_followed_by_the_next(tmp_path):
    logs_dir = str(tmp_path)
    for size in (10, 5_000, 100_000, 3):
        append_event("abc12345", {"event": "received", "text": "é" * size}, now_ns=NOW, logs_dir=logs_dir)
    assert verify_log("abc12345", logs_dir).damage == []
    assert verify_log("abc12345", logs_dir).lines == 4


def test_the_readers_of_the_seeds(tmp_path):
    record = {"job_id": "abc12345", "status": "pending", "auth_token": "secret", "broker": {"password": "secret"}}
    logs_dir = str(tmp_path)
    init_job_log(record, now_ns=NOW, logs_dir=logs_dir)
    update_logged_status("abc12345", "pending", "running", now_ns=NOW, logs_dir=logs_dir)
    assert read_logged_meta("abc12345", logs_dir) == {
        "job_id": "abc12345", "status": "pending", "auth_token": "***", "broker": {"password": "***"},
    }  # fmt: skip
    assert read_logged_status("abc12345", logs_dir) == "running"
    assert list_logged_jobs(logs_dir) == ["abc12345"]
    assert read_logged_status("deadbeef", logs_dir) is read_logged_meta("deadbeef", logs_dir) is None
    assert list_logged_jobs(str(tmp_path / "nowhere")) == []
    with pytest.raises(InvalidValue):
        job_log_path("../x")
