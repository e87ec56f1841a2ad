"""Run the program of an agent on the terminal of the pane."""

import os
import subprocess
from collections.abc import Sequence
from typing import Self

from baton.adapters.contract import Launch
from baton.core.errors import BatonError
from baton.sessions.terminal import give_terminal


class AgentProcess:
    """The program of an agent, in a process group of its own that has the terminal until `close`."""

    def __init__(
        self, launch: Launch, *, workdir: str, environment: dict[str, str], inherit: Sequence[int] = ()
    ) -> None:
        try:
            self._child = subprocess.Popen(
                launch.argv,
                cwd=workdir,
                env=environment,
                stdin=subprocess.PIPE if launch.stdin is not None or launch.keeps_input else None,
                stdout=subprocess.PIPE if launch.reads_lines else None,
                process_group=0,
                pass_fds=inherit,
                # Before exec: a program that reads the terminal in the background may fail.
                preexec_fn=give_terminal,  # noqa: PLW1509  it takes no lock
            )
        except OSError as error:
            raise BatonError(f"{launch.argv[0]} could not be started: {error.strerror}") from None
        self.pid = self._child.pid
        give_terminal(self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        give_terminal()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()

    def feed(self, text: str | None) -> None:
        """Write the prompt to standard input, from a thread: the agent may never read it."""
        if text is None or self._child.stdin is None:
            return
        pipe, self._child.stdin = self._child.stdin, None
        from threading import Thread

        def write() -> None:
            try:
                with pipe:
                    pipe.write(text.encode())
            except OSError:
                pass  # the agent closed it before the end of the text

        Thread(target=write, daemon=True).start()

    def take_pipes(self) -> tuple[int | None, int | None]:
        """Return this process's ends of the pipes to standard input, if it stays open, and to standard output. The
        caller closes them."""
        stdin, stdout = self._child.stdin, self._child.stdout
        ends = (None if stdin is None else os.dup(stdin.fileno()), None if stdout is None else os.dup(stdout.fileno()))
        for pipe in (stdin, stdout):
            if pipe is not None:
                pipe.close()
        self._child.stdin = self._child.stdout = None
        return ends

    def has_ended(self) -> bool:
        return self._child.poll() is not None

    @property
    def exit_code(self) -> int:
        """Return the exit code of the ended program; -N when signal N ended it."""
        return self._child.returncode
