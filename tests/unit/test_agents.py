"""What baton knows about each agent: how it is started, and what its words mean."""

from __future__ import annotations

import json

import pytest

from baton.adapters import agent_names, find_agent
from baton.adapters.contract import MAX_ARGUMENT_BYTES, Agent, Mode, Task
from baton.config import Settings
from baton.core.errors import AgentUnusable, InvalidValue
from baton.core.job import new_job
from baton.sessions.instructions import instructions

THREAD, SUBAGENT, NOT_KEPT = (f"0199a213-81c0-7800-8aa1-bbab2a03a53{number}" for number in range(3))


def agent(name, **tables):
    settings = Settings(env={"HOME": "/nowhere"})
    settings.tables["agents"] = tables
    return find_agent(settings, name)


def task(**changes):
    return Task(
        mode=Mode.INTERACTIVE, prompt="do it", conversation_id="c-1", resume=False, yolo=False, folder="/f", workdir="/w",
        hook=["python", "hook"],
    ).replace(**changes)  # fmt: skip


def test_an_agent_that_cannot_be_started_is_none():
    class Mute(Agent):
        name = program = install = "mute"

    with pytest.raises(TypeError, match="launch"):
        Mute()


def told(said):
    """What is set, without what is not."""
    return None if said is None else {name: value for name, value in said.as_dict().items() if value is not None}


# -- what their output tells ---------------------------------------------------------------------------------

OUTPUT = {
    "claude-code": [
        ({"type": "system", "subtype": "init", "session_id": "s-1", "tools": []}, {"conversation_id": "s-1"}),
        ({"type": "system", "subtype": "hook_started"}, None),
        ({"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 10, "error_status": 529, "error": "overloaded"}, {"trouble": "the model service does not answer (overloaded), try 1 of 10"}),
        ({"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls  -l"}}]}}, {"progress": "Bash: ls -l"}),
        ({"type": "assistant", "message": {"content": [{"type": "text", "text": "I look\naround"}]}}, {"progress": "I look around"}),
        ({"type": "assistant", "message": {"content": "text"}}, None),
        ({"type": "user", "message": {"content": [{"type": "tool_result"}]}}, None),
        ({"type": "result", "subtype": "success", "is_error": False, "result": "done", "permission_denials": []}, {"finished": "done"}),
        ({"type": "result", "subtype": "success", "is_error": True, "result": "API Error"}, {"failed": "API Error"}),
        ({"type": "result", "subtype": "error_during_execution", "is_error": True}, {"failed": "error_during_execution"}),
        ({"type": "result", "is_error": False, "result": "well", "permission_denials": [{"tool_name": "Bash"}, {"tool_name": "Bash"}]}, {"finished": "well (not allowed to use: Bash)"}),
    ],
    "codex": [
        ({"type": "thread.started", "thread_id": "t-1"}, {"conversation_id": "t-1"}),
        ({"type": "turn.started"}, None),
        ({"type": "item.started", "item": {"id": "i", "type": "command_execution", "command": "ls"}}, {"progress": "ls"}),
        ({"type": "item.completed", "item": {"type": "command_execution", "command": "ls", "exit_code": 0}}, None),
        ({"type": "item.completed", "item": {"type": "agent_message", "text": "well"}}, {"progress": "well"}),
        ({"type": "item.completed", "item": {"type": "error", "message": "a warning"}}, None),
        ({"type": "error", "message": "a warning"}, {"trouble": "a warning"}),
        ({"type": "turn.failed", "error": {"message": "no more"}}, {"failed": "no more"}),
        ({"type": "turn.failed"}, {"failed": "the turn failed"}),
    ],
    "gemini": [
        ({"type": "init", "session_id": "g-1"}, {"conversation_id": "g-1"}),
        ({"type": "message", "role": "assistant", "content": "x"}, None),
        ({"type": "tool_result"}, None),
        ({"type": "result", "status": "error", "error": {"message": "no more"}}, {"failed": "no more"}),
        ({"type": "result", "status": "error"}, {"failed": "it ended with an error"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message", "meaning"), [(name, *case) for name, cases in OUTPUT.items() for case in cases]
)
def test_a_line_of_output(name, message, meaning):
    assert told(agent(name).parse_output(json.dumps(message))) == meaning


@pytest.mark.parametrize(
    ("name", "last"),
    [("codex", {"type": "turn.completed", "usage": {}}), ("gemini", {"type": "result", "status": "success"})],
)
def test_the_last_line_of_output(name, last):
    assert agent(name).parse_output(json.dumps(last)).finished is not None


@pytest.mark.parametrize("name", OUTPUT)
@pytest.mark.parametrize(
    "line",
    [
        "",
        "not json",
        "[1, 2]",
        "null",
        '"text"',
        "{",
        "[" * 5000,
        '{"type": 7}',
        '{"type": null}',
        '{"type": "result"}',
        "\x00",
        '{"type": "other"}',
    ],
)
def test_a_line_that_is_something_else_is_passed_over(name, line):
    found = told(agent(name).parse_output(line))
    assert found is None or set(found) <= {"finished", "failed"}


HOOKED = {
    "claude-code": [
        ({"hook_event_name": "SessionStart", "session_id": "s", "source": "startup"}, {"conversation_id": "s"}),
        ({"hook_event_name": "PermissionRequest", "session_id": "s", "tool_name": "Bash", "tool_input": {"command": "rm x"}}, {"conversation_id": "s", "permission": "Bash: rm x"}),
        ({"hook_event_name": "PermissionRequest", "session_id": "s", "tool_name": "Write", "tool_input": {"file_path": "a.txt"}}, {"conversation_id": "s", "permission": "Write: a.txt"}),
        ({"hook_event_name": "PostToolUse", "session_id": "s", "tool_name": "Task", "tool_input": {}}, {"conversation_id": "s", "progress": "Task"}),
        ({"hook_event_name": "Stop", "session_id": "s", "last_assistant_message": "all\ndone"}, {"conversation_id": "s", "finished": "all\ndone"}),
        ({"hook_event_name": "Stop", "session_id": "s"}, {"conversation_id": "s", "finished": ""}),
        ({"hook_event_name": "StopFailure", "session_id": "s", "error": "overloaded"}, {"conversation_id": "s", "failed": "overloaded"}),
        ({"hook_event_name": "StopFailure", "session_id": "s"}, {"conversation_id": "s", "failed": "the model service failed"}),
        ({"hook_event_name": "SessionEnd", "session_id": "s"}, None),
        ({}, None),
    ],
    "codex": [
        ({"type": "agent-turn-complete", "thread-id": THREAD, "last-assistant-message": "done"}, {"conversation_id": THREAD, "finished": "done"}),
        ({"type": "agent-turn-complete", "thread-id": THREAD, "last-assistant-message": None}, {"conversation_id": THREAD, "finished": ""}),
        ({"type": "other"}, None),
        ({}, None),
    ],
}  # fmt: skip


def keep_codex_conversation(home, conversation, source):
    folder = home / "sessions" / "2026" / "01" / "02"
    folder.mkdir(parents=True, exist_ok=True)
    about = {"type": "session_meta", "payload": {"id": conversation, "thread_source": source}}
    (folder / f"rollout-2026-01-02T03-04-05-{conversation}.jsonl").write_text(json.dumps(about) + "\n")


@pytest.mark.parametrize("conversation", [SUBAGENT, NOT_KEPT, "*", f"../{THREAD}", None, [THREAD]])
def test_a_conversation_that_codex_has_with_itself_is_not_the_sessions(conversation, tmp_path, monkeypatch):
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    keep_codex_conversation(tmp_path, THREAD, "user")
    keep_codex_conversation(tmp_path, SUBAGENT, "subagent")
    message = {"type": "agent-turn-complete", "thread-id": conversation, "last-assistant-message": "A title"}
    assert agent("codex").parse_hook(message) is None


def test_a_turn_that_began_before_a_job_was_sent_does_not_know_of_it(tmp_path):
    turn = {"input-messages": ["before", "This is job 1 of baton"]}
    assert agent("codex").conversation_contains(turn, "This is job 1 of baton")
    assert not agent("codex").conversation_contains(turn, "This is job 2 of baton")
    path = tmp_path / "transcript.jsonl"
    lines = [
        {"type": "user", "message": "This is job 1 of baton"},
        {"type": "queue-operation", "content": "This is job 2 of baton"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    turn = {"transcript_path": str(path)}
    assert agent("claude-code").conversation_contains(turn, "This is job 1 of baton")
    assert not agent("claude-code").conversation_contains(turn, "This is job 2 of baton")
    assert agent("claude-code").conversation_contains(
        {"transcript_path": str(tmp_path / "none")}, "This is job 2 of baton"
    )


@pytest.mark.parametrize(
    ("name", "message", "meaning"), [(name, *case) for name, cases in HOOKED.items() for case in cases]
)
def test_a_message_of_a_hook(name, message, meaning, tmp_path, monkeypatch):
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    keep_codex_conversation(tmp_path, THREAD, "user")
    assert told(agent(name).parse_hook(message)) == meaning


def test_a_long_word_is_cut():
    said = agent("codex").parse_output(
        json.dumps({"type": "item.completed", "item": {"type": "agent_message", "text": "x" * 9000}})
    )
    assert len(said.progress) == 300
    assert said.progress.endswith("…")


# -- how they are started ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini"])
def test_nothing_skips_permissions_unless_it_is_asked_for(name, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    skipping = ("--dangerously-skip-permissions", "--dangerously-bypass-approvals-and-sandbox", "--yolo")
    for mode in Mode:
        for resume in (False, True):
            plain = agent(name).launch(task(mode=mode, resume=resume)).argv
            assert not set(plain) & set(skipping)
            assert set(agent(name).launch(task(mode=mode, resume=resume, yolo=True)).argv) & set(skipping)


def test_claude_as_root_is_not_asked_to_skip_permissions(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.delenv("IS_SANDBOX", raising=False)
    with pytest.raises(AgentUnusable, match="refuses to skip its permissions as root"):
        agent("claude-code").launch(task(yolo=True))


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini"])
def test_the_conversation_is_named_when_it_is_resumed(name):
    assert "c-1" in agent(name).launch(task(resume=True)).argv
    assert "c-1" in agent(name).launch(task(resume=True, mode=Mode.HEADLESS)).argv


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini"])
def test_a_prompt_is_an_argument_on_a_terminal_and_standard_input_without(name):
    headless = agent(name).launch(task(mode=Mode.HEADLESS, prompt="x" * 10**6))
    assert (headless.stdin, headless.reads_lines) == ("x" * 10**6, True)
    assert "do it" in agent(name).launch(task()).argv[-1]
    with pytest.raises(AgentUnusable, match=f"takes no prompt of more than {MAX_ARGUMENT_BYTES} bytes this way"):
        agent(name).launch(task(prompt="é" * MAX_ARGUMENT_BYTES))


def test_the_prompt_of_a_shell_is_a_file():
    launch = agent("shell").launch(task(prompt="echo $HOME"))
    assert launch.argv == ["/bin/sh", "/f/prompt.sh"]
    assert launch.files == {"prompt.sh": "echo $HOME\n"}


def test_an_agent_that_is_not_there_names_those_that_are():
    with pytest.raises(
        AgentUnusable, match="there is no agent 'nobody'; there are claude-code, codex, gemini, shell, mine"
    ):
        agent("nobody", mine={"interactive": ["x"]})
    assert agent("claude").name == "claude-code"
    settings = Settings(env={"HOME": "/nowhere"})
    assert agent_names(settings) == ["claude-code", "codex", "gemini", "shell"]


# -- those of the config file --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("text", "agents.mine in the config file must be a table"),
        ({}, "needs `interactive` or `headless`"),
        ({"resume": ["x"]}, "needs `interactive` or `headless`"),
        ({"interactive": "aider"}, "interactive must be a list of arguments"),
        ({"interactive": []}, "interactive must be a list of arguments"),
        ({"interactive": ["x", 1]}, "interactive must be a list of arguments"),
        ({"headless": {}}, "headless must be a list of arguments"),
        ({"interactive": ["x"], "resume": True}, "resume must be a list of arguments"),
        ({"interactive": ["x"], "yolo": "--yes"}, "yolo must be a list of arguments"),
        ({"interactive": ["x"], "stdin": 1}, "stdin must be true or false"),
        ({"interactive": ["x"], "chooses_id": "yes"}, "chooses_id must be true or false"),
        ({"interactive": ["x"], "exit_is_verdict": None}, "exit_is_verdict must be true or false"),
        ({"interactive": ["x"], "install": ["pip"]}, "install must be text"),
        ({"interactive": ["x"], "promt": True}, "has 'promt', which is none of interactive, headless"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(table, why):
    with pytest.raises(InvalidValue) as refused:
        agent("mine", mine=table)
    assert why in str(refused.value)
    assert "agents.mine" in str(refused.value)


@pytest.mark.parametrize("name", ["codex", "claude"])
def test_a_table_with_the_name_of_a_built_in_agent_is_refused(name):
    with pytest.raises(InvalidValue, match=rf"agents\.{name} .* built-in"):
        agent("shell", **{name: {"interactive": ["x"]}})


def test_placeholders_are_filled_and_those_in_a_prompt_are_not():
    table = {
        "interactive": ["x", "--id={conversation_id}", "{prompt_file}", "{workdir}", "{prompt}"],
        "yolo": ["--yes"],
    }
    prompt = "{workdir} {prompt_file} {prompt}"
    launch = agent("mine", mine=table).launch(task(prompt=prompt, yolo=True))
    assert launch.argv == ["x", "--id=c-1", "/f/prompt.txt", "/w", prompt, "--yes"]
    assert launch.files == {"prompt.txt": prompt}
    assert launch.stdin is None


def test_what_a_table_does_not_say_the_agent_cannot_do():
    mine = agent("mine", mine={"interactive": ["x"]})
    assert (mine.keeps_conversation, mine.chooses_id, mine.exit_is_verdict) == (False, False, True)
    with pytest.raises(AgentUnusable, match="mine has no `headless` in the config file"):
        mine.launch(task(mode=Mode.HEADLESS))
    with pytest.raises(AgentUnusable, match="mine has no `yolo` in the config file"):
        mine.launch(task(yolo=True))
    only = agent("mine", mine={"headless": ["x", "{prompt}"], "stdin": True})
    assert only.launch(task()).argv == ["x", "do it"], "what it can is done on the terminal, too"
    assert only.launch(task()).stdin == "do it"


# -- what they are told --------------------------------------------------------------------------------------


def test_instructions_hold_the_prompt_and_how_to_say_what_came_of_it():
    job = new_job(
        "Do {this} and \\0 that", now_ns=10**18, agent="codex", expected_artifacts=["a.txt", "{b}"], validate="make {c}"
    )  # fmt: skip
    text = instructions(job.replace(attempt=3))
    assert text.startswith("Do {this} and \\0 that\n")
    for event in ("progress", "completed", "error"):
        assert f"baton publish --job {job.job_id} --attempt 3 --event {event}" in text
    assert "refused until these exist: a.txt, {b}." in text
    assert text.endswith("`completed` is refused while this command fails: make {c}")
    plain = instructions(new_job("x", now_ns=10**18, agent="codex"))
    assert "refused" not in plain
    assert "{" not in plain


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini"])
@pytest.mark.parametrize(
    "line",
    [
        '{"type":"item.started","item":"x"}', '{"type":"assistant","message":"x"}', '{"type":"assistant","message":{"content":["x"]}}',
        '{"type":"assistant","message":{"content":[{"type":"tool_use","input":"x"}]}}', '{"type":"result","permission_denials":7}',
        '{"type":"turn.failed","error":"x"}', '{"type":"result","status":"error","error":"x"}',
        '{"type":"system","subtype":"init","session_id":7}', '{"type":"init","session_id":[]}', '{"type":"thread.started","thread_id":{}}',
    ],
)  # fmt: skip
def test_a_shape_we_do_not_know_is_passed_over(name, line):
    agent = find_agent(Settings(env={"HOME": "/x"}), name)
    told = agent.read_output(line)
    assert told is None or told.conversation_id is None
    assert (
        agent.read_hook({"hook_event_name": "PostToolUse", "tool_input": "x", "tool_name": 5, "session_id": 7}) is None
    )
