"""Adapt Claude Code."""

from __future__ import annotations

import os
from collections.abc import Mapping

from baton.adapters.contract import UUID, Agent, Capabilities, Launch, Mode, Task, checked_argument
from baton.core.fields import json_object, one_line, parse_json
from baton.core.value import Any
from baton.storage.files import open_given_file

SETTINGS = "claude-settings.json"
ERRORS = "claude-errors.log"
# The prompt, answers and further prompts go to standard input (`baton.channels.claude_stream`). Pieces of messages are
# signs of work: a long message may take minutes.
_HEADLESS = (
    "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--include-partial-messages",
    "--permission-prompt-tool", "stdio",
)  # fmt: skip
_KEY_END = 20  # characters of a key that Claude keeps
_LINE = 300  # characters of a line for people


class ClaudeCode(Agent):
    name = "claude-code"
    program = "claude"
    install = "npm install -g @anthropic-ai/claude-code"
    tested_version = "2.1.197"
    on_terminal = Capabilities(
        heard_by="its hooks, telemetry, transcript, registry of sessions",
        answered_by="`baton approve` and its own screen; the first counts",
        usage="tokens, cost",
    )
    when_headless = Capabilities(
        heard_by="JSON lines in both directions", answered_by="`baton approve`", usage="tokens, cost"
    )
    chooses_id = True
    keeps_conversation = True
    trusts_worktrees = True
    carries_on_sec = 60.0  # measured: up to 85 s after the minute that it names, which lasts 60 s
    conversation_form = UUID

    def launch(self, task: Task) -> Launch:
        if task.yolo and os.geteuid() == 0 and "IS_SANDBOX" not in os.environ:
            raise self.unusable("refuses to skip its permissions as root; run baton as another user, or without --yolo")
        argv = [self.program]
        if task.conversation_id is not None:
            argv += ["--resume" if task.resume else "--session-id", task.conversation_id]
        if task.yolo:
            argv.append("--dangerously-skip-permissions")
        if task.mode is Mode.HEADLESS and task.budget_usd is not None:
            argv += ["--max-budget-usd", f"{task.budget_usd:.6f}"]
        if task.mode is Mode.HEADLESS:
            return Launch(argv=[*argv, *_HEADLESS], reads_lines=True, keeps_input=True)
        argv += ["--settings", os.path.join(task.folder, SETTINGS)]
        argv += ["--debug-file", os.path.join(task.folder, ERRORS)]
        if task.prompt is not None:
            argv += ["--", checked_argument(self, task.prompt)]
        return Launch(argv=argv)  # its channel writes the settings

    def keeps_budget(self, mode: Mode) -> bool:
        return mode is Mode.HEADLESS

    def channel(self, task: Task) -> str | None:
        return "claude_stream" if task.mode is Mode.HEADLESS else "claude_hooks"

    def render_output(self, line: str) -> str:
        message = json_object(line)
        kind = message.get("type")
        if kind in ("assistant", "user"):
            return "".join(f"{text}\n" for part in _parts(message) if (text := _part_text(part)))
        if kind == "system" and message.get("subtype") == "api_retry":
            why = message.get("error") or message.get("error_status")
            tries = f"try {message.get('attempt')} of {message.get('max_retries')}"
            return one_line(f"the model service does not answer ({why}), {tries}", _LINE) + "\n"
        # The last message comes a second time, as the result.
        return f"{message.get('result')}\n" if message.get("is_error") else "" if kind else line + "\n"

    def check_resume(self, conversation_id: str | None, prompt: str | None) -> None:
        super().check_resume(conversation_id, prompt)
        projects = os.path.join(claude_folder(os.environ), "projects")
        name = f"{conversation_id}.jsonl"
        if not any(os.path.exists(os.path.join(projects, each, name)) for each in _names_in(projects)):
            why = "its session never had a turn, or Claude has removed it"
            raise self.unusable(f"has no conversation {conversation_id} in {projects} ({why}); create a new session")

    def startup_blockers(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        folder = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or os.path.expanduser("~")
        path = os.path.join(folder, ".claude.json")
        try:
            with open(path, encoding="utf-8") as file:
                known = parse_json(file.read())
        except (OSError, ValueError):
            known = {}
        problems = []
        if not known.get("hasCompletedOnboarding"):
            problems.append(f"Claude Code was never set up for this user ({path}): run `claude` once by hand")
        if _is_unknown_key(environment.get("ANTHROPIC_API_KEY") or "", known.get("customApiKeyResponses") or {}):
            problems.append(
                "Claude Code will ask whether to use the key in ANTHROPIC_API_KEY: attach and answer, or run `claude` "
                f"once by hand (Claude keeps the answer in {path})"
            )
        projects = known.get("projects") or {}
        if not any((projects.get(each) or {}).get("hasTrustDialogAccepted") for each in _trusted_with(workdir)):
            problems.append(
                f"Claude Code will ask whether you trust {workdir}: attach and answer, or run `claude` there once "
                f"(Claude keeps the answer in {path})"
            )
        return problems


def claude_folder(environment: Mapping[str, str]) -> str:
    """Return the folder in which Claude keeps the user's settings and its transcripts."""
    home = environment.get("HOME") or os.path.expanduser("~")
    return environment.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude")


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_unknown_key(key: str, answers: Mapping[str, Any]) -> bool:
    """Return whether Claude will ask about this key: it keeps the ends of keys that the user has decided on."""
    known = [*(answers.get("approved") or ()), *(answers.get("rejected") or ())]
    return bool(key) and key[-_KEY_END:] not in known


def _trusted_with(workdir: str) -> list[str]:
    """Return the folders whose trust covers the folder: itself, and the main repository of a linked worktree."""
    folder = os.path.realpath(workdir)
    while not os.path.exists(os.path.join(folder, ".git")) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    found = [os.path.realpath(workdir)]
    try:
        with open_given_file(os.path.join(folder, ".git")) as file:
            text = file.read(4096).decode(errors="replace")
        git = os.path.join(folder, text.removeprefix("gitdir:").strip())  # of the worktree
        with open_given_file(os.path.join(git, "commondir")) as file:
            common = os.path.join(git, file.read(4096).decode(errors="replace").strip())
    except OSError:
        return found  # it is no linked worktree
    return [*found, os.path.dirname(os.path.realpath(common))]


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = (message.get("message") or {}).get("content") or []
    return content if isinstance(content, list) else []  # a text is the prompt


def _part_text(part: Mapping[str, Any]) -> str:
    """Return a part of a message as text: what the agent says, which tool it uses, what that returned."""
    if part.get("type") == "tool_use":
        given = part.get("input") or {}
        what = given.get("command") or given.get("file_path") or given.get("url") or given.get("description")
        return one_line(f"{part.get('name')}: {what}" if what else str(part.get("name")), _LINE)
    if part.get("type") == "tool_result":
        content = part.get("content")
        return content if isinstance(content, str) else "\n".join(map(_part_text, content or []))
    return str(part.get("text") or "") if part.get("type") == "text" else ""
