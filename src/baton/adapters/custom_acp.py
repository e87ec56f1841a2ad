"""Adapt an agent that the config file defines, and that speaks ACP:

    [agents.kimi]
    acp      = ["kimi", "--acp"]       # the command that speaks ACP on standard input and output
    acp_mode = "default"               # optional: the mode of its sessions (session/set_mode)
    yolo     = ["--yolo"]              # added by --yolo; without this, --yolo is refused
    install  = "pip install kimi-cli"

    [agents.kimi.output]               # optional: patterns for the beginning of a piece of its messages
    failed  = 'Error: '                # the program says that its model service failed
    trouble = 'Retrying'               # ... and that it tries again

It has no screen of its own: its sessions are headless, and the pane shows what it does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from baton.adapters.acp_agent import AcpAgent
from baton.adapters.contract import Launch, Task
from baton.core.errors import InvalidValue

_ERROR = re.compile(r"\[API Error|Error: ")  # without a pattern of the user
_KEYS = ("acp", "acp_mode", "yolo", "install", "output")


class CustomAcp(AcpAgent):
    has_screen = False

    def __init__(self, name: str, table: Mapping[str, Any]) -> None:
        self.name = name
        for key, value in table.items():
            if key not in _KEYS:
                known = ", ".join(_KEYS)
                raise self._invalid(f"has {key!r}: an agent with `acp` has nothing but {known}")
            if key in ("acp", "yolo"):
                fits = isinstance(value, list) and value and all(isinstance(each, str) for each in value)
                wanted = "a list of arguments"
            elif key == "output":
                fits, wanted = isinstance(value, dict), "a table of patterns"
            else:
                fits, wanted = isinstance(value, str), "text"
            if not fits:
                raise self._invalid(f"{key} must be {wanted}")
        self.program, *arguments = table["acp"]
        self.install = table.get("install", f"install {self.program}")
        self.acp_arguments = tuple(arguments)
        self.acp_yolo = tuple(table.get("yolo", ()))
        self.acp_mode = table.get("acp_mode")
        patterns = {key: self._pattern(key, value) for key, value in table.get("output", {}).items()}
        self.acp_error = patterns.get("failed", _ERROR)
        self.acp_retry = patterns.get("trouble")

    def acp_launch(self, task: Task) -> Launch:
        if task.yolo and not self.acp_yolo:
            raise self.unusable("has no `yolo` in the config file, so --yolo means nothing for it")
        return super().acp_launch(task)

    def _pattern(self, key: str, value: object) -> re.Pattern[str]:
        if key not in ("failed", "trouble"):
            raise self._invalid(f"has 'output.{key}', which is none of failed, trouble")
        try:
            return re.compile(value)  # type: ignore[call-overload,no-any-return]
        except (re.error, TypeError) as error:
            raise self._invalid(f"output.{key} is not a valid pattern: {error}") from None

    def _invalid(self, why: str) -> InvalidValue:
        return InvalidValue(f"[agents.{self.name}]", why)
