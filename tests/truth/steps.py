"""The steps of a script: what a scripted model answers to one request. They are the same for every protocol."""

from __future__ import annotations

import re
from typing import NamedTuple

CUE = re.compile(r"\[play ([\w-]+)\]")


def cue(name: str) -> str:
    """Return the text that makes the model play this script."""
    return f"[play {name}]"


class Say(NamedTuple):
    """Speak; over `sec` seconds, a dot each half second, if that is given."""

    text: str
    sec: float = 0


class Shell(NamedTuple):
    """Run a command with the program's own shell tool, whatever that is called there."""

    command: str
    background: bool = False  # Claude Code alone
    ask: bool = False  # Codex alone: want to leave the sandbox, which needs a permission
    verdict: str = ""  # Claude Code alone: what its service says of it in auto mode, FLAGGED or NOT_FLAGGED


class Call(NamedTuple):
    """Use a tool of this name."""

    tool: str
    given: dict


class Fail(NamedTuple):
    """Answer the first `times` requests for this step with an error. Status 0: close the connection without an answer."""

    status: int
    message: str
    kind: str = "api_error"
    times: int = 1_000_000
    headers: dict = {}  # noqa: RUF012  never changed


class Pause(NamedTuple):
    """Think for this long."""

    sec: float


class Tokens(NamedTuple):
    """Say that the conversation has this many tokens."""

    number: int


Step = list
FLAGGED, NOT_FLAGGED = "flagged", "not_flagged"


def bash(command: str, *, background: bool = False, ask: bool = False, verdict: str = "") -> Shell:
    return Shell(command, background, ask, verdict)


# -- tools of Claude Code ----------------------------------------------------------------------------------------------


def subagent(prompt: str, *, background: bool = False) -> Call:
    given = {"description": "part of the work", "prompt": prompt, "subagent_type": "general-purpose"}
    return Call("Agent", given | {"run_in_background": background})


def read(path: str) -> Call:
    return Call("Read", {"file_path": path})


def question(text: str, *choices: str) -> Call:
    options = [{"label": choice, "description": f"take {choice}"} for choice in choices]
    return Call("AskUserQuestion", {"questions": [{"question": text, "header": "Choice", "options": options,
                                                   "multiSelect": False}]})  # fmt: skip


def write(path: str, text: str) -> Call:
    return Call("Write", {"file_path": path, "content": text})


def plan(text: str) -> Call:
    return Call("ExitPlanMode", {"plan": text})
