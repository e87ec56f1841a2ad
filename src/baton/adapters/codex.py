"""Adapt Codex. It works as an app-server, headless as well as on the terminal (`baton.channels.codex_protocol`)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from baton.adapters.contract import UUID, Agent, Capabilities, Launch, Mode, Task
from baton.adapters.folder_trust import main_repositories
from baton.core.fields import json_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

SERVER_LOG = "codex-server.log"
# For the whole server: it holds for each of its conversations.
_YOLO = ("-c", 'approval_policy="never"', "-c", 'sandbox_mode="danger-full-access"')


class Codex(Agent):
    name = "codex"
    program = "codex"
    install = "npm install -g @openai/codex"
    tested_version = "0.166.0"
    on_terminal = Capabilities(
        heard_by="its server, which the pane's screen shares",
        answered_by="`baton approve` and its own screen; the first counts",
        usage="tokens",
    )
    when_headless = on_terminal.replace(heard_by="its server", answered_by="`baton approve`")
    keeps_conversation = True
    trusts_worktrees = True
    conversation_form = UUID

    def launch(self, task: Task) -> Launch:
        """Return the server. On the terminal its channel starts it, and names the program for the pane (`screen`)."""
        is_alone = task.mode is Mode.HEADLESS
        argv = self.server(task, "stdio://" if is_alone else "unix://")
        return Launch(argv=argv, reads_lines=is_alone, keeps_input=is_alone)

    def channel(self, task: Task) -> str | None:
        return "codex_stream" if task.mode is Mode.HEADLESS else "codex_server"

    def server(self, task: Task, address: str) -> list[str]:
        """Return the command of the server that listens there."""
        return [self.program, "app-server", *(_YOLO if task.yolo else ()), "--listen", address]

    def screen(self, task: Task, address: str, conversation_id: str | None) -> list[str]:
        """Return the command that shows what the server at this address does, in this conversation or in a new one.
        Permissions belong to the server: of a conversation that goes on, Codex refuses to change them here."""
        if conversation_id is not None:
            return [self.program, "--remote", address, "resume", conversation_id]
        yolo = ["--dangerously-bypass-approvals-and-sandbox"] if task.yolo else []
        return [self.program, "--remote", address, *yolo]

    def render_output(self, line: str) -> str:
        message = json_object(line)
        if not message:
            return line + "\n"
        kind, params = message.get("method"), message.get("params") or {}
        item = params.get("item") or {}
        if kind == "item/started" and item.get("type") == "commandExecution":
            return f"$ {item.get('command')}\n"
        if kind == "item/completed" and item.get("type") in ("agentMessage", "commandExecution", "plan"):
            text = str(item.get("text") or item.get("aggregatedOutput") or "").rstrip("\n")
            return f"{text}\n" if text else ""
        if kind == "error":
            error = params.get("error") or {}
            return f"{error.get('additionalDetails') or error.get('message')}\n"
        return ""

    def startup_blockers(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        if may_write(workdir, environment):
            return []
        path = os.path.join(_home(environment), "config.toml")
        unknown = f"Codex does not know whether you trust {workdir}: it asks before it changes anything there"
        return [f"{unknown}; run `codex` there once and answer (it keeps the answer in {path})"]


def may_write(workdir: str, environment: Mapping[str, str]) -> bool:
    """Return whether Codex may be given a conversation there that writes into the folder: it is no part of a git
    repository, or the user has answered Codex's question whether to trust it. Codex asks this only in repositories."""
    _, repositories = _places(workdir)
    return not repositories or is_trusted(workdir, environment)


def is_trusted(workdir: str, environment: Mapping[str, str]) -> bool:
    """Return whether Codex has a note that the user trusts the folder. Trust in a repository covers its folders."""
    real, repositories = _places(workdir)
    projects = _projects(environment)
    return any(_level(projects, folder) == "trusted" for folder in (real, *repositories))


def _places(workdir: str) -> tuple[Path, list[Path]]:
    """Return the real path of the folder, and of the repositories that it lies in. Codex takes a linked work tree for
    the main one."""
    from pathlib import Path

    real = Path(workdir).resolve()
    tops = [folder for folder in (real, *real.parents) if _is_repository(folder / ".git")]
    return real, [*tops, *map(Path, main_repositories(workdir))]


def _is_repository(entry: Path) -> bool:
    """Return whether this is a repository, or a link to one. Codex's sandbox leaves empty folders of this name."""
    return entry.is_file() or (entry / "HEAD").exists()


def _projects(environment: Mapping[str, str]) -> Mapping[str, object]:
    import tomllib

    try:
        with open(os.path.join(_home(environment), "config.toml"), "rb") as file:
            projects = tomllib.load(file).get("projects")
    except (OSError, ValueError):
        return {}
    return projects if isinstance(projects, dict) else {}


def _level(projects: Mapping[str, object], folder: object) -> object:
    about = projects.get(str(folder))
    return about.get("trust_level") if isinstance(about, dict) else None


def _home(environment: Mapping[str, str]) -> str:
    user = environment.get("HOME") or os.path.expanduser("~")
    return environment.get("CODEX_HOME") or os.path.join(user, ".codex")
