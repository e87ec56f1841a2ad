"""The timeline of a job, from the lines of its history."""

from __future__ import annotations

from baton.board.timeline import timeline

NOW_NS = 100_000_000_000


def line(second, event, **more):
    return {"ts": f"1970-01-01T00:00:{second:02d}Z", "event": event, **more}


def test_a_history_becomes_spans_and_marks():
    drawn = timeline(
        [
            line(1, "registered"),
            line(3, "status_changed", to="running", attempt=1),
            line(4, "published", payload={"event": "progress", "detail": "reads\nfiles"}),
            line(5, "request_opened", request_id="r1", detail="Bash: make"),
            line(9, "request_closed", request_id="r1", answer="allow"),
            line(10, "requeued", to="pending", reason="lease expired"),
            line(12, "status_changed", to="running", attempt=2),
            line(20, "status_changed", to="completed"),
        ],
        NOW_NS,
    )
    assert (drawn["from"], drawn["to"]) == (1000, 20_000)
    assert [(each["kind"], each["from"], each["to"], each["label"]) for each in drawn["spans"]] == [
        ("queued", 1000, 3000, "queued"),
        ("attempt", 3000, 10_000, "attempt 1"),
        ("wait", 5000, 9000, "Bash: make: allow"),
        ("queued", 10_000, 12_000, "queued again: lease expired"),
        ("attempt", 12_000, 20_000, "attempt 2"),
    ]
    assert [each["label"] for each in drawn["marks"]] == ["reads files", "completed"]


def test_what_lasts_ends_now_and_a_wait_ends_with_its_attempt():
    drawn = timeline(
        [line(1, "registered"), line(2, "status_changed", to="running"), line(3, "request_opened", request_id="r")],
        NOW_NS,
    )
    assert drawn["to"] == 100_000
    assert [each["to"] for each in drawn["spans"]] == [2000, None, None]
    ended = [line(1, "request_opened", request_id="r"), line(2, "status_changed", to="error")]
    assert [each["to"] for each in timeline(ended, NOW_NS)["spans"]] == [2000]


def test_foreign_lines_draw_nothing():
    lines = [{}, {"ts": None, "event": "registered"}, {"ts": "x"}, line(1, "nonsense"), line(2, "request_closed"),
             line(3, "published", payload=[]), line(4, "published", payload={"event": "progress", "detail": ""})]  # fmt: skip
    drawn = timeline(lines, NOW_NS)
    assert (drawn["spans"], drawn["marks"]) == ([], [])
    assert timeline([], NOW_NS)["from"] is None
