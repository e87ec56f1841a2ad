"""`baton board` on a real terminal: driven by keys, looked at as a screen."""

from __future__ import annotations

import os
import re

import pytest
from rich.cells import cell_len

from baton.core.request import RequestState
from baton.jobs.verbs import open_jobs
from support.asking import ask, running, set_activity
from support.board import BoardTerminal
from support.homes import home_of, settings_in
from support.office import Office
from support.waiting import wait_until

TABS = ("screen", "request", "history", "explain", "result", "diff")


@pytest.fixture
def office(tmp_path):
    with Office(tmp_path) as office:
        yield office


@pytest.fixture
def folder(tmp_path):
    """A folder with a home; of no process."""
    home_of(tmp_path)
    return tmp_path


@pytest.fixture
def env(folder):
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"}


@pytest.fixture
def jobs(folder):
    with open_jobs(settings_in(folder)) as jobs:
        yield jobs


def answer_to(jobs, request):
    found = jobs.registry.get_request(request.request_id)
    return found.state is RequestState.ANSWERED and (found.answer, found.via)


def press_until(board, key, condition, what):
    """Press a key as a person does who reads that nothing was sent: once more."""

    def pressed():
        if condition():
            return True
        board.press(key)
        return wait_for(condition, 1.0)

    wait_until(pressed, what)


def wait_for(condition, seconds):
    from support.waiting import poll

    return poll(condition, seconds)


def test_a_day_at_the_board(office):
    work = office.detached(
        "--title", "live work", "echo first words; read line; echo got-$line; echo last words; sleep 1000"
    )
    with open_jobs(office.settings) as jobs:
        asked = [
            ask(jobs.registry, running(jobs, title=f"wish {name}"), call={"command": f"make {name}"})
            for name in ("one", "two")
        ]
        with BoardTerminal(office.folder, office.env, width=120, height=30) as board:
            # The list: those first that need an answer.
            lines = board.sees("wish one", "wish two", "live work", "command: make one")
            assert [line.split()[-1] for line in lines if "waiting" in line and "wish" in line] == ["~", "~"]
            assert "? 2 waiting" in lines[0]
            # One is allowed, the other denied.
            press_until(board, "y", lambda: answer_to(jobs, asked[0]), "the first is allowed")
            assert answer_to(jobs, asked[0]) == ("allow", "board")
            board.sees("command: make two")
            press_until(board, "n", lambda: answer_to(jobs, asked[1]), "the second is denied")
            assert answer_to(jobs, asked[1]) == ("deny", "board")
            board.sees("denied; the agent's runner has not taken the answer yet")
            # The filter leaves the live job alone; its screen is live.
            board.press("/")
            board.sees("show only jobs")
            board.type("live wor")
            board.press("Enter")
            board.sees_no("wish")
            board.sees("1 of 3", "first words")
            board.press("m")
            board.sees("message to")
            board.type("hello")
            board.press("Enter")
            board.sees("typed into session", "got-hello", "last words")
            # Attach gives the terminal to the session, and comes back.
            board.press("Enter")
            board.sees_no("TITLE")
            assert any("last words" in line for line in board.sees("last words"))
            board.press("C-b", "d")
            board.sees("back on the board", "live work")
            # A board that is killed loses nothing.
            board.kill()
            board.start()
            board.sees("wish one", "wish two", "live work")
            board.press("/")
            board.sees("show only jobs")
            board.type("live")
            board.press("Enter")
            board.sees_no("show only jobs")
            board.sees_no("wish")
            board.press("c")
            board.sees("Cancel 1 job", "live work")
            board.press("Enter")
            board.sees("is cancelled")
            office.wait_for_status(work, "cancelled")
            # It runs again as another job.
            board.sees("- cancelled")
            board.press("r")
            board.sees("Run 1 job again", "live work")
            board.press("Enter")
            board.sees("runs again as")
            again = wait_until(lambda: jobs.get_job(work).retried_by, "another job")
            office("cancel", again)
            board.press("q")
            board.wait_until_it_ended()


def test_an_empty_board_fills_and_helps(jobs, folder, env):
    with BoardTerminal(folder, env) as board:
        board.sees("no jobs yet: `baton submit` starts one")
        running(jobs, title="new work")
        board.sees("new work")
        board.press("?")
        board.sees("Keys of the board", "go to the next job that needs you")
        board.press("Escape")
        board.sees("new work", "screen")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_everything_has_its_place(jobs, folder, env, width):
    asking = running(jobs, title="Fix the checkout of the shop so that every price is right, " * 3 + "always")
    request = ask(jobs.registry, asking, call={"command": "git push origin main"})
    for number, state in enumerate(("working", "stalled", "limited")):
        set_activity(
            jobs.registry, running(jobs, title=f"Title {number}", agent="codex"), state, f"cause of {state} " * 9
        )
    failed = running(jobs, title="日本語のタイトル" * 6)
    jobs.record_event(failed.job_id, "error", detail="tests failed", attempt=failed.attempt)
    with BoardTerminal(folder, env, width=width, height=24) as board:
        lines = board.sees("git push origin main", "? help", "日本", "y allows it", "limited")
    assert all(cell_len(line) <= width for line in lines), lines
    heading = next(line for line in lines if "TITLE" in line)
    rows = [line for line in lines if re.match(r"[> ][ *][?!✗‖▶·] ", line)]
    assert len(rows) == 5
    for column in ("STATE", "AGENT", "TITLE", "DETAIL", "HOME"):
        place = heading.index(column)
        for row in rows:
            before = row_at(row, place - 1)
            assert before == " ", (column, row)  # no column runs into the next
            if column in ("STATE", "AGENT", "TITLE"):
                assert row_at(row, place) != " ", (column, row)
    assert [row.split()[1] for row in rows if row.startswith("  ")] == ["failed", "stalled", "limited", "working"]
    assert all(tab in next(line for line in lines if "[request (1)]" in line) for tab in TABS)
    assert all(key in lines[-1] for key in ("j/k", "Enter", "y/n", "c cancel", "? help", "q quit"))
    assert request.summary[:12] in rows[0]


def row_at(line, column):
    """Return what stands in a column of the screen: a wide character takes two."""
    for each in line:
        if column <= 0:
            return each
        column -= cell_len(each)
    return " "


def test_a_terminal_that_is_too_small_says_so(jobs, folder, env):
    running(jobs, title="some work")
    with BoardTerminal(folder, env, width=50, height=10) as board:
        board.sees("too small (50x10): the board needs 60x15")
        board.resize(80, 24)
        board.sees("some work", "? help")


def test_without_colours_symbols_and_attributes_remain(jobs, folder, env):
    ask(jobs.registry, running(jobs, title="some work"))
    with BoardTerminal(folder, env | {"NO_COLOR": "1"}) as board:
        board.sees("some work", "git push")
        shown = "\n".join(board.lines(colours=True))
    codes = {code for found in re.findall(r"\x1b\[([0-9;]*)m", shown) for code in found.split(";")}
    assert codes <= {"", "0", "1", "2", "7", "22", "27", "39", "49"}, codes


def test_a_home_that_goes_away_is_named_and_comes_back(jobs, folder, env, tmp_path_factory):
    running(jobs, title="work here")
    other = tmp_path_factory.mktemp("other")
    home = home_of(other, env)
    with open_jobs(settings_in(other, env)) as there:
        running(there, title="work there")
    with BoardTerminal(folder, env, width=120) as board:
        board.sees("work here", "work there")
        database = os.path.join(home, "jobs", "registry.db")
        os.rename(database, f"{database}.away")
        os.mkdir(database)
        board.sees("! cannot see", "work here", "work there")
        os.rmdir(database)
        os.rename(f"{database}.away", database)
        board.sees_no("! cannot see")
        board.sees("work here", "work there")


def test_a_prompt_of_a_megabyte_is_shown_and_searched(jobs, folder, env):
    running(jobs, "long words " * 95_000)
    with BoardTerminal(folder, env) as board:
        board.sees("long words long")
        board.press("e")
        board.sees("[explain]", "prompt")


def test_every_character_of_a_long_call_is_on_the_screen(jobs, folder, env):
    command = "".join(f"{number:03d}." for number in range(240))
    ask(jobs.registry, running(jobs, title="long"), call={"command": command})
    parts = []
    with BoardTerminal(folder, env) as board:
        parts.append(board.sees("000.001.002"))
        board.press("PageDown", "PageDown")
        parts.append(board.sees("239.", "y allows it"))
    shown = ["".join(re.sub(r"[▁-█]$", "", line).strip() for line in lines) for lines in parts]
    assert command[:400] in shown[0]
    assert command[-400:] in shown[1]


def test_no_character_pushes_the_end_of_a_call_out_of_the_screen(jobs, folder, env):
    """Terminals take more columns for some characters than the board may think: what follows must stay on the screen."""
    odd = ["\U0001f3fb", "का", "\u3164", "\uffa0", "\u3248", "a\u0301", "\U0001f468\u200d", "\ufe0f"]
    call = {f"field{place}": f"ls {each * 33} && {'x' * 20} last{place}" for place, each in enumerate(odd)}
    ask(jobs.registry, running(jobs, title="देवनागरी में काम"), call=call)
    with BoardTerminal(folder, env, width=80, height=70) as board:
        lines = board.sees("y allows it")
    shown = "".join("".join(lines).split())
    assert [shown.count(f"&&{'x' * 20}last{place}") for place in range(len(odd))] == [1] * len(odd), lines


def test_it_needs_a_terminal(office):
    assert "the board needs a terminal" in office.refused("board", code=64)
