"""Start the `baton` command and `python -m baton`. Ctrl-C during the imports gives an exit code, not a traceback."""

import gc
import os

gc.set_threshold(50_000)  # what the imports create is not garbage: looking through it again and again takes 0.5 ms


def run() -> None:
    try:
        from baton.cli.main import run as run_command

        run_command()
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    run()
