"""Run in a thread what takes long: meanwhile the runner renews the lease of the job, answers its agent and obeys a
stop."""

from __future__ import annotations

from threading import Thread

from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class InThread:
    """One call in a thread of its own. `wake` is called when it is over."""

    def __init__(self, call: Callable[[], Any], wake: Callable[[], None]) -> None:
        self._call, self._wake = call, wake
        self._result: Any = None
        self._error: Exception | None = None
        self.is_done = False
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # noqa: BLE001  the main thread raises it
            self._error = error
        self.is_done = True
        self._wake()

    def result(self) -> Any:
        """Return what the call returned; raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result
