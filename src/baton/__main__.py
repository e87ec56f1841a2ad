"""Start the `baton` command and `python -m baton`. Ctrl-C during the imports gives an exit code, not a traceback."""

import os


def run() -> None:
    try:
        from baton.cli.main import run as run_command

        run_command()
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    run()
