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
_MOST_BYTES = 1 << 20


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

    def adds_questions(self, task: Task) -> bool:
        """Return whether opencode is likely to need questions that its user has not configured. Its answer to
        `sets_permissions` decides."""
        if task.yolo or "OPENCODE_PERMISSION" in task.environment:
            return False
        texts = [task.environment.get("OPENCODE_CONFIG_CONTENT", ""), *_config_texts(task)]
        return not any('"permission"' in text or '"tools"' in text for text in texts)

    def sets_permissions(self, config: Mapping[str, Any], task: Task) -> bool:
        """Return whether the user has configured permissions, by the configuration as the server has read it."""
        if "OPENCODE_PERMISSION" in task.environment:
            return True
        permissions = config.get("permission")
        names = permissions.keys() if isinstance(permissions, dict) else [permissions] if permissions else []
        return bool(set(names) - set(_ASK)) or bool(config.get("tools"))


def _config_texts(task: Task) -> Iterator[str]:
    """Yield the content of the configuration files that opencode reads for this folder."""
    environment = task.environment
    home = environment.get("HOME") or os.path.expanduser("~")
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    folders = [os.path.join(base, "opencode"), os.path.join(home, ".opencode")]
    folders += filter(None, [environment.get("OPENCODE_CONFIG_DIR")])
    folder = os.path.realpath(task.workdir)
    while True:
        folders += [folder, os.path.join(folder, ".opencode")]
        if folder == os.path.dirname(folder):
            break
        folder = os.path.dirname(folder)
    paths = [os.path.join(each, name) for each in folders for name in _FILES]
    for path in (*filter(None, [environment.get("OPENCODE_CONFIG")]), *paths):
        yield _text_of(path)


def _text_of(path: str) -> str:
    try:
        with open_given_file(path) as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""  # there is none
