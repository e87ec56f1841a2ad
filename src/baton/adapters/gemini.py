"""Adapt Gemini CLI."""

from __future__ import annotations

import os
from collections.abc import Mapping

from baton.adapters.acp_agent import AcpAgent
from baton.adapters.contract import UUID, Capabilities, Launch, Task, checked_argument
from baton.adapters.folder_trust import trusts


class Gemini(AcpAgent):
    name = "gemini"
    program = "gemini"
    install = "npm install -g @google/gemini-cli"
    tested_version = "0.61.0"
    on_terminal = Capabilities(
        heard_by="its hooks, transcript, commands", answered_by="its own screen alone", usage="tokens"
    )
    when_headless = Capabilities(heard_by="ACP", answered_by="`baton approve --inexact`", usage="tokens")
    chooses_id = True
    conversation_form = UUID
    acp_yolo = ("--yolo",)
    acp_load_sec = 75.0  # a conversation of the same minute cannot be loaded

    def screen_launch(self, task: Task) -> Launch:
        argv = [self.program]
        if task.conversation_id is not None:
            argv += ["--resume" if task.resume else "--session-id", task.conversation_id]
        if task.yolo:
            argv.append("--yolo")
        if task.prompt is not None:
            argv.append(checked_argument(self, f"--prompt-interactive={task.prompt}"))
        return Launch(argv=argv)  # its channel makes a home for it

    def screen_channel(self, task: Task) -> str | None:
        return "gemini_hooks"

    def startup_blockers(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        home = environment.get("GEMINI_CLI_HOME") or environment.get("HOME") or os.path.expanduser("~")
        usual = os.path.join(home, ".gemini", "trustedFolders.json")
        path = environment.get("GEMINI_CLI_TRUSTED_FOLDERS_PATH") or usual
        if environment.get("GEMINI_CLI_TRUST_WORKSPACE") == "true" or trusts(path, workdir):
            return []
        return [f"Gemini does not trust {workdir} yet: run `gemini` there once (Gemini keeps the answer in {path})"]
