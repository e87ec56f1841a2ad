"""What the messages of Codex's app-server mean, and what is written to it. The messages are recorded from 0.166."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from baton.adapters.codex import Codex
from baton.adapters.contract import Mode, Task
from baton.channels.codex_protocol import Protocol
from baton.core.activity import DONE, Facts, Limits, activity, fold, verdict
from baton.core.request import Answer
from baton.core.signal import (
    ALLOW,
    DENY,
    FAILED,
    INTERRUPTED,
    WELL,
    Asked,
    BackgroundTask,
    BackgroundWork,
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
from support.clock import FakeClock

DATA = Path(__file__).parents[1] / "data" / "codex"
THREAD, OTHER = "01a1dfa3-1b27-7401-a531-184a61ae3a4d", "01a1dfa3-1b27-7401-a531-184a61ae3a4e"


class Talk:
    """A conversation with a server that the test plays. `signals` is what was heard, `sent` what was written."""

    def __init__(self, **changes) -> None:
        given = {"mode": Mode.HEADLESS, "prompt": "do it", "conversation_id": None, "resume": False, "yolo": False,
                 "folder": "/f", "workdir": "/nowhere", "hook": []}  # fmt: skip
        self.clock = FakeClock()
        self.sent: list[dict] = []
        self.signals = []
        self.works = True
        self.account: dict | None = {"result": {"account": None, "requiresOpenaiAuth": False}}
        self.protocol = Protocol(Codex(), Task(**given | changes), self._send, self.clock)
        self.protocol.begin()

    def _send(self, message) -> bool:
        if message.get("method") == "account/read" and self.account is not None:
            self.hear({"id": message["id"], **self.account})
        elif self.works:
            self.sent.append(json.loads(json.dumps(message)))
        return self.works

    def hear(self, *messages):
        """Hear messages; return what they mean."""
        found = [signal for message in messages for signal in self.protocol.receive(message)]
        self.signals += found
        return found

    def say(self, method, **params):
        return self.hear({"method": method, "params": {"threadId": self.protocol.thread} | params})

    def reply(self, result):
        """Answer the newest request of the client."""
        return self.hear({"id": [each["id"] for each in self.sent if "method" in each and "id" in each][-1]} | result)

    def begin(self):
        self.reply({"result": {}})
        if self.sent[-1]["method"] == "config/read":
            self.reply({"result": {"config": {}}})
        self.reply({"result": {"thread": {"id": THREAD}}})
        if self.sent[-1]["method"] == "turn/start":
            self.reply({"result": {"turn": {"id": "t1"}}})
        return self

    def start(self, item_id, kind="commandExecution", turn="t1", **item):
        about = {"id": item_id, "type": kind, "status": "inProgress"} | item
        return self.say("item/started", item=about, turnId=turn)

    def end(self, item_id, status="completed", kind="commandExecution", turn="t1", **item):
        return self.say("item/completed", item={"id": item_id, "type": kind, "status": status} | item, turnId=turn)

    def end_turn(self, status="completed", turn="t1", **more):
        return self.say("turn/completed", turn={"id": turn, "status": status, "items": []} | more)

    def ask(self, method="item/commandExecution/requestApproval", request_id=0, item="c1", **params):
        about = {"threadId": THREAD, "turnId": "t1", "itemId": item} | params
        return self.hear({"id": request_id, "method": method, "params": about})

    def tick(self, seconds=0.0):
        self.clock.advance(seconds)
        found = list(self.protocol.questions.tick())
        self.signals += found
        return found


def answer(what, **more):
    return Answer(answer=what, by="me", via="cli", **more)


def play(name, mode=Mode.HEADLESS, **changes):
    """Play a recording; the client answers and gives prompts as the recorded one did."""
    lines = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    talk = Talk(mode=mode, prompt=next(_prompts(lines), None), **changes)
    prompts = 0
    for line in lines:
        message = line["message"]
        if line["from"] == "server":
            talk.hear(message)
        elif message.get("method") == "turn/start":
            prompts += 1
            if prompts > 1:
                talk.protocol.say(message["params"]["input"][0]["text"])
        elif "result" in message:
            asked = [each.key for each in talk.signals if isinstance(each, Asked)][-1]
            decision = message["result"]["decision"]
            talk.protocol.answer(asked, answer(ALLOW if decision == "accept" else DENY))
    return talk


def _prompts(lines):
    for line in lines:
        if line["message"].get("method") == "turn/start":
            yield line["message"]["params"]["input"][0]["text"]


def of(kind, signals):
    return [each for each in signals if isinstance(each, kind)]


def test_codex_says_its_release_its_policy_and_its_model():
    talk = Talk()
    talk.reply({"result": {"userAgent": "baton/0.169.0 (Debian 12.0.0; x86_64) tmux-256color (baton; 1)"}})
    talk.reply(
        {"result": {"thread": {"id": THREAD, "cliVersion": "0.1"}, "approvalPolicy": "on-request", "model": "m"}}
    )
    assert of(Stated, talk.signals) == [Stated(release="0.169.0"), Stated(mode="on-request", model="m")]


# As Codex 0.169 answered without a login.
_NO_LOGIN = {"result": {"account": None, "userId": None, "requiresOpenaiAuth": True, "workspaceRouting": None}}


@pytest.mark.parametrize("mode", list(Mode))
def test_without_a_login_no_turn_begins_and_the_reason_names_it(mode):
    talk = Talk(mode=mode)
    talk.account = _NO_LOGIN
    talk.reply({"result": {}})
    assert "codex login" in talk.protocol.failure
    assert "thread/start" not in {each.get("method") for each in talk.sent}
    ends = [(each.how, "codex login" in each.why) for each in of(TurnEnded, talk.signals)]
    assert ends == ([(FAILED, True)] if mode is Mode.HEADLESS else [])


@pytest.mark.parametrize(
    "account",
    [
        {"result": {"account": {"type": "apiKey"}, "requiresOpenaiAuth": True}},
        {"result": {"account": None, "requiresOpenaiAuth": False}}, {"result": {"requiresOpenaiAuth": True}},
        {"result": {}}, {"error": {"code": -32600, "message": "unknown variant `account/read`"}},
    ],
)  # fmt: skip
def test_with_a_login_or_without_a_word_of_it_the_conversation_begins(account):
    talk = Talk()
    talk.account = account
    talk.begin()
    assert talk.protocol.failure is None
    assert "turn/start" in {each.get("method") for each in talk.sent}


@pytest.mark.parametrize("agent", ["", "baton", "7", 7, None])
def test_a_release_in_another_form_is_not_known(agent):
    talk = Talk()
    talk.reply({"result": {"userAgent": agent}})
    talk.reply({"result": {"thread": {"id": THREAD}, "approvalPolicy": {"granular": {}}}})
    assert of(Stated, talk.signals) == []
    assert talk.protocol.is_ready or talk.sent[-1]["method"] == "turn/start"


# -- recordings --------------------------------------------------------------------------------------------------------


def test_a_recorded_conversation_with_an_answer_of_each_kind():
    talk = play("approvals")
    kinds = [type(each) for each in talk.signals if not isinstance(each, Usage | Stated)]
    first = [Conversation, TurnStarted, ToolStarted, Asked, Settled, ToolEnded, Said, TurnEnded]
    assert kinds[: len(first)] == first
    assert of(TurnStarted, talk.signals)[0].prompt == "ESCALATE RUN[echo hi > /home/me/lab/run/esc.txt]"
    started, asked = of(ToolStarted, talk.signals)[0], of(Asked, talk.signals)[0]
    call = {"command": "echo hi > /home/me/lab/run/esc.txt", "cwd": "/home/me/lab/work"}
    assert started.call == asked.call == call
    assert (asked.kind, asked.tool, asked.tool_id, asked.exact) == ("tool", "shell", started.tool_id, True)
    assert [(each.decision, each.by) for each in of(Settled, talk.signals)] == [
        (ALLOW, "agent"), (DENY, "agent"), (DENY, "agent"), (None, "agent"),
    ]  # fmt: skip
    ends = of(TurnEnded, talk.signals)
    assert [each.how for each in ends] == [WELL, WELL, INTERRUPTED, INTERRUPTED]
    assert ends[0].message == "STUB-FINAL: the command ran."
    assert [each.turn for each in ends] == [each.turn for each in of(TurnStarted, talk.signals)]
    assert sum(each.input_tokens for each in of(Usage, talk.signals)) == 60
    assert talk.protocol.facts() == {}


def test_a_recorded_answer_at_the_pane_and_hidden_titles():
    talk = play("screen", Mode.INTERACTIVE)
    assert len(of(Conversation, talk.signals)) == 1, "those of the titles are others"
    settled = of(Settled, talk.signals)
    assert [(each.decision, each.by) for each in settled] == [(ALLOW, "screen"), (ALLOW, "agent")]
    prompts = [each.prompt for each in of(TurnStarted, talk.signals)]
    assert prompts[2] == "ESCALATE RUN[echo B > /home/me/lab/run/b.txt]", "typed by the person"
    assert [each.how for each in of(TurnEnded, talk.signals)] == [WELL] * 3


def test_recorded_interruptions_and_a_steered_turn():
    talk = play("interrupts", Mode.INTERACTIVE, resume=True, conversation_id="01a1dfa3-7e6d-7801-8302-a966c3049f06")
    assert [each.how for each in of(TurnEnded, talk.signals)] == [INTERRUPTED] * 3
    assert of(BackgroundWork, talk.signals) == [], "the command of an interrupted turn is no work of the job"
    assert (of(Settled, talk.signals)[0].decision, of(Settled, talk.signals)[0].by) == (DENY, "screen")
    assert len(of(TurnStarted, talk.signals)) == 4


@pytest.mark.parametrize(
    ("name", "tries", "why"),
    [
        ("service-500", [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)], "experiencing high demand"),
        ("service-401", [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)], "401 Unauthorized: stub: invalid api key"),
        ("service-429", [], "429 Too Many Requests"),
    ],
)
def test_a_recorded_service_that_fails_ends_the_turn_with_its_words(name, tries, why):
    talk = play(name)
    assert [(each.number, each.most) for each in of(Retrying, talk.signals)] == tries
    assert all(why.split(" ")[0] in each.why for each in of(Retrying, talk.signals))
    (end,) = of(TurnEnded, talk.signals)
    assert (end.how, end.message) == (FAILED, None)
    assert why in end.why


def test_a_recorded_dead_service_is_retried_without_end():
    talk = play("service-dead")
    assert of(TurnEnded, talk.signals) == []
    assert of(Retrying, talk.signals)
    assert all(each.why for each in of(Retrying, talk.signals))


# -- beginnings --------------------------------------------------------------------------------------------------------


def test_codex_never_gets_a_folder_and_gets_no_permission_to_write_without_trust(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    environment = {"CODEX_HOME": str(tmp_path / "none"), "HOME": "/nowhere"}
    for yolo, settings in (
        (False, {"approvalPolicy": "on-request", "sandbox": "read-only"}),
        (True, {"approvalPolicy": "never", "sandbox": "danger-full-access"}),
    ):
        talk = Talk(workdir=str(tmp_path), environment=environment, yolo=yolo)
        talk.reply({"result": {}})
        assert talk.sent[-1]["method"] == "thread/start"
        assert talk.sent[-1]["params"] == settings
    talk = Talk(environment=environment)
    talk.reply({"result": {}})
    assert talk.sent[-1]["params"] == {}, "the settings are the user's"


def test_a_conversation_that_cannot_be_continued_says_why():
    error = {"error": {"code": -32600, "message": "no rollout found for thread id x"}}
    talk = Talk(resume=True, conversation_id=THREAD, mode=Mode.INTERACTIVE)
    talk.reply({"result": {}})
    talk.reply({"result": {}})
    assert (talk.sent[-1]["method"], talk.sent[-1]["params"]["threadId"]) == ("thread/resume", THREAD)
    assert talk.reply(error) == []
    assert (talk.protocol.failure, talk.protocol.is_ready) == ("no rollout found for thread id x", False)
    talk = Talk(resume=True, conversation_id=THREAD)
    talk.reply({"result": {}})
    talk.reply({"result": {}})
    assert of(TurnEnded, talk.reply(error))[0].how == FAILED


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({}, ("on-request", "read-only")),
        ({"approval_policy": "untrusted", "sandbox_mode": "workspace-write"}, ("untrusted", "workspace-write")),
        (7, ("on-request", "read-only")),
    ],
)
def test_an_earlier_conversation_does_not_bring_its_permissions(config, settings):
    """Codex would keep those that it had: all of them, after --yolo."""
    environment = {"CODEX_HOME": "/nowhere", "HOME": "/nowhere"}
    talk = Talk(resume=True, conversation_id=THREAD, environment=environment)
    talk.reply({"result": {}})
    assert talk.sent[-1]["method"] == "config/read"
    talk.reply({"result": {"config": config}})
    params = talk.sent[-1]["params"]
    assert (params["approvalPolicy"], params["sandbox"]) == settings


@pytest.mark.parametrize("thread", ["--dangerously-bypass-approvals-and-sandbox", "", "../x"])
def test_an_id_that_is_none_never_becomes_an_argument(thread):
    talk = Talk(mode=Mode.INTERACTIVE)
    talk.reply({"result": {}})
    assert of(Conversation, talk.reply({"result": {"thread": {"id": thread}}})) == []
    assert talk.protocol.failure
    assert talk.protocol.thread is None


def test_a_prompt_that_is_refused_is_a_failed_turn():
    talk = Talk()
    talk.reply({"result": {}})
    talk.reply({"result": {"thread": {"id": THREAD}}})
    found = talk.reply({"error": {"message": "no model"}})
    assert [type(each) for each in found] == [TurnStarted, TurnEnded]
    assert (found[1].how, found[1].why) == (FAILED, "no model")


def test_a_conversation_that_the_person_begins_is_followed():
    talk = Talk(mode=Mode.INTERACTIVE, prompt=None)
    talk.reply({"result": {}})
    assert talk.protocol.is_ready
    title = {"id": OTHER, "ephemeral": True, "threadSource": "thread_title"}
    assert talk.hear({"method": "thread/started", "params": {"thread": title}}) == []
    talk.hear({"method": "thread/started", "params": {"thread": {"id": THREAD, "threadSource": "user"}}})
    assert of(Conversation, talk.signals) == [], "it cannot be resumed before its first turn"
    talk.say("thread/status/changed", status={"type": "active"})
    assert talk.sent[-1]["method"] == "thread/resume"
    talk.reply({"result": {"thread": {"id": THREAD}}})
    assert talk.sent[-1]["method"] == "thread/turns/list"
    message = {"type": "userMessage", "id": "u", "content": [{"type": "text", "text": "hello"}]}
    turn = {"id": "t1", "status": "completed", "items": [message, {"type": "agentMessage", "id": "m", "text": "Yes?"}]}
    talk.reply({"result": {"data": [turn]}})
    assert [type(each) for each in talk.signals] == [Conversation, TurnStarted, TurnEnded]
    assert (talk.signals[1].prompt, talk.signals[2].message) == ("hello", "Yes?")


def test_a_person_who_begins_a_new_conversation_leaves_that_of_the_job():
    talk = Talk(mode=Mode.INTERACTIVE).begin()
    found = talk.hear({"method": "thread/started", "params": {"thread": {"id": OTHER, "threadSource": "user"}}})
    assert found == [Conversation(conversation_id=THREAD, ended="clear")]
    assert talk.hear({"method": "turn/completed", "params": {"threadId": THREAD, "turn": {"id": "t1"}}}) == []


# -- turns -------------------------------------------------------------------------------------------------------------


def judged(talk):
    facts = Facts.of_job("", 0)
    for signal in talk.signals:
        facts = fold(facts, Heard(signal=signal, source="server", at_ns=talk.clock.monotonic_ns()))
    return facts, verdict(facts, now_ns=talk.clock.monotonic_ns(), limits=Limits(idle_sec=60))


@pytest.mark.parametrize(
    ("messages", "how"),
    [
        ([], WELL),
        ([("error", {"error": {"message": "lost"}, "willRetry": False, "turnId": "t1"})], FAILED),
        ([("error", {"error": {"message": "1/5"}, "willRetry": True, "turnId": "t1"})], WELL),
        ([("error", {"error": {"message": ""}, "willRetry": False, "turnId": "t1"})], FAILED),
        ([("error", {"error": "lost", "willRetry": False, "turnId": "t1"})], FAILED),
        ([("error", {"willRetry": False})], FAILED),
        ([("error", {"error": {"message": "of another"}, "willRetry": False, "turnId": "t0"})], WELL),
    ],
)
def test_a_turn_is_well_only_without_an_error(messages, how):
    talk = Talk().begin()
    for method, params in messages:
        talk.say(method, **params)
    (end,) = of(TurnEnded, talk.end_turn())
    assert end.how == how
    assert (judged(talk)[1].outcome == DONE) == (how == WELL)


@pytest.mark.parametrize("error", [{}, {"message": ""}, "quota", 7, ["x"]])
def test_a_turn_that_ends_with_an_error_of_any_shape_is_no_success(error):
    talk = Talk().begin()
    (end,) = of(TurnEnded, talk.end_turn(error=error))
    assert end.how == FAILED
    assert end.why


@pytest.mark.parametrize("status", ["inProgress", "new", None, 7])
def test_an_unknown_end_of_a_turn_is_no_success(status):
    talk = Talk().begin()
    talk.end_turn(status)
    assert all(each.how == FAILED for each in of(TurnEnded, talk.signals))
    assert judged(talk)[1].outcome != DONE


def test_an_agent_is_sent_back_to_its_turn():
    talk = Talk().begin()
    (end,) = of(TurnEnded, talk.end_turn())
    assert end.held
    assert talk.protocol.go_on(end.turn, "out.txt is missing")
    assert not talk.protocol.say("and this"), "one prompt at a time"
    talk.reply({"result": {"turn": {"id": "t2"}}})
    assert of(TurnEnded, talk.end_turn(turn="t2"))[0].turn == end.turn


def test_a_prompt_that_went_into_the_turn_of_a_person_is_interrupted():
    """Codex answers with the id of the turn that is open."""
    talk = Talk(mode=Mode.INTERACTIVE).begin()
    (end,) = of(TurnEnded, talk.end_turn())
    assert talk.protocol.go_on(end.turn, "out.txt is missing")
    talk.say("turn/started", turn={"id": "person"})
    message = {"type": "userMessage", "id": "u", "content": [{"type": "text", "text": "stop that"}]}
    talk.say("item/started", item=message, turnId="person")
    found = talk.reply({"result": {"turn": {"id": "person"}}})
    assert [(each.turn, each.how) for each in of(TurnEnded, found)] == [(end.turn, INTERRUPTED)]
    assert not talk.protocol.say("more"), "a turn is open"
    talk.end_turn(turn="person")
    assert talk.protocol.say("more")


def test_a_command_that_outlives_its_turn_is_background_work():
    talk = Talk().begin()
    talk.start("c1", command="/bin/bash -lc 'sleep 9'")
    talk.end_turn()
    assert talk.signals[-2] == BackgroundWork(tasks=(BackgroundTask(task_id="c1", kind="shell", what="sleep 9"),))
    facts, _ = judged(talk)
    assert activity(facts, now_ns=talk.clock.monotonic_ns(), limits=Limits(idle_sec=60)).rule == "background"
    assert talk.end("c1") == [BackgroundWork(tasks=())]


def test_a_subagent_that_works_is_background_work():
    talk = Talk().begin()
    talk.hear({"method": "thread/started", "params": {"thread": {"id": OTHER, "parentThreadId": THREAD}}})
    active, idle = {"type": "active"}, {"type": "idle"}
    (work,) = talk.hear({"method": "thread/status/changed", "params": {"threadId": OTHER, "status": active}})
    assert [each.kind for each in work.tasks] == ["subagent"]
    (work,) = talk.hear({"method": "thread/status/changed", "params": {"threadId": OTHER, "status": idle}})
    assert work.tasks == ()


def test_a_usage_limit_says_until_when():
    talk = Talk().begin()
    window = {"usedPercent": 100, "resetsAt": 1_900_000_000}
    talk.say("account/rateLimits/updated", rateLimits={"primary": {"usedPercent": 7}, "secondary": window})
    error = {"message": "You've hit your usage limit.", "codexErrorInfo": "usageLimitExceeded"}
    found = talk.end_turn("failed", error=error)
    assert of(Limited, found) == [Limited(until_ns=1_900_000_000 * 10**9, why="You've hit your usage limit.")]
    assert of(TurnEnded, found)[0].how == FAILED


def test_usage_of_the_time_before_is_not_counted_again():
    talk = Talk(resume=True, conversation_id=THREAD).begin()
    used = {"total": {"totalTokens": 15}, "last": {"inputTokens": 10, "outputTokens": 5}}
    assert talk.say("thread/tokenUsage/updated", turnId="before", tokenUsage=used) == []
    assert of(Usage, talk.say("thread/tokenUsage/updated", turnId="t1", tokenUsage=used))[0].input_tokens == 10


def test_a_server_that_is_gone_ends_the_turn():
    talk = Talk().begin()
    turn = of(TurnStarted, talk.signals)[0].turn
    assert list(talk.protocol.lose("the server ended")) == [TurnEnded(turn=turn, how=FAILED, why="the server ended")]
    assert list(talk.protocol.lose("the server ended")) == []


def test_pieces_of_a_message_are_signs_of_work_now_and_then():
    talk = Talk().begin()
    for _ in range(5):
        talk.say("item/agentMessage/delta", delta="x")
    assert of(Said, talk.signals) == [Said(text="")]


@pytest.mark.parametrize(
    "message",
    [
        {}, {"id": 1}, {"id": 99, "result": {}}, {"id": [], "result": {}}, {"method": 7}, {"method": "turn/started"},
        {"method": "turn/completed", "params": {"threadId": THREAD}}, {"method": "turn/completed", "params": 7},
        {"method": "turn/completed", "params": {"threadId": THREAD, "turn": {"id": "t1"}}},
        {"method": "turn/completed", "params": {"threadId": THREAD, "turn": {"id": "t1", "status": {}}}},
        {"method": "item/started", "params": {"threadId": THREAD, "item": "x"}},
        {"method": "item/started", "params": {"threadId": THREAD, "item": {"type": "commandExecution"}}},
        {"method": "error", "params": {"threadId": THREAD}}, {"method": "thread/started", "params": {}},
        {"method": "account/rateLimits/updated", "params": {"rateLimits": {"primary": {"resetsAt": float("inf")}}}},
        {"method": "thread/tokenUsage/updated", "params": {"threadId": THREAD, "turnId": "t1", "tokenUsage": {
            "total": {"totalTokens": 1}, "last": {"inputTokens": float("inf"), "outputTokens": 1}}}},
        {"id": 0, "method": "item/fileChange/requestApproval", "params": 7},
        {"id": 0, "method": "item/tool/requestUserInput", "params": {"threadId": THREAD, "questions": 7}},
    ],
)  # fmt: skip
def test_a_message_of_another_form_means_no_success(message):
    talk = Talk().begin()
    found = talk.hear(message)
    assert not [each for each in of(TurnEnded, found) if each.how == WELL]
    assert of(Asked, found) == []


# -- questions ---------------------------------------------------------------------------------------------------------


def asking(
    method="item/commandExecution/requestApproval", mode=Mode.HEADLESS, of_item="commandExecution", item=None, **params
):
    talk = Talk(mode=mode).begin()
    talk.start("c1", of_item, **({"command": "ls", "cwd": "/w"} if item is None else item))
    (asked,) = of(Asked, talk.ask(method, **params))
    return talk, asked


def result(talk):
    return talk.sent[-1]["result"]


def test_a_question_is_answered_once():
    talk, asked = asking(command="ls")
    assert talk.protocol.answer(asked.key, answer(ALLOW))
    assert talk.sent[-1] == {"id": 0, "result": {"decision": "accept"}}
    assert not talk.protocol.answer(asked.key, answer(DENY))
    talk.hear({"method": "serverRequest/resolved", "params": {"threadId": THREAD, "requestId": 0}})
    assert of(Settled, talk.end("c1")) == [Settled(key=asked.key, decision=ALLOW, by="agent")]


def test_an_answer_is_never_turned_round():
    talk, asked = asking(command="ls", availableDecisions=["cancel", {"acceptWithExecpolicyAmendment": {}}])
    before = len(talk.sent)
    assert not talk.protocol.answer(asked.key, answer(ALLOW))
    assert len(talk.sent) == before
    assert talk.protocol.answer(asked.key, answer(DENY))
    assert result(talk) == {"decision": "decline"}


def test_the_reason_of_a_refusal_is_told_before_it():
    talk, asked = asking(command="ls")
    assert talk.protocol.answer(asked.key, answer(DENY, reason="not here"))
    steer, refused = talk.sent[-2:]
    assert (steer["method"], steer["params"]["expectedTurnId"]) == ("turn/steer", "t1")
    assert "not here" in steer["params"]["input"][0]["text"]
    assert refused["result"] == {"decision": "decline"}


@pytest.mark.parametrize(("status", "decision"), [("declined", DENY), ("completed", ALLOW), ("failed", ALLOW)])
def test_what_a_person_decided_shows_in_the_tool_call(status, decision):
    talk, asked = asking(command="ls", mode=Mode.INTERACTIVE)
    talk.hear({"method": "serverRequest/resolved", "params": {"threadId": THREAD, "requestId": 0}})
    assert not talk.protocol.answer(asked.key, answer(ALLOW)), "it is closed"
    assert of(Settled, talk.end("c1", status)) == [Settled(key=asked.key, decision=decision, by="screen")]


def test_a_long_command_that_a_person_allowed_is_known_at_once():
    talk, asked = asking(command="ls", mode=Mode.INTERACTIVE)
    talk.hear({"method": "serverRequest/resolved", "params": {"threadId": THREAD, "requestId": 0}})
    assert talk.tick(0.1) == []
    assert talk.tick(0.6) == [Settled(key=asked.key, decision=ALLOW, by="screen")]
    assert of(Settled, talk.end("c1")) == []


def test_an_answer_that_came_second_is_told_so():
    talk, asked = asking(command="ls", mode=Mode.INTERACTIVE)
    assert talk.protocol.answer(asked.key, answer(ALLOW))
    talk.hear({"method": "serverRequest/resolved", "params": {"threadId": THREAD, "requestId": 0}})
    assert of(Settled, talk.end("c1", "declined")) == [Settled(key=asked.key, decision=DENY, by="screen")]


def test_after_a_new_connection_a_question_is_the_same_and_a_lost_answer_is_written_again():
    talk, asked = asking(command="ls")
    talk.protocol.begin()
    talk.reply({"result": {}})
    talk.reply({"result": {"thread": {"id": THREAD}}})
    assert talk.ask(command="ls") == [], "it is asked already"
    talk.reply({"result": {"data": [{"id": "t1", "status": "inProgress", "items": []}]}})
    assert talk.tick(5) == []
    assert talk.protocol.answer(asked.key, answer(ALLOW))
    talk.protocol.begin()
    talk.reply({"result": {}})
    talk.reply({"result": {"thread": {"id": THREAD}}})
    talk.ask(command="ls")
    assert [each for each in talk.sent if each.get("result")] == [{"id": 0, "result": {"decision": "accept"}}] * 2


def test_a_turn_that_cannot_be_followed_after_a_new_connection_has_failed():
    talk = Talk().begin()
    talk.protocol.begin()
    talk.reply({"result": {}})
    (end,) = of(TurnEnded, talk.reply({"error": {"message": "no rollout found"}}))
    assert (end.how, end.why) == (FAILED, "its conversation cannot be followed any more: no rollout found")


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("is_answered", [True, False])
def test_an_answer_is_not_given_to_another_call_under_the_same_id(mode, is_answered):
    talk, asked = asking(command="ls", mode=mode)
    assert not is_answered or talk.protocol.answer(asked.key, answer(ALLOW))
    before = len(talk.sent)
    assert talk.ask(command="rm -rf x") == []
    refused = [] if mode is Mode.INTERACTIVE else [{"id": 0, "result": {"decision": "decline"}}]
    assert talk.sent[before:] == refused, "a person may still be asked at the pane"
    assert not talk.protocol.answer(asked.key, answer(ALLOW))


def test_a_question_that_was_closed_without_a_connection_is_closed():
    talk, asked = asking(command="ls", mode=Mode.INTERACTIVE)
    talk.protocol.begin()
    talk.reply({"result": {}})
    talk.reply({"result": {"thread": {"id": THREAD}}})
    talk.reply({"result": {"data": [{"id": "t1", "status": "inProgress", "items": []}]}})
    talk.tick(2.1)
    talk.tick(0.6)
    assert of(Settled, talk.signals) == [Settled(key=asked.key, decision=ALLOW, by="screen")]


def test_a_turn_that_ended_without_a_connection_has_ended():
    talk = Talk().begin()
    talk.protocol.begin()
    talk.reply({"result": {}})
    talk.reply({"result": {"thread": {"id": THREAD}}})
    error = {"message": "lost"}
    turns = [{"id": "t1", "status": "failed", "items": [], "error": error}, {"id": "t0", "status": "completed"}]
    found = talk.reply({"result": {"data": turns}})
    assert [(each.how, each.why) for each in of(TurnEnded, found)][-1] == (FAILED, "lost")


def test_a_question_about_files_shows_the_changes():
    changes = [{"path": "/w/a", "kind": {"type": "update", "move_path": "/w/b"}, "diff": "+x"}]
    talk, asked = asking(
        "item/fileChange/requestApproval", of_item="fileChange", item={"changes": changes}, grantRoot="/w"
    )
    assert (asked.tool, asked.exact) == ("edit", True)
    assert asked.call == {"files": ["/w/a", "/w/b"], "changes": changes, "grantRoot": "/w"}
    talk.protocol.answer(asked.key, answer(ALLOW))
    assert result(talk) == {"decision": "accept"}


def test_changes_that_are_not_known_are_not_exact():
    talk = Talk().begin()
    (asked,) = talk.ask("item/fileChange/requestApproval")
    assert not asked.exact


@pytest.mark.parametrize(("what", "granted"), [(ALLOW, {"network": {"enabled": True}}), (DENY, {})])
def test_permissions_are_given_for_the_turn_alone(what, granted):
    talk, asked = asking("item/permissions/requestApproval", permissions={"network": {"enabled": True}}, cwd="/w")
    assert asked.call["permissions"] == {"network": {"enabled": True}}
    assert talk.protocol.answer(asked.key, answer(what))
    assert result(talk)["permissions"] == granted
    assert result(talk).get("scope", "turn") == "turn"


def test_a_question_with_choices_is_answered_by_its_id():
    questions = [{"id": "q", "header": "h", "question": "Which?", "options": [{"label": "a"}, {"label": "b"}]}]
    talk, asked = asking("item/tool/requestUserInput", questions=questions)
    assert (asked.kind, asked.options) == (
        "question",
        ({"question": "Which?", "choices": ["a", "b"], "several": False},),
    )
    assert talk.protocol.answer(asked.key, answer(ALLOW, choices={"Which?": "b"}))
    assert result(talk) == {"answers": {"q": {"answers": ["b"]}}}


@pytest.mark.parametrize("mode", list(Mode))
def test_a_secret_is_not_asked_for(mode):
    questions = [{"id": "q", "header": "h", "question": "Password?", "isSecret": True}]
    talk = Talk(mode=mode).begin()
    before = len(talk.sent)
    assert talk.ask("item/tool/requestUserInput", questions=questions) == []
    assert talk.sent[before:] == ([{"id": 0, "result": {"answers": {}}}] if mode is Mode.HEADLESS else [])
    assert talk.protocol.facts() == {"requests that were not asked": ["item/tool/requestUserInput"]}


def test_a_form_of_a_tool_is_accepted_only_if_there_is_nothing_to_fill_in():
    empty, full = {"type": "object", "properties": {}}, {"type": "object", "properties": {"name": {"type": "string"}}}
    talk, asked = asking("mcpServer/elicitation/request", serverName="m", message="May I?", requestedSchema=empty)
    assert (asked.kind, asked.tool) == ("tool", "mcp:m")
    assert talk.protocol.answer(asked.key, answer(ALLOW))
    assert result(talk) == {"action": "accept", "content": {}}
    talk, asked = asking("mcpServer/elicitation/request", serverName="m", message="Who?", requestedSchema=full)
    assert asked.kind == "question"
    assert not talk.protocol.answer(asked.key, answer(ALLOW))
    assert talk.protocol.answer(asked.key, answer(DENY))
    assert result(talk) == {"action": "decline"}


@pytest.mark.parametrize("mode", list(Mode))
def test_a_request_that_is_not_known_is_declined_without_a_screen(mode):
    talk = Talk(mode=mode).begin()
    before = len(talk.sent)
    assert talk.ask("attestation/generate") == []
    sent = talk.sent[before:]
    assert bool(sent) == (mode is Mode.HEADLESS)
    assert all(each["error"]["code"] == -32601 for each in sent)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_question_that_is_left_is_for_the_screen_or_refused(mode):
    talk, asked = asking(command="ls", mode=mode)
    before = len(talk.sent)
    talk.protocol.questions.release(asked.key)
    assert [each["result"] for each in talk.sent[before:]] == (
        [{"decision": "decline"}] if mode is Mode.HEADLESS else []
    )


def test_a_question_of_a_subagent_names_it():
    talk = Talk().begin()
    (asked,) = talk.ask(threadId=OTHER, command="ls")
    assert asked.agent_ref == OTHER


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/bin/bash -lc 'echo a; b'", "echo a; b"), ("zsh -c ls", "ls"), ("/bin/bash -lc ls x", "/bin/bash -lc ls x"),
        ("python -c 'x'", "python -c 'x'"), ("bash 'open", "bash 'open"), ("/usr/bin/zsh -lc ls", "ls"),
        ("./bash -lc ls", "./bash -lc ls"), ("/w/bash -lc ls", "/w/bash -lc ls"),  # a model may choose its shell
    ],
)  # fmt: skip
def test_a_command_is_shown_as_the_model_wrote_it(line, command):
    _, asked = asking(command=line)
    assert asked.call == {"command": command}


def test_what_a_command_gets_beside_its_sandbox_belongs_to_the_call():
    more = {"network": {"enabled": True}}
    _, asked = asking(command="ls", additionalPermissions=more)
    assert asked.call == {"command": "ls", "additionalPermissions": more}
    _, asked = asking(command=None, networkApprovalContext={"host": "h", "protocol": "https"})
    assert asked.call == {"networkApprovalContext": {"host": "h", "protocol": "https"}}


# -- text that is typed into a running terminal ------------------------------------------------------------------------

# As Codex 0.169 asked.
_TYPED = json.loads((DATA / "writeStdin.json").read_text())


def typing(mode=Mode.HEADLESS, *, others=()):
    """Begin a program in a terminal; the agent wants to type into it. `others` are tool calls that are open, too."""
    talk = Talk(mode=mode).begin()
    for each in (_TYPED["itemId"], *others):
        talk.start(each, command="/bin/bash -lc 'cat > notes'", cwd="/w")
    about = {name: value for name, value in _TYPED.items() if name not in ("threadId", "turnId", "itemId")}
    (asked,) = of(Asked, talk.ask(item=_TYPED["itemId"], **about))
    return talk, asked


def close(talk):
    return talk.hear({"method": "serverRequest/resolved", "params": {"threadId": THREAD, "requestId": 0}})


def typed(talk, text="hello\nrm -rf x\n"):
    return talk.say("item/commandExecution/terminalInteraction", turnId="t1", itemId=_TYPED["itemId"], stdin=text)


def answer_of_the_model(talk):
    tokens = {"totalTokens": 10, "inputTokens": 5, "outputTokens": 5}
    return talk.say("thread/tokenUsage/updated", turnId="t1", tokenUsage={"total": tokens, "last": tokens})


def test_text_for_a_running_terminal_is_shown_as_typed_text():
    _, asked = typing()
    assert (asked.kind, asked.tool, asked.exact, asked.tool_id) == ("tool", "typed text", True, None)
    shown = {"typed": "hello\nrm -rf x\n", "terminal": "13065", "runs": "cat > notes", "launched in": "<workdir>"}
    assert asked.call == shown


@pytest.mark.parametrize(
    "line", ["write_stdin --session-id 1", "write_stdin 'open", "other --session-id 1 x", "", None]
)
def test_typed_text_in_another_form_is_not_exact(line):
    talk = Talk().begin()
    (asked,) = of(Asked, talk.ask(kind="writeStdin", command=line))
    assert (asked.tool, asked.exact, asked.call["typed"]) == ("typed text", False, line or "")


@pytest.mark.parametrize("mode", list(Mode))
def test_text_that_was_typed_was_allowed(mode):
    talk, asked = typing(mode)
    assert talk.protocol.answer(asked.key, answer(ALLOW))
    assert result(talk) == {"decision": "accept"}
    assert of(Settled, close(talk)) == []
    assert of(Settled, typed(talk)) == [Settled(key=asked.key, decision=ALLOW, by="agent")]


@pytest.mark.parametrize(("ours", "by"), [(DENY, "agent"), (ALLOW, "screen"), (None, "screen")])
def test_text_that_was_not_typed_was_refused_although_its_terminal_lives(ours, by):
    """Codex says nothing of a refusal: the model answers without that the text was typed."""
    talk, asked = typing(Mode.INTERACTIVE)
    assert ours is None or talk.protocol.answer(asked.key, answer(ours))
    assert of(Settled, close(talk)) == []
    assert of(Settled, answer_of_the_model(talk)) == [Settled(key=asked.key, decision=DENY, by=by)]
    assert talk.tick(5) == []


def test_text_in_a_terminal_that_the_agent_watches_for_long_was_allowed():
    talk, asked = typing(Mode.INTERACTIVE)
    close(talk)
    assert talk.tick(0.1) == []
    assert talk.tick(0.6) == [Settled(key=asked.key, decision=ALLOW, by="screen")]


def test_what_became_of_typed_text_is_unknown_while_another_tool_call_is_open():
    talk, asked = typing(Mode.INTERACTIVE, others=["c2"])
    close(talk)
    assert talk.tick(0.6) == [Settled(key=asked.key, decision=None, by="agent")]
    talk, asked = typing(others=["c2"])
    talk.protocol.answer(asked.key, answer(ALLOW))
    close(talk)
    assert talk.tick(0.6) == []
    assert of(Settled, typed(talk)) == [Settled(key=asked.key, decision=ALLOW, by="agent")]


def test_what_became_of_typed_text_is_unknown_where_its_terminal_is():
    talk = Talk().begin()
    (asked,) = of(Asked, talk.ask(threadId=OTHER, kind="writeStdin", command="write_stdin --session-id 7 y"))
    assert asked.call == {"typed": "y", "terminal": "7"}
    talk.protocol.answer(asked.key, answer(ALLOW))
    close(talk)
    assert talk.tick(0.6) == [Settled(key=asked.key, decision=None, by="screen")]


def test_the_end_of_a_program_is_no_answer_to_what_is_to_be_typed_into_it():
    talk, asked = typing()
    assert of(Settled, talk.end(_TYPED["itemId"])) == []
    assert talk.protocol.answer(asked.key, answer(DENY))


def test_a_command_that_a_person_must_decide_about_is_never_covered_by_an_earlier_answer():
    about = {"kind": "humanCommand", "command": "/bin/bash -lc 'make release'", "reason": "A checkpoint.", "cwd": "/w"}
    _, first = asking(approvalId="a1", **about)
    _, second = asking(approvalId="a2", **about)
    assert (first.tool, first.exact, first.tool_id) == ("human command", True, None)
    assert first.call == {"checkpoint": "make release", "reason": "A checkpoint.", "cwd": "/w", "approval": "a1"}
    assert first.call != second.call
    _, without = asking(**about | {"command": None})
    assert "command" not in without.call


def test_a_kind_of_question_that_is_not_known_is_not_exact():
    _, asked = asking(kind="robotCommand", command="ls")
    assert (asked.tool, asked.exact, asked.call["kind"]) == ("robotCommand", False, "robotCommand")
    assert "command" not in asked.call


def test_a_tool_that_was_refused_without_a_question_is_named():
    talk = Talk().begin()
    talk.start("c1", command="rm -rf /")
    talk.end("c1", "declined")
    assert of(TurnEnded, talk.end_turn())[0].refused_tools == ("shell",)


def test_a_turn_that_is_over_before_its_answer_is_not_open_again():
    """Codex sends its events and the answer to `turn/start` in any order."""
    talk = Talk()
    talk.reply({"result": {}})
    talk.reply({"result": {"thread": {"id": THREAD}}})
    talk.say("turn/started", turn={"id": "t1"})
    talk.end("m1", kind="agentMessage", text="Done.")
    (ended,) = of(TurnEnded, talk.end_turn())
    assert ended.how == WELL
    assert talk.reply({"result": {"turn": {"id": "t1"}}}) == []
    assert talk.say("turn/started", turn={"id": "t1"}) == []
    assert talk.protocol.is_ready
    assert talk.protocol.go_on(ended.turn, "again")


def test_a_prompt_whose_turn_was_over_before_its_answer_was_not_heard_is_interrupted():
    talk = Talk().begin()
    talk.end_turn()
    talk.protocol.say("more")
    talk.say("turn/started", turn={"id": "t2"})
    talk.say("item/started", item={"id": "u", "type": "userMessage", "content": [{"type": "text", "text": "mine"}]})
    talk.end_turn(turn="t2")
    (ended,) = of(TurnEnded, talk.reply({"result": {"turn": {"id": "t2"}}}))
    assert (ended.how, ended.why) == (INTERRUPTED, "another turn was open")


@pytest.mark.parametrize(
    ("method", "about"),
    [
        ("item/tool/requestUserInput", {"questions": [{"question": "Which?"}, 7]}),
        ("item/permissions/requestApproval", {}),
    ],
)
def test_an_answer_that_has_no_place_in_a_question_is_not_given(method, about):
    talk, asked = asking(method, **about)
    assert not talk.protocol.answer(asked.key, answer(ALLOW, choices={"Which?": "b"}))
    assert talk.protocol.answer(asked.key, answer(DENY))


@pytest.mark.parametrize("mode", list(Mode))
def test_a_question_of_another_shape_is_declined_without_a_screen(mode):
    talk = Talk(mode=mode).begin()
    talk.start("c1", kind="fileChange", changes=7)
    before = len(talk.sent)
    assert talk.ask("item/fileChange/requestApproval") == []
    declined = [{"id": 0, "result": {"decision": "decline"}}]
    assert talk.sent[before:] == (declined if mode is Mode.HEADLESS else [])
