"""Any command: the prompt is the script, its exit code the verdict."""

from __future__ import annotations

import os

from baton.agents.base import Agent, Launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.agents.base import Task


class Shell(Agent):
    name = "shell"
    program = "sh"
    install = "a POSIX system has it"
    exit_is_verdict = True

    def launch(self, task: Task) -> Launch:
        if task.prompt is None:
            return Launch.of(os.environ.get("SHELL") or "/bin/sh", "-i")
        # In a file: no limit of length, and `ps` does not show it.
        return Launch.of("/bin/sh", os.path.join(task.folder, "prompt.sh"), files={"prompt.sh": task.prompt + "\n"})
