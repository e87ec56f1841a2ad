"""What an agent says whose output lines are read."""

from __future__ import annotations

import os

from baton.adapters.contract import Mode, Task
from baton.adapters.custom import Custom
from baton.channels.lines import Lines
from baton.core.signal import FAILED, Asked, Said, Settled, TurnEnded, TurnStarted

OUTPUT = {
    "progress": "^step: (.*)",
    "permission": r"^may I (.*)\?",
    "finished": "^done: (.*)",
    "failed": "^cannot (.*)",
}


def signals(content: bytes) -> tuple[list, str]:
    """The signals of a program that has written this and ended, and its output."""
    agent = Custom("mine", {"headless": ["mine"], "output": OUTPUT})
    task = Task(
        mode=Mode.HEADLESS, prompt="do it", conversation_id=None, resume=False, yolo=False, folder="/f", workdir="/w", hook=[]
    )  # fmt: skip
    heard: list = []
    channel = Lines(agent, task)
    channel.open(lambda each: heard.append(each.signal))
    output, program = os.pipe()
    channel.attach(None, output)
    assert channel.outputs == [output]
    os.write(program, content)
    os.close(program)
    channel.read()
    assert channel.outputs == []
    channel.close()
    return heard, channel.take_text()


def test_the_turn_begins_with_the_first_line_and_the_last_line_needs_no_end():
    heard, text = signals(b"hello\nstep: one\ndone: all \xff")
    begun, *rest = heard
    assert (type(begun), begun.prompt) == (TurnStarted, "do it")
    assert rest == [Said(text="one"), TurnEnded(message="all \ufffd")]
    assert text == "hello\nstep: one\ndone: all \ufffd\n"


def test_a_question_on_its_own_screen_is_over_when_the_agent_goes_on():
    heard, _ = signals(b"may I rm x?\nmay I rm y?\nnothing\ncannot do it\n")
    asked = [each for each in heard if isinstance(each, Asked)]
    assert [(each.tool, each.exact) for each in asked] == [("rm x", False), ("rm y", False)]
    assert heard[-3:] == [
        *(Settled(key=each.key, decision=None, by="agent") for each in asked),
        TurnEnded(how=FAILED, why="do it"),
    ]


def test_a_silent_program_says_nothing():
    assert signals(b"") == ([], "")
