"""Tell a process of another process namespace whether an agent started it: there it does not see what is above it, but
the runner of the session sees that here, by the process id that the kernel gives for the other end of a socket."""

import os
import struct
from socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET, socket
from threading import Thread

from baton.jobs.caller import WITNESS, judge
from baton.storage.files import remove_file

_CREDENTIALS = struct.Struct("3i")  # process, user, group
_WAITING = 16


def open_witness(folder: str) -> None:
    """Answer at the socket in the session's folder, in a thread, until this process ends."""
    path = os.path.join(folder, WITNESS)
    remove_file(path)
    server = socket(AF_UNIX, SOCK_STREAM)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        server.bind(f"/proc/self/fd/{fd}/{WITNESS}")  # the kernel takes at most 107 bytes
        os.chmod(path, 0o600)
    finally:
        os.close(fd)
    server.listen(_WAITING)
    Thread(target=_answer_all, args=(server,), daemon=True).start()


def _answer_all(server: socket) -> None:
    while True:
        client, _ = server.accept()
        with client:
            try:
                pid, _, _ = _CREDENTIALS.unpack(client.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size))
                client.sendall(judge(pid))
            except OSError:
                continue  # it has ended
