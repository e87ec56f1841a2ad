"""Run the program of an agent on the terminal of the pane, and read its output."""

import os
import subprocess
from typing import Self

from baton.adapters.contract import Launch
from baton.core.errors import BatonError
from baton.sessions.env_pipe import read_available
from baton.sessions.terminal import give_terminal

_READ_BYTES = 1 << 20  # in one go, so that an agent with much output does not hold up the runner
_LINE_BYTES = 16 << 20  # of an unfinished line; what is longer is cut at its beginning


class AgentProcess:
    """The program of an agent, in a process group of its own that has the terminal until `close`."""

    def __init__(self, launch: Launch, *, workdir: str, environment: dict[str, str]) -> None:
        try:
            self._child = subprocess.Popen(
                launch.argv,
                cwd=workdir,
                env=environment,
                stdin=subprocess.PIPE if launch.stdin is not None else None,
                stdout=subprocess.PIPE if launch.reads_lines else None,
                process_group=0,
                # Before exec: a program that reads the terminal in the background may fail.
                preexec_fn=give_terminal,  # noqa: PLW1509  it takes no lock
            )
        except OSError as error:
            raise BatonError(f"{launch.argv[0]} could not be started: {error.strerror}") from None
        self.pid = self._child.pid
        self._rest = b""
        self._output = self._child.stdout.fileno() if self._child.stdout is not None else None
        if self._output is not None:
            os.set_blocking(self._output, False)
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
        pipe, self._child.stdin = self._child.stdin, None
        if text is None or pipe is None:
            return
        import _thread

        def write() -> None:
            try:
                with pipe:
                    pipe.write(text.encode())
            except OSError:
                pass  # the agent closed it before the end of the text

        _thread.start_new_thread(write, ())

    def outputs(self) -> list[int]:
        """Return the file descriptors to wait for before `read_lines`."""
        return [] if self._output is None else [self._output]

    def read_lines(self) -> list[str]:
        """Return the complete lines that can be read now, up to a limit; at the end of the output also the last one."""
        text = self._rest
        while self._output is not None and len(text) - len(self._rest) < _READ_BYTES:
            more = read_available(self._output)
            if more is None:
                break
            text += more
            if not more:
                self._output = None
                text += b"" if text.endswith(b"\n") or not text else b"\n"
        *lines, rest = text.split(b"\n")
        self._rest = rest[-_LINE_BYTES:]
        return [line.decode(errors="replace") for line in lines]

    def has_ended(self) -> bool:
        return self._child.poll() is not None

    @property
    def exit_code(self) -> int:
        """Return the exit code of the ended program; -N when signal N ended it."""
        return self._child.returncode
