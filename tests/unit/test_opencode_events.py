"""What each event of opencode's server means. The events are recorded from 1.18.33."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton.channels.opencode_events import OpencodeEvents, describe_error
from baton.core.request import Answer
from baton.core.signal import (
    ALLOW,
    BACKGROUND,
    DENY,
    FAILED,
    INTERRUPTED,
    PROMPT,
    WELL,
    Asked,
    BackgroundWork,
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
from support.clock import FakeClock

DATA = Path(__file__).parents[1] / "data" / "opencode"
SESSION = "ses_aaaaaaaa"
NO_CONNECTION = "Cannot connect to API: Unable to connect. Is the computer able to access the url?"


class Session:
    """A session whose server is the test."""

    def __init__(self, session=SESSION, before=()) -> None:
        self.clock = FakeClock()
        self.shown: list[str] = []
        self.events = OpencodeEvents(session, self.clock, before=set(before), show=self.shown.append)

    def hear(self, *events):
        return [signal for event in events for signal in self.events.read(event)]

    def say(self, kind, **about):
        return self.events.read({"type": kind, "properties": {"sessionID": SESSION, **about}})

    def user(self, message, text, **part):
        info = {"id": message, "role": "user", "sessionID": SESSION}
        found = self.say("message.updated", info=info)
        about = {"id": f"p-{message}", "messageID": message, "sessionID": SESSION, "type": "text", "text": text}
        return found + self.say("message.part.updated", part=about | part)

    def model(self, message, parent, **about):
        info = {"id": message, "role": "assistant", "sessionID": SESSION, "parentID": parent}
        return self.say("message.updated", info=info | about)

    def tool(self, call, status, session=SESSION, tool="bash", message="m", **state):
        about = {
            "id": f"p-{message}-{call}",
            "messageID": message,
            "sessionID": session,
            "type": "tool",
            "tool": tool,
            "callID": call,
        }
        return self.say("message.part.updated", part=about | {"state": {"status": status} | state})

    def status(self, kind, **about):
        return self.say("session.status", status={"type": kind} | about)

    def prompt(self, message="u1", text="do it"):
        """Begin a turn."""
        return self.user(message, text) + self.status("busy")


def recorded(name):
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def replay(name, hold_back=()):
    events = recorded(name)
    session = Session(events[0]["properties"]["sessionID"])
    return session, session.hear(*(each for each in events if each["type"] not in hold_back))


def ends(signals):
    return [(each.how, each.why) for each in signals if isinstance(each, TurnEnded)]


def only(signals, kind):
    return [each for each in signals if isinstance(each, kind)]


@pytest.fixture
def session():
    return Session()


# -- recorded ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("allowed", (WELL, "")),
        ("denied", (WELL, "")),
        ("refused-at-the-screen", (INTERRUPTED, "bash was refused at opencode's own screen")),
        ("interrupted", (INTERRUPTED, "it was interrupted")),
        ("aborted-while-asking", (INTERRUPTED, "it was interrupted")),
        ("dead-service", (INTERRUPTED, f"it was interrupted while the model service failed: {NO_CONNECTION}")),
        ("wrong-key", (FAILED, "the model service answered 401: stub: invalid api key")),
    ],
)
def test_a_recorded_turn_ends_once_and_as_it_did(name, how):
    _, heard = replay(name)
    assert ends(heard) == [how]
    (began,) = only(heard, TurnStarted)
    (ended,) = only(heard, TurnEnded)
    assert began.turn == ended.turn != ""
    assert began.prompt.startswith(("RUN", "line one", "NORUN"))
    assert heard.index(began) < heard.index(ended)
    open_tools = {each.tool_id for each in only(heard, ToolStarted)} - {each.tool_id for each in only(heard, ToolEnded)}
    assert not open_tools
    assert {each.key for each in only(heard, Asked)} == {each.key for each in only(heard, Settled)}


def test_a_permission_is_asked_with_the_exact_call_and_settled_by_the_reply():
    session, heard = replay("allowed")
    (asked,), (settled,) = only(heard, Asked), only(heard, Settled)
    assert (asked.tool, asked.exact, asked.kind) == ("bash", True, "tool")
    assert asked.call["command"] == "env | grep OPENCODE > envs.txt; echo hi"
    assert (settled.key, settled.decision, settled.by) == (asked.key, ALLOW, "user_temporary")
    assert only(heard, TurnEnded)[0].message == "STUB-FINAL: the command ran."
    assert [(each.input_tokens, each.output_tokens) for each in only(heard, Usage)] == [(10, 5), (10, 5)]
    assert "STUB-FINAL: the command ran.\n" in session.shown


def test_a_question_that_comes_before_its_call_is_asked_after_it():
    _, heard = replay("refused-at-the-screen")
    (asked,), (tool,), (settled,) = only(heard, Asked), only(heard, ToolStarted), only(heard, Settled)
    assert (asked.tool_id, asked.exact) == (tool.tool_id, True)
    assert heard.index(tool) < heard.index(asked) < heard.index(settled)
    assert (settled.decision, settled.by) == (DENY, "user_reject")


def test_a_dead_service_is_tried_again_with_its_reason():
    _, heard = replay("dead-service")
    assert [each.number for each in only(heard, Retrying)] == [1, 2]
    assert only(heard, Retrying)[0].why.startswith("Cannot connect to API")


@pytest.mark.parametrize("name", [path.stem for path in sorted(DATA.glob("*.jsonl"))])
def test_without_any_one_kind_of_event_no_turn_that_failed_ends_well(name):
    good = ends(replay(name)[1])[0][0] == WELL
    for kind in {each["type"] for each in recorded(name)}:
        _, heard = replay(name, hold_back={kind})
        assert good or WELL not in [how for how, _ in ends(heard)], kind


@pytest.mark.parametrize("name", [path.stem for path in sorted(DATA.glob("*.jsonl"))])
def test_what_is_heard_twice_changes_nothing(name):
    events = recorded(name)
    session = Session(events[0]["properties"]["sessionID"])
    session.hear(*events)
    again = session.hear(*events)
    assert not only(again, (TurnStarted, TurnEnded, ToolStarted, Asked, Settled))


# -- turns -------------------------------------------------------------------------------------------------------------


def test_idle_without_an_answer_of_the_model_is_no_success(session):
    session.prompt()
    assert session.status("idle") == []  # its error may come a moment later
    session.clock.advance(1.1)
    assert ends(session.events.tick()) == [
        (FAILED, "opencode ended its turn without an answer of the model (finish: none)")
    ]


def test_the_error_of_a_turn_that_could_not_begin_comes_after_its_end(session):
    session.prompt()
    session.status("idle")
    late = session.say("session.error", error={"name": "UnknownError", "data": {"message": "no such model"}})
    assert ends(late) == [(FAILED, "no such model")]


@pytest.mark.parametrize(
    ("finish", "how"), [("stop", WELL), ("length", FAILED), ("tool-calls", FAILED), ("unknown", FAILED), (None, FAILED)]
)
def test_only_a_complete_answer_is_a_good_end(session, finish, how):
    session.prompt()
    session.model("m1", "u1", finish=finish)
    assert [each for each, _ in ends(session.status("idle"))] == [how]


def test_an_error_is_not_forgotten_at_idle(session):
    session.prompt()
    session.model("m1", "u1", finish="stop")
    session.say("session.error", error={"name": "APIError", "data": {"message": "gone", "statusCode": 500}})
    assert ends(session.status("idle")) == [(FAILED, "the model service answered 500: gone")]


@pytest.mark.parametrize("error", [{"error": None}, {"error": {}}, {"error": "quota"}, {}])
@pytest.mark.parametrize("place", ["event", "message"])
def test_an_error_of_an_unknown_shape_is_an_error(session, place, error):
    session.prompt()
    if place == "event":
        session.say("session.error", **error)
    session.model("a1", "u1", finish="stop", **error if place == "message" else {})
    is_error = place == "event" or bool(error.get("error"))
    assert [how for how, _ in ends(session.say("session.idle"))] == [FAILED if is_error else WELL]


def test_a_full_context_that_opencode_made_room_in_is_no_error(session):
    session.prompt()
    session.model("m1", "u1")
    session.say("session.error", error={"name": "ContextOverflowError", "data": {"message": "too long"}})
    session.user("u2", "What did we do so far?", synthetic=True)
    session.model("m2", "u2", summary=True, finish="stop")
    session.user("u3", "Continue.", synthetic=True)
    heard = session.model("m3", "u3", finish="stop") + session.status("idle")
    assert not only(heard, TurnStarted)
    assert ends(heard) == [(WELL, "")]


def test_a_summary_of_the_conversation_is_no_answer(session):
    session.prompt()
    session.model("m1", "u1", summary=True, finish="stop")
    session.status("idle")
    session.clock.advance(2)
    assert ends(session.events.tick())[0][0] == FAILED


def test_the_answer_of_an_earlier_turn_is_not_taken_for_that_of_the_next(session):
    session.prompt()
    session.model("m1", "u1", finish="stop")
    session.status("idle")
    session.prompt("u2", "another")
    session.model("m1", "u1", finish="stop")
    session.status("idle")
    session.clock.advance(2)
    assert ends(session.events.tick())[0][0] == FAILED


def test_a_prompt_in_the_middle_of_a_turn_makes_it_a_turn_for_both(session):
    session.prompt("u1", "This is job 1")
    session.model("m1", "u1", finish="tool-calls")
    session.user("u2", "and hurry")
    (began,) = session.model("m2", "u2")
    assert (began.turn, began.prompt) == ("u2", "This is job 1\nand hurry")
    session.model("m2", "u2", finish="stop")
    (ended,) = session.status("idle")
    assert (ended.turn, ended.how) == ("u2", WELL)


def test_a_prompt_after_the_answer_begins_a_turn_of_its_own(session):
    session.prompt("u1", "This is job 1")
    session.model("m1", "u1", finish="stop")
    session.user("u2", "and now?")
    ended, began = session.model("m2", "u2")
    assert (ended.turn, ended.how) == ("u1", WELL)
    assert (began.turn, began.prompt) == ("u2", "and now?")


def test_a_prompt_that_is_sent_back_continues_the_turn(session):
    session.prompt()
    session.model("m1", "u1", finish="stop")
    session.status("idle")
    session.events.sent = session.events.sent_back = "out.txt is missing"
    assert session.prompt("u2", "out.txt is missing") == []
    session.model("m2", "u2", finish="stop")
    (ended,) = session.status("idle")
    assert (ended.turn, ended.how) == ("u1", WELL)


def test_a_prompt_that_opencode_refuses_is_a_turn_that_failed(session):
    session.events.sent = "do it"
    began, ended = session.say("session.error", error={"name": "UnknownError", "data": {"message": "no agent"}})
    assert (began.prompt, ended.how, ended.why, ended.turn) == ("do it", FAILED, "no agent", began.turn)


def test_messages_of_an_earlier_run_begin_no_turn():
    session = Session(before={"u1", "m1"})
    assert session.user("u1", "old") == []
    assert session.model("m1", "u1", finish="stop") == []
    assert session.status("busy") == []


def test_other_sessions_are_not_the_jobs(session):
    for kind in ("session.idle", "session.error", "session.status"):
        about = {"sessionID": "ses_other", "error": {"name": "X"}, "status": {"type": "busy"}}
        assert session.events.read({"type": kind, "properties": about}) == []
    session.prompt()
    session.model("m1", "u1", finish="stop")
    assert session.events.read({"type": "session.idle", "properties": {"sessionID": "ses_other"}}) == []


def test_a_tool_that_the_configuration_denies_is_named(session):
    session.prompt()
    session.tool("c", "running", input={"command": "ls"})
    why = "The user has specified a rule which prevents you from using this specific tool call."
    session.tool("c", "error", input={"command": "ls"}, error=why)
    session.model("m1", "u1", finish="stop")
    (ended,) = session.status("idle")
    assert (ended.how, ended.refused_tools) == (WELL, ("bash",))


@pytest.mark.parametrize(("tool", "refused"), [("bash", ("bash",)), ("imagined", ())])
def test_a_tool_that_is_not_offered_because_it_is_denied_is_named(session, tool, refused):
    session.prompt()
    given = {"tool": tool, "error": f"Model tried to call unavailable tool '{tool}'. Available tools: read."}
    session.tool("c", "completed", tool="invalid", input=given)
    session.model("m1", "u1", finish="stop")
    (ended,) = session.status("idle")
    assert (ended.how, ended.refused_tools) == (WELL, refused)


def test_a_limit_with_a_time_is_a_limit(session):
    session.prompt()
    until_ms = session.clock.wall_ns() // 10**6 + 3_600_000
    (found,) = session.status("retry", attempt=1, message="Usage limit reached", next=until_ms)
    assert found == Limited(until_ns=until_ms * 10**6, why="Usage limit reached")
    (found,) = session.status("retry", attempt=2, message="Usage limit reached", next=0)
    assert found == Retrying(number=2, most=0, why="Usage limit reached")


# -- subagents ---------------------------------------------------------------------------------------------------------


def test_a_subagent_is_no_turn_but_its_calls_questions_and_costs_count(session):
    session.prompt()
    session.tool("task", "running", tool="task", input={"description": "look"})
    child = "ses_bbbbbbbb"
    session.events.read({"type": "session.created", "properties": {"info": {"id": child, "parentID": SESSION}}})
    about = {"id": "x", "role": "user", "sessionID": child}
    assert session.events.read({"type": "message.updated", "properties": {"info": about}}) == []
    (tool,) = session.tool("c2", "running", session=child, input={"command": "rm x"})
    assert (tool.agent_ref, tool.turn) == (child, "u1")
    permission = {"id": "per_1", "sessionID": child, "permission": "bash", "tool": {"messageID": "m", "callID": "c2"}}
    (asked,) = session.events.read({"type": "permission.asked", "properties": permission})
    assert (asked.agent_ref, asked.call, asked.exact) == (child, {"command": "rm x"}, True)
    part = {
        "type": "step-finish",
        "id": "p",
        "messageID": "x",
        "sessionID": child,
        "tokens": {"output": 3},
        "cost": 0.5,
    }
    (usage,) = session.events.read({"type": "message.part.updated", "properties": {"part": part}})
    assert (usage.output_tokens, usage.cost_usd, usage.of_turn) == (3, 0.5, False)
    heard = session.events.read({"type": "session.idle", "properties": {"sessionID": child}})
    assert [type(each) for each in heard] == [Settled, ToolEnded]


def test_a_subagent_in_the_background_outlives_the_turn(session):
    session.prompt()
    session.tool("task", "running", tool="task", input={})
    child = "ses_bbbbbbbb"
    session.events.read({"type": "session.created", "properties": {"info": {"id": child, "parentID": SESSION}}})
    about = {"background": True, "sessionId": child}
    heard = session.tool("task", "completed", tool="task", input={}, metadata=about, title="look around")
    (work,) = only(heard, BackgroundWork)
    assert [(each.task_id, each.kind, each.what) for each in work.tasks] == [(child, "subagent", "look around")]
    session.model("m1", "u1", finish="stop")
    session.status("idle")
    (work,) = session.events.read({"type": "session.idle", "properties": {"sessionID": child}})
    assert work.tasks == ()
    (began,) = session.user("u2", f'<task id="{child}" state="completed">', synthetic=True) + session.status("busy")
    assert began.origin == BACKGROUND
    assert child in began.prompt


# -- questions ---------------------------------------------------------------------------------------------------------


def permission(key="per_1", call="c", **about):
    tool = {"tool": {"messageID": "m", "callID": call}} if call else {}
    return (
        {"id": key, "sessionID": SESSION, "permission": "bash", "metadata": {"command": "ls"}, "patterns": ["ls"]}
        | tool
        | about
    )


def test_a_question_whose_call_stays_unknown_is_not_exact(session):
    session.prompt()
    assert session.say("permission.asked", **permission()) == []
    session.clock.advance(1.1)
    (asked,) = session.events.tick()
    assert (asked.exact, asked.call["command"], asked.tool_id) == (False, "ls", None)
    assert session.events.tick() == []


def test_a_permission_for_other_arguments_than_those_of_its_call_is_not_exact(session):
    session.prompt()
    session.tool("c1", "running", input={"command": "ls"})
    asked = {"id": "per_1", "permission": "bash", "metadata": {"command": "rm -rf x"}}
    (asked,) = only(session.say("permission.asked", **asked, tool={"messageID": "m", "callID": "c1"}), Asked)
    assert (asked.exact, asked.call["command"], asked.call["input"]) == (False, "rm -rf x", {"command": "ls"})


def test_ids_of_calls_that_a_model_service_repeats_are_ids_of_other_calls(session):
    """Some services number the calls of each answer from 0."""
    session.prompt()
    started = []
    for message, command in (("m1", "ls"), ("m2", "rm x")):
        started += only(session.tool("c0", "running", message=message, input={"command": command}), ToolStarted)
        about = {"id": f"per_{message}", "permission": "bash", "tool": {"messageID": message, "callID": "c0"}}
        (asked,) = only(session.say("permission.asked", **about), Asked)
        assert (asked.call, asked.tool_id) == ({"command": command}, started[-1].tool_id)
        ended = only(session.tool("c0", "completed", message=message, input={"command": command}), ToolEnded)
        assert [each.tool_id for each in ended] == [asked.tool_id]
    assert len({each.tool_id for each in started}) == 2


def test_a_permission_for_what_a_call_touches_is_another_call(session):
    session.prompt()
    session.tool("c", "running", input={"command": "ls /etc"})
    (first,) = session.say("permission.asked", **permission("per_1"))
    (besides,) = session.say("permission.asked", **permission("per_2", permission="external_directory"))
    assert first.call != besides.call
    assert (besides.tool, besides.call["input"]) == ("external_directory", {"command": "ls /etc"})


def test_after_a_lost_connection_nothing_is_asked_twice_and_nothing_is_lost(session):
    session.prompt()
    session.tool("c", "running", input={"command": "ls"})
    session.say("permission.asked", **permission("per_1"))
    session.tool("d", "running", input={"command": "pwd"})
    listed = [permission("per_1"), permission("per_2", call="d")]
    heard = session.events.compare([], {SESSION: {"type": "busy"}}, listed, [])
    assert [each.key for each in heard] == ["per_2"]
    heard = session.events.compare([], {SESSION: {"type": "busy"}}, listed[1:], [])
    assert [(each.key, each.decision) for each in heard] == [("per_1", None)]
    assert session.events.compare([], {SESSION: {"type": "busy"}}, listed, []) == []


def test_a_turn_that_ended_while_nobody_listened_has_ended(session):
    session.prompt()
    message = {"info": {"id": "m1", "role": "assistant", "sessionID": SESSION, "parentID": "u1", "finish": "stop"}}
    text = {"id": "p", "messageID": "m1", "sessionID": SESSION, "type": "text", "text": "Done.", "time": {"end": 1}}
    heard = session.events.compare([message | {"parts": [text]}], {}, [permission()], [])
    assert ends(heard) == [(WELL, "")]
    assert only(heard, TurnEnded)[0].message == "Done."
    assert not only(heard, Asked)  # opencode lists what an interrupted call has asked


def test_a_whole_turn_that_nobody_heard_is_heard_afterwards(session):
    session.events.sent = "do it"
    user = {"info": {"id": "u1", "role": "user", "sessionID": SESSION}}
    text = {"id": "p", "messageID": "u1", "sessionID": SESSION, "type": "text", "text": "do it"}
    error = {"name": "APIError", "data": {"message": "no", "statusCode": 401}}
    answer = {"info": {"id": "m1", "role": "assistant", "sessionID": SESSION, "parentID": "u1", "error": error}}
    heard = session.events.compare([user | {"parts": [text]}, answer], {}, [], [])
    assert [type(each) for each in heard] == [TurnStarted, TurnEnded]
    assert (heard[0].prompt, heard[0].origin, heard[1].how) == ("do it", PROMPT, FAILED)


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        (ALLOW, ("/permission/per_1/reply", {"reply": "once"})),
        (DENY, ("/permission/per_1/reply", {"reply": "reject", "message": "no"})),
    ],
)
def test_a_permission_is_given_once_and_never_for_more(session, answer, reply):
    session.prompt()
    session.tool("c", "running", input={"command": "ls"})
    session.say("permission.asked", **permission())
    question = session.events.questions.take("per_1", answer)
    assert question.reply(Answer(answer=answer, by="me", via="cli", reason="no", scope="job")) == reply
    assert session.events.questions.take("per_1", answer) is None
    replied = session.say("permission.replied", requestID="per_1", reply=reply[1]["reply"])
    assert [(each.key, each.decision) for each in replied] == [("per_1", answer)]


def test_choices_are_answered_as_lists(session):
    session.prompt()
    options = [{"label": "A"}, {"label": "B, C"}, {"label": "D"}]
    questions = [{"question": "one", "options": options}, {"question": "more", "options": options, "multiple": True}]
    (asked,) = session.say("question.asked", id="que_1", questions=questions)
    assert [each["several"] for each in asked.options] == [False, True]
    question = session.events.questions.take("que_1", ALLOW)
    given = Answer(answer=ALLOW, by="me", via="cli", choices={"one": "B, C", "more": "A, D"})
    assert question.reply(given) == ("/question/que_1/reply", {"answers": [["B, C"], ["A", "D"]]})
    assert question.reply(given.replace(answer=DENY)) == ("/question/que_1/reject", None)


# -- the end of the server, and other shapes -----------------------------------------------------------------------------


def test_the_end_of_the_server_fails_the_open_turn_and_closes_its_questions(session):
    session.prompt()
    session.tool("c", "running", input={"command": "ls"})
    session.say("permission.asked", **permission())
    settled, ended = session.events.lose("killed")
    assert (settled.key, settled.decision) == ("per_1", None)
    assert (ended.turn, ended.how, ended.why) == ("u1", FAILED, "killed")


def test_the_end_of_the_server_after_a_good_turn_leaves_that_as_it_is(session):
    session.prompt()
    session.model("m1", "u1", finish="stop")
    session.status("idle")
    assert session.events.lose("killed") == [Said(text="killed", is_work=False)]


def test_the_end_of_the_server_before_the_turn_fails_the_prompt(session):
    session.events.sent = "do it"
    began, ended = session.events.lose("killed")
    assert (began.prompt, ended.turn, ended.how) == ("do it", began.turn, FAILED)


@pytest.mark.parametrize(
    "about",
    [None, [], "x", {}, {"info": None}, {"info": {"id": 1}}, {"part": 3}, {"status": "busy", "sessionID": SESSION},
     {"part": {"type": "tool", "sessionID": SESSION, "messageID": "m", "callID": "c", "state": None}}],
)  # fmt: skip
def test_an_unexpected_shape_means_nothing(session, about):
    kinds = ("message.updated", "message.part.updated", "session.status", "session.idle", "session.error")
    for kind in (
        *kinds,
        "permission.asked",
        "permission.replied",
        "question.asked",
        "session.created",
        "unknown",
        None,
    ):
        assert session.events.read({"type": kind, "properties": about}) == []


@pytest.mark.parametrize(
    ("error", "text"),
    [({"name": "X"}, "X"), ({}, "an error"), ({"name": "X", "data": "y"}, "X"), ({"data": {"message": "m"}}, "m")],
)
def test_an_error_is_described_by_what_it_says(error, text):
    assert describe_error(error) == text


def test_a_session_that_is_busy_again_is_not_over(session):
    """An "idle" of the turn before may come after the prompt."""
    session.prompt()
    session.status("idle")
    session.status("busy")
    session.model("m1", "u1")
    session.clock.advance(5)
    assert session.events.tick() == []
    session.model("m1", "u1", finish="stop")
    assert ends(session.status("idle")) == [(WELL, "")]


def test_a_subagent_is_known_by_the_call_that_started_it(session):
    """The event of its beginning may be lost with the connection."""
    session.prompt()
    session.model("m1", "u1")
    session.tool("c1", "running", tool="task", input={"prompt": "look"}, metadata={"sessionId": "ses_child"})
    asked = {"id": "per_1", "sessionID": "ses_child", "permission": "bash", "patterns": ["ls"], "metadata": {}}
    (found,) = only(session.hear({"type": "permission.asked", "properties": asked}), Asked)
    assert found.agent_ref == "ses_child"
