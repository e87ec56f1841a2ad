"""Adapt opencode."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping

from baton.adapters.contract import Agent, Capabilities, Launch, Mode, Task
from baton.core.value import Any
from baton.storage.files import open_given_file

# What opencode asks about if its user has configured no permissions: it allows everything then. A star ends each name,
# so that the configuration shows whether the user has set the same one. MCP tools have an underscore in their names.
_ASK = ("bash*", "edit*", "webfetch*", "websearch*", "codesearch*", "*_*")
_FILES = ("config.json", "opencode.json", "opencode.jsonc")
_MAJOR = "1"  # of the releases with the routes that baton uses
_MOST_BYTES = 1 << 20
_OF_FOLDER = (".opencode", "opencode.json", "opencode.jsonc", "tui.json", "tui.jsonc")
_IGNORE_FOLDER = "OPENCODE_DISABLE_PROJECT_CONFIG"
_CONTENT = "OPENCODE_CONFIG_CONTENT"
_ESCAPE = re.compile(r"\\u([0-9A-Fa-f]{4})", re.ASCII)  # of a letter in JSON


class Opencode(Agent):
    name = "opencode"
    program = "opencode"
    install = "npm install -g opencode-ai"
    tested_version = "1.18.33"
    on_terminal = Capabilities(
        heard_by="its server, which the pane's screen shares",
        answered_by="`baton approve` and its own screen; the first counts",
        usage="tokens, cost",
    )
    when_headless = on_terminal.replace(heard_by="its server", answered_by="`baton approve`")
    keeps_conversation = True
    interrupt_presses = 2
    yolo_by_channel = True
    conversation_form = re.compile(r"ses_[A-Za-z0-9]{8,80}", re.ASCII)

    def launch(self, task: Task) -> Launch:
        """Return the server's command. Its channel starts it, and names the command for the pane."""
        return Launch(argv=self.serve_command(), keeps_input=task.mode is Mode.HEADLESS)

    def channel(self, task: Task) -> str | None:
        return "opencode"

    def check_release(self, release: str) -> None:
        if release.partition(".")[0] != _MAJOR:
            raise self.unusable(f"{release} is another major version than baton can work with: {self.install}@{_MAJOR}")

    def serve_command(self) -> list[str]:
        # The user's configuration may name an address of the network: this server is for this machine alone.
        return [self.program, "serve", "--hostname", "127.0.0.1", "--port", "0", "--no-mdns"]

    def attach_command(self, url: str, session: str, task: Task) -> tuple[str, ...]:
        """Return the command for the pane. A headless session needs a program that ends with its input."""
        if task.mode is Mode.HEADLESS:
            return ("cat",)
        return (self.program, "attach", url, "--session", session, "--dir", task.workdir)

    def variables(self, *, asks: bool) -> dict[str, str]:
        """Return variables for the server. `asks`: it asks before it runs commands, edits or leaves the machine."""
        return {"OPENCODE_PERMISSION": json.dumps(dict.fromkeys(_ASK, "ask"))} if asks else {}

    def folder_variables(self, task: Task) -> dict[str, str]:
        """Return variables for opencode's programs, if the folder has configuration for them.

        opencode asks for no trust: a cloned folder could allow everything, and start MCP servers before the first
        question. So opencode does not read it, unless the user's environment says otherwise; it reads the folder's
        AGENTS.md all the same. Raise AgentUnusable if the folder has plugins: opencode runs them in any case.
        """
        is_trusted = task.environment.get(_IGNORE_FOLDER, "1").lower() not in ("1", "true")
        folders = _folders_of_task(task)
        is_configured = any(os.path.lexists(os.path.join(each, name)) for each in folders for name in _OF_FOLDER)
        if task.yolo or is_trusted or not is_configured:  # guard: opencode-folder
            return {}
        if plugin := next(filter(None, map(_plugin_of, folders)), None):  # guard: opencode-plugin
            raise self.unusable(
                f"would run the plugins of this folder ({plugin}) before it asks anything; remove them, or set "
                f"{_IGNORE_FOLDER}=false in your environment if you trust the folder"
            )
        if _CONTENT in task.environment:
            return {_IGNORE_FOLDER: "1"}
        repository = [os.path.lexists(os.path.join(each, ".git")) for each in folders]
        inside = folders[: repository.index(True) + 1] if any(repository) else folders
        instructions = [os.path.join(each, "AGENTS.md") for each in inside]
        return {_IGNORE_FOLDER: "1", _CONTENT: json.dumps({"instructions": instructions})}

    def adds_questions(self, task: Task) -> bool:
        """Return whether opencode is likely to need questions that its user has not configured. Its answer to
        `sets_permissions` decides."""
        if task.yolo or "OPENCODE_PERMISSION" in task.environment:
            return False
        texts = [task.environment.get(_CONTENT, ""), *_config_texts(task.environment)]
        return not any('"permission"' in text or '"tools"' in text for text in texts)

    def sets_permissions(self, config: Mapping[str, Any], task: Task) -> bool:
        """Return whether the user has configured permissions, by the configuration as the server has read it."""
        if "OPENCODE_PERMISSION" in task.environment:
            return True
        permissions = config.get("permission")
        names = permissions.keys() if isinstance(permissions, dict) else [permissions] if permissions else []
        return bool(set(names) - set(_ASK)) or bool(config.get("tools"))


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("HOME") or os.path.expanduser("~")


def _folders_of_task(task: Task) -> list[str]:
    """Return the work folder and those above it. What lies in the user's home itself is the user's own."""
    folders, home = [os.path.realpath(task.workdir)], os.path.realpath(_home(task.environment))
    while folders[-1] not in (home, os.path.dirname(folders[-1])):
        folders.append(os.path.dirname(folders[-1]))
    return folders[:-1] if folders[-1] == home else folders


def _plugin_of(folder: str) -> str | None:
    """Return where the folder names plugins for opencode; None: nowhere."""
    own = os.path.join(folder, ".opencode")
    for path in (os.path.join(own, "plugin"), os.path.join(own, "plugins")):
        if os.path.lexists(path):
            return path
    for path in [os.path.join(each, name) for each in (folder, own) for name in _FILES]:
        text = _text_of(path)
        if "plugin" in _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) or len(text.encode()) >= _MOST_BYTES:
            return path
    return None


def _config_texts(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the content of the user's own configuration files of opencode."""
    home = _home(environment)
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    folders = [os.path.join(base, "opencode"), os.path.join(home, ".opencode")]
    folders += filter(None, [environment.get("OPENCODE_CONFIG_DIR")])
    paths = [os.path.join(each, name) for each in folders for name in _FILES]
    for path in (*filter(None, [environment.get("OPENCODE_CONFIG")]), *paths):
        yield _text_of(path)


def _text_of(path: str) -> str:
    try:
        with open_given_file(path) as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""  # there is none
