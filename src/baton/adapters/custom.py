"""Adapt an agent that the config file defines:

    [agents.aider]
    interactive = ["aider", "--message-file", "{prompt_file}"]
    headless    = ["aider", "--yes", "--message-file", "{prompt_file}"]   # optional
    resume_interactive = ["aider", "--restore-chat-history"]               # optional; `resume` means the same
    resume_headless = ["aider", "--restore-chat-history", "--yes", "--message-file", "{prompt_file}"]   # optional
    stdin       = false             # pass the prompt on standard input
    yolo        = ["--yes-always"]  # added by --yolo; without this, --yolo is refused
    chooses_id  = false             # baton chooses {conversation_id}
    exit_is_verdict = true          # exit code 0 means done
    success     = '^Applied edit'   # exit code 0 means done only if a line of its headless output matches
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
from baton.core.fields import one_line
from baton.core.request import RequestKind
from baton.core.signal import FAILED, Asked, Conversation, Retrying, Said, Signal, TurnEnded

_LISTS = ("interactive", "headless", "resume", "resume_interactive", "resume_headless", "yolo")
_FLAGS = ("stdin", "chooses_id", "exit_is_verdict")
_LINE = 300  # characters of its output in a reason
_KEYS = (*_LISTS, *_FLAGS, "success", "install", "output")


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
            elif key in ("install", "success"):
                fits, wanted = isinstance(value, str), "text"
            else:
                raise InvalidValue(f"[agents.{name}]", f"has {key!r}, which is none of {', '.join(_KEYS)}")
            if not fits:
                raise InvalidValue(f"[agents.{name}]", f"{key} must be {wanted}")
        if "interactive" not in table and "headless" not in table:
            raise InvalidValue(f"[agents.{name}]", "needs `interactive` or `headless`: the command to run")
        if "resume" in table and "resume_interactive" in table:
            raise InvalidValue(f"[agents.{name}]", "has `resume` and `resume_interactive`, which mean the same")
        self._table = table
        self._patterns = _patterns(name, table.get("output", {}))
        self._success = _pattern(name, "success", table["success"]) if "success" in table else None
        self._succeeded = False
        self._last_line = ""
        self.program = (table.get("interactive") or table["headless"])[0]
        self.install = table.get("install", f"install {self.program}")
        self.exit_is_verdict = table.get("exit_is_verdict", True)
        self.chooses_id = table.get("chooses_id", False)
        resumes = [part for mode in Mode for part in self._resume(mode) or ()]
        self.keeps_conversation = bool(resumes)
        self.resumes_by_id = "{conversation_id}" in " ".join(resumes)

    def resumes(self, mode: Mode) -> bool:
        template = self._resume(mode)
        return template is not None and self._takes_prompt(template)

    def _resume(self, mode: Mode) -> list[str] | None:
        """Return the command that continues a conversation in this mode."""
        found: list[str] | None = self._table.get(f"resume_{mode}")
        return self._table.get("resume") if found is None and mode is Mode.INTERACTIVE else found

    def _takes_prompt(self, template: list[str]) -> bool:
        return self._table.get("stdin", False) or "{prompt" in " ".join(template)

    def _template(self, task: Task) -> list[str]:
        wanted = f"resume_{task.mode}" if task.resume else task.mode.value
        found = self._resume(task.mode) if task.resume else self._table.get(wanted)
        if found is None and not task.resume and task.mode is Mode.INTERACTIVE:
            found = self._table["headless"]
        if found is None:
            raise self.unusable(f"has no `{wanted}` in the config file")
        if task.resume and task.prompt is not None and not self._takes_prompt(found):
            raise self.unusable(f"takes no prompt when it resumes: add {{prompt}} to `{wanted}` in the config file")
        return found

    def launch(self, task: Task) -> Launch:
        template = self._template(task)
        self._succeeded, self._last_line = False, ""
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
            reads_lines=self.channel(task) is not None,
            files={"prompt.txt": prompt},
        )

    def channel(self, task: Task) -> str | None:
        listens = self._patterns or self._success is not None
        return "lines" if listens and task.mode is Mode.HEADLESS else None

    def check_job(self, mode: Mode) -> None:
        if self._success is not None and mode is Mode.INTERACTIVE:
            raise self.unusable("says in its headless output alone whether it succeeds (`success`): use --headless")

    def exit_cause(self, code: int) -> str:
        said = one_line(self._last_line, _LINE)
        if code != 0:
            return f"its last line: {said}" if said else ""
        if self._success is None or self._succeeded:
            return ""
        return "no line of its output matches `success`" + (f"; its last line: {said}" if said else "")

    def parse_output(self, line: str) -> list[Signal]:
        self._last_line = line if line.strip() else self._last_line
        if self._success is not None and self._success.search(line):
            self._succeeded = True
        for field, pattern in self._patterns.items():
            if found := pattern.search(line):
                self._succeeded = self._succeeded and field not in ("failed", "trouble")
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
    for key in table:
        if key not in _SIGNALS:
            known = ", ".join(_SIGNALS)
            raise InvalidValue(f"[agents.{name}]", f"has 'output.{key}', which is none of {known}")
    return {key: _pattern(name, f"output.{key}", value) for key, value in table.items()}


def _pattern(name: str, key: str, value: Any) -> re.Pattern[str]:
    try:
        return re.compile(value)
    except (re.error, TypeError) as error:
        raise InvalidValue(f"[agents.{name}]", f"{key} is not a valid pattern: {error}") from None
