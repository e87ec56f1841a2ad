"""The terminal board where a real terminal cannot show it: what a key answers, and when it answers nothing."""

from __future__ import annotations

import asyncio
import inspect
import pathlib
import re
import time

import pytest
from textual.app import App
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.widget import Widget

from baton.board import dialogs, job_list, screen, terminal, text_view
from baton.board.answering import why_not_now
from baton.board.head import Listed, head_line
from baton.board.help_text import help_lines, keys_line
from baton.board.job_list import JobList, Row
from baton.board.looks import GROUPS, cells, fit, fit_path
from baton.board.reader import Reader
from baton.board.terminal import TerminalBoard
from baton.board.text_view import TextView, wrap
from baton.core.request import RequestState
from baton.jobs import requests
from baton.jobs.verbs import open_jobs
from support.asking import QUESTION, ask, running, set_activity
from support.homes import home_of, settings_in

LONG = {"command": "\n".join(f"step {number}" for number in range(60))}


@pytest.fixture
def settings(tmp_path):
    home_of(tmp_path)
    return settings_in(tmp_path)


@pytest.fixture
def jobs(settings):
    with open_jobs(settings) as jobs:
        yield jobs


def drive(settings, steps, size=(80, 24)):
    """Run the steps with a pilot on a board of these settings."""

    async def main():
        app = TerminalBoard(settings)
        async with app.run_test(size=size) as pilot:
            await steps(app, pilot)
            app.screen_stack[0]._reader.stop()

    asyncio.run(main())


async def until(pilot, condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await pilot.pause(0.02)


def message_of(app):
    return "".join(text for text, _ in app.screen_stack[0].query_one("#message")._parts)


async def shown(app, pilot, text, *, whole=True):
    """Wait until the detail shows this text, and all of it if `whole`, for long enough to be answered."""
    detail = app.screen_stack[0].query_one("#detail", TextView)
    await until(pilot, lambda: any(text in line for line, _ in detail._lines[detail.scroll_offset.y :]))
    board = app.screen_stack[0]
    await until(pilot, lambda: time.monotonic() - board.list.moved_at > 0.55)
    if whole:
        await until(pilot, lambda: detail.whole_since is not None and time.monotonic() - detail.whole_since > 0.55)


def state_of(jobs, request):
    return jobs.registry.get_request(request.request_id).state


def test_a_call_that_does_not_fit_is_answered_after_it_was_scrolled_to_its_end(settings, jobs):
    request = ask(jobs.registry, running(jobs), call=LONG)

    async def steps(app, pilot):
        await shown(app, pilot, "step 1", whole=False)
        await pilot.press("y")
        await until(pilot, lambda: "lines of it have not been on the screen" in message_of(app))
        assert state_of(jobs, request) is RequestState.OPEN
        while app.screen.query_one("#detail", TextView).whole_since is None:
            await pilot.press("pagedown")
        await shown(app, pilot, "step 59")
        await pilot.press("y")
        await until(pilot, lambda: state_of(jobs, request) is RequestState.ANSWERED)

    drive(settings, steps)
    answered = jobs.registry.get_request(request.request_id)
    assert (answered.answer, answered.via) == ("allow", "board")


def test_the_end_of_a_call_alone_is_not_the_whole_call(settings, jobs):
    request = ask(jobs.registry, running(jobs), call=LONG)

    async def steps(app, pilot):
        await shown(app, pilot, "step 1", whole=False)
        app.screen.query_one("#detail", TextView).scroll_end(animate=False)
        await shown(app, pilot, "step 59", whole=False)
        await pilot.press("y")
        await until(pilot, lambda: "not been on the screen" in message_of(app))

    drive(settings, steps)
    assert state_of(jobs, request) is RequestState.OPEN


def test_a_key_answers_nothing_if_the_list_moved_just_before_it(settings, jobs):
    first = ask(jobs.registry, running(jobs, title="first"))

    async def steps(app, pilot):
        await shown(app, pilot, "git push")
        board = app.screen
        second = ask(jobs.registry, running(jobs, title="second"))
        await until(pilot, lambda: len(board.list.rows) == 2)
        await pilot.press("y")
        assert "the list moved" in message_of(app)
        assert [state_of(jobs, each) for each in (first, second)] == [RequestState.OPEN] * 2

    drive(settings, steps)


def test_a_request_that_has_only_just_come_is_not_answered(settings, jobs):
    request = ask(jobs.registry, running(jobs))

    async def steps(app, pilot):
        await until(pilot, lambda: app.screen.query_one("#detail", TextView).whole_since is not None)
        app.screen.list.moved_at = 0.0
        await pilot.press("y")
        assert "only just come" in message_of(app)

    drive(settings, steps)
    assert state_of(jobs, request) is RequestState.OPEN


def test_times_decide_also_when_the_change_came_between_the_key_and_its_turn():
    fine = {"whole_since": 1.0, "lines_not_shown": 0, "list_moved_at": 1.0}
    assert why_not_now(2.0, **fine) is None
    assert "list moved" in why_not_now(2.0, **fine | {"list_moved_at": 2.1})
    assert "only just come" in why_not_now(2.0, **fine | {"whole_since": 2.1})
    assert "1 line of it has" in why_not_now(2.0, **fine | {"whole_since": None, "lines_not_shown": 1})


def test_a_request_on_another_tab_is_shown_not_answered(settings, jobs):
    request = ask(jobs.registry, running(jobs))

    async def steps(app, pilot):
        await shown(app, pilot, "git push")
        await pilot.press("e")
        await shown(app, pilot, "state", whole=False)
        await pilot.press("y")
        assert "was not on the screen" in message_of(app)
        await shown(app, pilot, "git push")

    drive(settings, steps)
    assert state_of(jobs, request) is RequestState.OPEN


def test_marked_requests_are_answered_one_by_one_after_all_were_shown(settings, jobs):
    asked = [ask(jobs.registry, running(jobs, title=f"job {number}"), call=LONG) for number in range(3)]

    async def steps(app, pilot):
        await until(pilot, lambda: sum(len(each.requests) for each in app.screen._found.cards.values()) == 3)
        await pilot.press("space", "space", "y")
        await until(pilot, lambda: isinstance(app.screen, dialogs.Reading))
        view = app.screen.query_one(TextView)
        await until(pilot, lambda: view.line_count)
        await pilot.press("enter")
        assert isinstance(app.screen, dialogs.Reading)
        while view.whole_since is None:
            await pilot.press("space")
        await pilot.press("enter")
        await until(pilot, lambda: [state_of(jobs, each) for each in asked[:2]] == [RequestState.ANSWERED] * 2)

    drive(settings, steps)
    assert state_of(jobs, asked[2]) is RequestState.OPEN
    closed = [
        [line["request_id"] for line in jobs.history.lines(each.job_id) if line["event"] == "request_closed"]
        for each in asked
    ]
    assert closed == [[asked[0].request_id], [asked[1].request_id], []]


def test_keys_move_deny_with_a_reason_answer_in_words_and_snooze(settings, jobs):
    denied = ask(jobs.registry, running(jobs, title="first"))
    asked = ask(jobs.registry, running(jobs, title="second"), kind="question", options=(QUESTION,), call={})
    running(jobs, title="works")

    async def steps(app, pilot):
        board = app.screen
        await shown(app, pilot, "git push")
        await pilot.press("N", *"too early", "enter")
        await until(pilot, lambda: state_of(jobs, denied) is RequestState.ANSWERED)
        await shown(app, pilot, "Which colour?")
        await pilot.press("a", *"dark blue", "enter")
        await until(pilot, lambda: state_of(jobs, asked) is RequestState.ANSWERED)
        await until(pilot, lambda: not any(row.wants_user for row in board.list.rows))
        await pilot.press("w")
        assert message_of(app).strip() == "no job needs you"
        third = ask(jobs.registry, running(jobs, title="third"))
        await until(pilot, lambda: any(row.wants_user for row in board.list.rows))
        await pilot.press("G", "w")
        assert board.list.selected.title == "third"
        await pilot.press("z")
        await until(pilot, lambda: board._found.counts.get("snoozed") == 1)
        assert board.list.rows[-1].title == "third"
        await pilot.press("z")
        await until(pilot, lambda: board._found.counts.get("waiting") == 1)
        assert state_of(jobs, third) is RequestState.OPEN
        await pilot.press("G", "k", "g")
        assert board.list.place == 0
        await pilot.press("d")
        await shown(app, pilot, "has no worktree", whole=False)

    drive(settings, steps)
    assert jobs.registry.get_request(denied.request_id).reason == "too early"
    assert jobs.registry.get_request(asked.request_id).choices == {"Which colour?": "dark blue"}


def test_marked_jobs_that_an_action_cannot_be_done_to_are_left_out_and_counted(settings, jobs):
    asking = ask(jobs.registry, running(jobs, title="asks"))
    ask(jobs.registry, running(jobs, title="a question"), kind="question", options=(QUESTION,), call={})
    running(jobs, title="works")

    async def steps(app, pilot):
        await until(pilot, lambda: sum(len(each.requests) for each in app.screen._found.cards.values()) == 2)
        await pilot.press("space", "space", "space", "y")
        await until(pilot, lambda: isinstance(app.screen, dialogs.Reading))
        view = app.screen.query_one(TextView)
        await until(pilot, lambda: view.whole_since is not None)
        shown = "\n".join(text for text, _ in view.source)
        assert "git push" in shown
        assert "Which colour?" not in shown
        assert "left out: 2 marked jobs that this cannot be done to" in shown
        await pilot.press("enter")
        await until(pilot, lambda: state_of(jobs, asking) is RequestState.ANSWERED)

    drive(settings, steps)


def test_a_filter_finds_what_the_list_shows_labels_and_ids(settings, jobs):
    wanted = running(jobs, title="Fix the Checkout", labels=["urgent"], agent="codex")
    set_activity(jobs.registry, wanted, "working", "Bash: make test")
    running(jobs, title="other")

    async def steps(app, pilot):
        board = app.screen
        await until(pilot, lambda: sorted(row.reason for row in board._found.rows) == ["", "Bash: make test"])
        for words in ("urgent", "checkout fix", wanted.job_id, "codex", "make test"):
            board._set_filter(words)
            assert [row.title for row in board.list.rows] == ["Fix the Checkout"], words
        for words in ("true", "false", "nothing"):
            board._set_filter(words)
            assert board.list.rows == [], words

    drive(settings, steps)


@pytest.mark.parametrize("width", [70, 80, 120, 200])
def test_the_head_says_what_there_is_room_for(width):
    counts = dict.fromkeys(GROUPS, 3)
    text = "".join(part for part, _ in head_line(counts, Listed(4, 20, 27, marked=2, words="shop"), width))
    assert cells(text) <= width
    assert all(each in text for each in ("? 3", "✗ 3", "5/20", "/shop: 20 of 27", "* 2 marked"))
    assert ("snoozed" in text) == (width == 200)


def test_the_help_needs_no_wrapping_on_a_terminal_of_80_columns():
    assert max(cells(text) for text, _ in help_lines()) <= 75
    assert sum(cells(text) for text, _ in keys_line(80)) <= 80


def test_an_answer_that_was_not_used_is_reported(settings, jobs):
    request = ask(jobs.registry, running(jobs))

    async def steps(app, pilot):
        await shown(app, pilot, "git push")
        await pilot.press("y")
        await until(pilot, lambda: state_of(jobs, request) is RequestState.ANSWERED)
        requests.not_used(jobs, request.request_id, "deny by a person at the keyboard")
        await until(pilot, lambda: "your answer was not used: deny by a person" in message_of(app))

    drive(settings, steps)


def test_a_number_answers_a_question_and_y_does_not(settings, jobs):
    request = ask(jobs.registry, running(jobs), kind="question", options=(QUESTION,), call={})

    async def steps(app, pilot):
        await shown(app, pilot, "Which colour?")
        await pilot.press("y")
        assert "press 1 to 2, or a" in message_of(app)
        await pilot.press("2")
        await until(pilot, lambda: state_of(jobs, request) is RequestState.ANSWERED)

    drive(settings, steps)
    assert jobs.registry.get_request(request.request_id).choices == {"Which colour?": "green"}


def test_a_call_that_is_not_exact_needs_another_key(settings, jobs):
    request = ask(jobs.registry, running(jobs), exact=False)

    async def steps(app, pilot):
        await shown(app, pilot, "git push")
        await pilot.press("y")
        assert "not known exactly" in message_of(app)
        await pilot.press("Y")
        await until(pilot, lambda: state_of(jobs, request) is RequestState.ANSWERED)

    drive(settings, steps)


def test_one_key_does_not_allow_what_the_agent_would_not(settings, jobs):
    request = ask(jobs.registry, running(jobs), options=({"consent": {"default_no": True}},))

    async def steps(app, pilot):
        await shown(app, pilot, "the agent's own default is no")
        await pilot.press("y")
        assert "press y once more" in message_of(app)
        assert state_of(jobs, request) is RequestState.OPEN
        await pilot.press("j")  # another key: the first press counts no more
        await pilot.press("1")
        await pilot.press("y")
        assert "press y once more" in message_of(app)
        await pilot.press("y")
        await until(pilot, lambda: state_of(jobs, request) is RequestState.ANSWERED)

    drive(settings, steps)


def test_an_answer_without_evidence_is_reported(settings, jobs):
    request = ask(jobs.registry, running(jobs))

    async def steps(app, pilot):
        await shown(app, pilot, "git push")
        await pilot.press("y")
        await until(pilot, lambda: state_of(jobs, request) is RequestState.ANSWERED)
        await until(pilot, lambda: "has not taken the answer yet" in message_of(app))

    drive(settings, steps)


def test_an_end_that_was_shown_is_seen_when_the_user_goes_on(settings, jobs):
    ended = running(jobs, title="over")
    jobs.record_event(ended.job_id, "error", detail="it broke", attempt=ended.attempt)
    running(jobs, title="goes on")

    async def steps(app, pilot):
        await shown(app, pilot, "it broke", whole=False)
        assert jobs.get_job(ended.job_id).seen_at is None
        await pilot.press("j")
        await until(pilot, lambda: jobs.get_job(ended.job_id).seen_at is not None)
        await until(pilot, lambda: [row.title for row in app.screen.list.rows] == ["goes on", "over"])
        assert app.screen.list.selected.title == "goes on"

    drive(settings, steps)


def test_a_timer_that_comes_after_the_end_asks_for_nothing():
    done = []
    reader = Reader(lambda: done.append("look"), done.append)
    reader.stop()
    reader.look()
    reader.do(lambda: done.append("work"), done.append)
    assert done == []


def a_row(key, **changes):
    fields = {"state": "working", "age": "1m", "agent": "codex", "title": key, "reason": "", "home": "~/x"}
    return Row(key=key, **fields, is_quiet=False, wants_user=False)._replace(**changes)


class ListApp(App):
    def compose(self):
        yield JobList(id="list")


def test_the_cursor_stays_on_its_job_when_others_come_before_it():
    async def main():
        app = ListApp()
        async with app.run_test(size=(80, 8)) as pilot:
            jobs = app.query_one(JobList)
            jobs.show_rows([a_row(f"job{number}") for number in range(20)])
            jobs.move_to(12)
            moved_at, before = jobs.moved_at, [row.key for row in jobs.visible_rows]
            jobs.show_rows([a_row("new"), *jobs.rows])
            assert jobs.selected.key == "job12"
            # The rows around it are those from before: nothing has moved for the user.
            assert ([row.key for row in jobs.visible_rows], jobs.moved_at) == (before, moved_at)
            jobs.show_rows([row for row in jobs.rows if row.key != "job12"])
            assert jobs.selected.key == "job13"
            assert jobs.moved_at > moved_at
            await pilot.pause()

    asyncio.run(main())


@pytest.mark.parametrize(
    "text",
    ["", "x" * 100, "one two three four five six seven eight", "日本語の長い行です" * 9, "e\u0301" * 50, "का" * 50,
     "\U0001f3fb" * 30 + " end"],
)  # fmt: skip
@pytest.mark.parametrize("width", [1, 7, 20])
def test_wrapping_loses_no_character(text, width):
    pieces = wrap(text, width)
    assert "".join(pieces) == text
    assert all(cells(piece) <= max(width, 2) for piece in pieces)
    for fitted in (fit(text, width), fit_path(text, width)):
        assert cells(fitted) == width


@pytest.mark.parametrize(
    ("module", "base"),
    [(screen, Screen), (dialogs, Screen), (job_list, Widget), (text_view, ScrollView), (terminal, App)],
)
def test_no_name_of_the_board_replaces_one_of_textual(module, base):
    with open(module.__file__) as file:
        source = file.read()
    own = {*re.findall(r"self\.(_\w+)", source), *re.findall(r"def (_[a-z]\w+)\(self", source)}
    files = [inspect.getsourcefile(each) for each in base.__mro__ if each.__module__.startswith("textual")]
    theirs = "".join(pathlib.Path(each).read_text() for each in files)
    assert {name for name in own if hasattr(base, name) or re.search(rf"self\.{name}\b", theirs)} == set()
