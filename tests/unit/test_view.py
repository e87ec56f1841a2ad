"""The table of a delegation, on terminals of different widths."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from baton.cli.progress_view import LiveTable
from baton.core import fields
from baton.core.job import new_job


@pytest.mark.parametrize("width", [20, 31, 40, 60, 80, 100, 150])
@pytest.mark.parametrize("state", ["progress", "permission_required"])
def test_the_id_and_the_state_are_never_cut(width, state):
    job = new_job("write the report " * 20, now_ns=1, agent="shell", timeout_sec=36000)
    view = LiveTable([job])
    view.show({"job_id": job.job_id, "event": state, "detail": "日本語 " * 40})
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    console.print(view.table(width), crop=False)
    headings, row = console.file.getvalue().splitlines()
    assert row.split()[0] == job.job_id
    if width >= 8 + 2 + len(state):
        assert row.split()[1] == state
        assert len(headings.rstrip()) <= width
    if width >= 80:
        assert "LAST MESSAGE" in headings
        assert row.rstrip().endswith("…")
        assert "9:59:59" in row or "10:00:00" in row


def test_only_the_shown_part_of_a_long_text_is_cleaned(monkeypatch):
    cleaned = []
    monkeypatch.setattr(fields, "printable", lambda text: cleaned.append(len(text)) or text)
    assert fields.one_line("word \n" * 200_000, 20) == "word word word word…"
    assert fields.one_line(" " * 500_000 + "late", 20) == "late"
    assert fields.one_line("x" * 20, 20) == "x" * 20
    assert max(cleaned) < 1000
