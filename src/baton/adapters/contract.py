"""What baton knows about an agent CLI. One small file each; a new one is a subclass and a line in `agents`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from enum import StrEnum

from baton.core.errors import AgentUnusable
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

# The kernel takes no longer argument than this, whatever their sum.
MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1


class Mode(StrEnum):
    INTERACTIVE = "interactive"  # on the terminal, as a person would use it
    HEADLESS = "headless"  # one piece of work, no questions, output for programs


class Task(Value):
    """What an agent is to be started for. `conversation_id` is the one to go on with when `resume`, else the one to
    begin, for agents that let us choose. `folder` is private to the session: files for the agent go there."""

    mode: Mode
    prompt: str | None
    conversation_id: str | None
    resume: bool
    yolo: bool
    folder: str
    workdir: str
    hook: list[str]  # the command that turns a hook's message into an event


class Launch(Value):
    """How to start it. `files` are written into the session's folder first. `reads_lines`: its output is for us to
    read, not for the terminal."""

    argv: list[str]
    stdin: str | None
    reads_lines: bool
    files: dict[str, str]

    @classmethod
    def of(
        cls,
        *argv: str,
        stdin: str | None = None,
        reads_lines: bool = False,
        files: Mapping[str, str] | None = None,
    ) -> Launch:
        return cls(argv=list(argv), stdin=stdin, reads_lines=reads_lines, files=dict(files or {}))


class Said(Value):
    """What an agent's output or hook tells. At most one of the first five is set:

    `progress`     it is doing something
    `permission`   it waits for somebody to allow what this says
    `finished`     it is done with what it was asked; its last words
    `failed`       it gave up, and why
    `trouble`      something is in its way, and it tries on: told if nothing comes of that
    """

    progress: str | None
    permission: str | None
    finished: str | None
    failed: str | None
    trouble: str | None
    conversation_id: str | None


_STRANGE_SHAPE: Final = (AttributeError, KeyError, TypeError, ValueError, IndexError)


def said(**told: str | None) -> Said:
    """TypeError when something is not text: it came from a program."""
    if not all(isinstance(each, str | None) for each in told.values()):
        raise TypeError("an agent says what is text")
    return Said(**(dict.fromkeys(Said.fields()) | told))


class Agent(ABC):
    """An agent CLI. What it cannot do it says (AgentUnusable), and never fakes."""

    name: str
    program: str
    install: str  # what to type when the program is missing
    exit_is_verdict = False  # whether exit code 0 means that the work is done
    chooses_id = False  # whether the conversation's id can be given to it
    keeps_conversation = False
    interrupt_key = "Escape"  # what makes it leave off, and live on
    resumes_by_id = True  # whether going on with a conversation takes its id

    @abstractmethod
    def launch(self, task: Task) -> Launch:
        """How to start it for that; AgentUnusable when it cannot be done."""

    def typed(self, prompt: str, file: str, publish: list[str]) -> tuple[str, dict[str, str]]:
        """What to type into it, where it is running already, to hand it a job; and what to write before, by path:
        `file`, or a name that begins so. `publish` is the command line that says what became of the job, without the
        event."""
        return prompt, {}

    def output(self, line: str) -> Said | None:
        """What a line of its headless output tells."""
        return None

    def hooked(self, message: Mapping[str, Any]) -> Said | None:
        """What a message from one of its hooks tells."""
        return None

    def was_asked(self, message: Mapping[str, Any], mark: str) -> bool:
        """Whether the conversation that a hook tells of contains the words: what was typed while the agent was busy may
        still wait for its turn."""
        return True

    # Programs change their shapes monthly: what we cannot read is no reason to end a good job.

    def understood(self, line: str) -> Said | None:
        try:
            return self.output(line)
        except _STRANGE_SHAPE:
            return None

    def understood_hook(self, message: Mapping[str, Any]) -> Said | None:
        try:
            return self.hooked(message)
        except _STRANGE_SHAPE:
            return None

    def refusal(self, message: Mapping[str, Any], why: str) -> str | None:
        """What the hook that says "finished" answers, so that the agent goes on and mends `why`; None when it cannot be
        told that way."""
        return None

    def in_the_way(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        """What will stop it when it is started there, such as a question that only a person may answer."""
        return []

    def unusable(self, why: str) -> AgentUnusable:
        return AgentUnusable(f"{self.name} {why}")


def one_argument(agent: Agent, argument: str) -> str:
    """A prompt that goes in as an argument, with what may stand before it, where that fits."""
    if len(argument.encode()) > MAX_ARGUMENT_BYTES:
        raise agent.unusable(
            f"takes no prompt of more than {MAX_ARGUMENT_BYTES} bytes this way; use --headless, or a file"
        )
    return argument


def short(value: object, longest: int = 300) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def json_object(line: str) -> dict[str, Any]:
    """The object in a line of output; an empty one when it is something else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
