"""Codex."""

from __future__ import annotations

import json

from baton.agents.base import Agent, Launch, Mode, json_object, one_argument, said, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from baton.agents.base import Said, Task


class Codex(Agent):
    name = "codex"
    program = "codex"
    install = "npm install -g @openai/codex"
    keeps_conversation = True

    def launch(self, task: Task) -> Launch:
        resumed = [task.conversation_id] if task.resume and task.conversation_id else []
        # JSON arrays of plain strings are TOML, too.
        notify = ["-c", f"notify={json.dumps(task.hook)}"]
        yolo = ["--dangerously-bypass-approvals-and-sandbox"] if task.yolo else []
        if task.mode is Mode.HEADLESS:
            verb = ["exec", "resume", *resumed] if resumed else ["exec"]
            argv = [self.program, *verb, "--json", "--skip-git-repo-check", *notify, *yolo, "-"]
            return Launch.of(*argv, stdin=task.prompt or "", reads_lines=True)
        argv = [self.program, *(["resume", *resumed] if resumed else []), *notify, *yolo]
        if task.prompt is not None:
            argv += ["--", one_argument(self, task.prompt)]
        return Launch.of(*argv)

    def output(self, line: str) -> Said | None:
        message = json_object(line)
        kind = message.get("type")
        if kind == "thread.started":
            return said(conversation_id=message.get("thread_id"), progress="the session has begun")
        if kind in ("item.started", "item.completed"):
            return _item(kind, message.get("item") or {})
        if kind == "turn.completed":
            return said(finished="")
        if kind == "turn.failed":
            return said(failed=short((message.get("error") or {}).get("message") or "the turn failed"))
        return None  # "error" is also what warnings are called: the turn's end decides

    def hooked(self, message: Mapping[str, Any]) -> Said | None:
        """`notify` sends one kind of message, when a turn is over."""
        if message.get("type") != "agent-turn-complete":
            return None
        return said(
            conversation_id=message.get("thread-id"), finished=short(message.get("last-assistant-message") or "")
        )


def _item(kind: str, item: Mapping[str, Any]) -> Said | None:
    if item.get("type") == "command_execution" and kind == "item.started":
        return said(progress=short(item.get("command") or "runs a command"))
    if item.get("type") == "agent_message" and item.get("text"):
        return said(progress=short(item["text"]))
    return None
