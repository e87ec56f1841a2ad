"""Gemini CLI."""

from __future__ import annotations

import json
import os

from baton.adapters.contract import Agent, Launch, Mode, json_object, one_argument, said, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.adapters.contract import Said, Task


class Gemini(Agent):
    name = "gemini"
    program = "gemini"
    install = "npm install -g @google/gemini-cli"
    chooses_id = True
    keeps_conversation = True

    def __init__(self) -> None:
        self._words = ""

    def launch(self, task: Task) -> Launch:
        argv = [self.program]
        if task.conversation_id is not None:
            argv += ["--resume" if task.resume else "--session-id", task.conversation_id]
        if task.yolo:
            argv.append("--yolo")
        if task.mode is Mode.HEADLESS:
            # -p is the instruction, standard input what it is about: together they are the prompt.
            return Launch.of(*argv, "-o", "stream-json", "-p", "", stdin=task.prompt or "", reads_lines=True)
        if task.prompt is not None:
            argv.append(one_argument(self, f"--prompt-interactive={task.prompt}"))
        return Launch.of(*argv)

    def output(self, line: str) -> Said | None:
        message = json_object(line)
        kind = message.get("type")
        if kind == "init":
            return said(conversation_id=message.get("session_id"))
        if kind == "message" and message.get("role") == "assistant":
            self._words += str(message.get("content") or "")  # it comes in pieces
            return None
        if kind == "tool_use":
            self._words = ""
            return said(progress=short(f"{message.get('tool_name')}: {message.get('parameters') or ''}"))
        if kind == "result":
            if message.get("status") == "success":
                return said(finished=short(self._words))
            return said(failed=short((message.get("error") or {}).get("message") or "it ended with an error"))
        return None

    def in_the_way(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        home = environment.get("HOME", os.path.expanduser("~"))
        path = os.path.join(home, ".gemini", "trustedFolders.json")
        try:
            with open(path, encoding="utf-8") as file:
                trusted = os.path.realpath(workdir) in json.load(file)
        except (OSError, ValueError, TypeError):
            trusted = False
        if trusted or environment.get("GEMINI_CLI_TRUST_WORKSPACE") == "true":
            return []
        return [f"Gemini does not trust {workdir} yet: run `gemini` there once (it notes the answer in {path})"]
