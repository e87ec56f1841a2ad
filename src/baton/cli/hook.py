"""hook: called by an agent's own hooks, with their message on standard input or as the last argument. It is silent and
succeeds, whatever happens: an agent must not stumble over who watches it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from baton.cli.parser import Verb
from baton.config import Settings


def run(arguments: Sequence[str]) -> int:
    from baton.sessions.hook import hook, note

    try:
        agent, *rest = arguments
        message = json.loads(rest[-1] if rest else sys.stdin.read())
        answer = hook(Settings(), agent, message) if isinstance(message, dict) else None
        if answer is not None:
            print(answer, flush=True)
    except Exception as error:  # noqa: BLE001  whatever it is, the agent works on
        note(error)
    return 0


VERBS = (Verb("hook", None, run),)
