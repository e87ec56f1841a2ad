"""Describe the end of an agent's program."""

from __future__ import annotations

import re
from signal import Signals

from baton.core.result import before_backtrace, last_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LINES = 10
_LINES_BYTES = 2000
# A word of a banner or a frame: not ASCII, and without letters and digits. `==` and `->` are words of messages.
_ART = re.compile(r"(?<!\S)(?=\S*[^\x00-\x7f])[^\w\s]+(?!\S)\s*")


class ExitStatus:
    """How a program ended: `code` is its exit code, -N when signal N ended it."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.ok = code == 0

    @property
    def text(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"signal {Signals(-self.code).name}"
        except ValueError:
            return f"signal {-self.code}"  # real-time signals have no name

    def describe(self, program: str, screen: Callable[[], str], when: str = "", cause: str = "") -> str:
        """Return how the program ended; if it failed, when, why if that is known, and with its last words on the
        screen. With a `cause`, exit code 0 is a failure, too."""
        ok = self.ok and not cause
        ended = f"{program} ended with {self.text}" + (f" {when}" if when and not ok else "")
        ended += f"; {cause}" if cause else ""
        lines = "" if ok else _last_lines(screen())
        before = ":\n" if "\n" in lines else ": "
        return f"{ended}{before}{lines}" if lines else ended


def _last_lines(screen: str) -> str:
    """Return the last lines that are not empty, without banners and frames."""
    lines = (_ART.sub("", line).rstrip() for line in before_backtrace(screen).splitlines())
    return last_lines("\n".join(line for line in lines if line.strip()), _LINES, _LINES_BYTES)
