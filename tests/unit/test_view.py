"""The table of a delegation, on terminals of different sizes."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from baton.cli import progress_view
from baton.cli.progress_view import LiveTable, summarize
from baton.core import fields
from baton.core.clock import SECOND_NS, format_time
from baton.core.job import Status, new_job

NOW = 1_800_000_000 * SECOND_NS


@pytest.fixture(autouse=True)
def now(monkeypatch):
    monkeypatch.setattr(progress_view, "time", SimpleNamespace(time_ns=lambda: NOW))


def a_job(prompt="write the report " * 20, **more):
    return new_job(prompt, now_ns=1, agent="shell", **more)


def event(job, name, detail="", ago_sec=0.0):
    timestamp = format_time(NOW - int(ago_sec * SECOND_NS))
    return {"job_id": job.job_id, "event": name, "detail": detail, "timestamp": timestamp}


def drawn(view, width=80, height=24):
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    console.print(view.frame(width, height), crop=False)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 31, 40, 60, 80, 100, 150])
@pytest.mark.parametrize(("name", "state"), [("progress", "working"), ("permission_required", "waiting")])
def test_the_id_and_the_state_are_never_cut(width, name, state):
    job = a_job(timeout_sec=36000)
    view = LiveTable([job])
    view.show(event(job, name, "日本語 " * 40))
    headings, row, summary = drawn(view, width)
    assert row.split()[:2] == [job.job_id, state]
    assert len(headings.rstrip()) <= width
    assert summary.startswith(f"1 {state} after")
    if width >= 40:
        assert "write the" in row, "the work stays visible when the job has started"
    if width >= 80:
        assert "LAST MESSAGE" in headings
        assert row.rstrip().endswith("…")
        assert "10:00:00" in row
    assert ("IDLE LEFT" in headings) is (width >= 100)


def test_a_title_stands_in_the_place_of_the_prompt():
    job = a_job(title="The report")
    assert "The report" in drawn(LiveTable([job]))[1]


def test_a_pending_job_has_no_time_and_time_counts_from_its_own_start():
    waiting, running = a_job("first"), a_job("second")
    view = LiveTable([waiting, running])
    view.show(event(running, "started", "in session x", ago_sec=125))
    _, first, second, summary = drawn(view)
    assert first.split()[:4] == [running.job_id, "working", "2:05", "57:55"]
    assert "session" not in first
    assert second.split() == [waiting.job_id, "pending", "first"]
    assert summary == "1 working, 1 pending after 2m05s"


def test_a_job_that_was_started_before_it_was_followed_counts_from_its_claim():
    deadline = format_time(NOW - 60 * SECOND_NS + 3600 * SECOND_NS)
    job = a_job("x").replace(status=Status.RUNNING, deadline_at=deadline, attempt=1)
    assert drawn(LiveTable([job]))[1].split()[:4] == [job.job_id, "starting", "1:00", "59:00"]


def test_those_that_a_person_must_look_at_come_first():
    jobs = [a_job(f"job {number}") for number in range(5)]
    view = LiveTable(jobs)
    view.show(event(jobs[0], "completed"))
    view.show(event(jobs[2], "started"))
    view.show(event(jobs[3], "error", "no"))
    view.show(event(jobs[4], "permission_required", "may I?"))
    assert [line.split()[1] for line in drawn(view)[1:-1]] == ["waiting", "failed", "working", "pending", "completed"]


@pytest.mark.parametrize("height", [5, 10, 24])
def test_of_more_jobs_than_lines_those_that_matter_are_shown_and_the_rest_is_counted(height):
    jobs = [a_job(f"job {number}") for number in range(30)]
    view = LiveTable(jobs)
    for job in jobs[:10]:
        view.show(event(job, "completed"))
    view.show(event(jobs[29], "error", "no"))
    lines = drawn(view, 60, height)
    assert len(lines) < height, "the last line of the terminal is left to the cursor"
    assert lines[1].split()[:2] == [jobs[29].job_id, "failed"]
    shown = len(lines) - 3
    assert lines[-2].startswith(f"and {30 - shown} more: 10 completed")
    assert lines[-1].startswith("10 completed, 1 failed, 19 pending after")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_whole_reason_of_each_failure_is_below_the_table_at_the_end(width):
    jobs = [a_job("one"), a_job("two"), a_job("three")]
    reason = "the tests failed: " + " ".join(f"test_number_{number}" for number in range(40))
    view = LiveTable(jobs)
    with_ends = [
        jobs[0].replace(status=Status.ERROR, reason=reason, detail="cut", finished_at=format_time(NOW)),
        jobs[1].replace(status=Status.CANCELLED, finished_at=format_time(NOW)),
        jobs[2].replace(status=Status.COMPLETED, finished_at=format_time(NOW)),
    ]
    view.show(event(jobs[2], "started", ago_sec=130))
    view.over(with_ends)
    assert not any("test_number_39" in line for line in drawn(view, width))
    view.__exit__()
    view._left = True
    lines = drawn(view, width)
    assert max(map(len, lines)) <= width
    assert f"{jobs[0].job_id} failed: {reason}" in " ".join(" ".join(lines[4:]).split())
    assert lines[-1] == "1 completed, 1 failed, 1 cancelled in 2m10s"
    assert sum("STATE" in line for line in lines) == 1


def test_a_summary_without_a_table():
    ended = {"finished_at": format_time(NOW), "deadline_at": format_time(NOW + 1795 * SECOND_NS), "timeout_sec": 1800}
    jobs = [a_job().replace(status=Status.CANCELLED, **ended), a_job().replace(status=Status.ERROR, **ended)]
    assert summarize(jobs) == "1 failed, 1 cancelled in 5s"


def test_only_the_shown_part_of_a_long_text_is_cleaned(monkeypatch):
    cleaned = []
    monkeypatch.setattr(fields, "printable", lambda text: cleaned.append(len(text)) or text)
    assert fields.one_line("word \n" * 200_000, 20) == "word word word word…"
    assert fields.one_line(" " * 500_000 + "late", 20) == "late"
    assert fields.one_line("x" * 20, 20) == "x" * 20
    assert max(cleaned) < 1000
