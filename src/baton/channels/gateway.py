"""Listen for the messages of one session's agent: http on 127.0.0.1, and on a unix socket in the session's folder.

One thread serves all connections. It answers from memory, or holds a connection until the runner has an answer. The
parser is written here: `http.server` costs memory and start-up time, and sends headers and body in two packets, after
which the agent waits 40 ms for the second.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections import deque
from threading import Lock, Thread

from baton.channels.forward import HOOK_SOCKET, with_socket_path
from baton.core.hashing import constant_time_equal
from baton.storage.files import remove_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_CONNECTIONS = 128  # more than a job may have open requests
REQUEST_SEC = 5.0  # from the first byte to the last; of a new connection, from its beginning
_READ_BYTES = 256 * 1024
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
            408: "Request Timeout", 411: "Length Required", 413: "Content Too Large"}  # fmt: skip
_IN = select.POLLIN | select.POLLHUP | select.POLLERR


class Exchange:
    """A message of the agent, which waits for its reply."""

    def __init__(self, gateway: Gateway, connection: _Connection, path: str, body: bytes) -> None:
        self.path, self.body = path, body
        self._gateway, self._connection = gateway, connection
        self.is_open = True  # nothing was replied, and the agent still waits

    def reply(self, body: bytes = b"{}") -> bool:
        """Send the reply, from any thread. Return False if the agent no longer waits for it."""
        return self._gateway.send(self, self._connection, body)


class _Connection:
    """A client. `trusted`: it need not give the token, because only the user can open the unix socket."""

    def __init__(self, client: socket.socket, *, trusted: bool) -> None:
        self.client, self.trusted = client, trusted
        self.unread = bytearray()
        self.unsent = b""
        self.exchange: Exchange | None = None
        self.deadline: float | None = time.monotonic() + REQUEST_SEC
        self.closing = False  # once everything is sent


class _Refused(Exception):
    """A request that is answered with an error, after which its connection is closed."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Gateway:
    """Pass each complete message of a client with the right token to `receive`.

    `lost` gets an exchange whose client closed the connection before the reply. `tick` is called after whatever
    happened; it returns after how many seconds it wants to be called again, None for never. All three are called by the
    gateway's thread and must return at once."""

    def __init__(
        self,
        paths: tuple[str, ...],
        receive: Callable[[Exchange], None],
        lost: Callable[[Exchange], None],
        tick: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.token = os.urandom(24).hex()
        self.refused: dict[str, int] = {}  # how many requests, by reason
        self._wanted = f"bearer {self.token}".encode()
        self._paths = frozenset(paths)
        self._receive, self._lost, self._tick = receive, lost, tick
        self._listeners: dict[int, socket.socket] = {}
        self._connections: dict[int, _Connection] = {}
        self._replies: deque[tuple[Exchange, _Connection, bytes]] = deque()
        self._lock = Lock()
        self._thread: Thread | None = None
        self._is_closing = False
        self._socket_path: str | None = None
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._woken, _IN)

    def listen_on_loopback(self) -> socket.socket | None:
        """Listen on a random port of 127.0.0.1, and return the socket. None if this process has no such address, as in
        a container without network."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind((HOST, 0))
            listener.listen(MAX_CONNECTIONS)
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:  # create_connection loads 1 MB more
                client.settimeout(1.0)
                client.connect(listener.getsockname())
                listener.accept()[0].close()
        except OSError:
            listener.close()
            return None
        self._add_listener(listener)
        return listener

    def listen_in_folder(self, folder: str) -> None:
        """Listen on a socket of this folder that only the user can open."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.fchmod(listener.fileno(), 0o600)
        self._socket_path = os.path.join(folder, HOOK_SOCKET)
        remove_file(self._socket_path)  # of a runner that died
        with_socket_path(folder, listener.bind)
        listener.listen(MAX_CONNECTIONS)
        self._add_listener(listener)

    def _add_listener(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listeners[listener.fileno()] = listener
        self._poll.register(listener.fileno(), _IN)

    def start(self) -> None:
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and wait for the end of the thread. Clients that wait for a reply get none."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._thread is not None:
            self.wake()
            self._thread.join()
        for connection in list(self._connections.values()):
            self._drop(connection)
        for listener in self._listeners.values():
            listener.close()
        if self._socket_path is not None:
            remove_file(self._socket_path)
        os.close(self._woken)

    def wake(self) -> None:
        """Make the thread call `tick`, from any thread."""
        os.eventfd_write(self._woken, 1)

    def send(self, exchange: Exchange, connection: _Connection, body: bytes) -> bool:
        with self._lock:
            if not exchange.is_open or self._is_closing:
                return False
            exchange.is_open = False
            self._replies.append((exchange, connection, body))
        self.wake()
        return True

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing:
            wanted = self._tick()
            self._send_replies()
            for fd, events in self._poll.poll(self._wait_ms(wanted)):
                self._handle(fd, events)
            self._refuse_slow()
            self._send_replies()

    def _wait_ms(self, wanted: float | None) -> int | None:
        deadlines = [each.deadline for each in self._connections.values() if each.deadline is not None]
        waits = [min(deadlines) - time.monotonic()] if deadlines else []
        waits += [wanted] if wanted is not None else []
        return max(0, int(min(waits) * 1000) + 1) if waits else None

    def _handle(self, fd: int, events: int) -> None:
        if fd == self._woken:
            os.eventfd_read(self._woken)
        elif fd in self._listeners:
            self._accept(self._listeners[fd])
        elif (connection := self._connections.get(fd)) is not None:
            try:
                if events & select.POLLOUT:
                    self._write(connection)
                if events & _IN:
                    self._read(connection)
            except OSError:
                self._drop(connection)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR):
                self._count("no descriptor left")
            return
        trusted = listener.family == socket.AF_UNIX
        if len(self._connections) >= MAX_CONNECTIONS:  # guard: gateway-connections
            self._count("too many connections")
            client.close()
            return
        client.setblocking(False)
        if not trusted:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[client.fileno()] = _Connection(client, trusted=trusted)
        self._poll.register(client.fileno(), _IN)

    def _read(self, connection: _Connection) -> None:
        try:
            content = connection.client.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not content:
            self._drop(connection)
            return
        if connection.closing:
            return  # it was refused
        if connection.deadline is None:
            connection.deadline = time.monotonic() + REQUEST_SEC
        connection.unread += content
        self._read_request(connection)

    def _read_request(self, connection: _Connection) -> None:
        """Take one request from what was read, if it is complete. The next one waits for the reply."""
        if connection.exchange is not None:
            connection.deadline = None
            if len(connection.unread) > MAX_HEADER_BYTES:
                self._count("talks while it waits")
                self._drop(connection)
            return
        try:
            found = self._parse(connection)
        except _Refused as error:
            self._refuse(connection, error)
            return
        if found is None:
            return
        connection.deadline = None
        connection.exchange = Exchange(self, connection, *found)
        self._receive(connection.exchange)

    def _parse(self, connection: _Connection) -> tuple[str, bytes] | None:
        """Return path and body of the first request, and remove it from `unread`; None if it is not complete."""
        unread = connection.unread
        end = unread.find(b"\r\n\r\n", 0, MAX_HEADER_BYTES)
        if end < 0:
            if len(unread) >= MAX_HEADER_BYTES:  # guard: gateway-header
                raise _Refused(413, "too long a header")
            return None
        first, *lines = bytes(unread[:end]).split(b"\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        parts = first.split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            raise _Refused(400, "not http")
        if not connection.trusted:
            given = headers.get(b"authorization", b"")
            given = given[:7].lower() + given[7:]
            if not constant_time_equal(given, self._wanted):  # guard: gateway-token
                raise _Refused(401, "wrong token" if given else "no token")
        path = parts[1].decode("latin-1")
        if path not in self._paths:
            raise _Refused(404, "unknown path")
        if parts[0] != b"POST":
            raise _Refused(405, "unknown method")
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            taken = _chunked_body(unread, end + 4)
        else:
            taken = _plain_body(unread, end + 4, headers.get(b"content-length"))
        if taken is None:
            return None
        body, used = taken
        del unread[:used]
        return path, body

    def _refuse(self, connection: _Connection, error: _Refused) -> None:
        self._count(error.reason)
        connection.closing, connection.deadline = True, time.monotonic() + 1.0
        connection.unsent += _response(error.status, b"", last=True)
        self._write(connection)

    def _refuse_slow(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if connection.deadline is None or connection.deadline > now:  # guard: gateway-time
                continue
            if connection.closing or not connection.unread:
                self._drop(connection)  # it never said anything
            else:
                self._refuse(connection, _Refused(408, "too slow"))

    def _send_replies(self) -> None:
        while True:
            with self._lock:
                if not self._replies:
                    return
                exchange, connection, body = self._replies.popleft()
            if connection.exchange is not exchange:
                continue  # the client is gone
            connection.exchange = None
            connection.unsent += _response(200, body)
            try:
                self._write(connection)
                if connection.unread:
                    self._read_request(connection)  # it came before the reply
            except OSError:
                self._drop(connection)

    def _write(self, connection: _Connection) -> None:
        try:
            sent = connection.client.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        connection.unsent = connection.unsent[sent:]
        self._poll.modify(connection.client.fileno(), _IN | (select.POLLOUT if connection.unsent else 0))
        if connection.closing and not connection.unsent:
            connection.client.shutdown(socket.SHUT_WR)  # not closed at once: a reset would destroy the answer

    def _drop(self, connection: _Connection) -> None:
        fd = connection.client.fileno()
        if self._connections.pop(fd, None) is None:
            return
        self._poll.unregister(fd)
        connection.client.close()
        exchange, connection.exchange = connection.exchange, None
        with self._lock:
            waits = exchange is not None and exchange.is_open
            if exchange is not None:
                exchange.is_open = False
        if waits and exchange is not None and not self._is_closing:
            self._lost(exchange)

    def _count(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1


def _response(status: int, body: bytes, *, last: bool = False) -> bytes:
    """Return headers and body in one piece, so that they leave in one packet."""
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return (head + ("Connection: close\r\n\r\n" if last else "\r\n")).encode() + body


def _plain_body(unread: bytearray, start: int, length: bytes | None) -> tuple[bytes, int] | None:
    """Return the body and where it ends; None if it is not complete."""
    if length is None:
        raise _Refused(411, "no length")
    if not length.isdigit():
        raise _Refused(400, "not http")
    size = int(length[:12])
    if size > MAX_BODY_BYTES:  # guard: gateway-body
        raise _Refused(413, "too large")
    end = start + size
    return (bytes(unread[start:end]), end) if len(unread) >= end else None


def _chunked_body(unread: bytearray, start: int) -> tuple[bytes, int] | None:
    """Return a body that comes in pieces, and where it ends; None if it is not complete."""
    body = bytearray()
    while True:
        line_end = unread.find(b"\r\n", start, start + 64)
        if line_end < 0:
            if len(unread) > start + 64:
                raise _Refused(400, "not http")
            return None
        try:
            size = int(bytes(unread[start:line_end]).partition(b";")[0], 16)
        except ValueError:
            raise _Refused(400, "not http") from None
        if size < 0 or len(body) + size > MAX_BODY_BYTES:
            raise _Refused(413, "too large")
        start = line_end + 2
        if len(unread) < start + size + 2:
            return None
        body += unread[start : start + size]
        start += size + 2
        if size == 0:
            return bytes(body), start
