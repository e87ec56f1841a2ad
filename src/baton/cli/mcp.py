"""mcp: serve the Model Context Protocol to an agent."""

import os

from baton.cli.parser import Options, Verb
from baton.mcp.server import Server


def mcp(options: Options) -> None:
    """Serve one client on standard input and output, until it closes them."""
    reading, writing = _take_streams()
    Server(vars(options), os.path.realpath(os.getcwd()), reading, writing).run()


def _take_streams() -> tuple[int, int]:
    """Return the descriptors that lead to the client. What programs of a call read or print goes elsewhere: it would
    be taken for messages."""
    reading, writing = os.dup(0), os.dup(1)
    for each in (reading, writing):
        os.set_blocking(each, True)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(null, 1)  # standard error is closed
    return reading, writing


VERBS = (Verb("mcp", (), mcp, reads_settings=False),)
