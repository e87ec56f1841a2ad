"""What each message of headless Claude Code means, and what is written to it. The messages are recorded from 2.1.197."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from baton.adapters.claude_code import ClaudeCode
from baton.adapters.contract import Mode, Task
from baton.channels import pipes
from baton.channels.claude_consent import read_consent
from baton.channels.claude_stream import ClaudeStream
from baton.channels.contract import AnswerRefused
from baton.core.activity import DONE, OPEN, Facts, Limits, fold, verdict
from baton.core.request import Answer
from baton.core.signal import (
    ALLOW,
    BACKGROUND,
    DENY,
    FAILED,
    INTERRUPTED,
    WELL,
    Asked,
    BackgroundTask,
    BackgroundWork,
    Consent,
    Conversation,
    Limited,
    Retrying,
    Said,
    Settled,
    Stated,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    Usage,
)
from baton.core.spending import Spent, count
from support.clock import FakeClock

DATA = Path(__file__).parents[1] / "data" / "claude"
SAMPLES = sorted(path.name for path in DATA.glob("stream.*.json"))
SESSIONS = sorted(path.name for path in DATA.glob("session.*.jsonl"))


class Stream:
    """A channel whose Claude is the test. `heard` are the signals."""

    def __init__(self, config: Path | None = None) -> None:
        self.heard: list = []
        self.clock = FakeClock()
        self.config = config or Path("/no/such/folder")
        task = Task(
            mode=Mode.HEADLESS, prompt="do it", conversation_id=None, resume=False, yolo=False, folder="/f", workdir="/w", hook=[],
            environment={"CLAUDE_CONFIG_DIR": str(self.config)},
        )  # fmt: skip
        self.channel = ClaudeStream(ClaudeCode(), task, clock=self.clock)
        self.stated: list[Stated] = []
        self.setup = self.channel.open(self._hear)
        self.input, stdin = os.pipe()
        stdout, self.output = os.pipe()
        os.set_blocking(self.input, False)
        self.channel.attach(stdin, stdout)

    def _hear(self, heard) -> None:
        (self.stated if isinstance(heard.signal, Stated) else self.heard).append(heard.signal)

    def say(self, *messages: dict | str) -> list:
        """The signals of these messages."""
        before = len(self.heard)
        for message in messages:
            text = message if isinstance(message, str) else json.dumps(message)
            os.write(self.output, text.encode() + b"\n")
            self.channel.read()
        return self.heard[before:]

    def begin(self, *more: dict) -> list:
        return self.say(sample("system.init"), *more)

    @property
    def written(self) -> list[dict]:
        """What Claude can read."""
        try:
            return [json.loads(line) for line in os.read(self.input, 1 << 20).splitlines()]
        except BlockingIOError:
            return []

    def close(self) -> None:
        self.channel.close()
        for each in (self.input, self.output):
            if each is not None:
                os.close(each)


@pytest.fixture
def stream(tmp_path):
    stream = Stream(tmp_path)
    yield stream
    stream.close()


def sample(name: str, **changes) -> dict:
    return json.loads((DATA / f"stream.{name}.json").read_text()) | changes


def test_the_first_message_of_a_turn_says_release_mode_and_model(stream):
    stream.begin()
    stream.say(sample("system.init", permissionMode="acceptEdits", model=7, claude_code_version=None))
    first, second = stream.stated
    assert (first.release, first.mode, first.model) == ("2.1.197", "default", "claude-opus-4-8[1m]")
    assert (second.release, second.mode, second.model) == ("", "acceptEdits", "")


def allow(**more) -> Answer:
    return Answer(answer=ALLOW, by="me", via="cli", **more)


def deny(**more) -> Answer:
    return Answer(answer=DENY, by="me", via="cli", **more)


CONVERSATION = "ba9ff6e3-d68d-465b-8451-38faf31c2794"
COMMAND = {"command": "echo one > m.txt; sleep 0.2", "description": "stub command"}
QUESTION = {"question": "Which colour?", "choices": ["Red", "Blue"], "several": False}
TOKENS = {"input_tokens": 1300, "cached_tokens": 200, "cache_write_tokens": 100, "output_tokens": 50}
USED = {**TOKENS, "model": "claude-opus-4-8"}
SUM = {**TOKENS, "covers_all": True, "of_turn": False}
MEANINGS = {
    "assistant.text": [Said(text=". . . . . . . . ")],
    "assistant.text.sub": [Said(text="SUB SAYS done late"), Usage(message_id="msg_fc3e9d91fd8349fd", **USED)],
    "assistant.tool_use": [ToolStarted(tool_id="toolu_f2be41b932fb4266", name="Bash", call=COMMAND),
                           Usage(message_id="msg_b83c8cd9a67d4af2", **USED)],
    "assistant.tool_use.sub": [
        ToolStarted(tool_id="toolu_0cc23976957d470f", name="Bash", agent_ref="toolu_2936aaa5744046bc",
                    call={"command": "sleep 3; echo sub > sub.txt", "description": "stub command"}),
        Usage(message_id="msg_a3778f0cadfc4622", **USED),
    ],
    "control_request.can_use_tool.AskUserQuestion": [
        ToolStarted(tool_id="toolu_56f564d350ef4edb", name="AskUserQuestion", call=sample("control_request.can_use_tool.AskUserQuestion")["request"]["input"]),
        Asked(key="604e3cc6-b6bd-4167-82ca-86795b9f402d", kind="question", tool="AskUserQuestion", tool_id="toolu_56f564d350ef4edb",
              call=sample("control_request.can_use_tool.AskUserQuestion")["request"]["input"], options=(QUESTION,)),
    ],
    "control_request.can_use_tool.Bash": [
        ToolStarted(tool_id="toolu_71e350791b8b4b5c", name="Bash", call=COMMAND),
        Asked(key="3c8368a1-cc5d-4b0e-9543-ee5b56d72293", kind="tool", tool="Bash", call=COMMAND, tool_id="toolu_71e350791b8b4b5c"),
    ],
    "control_request.can_use_tool.Read": [
        ToolStarted(tool_id="toolu_9ca89831ea8b4e89", name="Read", call={"file_path": "/etc/debian_version"}),
        Asked(key="f188ee79-6839-4e9b-a858-d889e2da2f9f", kind="tool", tool="Read", call={"file_path": "/etc/debian_version"}, tool_id="toolu_9ca89831ea8b4e89",
              consent=Consent(why=sample("control_request.can_use_tool.Read")["request"]["decision_reason"])),
    ],
    "rate_limit_event": [Limited(until_ns=1795000000 * 10**9, why="the five hour limit is reached")],
    "result.error_during_execution.aborted_tools.is_error": [
        Usage(message_id="result-51215373-7472-44d2-b5d4-ff685f95def3", cost_usd=0.006975, **SUM),
        TurnEnded(how=INTERRUPTED, why="[ede_diagnostic] result_type=user last_content_type=n/a stop_reason=tool_use", held=True),
    ],
    "result.success.aborted_tools": [
        Usage(message_id="result-bc66a19e-5801-4a45-a201-9afccf576858", cost_usd=0.006975, **SUM),
        TurnEnded(how=INTERRUPTED, why="success", held=True),
    ],
    "result.success.completed": [
        Usage(message_id="result-5eb8541b-7c25-4b2a-9c14-495838b18d11", cost_usd=0.006975, **SUM), TurnEnded(message="DONE one", held=True)],
    "result.success.completed.is_error": [TurnEnded(how=FAILED, why="Invalid API key · Fix external API key", held=True)],
    "result.success.tool_deferred": [
        Usage(message_id="result-03f67022-1a98-420c-9a54-82b961327904", cost_usd=0.006975, **SUM),
        TurnEnded(how=FAILED, why="a hook deferred a tool call, which headless Claude Code cannot do later", held=True),
    ],
    "system.api_retry": [Retrying(number=1, most=10, why="401 authentication_failed")],
    "system.init": [Conversation(conversation_id=CONVERSATION), TurnStarted(turn="", prompt="do it")],
    "system.task_progress": [Said(text="Running stub command")],
    "system.task_started.local_agent": [BackgroundWork(tasks=(BackgroundTask(task_id="aa87792f655de9204", kind="subagent", what="sub work"),))],
    "system.task_started.local_bash": [BackgroundWork(tasks=(BackgroundTask(task_id="bqyzm64o2", kind="shell", what="stub command"),))],
}  # fmt: skip
SILENT = (
    "assistant.text.error_authentication_failed", "assistant.text.error_billing_error", "assistant.text.error_rate_limit",
    "assistant.text.error_server_error", "assistant.text.error_unknown", "attachment", "control_cancel_request", "control_response", "file-history-snapshot", "progress", "queue-operation",
    "system.hook_response", "system.hook_started", "system.task_notification", "system.task_updated", "user",
)  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_a_recorded_message(stream, name):
    name = name.removeprefix("stream.").removesuffix(".json")
    found = [each.replace(turn="") if hasattr(each, "turn") else each for each in stream.say(sample(name))]
    assert found == ([] if name in SILENT else MEANINGS[name])


@pytest.mark.parametrize("name", SESSIONS)
def test_a_recorded_session_is_done_once_and_at_its_end(stream, name):
    """The job is not done before the last turn has ended, whatever runs in the background."""
    lines = (DATA / name).read_text().splitlines()
    facts, outcomes = Facts.of_job("do it", stream.clock.monotonic_ns()), []
    stream.channel.open(stream.heard.append)
    for line in lines:
        stream.clock.advance(0.01)
        heard = stream.say(line)
        if "control_request" in line:
            assert stream.channel.answer(json.loads(line)["request_id"], allow())
        for each in heard:
            facts = fold(facts, each)
            if isinstance(each.signal, Asked):
                facts = fold(facts, each.replace(signal=Settled(key=each.signal.key, decision=ALLOW)))
        outcomes.append(verdict(facts, now_ns=stream.clock.monotonic, limits=Limits(idle_sec=60)).outcome)
    stream.clock.advance(4)
    last = verdict(facts, now_ns=stream.clock.monotonic, limits=Limits(idle_sec=60)).outcome
    assert set(outcomes[:-1]) == {OPEN}
    assert last == ("failed" if "wrong_key" in name else DONE)
    assert facts.open_tools == facts.open_requests == list(facts.tasks) == []


# -- turns -------------------------------------------------------------------------------------------------------------


def test_the_prompt_is_written_as_a_message_and_the_input_stays_open(stream):
    assert stream.written == [{"type": "user", "message": {"role": "user", "content": "do it"}}]
    stream.begin(sample("result.success.completed"))
    assert stream.channel.end_turn("x", None)
    with pytest.raises(BlockingIOError):
        os.read(stream.input, 1)
    stream.channel.finish()
    assert os.read(stream.input, 1) == b""


def test_a_prompt_that_the_program_does_not_take_at_once_is_written_later():
    stream = Stream()
    stream.begin(sample("result.success.completed"))
    assert stream.written
    text = "x" * 300_000
    assert stream.channel.say(text)
    assert stream.channel.inputs
    stream.channel.finish()
    content = b""
    while stream.channel.inputs:
        content += os.read(stream.input, 1 << 20)
        stream.channel.write()
    content += os.read(stream.input, 1 << 20)
    assert json.loads(content)["message"]["content"] == text
    assert os.read(stream.input, 1) == b"", "it is closed after that, not before"
    stream.close()


def test_a_program_that_reads_no_more_takes_no_prompt(stream):
    stream.begin(sample("result.success.completed"))
    os.close(stream.input)
    stream.input = None
    assert not stream.channel.say("more")
    assert not stream.channel.end_turn("x", "more")
    assert stream.channel.inputs == []


def test_an_agent_that_is_sent_back_goes_on_with_its_turn(stream):
    _, begun, *_, ended = stream.begin(sample("result.success.completed"))
    assert begun.turn == ended.turn
    assert stream.written
    assert stream.channel.end_turn(ended.turn, "out.txt is missing")
    assert [each["message"]["content"] for each in stream.written] == ["out.txt is missing"]
    again = stream.begin(sample("result.success.completed", total_cost_usd=0.01))
    assert [each.turn for each in again if isinstance(each, TurnStarted | TurnEnded)] == [ended.turn]


def test_a_further_prompt_is_a_turn_from_the_moment_it_is_written(stream):
    stream.begin(sample("result.success.completed"))
    before = len(stream.heard)
    assert stream.channel.say("more")
    assert [each.prompt for each in stream.heard[before:]] == ["more"]
    assert not stream.channel.say("and more"), "it is at work"
    ended = stream.begin(sample("result.success.completed"))[-1]
    assert ended.turn == stream.heard[before].turn


def test_background_work_that_ends_while_a_prompt_is_on_its_way_has_a_turn_of_its_own(stream):
    stream.begin(sample("system.task_started.local_bash"), sample("result.success.completed"))
    stream.say(sample("system.task_updated"))
    stream.channel.say("more")
    mine = stream.heard[-1].turn
    notice = sample("result.success.completed", origin={"kind": "task-notification"})
    about = [each for each in stream.begin(notice) if isinstance(each, TurnStarted | TurnEnded)]
    assert [(type(each), each.turn != mine) for each in about] == [(TurnStarted, True), (TurnEnded, True)]
    assert about[0].origin == BACKGROUND
    assert stream.begin(sample("result.success.completed"))[-1].turn == mine


@pytest.mark.parametrize(
    ("changes", "how", "why"),
    [
        ({"subtype": "error_max_turns"}, FAILED, "DONE one"),
        ({"subtype": "error_max_turns", "result": None}, FAILED, "error_max_turns"),
        ({"subtype": None, "result": None}, FAILED, "it ended with an error"),
        ({"is_error": True, "result": "", "errors": ["one", "two"]}, FAILED, "one\ntwo"),
        ({"is_error": True, "errors": 7, "result": 7, "permission_denials": 7, "usage": 7, "total_cost_usd": "x"}, FAILED, "7"),
        ({"origin": "x"}, WELL, ""),
    ],
)  # fmt: skip
def test_only_a_good_end_is_one(stream, changes, how, why):
    ended = stream.begin(sample("result.success.completed", **changes))[-1]
    assert (ended.how, ended.why) == (how, why)


def test_refused_tools_are_named_once(stream):
    denials = [{"tool_name": "Write"}, {"tool_name": "Bash"}, {"tool_name": "Bash"}, 7]
    assert stream.begin(sample("result.success.completed", permission_denials=denials))[-1].refused_tools == (
        "Bash",
        "Write",
    )


def test_a_tool_that_is_open_when_the_turn_ends_is_over(stream):
    stream.begin(sample("assistant.tool_use"), sample("control_request.can_use_tool.Bash"))
    found = stream.say(sample("result.error_during_execution.aborted_tools.is_error"))
    assert [each.tool_id for each in found if isinstance(each, ToolEnded)] == [
        "toolu_f2be41b932fb4266",
        "toolu_71e350791b8b4b5c",
    ]
    key = sample("control_request.can_use_tool.Bash")["request_id"]
    assert [each for each in found if isinstance(each, Settled)] == [Settled(key=key, decision=None, by="agent")]
    assert not stream.channel.answer(key, allow())


# -- questions -----------------------------------------------------------------------------------------------------------


def ask(stream, kind="Bash", **changes) -> str:
    message = sample(f"control_request.can_use_tool.{kind}", **changes)
    stream.say(message)
    assert all(each["type"] == "user" for each in stream.written)
    return message["request_id"]


def response(stream) -> dict:
    (written,) = stream.written
    assert written["type"] == "control_response"
    return written["response"]


def result_of(kind, **fields) -> dict:
    tool_id = sample(f"control_request.can_use_tool.{kind}")["request"]["tool_use_id"]
    part = {"type": "tool_result", "tool_use_id": tool_id, "content": "x"} | fields
    return {"type": "user", "message": {"role": "user", "content": [part]}, "parent_tool_use_id": None}


def test_a_call_is_allowed_as_it_was_asked_and_no_suggestion_is_passed_on(stream):
    key = ask(stream)
    assert stream.channel.answer(key, allow(scope="job"))
    given = response(stream)
    assert given == {
        "subtype": "success",
        "request_id": key,
        "response": {"behavior": "allow", "updatedInput": COMMAND},
    }
    assert not stream.channel.answer(key, deny())
    assert stream.written == []
    assert stream.say(result_of("Bash"))[0] == Settled(key=key, decision=ALLOW, by="agent")


def test_a_refusal_has_its_reason(stream):
    key = ask(stream)
    assert stream.channel.answer(key, deny(reason="not now"))
    assert response(stream)["response"] == {"behavior": "deny", "message": "not now"}
    found = stream.say(result_of("Bash", is_error=True, content="not now"))
    assert found[:2] == [
        Settled(key=key, decision=DENY, by="agent"),
        ToolEnded(tool_id="toolu_71e350791b8b4b5c", ok=False, why="not now"),
    ]


def test_a_refusal_that_was_not_heeded_is_known(stream):
    key = ask(stream)
    stream.channel.answer(key, deny())
    assert stream.say(result_of("Bash"))[0] == Settled(key=key, decision=ALLOW, by="agent")


def test_questions_are_answered_in_any_order_and_the_input_is_that_of_the_question(stream):
    first, second = ask(stream), ask(stream, "Read")
    assert stream.channel.answer(second, allow())
    assert response(stream)["response"]["updatedInput"] == {"file_path": "/etc/debian_version"}
    assert stream.channel.answer(first, deny())
    assert response(stream)["request_id"] == first


def test_a_question_is_answered_with_its_choices(stream):
    key = ask(stream, "AskUserQuestion")
    assert stream.channel.answer(key, allow(choices={"Which colour?": "Blue"}))
    given = response(stream)["response"]["updatedInput"]
    assert given["answers"] == {"Which colour?": "Blue"}
    assert given["questions"] == sample("control_request.can_use_tool.AskUserQuestion")["request"]["input"]["questions"]


@pytest.mark.parametrize("questions", [None, "Which?", [7], [{"question": "Which?", "options": ["a", {}]}]])
def test_questions_of_another_shape_are_asked_all_the_same(stream, questions):
    message = sample("control_request.can_use_tool.AskUserQuestion")
    message["request"]["input"] = {"questions": questions}
    (asked,) = [each for each in stream.say(message) if isinstance(each, Asked)]
    assert [each["choices"] for each in asked.options] == ([[]] if isinstance((questions or [7])[0], dict) else [])


def test_what_claude_says_about_its_question_is_passed_on(stream):
    request = sample("control_request.can_use_tool.Bash")["request"]
    rule = {"source": "projectSettings", "tool_name": "Bash", "rule_content": "git push:*"}
    said = {"requires_user_interaction": True, "default_to_no": True, "suppress_always_allow_rule": True}
    more = {"decision_reason": "\x1b[2Jit writes elsewhere", "matched_ask_rule": rule}
    (asked,) = [each for each in stream.say(sample("control_request.can_use_tool.Bash", request=request | said | more))
                if isinstance(each, Asked)]  # fmt: skip
    assert asked.consent == Consent(
        person_only=True,
        default_no=True,
        once=True,
        rule="the rule Bash(git push:*) of the project's settings of Claude Code",
        why="\ufffd[2Jit writes elsewhere",
    )


@pytest.mark.parametrize(
    ("said", "consent"),
    [
        ({}, Consent()),
        ({"requires_user_interaction": False, "default_to_no": None}, Consent()),
        ({"default_to_no": "perhaps", "matched_ask_rule": "?"}, Consent(default_no=True)),
        ({"decision_reason_type": "rule", "decision_reason_rule_source": "userSettings"},
         Consent(rule="a rule of your settings of Claude Code")),
        ({"decision_reason_type": "rule"}, Consent(rule="a rule of its settings")),
        ({"matched_ask_rule": {"source": 1, "tool_name": ["Bash"]}}, Consent(rule="the rule ['Bash'] of its 1")),
    ],
)  # fmt: skip
def test_a_field_of_another_type_counts_as_the_careful_value(said, consent):
    assert read_consent(said) == consent


def answers(stream) -> list[dict]:
    return [each["response"] for each in stream.written if each["type"] == "control_response"]


def plan_file(stream):
    """Write the plan of Claude and the transcript that names it; return the plan's file."""
    folder = stream.config
    plan = folder / "plans" / "do-it.md"
    transcript = folder / "projects" / "-w" / f"{CONVERSATION}.jsonl"
    for each in (plan, transcript):
        each.parent.mkdir(parents=True)
    plan.write_text("# The plan")
    line = {"type": "attachment", "isSidechain": False, "attachment": {"type": "plan_mode", "planFilePath": str(plan)}}
    transcript.write_text(json.dumps(line) + "\n")
    return plan


def ask_for_plan(stream):
    request = {"subtype": "can_use_tool", "tool_name": "ExitPlanMode", "input": {}, "tool_use_id": "t9"}
    found = stream.say({"type": "control_request", "request_id": "r9", "request": request})
    return [each for each in found if isinstance(each, Asked)][-1]


def test_a_plan_in_a_file_is_the_call(stream):
    stream.begin()
    plan = plan_file(stream)
    asked = ask_for_plan(stream)
    assert (asked.kind, asked.call, asked.exact) == ("plan", {"plan": "# The plan", "planFilePath": str(plan)}, True)
    assert stream.channel.answer(asked.key, allow())
    (answered,) = answers(stream)
    assert answered["response"] == {"behavior": "allow", "updatedInput": {}}


def test_a_plan_that_was_changed_is_asked_again_and_the_answer_refused(stream):
    stream.begin()
    plan = plan_file(stream)
    asked = ask_for_plan(stream)
    plan.write_text("# Another plan")
    with pytest.raises(AnswerRefused, match="changed after it was shown"):
        stream.channel.answer(asked.key, allow())
    settled, again = stream.heard[-2:]
    assert settled == Settled(key=asked.key, decision=None, by="agent")
    assert (again.call["plan"], again.tool_id) == ("# Another plan", "t9")
    assert answers(stream) == []
    plan.write_text("# A third plan")
    stream.clock.advance(1)
    stream.channel.read()
    last = stream.heard[-1]
    assert last.call["plan"] == "# A third plan"
    assert not stream.channel.answer(again.key, allow())
    assert stream.channel.answer(last.key, allow())
    (answered,) = answers(stream)
    assert answered["request_id"] == "r9"


def test_claude_says_that_it_goes_on_before_the_tool_is_over(stream):
    assert stream.setup.environment == {"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1"}
    stream.begin(sample("assistant.tool_use"))
    key = ask(stream)
    running = {"type": "system", "subtype": "session_state_changed", "state": "running"}
    assert stream.say(running) == [], "it waits"
    stream.channel.answer(key, allow())
    assert stream.say(running | {"state": "requires_action"}) == []
    assert stream.say(running) == [Settled(key=key, decision=ALLOW, by="agent")]
    assert [each for each in stream.say(result_of("Bash")) if isinstance(each, Settled)] == []


def test_that_claude_goes_on_is_no_evidence_of_a_denial(stream):
    stream.begin(sample("assistant.tool_use"))
    key = ask(stream)
    stream.channel.answer(key, Answer(answer=DENY, by="me", via="cli"))
    assert stream.say({"type": "system", "subtype": "session_state_changed", "state": "running"}) == []
    assert stream.say(result_of("Bash"))[0] == Settled(key=key, decision=ALLOW, by="agent")


def test_a_question_that_was_answered_elsewhere_is_gone(stream):
    key = ask(stream)
    assert stream.say(sample("control_cancel_request")) == [Settled(key=key, decision=None, by="agent")]
    assert not stream.channel.answer(key, allow())
    assert stream.written == []


def test_a_question_that_nobody_will_answer_is_refused(stream):
    key = ask(stream)
    stream.channel.release(key)
    assert response(stream)["response"]["behavior"] == "deny"


def test_a_question_of_a_subagent_says_whose_it_is(stream):
    stream.begin(sample("system.task_started.local_agent"))
    message = sample("control_request.can_use_tool.Bash")
    message["request"]["agent_id"] = "aa87792f655de9204"
    assert stream.say(message)[-1].agent_ref == "aa87792f655de9204"
    assert stream.say(sample("assistant.tool_use.sub"))[0].agent_ref == "aa87792f655de9204"


@pytest.mark.parametrize(
    "request_", [{"subtype": "hook_callback"}, {"subtype": "can_use_tool"}, {"subtype": "can_use_tool", "tool_name": 7}]
)
def test_a_question_that_is_none_of_ours_does_not_hold_claude_up(stream, request_):
    assert stream.written
    assert stream.say({"type": "control_request", "request_id": "r", "request": request_}) == []
    assert response(stream)["subtype"] == "error"


# -- background work ------------------------------------------------------------------------------------------------------

ENDED = {"patch": {"status": "completed"}}


def lists(signals) -> list[list[str]]:
    return [[task.task_id for task in each.tasks] for each in signals if isinstance(each, BackgroundWork)]


def test_background_work_is_listed_until_the_turn_about_its_end(stream):
    assert lists(stream.begin(sample("system.task_started.local_bash"))) == [["bqyzm64o2"]]
    assert lists(stream.say(sample("result.success.completed"), sample("system.task_updated", **ENDED))) == []
    found = stream.begin()
    assert [type(each) for each in found] == [Conversation, TurnStarted, BackgroundWork]
    assert found[1].origin == BACKGROUND
    assert "bqyzm64o2" in found[1].prompt
    assert found[2].tasks == ()


def test_background_work_about_whose_end_no_turn_begins_is_forgotten(stream):
    stream.begin(sample("system.task_started.local_bash"), sample("result.success.completed"))
    stream.say(sample("system.task_updated", **ENDED))
    stream.clock.advance(6)
    before = len(stream.heard)
    stream.channel.read()
    assert lists(stream.heard[before:]) == [[]]


def test_a_killed_shell_is_forgotten_at_once(stream):
    stream.begin(sample("system.task_started.local_bash"), sample("result.success.completed"))
    assert lists(stream.say(sample("system.task_updated"))) == [[]]


def test_a_command_in_the_foreground_is_no_background_work(stream):
    call = sample("assistant.tool_use")
    call["message"]["content"][0]["id"] = "toolu_fa3ffe0fbe794a65"
    stream.begin(call)
    assert stream.say(sample("system.task_started.local_bash")) == []
    result = {"type": "tool_result", "tool_use_id": "toolu_fa3ffe0fbe794a65"}
    ended = sample("system.task_notification", status="completed")
    found = stream.say(ended, {"type": "user", "message": {"content": [result]}})
    assert found == [ToolEnded(tool_id="toolu_fa3ffe0fbe794a65")]


# -- usage, and what is not known -----------------------------------------------------------------------------------------


def test_each_message_counts_once_and_the_cost_is_the_growth_of_the_sum(stream):
    found = stream.begin(
        sample("assistant.tool_use"),
        sample("assistant.tool_use"),
        sample("result.success.completed", total_cost_usd=0.5),
        sample("result.success.completed", total_cost_usd=0.75, uuid="other"),
        sample("result.success.completed", total_cost_usd=0.75, uuid="third"),
    )
    used = [each for each in found if isinstance(each, Usage)]
    assert [(each.input_tokens, each.output_tokens, each.cost_usd) for each in used] == [
        (1300, 50, None),
        (0, 0, 0.5),
        (0, 0, 0.25),
    ]


def test_the_sums_of_a_result_add_what_its_messages_did_not_say(stream):
    used = {
        "model": {"inputTokens": 1000, "cacheReadInputTokens": 200, "cacheCreationInputTokens": 100, "outputTokens": 80}
    }
    used["small"] = {"inputTokens": 7, "outputTokens": 3}
    found = stream.begin(
        sample("assistant.tool_use"), sample("result.success.completed", total_cost_usd=0.5, modelUsage=used)
    )
    told = [each for each in found if isinstance(each, Usage)]
    assert [(each.input_tokens, each.output_tokens) for each in told] == [(1300, 50), (7, 33)]
    spent, counted = Spent(), {}
    for each in [*told, *told]:
        spent, counted = count(spent, counted, each)
    assert (spent.tokens.input, spent.tokens.output, spent.total_usd({})) == (1307, 83, 0.5)


def test_a_result_at_a_usage_limit_does_not_say_that_the_model_answers(stream):
    found = stream.begin(
        sample("rate_limit_event"), sample("result.success.completed", is_error=True, total_cost_usd=0.5)
    )
    assert [each.of_turn for each in found if isinstance(each, Usage)] == [False]


def test_a_service_that_cannot_be_reached_is_named(stream):
    retry = sample("system.api_retry", error_status=None, error="unknown")
    assert stream.say(retry) == [Retrying(number=1, most=10, why="no connection to the model service")]


def test_a_limit_that_only_warns_is_none(stream):
    info = {"status": "allowed_warning", "resetsAt": 1795000000, "rateLimitType": "five_hour"}
    assert stream.say(sample("rate_limit_event", rate_limit_info=info)) == []


def test_pieces_of_a_message_are_a_sign_of_work_once_a_second(stream):
    piece = '{"type":"stream_event","event":{"type":"content_block_delta"}}'
    assert stream.say(piece, piece) == [Said(text="")]
    stream.clock.advance(2)
    assert stream.say(piece) == [Said(text="")]
    assert stream.channel.take_text() == ""


BROKEN = [7, "x", [], {}, None, True, [7], ["x"], {"content": 7}, {"content": [7, "x", None, {"type": 7}]}]
FIELDS = (
    "message",
    "request",
    "request_id",
    "rate_limit_info",
    "patch",
    "task_id",
    "session_id",
    "permission_denials",
    "origin",
)


def test_a_message_of_another_shape_is_no_failure(stream):
    stream.begin()
    for name in SAMPLES:
        message = sample(name.removeprefix("stream.").removesuffix(".json"))
        stream.say(*(message | {field: value} for field in FIELDS for value in BROKEN))
        assert stream.written is not None
    for line in ("", "no json", "[1]", "{", '{"type":null}', "\x00", "[" * 5000):
        assert stream.say(line) == []
    assert stream.channel.outputs


def test_an_id_that_is_no_conversations_is_dropped(stream):
    found = stream.say(sample("system.init", session_id="--dangerously-skip-permissions"))
    assert [type(each) for each in found] == [TurnStarted]


def test_a_line_that_is_too_long_is_dropped_and_counted(stream, monkeypatch):
    monkeypatch.setattr(pipes, "_LINE_BYTES", 10_000)
    stream.say(json.dumps(sample("result.success.completed", result="x" * 20_000)))
    assert stream.heard == []
    assert stream.channel.facts() == {"lines that were too long": 1}
    assert stream.begin()


def test_the_text_for_people_is_that_of_the_adapter(stream):
    stream.begin(sample("assistant.tool_use"), sample("result.success.completed.is_error"))
    assert stream.channel.take_text() == ("Bash: echo one > m.txt; sleep 0.2\nInvalid API key · Fix external API key\n")
    assert stream.channel.take_text() == ""
