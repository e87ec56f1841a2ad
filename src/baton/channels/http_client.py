"""Send requests to an agent's server on 127.0.0.1, and read its event stream.

Written here: `http.client` costs memory and start-up time in every runner, and knows no event streams. What a server
sends is limited in size and time.
"""

from __future__ import annotations

import json
import socket
import time
from binascii import b2a_base64

from baton.core.fields import json_object, parse_json
from baton.core.value import Any
from baton.transport.peer import refuse_stranger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
MAX_HEADER_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 << 20  # a list of messages has the output of their tools
MAX_EVENT_BYTES = 16 << 20  # a longer one is dropped
_READ_BYTES = 64 * 1024
_DIGITS = 15  # of a length, which are read


class HttpFailed(Exception):
    """The server did not answer, or with an error. `status` is its answer; 0: it gave none."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


class Server:
    """A server of an agent: its port, and the name and the password that it wants. `is_alive`: its process runs."""

    def __init__(self, port: int, user: str, password: str, is_alive: Callable[[], bool] = lambda: True) -> None:
        self.port = port
        self._is_alive = is_alive
        token = b2a_base64(f"{user}:{password}".encode(), newline=False).decode()
        self._headers = f"Host: {HOST}:{port}\r\nAuthorization: Basic {token}\r\n"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def call(self, method: str, path: str, body: Any = None, *, within_sec: float) -> Any:
        """Send a request and return the decoded answer; None if it is empty. Raise HttpFailed."""
        deadline = time.monotonic() + within_sec
        content = b"" if body is None else json.dumps(body).encode()
        connection = self._send(method, path, content, deadline)
        with connection:
            status, answer, rest = _read_head(connection, deadline)
            text = _read_body(connection, answer, rest, deadline)
        if not 200 <= status < 300:
            raise HttpFailed(f"{method} {path.partition('?')[0]} was answered with {status}", status)
        try:
            return parse_json(text) if text.strip() else None
        except ValueError:
            raise HttpFailed(
                f"{method} {path.partition('?')[0]} was answered with something that is no JSON", status
            ) from None

    def open_events(self, path: str, *, within_sec: float) -> EventStream:
        """Begin to read a stream of events. Raise HttpFailed."""
        deadline = time.monotonic() + within_sec
        connection = self._send("GET", path, b"", deadline)
        try:
            status, body, rest = _read_head(connection, deadline)
            if status != 200:
                raise HttpFailed(f"GET {path} was answered with {status}", status)
            return EventStream(connection, body, rest)
        except BaseException:
            connection.close()
            raise

    def _send(self, method: str, path: str, content: bytes, deadline: float) -> socket.socket:
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}Connection: close\r\nAccept: */*\r\n"
        if content or method == "POST":
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        try:
            connection = socket.create_connection((HOST, self.port), timeout=_left(deadline))
        except OSError as error:
            raise HttpFailed(f"the server cannot be reached: {error.strerror or error}") from None
        try:
            # A server that has ended may have left its port to a program of another user.
            left_sec = max(0.0, deadline - time.monotonic())
            refuse_stranger(connection, left_sec, self._is_alive)  # guard: http-client-owner
            connection.sendall(f"{head}\r\n".encode() + content)
        except OSError as error:
            connection.close()
            raise HttpFailed(f"the server took no request: {error.strerror or error}") from None
        return connection


class EventStream:
    """The events that a server sends (text/event-stream), one JSON object each."""

    def __init__(self, connection: socket.socket, body: _Body, rest: bytes) -> None:
        self._connection = connection
        self._body = body
        self._rest = b""
        self._data: list[bytes] = []  # of the event that is not complete
        self._length = 0
        self._is_too_long = False  # the line that is being read
        self.dropped = 0
        self._first = rest

    def read(self, wait_sec: float) -> list[dict[str, Any]] | None:
        """Return the events that come within so many seconds: none yet, or at least one. None: the stream is over."""
        content, self._first = self._first, b""
        if not content:
            self._connection.settimeout(wait_sec)
            try:
                content = self._connection.recv(_READ_BYTES)
            except TimeoutError:
                return []
            except OSError:
                return None
        if not content:
            return None
        try:
            found = self._events(self._body.feed(content))
        except HttpFailed:
            return None
        return None if self._body.is_over and not found else found

    def _events(self, content: bytes) -> list[dict[str, Any]]:
        found = []
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            if self._is_too_long:
                self._is_too_long = False
            elif line.startswith(b"data:"):
                self._add(line[5:].strip())
            elif not line.strip():
                found += self._end_event()
        if len(self._rest) > MAX_EVENT_BYTES:  # guard: http-client-event
            self._rest, self._is_too_long = b"", True
            self.dropped += 1
            self._data.clear()
        return found

    def _add(self, data: bytes) -> None:
        self._length += len(data)
        if self._length <= MAX_EVENT_BYTES:
            self._data.append(data)

    def _end_event(self) -> list[dict[str, Any]]:
        text, length = b"\n".join(self._data), self._length
        self._data.clear()
        self._length = 0
        if length > MAX_EVENT_BYTES:
            self.dropped += 1
            return []
        event = json_object(text)
        return [event] if event else []

    def close(self) -> None:
        self._connection.close()


class _Body:
    """Take the body of an answer out of what arrives."""

    def __init__(self, headers: dict[str, str]) -> None:
        length = headers.get("content-length", "")
        self._left = int(length[:_DIGITS]) if length.isdecimal() else None
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._unread = b""  # of a chunk's frame
        self._in_chunk = 0
        self.is_over = self._left == 0
        self.has_end = self._chunked or self._left is not None  # it says itself where it ends

    def feed(self, content: bytes) -> bytes:
        """Return the part of the body that this has. Raise HttpFailed for a frame that is none."""
        if self._chunked:
            return self._feed_chunks(content)
        if self._left is None:
            return content
        taken = content[: self._left]
        self._left -= len(taken)
        self.is_over = self._left == 0
        return taken

    def _feed_chunks(self, content: bytes) -> bytes:
        found = []
        content = self._unread + content
        while content and not self.is_over:
            if self._in_chunk:
                taken = content[: self._in_chunk]
                found.append(taken)
                self._in_chunk -= len(taken)
                content = content[len(taken) :]
                continue
            line, ended, rest = content.lstrip(b"\r\n").partition(b"\r\n")
            if not ended:
                break
            try:
                self._in_chunk = int(line.split(b";")[0], 16)
            except ValueError:
                raise HttpFailed("the server's answer is not http") from None
            if self._in_chunk < 0:
                raise HttpFailed("the server's answer is not http")
            self.is_over = self._in_chunk == 0
            content = rest
        if len(content) > MAX_HEADER_BYTES:
            raise HttpFailed("the server's answer is not http")
        self._unread = content
        return b"".join(found)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:  # guard: http-client-time
        raise HttpFailed("the server did not answer in time")
    return left


def _receive(connection: socket.socket, deadline: float) -> bytes:
    connection.settimeout(_left(deadline))
    try:
        return connection.recv(_READ_BYTES)
    except OSError as error:
        raise HttpFailed(f"the server did not answer: {error.strerror or error}") from None


def _read_head(connection: socket.socket, deadline: float) -> tuple[int, _Body, bytes]:
    """Return the status, the reader of the body, and what has arrived of it."""
    content = b""
    while b"\r\n\r\n" not in content:
        more = _receive(connection, deadline)
        if not more:
            raise HttpFailed("the server's answer is not http" if content else "the server did not answer")
        if len(content) > MAX_HEADER_BYTES:  # guard: http-client-header
            raise HttpFailed("the server's answer is not http")
        content += more
    head, _, rest = content.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    status = first.split(" ")[1:2]
    if not first.startswith("HTTP/1.") or not status or not status[0].isdecimal() or len(status[0]) != 3:
        raise HttpFailed("the server's answer is not http")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(status[0]), _Body(headers), rest


def _read_body(connection: socket.socket, body: _Body, content: bytes, deadline: float) -> bytes:
    parts: list[bytes] = []
    length = 0
    while True:
        parts.append(body.feed(content))
        length += len(parts[-1])
        if length > MAX_BODY_BYTES:  # guard: http-client-body
            raise HttpFailed("the server's answer is too long")
        if body.is_over:
            return b"".join(parts)
        content = _receive(connection, deadline)
        if not content and body.has_end:
            raise HttpFailed("the server's answer is not whole")
        if not content:
            return b"".join(parts)
