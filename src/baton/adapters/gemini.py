"""Adapt Gemini CLI."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from baton.adapters.acp_agent import AcpAgent
from baton.adapters.contract import UUID, Capabilities, Launch, Task, checked_argument
from baton.adapters.folder_trust import trusts

_MARGIN_SEC = 1.0  # after the end of a minute
_UNTRUSTED = 55  # its exit code in a folder that the user does not trust
# Variables by which a user logs in.
_LOGINS = (
    "GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA", "GOOGLE_CLOUD_PROJECT",
)  # fmt: skip


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

    def screen_launch(self, task: Task) -> Launch:
        argv = [self.program]
        if task.conversation_id is not None:
            argv += ["--resume" if task.resume else "--session-id", task.conversation_id]
        if task.yolo:
            argv.append("--yolo")
        if task.prompt is not None:
            argv.append(checked_argument(self, f"--prompt-interactive={task.prompt}"))
        return Launch(argv=argv)  # its channel makes a home for it

    def acp_load_wait_sec(self, task: Task, now_sec: float) -> float:
        """Return the rest of the minute in which Gemini began the conversation. Gemini names the file of a conversation
        by the minute: if it loads one in the same minute, it writes an empty conversation into the same file first."""
        minute = time.strftime("%Y-%m-%dT%H-%M", time.gmtime(now_sec))
        names = [f"session-{minute}-{(task.conversation_id or '')[:8]}{ending}" for ending in (".jsonl", ".json")]
        folder = os.path.join(_home(task.environment or os.environ), ".gemini", "tmp")
        try:
            projects = os.listdir(folder)
        except OSError:
            return 0.0  # Gemini has no conversations
        is_new = any(os.path.exists(os.path.join(folder, each, "chats", name)) for each in projects for name in names)
        return 60.0 - now_sec % 60.0 + _MARGIN_SEC if is_new else 0.0  # guard: gemini-same-minute

    def screen_channel(self, task: Task) -> str | None:
        return "gemini_hooks"

    def exit_cause(self, code: int) -> str:
        return "it does not trust the folder: run `gemini` there once" if code == _UNTRUSTED else ""

    def startup_blockers(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        usual = os.path.join(_home(environment), ".gemini", "trustedFolders.json")
        path = environment.get("GEMINI_CLI_TRUSTED_FOLDERS_PATH") or usual
        problems = []
        if not _has_login(environment):
            problems.append("Gemini was never set up for this user: run `gemini` once by hand and choose how to log in")
        if environment.get("GEMINI_CLI_TRUST_WORKSPACE") != "true" and not trusts(path, workdir):
            why = f"Gemini does not trust {workdir} yet"
            problems.append(f"{why}: run `gemini` there once (Gemini keeps the answer in {path})")
        return problems


def _has_login(environment: Mapping[str, str]) -> bool:
    """Return whether the user has chosen how Gemini logs in, in his settings or by a variable."""
    if any(environment.get(each) for each in _LOGINS):
        return True
    try:
        with open(os.path.join(_home(environment), ".gemini", "settings.json"), encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError):
        return False
    return '"selectedType"' in text or '"selectedAuthType"' in text  # it may have comments


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("GEMINI_CLI_HOME") or environment.get("HOME") or os.path.expanduser("~")
