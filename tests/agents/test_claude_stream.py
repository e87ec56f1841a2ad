"""What headless Claude Code says by its stream of JSON lines, and what it takes. No session: the channel talks to it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time

import pytest

from baton.adapters.claude_code import ClaudeCode
from baton.adapters.contract import Mode, Task
from baton.channels.claude_stream import ClaudeStream
from baton.core.request import Answer
from baton.core.signal import (
    ALLOW,
    BACKGROUND,
    DENY,
    FAILED,
    PROMPT,
    WELL,
    Asked,
    BackgroundWork,
    Conversation,
    Limited,
    Retrying,
    Said,
    Settled,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    Usage,
)
from truth.scripted_model import Call, Fail, Say, ScriptedModel, bash, cue, plan, question, read, subagent, write

_KEY = "not-a-key-of-anybody-0123456789"
_PATIENCE_SEC = 30


class Claude:
    """A headless Claude Code and its channel. `signals` are all that it said."""

    def __init__(self, folder, model: ScriptedModel) -> None:
        self.folder, self.model = folder, model
        self.work, self._home = folder / "work", folder / "home"
        self.signals: list = []
        self.times: dict[int, float] = {}
        self.output = ""
        self.process: subprocess.Popen | None = None
        (self._home / ".claude").mkdir(parents=True)
        self.work.mkdir()
        known = {"hasCompletedOnboarding": True, "projects": {str(self.work): {"hasTrustDialogAccepted": True}}}
        (self._home / ".claude.json").write_text(json.dumps(known))
        self.settings(allow=[])

    def settings(self, **permissions) -> None:
        (self._home / ".claude" / "settings.json").write_text(json.dumps({"permissions": permissions}))

    def start(self, *script, retries: int = 2, options: tuple[str, ...] = (), prompt: str = "") -> None:
        self.model.scripts["s"] = [step if isinstance(step, list) else [step] for step in script]
        task = Task(
            mode=Mode.HEADLESS, prompt=prompt or f"Do it. {cue('s')}", conversation_id=None, resume=False, yolo=False,
            folder=str(self.folder), workdir=str(self.work), hook=[],
        )  # fmt: skip
        agent = ClaudeCode()
        self.channel = ClaudeStream(agent, task)
        setup = self.channel.open(self._hear)
        environment = os.environ | setup.environment | {
            "HOME": str(self._home), "ANTHROPIC_API_KEY": _KEY, "ANTHROPIC_BASE_URL": self.model.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MAX_RETRIES": str(retries),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [*agent.launch(task).argv, *options], cwd=self.work, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )  # fmt: skip
        self.channel.attach(os.dup(self.process.stdin.fileno()), os.dup(self.process.stdout.fileno()))
        self.process.stdin.close()
        self.process.stdout.close()

    def _hear(self, heard) -> None:
        self.times[len(self.signals)] = time.monotonic()
        self.signals.append(heard.signal)

    def step(self, wait_sec: float = 0.1) -> None:
        """What the runner does in one round of its loop."""
        _, writable, _ = select.select(self.channel.outputs, self.channel.inputs, [], wait_sec)
        if writable:
            self.channel.write()
        self.channel.read()
        self.output += self.channel.take_text()

    def until(self, kind, number: int = 1, **fields):
        """The signal of this kind, and with these fields, that comes as the given number of them."""
        end = time.monotonic() + _PATIENCE_SEC
        while time.monotonic() < end:
            found = self.all(kind, **fields)
            if len(found) >= number:
                return found[number - 1]
            assert self.channel.outputs, f"it ended before {kind.__name__} {fields}: {self.signals}"
            self.step()
        raise AssertionError(f"no {kind.__name__} {fields} in {self.signals}")

    def all(self, kind, **fields) -> list:
        return [
            each
            for each in self.signals
            if isinstance(each, kind) and all(getattr(each, name) == value for name, value in fields.items())
        ]

    def answer(self, asked: Asked, decision: str, **more) -> None:
        assert self.channel.answer(asked.key, Answer(answer=decision, by="me", via="cli", **more))

    def finish(self) -> int:
        """Close its input, and return its exit code."""
        self.channel.finish()
        while self.channel.outputs:
            self.step(1)
        return self.process.wait(_PATIENCE_SEC)

    def close(self) -> None:
        if self.process is not None:
            self.channel.close()
            self.process.kill()
            self.process.wait()


@pytest.fixture
def claude(tmp_path):
    model = ScriptedModel()
    claude = Claude(tmp_path, model)
    yield claude
    claude.close()
    model.close()


def test_a_turn_without_questions(claude):
    claude.start(Say("well done"))
    ended = claude.until(TurnEnded)
    assert (ended.how, ended.message, ended.refused_tools) == (WELL, "well done", ())
    assert claude.finish() == 0
    begun = claude.until(TurnStarted)
    assert (begun.turn, begun.origin, begun.prompt) == (ended.turn, PROMPT, f"Do it. {cue('s')}")
    assert claude.until(Conversation).conversation_id
    assert sum(each.output_tokens for each in claude.all(Usage)) == 50
    assert sum(each.cost_usd or 0 for each in claude.all(Usage)) > 0
    assert "well done" in claude.output


def test_a_permission_is_allowed(claude):
    claude.start(bash("echo one > out.txt"), Say("done"))
    asked = claude.until(Asked)
    started = claude.until(ToolStarted)
    assert (asked.kind, asked.tool, asked.call["command"]) == ("tool", "Bash", "echo one > out.txt")
    assert asked.tool_id == started.tool_id
    assert asked.exact
    assert not (claude.work / "out.txt").exists()
    claude.answer(asked, ALLOW)
    assert claude.until(TurnEnded).how == WELL
    assert (claude.work / "out.txt").read_text() == "one\n"
    assert claude.until(Settled) == Settled(key=asked.key, decision=ALLOW, by="agent")
    assert claude.until(ToolEnded).ok
    assert not claude.channel.answer(asked.key, Answer(answer=DENY, by="me", via="cli"))
    assert not list((claude._home / ".claude").glob("settings.local.json"))
    assert not (claude.work / ".claude").exists()


def test_a_permission_is_refused_with_the_reason(claude):
    claude.start(bash("echo one > out.txt"), Say("I see"))
    claude.answer(claude.until(Asked), DENY, reason="not on a Monday")
    assert claude.until(TurnEnded).how == WELL
    assert not (claude.work / "out.txt").exists()
    assert "not on a Monday" in claude.model.log[-1].text
    assert claude.until(Settled).decision == DENY
    ended = claude.until(ToolEnded)
    assert (ended.ok, ended.why) == (False, "not on a Monday")


def test_two_permissions_at_once_are_answered_in_any_order(claude):
    claude.start([read("/etc/hostname"), read("/etc/debian_version")], Say("done"))
    first, second = claude.until(Asked), claude.until(Asked, 2)
    assert {first.call["file_path"], second.call["file_path"]} == {"/etc/hostname", "/etc/debian_version"}
    claude.answer(second, DENY, reason="not this one")
    assert claude.until(ToolEnded).tool_id == second.tool_id
    assert claude.all(TurnEnded) == []
    claude.answer(first, ALLOW)
    claude.until(TurnEnded)
    assert {each.key: each.decision for each in claude.all(Settled)} == {first.key: ALLOW, second.key: DENY}


def test_a_question_is_answered_with_a_choice(claude):
    claude.start(question("Which colour?", "Red", "Blue"), Say("thanks"))
    asked = claude.until(Asked)
    assert (asked.kind, asked.tool) == ("question", "AskUserQuestion")
    assert asked.options == ({"question": "Which colour?", "choices": ["Red", "Blue"], "several": False},)
    claude.answer(asked, ALLOW, choices={"Which colour?": "Blue"})
    assert claude.until(TurnEnded).how == WELL
    assert '"Which colour?"="Blue"' in claude.model.log[-1].text


def test_a_plan_is_approved(claude):
    text = "1. do it"
    script = [lambda: write(claude.model.plan_file(), text)], plan(text), Say("I do it")
    claude.start(*script, options=("--permission-mode", "plan"))
    asked = claude.until(Asked)
    assert (asked.kind, asked.call["plan"], asked.exact) == ("plan", text, True)
    claude.answer(asked, ALLOW)
    assert claude.until(TurnEnded).how == WELL
    assert "approved" in claude.model.log[-1].text


def test_a_background_shell_lives_until_it_has_ended(claude):
    claude.settings(allow=["Bash"])
    claude.start(bash("sleep 2; echo late > out.txt", background=True), Say("it runs"), Say("it is over"))
    assert claude.until(TurnEnded).message == "it runs"
    work = claude.all(BackgroundWork)[-1]
    assert [(task.kind, task.what) for task in work.tasks] == [("shell", "what the row wants")]
    last = claude.until(TurnEnded, 2)
    assert (last.how, last.message) == (WELL, "it is over")
    assert (claude.work / "out.txt").read_text() == "late\n"
    assert claude.until(TurnStarted, 2).origin == BACKGROUND
    # At no time between its start and the turn about its end was there no background work.
    places = [number for number, each in enumerate(claude.signals) if each == BackgroundWork(tasks=())]
    assert places[0] > claude.signals.index(claude.until(TurnStarted, 2))
    assert claude.finish() == 0


def test_a_background_subagent_is_waited_for_and_asks(claude):
    claude.model.scripts["sub"] = [[bash("echo sub > out.txt")], [Say("sub is done")]]
    claude.start(subagent(cue("sub"), background=True), Say("it works"), Say("all is done"))
    claude.until(TurnEnded)
    asked = claude.until(Asked)
    task = claude.all(BackgroundWork)[-1].tasks[0]
    assert (task.kind, asked.agent_ref) == ("subagent", task.task_id)
    claude.answer(asked, ALLOW)
    assert claude.until(TurnEnded, 2).message == "all is done"
    assert (claude.work / "out.txt").read_text() == "sub\n"
    assert claude.all(BackgroundWork)[-1].tasks == ()
    assert {each.agent_ref for each in claude.all(ToolStarted)} == {None, task.task_id}


def test_background_work_that_ends_in_a_turn_is_forgotten(claude):
    claude.settings(allow=["Bash"])
    claude.start([bash("true", background=True), bash("sleep 1")], Say("that is all"))
    assert claude.until(TurnEnded).message == "that is all"
    assert claude.all(BackgroundWork)[-1].tasks == ()


def test_the_agent_is_sent_back_in_the_same_process(claude):
    claude.start(Say("done!"))
    ended = claude.until(TurnEnded)
    assert ended.held
    claude.model.scripts["again"] = [[Say("now it is")]]
    assert claude.channel.end_turn(ended.turn, f"out.txt is missing {cue('again')}")
    assert not claude.channel.say("not while it works")
    assert claude.until(TurnEnded, 2).message == "now it is"
    assert claude.channel.say("one more")
    last = claude.until(TurnEnded, 3)
    assert claude.until(TurnStarted, turn=last.turn).prompt == "one more"
    assert claude.finish() == 0


def test_a_service_that_fails_twice_is_tried_again(claude):
    claude.start([Fail(529, "Overloaded", "overloaded_error", times=2), Say("late but well")], retries=3)
    assert claude.until(TurnEnded).message == "late but well"
    tries = claude.all(Retrying)
    assert [(each.number, each.most) for each in tries] == [(1, 3), (2, 3)]
    assert "529" in tries[0].why


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (Fail(401, "invalid x-api-key", "authentication_error"), "Invalid API key"),
        (Fail(400, "Your credit balance is too low to access the API"), "Credit balance is too low"),
        (Fail(529, "Overloaded", "overloaded_error"), "529"),
    ],
    ids=["401", "credit", "529"],
)
def test_a_service_that_refuses_is_a_failed_turn_in_the_programs_words(claude, failure, words):
    claude.start([failure], retries=1)
    ended = claude.until(TurnEnded)
    assert ended.how == FAILED
    assert words in ended.why
    assert claude.finish() == 1


def test_a_limit_of_the_subscription_says_until_when(claude):
    reset = int(time.time()) + 3600
    limit = {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": reset,
             "anthropic-ratelimit-unified-representative-claim": "five_hour"}  # fmt: skip
    claude.start([Fail(429, "This request would exceed your limit", "rate_limit_error", headers=limit)])
    ended = claude.until(TurnEnded)
    assert ended.how == FAILED
    assert [each.until_ns for each in claude.all(Limited)] in ([], [reset * 10**9])


def test_a_tool_that_settings_refuse_is_named(claude):
    claude.settings(deny=["Bash"])
    claude.start(Call("Write", {"file_path": str(claude.work / "x"), "content": "x"}), Say("done"))
    claude.answer(claude.until(Asked), DENY)
    ended = claude.until(TurnEnded)
    assert (ended.how, ended.refused_tools) == (WELL, ("Write",))


def test_a_quiet_tool_stays_open(claude):
    claude.settings(allow=["Bash"])
    claude.start(bash("sleep 3"), Say("done"))
    claude.until(ToolStarted)
    begun = len(claude.signals)
    claude.until(ToolEnded)
    assert [each for each in claude.signals[begun:-1] if not isinstance(each, Said | Usage)] == []


def test_a_long_message_is_a_sign_of_work(claude):
    claude.start(Say("the end", sec=4))
    claude.until(TurnEnded)
    assert len(claude.all(Said, text="")) >= 3


def test_a_long_prompt_arrives_whole(claude):
    prompt = "A long story, ünd mehr. " * 20_000 + cue("s")
    claude.start(Say("read"), prompt=prompt)
    assert claude.until(TurnEnded).message == "read", "its last words chose the answer"


def test_a_program_that_does_not_know_the_options_ends_with_its_words(claude):
    claude.start(Say("x"), options=("--no-such-option",))
    while claude.channel.outputs:
        claude.step(1)
    assert claude.process.wait(_PATIENCE_SEC) != 0
    assert claude.all(TurnStarted) == []
