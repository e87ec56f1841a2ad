"""What each message of an agent that speaks ACP means, and what is written to it. The recordings are of real programs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.adapters.acp_agent import AcpAgent
from baton.adapters.contract import Mode, Task
from baton.adapters.qwen import Qwen
from baton.channels import pipes
from baton.channels.acp import Acp
from baton.core.activity import DONE, Facts, Limits, activity, fold, verdict
from baton.core.request import Answer, RequestKind
from baton.core.signal import (
    ALLOW,
    DENY,
    FAILED,
    INTERRUPTED,
    WELL,
    Asked,
    Conversation,
    Heard,
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
from support.acp_agent import ONCE
from support.clock import FakeClock

DATA = Path(__file__).parents[1] / "data" / "acp"


class Parrot(AcpAgent):
    name = program = "parrot"
    install = "none"


class Copilot(Parrot):
    acp_error = re.compile(r"Error: ")
    acp_retry = re.compile(r"Info: .*Retrying")
    acp_total_usage = True


AGENTS = {"copilot": Copilot}


class Line:
    """A channel whose agent is the test. `heard` are the signals."""

    def __init__(self, agent: AcpAgent | None = None, *, resume: str | None = None) -> None:
        self.signals: list[Heard] = []
        self.stated: list[Stated] = []
        self.clock = FakeClock()
        task = Task(
            mode=Mode.HEADLESS, prompt="do it", conversation_id=resume, resume=resume is not None, yolo=False, folder="/f",
            workdir="/w", hook=[],
        )  # fmt: skip
        self.channel = Acp(agent or Parrot(), task, clock=self.clock)
        self.channel.open(self._hear)
        self.input, stdin = os.pipe()
        stdout, self.output = os.pipe()
        os.set_blocking(self.input, False)
        self.channel.attach(stdin, stdout)

    def _hear(self, heard: Heard) -> None:
        if isinstance(heard.signal, Stated):
            self.stated.append(heard.signal)
        else:
            self.signals.append(heard)

    @property
    def heard(self) -> list:
        return [each.signal for each in self.signals]

    def say(self, *messages: dict | str) -> list:
        """The signals of these messages."""
        before = len(self.signals)
        for message in messages:
            text = message if isinstance(message, str) else json.dumps(message)
            os.write(self.output, text.encode(errors="replace") + b"\n")
            self.clock.advance(0.001)
            self.channel.read()
        return self.heard[before:]

    def update(self, update: str, session: str = "s-1", **more) -> list:
        return self.say(
            {"method": "session/update", "params": {"sessionId": session, "update": {"sessionUpdate": update, **more}}}
        )

    def chunk(self, text: str, **more) -> list:
        return self.update("agent_message_chunk", content={"type": "text", "text": text}, **more)

    def ask(self, number=9, options=ONCE, session="s-1", **call) -> list:
        call = {"toolCallId": "t1", "title": "make", "kind": "execute", "rawInput": {"command": "make"}, **call}
        params = {"sessionId": session, "toolCall": call, "options": options}
        return self.say({"id": number, "method": "session/request_permission", "params": params})

    def begin(self) -> list:
        """Bring the agent to its first prompt."""
        started = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
        return self.say({"id": 1, "result": started}, {"id": 2, "result": {"sessionId": "s-1"}})

    def end(self, stop: object = "end_turn", number: object = 3, **more) -> list:
        return self.say({"id": number, "result": {"stopReason": stop, **more}})

    def wait(self, seconds: float) -> list:
        before = len(self.signals)
        self.clock.advance(seconds)
        self.channel.read()
        return self.heard[before:]

    @property
    def written(self) -> list[dict]:
        """What the agent can read."""
        try:
            return [json.loads(line) for line in os.read(self.input, 1 << 20).splitlines()]
        except BlockingIOError:
            return []

    def facts(self) -> Facts:
        found = Facts.of_job("", self.clock.monotonic_ns() - 10**12)
        for each in self.signals:
            found = fold(found, each)
        return found

    def close(self) -> None:
        self.channel.close()
        os.close(self.input)
        os.close(self.output)


@pytest.fixture
def line():
    line = Line()
    yield line
    line.close()


def only(kind: type, signals: list) -> list:
    return [each for each in signals if isinstance(each, kind)]


def decision(answer: str, **more) -> Answer:
    return Answer(answer=answer, by="me", via="cli", **more)


# -- the beginning -------------------------------------------------------------------------------------------------------


def test_it_begins_without_offering_files_or_a_terminal(line):
    [first] = line.written
    assert first["method"] == "initialize"
    assert first["params"]["clientCapabilities"] == {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    }
    heard = line.begin()
    new, prompt = line.written
    assert (new["method"], new["params"]) == ("session/new", {"cwd": "/w", "mcpServers": []})
    assert (prompt["method"], prompt["params"]["prompt"]) == ("session/prompt", [{"type": "text", "text": "do it"}])
    assert heard == [Conversation(conversation_id="s-1"), TurnStarted(turn=heard[1].turn, prompt="do it")]


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([{"id": 1, "result": {"protocolVersion": 2}}], "version 2"),
        ([{"id": 1, "error": {"code": -32603, "message": "Internal error", "data": {"details": "broken"}}}], "broken"),
        ([{"id": 1, "result": {"protocolVersion": 1}}, {"id": 2, "result": {}}], "did not say the id"),
        ([{"id": 1, "result": {"protocolVersion": 1}}, {"id": 2, "error": {"code": -32000, "message": "Log in"}}], "wants a login: Log in"),
    ],
)  # fmt: skip
def test_without_a_session_the_work_has_failed(line, answers, why):
    ended = only(TurnEnded, line.say(*answers))
    assert [each.how for each in ended] == [FAILED]
    assert why in ended[0].why
    assert line.channel.say("go on") is False


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('Tool "run_shell_command" is denied by permission rules.', ("execute",)),
        ("cat: secret: Permission denied", ()),
    ],
)
def test_a_tool_that_the_agents_own_settings_do_not_allow_is_named_at_the_end(line, text, refused):
    line.begin()
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    line.update("tool_call", toolCallId="t1", title="make", kind="execute", rawInput={"command": "make"})
    line.update("tool_call_update", toolCallId="t1", status="failed", content=content)
    line.chunk("I could not.")
    (ended,) = only(TurnEnded, line.end())
    assert (ended.how, ended.refused_tools) == (WELL, refused)


def test_an_agent_says_its_release_its_mode_and_its_model(line):
    about = {"protocolVersion": 1, "agentInfo": {"name": "parrot", "version": "2.6.0"}}
    modes, models = {"currentModeId": "auto", "availableModes": []}, {"currentModelId": "$runtime|openai|m(openai)"}
    line.say({"id": 1, "result": about}, {"id": 2, "result": {"sessionId": "s-1", "modes": modes, "models": models}})
    line.update("current_mode_update", currentModeId="plan")
    assert line.stated == [Stated(release="2.6.0"), Stated(mode="auto", model="m"), Stated(mode="plan")]


@pytest.mark.parametrize("wrong", [7, None, [], {"currentModeId": 7}, {"currentModeId": None}])
def test_what_an_agent_says_about_itself_in_another_form_is_not_known(line, wrong):
    about = {"protocolVersion": 1, "agentInfo": wrong}
    line.say({"id": 1, "result": about}, {"id": 2, "result": {"sessionId": "s-1", "modes": wrong, "models": wrong}})
    assert line.stated == []
    assert line.channel.facts().get("messages of an unknown shape") is None


def test_a_conversation_is_loaded_and_its_past_is_not_work():
    line = Line(resume="s-1")
    line.say({"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}})
    assert line.chunk("an old message") == []
    assert line.say({"id": 2, "result": None}) == [Conversation(conversation_id="s-1")]
    for _ in range(3):
        assert line.wait(0.9) == []
        assert line.chunk("Error: an old message") == []
    assert [type(each) for each in line.wait(1)] == [TurnStarted]
    methods = [each["method"] for each in line.written]
    assert methods == ["initialize", "session/load", "session/prompt"]
    line.close()


def test_a_conversation_is_loaded_when_its_agent_can_do_it():
    class Slow(Parrot):
        def acp_load_wait_sec(self, task, now_sec):
            return 12.0

    line = Line(Slow(), resume="s-1")
    heard = line.say({"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}})
    assert [type(each) for each in heard] == [Retrying]
    assert "can be loaded in 12 s" in heard[0].why
    line.wait(11)
    assert [each["method"] for each in line.written] == ["initialize"]
    line.wait(2)
    assert [each["method"] for each in line.written] == ["session/load"]
    ended = line.say({"id": 2, "error": {"code": -32603, "message": "no file"}})[-1]
    assert (ended.how, ended.why) == (FAILED, "session/load: no file")
    line.close()


def test_an_agent_that_cannot_load_says_so():
    line = Line(resume="s-1")
    ended = line.say({"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {}}})[-1]
    assert ended.how == FAILED
    assert "session/load" in ended.why
    line.close()


# -- permissions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "option"), [(ALLOW, "yes"), (DENY, "no")])
def test_an_answer_is_the_option_for_this_call_alone(line, answer, option):
    line.begin()
    line.written  # noqa: B018  what was written before
    asked = line.ask()[-1]
    assert (asked.kind, asked.tool, asked.call, asked.exact) == (RequestKind.TOOL, "execute", {"command": "make"}, True)
    assert line.written == []
    assert line.channel.answer(asked.key, decision(answer)) is True
    assert line.channel.answer(asked.key, decision(answer)) is False
    assert line.written == [
        {"jsonrpc": "2.0", "id": 9, "result": {"outcome": {"outcome": "selected", "optionId": option}}}
    ]


@pytest.mark.parametrize("answer", [ALLOW, DENY])
@pytest.mark.parametrize("kinds", [["allow_always", "reject_always"], ["else"], []])
def test_an_answer_without_its_option_is_never_another_one(line, answer, kinds):
    line.begin()
    asked = line.ask(options=[{"optionId": kind, "kind": kind, "name": kind} for kind in kinds])[-1]
    line.written  # noqa: B018
    assert line.channel.answer(asked.key, decision(answer)) is False
    assert line.written == []


@pytest.mark.parametrize(("answer", "other"), [(ALLOW, "reject_once"), (DENY, "allow_once")])
def test_an_answer_never_crosses_to_the_other_direction(line, answer, other):
    line.begin()
    asked = line.ask(options=[{"optionId": "o", "kind": other, "name": "o"}])[-1]
    line.written  # noqa: B018
    assert line.channel.answer(asked.key, decision(answer)) is False
    assert line.written == []


def test_several_ways_to_allow_are_a_question(line):
    line.begin()
    offered = [{"optionId": f"o{each}", "kind": "allow_once", "name": f"Way {each}"} for each in (1, 2)]
    asked = line.ask(options=[*offered, ONCE[2]])[-1]
    assert asked.kind is RequestKind.QUESTION
    assert asked.options == ({"question": "make", "choices": ["Way 1", "Way 2"], "several": False},)
    line.written  # noqa: B018
    assert line.channel.answer(asked.key, decision(ALLOW)) is False
    assert line.channel.answer(asked.key, decision(ALLOW, choices={"make": "Way 2"})) is True
    assert line.written[0]["result"]["outcome"]["optionId"] == "o2"


@pytest.fixture
def qwen():
    line = Line(Qwen())
    line.begin()
    line.written  # noqa: B018
    yield line
    line.close()


# As Qwen 0.24.4 asked, in each of its modes.
QWEN_ASKS = json.loads((DATA / "qwen-permissions.json").read_text())


@pytest.mark.parametrize("mode", QWEN_ASKS)
def test_two_ways_to_allow_of_which_one_changes_the_mode_are_a_permission(qwen, mode):
    given = QWEN_ASKS[mode]
    asked = only(Asked, qwen.ask(options=given["options"], **given["toolCall"]))[-1]
    assert (asked.kind, asked.tool, asked.options) == (RequestKind.TOOL, "run_shell_command", ())
    assert asked.call["command"] == "echo x > o"
    assert qwen.channel.answer(asked.key, decision(ALLOW)) is True
    assert qwen.written[0]["result"]["outcome"] == {"outcome": "selected", "optionId": "proceed_once"}


def test_a_wider_way_to_allow_is_never_taken(qwen):
    given = QWEN_ASKS["auto"]
    asked = only(Asked, qwen.ask(options=given["options"], **given["toolCall"]))[-1]
    wider = decision(ALLOW, choices={given["toolCall"]["title"]: given["options"][1]["name"]})
    assert qwen.channel.answer(asked.key, wider) is True
    assert qwen.written[0]["result"]["outcome"]["optionId"] == "proceed_once"


def test_a_question_of_qwen_with_other_ways_stays_a_question(qwen):
    offered = [{"optionId": f"o{each}", "kind": "allow_once", "name": f"Way {each}"} for each in (1, 2)]
    assert only(Asked, qwen.ask(options=[*offered, ONCE[2]]))[-1].kind is RequestKind.QUESTION


def test_a_plan_is_a_plan(line):
    line.begin()
    assert line.ask(kind="switch_mode")[-1].kind is RequestKind.PLAN


@pytest.mark.parametrize("raw", [None, {}, [], ""])
def test_a_call_without_arguments_is_not_exact(line, raw):
    line.begin()
    asked = line.ask(rawInput=raw, locations=[{"path": "/w/f"}])[-1]
    assert (asked.exact, asked.call) == (False, {"command": "make", "path": "/w/f"})


def test_a_call_without_arguments_has_every_place_that_it_names(line):
    line.begin()
    asked = line.ask(rawInput=None, locations=[{"path": "/w/f"}, {"line": 3}, 7, {"path": "/w/g"}, {"path": 3}])[-1]
    assert asked.call == {"command": "make", "path": "/w/f", "paths": ["/w/f", "/w/g"]}


@pytest.mark.parametrize(
    "message",
    [
        {"id": 9, "method": "session/request_permission", "params": None},
        {"id": 9, "method": "session/request_permission", "params": {"sessionId": "s-1", "toolCall": 3, "options": []}},
        {"id": 9, "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}},
        {"id": 9, "method": "terminal/create", "params": {"command": "sh"}},
        {"id": 9, "method": ["session/request_permission"]},
    ],
)
def test_what_baton_does_not_know_is_refused(line, message):
    line.begin()
    line.written  # noqa: B018
    assert line.say(message) == []
    [answer] = line.written
    assert (answer["id"], "result" in answer) == (9, False)
    assert answer["error"]["code"] in (-32601, -32602)


def test_a_question_of_another_session_is_refused(line):
    line.begin()
    line.written  # noqa: B018
    assert line.ask(session="s-2") == []
    assert line.written[0]["error"]["code"] == -32602


def test_a_question_outside_of_a_turn_is_refused(line):
    """Nothing would end the turn that it opens again."""
    line.begin()
    line.end()
    line.written  # noqa: B018
    assert line.ask() == []
    assert line.written[0]["error"]["code"] == -32602
    assert line.facts().open_turn is None


def test_an_id_that_a_model_service_repeats_is_the_id_of_another_call(line):
    """Some services number the calls of each answer from 0."""
    line.begin()
    for number, command in ((9, "ls"), (10, "rm x")):
        heard = line.ask(number, rawInput={"command": command})
        [began], [asked] = only(ToolStarted, heard), only(Asked, heard)
        assert (began.call, asked.call, asked.tool_id) == ({"command": command}, {"command": command}, began.tool_id)
        assert [each.call for each in line.facts().open_requests] == [{"command": command}]
        line.channel.answer(asked.key, decision(ALLOW))
        heard = line.update("tool_call_update", toolCallId="t1", status="completed")
        assert [each.tool_id for each in only(ToolEnded, heard)] == [began.tool_id]
    late = line.update("tool_call_update", toolCallId="t1", status="in_progress")
    assert only(ToolStarted, late) == []
    assert len(only(ToolStarted, line.update("tool_call", toolCallId="t1", status="in_progress"))) == 1


def test_questions_are_bounded(line):
    line.begin()
    for number in range(100):
        assert only(Asked, line.ask(number, toolCallId=f"t{number}"))
    line.written  # noqa: B018
    assert line.ask(100) == []
    assert "error" in line.written[0]


def test_a_question_that_the_agent_withdraws_is_settled(line):
    line.begin()
    asked = line.ask()[-1]
    heard = line.say({"method": "$/cancel_request", "params": {"requestId": 9}})
    assert heard == [Settled(key=asked.key, decision=None, by="agent")]
    assert line.channel.answer(asked.key, decision(ALLOW)) is False


@pytest.mark.parametrize(
    ("answer", "status", "used"),
    [(ALLOW, "completed", ALLOW), (ALLOW, "failed", ALLOW), (DENY, "failed", DENY), (DENY, "completed", ALLOW)],
)
def test_what_became_of_an_answer_is_what_the_tool_did(line, answer, status, used):
    line.begin()
    asked = line.ask()[-1]
    line.channel.answer(asked.key, decision(answer))
    heard = line.update("tool_call_update", toolCallId="t1", status="in_progress")
    if answer == ALLOW:  # that the tool runs is evidence; its end may be minutes away
        assert Settled(key=asked.key, decision=ALLOW, by="agent") in heard
    heard = [*heard, *line.update("tool_call_update", toolCallId="t1", status=status)]
    assert only(Settled, heard) == [Settled(key=asked.key, decision=used, by="agent")]


def test_a_refused_tool_is_over_though_the_agent_says_nothing_of_it(line):
    line.begin()
    line.channel.answer(line.ask()[-1].key, decision(DENY))
    assert line.facts().open_tools == []


def test_the_reason_of_a_refusal_is_the_next_prompt_of_the_same_turn(line):
    line.begin()
    line.channel.answer(line.ask()[-1].key, decision(DENY, reason="not now"))
    line.written  # noqa: B018
    assert only(TurnEnded, line.end()) == []
    [prompt] = line.written
    assert "execute: not now" in prompt["params"]["prompt"][0]["text"]
    [ended] = only(TurnEnded, line.end(number=4))
    assert (ended.how, ended.turn) == (WELL, only(TurnStarted, line.heard)[0].turn)


def test_an_agent_that_asks_again_and_again_is_not_told_for_ever(line):
    line.begin()
    for number in range(3, 7):
        line.channel.answer(line.ask(number, toolCallId=f"t{number}")[-1].key, decision(DENY, reason="no"))
        ended = only(TurnEnded, line.end(number=number))
        assert bool(ended) is (number == 6)


# -- how a turn ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "more", "why"),
    [
        ("cancelled", {}, "cancelled its turn"),
        ("refusal", {}, "refused"),
        ("max_tokens", {}, "limit of tokens"),
        ("max_turn_requests", {}, "limit of model requests"),
        ("done", {}, "done"),
        (None, {}, "None"),
        (["end_turn"], {}, "not a good end"),
        ("end_turn", {"usage": None}, "no model has answered"),
        ("end_turn", {"usage": {"inputTokens": 0, "outputTokens": 0}}, "without a word"),
    ],
)
def test_only_a_good_end_is_one(line, stop, more, why):
    line.begin()
    [ended] = only(TurnEnded, line.end(stop, **more))
    assert ended.how == FAILED
    assert why in ended.why


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ({"code": 401, "message": '{"error": {"message": "no key"}}'}, "401 no key"),
        ({"code": -32603, "message": "Internal error", "data": {"details": "401 no key"}}, "401 no key"),
        ({"code": -32603, "message": "Internal error: no key", "data": {"errorKind": "authentication_failed"}}, "no key: authentication_failed"),
        ({"code": -32000, "message": "Authentication required"}, "it wants a login: Authentication required"),
        ({"code": -32603}, "it answered with error -32603"),
        ("broken", "it answered with an error: broken"),
        ([], "it answered with an error: []"),
    ],
)  # fmt: skip
def test_an_error_is_the_reason(line, error, why):
    line.begin()
    [ended] = only(TurnEnded, line.say({"id": 3, "error": error, "result": {"stopReason": "end_turn"}}))
    assert (ended.how, ended.why) == (FAILED, why)


def test_a_rate_limit_is_a_limit(line):
    line.begin()
    heard = line.say(
        {"id": 3, "error": {"code": -32603, "message": "Internal error", "data": {"errorKind": "rate_limit"}}}
    )
    assert [type(each) for each in heard] == [Limited, TurnEnded]


def test_an_end_with_an_open_question_is_no_good_end(line):
    line.begin()
    asked = line.ask()[-1]
    heard = line.end()
    assert Settled(key=asked.key, decision=None, by="agent") in heard
    assert heard[-1].how == FAILED


def test_the_message_is_what_was_said_after_the_last_tool(line):
    line.begin()
    line.chunk("I look")
    line.update("tool_call", toolCallId="t", kind="read", status="in_progress", title="f")
    line.update("tool_call_update", toolCallId="t", status="completed")
    line.chunk("It is ")
    line.chunk("done.")
    assert line.end()[-1].message == "It is done."


def test_tools_that_were_not_ended_end_with_the_turn(line):
    line.begin()
    line.update("tool_call", toolCallId="t", kind="execute", status="in_progress", rawInput={"command": "make"})
    heard = line.end()
    assert ToolEnded(tool_id="t", ok=False, why="the turn ended before it") in heard
    assert heard[-1].how == WELL


@pytest.mark.parametrize("number", [True, 3.0, "3", None, 4, [3]])
def test_an_answer_to_something_else_ends_nothing(line, number):
    line.begin()
    assert line.end(number=number) == []


def test_an_answer_that_comes_twice_ends_one_turn(line):
    line.begin()
    line.chunk("Done.")
    assert only(TurnEnded, line.end() + line.end()) == [TurnEnded(turn=line.heard[1].turn, message="Done.")]


def test_it_is_sent_back_with_a_further_prompt(line):
    line.begin()
    assert line.channel.say("wait") is False
    line.end()
    assert line.channel.say("fix it") is True
    assert line.written[-1]["params"]["prompt"][0]["text"] == "fix it"
    assert only(TurnEnded, line.end(number=4))[0].turn == only(TurnStarted, line.heard)[1].turn


def test_an_agent_whose_job_is_over_is_cancelled(line):
    line.begin()
    asked = line.ask()[-1]
    line.written  # noqa: B018
    line.channel.finish()
    cancel, answer = line.written
    assert (cancel["method"], cancel["params"]) == ("session/cancel", {"sessionId": "s-1"})
    assert answer == {"jsonrpc": "2.0", "id": 9, "result": {"outcome": {"outcome": "cancelled"}}}
    assert line.channel.answer(asked.key, decision(ALLOW)) is False
    assert line.end()[-1].how == INTERRUPTED


# -- silence and trouble -------------------------------------------------------------------------------------------------


def test_an_agent_that_says_nothing_is_stalled_and_the_idle_clock_runs(line):
    line.begin()
    limits = Limits(idle_sec=60)
    assert line.wait(29) == []
    [silence] = line.wait(2)
    assert "no word from parrot since the prompt was sent" in silence.why
    assert line.wait(10) == []
    found = activity(line.facts(), now_ns=line.clock.monotonic_ns(), limits=limits)
    assert (found.kind, found.rule) == ("stalled", "retry")
    assert found.idle_since_ns == line.signals[1].at_ns
    line.chunk("Here I am.\n")
    found = activity(line.facts(), now_ns=line.clock.monotonic_ns(), limits=limits)
    assert found.kind == "working"


def test_news_about_the_window_are_no_words(line):
    line.begin()
    for _ in range(6):
        line.wait(6)
        line.update("usage_update", used=1, size=2)
    assert only(Retrying, line.heard)


def test_an_agent_that_waits_or_works_is_not_silent(line):
    line.begin()
    asked = line.ask()[-1]
    assert line.wait(100) == []
    line.channel.answer(asked.key, decision(ALLOW))
    assert line.wait(100) == []
    line.update("tool_call_update", toolCallId="t1", status="completed")
    assert "a tool call" in line.wait(40)[0].why


def test_tries_again_are_counted():
    line = Line(Copilot())
    line.begin()
    heard = line.chunk("Info: Request failed. Retrying...") + line.chunk("Info: Request failed. Retrying...")
    assert [(each.number, each.why) for each in only(Retrying, heard)] == [
        (1, "Info: Request failed. Retrying..."), (2, "Info: Request failed. Retrying..."),
    ]  # fmt: skip
    assert only(Said, heard) == []
    line.close()


# -- text and tools ------------------------------------------------------------------------------------------------------


def test_text_is_said_by_lines(line):
    line.begin()
    heard = line.chunk("One") + line.chunk(" line.\nTwo")
    assert [each.text for each in only(Said, heard) if each.text] == ["One line."]
    assert [each.text for each in line.end() if isinstance(each, Said)] == ["Two"]
    assert line.channel.take_text() == "One line.\nTwo\n"


def test_halves_of_characters_are_replaced(line):
    line.begin()
    line.chunk("a\ud800b")
    assert line.end()[-1].message == "a?b"


def test_what_is_no_message_is_shown(line):
    assert line.say("Loading ...") == [Said(text="Loading ...", is_work=False)]
    assert line.channel.take_text() == "Loading ...\n"


def test_a_tool_begins_when_its_arguments_are_known(line):
    line.begin()
    raw = {"cwd": "/w"}
    assert (
        only(
            ToolStarted,
            line.update("tool_call", toolCallId="t", title="bash", kind="execute", status="pending", rawInput=raw),
        )
        == []
    )
    raw |= {"command": "make"}
    [began] = only(ToolStarted, line.update("tool_call_update", toolCallId="t", status="in_progress", rawInput=raw))
    assert (began.name, began.call) == ("execute", raw)


def test_calls_are_bounded(line):
    line.begin()
    for number in range(1100):
        line.update("tool_call", toolCallId=f"t{number}", kind="read", status="in_progress")
    assert len(only(ToolStarted, line.heard)) == 1000


def test_a_long_turn_may_have_more_calls_than_are_remembered(line):
    line.begin()
    for number in range(1100):
        line.update("tool_call", toolCallId=f"t{number}", kind="read", status="in_progress")
        line.update("tool_call_update", toolCallId=f"t{number}", status="completed")
    assert len(only(ToolStarted, line.heard)) == len(only(ToolEnded, line.heard)) == 1100


def test_a_flood_of_lines_is_kept_as_output_and_said_in_part(line):
    line.begin()
    assert 0 < len(line.channel._signals(json.dumps(flood("x\n" * 50_000)))) <= 1000
    assert line.channel.take_text() == "x\n" * 50_000


def flood(text):
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return {"method": "session/update", "params": {"sessionId": "s-1", "update": update}}


def test_an_agent_that_asks_and_never_reads_is_not_answered_without_end(line, monkeypatch):
    monkeypatch.setattr(pipes, "MAX_WAITING_BYTES", 10_000)
    line.begin()
    for number in range(2000):
        line.channel._signals(json.dumps({"id": number, "method": "x" * 30}))
    assert len(line.channel._input._rest) <= 11_000
    assert line.channel._write({"id": 1}) is False


def test_usage_that_is_a_sum_counts_once():
    line = Line(Copilot())
    line.begin()
    first = only(Usage, line.end(usage={"inputTokens": 20, "outputTokens": 10}))
    line.channel.say("again")
    second = only(Usage, line.end(number=4, usage={"inputTokens": 50, "outputTokens": 15}))
    assert [(each.input_tokens, each.output_tokens) for each in first + second] == [(20, 10), (30, 5)]
    line.close()


def test_a_cost_is_a_sum(line):
    line.begin()
    for amount in (0.5, 0.5, 0.75, 0.1):
        line.update("usage_update", cost={"amount": amount, "currency": "USD"})
    assert [each.cost_usd for each in only(Usage, line.heard)] == [0.5, 0.25]


def test_a_plan_is_shown_once(line):
    line.begin()
    entries = [{"content": "look", "status": "completed"}, {"content": "fix", "status": "in_progress"}]
    assert [each.text for each in line.update("plan", entries=entries)] == ["plan: look (done); fix (now)"]
    assert line.update("plan", entries=entries) == []


# -- recordings ----------------------------------------------------------------------------------------------------------


def replay(name: str) -> Line:
    """Play a recording up to the first message that baton never sends there, such as a cancel."""
    agent = AGENTS.get(name.split("-", maxsplit=1)[0], Parrot)()
    with open(DATA / f"{name}.jsonl", encoding="utf-8") as file:
        recorded = [json.loads(each) for each in file]
    if any(each["msg"].get("method") == "session/set_mode" for each in recorded):
        agent.acp_mode = "workspace-write"
    first = next(each["msg"] for each in recorded if each["dir"] == ">")
    line = Line(agent, resume=first["params"]["sessionId"] if first["method"] == "session/load" else None)
    prompts = 0
    for each in recorded:
        message = each["msg"]
        if each["dir"] == "<":
            line.say(message)
        elif message.get("method") in ("session/cancel", "session/resume"):
            break
        elif message.get("method") == "session/prompt":
            prompts += 1
            line.wait(1)
            if prompts > 1:
                assert line.channel.say(message["params"]["prompt"][0]["text"])
        elif "result" in message:
            asked = only(Asked, line.heard)[-1]
            allows = message["result"]["outcome"]["optionId"] in ("allow", "allow_once", "once", "proceed_once")
            assert line.channel.answer(asked.key, decision(ALLOW if allows else DENY))
            [answer] = [each for each in line.written if "result" in each]
            assert answer == message
    return line


@pytest.mark.parametrize("name", ["gemini", "qwen", "copilot", "opencode", "claude-acp", "codex-acp"])
def test_a_recorded_round_is_understood(name):
    line = replay(name)
    allowed, denied, *_ = only(Asked, line.heard)
    assert allowed.call["command"].startswith("echo ")
    assert allowed.exact is (name != "gemini")
    first, second = only(TurnEnded, line.heard)[:2]
    assert (first.how, first.message) == (WELL, "STUB-FINAL: the command ran.")
    assert second.how == (FAILED if name == "codex-acp" else WELL)
    settled = {each.key: each.decision for each in only(Settled, line.heard)}
    assert settled[allowed.key] == ALLOW
    assert settled.get(denied.key, DENY) == DENY
    assert line.channel.facts() == {}
    assert "STUB-FINAL" in line.channel.take_text()
    line.close()


@pytest.mark.parametrize("name", ["qwen", "copilot", "opencode", "claude-acp", "codex-acp"])
def test_a_recorded_past_is_not_work(name):
    line = replay(f"{name}-load")
    began = only(TurnStarted, line.heard)[0]
    before = line.heard[: line.heard.index(began)]
    assert [type(each) for each in before] == [Conversation]
    assert only(TurnEnded, line.heard)[0].how == WELL
    line.close()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gemini-401", "401 stub: invalid api key"),
        ("qwen-401", "401 stub: invalid api key"),
        ("qwen-dead", "Connection error."),
        ("copilot-401", "Error: Authentication failed with provider"),
        ("copilot-500", "500 stub internal error"),
        ("copilot-dead", "Error: Could not connect to local model provider"),
        ("opencode-401", "stub: invalid api key"),
        ("claude-acp-401", "API Error: 401 stub: invalid api key"),
        ("claude-acp-429", "Request rejected (429)"),
        ("claude-acp-500", "API Error: 500 stub internal error"),
        ("claude-acp-dead", "Unable to connect to API"),
        ("codex-acp-401", "it wants a login: Authentication required"),
        ("codex-acp-429", "last status: 429 Too Many Requests"),
        ("codex-acp-500", "currently experiencing high demand"),
    ],
)
def test_a_recorded_failure_is_one_and_says_why(name, why):
    line = replay(name)
    [ended] = only(TurnEnded, line.heard)
    assert ended.how == FAILED
    assert why in ended.why
    line.close()


@pytest.mark.parametrize(
    "name", ["gemini-429", "gemini-500", "gemini-dead", "qwen-429", "qwen-500", "copilot-429", "opencode-429", "opencode-500", "opencode-dead"]
)  # fmt: skip
def test_a_recorded_silence_is_noticed(name):
    line = replay(name)
    line.wait(40)
    assert only(TurnEnded, line.heard) == []
    assert only(Retrying, line.heard)[-1].assumed
    line.close()


def test_recorded_tries_of_codex_acp_are_tries():
    line = replay("codex-acp-500")
    assert [(each.number, each.most) for each in only(Retrying, line.heard)] == [(each, 5) for each in range(1, 6)]
    line.close()


# -- anything ------------------------------------------------------------------------------------------------------------

_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 9) | st.text(max_size=5) | st.sampled_from(["s-1", "end_turn", "completed", "t1"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["sessionId", "update", "toolCall", "options", "toolCallId", "status", "content", "text", "type", "rawInput", "usage", "_meta",
             "stopReason", "kind", "optionId", "title", "entries", "cost", "amount", "currency", "name", "codex", "error", "locations", "path"]
        ),
        inner, max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip
_KINDS = ["agent_message_chunk", "tool_call", "tool_call_update", "plan", "usage_update", "session_info_update", "x"]
_UPDATES = st.builds(
    lambda kind, more: {"method": "session/update", "params": {"sessionId": "s-1", "update": {**more, "sessionUpdate": kind}}},
    st.sampled_from(_KINDS),
    st.dictionaries(st.sampled_from(["toolCallId", "status", "content", "rawInput", "_meta", "entries", "cost", "kind"]), _ANY, max_size=4),
)  # fmt: skip
_ANSWERS = st.builds(
    lambda number, body: {"id": number, **body},
    st.integers(0, 6) | _ANY,
    st.fixed_dictionaries({}, optional={"result": _ANY, "error": _ANY})
    | st.sampled_from([{"result": {"stopReason": "end_turn"}}, {"result": {"protocolVersion": 1}}, {"result": {"sessionId": "s-1"}}]),
)  # fmt: skip
_QUESTIONS = st.builds(
    lambda number, call, options: {"id": number, "method": "session/request_permission", "params": {"sessionId": "s-1", "toolCall": call, "options": options}},
    _ANY, _ANY | st.just({"toolCallId": "t1", "title": "make"}), _ANY | st.just(ONCE),
)  # fmt: skip
_OTHERS = st.builds(lambda method, params: {"method": method, "params": params}, _ANY, _ANY) | _ANY
_BAD_TEXT = {"type": "text", "text": "[API Error: dead]"}
_BAD = {
    "method": "session/update",
    "params": {"sessionId": "s-1", "update": {"sessionUpdate": "agent_message_chunk", "content": _BAD_TEXT}},
}
_GOOD = [{"id": 1, "result": {"protocolVersion": 1}}, {"id": 2, "result": {"sessionId": "s-1"}}]


@settings(max_examples=50, deadline=None)
@given(
    begins=st.booleans(),
    messages=st.lists(_UPDATES | _ANSWERS | _QUESTIONS | _OTHERS | st.just(_BAD), max_size=12),
    allows=st.lists(st.booleans(), max_size=3),
)
def test_no_order_of_messages_is_a_false_success_or_an_exception(begins, messages, allows):
    line = Line()
    good = errors = False
    for message in (_GOOD if begins else []) + messages:
        pending = dict(line.channel._pending)
        before = len(line.signals)
        line.say(message)
        number = message.get("id") if isinstance(message, dict) else None
        is_prompt = type(number) is int and pending.get(number) == "session/prompt" and "method" not in message
        if is_prompt:
            good = message.get("error") is None and _stop(message) == "end_turn" and not errors
        if message is _BAD and "session/prompt" in pending.values():
            errors = True
        for each in only(TurnEnded, line.heard[before:]):
            assert each.how != WELL or (is_prompt and good), message
        for each, allow in zip(only(Asked, line.heard[before:]), allows, strict=False):
            line.channel.answer(each.key, decision(ALLOW if allow else DENY))
    facts, limits = line.facts(), Limits(idle_sec=60)
    assert good or verdict(facts, now_ns=line.clock.monotonic_ns(), limits=limits).outcome != DONE
    line.close()


def _stop(message: dict) -> object:
    result = message.get("result")
    return result.get("stopReason") if isinstance(result, dict) else None


def test_an_error_that_comes_in_pieces_is_an_error():
    line = Line(Copilot())
    line.begin()
    for piece in ("Err", "or: ", "401 Unauthorized"):
        line.chunk(piece)
    (ended,) = [each for each in line.end() if isinstance(each, TurnEnded)]
    assert (ended.how, ended.why) == (FAILED, "Error: 401 Unauthorized")


def test_a_turn_without_a_word_is_no_success_where_the_agent_counts_no_tokens():
    line = Line()
    line.begin()
    (ended,) = [each for each in line.end() if isinstance(each, TurnEnded)]
    assert (ended.how, ended.why) == (FAILED, "it ended its turn without a word of its model")
