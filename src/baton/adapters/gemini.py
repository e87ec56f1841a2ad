"""Adapt Gemini CLI."""

import json
import os
from collections.abc import Mapping

from baton.adapters.contract import UUID, Agent, Launch, Mode, Task, checked_argument, text
from baton.core.fields import json_object
from baton.core.signal import FAILED, Conversation, Said, Signal, ToolEnded, ToolStarted, TurnEnded


class Gemini(Agent):
    name = "gemini"
    program = "gemini"
    install = "npm install -g @google/gemini-cli"
    chooses_id = True
    keeps_conversation = True
    conversation_form = UUID

    def __init__(self) -> None:
        self._message = ""

    def launch(self, task: Task) -> Launch:
        argv = [self.program]
        if task.conversation_id is not None:
            argv += ["--resume" if task.resume else "--session-id", task.conversation_id]
        if task.yolo:
            argv.append("--yolo")
        if task.mode is Mode.HEADLESS:
            # Gemini joins -p and standard input into one prompt.
            argv += ["-o", "stream-json", "-p", ""]
            return Launch(argv=argv, stdin=task.prompt or "", reads_lines=True)
        if task.prompt is not None:
            argv.append(checked_argument(self, f"--prompt-interactive={task.prompt}"))
        return Launch(argv=argv)

    def channel(self, task: Task) -> str | None:
        return "lines" if task.mode is Mode.HEADLESS else None

    def parse_output(self, line: str) -> list[Signal]:  # noqa: PLR0911  one for each kind
        message = json_object(line)
        kind = message.get("type")
        if kind == "init":
            return [Conversation(conversation_id=text(message["session_id"]))]
        if kind == "message" and message.get("role") == "assistant":
            self._message += str(message.get("content") or "")  # the text comes in pieces
            return [Said(text="")]
        if kind == "tool_use":
            self._message = ""
            tool_id, name = str(message.get("tool_id")), text(message.get("tool_name"))
            return [ToolStarted(tool_id=tool_id, name=name, call=message.get("parameters"))]
        if kind == "tool_result":
            return [ToolEnded(tool_id=str(message.get("tool_id")), ok=message.get("status") != "error")]
        if kind == "result":
            if message.get("status") == "success":
                return [TurnEnded(message=self._message)]
            why = (message.get("error") or {}).get("message") or "it ended with an error"
            return [TurnEnded(how=FAILED, why=str(why))]
        return []

    def render_output(self, line: str) -> str:
        message = json_object(line)
        kind = message.get("type")
        if not message:
            return line + "\n"
        if kind == "message" and message.get("role") == "assistant":
            return str(message.get("content") or "")
        if kind == "tool_use":
            return f"\n{message.get('tool_name')}: {message.get('parameters') or ''}\n"
        if kind == "tool_result":
            return f"{message.get('output') or ''}\n"
        why = (message.get("error") or {}).get("message")
        return "\n" + (f"{why}\n" if why else "") if kind == "result" else ""

    def startup_blockers(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        home = environment.get("HOME", os.path.expanduser("~"))
        path = os.path.join(home, ".gemini", "trustedFolders.json")
        try:
            with open(path, encoding="utf-8") as file:
                trusted = os.path.realpath(workdir) in json.load(file)
        except (OSError, ValueError, TypeError):
            trusted = False
        if trusted or environment.get("GEMINI_CLI_TRUST_WORKSPACE") == "true":
            return []
        return [f"Gemini does not trust {workdir} yet: run `gemini` there once (Gemini keeps the answer in {path})"]
