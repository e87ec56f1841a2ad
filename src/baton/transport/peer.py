"""Find who owns the other end of a connection on this machine.

A program of any user can listen on a free port of loopback. Before a password goes there, the kernel is asked who owns
the connected socket. The port alone proves nothing: the program that listens may have changed since.
"""

from __future__ import annotations

import os
import sys
import time

from baton.core.cpython import socket
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ACCEPT_SEC = 2.0
_MAPPED = bytes(10) + b"\xff\xff"


class ForeignProcess(OSError):
    """The broker's port is not, or not provably, in the hands of this user."""


def refuse_stranger(
    connection: Any, within_sec: float = _ACCEPT_SEC, is_alive: Callable[[], bool] = lambda: True
) -> None:
    """Raise ForeignProcess unless the other end belongs to a process of this user or of root. Wait so many seconds for
    it, while the server `is_alive`: a connection can stay open whose server ended before it accepted it. Without the
    kernel's tables, which only Linux has, accept it."""
    if not os.path.exists(_TABLES[0]):
        return
    deadline = time.monotonic() + within_sec
    pause_sec = 0.0002
    # A connection that its server has not accepted yet has no owner.
    while (owner := _owner(connection.getpeername(), connection.getsockname())) is None:
        if time.monotonic() > deadline or not is_alive():
            raise ForeignProcess("the process at its port cannot be found, so the login is not sent")
        time.sleep(pause_sec)
        pause_sec = min(pause_sec * 2, 0.02)
    if owner not in (os.geteuid(), 0):  # guard: broker-owner
        raise ForeignProcess(f"a process of another user (uid {owner}) has its port, so the login is not sent")


def _owner(local: tuple[Any, ...], remote: tuple[Any, ...]) -> int | None:
    """Return the user that owns the socket with these ends; None while no process has it."""
    found = _ask_kernel(local, remote)
    return _owner_in_tables(local, remote) if found is None else found


def _ask_kernel(local: tuple[Any, ...], remote: tuple[Any, ...]) -> int | None:
    """Ask for this one socket (sock_diag(7)): reading the tables takes milliseconds where there are many sockets. None
    also if the kernel does not answer."""
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    ports = b"".join(end[1].to_bytes(2) for end in (local, remote))
    addresses = b"".join(socket.inet_pton(family, end[0]).ljust(16, b"\0") for end in (local, remote))
    asked = bytes((family, socket.IPPROTO_TCP, 0, 0)) + b"\xff" * 4 + ports + addresses + bytes(4) + b"\xff" * 8
    header = ((len(asked) + 16, 4), (_SOCK_DIAG_BY_FAMILY, 2), (_NLM_F_REQUEST, 2), (0, 8))
    message = b"".join(part.to_bytes(size, sys.byteorder) for part, size in header) + asked
    try:
        netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    except OSError:
        return None
    try:
        netlink.settimeout(_ACCEPT_SEC)
        netlink.sendto(message, (0, 0))
        answer = netlink.recv(4096)
    except OSError:
        return None
    finally:
        netlink.close()
    kind, user, inode = (
        int.from_bytes(answer[start:end], sys.byteorder) for start, end in ((4, 6), (80, 84), (84, 88))
    )
    return user if kind == _SOCK_DIAG_BY_FAMILY and inode else None


def _owner_in_tables(local: tuple[Any, ...], remote: tuple[Any, ...]) -> int | None:
    ends = {(_encode(local, mapped=mapped), _encode(remote, mapped=mapped)) for mapped in (False, True)}
    for table in filter(os.path.exists, _TABLES):
        with open(table, encoding="ascii") as file:
            for row in map(str.split, file):
                if (row[1], row[2]) in ends and row[9] != "0":
                    return int(row[7])
    return None


def _encode(end: tuple[Any, ...], *, mapped: bool) -> str:
    """Return an address and port as in the kernel's tables: words in the byte order of the machine, in hexadecimal. A
    server that listens for IPv6 sees an IPv4 address `mapped` into IPv6."""
    family = socket.AF_INET6 if ":" in end[0] else socket.AF_INET
    raw = socket.inet_pton(family, end[0])
    if mapped and len(raw) == 4:
        raw = _MAPPED + raw
    words = (raw[start : start + 4] for start in range(0, len(raw), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{end[1]:04X}"
