"""Which processes started this one: the check that an agent did not."""

from __future__ import annotations

import os
import signal

from baton import origin
from baton.sessions.processes import adopt_orphans, parent_of
from support.waiting import wait_until


def test_a_parent_that_ends_meanwhile_hides_none_of_those_above():
    """An agent may let the parent of its command end while the command looks at its ancestors."""
    reader, writer = os.pipe()
    top = os.fork()
    if top == 0:
        try:
            adopt_orphans()
            parent = os.fork()
            if parent == 0:
                if os.fork():
                    signal.pause()
                _look_while_the_parent_ends(writer)
            os.waitpid(parent, 0)
            os.wait()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        found = result.read().split()
    os.waitpid(top, 0)
    assert str(top) in found
    assert str(os.getpid()) in found


def _look_while_the_parent_ends(writer: int) -> None:
    try:
        parent = os.getppid()
        ancestors = origin.ancestors()
        found = [next(ancestors), next(ancestors)]
        assert found[1] == str(parent)
        os.kill(parent, signal.SIGKILL)
        wait_until(lambda: parent_of(parent) is None, what="the end of the parent")
        os.write(writer, " ".join([*found, *ancestors]).encode())
    finally:
        os._exit(0)
