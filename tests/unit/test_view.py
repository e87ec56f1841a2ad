"""The table of a delegation, on terminals of different sizes."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from baton.cli import progress_view, request_view
from baton.cli.progress_view import LiveTable, summarize
from baton.cli.request_view import RequestPanel
from baton.core import fields
from baton.core.clock import SECOND_NS, format_time
from baton.core.drafts import new_job
from baton.core.job import Status
from baton.core.request import RequestKind
from support.asking import QUESTION, a_request
from support.clock import FakeClock

NOW = 1_800_000_000 * SECOND_NS


@pytest.fixture(autouse=True)
def now(monkeypatch):
    monkeypatch.setattr(progress_view, "time", SimpleNamespace(time_ns=lambda: NOW))
    monkeypatch.setattr(progress_view, "AwakeClock", lambda: FakeClock(NOW))


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
    assert [line.split()[1] for line in drawn(view)[1:-1]] == ["waiting", "failed", "working", "pending", "done"]


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
    assert lines[-2].startswith(f"and {30 - shown} more: 10 done")
    assert lines[-1].startswith("10 done, 1 failed, 19 pending after")


def test_of_a_reason_with_several_lines_the_first_is_shown_and_how_to_see_the_others():
    job = a_job("one")
    view = LiveTable([job])
    reason = "the validation failed: test_b\ntest_a\ntest_b"
    view.over([job.replace(status=Status.ERROR, reason=reason, finished_at=format_time(NOW))])
    view._left = True
    shown = f"{job.job_id} failed: the validation failed: test_b; `baton result {job.job_id}` shows more"
    assert drawn(view, 150)[2].rstrip() == shown


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("", ""),
        ("it failed", "it failed"),
        ("it failed: b\na\nb", "it failed: b"),
        ("it ended with exit code 3:\n  trying\n  no such file\n", "it ended with exit code 3: no such file"),
    ],
)
def test_the_line_of_a_reason_says_what_is_wrong(reason, line):
    assert fields.first_line(reason) == line


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
    assert lines[-1] == "1 done, 1 failed, 1 cancelled in 2m10s"
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


def with_activity(job, kind, cause="", *, since_sec=10, lease_sec=60):
    since, lease = (format_time(NOW + sec * SECOND_NS) for sec in (-since_sec, lease_sec))
    activity = {"kind": kind, "since": since, "cause": cause, "attempt": 1}
    return job.replace(status=Status.RUNNING, attempt=1, activity=activity, lease_expires_at=lease, updated_at=since)


@pytest.mark.parametrize("kind", ["starting", "blocked", "working", "retrying", "limited", "idle", "stalled"])
def test_the_activity_that_was_written_counts_and_not_the_last_event(kind):
    job = a_job("x")
    view = LiveTable([job])
    view.show(event(job, "progress", "half way"))
    view.read(with_activity(job, kind, "the cause of it"))
    row = drawn(view, 120)[1]
    assert row.split()[1] == kind
    assert ("the cause of it" in row) is (kind not in ("starting", "working"))
    assert ("paused" in row) is (kind in ("blocked", "working", "limited", "retrying"))
    view.read(with_activity(job, kind, lease_sec=-1))
    assert drawn(view, 120)[1].split()[1] == "unknown"


def test_the_cause_of_a_blocked_job_is_whole_below_the_table_with_what_to_do():
    job = a_job("x")
    view = LiveTable([job])
    cause = "Codex asks whether you trust this folder: /srv/project/with/a/long/name/that/does/not/fit"
    view.show(event(job, "started"))
    view.read(with_activity(job, "blocked", cause))
    lines = drawn(view, 60)
    assert max(map(len, lines)) <= 60
    wanted = f"job {job.job_id} is blocked: {cause}; `baton attach {job.job_id}` and answer there"
    assert "".join(lines[2:-1]).replace(" ", "") == wanted.replace(" ", "")
    assert len(drawn(view, 60, height=5)) <= 5
    view.read(with_activity(job, "working"))
    assert "baton attach" not in "".join(drawn(view, 60))


def test_an_agent_that_says_itself_that_it_waits_does():
    job = a_job("x")
    view = LiveTable([job])
    view.read(with_activity(job, "working", "the program runs"))
    view.show(event(job, "permission_required", "may I?"))
    row = drawn(view, 120)[1]
    assert (row.split()[1], "may I?" in row) == ("waiting", True)
    view.show(event(job, "progress"))
    assert drawn(view, 120)[1].split()[1] == "working"


def test_a_job_waits_as_soon_and_as_long_as_a_request_is_open():
    job = a_job("x")
    view = LiveTable([job])
    view.read(with_activity(job, "working"))
    first = event(job, "permission_required", "Bash: x") | {"data": {"request_id": "a", "open_requests": 2}}
    view.show(first)
    view.show(event(job, "progress", "one is allowed") | {"data": {"request_id": "a", "open_requests": 1}})
    assert drawn(view)[1].split()[1] == "waiting"
    view.show(event(job, "progress", "both are") | {"data": {"request_id": "b", "open_requests": 0}})
    assert drawn(view)[1].split()[1] == "working"
    view.show(first)
    view.show(event(job, "error", "no"))
    assert drawn(view)[1].split()[1] == "failed"


class Panel(RequestPanel):
    """A panel with keys, whose answers are kept."""

    def __init__(self, *requests, keys=True):
        super().__init__(None)
        self.answers = []
        self._keys = SimpleNamespace(stop=lambda: None) if keys else None
        self.update(requests)

    def _answer(self, request, answer):
        self.answers.append((request.request_id, answer.answer, dict(answer.choices)))


@pytest.fixture
def moment(monkeypatch):
    now = SimpleNamespace(ns=10**12)
    monkeypatch.setattr(request_view, "time", SimpleNamespace(monotonic_ns=lambda: now.ns))
    return now


@pytest.mark.parametrize(("key", "answers"), [("y", ["allow"]), ("Y", ["allow"]), ("n", ["deny"]), ("1", []), ("", [])])
def test_a_key_answers_what_has_been_on_the_screen(moment, key, answers):
    request = a_request(a_job().replace(attempt=1))
    panel = Panel(request)
    panel._press(key)
    lines = panel.lines(80, 20)
    panel._press(key)
    assert panel.answers == [], "it was meant for what was there before"
    moment.ns += SECOND_NS
    panel._press(key)
    panel._press(key)
    assert [answer for _, answer, _ in panel.answers] == answers
    assert "command: git push origin main" in lines
    assert lines[-1] == f"y allows it, n denies it ({request.request_id})"


DEFAULT_NO = {"consent": {"default_no": True}}


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"options": (DEFAULT_NO,)}, "y"), ({"kind": RequestKind.QUESTION, "options": (QUESTION, DEFAULT_NO)}, "2")],
)
def test_one_key_does_not_allow_what_the_agent_would_not(moment, changes, key):
    panel = Panel(a_request(a_job().replace(attempt=1), **changes))
    assert "the agent's own default is no" in panel.lines(80, 20)
    moment.ns += SECOND_NS
    panel._press(key)
    panel._press(key)  # at once, as a key that stuck
    assert panel.answers == []
    assert "press the key once more" in panel.lines(80, 20)[-1]
    moment.ns += SECOND_NS
    panel._press("x")
    panel._press(key)
    assert [answer for _, answer, _ in panel.answers] == ["allow"]


def test_one_key_denies_what_the_agent_would_not_allow(moment):
    panel = Panel(a_request(a_job().replace(attempt=1), options=(DEFAULT_NO,)))
    panel.lines(80, 20)
    moment.ns += SECOND_NS
    panel._press("n")
    assert [answer for _, answer, _ in panel.answers] == ["deny"]


def test_a_key_for_one_request_does_not_answer_the_next(moment):
    job = a_job().replace(attempt=1)
    first, second = (a_request(job, asked_at=f"2026-01-01T00:00:0{number}Z") for number in (1, 2))
    panel = Panel(second, first)
    assert "1 more" in panel.lines(80, 20)[-1]
    moment.ns += SECOND_NS
    panel.update([second])
    panel.lines(80, 20)
    panel._press("y")
    assert panel.answers == []
    moment.ns += SECOND_NS
    panel._press("y")
    assert [request_id for request_id, _, _ in panel.answers] == [second.request_id]


@pytest.mark.parametrize(
    ("changes", "room", "has_keys"),
    [
        ({}, 20, True),
        ({}, 3, False),
        ({"exact": False}, 20, False),
        ({"call": {"command": "x" * 5000}}, 20, False),
        ({"kind": RequestKind.QUESTION, "options": (QUESTION,)}, 20, True),
        ({"kind": RequestKind.QUESTION, "options": (QUESTION, QUESTION)}, 20, False),
        ({"kind": RequestKind.QUESTION, "options": (QUESTION | {"several": True},)}, 20, False),
    ],
)
def test_there_are_keys_only_for_what_is_whole_and_can_be_answered_by_one(moment, changes, room, has_keys):
    request = a_request(a_job().replace(attempt=1), **changes)
    panel = Panel(request)
    lines = panel.lines(60, room)
    assert len(lines) <= room
    assert max(map(len, lines)) <= 60
    assert (panel._shown is not None) is has_keys
    assert ("`baton" in lines[-1]) is not has_keys
    assert Panel(request, keys=False).lines(60, room)[-1].startswith("`baton")


def test_a_key_answers_a_question_by_its_number(moment):
    panel = Panel(a_request(a_job().replace(attempt=1), kind=RequestKind.QUESTION, options=(QUESTION,)))
    assert "  2. green" in panel.lines(60, 20)
    moment.ns += SECOND_NS
    for key in "y3n2":
        panel._press(key)
    assert [choices for _, _, choices in panel.answers] == [{"Which colour?": "green"}]


def test_every_character_of_a_call_is_visible(moment):
    command = "a\u202eb \x1b[2J\n" + "\u65e5" * 60
    lines = Panel(a_request(a_job().replace(attempt=1), call={"command": command})).lines(40, 30)
    assert all(line.isprintable() for line in lines)
    assert "<U+202E>" in "".join(lines)
    assert "".join(lines).count("\u65e5") == 60


@pytest.mark.parametrize("keys", [True, False])
def test_a_call_is_shown_line_by_line_as_by_baton_requests(moment, keys):
    call = {"file_path": "/tmp/sort.py", "content": "def sort(a):\n    return a\n\nprint(1)  " + "# " * 40 + "end"}
    request = a_request(a_job().replace(attempt=1), tool="Write", call=call)
    lines = Panel(request, keys=keys).lines(60, 20)
    body = lines[1:-1]
    assert body[:6] == ["Write", "file_path: /tmp/sort.py", "content:", "  | def sort(a):", "  |     return a", "  | "]
    assert body[6].startswith("  | print(1)")
    assert all(line.startswith("    ") for line in body[7:]), "what is wrapped cannot pass for a line of the call"
    assert max(map(len, lines)) <= 60


def test_a_call_that_does_not_fit_is_named_with_the_command_that_shows_it(moment):
    request = a_request(a_job().replace(attempt=1), call={"command": "x" * 5000})
    assert f"`baton requests {request.request_id}` shows the whole call" in Panel(request).lines(60, 20)
