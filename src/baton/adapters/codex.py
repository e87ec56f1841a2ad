"""Adapt Codex."""

import json
import os
from collections.abc import Mapping
from typing import Any

from baton.adapters.contract import UUID, Agent, Launch, Mode, Task, checked_argument, text
from baton.core.fields import json_object
from baton.core.signal import (
    FAILED,
    Conversation,
    Retrying,
    Said,
    Signal,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)

# item types that are tool calls, and what they are called here
_TOOLS = {"command_execution": "shell", "file_change": "edit", "mcp_tool_call": "mcp", "web_search": "search"}


class Codex(Agent):
    name = "codex"
    program = "codex"
    install = "npm install -g @openai/codex"
    keeps_conversation = True
    conversation_form = UUID

    def __init__(self) -> None:
        self._last_message = ""

    def launch(self, task: Task) -> Launch:
        resumed = ["resume", task.conversation_id] if task.resume and task.conversation_id else []
        yolo = ["--dangerously-bypass-approvals-and-sandbox"] if task.yolo else []
        if task.mode is Mode.HEADLESS:
            argv = [self.program, "exec", *resumed, "--json", "--skip-git-repo-check", *yolo, "-"]
            return Launch(argv=argv, stdin=task.prompt or "", reads_lines=True)
        # --no-daemon: a shared server would run the tools outside of this session. The hook is a JSON array of plain
        # strings, which is also TOML.
        argv = [self.program, *resumed, "--no-daemon", "-c", f"notify={json.dumps(task.hook)}", *yolo]
        if task.prompt is not None:
            argv += ["--", checked_argument(self, task.prompt)]
        return Launch(argv=argv)

    def channel(self, task: Task) -> str | None:
        return "lines" if task.mode is Mode.HEADLESS else "hook_program"

    def parse_output(self, line: str) -> list[Signal]:
        message = json_object(line)
        kind = message.get("type")
        if kind == "thread.started":
            return [Conversation(conversation_id=text(message["thread_id"]))]
        if kind in ("item.started", "item.completed"):
            return self._item(kind, message.get("item") or {})
        if kind == "turn.completed":
            return [TurnEnded(message=self._last_message)]
        if kind == "turn.failed":
            why = (message.get("error") or {}).get("message") or "the turn failed"
            return [TurnEnded(how=FAILED, why=str(why))]
        if kind == "error":  # warnings have this type, too: the end of the turn decides
            return [Retrying(number=0, most=0, why=str(message.get("message") or "an error"))]
        return []

    def render_output(self, line: str) -> str:
        message = json_object(line)
        kind, item = message.get("type"), message.get("item") or {}
        if not message:
            return line + "\n"
        if kind == "item.started" and item.get("type") == "command_execution":
            return f"$ {item.get('command')}\n"
        if kind == "item.completed":
            text = str(item.get("text") or item.get("aggregated_output") or "").rstrip("\n")
            return f"{text}\n" if text else ""
        why = message.get("message") or (message.get("error") or {}).get("message")
        return f"{why}\n" if kind in ("error", "turn.failed") and why else ""

    def _item(self, kind: str, item: Mapping[str, Any]) -> list[Signal]:
        if item.get("type") == "agent_message" and item.get("text"):
            self._last_message = str(item["text"])
            return [Said(text=self._last_message)]
        if item.get("type") not in _TOOLS:
            return []
        tool_id = str(item.get("id"))
        if kind == "item.started":
            call = {name: value for name, value in item.items() if name in ("command", "query", "tool", "arguments")}
            return [ToolStarted(tool_id=tool_id, name=_TOOLS[item["type"]], call=call)]
        ok = item.get("status") != "failed" and item.get("exit_code") in (None, 0)
        return [ToolEnded(tool_id=tool_id, ok=ok)]

    def parse_hook(self, message: Mapping[str, Any]) -> list[Signal]:
        """Read the one message that `notify` sends, at the end of a turn. Codex also sends it for a hidden conversation
        in which the model makes a title: that one is ignored."""
        conversation = message.get("thread-id")
        if message.get("type") != "agent-turn-complete" or not _is_users_conversation(conversation):
            return []
        turn, asked = str(message.get("turn-id") or ""), message.get("input-messages")
        prompt = "\n".join(map(str, asked)) if isinstance(asked, list) else ""
        return [
            Conversation(conversation_id=text(conversation)),
            TurnStarted(turn=turn, prompt=prompt),
            TurnEnded(turn=turn, message=str(message.get("last-assistant-message") or "")),
        ]

    def startup_blockers(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        import tomllib
        from pathlib import Path

        path = os.path.join(_home(environment), "config.toml")
        try:
            with open(path, "rb") as file:
                projects = tomllib.load(file).get("projects") or {}
        except (OSError, ValueError):
            projects = {}
        real = Path(workdir).resolve()
        repositories = [folder for folder in (real, *real.parents) if (folder / ".git").exists()]
        if not repositories:
            return []  # Codex asks in git repositories alone
        for folder in (real, *repositories):  # trust in a repository covers all of its folders
            if (projects.get(str(folder)) or {}).get("trust_level"):
                return []
        asks = f"Codex will ask whether you trust {workdir}: attach and answer, or run `codex` there once"
        return [f"{asks} (Codex keeps the answer in {path})"]


def _is_users_conversation(conversation: object) -> bool:
    """Return whether the user began this conversation. Codex does not keep its own, or marks them."""
    from glob import escape, iglob

    if not UUID.fullmatch(str(conversation)):
        return False
    pattern = os.path.join(
        escape(_home(os.environ)), "sessions", "*", "*", "*", f"rollout-*-{escape(str(conversation))}.jsonl"
    )
    for path in iglob(pattern):
        about = json_object(_first_line(path)).get("payload")
        if isinstance(about, dict):
            return about.get("thread_source") in (None, "user")
    return False


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline()
    except OSError:
        return ""


def _home(environment: Mapping[str, str]) -> str:
    user = environment.get("HOME") or os.path.expanduser("~")
    return environment.get("CODEX_HOME") or os.path.join(user, ".codex")
