"""board: show the jobs of all homes on the terminal, and act on them."""

import sys

from baton.cli.homes import refuse_one_home
from baton.cli.parser import Options, Verb
from baton.config import Settings
from baton.core.errors import MissingExtra, UsageError
from baton.storage.installation import install_command


def board(options: Options, settings: Settings) -> None:
    refuse_one_home(options, "baton board")
    try:
        import textual as textual  # noqa: PLC0414  only to know whether it is there
    except ImportError:
        raise MissingExtra("the board", install_command("board")) from None
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise UsageError("the board needs a terminal; `baton list --all-homes` prints the jobs")
    from baton.board.terminal import run_board

    run_board(settings)


VERBS = (Verb("board", (), board),)
