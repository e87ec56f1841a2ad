"""What baton knows about each agent: how it is started, and what its words mean."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from baton.adapters import agent_names, find_agent
from baton.adapters.contract import MAX_ARGUMENT_BYTES, Agent, Mode, Task
from baton.config import Settings
from baton.core.drafts import new_job
from baton.core.errors import AgentUnusable, InvalidValue
from baton.core.facts import describe_call
from baton.core.signal import (
    Conversation,
)
from baton.sessions.instructions import instructions


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


def test_a_call_is_one_line_for_people():
    assert describe_call("Bash", {"command": "ls  -l\nrm x", "description": "no"}) == "Bash: ls -l rm x"
    assert describe_call("Write", {"file_path": "a.txt"}) == "Write: a.txt"
    assert describe_call("Task", {}) == describe_call("Task", "text") == describe_call("Task", None) == "Task"
    cut = describe_call("Bash", {"command": "x" * 9000})
    assert (len(cut), cut[-1]) == (160, "…")


# -- how they are started ------------------------------------------------------------------------------------


SPEAK_ACP = ("gemini", "qwen")  # when they are headless


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini", "qwen"])
def test_nothing_skips_permissions_unless_it_is_asked_for(name, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    skipping = ("--dangerously-skip-permissions", 'approval_policy="never"', "--yolo")
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


@pytest.mark.parametrize("name", ["claude-code", "gemini", "qwen"])
def test_the_conversation_is_named_when_it_is_resumed(name):
    assert "c-1" in agent(name).launch(task(resume=True)).argv
    if name not in SPEAK_ACP:  # they are told by a message
        assert "c-1" in agent(name).launch(task(resume=True, mode=Mode.HEADLESS)).argv


@pytest.mark.parametrize("name", ["claude-code", "gemini", "qwen"])
def test_a_prompt_is_an_argument_on_a_terminal_and_standard_input_without(name):
    headless = agent(name).launch(task(mode=Mode.HEADLESS, prompt="x" * 10**6))
    assert headless.reads_lines
    if name == "claude-code" or name in SPEAK_ACP:
        assert (headless.stdin, headless.keeps_input) == (None, True), "its channel writes the prompt, as a message"
    else:
        assert (headless.stdin, headless.keeps_input) == ("x" * 10**6, False)
    assert "do it" in agent(name).launch(task()).argv[-1]
    with pytest.raises(AgentUnusable, match=f"takes no prompt of more than {MAX_ARGUMENT_BYTES} bytes this way"):
        agent(name).launch(task(prompt="é" * MAX_ARGUMENT_BYTES))


def test_codex_gets_neither_a_prompt_nor_a_folder_as_an_argument(tmp_path):
    codex = agent("codex")
    for mode in Mode:
        argv = codex.launch(task(mode=mode, workdir=str(tmp_path))).argv
        assert argv[:2] == ["codex", "app-server"]
        assert "do it" not in argv
        assert str(tmp_path) not in argv
    shown = codex.screen(task(yolo=True), "unix:///s", "c-1")
    assert shown == ["codex", "--remote", "unix:///s", "resume", "c-1"], "Codex refuses other permissions there"


def test_codex_is_trusted_by_its_own_settings_and_asks_only_in_repositories(tmp_path):
    environment = {"CODEX_HOME": str(tmp_path / "codex"), "HOME": "/nowhere"}
    repository, plain = tmp_path / "repository", tmp_path / "plain"
    for folder in (repository / "below", plain / ".git", tmp_path / "codex"):
        folder.mkdir(parents=True)  # an empty .git is no repository: Codex's sandbox leaves such folders
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    codex = agent("codex")
    assert codex.startup_blockers(str(plain), environment) == []
    settings = tmp_path / "codex" / "config.toml"
    for text, asks in (
        (None, True),
        ("not toml [", True),
        ("projects = 7", True),
        (f'[projects."{repository}"]\ntrust_level = "untrusted"\n', True),
        (f'[projects."{tmp_path}"]\ntrust_level = "trusted"\n', True),
        (f'[projects."{repository}"]\ntrust_level = "trusted"\n', False),
        (f'[projects."{repository / "below"}"]\ntrust_level = "trusted"\n', False),
    ):
        if text is not None:
            settings.write_text(text)
        said = codex.startup_blockers(str(repository / "below"), environment)
        assert bool(said) == asks, text
        assert all(str(settings) in each and "codex" in each for each in said)


def test_the_prompt_of_a_shell_is_a_file():
    launch = agent("shell").launch(task(prompt="echo $HOME"))
    assert launch.argv == ["/bin/sh", "/f/prompt.sh"]
    assert launch.files == {"prompt.sh": "echo $HOME\n"}


def test_an_agent_that_is_not_there_names_those_that_are():
    with pytest.raises(
        AgentUnusable,
        match="there is no agent 'nobody'; there are claude-code, codex, copilot, gemini, opencode, qwen, shell, mine",
    ):
        agent("nobody", mine={"interactive": ["x"]})
    assert agent("claude").name == "claude-code"
    settings = Settings(env={"HOME": "/nowhere"})
    assert agent_names(settings) == ["claude-code", "codex", "copilot", "gemini", "opencode", "qwen", "shell"]


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
        ({"headless": ["x"], "success": 1}, "success must be text"),
        ({"headless": ["x"], "success": "("}, "success is not a valid pattern"),
        ({"headless": ["x"], "resume": ["x"], "resume_interactive": ["x"]}, "`resume` and `resume_interactive`"),
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


@pytest.mark.parametrize(
    ("answers", "asks"), [({}, True), ({"approved": ["y" * 20]}, False), ({"rejected": ["y" * 20]}, False)]
)
def test_claude_asks_about_a_key_that_its_user_has_not_approved(tmp_path, answers, asks):
    known = {"hasCompletedOnboarding": True, "customApiKeyResponses": answers,
             "projects": {str(tmp_path): {"hasTrustDialogAccepted": True}}}  # fmt: skip
    (tmp_path / ".claude.json").write_text(json.dumps(known))
    environment = {"HOME": str(tmp_path), "ANTHROPIC_API_KEY": "x" + "y" * 20}
    said = agent("claude-code").startup_blockers(str(tmp_path), environment)
    assert ["ANTHROPIC_API_KEY" in each for each in said] == [True] * asks
    assert "yyy" not in str(said)
    assert agent("claude-code").startup_blockers(str(tmp_path), {"HOME": str(tmp_path)}) == []


def test_trust_of_a_repository_covers_its_worktrees(tmp_path):
    main, linked, other = tmp_path / "main", tmp_path / "elsewhere" / "linked", tmp_path / "other"
    for command in (
        ["init", "-q", str(main)],
        ["-C", str(main), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
        ["-C", str(main), "worktree", "add", "-q", str(linked)],
        ["init", "-q", str(other)],
    ):
        subprocess.run(["git", *command], check=True, capture_output=True)
    (linked / "below").mkdir()
    projects = {str(main): {"hasTrustDialogAccepted": True}}
    (tmp_path / ".claude.json").write_text(json.dumps({"hasCompletedOnboarding": True, "projects": projects}))

    def blocked(folder):
        return bool(agent("claude-code").startup_blockers(str(folder), {"HOME": str(tmp_path)}))

    assert [blocked(each) for each in (main, linked, linked / "below", other, tmp_path)] == [False] * 3 + [True] * 2
    (other / ".git" / "commondir").write_text("../main/.git")
    assert blocked(other)  # a folder is no linked worktree


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
    assert not any(isinstance(each, Conversation) for each in agent.read_output(line))


def test_an_exit_code_of_gemini_names_the_trust_that_is_missing():
    gemini = find_agent(Settings(env={"HOME": "/x"}), "gemini")
    assert "does not trust the folder" in gemini.exit_cause(55)
    assert gemini.exit_cause(1) == ""


def test_codex_asks_for_trust_in_git_folders_alone(tmp_path):
    inside = tmp_path / "repository" / "folder"
    inside.mkdir(parents=True)
    environment = {"CODEX_HOME": str(tmp_path / "codex")}
    assert agent("codex").startup_blockers("/", environment) == []
    subprocess.run(["git", "init", "-q", str(tmp_path / "repository")], check=True)
    (said,) = agent("codex").startup_blockers(str(inside), environment)
    assert f"Codex does not know whether you trust {inside}" in said
    (tmp_path / "codex").mkdir()
    config = f'[projects."{tmp_path / "repository"}"]\ntrust_level = "trusted"\n'
    (tmp_path / "codex" / "config.toml").write_text(config)
    assert agent("codex").startup_blockers(str(inside), environment) == []


def test_the_documented_entries_are_valid():
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    tables = {name: table for block in blocks for name, table in tomllib.loads(block)["agents"].items()}
    assert {"aider", "goose", "goose-run", "cursor", "amp"} <= tables.keys()
    for name in tables:
        assert agent(name, **tables).program


def test_gemini_waits_until_the_minute_of_a_conversation_is_over(tmp_path):
    """Loading it in the same minute begins its file anew, and the conversation is lost."""
    gemini = find_agent(Settings(env={}), "gemini")
    chats = tmp_path / ".gemini" / "tmp" / "work" / "chats"
    mine = task(conversation_id="e88a1301-e833-4446-a569-48fa69f0bef9", environment={"HOME": str(tmp_path)})
    assert gemini.acp_load_wait_sec(mine, 1794972831.0) == 0
    chats.mkdir(parents=True)
    (chats / "session-2026-11-18T03-33-e88a1301.jsonl").touch()
    assert gemini.acp_load_wait_sec(mine, 1794972831.0) == 10  # it is 03:33:51
    assert gemini.acp_load_wait_sec(mine, 1794972861.0) == 0
    assert gemini.acp_load_wait_sec(task(environment=mine.environment), 1794972831.0) == 0


@pytest.mark.parametrize(
    ("settings", "variables", "is_named"),
    [
        (None, {}, True), ("{}", {}, True), ('{"security": {}}', {}, True), (None, {"GEMINI_API_KEY": "k"}, False),
        ('{"security": {"auth": {"selectedType": "oauth-personal"}}}', {}, False),
        ('{ // mine\n"selectedAuthType": "gemini-api-key"}', {}, False), (None, {"GOOGLE_GENAI_USE_VERTEXAI": "true"}, False),
    ],
)  # fmt: skip
def test_gemini_without_a_login_says_what_to_do(tmp_path, settings, variables, is_named):
    (tmp_path / ".gemini").mkdir()
    if settings is not None:
        (tmp_path / ".gemini" / "settings.json").write_text(settings)
    environment = {"HOME": str(tmp_path), "GEMINI_CLI_TRUST_WORKSPACE": "true", **variables}
    problems = find_agent(Settings(env={}), "gemini").startup_blockers(str(tmp_path), environment)
    assert any("log in" in each for each in problems) is is_named
