"""Pass a message of a hook to the gateway of the agent's runner, and return its answer. This runs in the hook program:
it imports little."""

from __future__ import annotations

import os

from baton.core.cpython import socket

HOOK_SOCKET = "hook.sock"  # in the session's folder
HOOK_PATH = "/hook"
LONGEST_SOCKET_PATH = 100  # the kernel takes at most 107 bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def forward(folder: str, message: bytes) -> bytes | None:
    """Return the answer of the runner, when it comes; empty for none. None: there is no runner."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with_socket_path(folder, client.connect)
        client.sendall(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (HOOK_PATH.encode(), len(message)) + message)
        return _read_answer(client)
    except OSError:
        return None
    finally:
        client.close()


def _read_answer(client: socket.socket) -> bytes:
    """Return the body; empty if the runner ends before it answers."""
    answer = b""
    while True:
        more = client.recv(65536)
        answer += more
        head, found, body = answer.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return body if head.startswith(b"HTTP/1.1 200 ") else b""
        if not more:
            return b""


def with_socket_path(folder: str, use: Callable[[str], None]) -> None:
    """Call `use` with a path of the folder's socket that is short enough for the kernel."""
    path = os.path.join(folder, HOOK_SOCKET)
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        use(path)
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{fd}/{HOOK_SOCKET}")
    finally:
        os.close(fd)
