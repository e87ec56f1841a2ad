"""Adapt Qwen Code."""

from __future__ import annotations

import os
from collections.abc import Mapping

from baton.adapters.acp_agent import AcpAgent
from baton.adapters.contract import UUID, Capabilities, Launch, Task, checked_argument
from baton.adapters.folder_trust import trusts
from baton.core.fields import parse_json
from baton.core.value import Any

DEFAULTS = "qwen-defaults.json"  # settings below those of the user, in the session's folder
COMMANDS = "qwen-commands.jsonl"
DEFAULTS_PATH, _SETTINGS_PATH = "QWEN_CODE_SYSTEM_DEFAULTS_PATH", "QWEN_CODE_SYSTEM_SETTINGS_PATH"
_SYSTEM_SETTINGS = "/etc/qwen-code/settings.json"
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")


class Qwen(AcpAgent):
    name = "qwen"
    program = "qwen"
    install = "npm install -g @qwen-code/qwen-code"
    tested_version = "0.15.10"
    on_terminal = Capabilities(
        heard_by="its hooks, its events",
        answered_by="`baton approve` and its own screen; the first counts",
        usage="tokens",
    )
    when_headless = Capabilities(heard_by="ACP", answered_by="`baton approve`", usage="none")
    chooses_id = True
    conversation_form = UUID
    acp_yolo = ("--yolo",)
    acp_channel = "qwen_acp"
    acp_once = "proceed_once"  # others change its mode, too

    def screen_launch(self, task: Task) -> Launch:
        argv = [self.program]
        if task.conversation_id is not None:
            argv += ["--resume" if task.resume else "--session-id", task.conversation_id]
        if task.yolo:
            argv.append("--yolo")
        argv += ["--input-file", os.path.join(task.folder, COMMANDS)]
        if task.prompt is not None:
            argv.append(checked_argument(self, f"--prompt-interactive={task.prompt}"))
        return Launch(argv=argv)  # its channel writes the files

    def screen_channel(self, task: Task) -> str | None:
        return "qwen_hooks"

    def startup_blockers(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        home = qwen_home(environment)
        security = _settings(os.path.join(home, "settings.json")).get("security") or {}
        problems = []
        if not (security.get("auth") or {}).get("selectedType") and not any(environment.get(each) for each in _KEYS):
            problems.append(
                "Qwen Code was never set up for this user: run `qwen` once by hand and choose how to log in"
            )
        path = os.path.join(home, "trustedFolders.json")
        if (security.get("folderTrust") or {}).get("enabled") and not trusts(path, workdir):
            problems.append(
                f"Qwen Code will ask whether you trust {workdir}: attach and answer, or run `qwen` there once "
                f"(Qwen keeps the answer in {path})"
            )
        return problems


def qwen_home(environment: Mapping[str, str]) -> str:
    """Return the folder in which Qwen keeps the user's settings."""
    return environment.get("QWEN_HOME") or os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".qwen")


def system_defaults(environment: Mapping[str, str]) -> str:
    """Return the file that Qwen takes its defaults from."""
    folder = os.path.dirname(environment.get(_SETTINGS_PATH) or _SYSTEM_SETTINGS)
    return environment.get(DEFAULTS_PATH) or os.path.join(folder, "system-defaults.json")


def _settings(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = parse_json(file.read())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
