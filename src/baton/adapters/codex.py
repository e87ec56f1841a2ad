"""Adapt Codex."""

import json
import os
from collections.abc import Mapping
from typing import Any

from baton.adapters.contract import UUID, Agent, Launch, Mode, Signal, Task, checked_argument, signal, summary
from baton.core.fields import json_object


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
        return None if task.mode is Mode.HEADLESS else "hook_program"

    def parse_output(self, line: str) -> Signal | None:
        message = json_object(line)
        kind = message.get("type")
        if kind == "thread.started":
            return signal(conversation_id=message.get("thread_id"))
        if kind in ("item.started", "item.completed"):
            return self._item(kind, message.get("item") or {})
        if kind == "turn.completed":
            return signal(finished=self._last_message)
        if kind == "turn.failed":
            return signal(failed=str((message.get("error") or {}).get("message") or "the turn failed"))
        if kind == "error":  # warnings have this type, too: the end of the turn decides
            return signal(trouble=summary(message.get("message") or "an error"))
        return None

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

    def _item(self, kind: str, item: Mapping[str, Any]) -> Signal | None:
        if item.get("type") == "command_execution" and kind == "item.started":
            return signal(progress=summary(item.get("command") or "runs a command"))
        if item.get("type") == "agent_message" and item.get("text"):
            self._last_message = str(item["text"])
            return signal(progress=summary(self._last_message))
        return None

    def parse_hook(self, message: Mapping[str, Any]) -> Signal | None:
        """Read the one message that `notify` sends, at the end of a turn. Codex also sends it for a hidden conversation
        in which the model makes a title: that one is ignored."""
        conversation = message.get("thread-id")
        if message.get("type") != "agent-turn-complete" or not _is_users_conversation(conversation):
            return None
        return signal(conversation_id=conversation, finished=str(message.get("last-assistant-message") or ""))

    def hook_prompt(self, message: Mapping[str, Any]) -> str:
        asked = message.get("input-messages")
        return "\n".join(map(str, asked)) if isinstance(asked, list) else ""

    def conversation_contains(self, message: Mapping[str, Any], mark: str) -> bool:
        asked = message.get("input-messages")
        return not isinstance(asked, list) or any(mark in str(each) for each in asked)

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
        repositories = (folder for folder in (real, *real.parents) if (folder / ".git").exists())
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
