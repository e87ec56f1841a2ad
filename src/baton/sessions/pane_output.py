"""Keep the output of the jobs of a session. What a program prints on its pane, tmux copies to the runner."""

import os
import select
import time
from collections.abc import Callable
from functools import partial

from baton.config import Settings
from baton.core.errors import BatonError
from baton.core.job import Job
from baton.jobs.output import OutputWriter
from baton.jobs.verbs import Jobs
from baton.sessions.chores import attempt
from baton.sessions.env_pipe import read_available
from baton.sessions.tmux import Tmux

_READ_BYTES = 1 << 20  # in one go, so that a program with much output does not hold up the runner
_SYNC_SEC = 2.0


def output_writer(settings: Settings, jobs: Jobs, job: Job) -> OutputWriter:
    """Return what appends to the output of the present attempt at a job."""
    return OutputWriter(settings.home, job, settings.keep_output_mb * 10**6, jobs.keys(job))


class JobOutput:
    """Appends to the output of the job that a session works on. Nothing that fails here stops the job."""

    def __init__(self, settings: Settings, jobs: Jobs) -> None:
        self._settings = settings
        self._jobs = jobs
        self._job: Job | None = None
        self._writer: OutputWriter | None = None

    def write(self, job: Job | None, content: bytes) -> None:
        if job is not self._job:
            self.flush()
            self._job, self._writer = job, None
            attempt(self._open)
        if self._writer is not None and content:
            attempt(partial(self._writer.write, content))

    def write_line(self, job: Job | None, text: str) -> None:
        """Write a text as lines of their own, at once."""
        if text:
            self.write(job, text.encode(errors="replace").rstrip(b"\n") + b"\n")
            self.flush()

    def _open(self) -> None:
        if self._job is not None:
            self._writer = output_writer(self._settings, self._jobs, self._job)

    def flush(self) -> None:
        if self._writer is not None:
            attempt(self._writer.flush)


class PaneOutput:
    """A copy of what is printed on a pane. Without tmux it stays empty."""

    def __init__(self, socket: str, pane_id: str) -> None:
        self._output, self._input = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            Tmux(socket).copy_output(pane_id, self._input)
        except BatonError:
            self.close()

    def outputs(self) -> list[int]:
        """Return the file descriptors to wait for before `read`."""
        return [] if self._output < 0 else [self._output]

    def read(self) -> bytes:
        """Return what can be read now, up to a limit."""
        content = b""
        while self._output >= 0 and len(content) < _READ_BYTES and (more := read_available(self._output)):
            content += more
        return content

    def read_rest(self, write: Callable[[bytes], None]) -> None:
        """Write everything that has been printed on the pane until now."""
        if self._output < 0:
            return
        # The pane shows nothing of this sequence. When it comes back, so has all that was printed before.
        mark = b"\x1b^baton:%s\x1b\\" % os.urandom(8).hex().encode()
        try:
            os.write(1, mark)
        except OSError:
            return  # the pane is closed
        last, deadline = b"", time.monotonic() + _SYNC_SEC
        while time.monotonic() < deadline:
            select.select([self._output], [], [], 0.05)
            before, found, _ = (last + self.read()).partition(mark)
            if found:
                write(before)
                return
            keep = max(len(before) - len(mark), 0)
            write(before[:keep])
            last = before[keep:]
        write(last)

    def close(self) -> None:
        for fd in (self._output, self._input):
            if fd >= 0:
                os.close(fd)
        self._output = self._input = -1
