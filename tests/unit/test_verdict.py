"""How the end of an agent's program is described."""

from __future__ import annotations

import pytest

from baton.sessions.verdict import ExitStatus


@pytest.mark.parametrize(
    ("code", "ok", "described"),
    [
        (0, True, "the command ended with exit code 0"),
        (3, False, "the command ended with exit code 3: last words"),
        (-9, False, "the command ended with signal SIGKILL: last words"),
        (-40, False, "the command ended with signal 40: last words"),
    ],
)
def test_the_end_of_a_program(code, ok, described):
    ended = ExitStatus(code)
    assert ended.ok is ok
    assert ended.describe("the command", lambda: "last words") == described


def test_a_command_that_showed_nothing():
    assert ExitStatus(1).describe("the command", lambda: "") == "the command ended with exit code 1"


def test_the_reason_of_a_failure_has_the_last_lines_of_the_screen():
    screen = "\n".join(["", *(f"line {number}" for number in range(40)), "", "  it failed  ", ""])
    said = ExitStatus(1).describe("the command", lambda: screen).splitlines()
    assert said == [
        "the command ended with exit code 1:",
        *(f"line {number}" for number in range(31, 40)),
        "  it failed",
    ]


@pytest.mark.parametrize("header", ["Stack backtrace:", "stack backtrace:", "   Backtrace:  "])
def test_the_reason_is_the_line_before_a_backtrace(header):
    why = 'Error: CODEX_HOME points to "/home/u/.codex", but that path does not exist'
    frames = [f"  {number}: <unknown>" for number in range(30)]
    said = ExitStatus(1).describe("codex", lambda: "\n".join([why, "", header, *frames]))
    assert said == f"codex ended with exit code 1: {why}"
    assert "29: <unknown>" in ExitStatus(1).describe("codex", lambda: "\n".join([header, *frames]))


def test_banners_and_frames_are_no_part_of_a_reason():
    screen = " ███ ░░░███ \n░░░  ███░\n╭──────╮\n│ no such model: größe-2 │\n╰──────╯\nE  assert 1 == 2 -> …\n"
    said = ExitStatus(1).describe("the agent", lambda: screen).splitlines()
    assert said[1:] == ["no such model: größe-2", "E  assert 1 == 2 ->"]
