"""Adapt Claude Code."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping

from baton.adapters.contract import UUID, Agent, Launch, Mode, Signal, Task, checked_argument, signal, summary
from baton.core.fields import json_object
from baton.core.value import Any
from baton.storage.files import open_given_file

SETTINGS = "claude-settings.json"
_HOOKS = ("SessionStart", "PermissionRequest", "PostToolUse", "Stop", "StopFailure")
_TRANSCRIPT_SEC = 2.0  # Claude writes the transcript a moment later
_HOOK_TIMEOUT_SEC = 900  # the Stop hook runs the job's validation


class ClaudeCode(Agent):
    name = "claude-code"
    program = "claude"
    install = "npm install -g @anthropic-ai/claude-code"
    chooses_id = True
    keeps_conversation = True
    conversation_form = UUID

    def launch(self, task: Task) -> Launch:
        if task.yolo and os.geteuid() == 0 and "IS_SANDBOX" not in os.environ:
            raise self.unusable("refuses to skip its permissions as root; run baton as another user, or without --yolo")
        argv = [self.program]
        if task.conversation_id is not None:
            argv += ["--resume" if task.resume else "--session-id", task.conversation_id]
        if task.yolo:
            argv.append("--dangerously-skip-permissions")
        if task.mode is Mode.HEADLESS:
            argv += ["-p", "--output-format", "stream-json", "--verbose"]
            return Launch(argv=argv, stdin=task.prompt or "", reads_lines=True)
        argv += ["--settings", os.path.join(task.folder, SETTINGS)]
        if task.prompt is not None:
            argv += ["--", checked_argument(self, task.prompt)]
        return Launch(argv=argv, files={SETTINGS: _settings(task.hook)})

    def channel(self, task: Task) -> str | None:
        return None if task.mode is Mode.HEADLESS else "claude_hooks"

    def parse_output(self, line: str) -> Signal | None:
        message = json_object(line)
        kind = message.get("type")
        if kind == "system" and message.get("subtype") == "init":
            return signal(conversation_id=message.get("session_id"))
        if kind == "system" and message.get("subtype") == "api_retry":
            why = message.get("error") or message.get("error_status")
            tries = f"try {message.get('attempt')} of {message.get('max_retries')}"
            return signal(trouble=summary(f"the model service does not answer ({why}), {tries}"))
        if kind == "assistant":
            return _current_step(message)
        if kind == "result":
            text = str(message.get("result") or message.get("subtype") or "")
            denied = message.get("permission_denials") or []
            if message.get("is_error"):
                return signal(failed=text or "it ended with an error")
            if denied:
                names = ", ".join(sorted({str(each.get("tool_name")) for each in denied if isinstance(each, dict)}))
                text = f"{text} (not allowed to use: {names})"
            return signal(finished=text)
        return None

    def render_output(self, line: str) -> str:
        message = json_object(line)
        kind = message.get("type")
        if kind in ("assistant", "user"):
            return "".join(f"{text}\n" for part in _parts(message) if (text := _part_text(part)))
        if kind == "system" and message.get("subtype") == "api_retry":
            found = self.parse_output(line)
            return f"{found.trouble}\n" if found else ""
        # The last message comes a second time, as the result.
        return f"{message.get('result')}\n" if message.get("is_error") else "" if kind else line + "\n"

    def parse_hook(self, message: Mapping[str, Any]) -> Signal | None:
        event = message.get("hook_event_name")
        conversation = message.get("session_id")
        if event == "SessionStart":
            return signal(conversation_id=conversation)
        if event == "PermissionRequest":
            return signal(conversation_id=conversation, permission=_tool_use(message))
        if event == "PostToolUse":
            return signal(conversation_id=conversation, progress=_tool_use(message))
        if event == "Stop":
            return signal(conversation_id=conversation, finished=str(message.get("last_assistant_message") or ""))
        if event == "StopFailure":
            # `error` is a category, such as "unknown"; the last message is readable.
            why = message.get("last_assistant_message") or message.get("error") or "the model service failed"
            return signal(conversation_id=conversation, failed=str(why))
        return None

    def conversation_contains(self, message: Mapping[str, Any], mark: str) -> bool:
        path = str(message.get("transcript_path") or "")
        deadline = time.monotonic() + _TRANSCRIPT_SEC
        while os.path.exists(path):
            with open_given_file(path) as file:
                lines = (line.decode(errors="replace") for line in file)
                # Lines of other types hold input that still waits in Claude's queue.
                if any(mark in line and json_object(line).get("type") in ("user", "attachment") for line in lines):
                    return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True  # no transcript is kept

    def refusal(self, message: Mapping[str, Any], why: str) -> str | None:
        return json.dumps({"decision": "block", "reason": why})

    def startup_blockers(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        folder = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or os.path.expanduser("~")
        path = os.path.join(folder, ".claude.json")
        try:
            with open(path, encoding="utf-8") as file:
                known = json.load(file)
        except (OSError, ValueError):
            known = {}
        problems = []
        if not known.get("hasCompletedOnboarding"):
            problems.append(f"Claude Code was never set up for this user ({path}): run `claude` once by hand")
        project = (known.get("projects") or {}).get(os.path.realpath(workdir)) or {}
        if not project.get("hasTrustDialogAccepted"):
            problems.append(
                f"Claude Code will ask whether you trust {workdir}: attach and answer, or run `claude` there once "
                f"(Claude keeps the answer in {path})"
            )
        return problems


def _settings(hook: list[str]) -> str:
    command = {"type": "command", "command": shlex.join(hook), "timeout": _HOOK_TIMEOUT_SEC}
    return json.dumps({"hooks": {event: [{"matcher": "", "hooks": [command]}] for event in _HOOKS}}, indent=2) + "\n"


def _current_step(message: Mapping[str, Any]) -> Signal | None:
    for part in _parts(message):
        if part.get("type") == "tool_use":
            return signal(progress=_tool_use({"tool_name": part.get("name"), "tool_input": part.get("input")}))
        if part.get("type") == "text" and part.get("text"):
            return signal(progress=summary(part["text"]))
    return None


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = (message.get("message") or {}).get("content") or []
    return content if isinstance(content, list) else []  # a text is the prompt


def _part_text(part: Mapping[str, Any]) -> str:
    """Return a part of a message as text: what the agent says, which tool it uses, what that returned."""
    if part.get("type") == "tool_use":
        return _tool_use({"tool_name": part.get("name"), "tool_input": part.get("input")})
    if part.get("type") == "tool_result":
        content = part.get("content")
        return content if isinstance(content, str) else "\n".join(map(_part_text, content or []))
    return str(part.get("text") or "") if part.get("type") == "text" else ""


def _tool_use(message: Mapping[str, Any]) -> str:
    given = message.get("tool_input") or {}
    what = given.get("command") or given.get("file_path") or given.get("url") or given.get("description") or ""
    return summary(f"{message.get('tool_name')}: {what}" if what else message.get("tool_name"))
