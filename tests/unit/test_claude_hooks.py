"""What the messages of Claude Code on the terminal mean, and which of its questions an answer reaches.

The messages in tests/data/claude have the shapes that the real program sends."""

from __future__ import annotations

import copy
import http.client
import json
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from baton.adapters.claude_code import ERRORS, SETTINGS, ClaudeCode
from baton.adapters.contract import Mode, Task
from baton.channels import claude_calls, claude_plan, claude_settings
from baton.channels.child_commands import children_of, stat_fields
from baton.channels.claude_hooks import ClaudeHooks
from baton.channels.claude_registry import Start
from baton.channels.claude_settings import TOKEN, configured_telemetry
from baton.channels.contract import AnswerRefused
from baton.channels.find import find_channel
from baton.channels.forward import forward
from baton.channels.reset_time import reset_time
from baton.core.activity import Facts, fold
from baton.core.request import Answer
from baton.core.signal import Heard, Stated
from baton.core.spending import Spent, Tokens, count
from baton.sessions.processes import started_at
from support.waiting import poll, wait_until

DATA = Path(__file__).parents[1] / "data" / "claude"
HOOKS, EVENTS, LINES = (
    json.loads((DATA / f"{name}.json").read_text()) for name in ("hooks", "telemetry", "transcript")
)
HOOKS |= json.loads((DATA / "hooks-of-attention.json").read_text())
REGISTRY = json.loads((DATA / "registry.json").read_text())
CONVERSATION = HOOKS["Stop"]["session_id"]
OTHER = HOOKS["SessionStart.clear"]["session_id"]
TURN = HOOKS["Stop"]["prompt_id"]
ALLOW = Answer(answer="allow", by="user", via="cli")
DENY = Answer(answer="deny", by="user", via="cli", reason="not today")


class Claude:
    """A channel, and a stand-in for the program that talks to it."""

    def __init__(self, folder, environment=None):
        self.home = folder / "home"
        self.session = folder / "session"
        self.transcript = self.home / ".claude" / "projects" / "project" / f"{CONVERSATION}.jsonl"
        for each in (self.session, self.transcript.parent):
            each.mkdir(parents=True)
        known = {"hasCompletedOnboarding": True, "projects": {str(folder): {"hasTrustDialogAccepted": True}}}
        (self.home / ".claude.json").write_text(json.dumps(known))
        task = Task(
            mode=Mode.INTERACTIVE, prompt="x", conversation_id=CONVERSATION, resume=False, yolo=False,
            folder=str(self.session), workdir=str(folder), hook=["baton-hook", "a b"],
        )  # fmt: skip
        self.heard = []
        self.stated = []
        self.channel = ClaudeHooks(ClaudeCode(), task, {"HOME": str(self.home)} | (environment or {}))
        self.setup = self.channel.open(
            lambda heard: (self.stated if isinstance(heard.signal, Stated) else self.heard).append(heard)
        )
        self.hooks = {
            event: each[0]["hooks"][0] for event, each in json.loads(self.setup.files[SETTINGS])["hooks"].items()
        }
        self.port = int(self.hooks["Stop"]["url"].split(":")[2].split("/")[0])
        self.connections = []
        self.heard.clear()

    def close(self):
        for each in self.connections:
            each.close()
        self.channel.close()

    # -- what the program does

    def begin(self, body, path="/hook"):
        """Send a message, and do not wait for the answer."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        client.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {self.setup.environment[TOKEN]}"})
        self.connections.append(client)
        return client

    def hook(self, name, **changes):
        client = self.begin(self.message(name, **changes))
        return json.loads(client.getresponse().read())

    def ask(self, name="PermissionRequest", **changes):
        """Send a message that is held, and wait until it is heard."""
        before = len(self.signals("Asked"))
        client = self.begin(self.message(name, **changes))
        assert poll(lambda: len(self.signals("Asked")) > before, 5)
        return client

    def message(self, name, **changes):
        return copy.deepcopy(HOOKS[name]) | {"transcript_path": str(self.transcript)} | changes

    def events(self, *events):
        records = [
            {"attributes": [{"key": key, "value": _otlp(value)} for key, value in each.items()]} for each in events
        ]
        self.begin({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}, "/v1/logs").getresponse().read()

    def decide(self, tool_id, decision, source):
        self.events(EVENTS["tool_decision"] | {"tool_use_id": tool_id, "decision": decision, "source": source})

    def write(self, *names):
        self.write_lines(*(LINES[name] for name in names))

    def write_lines(self, *lines):
        with self.transcript.open("a") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)

    # -- what was heard

    def signals(self, *kinds):
        found = [each.signal for each in self.heard]
        return [each for each in found if type(each).__name__ in kinds] if kinds else found

    def told(self):
        """Return each signal as its name and its fields that are not empty. Nearly all hooks name the permission mode."""
        told = [(type(each).__name__, _short(each)) for each in self.signals()]
        return [each for each in told if each[0] != "Noted" or each[1]["fact"] != "permission mode"]


def _otlp(value):
    kind = {bool: "boolValue", int: "intValue", float: "doubleValue"}.get(type(value), "stringValue")
    return {kind: str(value) if kind == "intValue" else value}


def _short(signal):
    return {name: value for name, value in signal.as_dict().items() if value not in (None, "", (), False)}


def answer_of(client):
    return json.loads(client.getresponse().read())


def decision_of(client):
    return answer_of(client)["hookSpecificOutput"]["decision"]


@pytest.fixture
def claude(tmp_path):
    claude = Claude(tmp_path)
    yield claude
    claude.close()


BASH = {"command": "echo one > m.txt; sleep 0.2", "description": "write a file"}
_CHOICE = "Auto mode can't check actions in this session and needs your choice"
MEANINGS = [
    ("SessionStart.startup", [("Conversation", {"conversation_id": CONVERSATION})]),
    ("SessionStart.resume", [("Conversation", {"conversation_id": CONVERSATION})]),
    ("SessionStart.compact", [("Conversation", {"conversation_id": CONVERSATION})]),
    ("UserPromptSubmit", [("TurnStarted", {"turn": TURN, "origin": "prompt", "prompt": "write m.txt"})]),
    ("PreToolUse", [("ToolStarted", {"tool_id": "toolu_1", "name": "Bash", "call": BASH, "turn": TURN})]),
    ("PostToolUse", [("ToolEnded", {"tool_id": "toolu_1", "ok": True})]),
    ("PostToolUse.subagent", [("ToolEnded", {"tool_id": "toolu_1", "ok": True})]),
    ("PostToolUse.AskUserQuestion", [("ToolEnded", {"tool_id": "toolu_1", "ok": True})]),
    ("PostToolUse.ExitPlanMode", [("ToolEnded", {"tool_id": "toolu_1", "ok": True})]),
    ("PostToolUseFailure", [("ToolEnded", {"tool_id": "toolu_1", "why": "Exit code 3"})]),
    ("PostToolBatch", []),
    ("SubagentStart", [("Said", {"text": "a subagent started: general-purpose", "is_work": True})]),
    ("SubagentStop", [("Said", {"text": "a subagent ended", "is_work": True})]),
    ("PreCompact", [("Said", {"text": "it compacts the conversation", "is_work": True})]),
    ("PreCompact.auto", [("Said", {"text": "it compacts the conversation", "is_work": True})]),
    ("PostCompact", [("Said", {"text": "it compacted the conversation", "is_work": True})]),
    ("Notification.idle_prompt", [("Said", {"text": "Claude is waiting for your input"})]),
    ("Notification.permission_prompt", [
        ("Attention", {"what": "Claude needs your permission"}), ("Said", {"text": "Claude needs your permission"}),
    ]),
    ("Notification.agent_needs_input", [("Attention", {"what": _CHOICE}), ("Said", {"text": _CHOICE})]),
    ("Notification.elicitation_dialog", [
        ("Attention", {"what": "Claude Code needs your input"}), ("Said", {"text": "Claude Code needs your input"}),
    ]),
    ("Notification.quota_auto_resume_fired", [
        ("Said", {"text": "Usage limit reset \u2014 Claude is continuing your task"}),
    ]),
    ("SessionStart.fork", [("Conversation", {"conversation_id": OTHER})]),
    ("PreCompact.auto.2026-11", [("Said", {"text": "it compacts the conversation", "is_work": True})]),
    ("PostCompact.auto", [("Said", {"text": "it compacted the conversation", "is_work": True})]),
    ("PermissionDenied", [
        ("Noted", {"fact": "denied by its own check", "value": f"Bash: {BASH['command']}: the stand-in says so"}),
    ]),
    ("SessionEnd.clear", [("Conversation", {"conversation_id": CONVERSATION, "ended": "clear"})]),
    ("SessionEnd.other", [("Said", {"text": "the program ends: other"}), ("Conversation", {"conversation_id": CONVERSATION, "ended": "other"})]),
    ("SessionEnd.prompt_input_exit", [("Said", {"text": "the program ends: prompt_input_exit"})]),
    *(
        (f"StopFailure.{kind}", [("TurnEnded", {"turn": TURN, "how": "failed", "why": HOOKS[f"StopFailure.{kind}"]["last_assistant_message"]})])
        for kind in ("authentication_failed", "billing_error", "invalid_request", "server_error")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "meaning"), MEANINGS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_message_of_a_hook(claude, name, meaning):
    assert claude.hook(name) == {}
    assert claude.told() == meaning


def test_every_recorded_message_is_understood(claude):
    known = {name for name, _ in MEANINGS}
    asked = {name for name in HOOKS if name.startswith(("PermissionRequest", "Stop."))}
    others = {
        "Stop",
        "StopFailure.5_hour_limit",
        "UserPromptSubmit.limit_reset",
        "PostToolUse.Agent",
        "PreToolUse.subagent",
        "PreToolUse.AskUserQuestion",
        "PreToolUse.ExitPlanMode",
        "SessionStart.clear",
    }
    others |= {"StopFailure.rate_limit", "StopFailure.unknown", "UserPromptSubmit.task-notification"}
    assert known | asked | others == HOOKS.keys()
    for name in sorted(HOOKS.keys() - asked - {"Stop"}):
        claude.hook(name)
    assert "of an unknown form" not in claude.channel.facts()["messages"]


# -- the end of a turn ------------------------------------------------------------------------------------------------


def test_a_hook_says_the_mode_and_the_model_and_that_of_a_subagent_is_its_own(claude):
    claude.hook("SessionStart.startup", model="claude-opus-5-5")
    claude.hook("UserPromptSubmit", permission_mode="auto")
    claude.hook("PreToolUse", permission_mode="auto")
    claude.hook("PreToolUse", permission_mode="plan", agent_id="a1")
    claude.hook("PreToolUse", permission_mode=7)
    claude.hook("PreToolUse", permission_mode="acceptEdits")
    found = [(each.signal.mode, each.signal.model) for each in claude.stated]
    assert found == [("", "claude-opus-5-5"), ("auto", "claude-opus-5-5"), ("acceptEdits", "claude-opus-5-5")]


def test_a_turn_that_ends_waits_for_the_runner(claude):
    client = claude.begin(claude.message("Stop"))
    assert poll(lambda: claude.signals("TurnEnded"), 5)
    assert claude.told() == [
        ("BackgroundWork", {}),
        ("TurnEnded", {"turn": TURN, "how": "well", "message": "DONE one", "held": True}),
    ]
    assert claude.channel.end_turn("another", None) is False
    assert claude.channel.end_turn(TURN, "out.txt is missing") is True
    assert answer_of(client) == {"decision": "block", "reason": "out.txt is missing"}
    client = claude.begin(claude.message("Stop", stop_hook_active=True))
    assert poll(lambda: claude.channel.end_turn(TURN, None), 5)
    assert answer_of(client) == {}
    assert claude.channel.end_turn(TURN, None) is False
    assert claude.channel.take_text() == "DONE one\nDONE one\n"
    assert claude.channel.take_text() == ""


def test_a_turn_whose_connection_closed_cannot_be_sent_back(claude):
    client = claude.begin(claude.message("Stop"))
    assert poll(lambda: claude.signals("TurnEnded"), 5)
    client.close()
    assert poll(lambda: not claude.channel._held, 5)
    assert claude.channel.end_turn(TURN, "x") is False


@pytest.mark.parametrize(("name", "kind", "task"), [("shell", "shell", "shell1"), ("subagent", "subagent", "agent1")])
def test_background_work_lasts_until_the_turn_about_its_end(claude, name, kind, task):
    claude.begin(claude.message(f"Stop.background_{name}"))
    assert poll(lambda: claude.signals("TurnEnded"), 5)
    (work,) = claude.signals("BackgroundWork")
    assert [(each.task_id, each.kind) for each in work.tasks] == [(task, kind)]
    claude.channel.end_turn(TURN, None)
    claude.hook("SubagentStop")
    assert claude.signals("BackgroundWork") == [work]
    prompt = HOOKS["UserPromptSubmit.task-notification"]["prompt"].replace("shell1", task)
    claude.hook("UserPromptSubmit.task-notification", prompt=prompt)
    started, over = claude.signals()[-2:]
    assert (started.origin, over.tasks) == ("background", ())


@pytest.mark.parametrize(
    ("response", "kind", "task"),
    [
        ({"stdout": "", "backgroundTaskId": "b1"}, "shell", "b1"),
        ({"isAsync": True, "status": "async_launched", "agentId": "a1"}, "subagent", "a1"),
    ],
)
def test_background_work_is_known_before_the_turn_ends(claude, response, kind, task):
    claude.hook("PostToolUse", tool_response=response)
    work, ended = claude.signals("BackgroundWork", "ToolEnded")
    assert [(each.task_id, each.kind, each.what) for each in work.tasks] == [(task, kind, BASH["command"])]
    assert ended.ok


@pytest.mark.parametrize(("kind", "until"), [("rate_limit", "2026-11-18T11:06Z"), ("unknown", "2026-12-01T00:00Z")])
def test_a_usage_limit_says_until_when(claude, monkeypatch, kind, until):
    from datetime import datetime

    monkeypatch.setattr("time.time_ns", lambda: 1794800000 * 10**9)  # November 2026
    claude.hook(f"StopFailure.{kind}")
    limited, ended = claude.signals()
    assert limited.until_ns == int(datetime.fromisoformat(until).timestamp()) * 10**9
    assert (ended.how, ended.why) == ("failed", limited.why)


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("resets Nov 18, 11:06am (UTC)", 1794999960),
        ("resets 3pm (UTC)", 1794841200),
        ("resets 1am (UTC)", 1794877200),
        ("resets 11:58am (UTC)", 1794830280),  # it has just passed: not tomorrow
        ("resets 10:30am (UTC)", 1794911400),
        ("resets 12:30am (Europe/Berlin)", 1794871800),
        ("resets Jan 2, 9am (UTC)", 1798880400),
        ("resets Foo 2, 9am (UTC)", None),
        ("resets Feb 31, 9am (UTC)", None),
        ("resets 9am (Nowhere/Land)", None),
        ("You will regain access on 2026-12-01 at 00:00 UTC.", 1796083200),
        ("You will regain access on 2026-13-01 at 00:00 UTC.", None),
        ("API Error: Request rejected (429)", None),
    ],
)
def test_when_a_limit_ends(text, until):
    now = 1794830400  # 2026-11-16 12:00 UTC
    assert reset_time(text, now * 10**9) == (None if until is None else until * 10**9)


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_permission_is_answered_on_its_own_connection(claude):
    claude.hook("PreToolUse")
    client = claude.ask()
    (asked,) = claude.signals("Asked")
    assert (asked.kind, asked.tool, asked.call, asked.tool_id, asked.agent_ref) == (
        "tool",
        "Bash",
        BASH,
        "toolu_1",
        None,
    )
    assert claude.channel.answer("another", ALLOW) is False
    assert claude.channel.answer(asked.key, ALLOW) is True
    assert decision_of(client) == {"behavior": "allow"}
    assert claude.channel.answer(asked.key, DENY) is False
    assert claude.signals("Settled") == []
    claude.decide("toolu_1", "accept", "hook")
    claude.hook("PostToolUse")
    assert [_short(each) for each in claude.signals("Settled")] == [
        {"key": asked.key, "decision": "allow", "by": "hook"}
    ]


def test_a_denial_gives_the_reason_and_the_batch_is_its_evidence(claude):
    claude.hook("PreToolUse")
    client = claude.ask()
    (asked,) = claude.signals("Asked")
    assert claude.channel.answer(asked.key, DENY) is True
    assert decision_of(client) == {"behavior": "deny", "message": "not today"}
    claude.hook("PostToolBatch")
    assert claude.told()[-2:] == [
        ("Settled", {"key": asked.key, "decision": "deny"}),
        ("ToolEnded", {"tool_id": "toolu_1", "why": "(Bash completed with no output)"}),
    ]


def test_a_person_who_was_faster_overrides_the_answer(claude):
    claude.hook("PreToolUse")
    claude.ask()
    (asked,) = claude.signals("Asked")
    claude.channel.answer(asked.key, DENY)
    claude.decide("toolu_1", "accept", "user_temporary")
    claude.hook("PostToolUse")
    (settled,) = claude.signals("Settled")
    assert (settled.key, settled.decision, settled.by) == (asked.key, "allow", "user_temporary")


@pytest.mark.parametrize(
    ("source", "decision"), [("user_temporary", "accept"), ("config", "accept"), ("user_reject", "reject")]
)
def test_a_decision_at_the_keyboard_comes_by_telemetry(claude, source, decision):
    claude.hook("PreToolUse")
    client = claude.ask()
    claude.decide("toolu_1", decision, source)
    (settled,) = claude.signals("Settled")
    assert (settled.decision, settled.by) == ({"accept": "allow", "reject": "deny"}[decision], source)
    assert answer_of(client) == {}
    assert claude.channel.answer(settled.key, ALLOW) is False


def test_without_telemetry_the_end_of_the_tool_says_that_it_was_allowed(claude):
    claude.hook("PreToolUse")
    client = claude.ask()
    claude.hook("PostToolUse")
    assert [type(each).__name__ for each in claude.signals()[-2:]] == ["Settled", "ToolEnded"]
    assert claude.signals("Settled")[0].decision == "allow"
    assert answer_of(client) == {}


def test_a_refusal_closes_the_connection_and_interrupts_the_turn(claude):
    claude.hook("UserPromptSubmit")
    claude.hook("PreToolUse")
    client = claude.ask()
    claude.write("rejected", "interrupted_tool")
    client.close()
    assert poll(lambda: claude.signals("TurnEnded"), 5)
    key = claude.signals("Asked")[0].key
    assert claude.told()[-3:] == [
        ("Settled", {"key": key, "decision": "deny"}),
        ("ToolEnded", {"tool_id": "toolu_1", "why": "refused at the keyboard"}),
        ("TurnEnded", {"turn": TURN, "how": "interrupted", "why": "interrupted at the keyboard"}),
    ]
    assert {each.source for each in claude.heard[-3:]} == {"transcript"}


def test_a_closed_connection_alone_is_a_refusal(claude, monkeypatch):
    monkeypatch.setattr(claude_calls, "LOST_SEC", 0.05)
    claude.hook("UserPromptSubmit")
    claude.hook("PreToolUse")
    claude.ask().close()
    assert poll(lambda: claude.signals("TurnEnded"), 5)
    settled, ended, turn = claude.signals()[-3:]
    assert (settled.decision, settled.by, ended.tool_id, turn.how) == (
        "deny",
        claude_calls.CLOSED,
        "toolu_1",
        "interrupted",
    )
    assert claude.channel.answer(settled.key, ALLOW) is False


def test_a_person_who_refuses_and_says_what_to_do_does_not_end_the_turn(claude):
    claude.hook("UserPromptSubmit")
    claude.hook("PreToolUse")
    claude.ask().close()
    claude.hook("PostToolBatch")
    assert claude.signals("Settled")[0].decision == "deny"
    assert claude.signals("TurnEnded") == []


def test_a_tool_with_the_token_gets_no_answer_and_gives_none(claude):
    """The token is in the environment of every program that Claude starts. Such a program says what it likes, also what
    would be an answer, and at the paths where an answer could be taken."""
    claude.hook("PreToolUse")
    real = claude.ask()
    (asked,) = claude.signals("Asked")
    decision = {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow"}}
    answers = [
        {"hookSpecificOutput": decision},
        claude.message("PermissionRequest") | {"hookSpecificOutput": decision, "hook_event_name": "PermissionAnswer"},
        {"key": asked.key, "answer": "allow"},
        {"request_id": asked.key, "decision": "allow", "scope": "job"},
        {"jsonrpc": "2.0", "id": 1, "method": "approve", "params": {"key": asked.key}},
    ]
    for body in answers:
        for path in ("/hook", "/v1/logs"):
            assert answer_of(claude.begin(body, path)) == {}
        for path in ("/approve", "/answer", f"/requests/{asked.key}", "/", "/hook/../approve"):
            assert claude.begin(body, path).getresponse().status == 404
    # Another question, and the same one again: each answer goes to the connection that asked, for its own call.
    other = claude.ask(tool_input={"command": "true"})
    same = claude.ask()
    keys = [each.key for each in claude.signals("Asked")]
    assert claude.channel.answer(keys[1], ALLOW)
    assert decision_of(other) == {"behavior": "allow"}
    assert claude.channel.answer(keys[2], ALLOW)
    assert decision_of(same) == {"behavior": "allow"}
    assert is_unanswered(real)
    # What it says of a decision closes the question here; the agent hears that nothing was decided, and still asks.
    claude.decide("toolu_1", "accept", "user_temporary")
    claude.hook("PostToolUse")
    assert answer_of(real) == {}
    assert not claude.channel.answer(asked.key, DENY)


def is_unanswered(client):
    return not select.select([client.sock], [], [], 0.1)[0]


def test_two_questions_are_two_requests(claude):
    claude.hook("PreToolUse", tool_use_id="one", tool_input={"command": "a"})
    claude.hook("PreToolUse", tool_use_id="two", tool_input={"command": "b"})
    second = claude.ask(tool_input={"command": "b"})
    first = claude.ask(tool_input={"command": "a"})
    assert [each.tool_id for each in claude.signals("Asked")] == ["two", "one"]
    keys = [each.key for each in claude.signals("Asked")]
    claude.channel.answer(keys[1], DENY)
    assert decision_of(first)["behavior"] == "deny"
    claude.channel.answer(keys[0], ALLOW)
    assert decision_of(second)["behavior"] == "allow"


def test_requests_of_subagents_are_their_own(claude):
    claude.hook("PreToolUse", tool_use_id="main")
    claude.hook("PreToolUse", tool_use_id="sub", agent_id="agent1")
    claude.ask(agent_id="agent1")
    claude.ask()
    assert [(each.tool_id, each.agent_ref) for each in claude.signals("Asked")] == [("sub", "agent1"), ("main", None)]


class Twins:
    """Two calls that are the same, which wait at once."""

    def __init__(self, claude):
        self.claude = claude
        for tool_id in ("one", "two"):
            claude.hook("PreToolUse", tool_use_id=tool_id)
        self.clients = [claude.ask(), claude.ask()]
        self.keys = [each.key for each in claude.signals("Asked")]

    def settled(self):
        return [(self.keys.index(each.key), each.decision, each.by) for each in self.claude.signals("Settled")]


def test_twins_are_taken_in_their_order(claude):
    twins = Twins(claude)
    assert [each.tool_id for each in claude.signals("Asked")] == ["one", "two"]
    claude.channel.answer(twins.keys[0], ALLOW)
    assert decision_of(twins.clients[0])["behavior"] == "allow"
    claude.decide("one", "accept", "hook")
    claude.channel.answer(twins.keys[1], DENY)
    assert decision_of(twins.clients[1])["behavior"] == "deny"
    claude.decide("two", "reject", "hook")
    assert twins.settled() == [(0, "allow", "hook"), (1, "deny", "hook")]


def test_an_answer_that_reached_the_other_twin_is_still_the_answer(claude):
    twins = Twins(claude)
    claude.channel.answer(twins.keys[0], ALLOW)
    claude.decide("two", "accept", "hook")  # the connection was that of the other call
    assert twins.settled() == [(0, "allow", "hook")]
    claude.channel.answer(twins.keys[1], DENY)
    claude.decide("one", "reject", "hook")
    assert twins.settled()[1:] == [(1, "deny", "hook")]


@pytest.mark.parametrize("tool_id", ["one", "two"])
def test_after_a_decision_at_the_keyboard_the_answer_goes_to_both_twins(claude, tool_id):
    twins = Twins(claude)
    claude.decide(tool_id, "accept", "user_temporary")
    decided = 0 if tool_id == "one" else 1
    assert twins.settled() == [(decided, "allow", "user_temporary")]
    assert claude.channel.answer(twins.keys[1 - decided], DENY) is True
    assert [decision_of(client)["behavior"] for client in twins.clients] == ["deny", "deny"]
    claude.decide("two" if tool_id == "one" else "one", "reject", "hook")
    assert twins.settled()[1:] == [(1 - decided, "deny", "hook")]
    assert claude.channel._calls._asks == {}


def test_a_rule_that_a_person_chose_releases_the_twin(claude):
    twins = Twins(claude)
    claude.decide("two", "accept", "user_permanent")
    claude.decide("one", "accept", "config")
    assert twins.settled() == [(1, "allow", "user_permanent"), (0, "allow", "config")]
    assert [answer_of(client) for client in twins.clients] == [{}, {}]


def test_a_question_is_answered_with_its_options(claude):
    claude.hook("PreToolUse.AskUserQuestion")
    client = claude.ask("PermissionRequest.AskUserQuestion")
    (asked,) = claude.signals("Asked")
    assert (asked.kind, asked.tool_id) == ("question", "toolu_1")
    assert asked.options == ({"question": "Which colour?", "choices": ["Red", "Blue"], "several": False},)
    claude.channel.answer(asked.key, ALLOW.replace(choices={"Which colour?": "Blue"}))
    questions = HOOKS["PermissionRequest.AskUserQuestion"]["tool_input"]["questions"]
    assert decision_of(client) == {
        "behavior": "allow",
        "updatedInput": {"questions": questions, "answers": {"Which colour?": "Blue"}},
    }


def test_a_plan_is_approved_without_a_change_of_mode(claude):
    claude.hook("PreToolUse.ExitPlanMode")
    client = claude.ask("PermissionRequest.ExitPlanMode")
    (asked,) = claude.signals("Asked")
    assert (asked.kind, asked.call, asked.tool_id) == ("plan", {"plan": "1. write m.txt\n2. done"}, "toolu_1")
    claude.channel.answer(asked.key, ALLOW)
    # Without its input, Claude Code 2.1.327 drops the answer, and the dialog stays.
    assert decision_of(client) == {"behavior": "allow", "updatedInput": asked.call}


class Plan:
    """Claude in plan mode, as release 2.1.327 is: its call has no plan, the transcript names the file."""

    def __init__(self, claude):
        self.claude = claude
        self.file = claude.home / ".claude" / "plans" / "do-it-nifty-popcorn.md"
        self.file.parent.mkdir()
        self.file.write_text("# The plan\n1. Write it.\n")
        self.name(self.file)

    def name(self, path, kind="plan_mode", **changes):
        attachment = {"type": kind, "reminderType": "full", "isSubAgent": False, "planFilePath": str(path)}
        self.claude.write_lines({"isSidechain": False, "attachment": attachment, "type": "attachment"} | changes)

    def look_no_more(self):
        """Keep the channel from looking at the file by itself."""
        with self.claude.channel._lock:
            self.claude.channel._looked = time.monotonic() + 3600

    def ask(self, given=None):
        """Return the connection on which the answer comes, and what is asked."""
        client = self.claude.ask("PermissionRequest.ExitPlanMode", tool_input={} if given is None else given)
        return client, self.claude.signals("Asked")[-1]


@pytest.fixture
def plan(claude):
    return Plan(claude)


def test_a_plan_in_a_file_is_the_call_and_is_approved_as_it_was_asked(claude, plan):
    client, asked = plan.ask()
    shown = {"plan": "# The plan\n1. Write it.\n", "planFilePath": str(plan.file)}
    assert (asked.kind, asked.call, asked.exact) == ("plan", shown, True)
    assert claude.channel.answer(asked.key, ALLOW)
    assert decision_of(client) == {"behavior": "allow", "updatedInput": {}}


def test_a_plan_in_the_call_with_its_file_is_approved_as_it_was_asked(claude, plan):
    given = {"plan": plan.file.read_text(), "planFilePath": str(plan.file)}
    client, asked = plan.ask(given)
    assert (asked.call, asked.exact) == (given, True)
    claude.channel.answer(asked.key, ALLOW)
    assert decision_of(client) == {"behavior": "allow", "updatedInput": given}


@pytest.mark.parametrize("in_call", [False, True])
@pytest.mark.parametrize("decision", [ALLOW, DENY])
def test_an_answer_to_a_plan_that_was_changed_is_refused_and_the_plan_asked_again(claude, plan, in_call, decision):
    given = {"plan": plan.file.read_text(), "planFilePath": str(plan.file)} if in_call else {}
    client, asked = plan.ask(given)
    plan.look_no_more()
    plan.file.write_text("rm -rf /")
    with pytest.raises(AnswerRefused, match="changed after it was shown"):
        claude.channel.answer(asked.key, decision)
    settled, again = claude.signals("Settled", "Asked")[-2:]
    assert (settled.key, settled.decision) == (asked.key, None)
    assert (again.call["plan"], again.exact, again.tool_id) == ("rm -rf /", True, asked.tool_id)
    assert not claude.channel.answer(asked.key, decision)  # the question before is gone
    assert claude.channel.answer(again.key, decision)
    found = decision_of(client)
    assert found["behavior"] == decision.answer
    assert found.get("updatedInput", {}).get("plan") == ("rm -rf /" if in_call and decision is ALLOW else None)


def test_a_plan_that_changes_while_it_is_shown_is_shown_again(claude, plan):
    _, asked = plan.ask()
    plan.file.write_text("# Another plan\n")
    assert poll(lambda: len(claude.signals("Asked")) == 2, 5)
    assert claude.signals("Settled")[-1].key == asked.key
    assert claude.signals("Asked")[-1].call["plan"] == "# Another plan\n"


def test_a_plan_that_changes_all_the_time_is_asked_a_last_time_and_is_not_exact(claude, plan):
    _, asked = plan.ask()
    plan.look_no_more()
    for number in range(claude_plan.MOST_CHANGES + 1):
        plan.file.write_text(f"# Plan {number}\n")
        with pytest.raises(AnswerRefused):
            claude.channel.answer(asked.key, ALLOW)
        asked = claude.signals("Asked")[-1]
        assert asked.exact is (number < claude_plan.MOST_CHANGES)
    assert "has changed" in asked.why_inexact
    plan.file.write_text("# One more\n")
    assert claude.channel.answer(asked.key, ALLOW)


def _make_huge(file):
    file.write_text("x" * 300_000)


def _make_link(file):
    other = file.parent.parent / "other.md"
    other.write_text("# Another file\n")
    file.unlink()
    file.symlink_to(other)


def _make_pipe(file):
    file.unlink()
    os.mkfifo(file)


def _make_folder(file):
    file.unlink()
    file.mkdir()


def _give_away(file):
    os.chown(file, 12345, -1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda file: file.unlink(), "is gone"),
        (_make_huge, "is longer than 128 KiB"),
        (_make_link, "is a link"),
        (_make_pipe, "is not a regular file"),
        (_make_folder, "is not a regular file"),
        (lambda file: file.write_bytes(b"\xff\xfe"), "is not valid UTF-8"),
        pytest.param(_give_away, "belongs to another user", marks=pytest.mark.as_root),
    ],
)
def test_a_file_that_is_not_certainly_the_plan_is_named_and_not_exact(claude, plan, change, why):
    change(plan.file)
    client, asked = plan.ask()
    assert (asked.kind, asked.exact, asked.call["planFilePath"]) == ("plan", False, str(plan.file))
    assert asked.why_inexact == f"the plan file {plan.file} {why}"
    assert claude.channel.answer(asked.key, ALLOW)  # who allows it all the same
    assert decision_of(client) == {"behavior": "allow", "updatedInput": {}}


def test_a_plan_elsewhere_is_not_read(claude, plan, tmp_path):
    (tmp_path / "secret.md").write_text("secret")
    (plan.file.parent / "there").symlink_to(tmp_path)
    for path in (tmp_path / "secret.md", f"{plan.file.parent}/../../../secret.md", plan.file.parent / "there/secret.md",
                 "secret.md", f"{plan.file}\0"):  # fmt: skip
        plan.name(path)
        _, asked = plan.ask({"number": str(path)})
        assert not asked.exact
        assert "plan" not in asked.call
        assert "outside" in asked.why_inexact or "cannot be read" in asked.why_inexact


def test_a_transcript_elsewhere_names_no_plan(claude, plan, tmp_path):
    elsewhere = tmp_path / "elsewhere.jsonl"
    elsewhere.write_text(claude.transcript.read_text())
    claude.ask("PermissionRequest.ExitPlanMode", tool_input={}, transcript_path=str(elsewhere))
    (asked,) = claude.signals("Asked")
    assert (asked.call, asked.exact) == ({}, False)


def test_only_claude_itself_names_the_plan_file(claude, plan):
    other = plan.file.parent / "other.md"
    other.write_text("# Another plan\n")
    attachment = {"type": "plan_mode", "planFilePath": str(other)}
    said = json.dumps({"type": "attachment", "attachment": attachment})
    claude.write_lines(
        {"type": "user", "message": {"content": said}},
        {"type": "user", "attachment": attachment},
        {"type": "attachment", "attachment": attachment, "isSidechain": True},
        {"type": "attachment", "attachment": attachment | {"isSubAgent": True}},
        {"type": "attachment", "attachment": attachment | {"type": "file"}},
        {"type": "attachment", "attachment": "planFilePath"},
    )
    with claude.transcript.open("a") as file:
        file.write('{"type":"attachment","attachment":{"type":"plan_mode","planFilePath":"' + "x" * 9_000_000)
    _, asked = plan.ask()
    assert asked.call["planFilePath"] == str(plan.file)


def test_the_newest_line_that_names_a_plan_file_counts(claude, plan):
    other = plan.file.parent / "other.md"
    other.write_text("# Another plan\n")
    plan.name(other, kind="plan_mode_reentry")
    claude.write_lines(*({"type": "user", "text": "x" * 1000} for _ in range(3000)))
    assert plan.ask()[1].call["plan"] == "# Another plan\n"


def test_without_a_file_that_the_conversation_names_the_plan_is_not_exact(claude):
    claude.ask("PermissionRequest.ExitPlanMode", tool_input={})
    (asked,) = claude.signals("Asked")
    assert (asked.call, asked.exact) == ({}, False)
    assert "does not name the file" in asked.why_inexact


def test_a_plan_whose_file_is_named_a_moment_later_is_shown_then(claude):
    claude.ask("PermissionRequest.ExitPlanMode", tool_input={})
    Plan(claude)
    assert poll(lambda: claude.signals("Asked")[-1].exact, 5)


def test_suggestions_of_the_agent_are_never_passed_on(claude):
    claude.hook("PreToolUse")
    client = claude.ask()
    assert "permission_suggestions" in HOOKS["PermissionRequest"]
    claude.channel.answer(claude.signals("Asked")[0].key, ALLOW.replace(scope="job"))
    assert decision_of(client) == {"behavior": "allow"}


def test_a_released_question_stays_on_the_screen(claude):
    claude.hook("PreToolUse")
    client = claude.ask()
    key = claude.signals("Asked")[0].key
    claude.channel.release(key)
    assert answer_of(client) == {}
    assert claude.channel.answer(key, ALLOW) is False
    claude.decide("toolu_1", "accept", "user_temporary")
    assert [each.key for each in claude.signals("Settled")] == [key]


def test_a_hook_of_the_user_may_change_the_input(claude):
    claude.hook("PreToolUse", tool_input={"command": "before"})
    claude.ask(tool_input={"command": "after"})
    claude.ask(tool_input={"command": "of no call"})
    assert [each.tool_id for each in claude.signals("Asked")] == ["toolu_1", None]


# -- other conversations ----------------------------------------------------------------------------------------------


def test_messages_of_another_conversation_are_dropped_and_counted(claude):
    for name in ("UserPromptSubmit", "PreToolUse", "PermissionRequest", "Stop", "SessionStart.startup"):
        assert claude.hook(name, session_id=OTHER) == {}
    claude.events(EVENTS["api_request"] | {"session.id": OTHER}, EVENTS["tool_decision"] | {"session.id": OTHER})
    assert claude.heard == []
    facts = claude.channel.facts()
    assert facts["messages"] == {"of another conversation": 5, "telemetry of another conversation": 2}
    assert facts["telemetry"] == "nothing was received"


def test_after_clear_the_new_conversation_is_the_sessions(claude):
    claude.hook("UserPromptSubmit")
    claude.hook("PreToolUse")
    claude.hook("SessionEnd.clear")
    assert claude.told()[2:] == [
        ("Conversation", {"conversation_id": CONVERSATION, "ended": "clear"}),
        ("ToolEnded", {"tool_id": "toolu_1", "why": "interrupted"}),
    ]
    claude.hook("SessionStart.clear")
    claude.hook("UserPromptSubmit", session_id=OTHER)
    assert claude.signals("Conversation")[-1].conversation_id == OTHER
    assert len(claude.signals("TurnStarted")) == 2
    claude.hook("UserPromptSubmit")
    assert claude.channel.facts()["messages"]["of another conversation"] == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"[" * 100_000,
        b'{"hook_event_name": "PreToolUse", "session_id": "%s"}' % CONVERSATION.encode(),
    ],
    ids=["empty", "half", "list", "text", "deep", "without-an-id"],
)
@pytest.mark.parametrize("path", ["/hook", "/v1/logs"])
def test_a_message_of_another_form_changes_nothing(claude, body, path):
    client = http.client.HTTPConnection("127.0.0.1", claude.port, timeout=10)
    client.request("POST", path, body, {"Authorization": f"Bearer {claude.setup.environment[TOKEN]}"})
    assert (client.getresponse().status, claude.heard) == (200, [])
    client.close()
    claude.hook("PreToolUse")
    assert [name for name, _ in claude.told()] == ["ToolStarted"]


# -- telemetry, transcript, log of errors -----------------------------------------------------------------------------


def test_telemetry_has_the_cost(claude):
    claude.events(EVENTS["api_request"], EVENTS["assistant_response"], EVENTS["user_prompt"], EVENTS["hook_registered"])
    assert claude.told() == [
        (
            "Usage",
            {
                "message_id": "req_1",
                "input_tokens": 1300,
                "output_tokens": 50,
                "cost_usd": 0.006975,
                "of_turn": True,
                "cached_tokens": 200,
                "cache_write_tokens": 100,
                "model": "claude-opus-4-8",
            },
        )
    ]
    assert claude.channel.facts()["telemetry"] == "received"


@pytest.mark.parametrize("cost", ["-1", "inf", "nan", "x", True, None])
def test_usage_can_only_raise_a_cost(claude, cost):
    claude.events(
        {name: value for name, value in EVENTS["api_request"].items() if name != "cost_usd"}
        | {"cost_usd": str(cost), "output_tokens": "-5"}
    )
    (usage,) = claude.signals()
    assert (usage.cost_usd, usage.output_tokens) == (None, 0)


def test_an_event_of_another_form_does_not_hide_the_others(claude):
    """A service behind a proxy may give its answers no id."""
    nameless = {name: value for name, value in EVENTS["api_request"].items() if name != "request_id"}
    unknown = {name: value for name, value in nameless.items() if name != "event.sequence"}
    claude.events(unknown, nameless, EVENTS["api_request"])
    assert [each.message_id for each in claude.signals()] == [f"{TURN} {nameless['event.sequence']}", "req_1"]


def test_a_turn_that_failed_without_a_hook_is_over(claude):
    """So it is when the context is full and there is nothing to compact."""
    claude.hook("UserPromptSubmit")
    claude.hook("PreToolUse")
    claude.write("api_error")
    assert poll(lambda: claude.signals("TurnEnded"), 5)
    tool, turn = claude.signals()[-2:]
    assert (tool.tool_id, turn.turn, turn.how) == ("toolu_1", TURN, "failed")
    assert turn.why.startswith("API Error: Request rejected (429)")


def test_a_hook_says_more_about_a_failure_than_the_transcript(claude):
    claude.hook("UserPromptSubmit")
    claude.write("api_error")
    assert poll(lambda: claude.signals("Said"), 5)
    claude.hook("StopFailure.rate_limit")
    assert [type(each).__name__ for each in claude.signals()[-2:]] == ["Limited", "TurnEnded"]


def test_a_failure_of_the_service_counts_in_the_open_turn_alone(claude):
    claude.events(EVENTS["api_error"])
    assert claude.heard == []
    claude.hook("UserPromptSubmit")
    claude.events(EVENTS["api_error"], EVENTS["api_retries_exhausted"])
    assert claude.told()[1:] == [("Retrying", {"number": 2, "why": "529 Overloaded"})]


def test_retries_are_read_from_the_log_of_errors(claude):
    log = claude.session / ERRORS
    log.write_text("2026 [ERROR] something else\n")
    claude.hook("UserPromptSubmit")
    with log.open("a") as file:
        file.write(
            't [ERROR] API error (attempt 1/11): 529 529 {"type":"error","error":{"type":"x","message":"Overloaded"}}\n'
        )
        file.write("t [ERROR] API error (attempt 2/11): undefined Connection error.\n")
        file.write("t [ERROR] API error (attempt 11/11): 529\n")
    assert poll(lambda: len(claude.signals("Retrying")) == 2, 5)
    assert [(each.number, each.most, each.why) for each in claude.signals("Retrying")] == [
        (1, 10, "529 Overloaded"),
        (2, 10, "Connection error."),
    ]


def test_a_tool_that_was_interrupted_is_over(claude):
    claude.hook("PreToolUse")
    claude.events(EVENTS["tool_result"] | {"tool_use_id": "toolu_1"})
    assert claude.told()[1:] == [("ToolEnded", {"tool_id": "toolu_1", "why": "ShellError"})]


@pytest.mark.parametrize("marker", ["interrupted_stream", "interrupted_tool"])
def test_an_interruption_is_read_from_the_transcript(claude, marker):
    claude.write(marker)  # of an earlier turn
    claude.hook("UserPromptSubmit")
    claude.hook("PreToolUse")
    claude.hook("PreToolUse", tool_use_id="sub", agent_id="agent1")
    claude.hook("PostToolUse", tool_use_id="x", tool_response={"isAsync": True, "agentId": "agent1"})
    assert not claude.signals("TurnEnded")
    claude.write("api_error", marker)
    assert poll(lambda: claude.signals("TurnEnded"), 5)
    said, tool, turn = claude.signals()[-3:]
    assert said.text.startswith("API Error: Request rejected (429)")
    assert not said.is_work
    assert (tool.tool_id, turn.turn, turn.how) == ("toolu_1", TURN, "interrupted")  # the subagent goes on


def test_a_transcript_elsewhere_is_not_read(claude, tmp_path):
    outside = tmp_path / "outside.jsonl"
    link = claude.transcript.parent / "link.jsonl"
    link.symlink_to(outside)
    pipe = claude.transcript.parent / "pipe.jsonl"
    os.mkfifo(pipe)
    for path in (outside, link, pipe, tmp_path):
        claude.hook("UserPromptSubmit", transcript_path=str(path))
        if path == outside:
            outside.write_text(json.dumps(LINES["interrupted_tool"], separators=(",", ":")) + "\n")
        claude.channel._look()
    assert claude.signals("TurnEnded") == []


def test_the_transcript_is_looked_at_only_while_something_is_open(claude, monkeypatch):
    monkeypatch.setattr("baton.channels.claude_hooks._LOOK_ON_SEC", 0.05)
    assert claude.channel._tick() is None
    claude.hook("UserPromptSubmit")
    assert claude.channel._tick() is not None
    claude.begin(claude.message("Stop"))
    assert poll(lambda: claude.channel._tick() is None, 5)


# -- what the program gets --------------------------------------------------------------------------------------------


def test_the_settings_name_no_token_and_wait_for_a_person(claude):
    token = claude.setup.environment[TOKEN]
    assert token not in claude.setup.files[SETTINGS]
    assert claude.hooks.pop("SessionStart") == {"type": "command", "command": "baton-hook 'a b'", "timeout": 5}
    assert {each["type"] for each in claude.hooks.values()} == {"http"}
    limits = {event: each["timeout"] for event, each in claude.hooks.items()}
    assert limits.pop("Stop") > 600
    assert 24 * 3600 < limits.pop("PermissionRequest") < 2**31 / 1000
    assert set(limits.values()) == {5}
    assert claude.hooks["PreToolUse"]["headers"] == {"Authorization": f"Bearer ${TOKEN}"}
    assert [os.get_inheritable(fd) for fd in claude.setup.descriptors] == [False]


def test_the_hook_program_reaches_the_same_channel(claude):
    answer = forward(str(claude.session), json.dumps(claude.message("SessionStart.startup")).encode())
    assert json.loads(answer) == {}
    assert claude.told() == [("Conversation", {"conversation_id": CONVERSATION})]


def test_without_loopback_every_hook_runs_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr("baton.channels.gateway.Gateway.listen_on_loopback", lambda _: None)
    monkeypatch.setattr(Claude, "begin", None)
    task = Task(
        mode=Mode.INTERACTIVE, prompt="x", conversation_id=CONVERSATION, resume=False, yolo=False,
        folder=str(tmp_path), workdir=str(tmp_path), hook=["h"],
    )  # fmt: skip
    channel = find_channel(ClaudeCode(), task)
    heard = []
    setup = channel.open(heard.append)
    hooks = json.loads(setup.files[SETTINGS])["hooks"]
    assert {each[0]["hooks"][0]["type"] for each in hooks.values()} == {"command"}
    assert (setup.descriptors, TOKEN in setup.environment) == ((), False)
    answers = []
    ask = threading.Thread(
        target=lambda: answers.append(forward(str(tmp_path), json.dumps(HOOKS["PermissionRequest"]).encode()))
    )
    ask.start()
    asked = poll(lambda: [each.signal for each in heard if type(each.signal).__name__ == "Asked"], 5)
    channel.answer(asked[0].key, ALLOW)
    ask.join()
    assert json.loads(answers[0])["hookSpecificOutput"]["decision"] == {"behavior": "allow"}
    channel.close()


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_proxies_are_passed_by_and_the_users_own_exceptions_stay(tmp_path, name):
    claude = Claude(tmp_path, {name: "example.com, .local"})
    assert claude.setup.environment[name] == "example.com,.local,127.0.0.1"
    assert {"NO_PROXY", "no_proxy"} <= claude.setup.environment.keys()
    claude.close()


def test_only_log_events_are_asked_for(claude):
    names = {name for name in claude.setup.environment if name.startswith("OTEL_") or "TELEMETRY" in name}
    logs = {f"OTEL_EXPORTER_OTLP_LOGS_{each}" for each in ("PROTOCOL", "ENDPOINT", "HEADERS")}
    assert names == {"CLAUDE_CODE_ENABLE_TELEMETRY", "OTEL_LOGS_EXPORTER", "OTEL_LOGS_EXPORT_INTERVAL"} | logs


def test_telemetry_that_the_user_configured_in_the_environment_is_left_alone(tmp_path):
    claude = Claude(tmp_path, {"OTEL_METRICS_EXPORTER": "otlp"})
    assert not [name for name in claude.setup.environment if "OTEL" in name or "TELEMETRY" in name]
    assert (
        claude.channel.facts()["telemetry"] == "not used: the environment variable OTEL_METRICS_EXPORTER configures it"
    )
    claude.close()


def test_without_its_telemetry_the_transcripts_say_the_tokens(tmp_path):
    claude = Claude(tmp_path, {"OTEL_METRICS_EXPORTER": "otlp"})
    claude.hook("UserPromptSubmit")
    part = {"type": "assistant", "message": {"id": "m1", "model": "claude-x", "content": [], "usage": USAGE}}
    claude.write_lines(part, part)  # a line for each part of the message
    claude.write_lines(
        {"type": "assistant", "message": {"id": "e", "model": "<synthetic>", "content": [], "usage": USAGE}}
    )
    subagent = claude.transcript.parent / "agent-1.jsonl"
    subagent.write_text(json.dumps({**part, "isSidechain": True, "message": {**part["message"], "id": "s1"}}) + "\n")
    claude.hook("SubagentStop", agent_transcript_path=str(subagent))
    assert poll(lambda: len(claude.signals("Usage")) >= 3, 5)
    spent, counted = Spent(), {}
    for each in claude.signals("Usage"):
        spent, counted = count(spent, counted, each)
    assert (sorted(counted), spent.tokens) == (
        ["m1", "s1"],
        Tokens(input=2 * 1300, cached=400, written=200, output=100),
    )
    assert spent.total_usd({}) is None
    claude.close()


USAGE = {
    "input_tokens": 1000, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 100, "output_tokens": 50,
}  # fmt: skip


@pytest.mark.parametrize(
    "place",
    [
        "home/.claude/settings.json", "work/.claude/settings.json", "work/.claude/settings.local.json",
        "managed/managed-settings.json", "managed/managed-settings.d/a.json", "own/settings.json",
    ],
)  # fmt: skip
def test_telemetry_that_a_settings_file_configures_is_left_alone(tmp_path, place):
    work = tmp_path / "work"
    (work / "below").mkdir(parents=True)
    environment = {"HOME": str(tmp_path / "home")} | (
        {"CLAUDE_CONFIG_DIR": str(tmp_path / "own")} if "own" in place else {}
    )
    look = (environment, str(work / "below"), str(tmp_path / "managed"))
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    for text in ("{", "[]", '{"env": {"A": "1"}}', '{"env": 1}'):
        path.write_text(text)
        assert configured_telemetry(*look) is None
    path.write_text('{"env": {"CLAUDE_CODE_ENABLE_TELEMETRY": "1"}}')
    assert configured_telemetry(*look) == os.path.realpath(path)


def test_a_dialog_before_the_work_is_named(tmp_path):
    task = Task(
        mode=Mode.INTERACTIVE, prompt="x", conversation_id=CONVERSATION, resume=False, yolo=False,
        folder=str(tmp_path), workdir=str(tmp_path), hook=["h"],
    )  # fmt: skip
    heard = []
    channel = ClaudeHooks(ClaudeCode(), task, {"HOME": str(tmp_path)})
    channel.open(heard.append)
    channel.close()
    (blocked,) = heard
    assert (blocked.source, blocked.signal.by) == ("settings", "claude-code")
    assert "Claude Code will ask whether you trust" in blocked.signal.what_to_do


def test_the_environment_is_that_of_claude_itself():
    assert claude_settings.claude_folder({"HOME": "/h"}) == "/h/.claude"
    assert claude_settings.claude_folder({"HOME": "/h", "CLAUDE_CONFIG_DIR": "/c"}) == "/c"


# -- attention ---------------------------------------------------------------------------------------------------------


class Program:
    """A process that stands for the program, with its entry in Claude's registry of sessions."""

    def __init__(self, claude, *argv):
        self.claude = claude
        self.process = subprocess.Popen(argv or ("sleep", "600"))
        self.path = claude.home / ".claude" / "sessions" / f"{self.process.pid}.json"
        self.path.parent.mkdir(exist_ok=True)

    def begin(self):
        self.claude.channel.begin(self.process.pid)

    def write(self, name="start", **changes):
        own = {"pid": self.process.pid, "procStart": str(started_at(self.process.pid)), "sessionId": CONVERSATION}
        self.path.write_text(json.dumps(REGISTRY[name] | {"pidDomain": DOMAIN} | own | changes))

    def says(self, status, waiting_for=None):
        self.write(status=status, **({} if waiting_for is None else {"waitingFor": waiting_for}))


MACHINE = Path("/etc/machine-id").read_text().strip() if Path("/etc/machine-id").exists() else ""
DOMAIN = f"linux:{MACHINE}:{os.readlink('/proc/self/ns/pid')}"


@pytest.fixture
def program(claude):
    program = Program(claude)
    yield program
    program.process.kill()
    program.process.wait()


def follow(program):
    """Begin, with an entry that is followed."""
    program.write()
    program.begin()
    wait_until(lambda: program.claude.channel.facts()["registry of sessions"] == "followed")


def calls(claude):
    return [each.what for each in claude.signals("Attention")]


def test_a_dialog_is_known_from_the_registry_without_any_hook(claude, program):
    follow(program)
    claude.hook("UserPromptSubmit", permission_mode="")  # while it works, it is looked at often
    program.write("waiting_dialog")
    wait_until(lambda: calls(claude) == ["dialog open"])
    assert claude.signals("Attention")[0].stands
    program.says("waiting", "permission prompt")
    wait_until(lambda: calls(claude) == ["dialog open", "permission prompt"])
    program.says("busy")
    wait_until(lambda: calls(claude)[-1] is None)
    statuses = [each.value for each in claude.signals("Noted")]
    assert statuses == ["waiting: dialog open", "waiting: permission prompt", "busy"]


def test_half_a_file_changes_nothing_and_a_file_that_is_gone_ends_it(claude, program):
    follow(program)
    claude.hook("UserPromptSubmit", permission_mode="")  # while it works, it is looked at often
    program.says("waiting", "input needed")
    wait_until(lambda: calls(claude) == ["input needed"])
    program.path.write_text("")
    wait_until(lambda: claude.channel.facts()["registry of sessions"] == "the file is not valid")
    assert calls(claude) == ["input needed"]
    program.path.unlink()
    wait_until(lambda: calls(claude) == ["input needed", None])


def test_the_end_of_the_process_ends_what_its_file_says(claude, program):
    follow(program)
    claude.hook("UserPromptSubmit", permission_mode="")  # while it works, it is looked at often
    program.says("waiting", "dialog open")
    wait_until(lambda: calls(claude) == ["dialog open"])
    program.process.kill()
    program.process.wait()
    wait_until(lambda: calls(claude) == ["dialog open", None])


def test_the_registry_is_where_the_environment_of_the_agent_says(tmp_path):
    claude = Claude(tmp_path, {"CLAUDE_CONFIG_DIR": str(tmp_path / "other")})
    program = Program(claude)
    program.path = tmp_path / "other" / "sessions" / program.path.name
    program.path.parent.mkdir(parents=True)
    try:
        follow(program)
    finally:
        claude.close()
        program.process.kill()
        program.process.wait()


def test_the_program_below_the_one_that_was_started_is_followed_and_another_claude_is_not(claude):
    script = Program(claude, "sh", "-c", "sleep 600 & sleep 601 & wait")
    try:
        script.begin()
        pids = wait_until(lambda: len(found := children_of(script.process.pid)) == 2 and found)
        for pid, conversation in zip(pids, (OTHER, CONVERSATION), strict=True):
            script.path = script.path.with_name(f"{pid}.json")
            own = {"pid": pid, "procStart": str(started_at(pid)), "sessionId": conversation}
            script.write("waiting_dialog", **own, waitingFor=conversation)
        wait_until(lambda: calls(claude) == [CONVERSATION])
    finally:
        for pid in children_of(script.process.pid):
            os.kill(pid, signal.SIGKILL)
        script.process.kill()
        script.process.wait()


def test_a_notification_about_a_dialog_that_is_closed_again_says_nothing(claude, program):
    follow(program)
    program.says("busy")
    claude.hook("Notification.permission_prompt")
    assert calls(claude) == []
    program.says("waiting", "permission prompt")
    claude.hook("Notification.permission_prompt")
    assert calls(claude) == ["permission prompt", "Claude needs your permission"]


def test_a_conversation_under_another_id_is_the_sessions_if_the_agents_own_entry_names_it(claude, program):
    follow(program)
    claude.hook("UserPromptSubmit", session_id=OTHER)
    assert claude.signals("TurnStarted") == []
    program.write(sessionId=OTHER)
    claude.hook("UserPromptSubmit", session_id=OTHER)
    assert [name for name, _ in claude.told()] == ["Unblocked", "Conversation", "TurnStarted"]


def test_a_conversation_that_was_forked_at_its_resume_goes_on(claude):
    claude.hook("SessionStart.fork")
    claude.hook("UserPromptSubmit", session_id=OTHER)
    assert [name for name, _ in claude.told()] == ["Conversation", "TurnStarted"]


def package(folder, version):
    """Return a program that lies in the package of this release."""
    program = folder / "node_modules" / "@anthropic-ai" / "claude-code" / "bin" / "claude.exe"
    program.parent.mkdir(parents=True)
    shutil.copy(shutil.which("sleep"), program)
    about = {"name": "@anthropic-ai/claude-code", "version": version}
    (program.parent.parent / "package.json").write_text(json.dumps(about))
    return str(program)


@pytest.mark.parametrize(
    ("version", "is_known"), [("2.1.327", True), ("2.1.197", True), ("2.0.9", False), ("x", False)]
)
def test_no_entry_after_the_start_is_a_dialog_in_a_release_that_writes_one(
    claude, tmp_path, monkeypatch, version, is_known
):
    monkeypatch.setattr("baton.channels.claude_registry.Start._LIMIT_SEC", 0.1)
    monkeypatch.setattr("baton.channels.claude_registry.Start._QUIET_SEC", 0.1)
    program = Program(claude, package(tmp_path, version), "600")
    try:
        program.begin()
        wait_until(lambda: claude.signals("Blocked") if is_known else claude.channel._start is None)
        program.write()
        wait_until(lambda: claude.signals("Unblocked"))
        assert len(claude.signals("Blocked")) == is_known
    finally:
        program.process.kill()
        program.process.wait()


def test_a_program_that_is_slow_to_start_shows_no_dialog():
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        start = Start(busy.pid)
        at_work = [start.is_held_up(0.2) for _ in range(int(29 / 0.2))]
    finally:
        busy.kill()
        busy.wait()
    assert not any(at_work)
    assert not start.is_held_up(0.2)  # it has ended


def test_what_stands_still_with_its_runner_has_not_had_its_time(claude, program):
    wait_until(lambda: stat_fields(program.process.pid)[0] == b"S")
    start = Start(program.process.pid)
    assert not start.is_held_up(0.4)
    assert not any(start.is_held_up(0.2) for _ in range(20))
    assert any(start.is_held_up(0.2) for _ in range(10))


@pytest.mark.parametrize("notifies", [True, False])
def test_after_a_usage_limit_it_carries_on_by_itself(claude, notifies):
    claude.hook("StopFailure.5_hour_limit")
    assert claude.signals("Limited")
    if notifies:
        claude.hook("Notification.quota_auto_resume_fired")
    prompt = HOOKS["UserPromptSubmit.limit_reset"]["prompt"]
    claude.hook("UserPromptSubmit.limit_reset", prompt="Go on." if notifies else prompt)
    assert claude.signals("TurnStarted")[0].origin == "carried-on"
    claude.hook("UserPromptSubmit.limit_reset", prompt_id="another")
    assert claude.signals("TurnStarted")[1].origin == "prompt"  # a person typed the same text


def test_a_limit_that_names_only_the_hour_ends_then():
    text, noon = "You've hit your 5-hour limit \u00b7 resets 10pm (UTC)", 1794830400 * 10**9
    assert reset_time(text, noon) == (1794830400 + 10 * 3600) * 10**9


def test_a_subagent_is_in_the_background_by_default(claude):
    claude.hook("PostToolUse.Agent")
    [task] = claude.signals("BackgroundWork")[0].tasks
    assert (task.kind, task.task_id) == ("subagent", HOOKS["PostToolUse.Agent"]["tool_response"]["agentId"])


def test_a_call_that_the_tool_refuses_without_a_hook_before_it_leaves_the_turn_open(claude):
    """Such as a lone `sleep`."""
    claude.hook("UserPromptSubmit")
    batch = [{"tool_name": "Bash", "tool_input": {"command": "sleep 30"}, "tool_use_id": "x", "tool_response": "no"}]
    claude.hook("PostToolBatch", tool_calls=batch)
    claude.hook("PostToolUseFailure", tool_use_id="x", error="blocked")
    facts = Facts.of_job("", 0)
    for number, each in enumerate(claude.signals()):
        facts = fold(facts, Heard(signal=each, source="hook", at_ns=number))
    assert facts.open_turn is not None
    assert facts.open_tools == []


def test_the_permission_mode_is_a_fact_with_each_change_of_it(claude):
    claude.hook("UserPromptSubmit", permission_mode="auto")
    claude.hook("PreToolUse", permission_mode="auto")
    claude.hook("PreToolUse.subagent", permission_mode="plan")  # its own
    claude.events(EVENTS["tool_decision"] | {"event.name": "permission_mode_changed", "to_mode": "acceptEdits"})
    assert [each.value for each in claude.signals("Noted")] == ["auto", "acceptEdits"]
