"""Adapt GitHub's Copilot CLI. Headless, it speaks ACP."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from baton.adapters.acp_agent import AcpAgent
from baton.adapters.contract import UUID, Capabilities, Launch, Task, checked_argument
from baton.adapters.folder_trust import main_repositories
from baton.core.fields import parse_json

ALLOW_ALL = "COPILOT_ALLOW_ALL"  # by any value, its tools; by "true", also every folder
PLUGIN = "copilot-plugin"  # in the session's folder
_LOG = "events.jsonl"


class Copilot(AcpAgent):
    name = "copilot"
    program = "copilot"
    install = "npm install -g @github/copilot"
    tested_version = "1.0.102"
    on_terminal = Capabilities(
        heard_by="its log of the conversation, hooks of a plugin folder",
        answered_by="`baton approve` until a person attaches, then its own screen",
        usage="tokens",
    )
    when_headless = Capabilities(
        heard_by="ACP, its log of the conversation", answered_by="`baton approve`", usage="tokens"
    )
    chooses_id = True
    conversation_form = UUID
    trusts_worktrees = True
    interrupt_presses = 2  # "esc esc interrupt"
    acp_channel = "copilot_acp"
    acp_yolo = ("--yolo",)
    acp_error = re.compile(r"Error: ")  # after it, the turn ends as if it had ended well
    acp_retry = re.compile(r"Info: (?:Request failed|Response was interrupted)")
    acp_total_usage = True

    def acp_launch(self, task: Task) -> Launch:
        launch = super().acp_launch(task)
        return launch.replace(argv=[*launch.argv, "--plugin-dir", os.path.join(task.folder, PLUGIN)])

    def screen_launch(self, task: Task) -> Launch:
        argv = [self.program]
        if task.yolo:
            argv.append("--yolo")
        argv += ["--plugin-dir", os.path.join(task.folder, PLUGIN)]
        if task.conversation_id is not None:
            argv.append(f"--{'resume' if task.resume else 'session-id'}={task.conversation_id}")
        if task.prompt is not None:
            argv.append(checked_argument(self, f"--interactive={task.prompt}"))
        return Launch(argv=argv)  # its channel writes the plugin

    def screen_channel(self, task: Task) -> str | None:
        return "copilot_plugin"

    def check_resume(self, conversation_id: str | None, prompt: str | None) -> None:
        super().check_resume(conversation_id, prompt)
        path = log_file(os.environ, conversation_id or "")
        if not os.path.exists(path):
            why = "its session never had a turn, or Copilot has removed it"
            raise self.unusable(f"has no conversation {conversation_id}: there is no {path} ({why}); create a new one")

    def startup_blockers(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        path = os.path.join(copilot_folder(environment), "config.json")
        if environment.get(ALLOW_ALL) == "true" or _is_trusted(workdir, path):
            return []
        ask = f"Copilot will ask whether you trust {workdir}: attach and answer, or run `copilot` there once"
        return [f"{ask} (Copilot keeps the answer in {path})"]


def copilot_folder(environment: Mapping[str, str]) -> str:
    """Return the folder in which Copilot keeps the user's settings and its conversations."""
    home = environment.get("HOME") or os.path.expanduser("~")
    return environment.get("COPILOT_HOME") or os.path.join(home, ".copilot")


def state_folder(environment: Mapping[str, str]) -> str:
    return os.path.join(copilot_folder(environment), "session-state")


def log_file(environment: Mapping[str, str], conversation_id: str) -> str:
    """Return the file into which Copilot writes what happens in a conversation."""
    return os.path.join(state_folder(environment), conversation_id, _LOG)


def _is_trusted(workdir: str, path: str) -> bool:
    """Return whether the user trusts the folder, one above it, or the main repository of its worktree, according to
    Copilot's configuration."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line for line in file if not line.lstrip().startswith("//")]
        trusted = parse_json("".join(lines)).get("trustedFolders") or []
    except (OSError, ValueError, AttributeError):
        return False
    folders = [os.path.realpath(each) for each in trusted if isinstance(each, str) and each]
    places = [os.path.realpath(workdir), *main_repositories(workdir)]
    return any(place == each or place.startswith(each.rstrip(os.sep) + os.sep) for place in places for each in folders)
