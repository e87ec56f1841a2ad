"""Define what an adapter is: how to start an agent CLI, and what its output means."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum

from baton.core.errors import AgentUnusable
from baton.core.fields import UNEXPECTED_SHAPE
from baton.core.fields import json_object as json_object  # noqa: PLC0414  for adapters
from baton.core.signal import Conversation
from baton.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.core.signal import Signal

# The kernel accepts no longer argument, whatever the sum of all.
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
# An id becomes an argument of the agent: it is never an option, a path or several words.
CONVERSATION_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+=-]{0,199}", re.ASCII)
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


class Mode(StrEnum):
    INTERACTIVE = "interactive"  # on the terminal, as a person would use it
    HEADLESS = "headless"  # one piece of work, no questions, output for programs


class Task(Value):
    """What to start an agent for.

    `conversation_id` is the conversation to continue when `resume` is set. Otherwise it is the id of the new
    conversation, for agents that let the caller choose it. `folder` is private to the session: files for the agent go
    there. `hook` is the command that passes a hook's message to baton. `environment` is that of the program, for a
    channel that starts it. `budget_usd` is what the work may cost from now on; None: there is no limit.
    """

    mode: Mode
    prompt: str | None
    conversation_id: str | None
    resume: bool
    yolo: bool
    folder: str
    workdir: str
    hook: list[str]
    environment: Mapping[str, str] = {}
    budget_usd: float | None = None


class Launch(Value):
    """How to start an agent.

    The runner writes `files` into the session's folder first. `reads_lines`: the channel reads the output, instead of
    leaving it on the terminal. `keeps_input`: the channel writes the input, which stays open.
    """

    argv: list[str]
    stdin: str | None = None
    reads_lines: bool = False
    keeps_input: bool = False
    files: Mapping[str, str] = {}


class Capabilities(Value):
    """What baton can do with an agent in one mode, in words for `docs/agents.md`: by what it hears what the agent is
    doing, who can answer what the agent asks, and what it knows about tokens and cost."""

    heard_by: str
    answered_by: str
    usage: str


def text(value: object) -> str:
    """Return the value; raise TypeError if it is not text. The values come from another program."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


class Agent(ABC):
    """An agent CLI. A method raises AgentUnusable for what the program cannot do; it never fakes it."""

    name: str
    program: str
    install: str  # the command that installs the program
    tested_version = ""  # of the program; other releases may behave differently
    on_terminal: Capabilities | None = None
    when_headless: Capabilities | None = None
    exit_is_verdict = False  # whether exit code 0 means that the work is done
    chooses_id = False  # whether the caller chooses the id of a conversation
    keeps_conversation = False
    carries_on_sec = 0.0  # within which it goes on by itself after a usage limit, as a rule; 0: it does not
    interrupt_key = "Escape"  # the key that interrupts a turn and leaves the agent running
    interrupt_presses = 1  # how often that key is pressed, with a short pause
    yolo_by_channel = False  # whether its channel, and no flag, skips its permissions
    resumes_by_id = True  # whether resuming a conversation needs its id
    trusts_worktrees = False  # whether the user's trust in a repository holds in its worktrees elsewhere
    has_screen = True  # whether it can work on the terminal; otherwise all its sessions are headless
    conversation_form = CONVERSATION_ID  # what the ids of its conversations look like

    @abstractmethod
    def launch(self, task: Task) -> Launch:
        """Return how to start the agent for this task; raise AgentUnusable when it cannot do it."""

    def channel(self, task: Task) -> str | None:
        """Return the name of the channel (`baton.channels.find`) by which the agent talks for this task; None: by none,
        its exit code alone says how the work ended."""
        return None

    def usable_mode(self, wanted: Mode) -> Mode:
        """Return the mode of a session for which this one is wanted."""
        return wanted if self.has_screen else Mode.HEADLESS

    def job_input(self, prompt: str, file: str, publish: list[str]) -> tuple[str, dict[str, str]]:
        """Return the text that hands a job to the running agent, and the files to write before, by path.

        Each path is `file`, or begins with it. `publish` is the command line that publishes an event of the job,
        without the event's name.
        """
        return prompt, {}

    def parse_output(self, line: str) -> list[Signal]:
        """Return what a line of the headless output means."""
        return []

    def render_output(self, line: str) -> str:
        """Return a line of the headless output as text for people, with its line breaks; empty for nothing."""
        return line + "\n"

    # Programs change the shape of their messages monthly. A message that cannot be read does not fail a good job.

    def read_output(self, line: str) -> list[Signal]:
        """Call `parse_output`; a line of an unexpected shape means nothing."""
        try:
            return self._without_foreign_ids(self.parse_output(line))
        except UNEXPECTED_SHAPE:
            return []

    def read_text(self, line: str) -> str:
        """Call `render_output`; return the line itself if its shape is unexpected."""
        try:
            return self.render_output(line)
        except UNEXPECTED_SHAPE:
            return line + "\n"

    def _without_foreign_ids(self, found: list[Signal]) -> list[Signal]:
        """Drop the id of a conversation that does not have the form of this agent's ids."""
        return [
            each for each in found if not isinstance(each, Conversation) or self.is_conversation(each.conversation_id)
        ]

    def is_conversation(self, conversation_id: str) -> bool:
        """Return whether this can be the id of a conversation of this agent."""
        return self.conversation_form.fullmatch(conversation_id) is not None

    def check_resume(self, conversation_id: str | None, prompt: str | None) -> None:
        """Raise AgentUnusable if the agent cannot continue this conversation with this prompt."""
        if not self.keeps_conversation:
            raise self.unusable("keeps no conversation that could be continued")
        if self.resumes_by_id and conversation_id is None:
            raise self.unusable("did not say which conversation it was, so it cannot be continued")

    def resumes(self, mode: Mode) -> bool:
        """Return whether the agent can continue a conversation in this mode with a further prompt."""
        return self.keeps_conversation

    def keeps_budget(self, mode: Mode) -> bool:
        """Return whether the program ends its turn by itself when it has spent `Task.budget_usd`."""
        return False

    def check_job(self, mode: Mode) -> None:  # noqa: B027  most agents say how their work ended in both modes
        """Raise AgentUnusable if the end of a job in this mode would stay unknown."""

    def exit_cause(self, code: int) -> str:
        """Return what this exit code means, for the reason of the job: a text for code 0 says why it is no success.
        Return "" if there is no more to say."""
        return ""

    def checked_launch(self, task: Task) -> Launch:
        """Call `launch`; refuse a task whose conversation id could be anything but an id, such as an option."""
        wanted = task.conversation_id
        if wanted is not None and not self.is_conversation(wanted):  # guard: conversation-id
            raise self.unusable(f"has no conversation {wanted[:80]!r}: that is not the form of its ids")
        return self.launch(task)

    def check_release(self, release: str) -> None:  # noqa: B027  most agents are used in any release
        """Raise AgentUnusable if baton cannot work with this release of the program."""

    def startup_blockers(self, workdir: str, environment: Mapping[str, str]) -> list[str]:
        """Return what will block the agent when it starts there, such as a question that only a person may answer."""
        return []

    def unusable(self, why: str) -> AgentUnusable:
        return AgentUnusable(f"{self.name} {why}")


def checked_argument(agent: Agent, argument: str) -> str:
    """Return an argument that holds a prompt; raise AgentUnusable when the kernel would refuse its length."""
    if len(argument.encode()) > MAX_ARGUMENT_BYTES:
        raise agent.unusable(
            f"takes no prompt of more than {MAX_ARGUMENT_BYTES} bytes this way; use --headless, or a file"
        )
    return argument
