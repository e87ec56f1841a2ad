"""Speak WebSocket as a client (RFC 6455): text messages over a connected socket, without waiting."""

from __future__ import annotations

import base64
import hashlib
import os
from socket import SHUT_RDWR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from socket import socket

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x8, 0x9, 0xA
_MAX_HEAD = 64 << 10  # bytes of the answer to the handshake
_MAX_CONTROL = 125  # bytes of a frame that is no part of a message
_MAX_MESSAGE = 64 << 20  # bytes of a message, and of what the server has not taken
_READ_BYTES = 1 << 20  # in one go


class WebSocketError(OSError):
    """The server does not speak WebSocket as expected, or has closed the connection."""


class WebSocket:
    """A connection to a server. One thread uses it at a time."""

    def __init__(self, connection: socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        key = base64.b64encode(os.urandom(16))
        self._accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        self._out = bytearray(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n" % key
        )
        self._early = bytearray()  # messages that wait for the handshake: the server takes none before
        self._in = bytearray()
        self._pieces: bytearray | None = None  # of a message in several frames
        self._is_open = False  # whether the server has agreed

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waits(self) -> bool:
        """Return whether there is something that the server has not taken."""
        return bool(self._out)

    def send(self, text: str) -> None:
        """Write a message, now or with a later `flush`."""
        self._check_room()
        waiting = self._out if self._is_open else self._early
        waiting += _frame(_TEXT, text.encode(errors="replace"))
        self.flush()

    def _check_room(self) -> None:
        if len(self._out) + len(self._early) > _MAX_MESSAGE:
            raise WebSocketError("the server takes no messages")

    def flush(self) -> None:
        while self._out:
            try:
                done = self._socket.send(self._out[:_READ_BYTES])
            except BlockingIOError:
                return
            del self._out[:done]

    def receive(self) -> list[str]:
        """Return the messages that are there, up to a limit. Raise WebSocketError at the end of the connection."""
        messages: list[str] = []
        done = 0
        while done < _READ_BYTES:
            try:
                more = self._socket.recv(65536)
            except BlockingIOError:
                break
            if not more:
                if messages:
                    break  # the end is read again by the next call
                raise WebSocketError("the server closed the connection")
            done += len(more)
            self._in += more
            try:
                if self._has_agreed():
                    messages.extend(self._messages())
            except WebSocketError:
                if not messages:
                    raise
                self._socket.shutdown(SHUT_RDWR)  # the next call reads the end
                break
        return messages

    def close(self) -> None:
        self._socket.close()

    def _has_agreed(self) -> bool:
        if self._is_open:
            return True
        head, found, rest = bytes(self._in).partition(b"\r\n\r\n")
        if not found:
            if len(head) > _MAX_HEAD:
                raise WebSocketError("the server's answer to the handshake is too long")
            return False
        status, *lines = head.split(b"\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        if status.split(b" ")[1:2] != [b"101"] or fields.get(b"sec-websocket-accept") != self._accept:
            raise WebSocketError(f"the server refused the connection: {status[:80].decode(errors='replace')}")
        self._in = bytearray(rest)
        self._is_open = True
        self._out += self._early
        self._early.clear()
        self.flush()
        return True

    def _messages(self) -> Iterator[str]:
        while (frame := self._take_frame()) is not None:
            is_last, kind, content = frame
            if kind == _PING:
                self._check_room()
                self._out += _frame(_PONG, content)
                self.flush()
            elif kind == _CLOSE:
                raise WebSocketError("the server closed the connection")
            elif kind in (_TEXT, _CONTINUATION):
                yield from self._add_piece(content, is_first=kind == _TEXT, is_last=is_last)
            elif kind != _PONG:
                raise WebSocketError(f"the server sent a frame of the kind {kind}")

    def _add_piece(self, content: bytes, *, is_first: bool, is_last: bool) -> Iterator[str]:
        if is_first != (self._pieces is None):
            raise WebSocketError("the server mixed the frames of two messages")
        self._pieces = self._pieces or bytearray()
        self._pieces += content
        if len(self._pieces) > _MAX_MESSAGE:
            raise WebSocketError("the server sent a message that is too long")
        if is_last:
            text, self._pieces = self._pieces.decode(errors="replace"), None
            yield text

    def _take_frame(self) -> tuple[bool, int, bytes] | None:
        """Return whether a frame is the last of its message, its kind and its content; None: it is not complete."""
        data = self._in
        if len(data) < 2:
            return None
        is_last, kind, length, start = bool(data[0] & 0x80), data[0] & 0x0F, data[1] & 0x7F, 2
        if data[0] & 0x70 or data[1] & 0x80:
            raise WebSocketError("the server sent a frame of an unknown form")
        if length > _MAX_CONTROL:
            start += 2 if length == 126 else 8
            if len(data) < start:
                return None
            length = int.from_bytes(data[2:start], "big")
        if length > (_MAX_MESSAGE if kind in (_TEXT, _CONTINUATION) else _MAX_CONTROL):
            raise WebSocketError("the server sent a frame that is too long")
        if len(data) < start + length:
            return None
        content = bytes(data[start : start + length])
        del data[: start + length]
        return is_last, kind, content


def _frame(kind: int, content: bytes) -> bytes:
    """Return a frame of a client: its content is masked."""
    length = len(content)
    if length <= _MAX_CONTROL:
        size = bytes([0x80 | length])
    elif length < 1 << 16:
        size = bytes([0x80 | 126]) + length.to_bytes(2, "big")
    else:
        size = bytes([0x80 | 127]) + length.to_bytes(8, "big")
    mask = os.urandom(4)
    # As one number: Python is slow byte by byte.
    repeated = int.from_bytes((mask * (length // 4 + 1))[:length], "big")
    masked = (int.from_bytes(content, "big") ^ repeated).to_bytes(length, "big")
    return bytes([0x80 | kind]) + size + mask + masked
