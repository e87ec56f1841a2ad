"""What the end of an agent's program means for its job."""

from __future__ import annotations

import pytest

from baton.adapters.claude_code import ClaudeCode
from baton.adapters.shell import Shell
from baton.sessions.statement import Statement
from baton.sessions.verdict import AgentRun, explain, is_success

DONE = Statement(finished="all done")
GAVE_UP = Statement(failed="no network")
TROUBLE = Statement(trouble="try 3 of 9")
PROGRESS = Statement(progress="Bash: ls")


@pytest.mark.parametrize(
    ("agent", "signals", "code", "success", "detail"),
    [
        (Shell(), [], 0, True, "the command ended with exit code 0"),
        (Shell(), [], 3, False, "the command ended with exit code 3: last words"),
        (Shell(), [], -9, False, "the command ended with signal SIGKILL: last words"),
        (Shell(), [], -40, False, "the command ended with signal 40: last words"),
        (ClaudeCode(), [PROGRESS, DONE], 0, True, "all done"),
        (ClaudeCode(), [GAVE_UP], 0, False, "no network"),
        (ClaudeCode(), [DONE, GAVE_UP], 1, False, "no network"),
        (ClaudeCode(), [], 0, False, "claude-code ended with exit code 0 before it said that the job was done"),
        (ClaudeCode(), [DONE], 2, False, "claude-code ended with exit code 2 though it had said that the job was done: last words"),
        (ClaudeCode(), [TROUBLE], 1, False,
         "claude-code ended with exit code 1 before it said that the job was done; before that: try 3 of 9: last words"),
        (ClaudeCode(), [TROUBLE, PROGRESS], 1, False,
         "claude-code ended with exit code 1 before it said that the job was done: last words"),
    ],
)  # fmt: skip
def test_the_end_of_a_program(agent, signals, code, success, detail):
    run = AgentRun()
    for signal in signals:
        run.note(signal)
    run.exit_code = code
    assert is_success(agent, run) is success
    assert explain(agent, run, lambda: "last words") == detail


def test_a_command_that_showed_nothing():
    run = AgentRun()
    run.exit_code = 1
    assert explain(Shell(), run, lambda: "") == "the command ended with exit code 1"


def test_the_reason_of_a_failure_has_the_last_lines_of_the_screen():
    run = AgentRun()
    run.exit_code = 1
    screen = "\n".join(["", *(f"line {number}" for number in range(40)), "", "  it failed  ", ""])
    said = explain(Shell(), run, lambda: screen).splitlines()
    assert said == [
        "the command ended with exit code 1:",
        *(f"line {number}" for number in range(31, 40)),
        "  it failed",
    ]


def test_a_long_last_message_is_one_line_in_the_event():
    run = AgentRun()
    run.note(Statement(finished="first\n" + "x" * 5000))
    said = explain(ClaudeCode(), run, lambda: "")
    assert (said.splitlines(), len(said)) == ([said], 300)
