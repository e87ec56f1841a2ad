"""Adapt any command: the prompt is the script, and its exit code decides."""

import os
import shlex

from baton.adapters.contract import Agent, Capabilities, Launch, Task


class Shell(Agent):
    name = "shell"
    program = "sh"
    install = "a POSIX system has it"
    on_terminal = when_headless = Capabilities(heard_by="its exit code", answered_by="it asks nothing", usage="none")
    exit_is_verdict = True
    interrupt_key = "C-c"

    def launch(self, task: Task) -> Launch:
        if task.prompt is None:
            return Launch(argv=[os.environ.get("SHELL") or "/bin/sh", "-i"])
        if task.yolo:
            raise self.unusable("asks for no permissions, so --yolo means nothing for it")
        # A file has no limit of length, and `ps` does not show its content.
        argv = ["/bin/sh", os.path.join(task.folder, "prompt.sh")]
        return Launch(argv=argv, files={"prompt.sh": task.prompt + "\n"})

    def job_input(self, prompt: str, file: str, publish: list[str]) -> tuple[str, dict[str, str]]:
        run = f"{file}.run"
        return f"/bin/sh {shlex.quote(run)}", {
            file: prompt + "\n",
            run: _RUN.format(file=shlex.quote(file), publish=shlex.join(publish)),
        }


_RUN = """\
/bin/sh {file}
code=$?
if [ $code = 0 ]; then
    {publish} completed --detail "the command ended with exit code 0" ||
        {publish} error --detail "the command ended with exit code 0, but its results were not accepted"
else
    {publish} error --detail "the command ended with exit code $code"
fi
"""
