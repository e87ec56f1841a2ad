"""What Copilot's log and hooks mean on the terminal. tests/data/copilot has what the real program wrote."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from baton.adapters.contract import Mode, Task
from baton.adapters.copilot import Copilot
from baton.channels.copilot_plugin import CopilotPlugin, hooks_file, only_reads
from baton.channels.find import find_channel
from baton.channels.forward import forward
from baton.core.activity import DONE, FAILED, OPEN, Limits, verdict
from baton.core.errors import AgentUnusable
from baton.core.facts import Facts
from baton.core.fold import fold
from baton.core.request import Answer
from support.waiting import poll

EVENTS = json.loads((Path(__file__).parents[1] / "data" / "copilot" / "events.json").read_text())
CONVERSATION = "0cb916db-26aa-40f2-86b5-1ba81b225fd2"
ALLOW = Answer(answer="allow", by="user", via="cli")
DENY = Answer(answer="deny", by="user", via="cli", reason="not today")
_HOOKS = ("permissionRequest", "agentStop")


class Program:
    """A channel, and a stand-in for the program that talks to it."""

    def __init__(self, folder, **environment):
        self.home, self.session, self.work = folder / "home", folder / "session", folder / "work"
        self.log = self.home / ".copilot" / "session-state" / CONVERSATION / "events.jsonl"
        for each in (self.session, self.work, self.log.parent):
            each.mkdir(parents=True)
        self.heard, self.answers, self._threads = [], [], []
        self.channel = CopilotPlugin(Copilot(), self.task(environment={"HOME": str(self.home), **environment}))
        self.setup = self.channel.open(self.heard.append)
        self.heard.clear()

    def task(self, **changes):
        given = {
            "mode": Mode.INTERACTIVE, "prompt": "go", "conversation_id": CONVERSATION, "resume": False, "yolo": False,
            "folder": str(self.session), "workdir": str(self.work), "hook": ["baton-hook", "a b"],
        }  # fmt: skip
        return Task(**given | changes)

    def close(self):
        self.channel.close()
        for each in self._threads:
            each.join(5)

    def write(self, *events):
        with self.log.open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)

    def hook(self, message, session=CONVERSATION):
        """Run a hook; its answer will be in `answers`."""
        body = json.dumps(message | {"sessionId": session}).encode()
        thread = threading.Thread(target=lambda: self.answers.append(forward(str(self.session), body)))
        thread.start()
        self._threads.append(thread)

    def play(self, name):
        """Write the events of a recorded run. Send each hook of which they tell, and yield its name once it is heard:
        it waits for an answer."""
        for event in EVENTS[name]:
            self.write(event)
            kind = event["data"].get("hookType") if event["type"] == "hook.start" else None
            if kind in _HOOKS and "agentId" not in event:
                before = len(self.signals("Asked", "TurnEnded"))
                self.hook(event["data"]["input"])
                assert self.until(lambda: len(self.signals("Asked", "TurnEnded")) > before)  # noqa: B023
                yield kind

    def signals(self, *kinds):
        return [each.signal for each in self.heard if type(each.signal).__name__ in kinds]

    def until(self, look):
        return poll(look, 5, interval_sec=0.01)

    def let_end(self):
        self.channel.end_turn(self.signals("TurnEnded")[-1].turn, None)

    def verdict(self):
        """Return what becomes of a job with the first prompt, by all that was heard."""
        facts = Facts.of_job(self.signals("TurnStarted")[0].prompt, self.heard[0].at_ns)
        for each in self.heard:
            facts = fold(facts, each)
        return verdict(facts, now_ns=self.heard[-1].at_ns + 20 * 10**9, limits=Limits(idle_sec=120))


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    program.close()


def test_the_plugin_is_written_into_the_folder_of_the_session(program):
    hooks = json.loads(program.setup.files["copilot-plugin/hooks.json"])["hooks"]
    assert set(hooks) == {"permissionRequest", "agentStop", "sessionStart", "errorOccurred"}
    assert hooks["agentStop"][0]["bash"] == "baton-hook 'a b'"
    assert json.loads(program.setup.files["copilot-plugin/plugin.json"])["hooks"] == "hooks.json"
    argv = Copilot().launch(program.task()).argv
    assert argv[1:] == ["--plugin-dir", f"{program.session}/copilot-plugin", f"--session-id={CONVERSATION}",
                        "--interactive=go"]  # fmt: skip


def test_it_does_not_ask_where_all_is_allowed(program):
    assert "permissionRequest" not in json.loads(hooks_file(["x"], asks=False))["hooks"]
    assert "--yolo" in Copilot().launch(program.task(yolo=True)).argv


def test_it_does_not_ask_where_the_user_has_allowed_all_in_the_environment(tmp_path):
    """Copilot runs the hook all the same."""
    program = Program(tmp_path, COPILOT_ALLOW_ALL="1")
    hooks = json.loads(program.setup.files["copilot-plugin/hooks.json"])["hooks"]
    program.close()
    assert "permissionRequest" not in hooks


@pytest.mark.parametrize(("answer", "reply"), [(ALLOW, {"behavior": "allow"}),
                                               (DENY, {"behavior": "deny", "message": "not today"})])  # fmt: skip
def test_an_answer_reaches_the_hook_once(program, answer, reply):
    next(program.play("background_shell"))
    asked = program.signals("Asked")[0]
    assert (asked.tool, asked.call["mode"], asked.exact) == (
        "bash",
        "async",
        True,
    )  # the whole call, not the hook's part
    assert program.channel.answer(asked.key, answer)
    assert not program.channel.answer(asked.key, answer)
    assert program.until(lambda: program.answers)
    assert json.loads(program.answers[0]) == reply


@pytest.mark.parametrize("calls", [[], [{"path": "a", "new_str": "x"}, {"path": "a", "new_str": "y"}]])
def test_a_call_that_a_hook_does_not_name_whole_is_not_exact(program, calls):
    """The hook has a part of the arguments: which call it is about, the log does not say, or says of several."""
    program.write({"type": "user.message", "data": {"content": "go", "interactionId": "i"}})
    for number, arguments in enumerate(calls):
        about = {"toolCallId": f"c{number}", "toolName": "edit", "arguments": arguments}
        program.write({"type": "tool.execution_start", "data": about})
    program.hook({"hookName": "permissionRequest", "toolName": "edit", "toolInput": {"path": "a"}, "timestamp": 1})
    assert program.until(lambda: program.signals("Asked"))
    (asked,) = program.signals("Asked")
    assert (asked.call, asked.exact) == ({"path": "a"}, False)
    program.channel.release(asked.key)


def test_what_became_of_an_answer_is_known(program):
    for hook in program.play("background_shell"):
        if hook == "permissionRequest":
            program.channel.answer(program.signals("Asked")[0].key, ALLOW)
        else:
            program.let_end()
    settled = program.signals("Settled")
    assert [(each.key, each.decision) for each in settled] == [(program.signals("Asked")[0].key, "allow")]


def test_a_released_question_is_decided_on_the_screen(program):
    for _ in program.play("dialog_refused"):
        program.channel.release(program.signals("Asked")[0].key)
        assert program.until(lambda: program.answers == [b""])
        assert not program.channel.answer(program.signals("Asked")[0].key, ALLOW)
    assert program.until(lambda: program.signals("TurnEnded"))
    assert len(program.signals("Asked")) == 1
    assert [(each.decision, each.by) for each in program.signals("Settled")] == [("deny", "cancelled")]
    assert program.signals("TurnEnded")[0].how == "interrupted"
    assert program.verdict().outcome == OPEN


@pytest.mark.parametrize("run", ["hook_waits_interrupted", "interrupted_in_tool"])
def test_the_end_of_a_part_is_not_the_end_of_the_turn(program, run):
    for _ in program.play(run):
        pass
    assert program.until(lambda: program.signals("TurnEnded"))
    assert [each.how for each in program.signals("TurnEnded")] == ["interrupted"]
    assert program.signals("Settled")
    assert [each.ok for each in program.signals("ToolEnded")] == [False]
    assert program.verdict().outcome == OPEN


def test_background_work_keeps_the_job_open_until_the_turn_about_its_end(program):
    play = program.play("background_shell")
    next(play)
    program.channel.answer(program.signals("Asked")[0].key, ALLOW)
    assert next(play) == "agentStop"
    assert program.verdict().outcome == OPEN
    program.let_end()
    assert next(play) == "agentStop"
    assert [each.origin for each in program.signals("TurnStarted")] == ["prompt", "background"]
    found = program.verdict()
    assert (found.outcome, found.message) == (DONE, "It is over.")


def test_a_subagent_in_the_background_keeps_the_job_open(program):
    ends = 0
    for hook in program.play("background_subagent"):
        if hook == "agentStop":
            ends += 1
            assert (program.verdict().outcome, ends) in ((OPEN, 1), (DONE, 2))
            program.let_end()
        else:
            program.channel.answer(program.signals("Asked")[-1].key, ALLOW)
    assert ends == 2
    assert [each.how for each in program.signals("TurnEnded")] == ["well", "well"]
    assert program.signals("Asked")[0].call == {"command": "echo sub > sub.txt"}


def test_the_calls_and_the_last_message_are_the_output_of_the_job(program):
    for hook in program.play("background_shell"):
        if hook == "permissionRequest":
            program.channel.answer(program.signals("Asked")[-1].key, ALLOW)
        else:
            program.let_end()
    lines = program.channel.take_text().splitlines()
    assert [line.split(":")[0] for line in lines] == ["bash", "Started it.", "read_bash", "It is over."]
    assert program.channel.take_text() == ""


def test_a_turn_that_is_sent_back_goes_on(program):
    ends = []
    for hook in program.play("denied_and_sent_back"):
        if hook == "permissionRequest":
            program.channel.answer(program.signals("Asked")[-1].key, DENY)
        else:
            ends.append(program.signals("TurnEnded")[-1])
            text = "RUN[echo f > f.txt] go on please" if len(ends) == 1 else None
            assert program.channel.end_turn(ends[-1].turn, text)
    assert len(program.signals("TurnStarted")) == 1
    assert ends[0].turn == ends[1].turn
    assert program.until(lambda: len(program.answers) == 4)
    sent_back = {"decision": "block", "reason": "RUN[echo f > f.txt] go on please"}
    assert sent_back in [json.loads(each) for each in program.answers if each]  # one lets the turn end


@pytest.mark.parametrize(("run", "word", "tries"), [("unauthorized", "HTTP 401", 3), ("dead", "Could not connect", 6)])
def test_a_service_that_fails_is_an_error_with_the_reason(program, run, word, tries):
    assert list(program.play(run)) == []
    assert program.until(lambda: program.signals("TurnEnded"))
    assert [each.number for each in program.signals("Retrying")] == list(range(1, tries + 1))
    found = program.verdict()
    assert (found.outcome, word in found.why) == (FAILED, True)


def test_what_is_typed_meanwhile_belongs_to_the_turn(program):
    for hook in program.play("steered"):
        if hook == "agentStop":
            break
        program.channel.answer(program.signals("Asked")[-1].key, ALLOW)
    assert [each.prompt for each in program.signals("TurnStarted")] == ["go 3"]


def test_a_conversation_that_was_cleared_is_over(program):
    for _ in program.play("cleared"):
        program.channel.answer(program.signals("Asked")[-1].key, ALLOW)
    assert program.until(lambda: program.signals("Conversation"))
    assert [(each.conversation_id, each.ended) for each in program.signals("Conversation")] == [(CONVERSATION, "clear")]
    found = program.verdict()
    assert (found.outcome, "/clear" in found.why) == (FAILED, True)


def test_hooks_of_another_conversation_mean_nothing(program):
    run = next(event for event in EVENTS["background_shell"] if event["type"] == "hook.start")
    program.hook(run["data"]["input"], session="1cb916db-26aa-40f2-86b5-1ba81b225fd2")
    assert program.until(lambda: program.answers == [b""])
    assert program.signals("Asked", "Conversation") == []


def test_a_question_without_a_hook_is_only_shown(program):
    program.write(
        *[event for event in EVENTS["dialog_refused"] if not event["type"].startswith(("hook", "permission.c"))][:6]
    )
    assert program.until(lambda: program.signals("Asked"))
    assert not program.channel.answer(program.signals("Asked")[0].key, ALLOW)


def test_a_question_with_choices_is_shown(program):
    call = {"message": "Which?", "requestedSchema": {"properties": {"c": {"type": "string", "enum": ["a", "b"]}}}}
    program.write(
        EVENTS["steered"][0],
        {"type": "tool.execution_start", "data": {"toolCallId": "t", "toolName": "ask_user", "arguments": call}},
    )
    assert program.until(lambda: program.signals("Asked"))
    asked = program.signals("Asked")[0]
    assert (asked.kind, dict(asked.options[0])) == (
        "question",
        {"question": "Which?", "choices": ["a", "b"], "several": False},
    )
    program.write({"type": "tool.execution_complete", "data": {"toolCallId": "t", "success": True}})
    assert program.until(lambda: program.signals("Settled"))


@pytest.mark.parametrize(("command", "asks"), [
    ("ls -la", False), ("git status", False), ("git push", True), ("ls; rm x", True), ("cat $HOME/x", True), ("", True),
])  # fmt: skip
def test_copilot_decides_about_plain_commands_that_read(command, asks):
    assert only_reads({"toolName": "bash", "toolInput": {"command": command}}) is not asks


@pytest.mark.parametrize("event", [
    [], {}, {"type": "abort"}, {"type": []}, {"type": "tool.execution_start", "data": {}}, {"type": "hook.start", "data": []},
    {"type": "permission.requested", "data": {"permissionRequest": 3}}, {"type": "system.notification", "data": {"kind": 1}},
    {"type": "session.usage_record", "data": {"usage": {"apiCallId": "x", "inputTokens": "many", "outputTokens": -3}}},
])  # fmt: skip
def test_an_unexpected_event_means_nothing(program, event):
    program.write(event, *EVENTS["unauthorized"])
    assert program.until(lambda: program.signals("TurnEnded"))
    assert program.verdict().outcome == FAILED


def test_a_log_elsewhere_is_not_read(program, tmp_path):
    (tmp_path / "elsewhere").write_text("".join(json.dumps(event) + "\n" for event in EVENTS["unauthorized"]))
    program.log.symlink_to(tmp_path / "elsewhere")
    assert not poll(lambda: program.signals("TurnStarted"), 0.7)


def test_trust_is_read_and_not_written(program):
    blockers = lambda: Copilot().startup_blockers(str(program.work), {"HOME": str(program.home)})  # noqa: E731
    assert "will ask whether you trust" in blockers()[0]
    config = program.home / ".copilot" / "config.json"
    for trusted, found in (([str(program.work)], 0), ([str(program.work.parent)], 0), (["/elsewhere"], 1), ("x", 1)):
        config.write_text("// managed\n" + json.dumps({"trustedFolders": trusted}))
        assert len(blockers()) == found
    assert json.loads(config.read_text().partition("\n")[2]) == {"trustedFolders": "x"}


def test_a_conversation_that_never_had_a_turn_is_not_resumed(program, monkeypatch):
    monkeypatch.setenv("HOME", str(program.home))
    with pytest.raises(AgentUnusable, match="has no conversation"):
        Copilot().check_resume(CONVERSATION, None)
    program.write({})
    Copilot().check_resume(CONVERSATION, None)


def test_the_channel_is_that_of_the_mode(program):
    assert isinstance(find_channel(Copilot(), program.task()), CopilotPlugin)
    assert Copilot().channel(program.task(mode=Mode.HEADLESS)) == "copilot_acp"
