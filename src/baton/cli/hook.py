"""hook: take a message of an agent's own hooks, from standard input or the last argument.

It always succeeds and prints only an answer for the agent: a failure here must not disturb the agent."""

import json
import sys
from collections.abc import Sequence

from baton.cli.parser import Verb
from baton.storage.homes import load_settings


def run(arguments: Sequence[str]) -> int:
    from baton.sessions.hook import hook, log_error

    try:
        agent, *rest = arguments
        message = json.loads(rest[-1] if rest else sys.stdin.read())
        answer = hook(load_settings(), agent, message) if isinstance(message, dict) else None
        if answer is not None:
            print(answer, flush=True)
    except Exception as error:  # noqa: BLE001  the agent must go on; the error is in hook.log
        log_error(error)
    return 0


VERBS = (Verb("hook", None, run),)
