"""hook: pass a message of an agent's own hooks, from standard input or the last argument, to the agent's runner.

It always succeeds and prints only an answer for the agent: a failure here must not disturb the agent."""

import os
import sys
from collections.abc import Sequence

from baton.cli.parser import Verb


def run(arguments: Sequence[str]) -> int:
    folder = os.environ.get("BATON_SESSION_DIR")
    if folder is None:
        return 0  # baton did not start this agent
    from baton.channels.forward import forward

    try:
        message = arguments[-1] if len(arguments) > 1 else sys.stdin.read()
        answer = forward(folder, os.fsencode(message))
        if answer:
            sys.stdout.write(answer.decode())
            sys.stdout.flush()
    except Exception as error:  # noqa: BLE001  the agent must go on
        _log(folder, error)
    return 0


def _log(folder: str, error: Exception) -> None:
    """Write the error into a file of the session's folder: the screen belongs to the agent."""
    import json
    import time

    from baton.storage.files import append_line

    text = f"{type(error).__name__}: {error}"
    append_line(os.path.join(folder, "hook.log"), json.dumps({"at": time.time(), "error": text}))


VERBS = (Verb("hook", None, run),)
