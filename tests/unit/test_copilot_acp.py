"""Headless Copilot says by ACP nothing about a model service that it tries again: its log of the conversation does."""

from __future__ import annotations

import json
import os

import pytest

from baton.adapters.contract import Mode, Task
from baton.adapters.copilot import Copilot
from baton.channels.copilot_acp import CopilotAcp
from baton.core.signal import Retrying
from support.clock import FakeClock

CONVERSATION = "bb19f664-1b79-4ef1-b40e-475d9a44e3f1"
# As the real program wrote it.
ERROR = {
    "type": "hook.start",
    "data": {
        "hookInvocationId": "752ead47-b27e-43a2-ac0e-5278b0df42db",
        "hookType": "errorOccurred",
        "input": {
            "sessionId": CONVERSATION,
            "error": {
                "name": "Error",
                "message": '{"message":"Too many requests, slow down.","type":"rate_limit_error","code":"rate_limit_error"}',
            },
            "errorContext": "model_call",
            "recoverable": True,
        },
    },
    "id": "002fc1db-85fb-49d5-bac7-9ad5c1d2f374",
}


class Program:
    """A channel, and a stand-in for the program that talks to it."""

    def __init__(self, folder, *, resume=False):
        self.clock, self.heard = FakeClock(), []
        self.log = folder / ".copilot" / "session-state" / CONVERSATION / "events.jsonl"
        self.log.parent.mkdir(parents=True)
        self.task = Task(
            mode=Mode.HEADLESS, prompt="go", conversation_id=CONVERSATION if resume else None, resume=resume, yolo=False,
            folder=str(folder), workdir="/w", hook=[], environment={"HOME": str(folder)},
        )  # fmt: skip
        self.channel = CopilotAcp(Copilot(), self.task, clock=self.clock)
        self.setup = self.channel.open(lambda heard: self.heard.append(heard.signal))
        self.input, stdin = os.pipe()
        stdout, self.output = os.pipe()
        self.channel.attach(stdin, stdout)

    def say(self, *messages):
        for message in messages:
            os.write(self.output, json.dumps(message).encode() + b"\n")
            self.channel.read()

    def begin(self):
        self.say({"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}})
        self.say({"id": 2, "result": {"sessionId": CONVERSATION}})
        self.clock.advance(2)  # a loaded conversation is repeated first
        self.channel.read()

    def write(self, *events):
        with self.log.open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)
        self.channel.read()

    @property
    def tries(self):
        return [(each.number, each.why) for each in self.heard if isinstance(each, Retrying) and not each.assumed]

    def close(self):
        self.channel.close()
        os.close(self.input)
        os.close(self.output)


@pytest.fixture
def program(tmp_path):
    made = Program(tmp_path)
    yield made
    made.close()


def test_its_log_tells_that_it_tries_again_and_why(program):
    program.begin()
    program.write(ERROR, {"type": "hook.end", "data": {"hookType": "errorOccurred", "success": True}})
    program.write(ERROR)
    assert program.tries == [(1, "Too many requests, slow down."), (2, "Too many requests, slow down.")]


def test_a_long_silence_after_that_names_the_reason(program):
    program.begin()
    program.write(ERROR)
    program.clock.advance(31)
    program.channel.read()
    assert "Too many requests" in program.heard[-1].why


@pytest.mark.parametrize(
    "event", [ERROR | {"agentId": "a subagent"}, {"type": "hook.start"}, {"type": "hook.start", "data": 7}, {}, 7]
)
def test_other_events_mean_nothing(program, event):
    program.begin()
    program.write(event)
    assert program.tries == []


def test_errors_of_the_past_are_not_of_this_turn(tmp_path):
    (tmp_path / "x").mkdir()
    program = Program(tmp_path / "x", resume=True)
    program.write(ERROR)
    program.begin()
    program.write(ERROR)
    assert len(program.tries) == 1
    program.close()


def test_it_gets_a_plugin_with_a_hook_for_errors_alone(program):
    argv = Copilot().launch(program.task).argv
    folder = argv[argv.index("--plugin-dir") + 1]
    assert os.path.dirname(folder) == program.task.folder
    files = {name: json.loads(text) for name, text in program.setup.files.items()}
    assert {os.path.join(program.task.folder, os.path.dirname(name)) for name in files} == {folder}
    (hooks,) = (each["hooks"] for name, each in files.items() if name.endswith("hooks.json"))
    assert {event: [each["bash"] for each in hooks[event]] for event in hooks} == {"errorOccurred": ["true"]}
