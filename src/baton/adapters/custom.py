"""Adapt an agent that the config file defines:

    [agents.aider]
    interactive = ["aider", "--message-file", "{prompt_file}"]
    headless    = ["aider", "--yes", "--message-file", "{prompt_file}"]   # optional
    resume      = ["aider", "--restore-chat-history"]                      # optional
    stdin       = false             # pass the prompt on standard input
    yolo        = ["--yes-always"]  # added by --yolo; without this, --yolo is refused
    chooses_id  = false             # baton chooses {conversation_id}
    exit_is_verdict = true          # exit code 0 means done
    install     = "pip install aider-chat"

    [agents.aider.output]           # optional: patterns for lines of its headless output
    progress = '^step: (.*)'

`{prompt}`, `{prompt_file}`, `{conversation_id}` and `{workdir}` may be a whole argument or a part of one. The keys of
`output` are progress, permission, finished, failed, trouble and conversation_id. The text of the signal is the first
group of the pattern, or the whole match.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from baton.adapters.contract import Agent, Launch, Mode, Task, checked_argument
from baton.core.errors import InvalidValue
from baton.core.request import RequestKind
from baton.core.signal import FAILED, Asked, Conversation, Retrying, Said, Signal, TurnEnded

_LISTS = ("interactive", "headless", "resume", "yolo")
_FLAGS = ("stdin", "chooses_id", "exit_is_verdict")
_KEYS = (*_LISTS, *_FLAGS, "install", "output")


class Custom(Agent):
    def __init__(self, name: str, table: Mapping[str, Any]) -> None:
        self.name = name
        for key, value in table.items():
            if key in _LISTS:
                fits = isinstance(value, list) and value and all(isinstance(each, str) for each in value)
                wanted = "a list of arguments"
            elif key in _FLAGS:
                fits, wanted = isinstance(value, bool), "true or false"
            elif key == "output":
                fits, wanted = isinstance(value, dict), "a table of patterns"
            elif key == "install":
                fits, wanted = isinstance(value, str), "text"
            else:
                raise InvalidValue(f"[agents.{name}]", f"has {key!r}, which is none of {', '.join(_KEYS)}")
            if not fits:
                raise InvalidValue(f"[agents.{name}]", f"{key} must be {wanted}")
        if "interactive" not in table and "headless" not in table:
            raise InvalidValue(f"[agents.{name}]", "needs `interactive` or `headless`: the command to run")
        self._table = table
        self._patterns = _patterns(name, table.get("output", {}))
        self.program = (table.get("interactive") or table["headless"])[0]
        self.install = table.get("install", f"install {self.program}")
        self.exit_is_verdict = table.get("exit_is_verdict", True)
        self.chooses_id = table.get("chooses_id", False)
        self.keeps_conversation = "resume" in table
        resume = " ".join(table.get("resume", ()))
        self.resumes_by_id = "{conversation_id}" in resume
        self.resume_takes_prompt = table.get("stdin", False) or "{prompt" in resume

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
            "{prompt}": prompt,
            "{prompt_file}": os.path.join(task.folder, "prompt.txt"),
            "{conversation_id}": task.conversation_id or "",
            "{workdir}": task.workdir,
        }
        # One pass, so that no text of a prompt is taken for a placeholder.
        argv = [checked_argument(self, _PLACEHOLDER.sub(lambda found: values[found[0]], part)) for part in template]
        argv += self._table["yolo"] if task.yolo else []
        return Launch(
            argv=argv,
            stdin=prompt if self._table.get("stdin") else None,
            reads_lines=bool(self._patterns) and task.mode is Mode.HEADLESS,
            files={"prompt.txt": prompt},
        )

    def channel(self, task: Task) -> str | None:
        return "lines" if self._patterns and task.mode is Mode.HEADLESS else None

    def parse_output(self, line: str) -> list[Signal]:
        for field, pattern in self._patterns.items():
            if found := pattern.search(line):
                return [_SIGNALS[field](found[1] if pattern.groups else found[0])]
        return []


# The keys of `output`: what a line that matches means.
_SIGNALS: dict[str, Callable[[str], Signal]] = {
    "progress": lambda text: Said(text=text),
    "permission": lambda text: Asked(key="", kind=RequestKind.TOOL, tool=text, call=None, exact=False),
    "finished": lambda text: TurnEnded(message=text),
    "failed": lambda text: TurnEnded(how=FAILED, why=text),
    "trouble": lambda text: Retrying(number=0, most=0, why=text),
    "conversation_id": lambda text: Conversation(conversation_id=text),
}
_PLACEHOLDER = re.compile(r"\{(?:prompt|prompt_file|conversation_id|workdir)\}")


def _patterns(name: str, table: Mapping[str, Any]) -> dict[str, re.Pattern[str]]:
    found = {}
    for key, value in table.items():
        if key not in _SIGNALS:
            known = ", ".join(_SIGNALS)
            raise InvalidValue(f"[agents.{name}]", f"has 'output.{key}', which is none of {known}")
        try:
            found[key] = re.compile(value)
        except (re.error, TypeError) as error:
            raise InvalidValue(f"[agents.{name}]", f"output.{key} is not a valid pattern: {error}") from None
    return found
