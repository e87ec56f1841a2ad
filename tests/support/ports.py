"""Ports of loopback for servers that are told theirs before they listen."""

from __future__ import annotations

import os
import random
import socket

# Below those that the system gives to connections: one of these could take the port, or connect to itself.
_FIRST, _LAST = 10_000, 32_000
_WORKERS = 16
_SHARE = (_LAST - _FIRST) // _WORKERS
_given: set[int] = set()


def free_port() -> int:
    """Return a port on which nothing listens; each once. Workers of pytest draw from different ones."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    begin = _FIRST + worker * _SHARE
    offset = random.Random(os.getpid()).randrange(_SHARE) + len(_given)
    for number in range(_SHARE):
        port = begin + (offset + number) % _SHARE
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise RuntimeError("no port is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
