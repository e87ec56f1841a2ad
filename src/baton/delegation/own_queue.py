"""The queue of a job that whoever submitted it sees to: nobody else picks from it, and it says who that is."""

from __future__ import annotations

import os

from baton.sessions.processes import started_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_PREFIX: Final = "submit:"


def own_queue(host: str) -> str:
    me = os.getpid()
    return f"{_PREFIX}{host}:{me}:{started_at(me)}:{os.urandom(4).hex()}"


def is_own_queue(label: str) -> bool:
    return label.startswith(_PREFIX)


def submitter_is_gone(label: str, host: str) -> bool:
    """Whether nobody will begin a job of that queue any more. Of other machines that is not known here."""
    try:
        there, pid, started, _ = label.removeprefix(_PREFIX).rsplit(":", 3)
        return is_own_queue(label) and there == host and started_at(int(pid)) != int(started)
    except ValueError:
        return False  # not one of ours
