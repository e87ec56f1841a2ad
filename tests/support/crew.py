"""Processes of a test: forked, heard on one pipe, and none left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_SEC = 60.0
_FAILED = "failed"


class Crew:
    """Forks processes and hears what they say. Leaving the `with` block kills and reaps every one of them.

    Fork only while this process has no registry open: connections do not survive a fork.
    """

    def __init__(self) -> None:
        self._hearing, self._saying = os.pipe()
        self._rest = b""
        self._heard: deque[list] = deque()
        self.failures: list[str] = []
        self.pids: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        for fd in (self._hearing, self._saying):
            if fd >= 0:
                os.close(fd)

    def fork(self, work: Callable[..., None], *arguments: object) -> int:
        """Starts `work(say, *arguments)` in a process of its own. What it raises is among the `failures`."""
        pid = os.fork()
        if pid == 0:
            self._live(work, arguments)
        self.pids.append(pid)
        return pid

    def _live(self, work: Callable[..., None], arguments: tuple[object, ...]) -> NoReturn:
        try:
            os.close(self._hearing)  # when the test itself is killed, the next word is a broken pipe
            work(self.say, *arguments)
        except BaseException:
            self.say(_FAILED, traceback.format_exc()[-1500:])
        finally:
            os._exit(0)

    def say(self, *words: object) -> None:
        line = json.dumps(words).encode() + b"\n"
        assert len(line) <= select.PIPE_BUF, "only short writes are whole or not at all"
        os.write(self._saying, line)

    def hear(self, seconds: float) -> Iterator[list]:
        """What is said within that time."""
        until = time.monotonic() + seconds
        while True:
            while self._heard:
                yield self._heard.popleft()
            left = until - time.monotonic()
            if left <= 0 or not self._listen(left):
                return

    def hear_word(self, first: str, seconds: float = PATIENCE_SEC) -> list:
        """The next line, which must begin with that word."""
        words = next(self.hear(seconds), [None])
        assert words[0] == first, f"expected {first}, heard {words} {self.failures}"
        return words

    def hear_out(self, seconds: float = PATIENCE_SEC) -> Iterator[list]:
        """Everything said until the last process has ended. Nobody can be forked afterwards."""
        os.close(self._saying)
        self._saying = -1
        yield from self.hear(seconds)

    def _listen(self, seconds: float) -> bool:
        """Waits for something to be said; False when nothing was, or nobody is left to say it."""
        ready, _, _ = select.select([self._hearing], [], [], seconds)
        said = os.read(self._hearing, 1 << 16) if ready else b""
        *lines, self._rest = (self._rest + said).split(b"\n")
        for words in map(json.loads, lines):
            if words[0] == _FAILED:
                self.failures.append(words[1])
            else:
                self._heard.append(words)
        return bool(said)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.pids.remove(pid)

    def kill_all(self) -> None:
        for pid in list(self.pids):
            self.kill(pid)

    def wait_until_stopped(self, pid: int) -> None:
        """Until it has stopped itself with SIGSTOP."""
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self.pids.remove(pid)
            self._listen(0)
            raise AssertionError(f"process {pid} ended instead of stopping {self.failures}")

    def wake(self, pid: int) -> None:
        os.kill(pid, signal.SIGCONT)
