"""The `baton` command, and `python -m baton`. It loads the rest itself, so that Ctrl-C is an exit code from the first
moment on, and not a traceback out of an import."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> NoReturn:
    try:
        from baton.cli.main import run as run_command

        run_command()
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    run()
