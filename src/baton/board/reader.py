"""Read registries and sessions for the terminal board in a thread of its own: keys never wait for a store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from baton.core.errors import BatonError

Work = Callable[[], Any]
Then = Callable[[Any], None]


class Done(NamedTuple):
    """What a piece of work returned, or the error that it raised, and what is called with the result."""

    then: Then
    result: Any
    error: str | None


class Reader:
    """Does one piece of work after the other. Stores may belong to the thread that opened them: everything that uses
    the board's own is done here. No error of it ends the board."""

    def __init__(self, look: Work, report: Callable[[Done], None]) -> None:
        """`look` is the work that is done again and again; `report` is called in the thread, with each outcome."""
        self._look, self._report = look, report
        self._pool = ThreadPoolExecutor(1, "board-reader")
        self._looking: Future[Any] | None = None
        self._is_stopped = False

    def look(self) -> None:
        """Look soon, unless that is about to happen anyway."""
        if self._looking is None or self._looking.running() or self._looking.done():
            self._looking = self.do(self._look, lambda _: None)

    def do(self, work: Work, then: Then) -> Future[Any] | None:
        """Do this soon, and report what it returned; None if the reader is stopped: a timer may still call it."""
        if self._is_stopped:
            return None
        future = self._pool.submit(work)
        future.add_done_callback(lambda done: self._finish(done, then))
        return future

    def stop(self) -> None:
        self._is_stopped = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _finish(self, done: Future[Any], then: Then) -> None:
        if not done.cancelled():
            error = done.exception()
            self._report(Done(then, done.result(), None) if error is None else Done(then, None, _text(error)))


def _text(error: BaseException) -> str:
    known = isinstance(error, BatonError | OSError)
    return str(error) if known else f"unexpected {type(error).__name__}: {error}; please report it"
