"""Codex."""

from __future__ import annotations

import json
import os

from baton.adapters.contract import Agent, Launch, Mode, json_object, one_argument, said, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from baton.adapters.contract import Said, Task


class Codex(Agent):
    name = "codex"
    program = "codex"
    install = "npm install -g @openai/codex"
    keeps_conversation = True

    def __init__(self) -> None:
        self._words = ""

    def launch(self, task: Task) -> Launch:
        resumed = ["resume", task.conversation_id] if task.resume and task.conversation_id else []
        yolo = ["--dangerously-bypass-approvals-and-sandbox"] if task.yolo else []
        if task.mode is Mode.HEADLESS:
            argv = [self.program, "exec", *resumed, "--json", "--skip-git-repo-check", *yolo, "-"]
            return Launch.of(*argv, stdin=task.prompt or "", reads_lines=True)
        # In a server shared with others its tools would not be of this session. The hook is a JSON array of plain
        # strings, which is TOML, too.
        argv = [self.program, *resumed, "--no-daemon", "-c", f"notify={json.dumps(task.hook)}", *yolo]
        if task.prompt is not None:
            argv += ["--", one_argument(self, task.prompt)]
        return Launch.of(*argv)

    def output(self, line: str) -> Said | None:
        message = json_object(line)
        kind = message.get("type")
        if kind == "thread.started":
            return said(conversation_id=message.get("thread_id"))
        if kind in ("item.started", "item.completed"):
            return self._item(kind, message.get("item") or {})
        if kind == "turn.completed":
            return said(finished=self._words)
        if kind == "turn.failed":
            return said(failed=short((message.get("error") or {}).get("message") or "the turn failed"))
        if kind == "error":  # also what warnings are called: the turn's end decides
            return said(trouble=short(message.get("message") or "an error"))
        return None

    def _item(self, kind: str, item: Mapping[str, Any]) -> Said | None:
        if item.get("type") == "command_execution" and kind == "item.started":
            return said(progress=short(item.get("command") or "runs a command"))
        if item.get("type") == "agent_message" and item.get("text"):
            self._words = short(item["text"])
            return said(progress=self._words)
        return None

    def hooked(self, message: Mapping[str, Any]) -> Said | None:
        """`notify` sends one kind of message, when a turn is over: also a turn of a conversation of its own, in which
        it lets the model think up a title for this one."""
        conversation = message.get("thread-id")
        if message.get("type") != "agent-turn-complete" or not _is_of_the_user(conversation):
            return None
        return said(conversation_id=conversation, finished=short(message.get("last-assistant-message") or ""))

    def was_asked(self, message: Mapping[str, Any], mark: str) -> bool:
        asked = message.get("input-messages")
        return not isinstance(asked, list) or any(mark in str(each) for each in asked)

    def in_the_way(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        import tomllib

        path = os.path.join(_home(environment), "config.toml")
        try:
            with open(path, "rb") as file:
                projects = tomllib.load(file).get("projects") or {}
        except (OSError, ValueError):
            projects = {}
        real = os.path.realpath(workdir)
        above = (folder for folder in (real, *_parents(real)) if os.path.exists(os.path.join(folder, ".git")))
        for folder in (real, *above):  # trust in a repository is trust in all of it
            if (projects.get(folder) or {}).get("trust_level"):
                return []
        asks = f"Codex will ask whether you trust {workdir}: attach and answer, or run `codex` there once"
        return [f"{asks} (it notes the answer in {path})"]


def _is_of_the_user(conversation: object) -> bool:
    """Whether a conversation is kept, and was not begun by Codex itself: its own are not written down, or say so."""
    from glob import escape, iglob

    pattern = os.path.join(
        escape(_home(os.environ)), "sessions", "*", "*", "*", f"rollout-*-{escape(str(conversation))}.jsonl"
    )
    for path in iglob(pattern):
        try:
            with open(path, encoding="utf-8") as file:
                about = json_object(file.readline()).get("payload")
        except (OSError, UnicodeDecodeError):
            continue
        return isinstance(about, dict) and about.get("thread_source") in (None, "user")
    return False


def _home(environment: Mapping[str, str]) -> str:
    user = environment.get("HOME") or os.path.expanduser("~")
    return environment.get("CODEX_HOME") or os.path.join(user, ".codex")


def _parents(folder: str) -> list[str]:
    parts = folder.split("/")
    return ["/".join(parts[:length]) or "/" for length in range(len(parts) - 1, 0, -1)]
