"""Adapt agents that speak ACP, the Agent Client Protocol: JSON-RPC 2.0, one message on each line of a pipe.

An adapter of such an agent derives from AcpAgent. Plain attributes say what differs by agent; `baton.channels.acp`
reads them. An agent with a screen of its own speaks ACP only when it is headless."""

from __future__ import annotations

import re

from baton.adapters.contract import Agent, Launch, Mode, Task


class AcpAgent(Agent):
    keeps_conversation = True
    acp_arguments: tuple[str, ...] = ("--acp",)  # of the program: with them it speaks ACP
    acp_channel = "acp"
    acp_yolo: tuple[str, ...] = ()  # arguments that skip its permissions
    acp_mode: str | None = None  # the mode of its sessions, where the usual one decides without asking
    # Words at the beginning of a piece of a message that are not the model's. The program says them itself:
    acp_error: re.Pattern[str] | None = re.compile(r"\[API Error")  # its model service failed
    acp_retry: re.Pattern[str] | None = None  # its model service failed, and it tries again
    # Words in the result of a failed tool call: the agent's own settings do not allow it, without a question.
    acp_barred = re.compile(r"\bdenied by (?:permission|policy|rule)", re.IGNORECASE)
    acp_total_usage = False  # whether the usage of a turn is the sum over the conversation
    # Of several options that allow once, the id of the one that changes nothing else; None: they are a choice.
    acp_once: str | None = None
    acp_silence_sec = 30.0  # without a word for so long: agents retry a service that fails in silence
    acp_repeat_sec = 1.0  # after so long without an update, it has repeated the past of a conversation

    def speaks_acp(self, task: Task) -> bool:
        """Return whether the agent speaks ACP for this task, rather than with a person."""
        return task.mode is Mode.HEADLESS or not self.has_screen

    def launch(self, task: Task) -> Launch:
        return self.acp_launch(task) if self.speaks_acp(task) else self.screen_launch(task)

    def channel(self, task: Task) -> str | None:
        return self.acp_channel if self.speaks_acp(task) else self.screen_channel(task)

    def acp_launch(self, task: Task) -> Launch:
        """Return how to start the agent so that it speaks ACP: the prompt goes through the channel."""
        if task.prompt is None:
            raise self.unusable("has no screen this way, so it needs a prompt or a job")
        argv = [self.program, *self.acp_arguments, *(self.acp_yolo if task.yolo else ())]
        return Launch(argv=argv, reads_lines=True, keeps_input=True)

    def acp_load_wait_sec(self, task: Task, now_sec: float) -> float:
        """Return how long to wait before the conversation of the task can be loaded; `now_sec` is since 1970."""
        return 0.0

    def screen_launch(self, task: Task) -> Launch:
        """Return how to start the agent on the terminal."""
        raise self.unusable("has no screen of its own")

    def screen_channel(self, task: Task) -> str | None:
        """Return the name of the channel of an agent on the terminal."""
        return None
