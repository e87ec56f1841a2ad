"""Define what a channel is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from baton.core.request import Answer
    from baton.core.signal import Heard

    Hear = Callable[[Heard], None]


class AnswerRefused(Exception):
    """The question is no longer the one that was answered: the answer was not given to the agent. The channel asks the
    question again, as it is now."""


class Setup(Value):
    """What the agent's program needs to use a channel: variables for its environment, files for the session's folder by
    name, and file descriptors that it inherits. `argv` is the command to start in place of that of the adapter, where
    only the open channel knows it: a program that shows what a server of the channel does."""

    argv: tuple[str, ...] | None = None
    environment: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    descriptors: tuple[int, ...] = ()


class Channel(ABC):
    """How one session's agent talks to its runner.

    A channel that listens has a thread of its own, which answers from memory. It calls `hear` with each signal, from
    any thread; `hear` returns at once. `open` is called in a thread; until it returns, no other method is. The other
    methods are called by the runner's main thread and return at once: nothing that the runner waits for can hold up the
    agent."""

    stays = False  # whether a headless program waits for further prompts after its turn, until `finish`
    uncounted = ""  # why it may not say all that the agent spends; "" if it does
    hides_questions = False  # whether the agent's own screen shows a question only after `release`

    @abstractmethod
    def open(self, hear: Hear) -> Setup:
        """Begin to listen, before the agent's program starts. A channel whose agent is a server starts it here, in the
        work folder and with the environment of the task, and waits for it, within limits. Raise AgentUnusable when
        it does not begin."""

    def attach(self, stdin: int | None, stdout: int | None) -> None:  # noqa: B027  most channels use neither
        """Take this process's ends of the pipes to the program's standard streams, once it has started. None: the
        program has the terminal there. The channel closes them."""

    def begin(self, pid: int) -> None:  # noqa: B027  most channels need not know it
        """Take note of the process of the agent's program, once it has started."""

    def takes_text(self) -> bool:
        """Return whether a text that is typed now reaches the agent's prompt, as far as the agent says: no dialog of
        its own is open there."""
        return True

    def answer(self, key: str, answer: Answer) -> bool:
        """Give the agent the answer to its question. Return whether it was written: False if the question is gone.
        Raise AnswerRefused if what the agent asks has changed since it was shown."""
        return False

    def release(self, key: str) -> None:  # noqa: B027  most agents ask again by themselves
        """Leave a question to the person at the agent's own screen: nothing is decided here. The session has no job, or
        the job has ended."""

    def end_turn(self, turn: str, send_back: str | None) -> bool:
        """Let a turn end that the agent holds open (`TurnEnded.held`). With `send_back`, make the agent go on, with
        this text. Return False if it cannot be sent back any more."""
        return False

    def say(self, text: str) -> bool:
        """Give the agent a further prompt in its conversation. Return False if the channel cannot."""
        return False

    def finish(self) -> None:  # noqa: B027  most agents end by themselves, or are ended
        """Let a headless agent end: its job is over, and no further prompt comes. Background work ends with it."""

    @property
    def is_over(self) -> bool:
        """Return whether the agent itself has ended, such as its server, and the channel has said so: the runner ends
        the program that shows it."""
        return False

    @property
    def outputs(self) -> list[int]:
        """Return descriptors to read: the runner calls `read` when one is ready, and from time to time."""
        return []

    def read(self) -> None:  # noqa: B027  most channels have nothing to read
        """Read what is there, without waiting."""

    def take_text(self) -> str:
        """Return the output of the agent since the last call, as text for people. The runner keeps it as
        the output of the job."""
        return ""

    @property
    def inputs(self) -> list[int]:
        """Return descriptors that have to be written: the runner calls `write` when one is ready."""
        return []

    def write(self) -> None:  # noqa: B027  most channels have nothing to write
        """Write what the agent has not taken yet, without waiting."""

    def facts(self) -> Mapping[str, Any]:
        """Return what `baton explain` says about the channel itself: whether telemetry arrives, what it refused."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Stop listening. No thread is left behind."""


class Silent(Channel):
    """The channel of an agent that says nothing but its exit code."""

    def open(self, hear: Hear) -> Setup:
        return Setup()

    def close(self) -> None:
        return
