"""Find who owns the other end of a connection on this machine.

A program of any user can listen on a free port of loopback. Before a password goes there, the connected socket is
looked up in the kernel's tables. The port alone proves nothing: the program that listens may have changed since.
"""

from __future__ import annotations

import _socket
import os
import sys
import time

from baton.core.value import Any

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_ACCEPT_SEC = 2.0
_MAPPED = bytes(10) + b"\xff\xff"


class ForeignProcess(OSError):
    """The broker's port is not, or not provably, in the hands of this user."""


def refuse_stranger(connection: Any) -> None:
    """Raise ForeignProcess unless the other end belongs to a process of this user or of root. Without the kernel's
    tables, which only Linux has, accept it."""
    if not os.path.exists(_TABLES[0]):
        return
    deadline = time.monotonic() + _ACCEPT_SEC
    # A connection that its server has not accepted yet has no owner.
    while (owner := _owner(connection.getpeername(), connection.getsockname())) is None:
        if time.monotonic() > deadline:
            raise ForeignProcess("the process at its port cannot be found, so the login is not sent")
        time.sleep(0.0002)
    if owner not in (os.geteuid(), 0):  # guard: broker-owner
        raise ForeignProcess(f"a process of another user (uid {owner}) has its port, so the login is not sent")


def _owner(local: tuple[Any, ...], remote: tuple[Any, ...]) -> int | None:
    """Return the user that owns the socket with these ends; None while no process has it."""
    ends = {(_encoded(local, mapped=mapped), _encoded(remote, mapped=mapped)) for mapped in (False, True)}
    for table in filter(os.path.exists, _TABLES):
        with open(table, encoding="ascii") as file:
            for row in map(str.split, file):
                if (row[1], row[2]) in ends and row[9] != "0":
                    return int(row[7])
    return None


def _encoded(end: tuple[Any, ...], *, mapped: bool) -> str:
    """Return an address and port as in the kernel's tables: words in the byte order of the machine, in hexadecimal. A
    server that listens for IPv6 sees an IPv4 address `mapped` into IPv6."""
    family = _socket.AF_INET6 if ":" in end[0] else _socket.AF_INET
    raw = _socket.inet_pton(family, end[0])
    if mapped and len(raw) == 4:
        raw = _MAPPED + raw
    words = (raw[start : start + 4] for start in range(0, len(raw), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{end[1]:04X}"
