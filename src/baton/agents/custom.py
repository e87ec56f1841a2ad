"""An agent from the config file:

    [agents.aider]
    interactive = ["aider", "--message-file", "{prompt_file}"]
    headless    = ["aider", "--yes", "--message-file", "{prompt_file}"]   # optional
    resume      = ["aider", "--restore-chat-history"]                      # optional
    stdin       = false             # hand the prompt in on standard input
    yolo        = ["--yes-always"]  # added by --yolo; without this, --yolo is refused
    chooses_id  = false             # {conversation_id} is ours to choose
    exit_is_verdict = true          # exit code 0 means done
    install     = "pip install aider-chat"

`{prompt}`, `{prompt_file}`, `{conversation_id}` and `{workdir}` stand for an argument of their own, or a part of one.
"""

from __future__ import annotations

import os

from baton.agents.base import Agent, Launch, Mode, one_argument
from baton.errors import InvalidValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

    from baton.agents.base import Task

_LISTS: Final = ("interactive", "headless", "resume", "yolo")
_FLAGS: Final = ("stdin", "chooses_id", "exit_is_verdict")


class Custom(Agent):
    def __init__(self, name: str, table: Mapping[str, Any]) -> None:
        self.name = name
        for key, value in table.items():
            if key in _LISTS:
                fits = isinstance(value, list) and value and all(isinstance(each, str) for each in value)
                wanted = "a list of arguments"
            elif key in _FLAGS:
                fits, wanted = isinstance(value, bool), "true or false"
            elif key == "install":
                fits, wanted = isinstance(value, str), "text"
            else:
                raise InvalidValue(
                    f"[agents.{name}]", f"has {key!r}, which is none of {', '.join((*_LISTS, *_FLAGS, 'install'))}"
                )
            if not fits:
                raise InvalidValue(f"[agents.{name}]", f"{key} must be {wanted}")
        if "interactive" not in table and "headless" not in table:
            raise InvalidValue(f"[agents.{name}]", "needs `interactive` or `headless`: the command to run")
        self._table = table
        self.program = (table.get("interactive") or table["headless"])[0]
        self.install = table.get("install", f"install {self.program}")
        self.exit_is_verdict = table.get("exit_is_verdict", True)
        self.chooses_id = table.get("chooses_id", False)
        self.keeps_conversation = "resume" in table

    def launch(self, task: Task) -> Launch:
        wanted = "resume" if task.resume else task.mode.value
        template = self._table.get(wanted)
        if template is None and task.mode is Mode.INTERACTIVE:
            template = self._table.get("headless")
        if template is None:
            raise self.unusable(f"has no `{wanted}` in the config file")
        if task.yolo and "yolo" not in self._table:
            raise self.unusable("has no `yolo` in the config file, so --yolo means nothing for it")
        prompt = task.prompt or ""
        values = {
            "{prompt_file}": os.path.join(task.folder, "prompt.txt"),
            "{conversation_id}": task.conversation_id or "",
            "{workdir}": task.workdir,
        }
        argv = []
        for part in template:
            argument = part
            for placeholder, value in values.items():
                argument = argument.replace(placeholder, value)
            # Last, so that nothing in a prompt is taken for a placeholder.
            argv.append(argument.replace("{prompt}", one_argument(self, prompt)))
        argv += self._table["yolo"] if task.yolo else []
        stdin = prompt if self._table.get("stdin") else None
        return Launch.of(*argv, stdin=stdin, files={"prompt.txt": prompt})
