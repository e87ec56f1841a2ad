"""hook: called by an agent's own hooks, with their message on standard input or as the last argument. It is silent and
succeeds, whatever happens: an agent must not stumble over who watches it."""

from __future__ import annotations

import json
import sys

from baton.config import Settings
from baton.errors import BatonError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def run(verb: str, arguments: Sequence[str]) -> int:
    from baton.sessions.hook import hook

    try:
        agent, *rest = arguments
        message = json.loads(rest[-1] if rest else sys.stdin.read())
        answer = hook(Settings(), agent, message) if isinstance(message, dict) else None
    except (ValueError, RecursionError, OSError, BatonError):
        return 0
    if answer is not None:
        print(answer)
    return 0
