"""The client's side of WebSocket, against bytes that a server may send."""

from __future__ import annotations

import base64
import hashlib
import socket

import pytest

from baton.channels.websocket import WebSocket, WebSocketError


def frame(kind, content, *, last=True, mask=False):
    size = len(content)
    length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big") if size < 1 << 16 else b"\x7f" + size.to_bytes(8, "big")  # fmt: skip
    length = bytes([length[0] | (0x80 if mask else 0)]) + length[1:]
    return bytes([(0x80 if last else 0) | kind]) + length + content


def unmask(data):
    """Return the frames of a client."""
    found = []
    while data:
        kind, size, start = data[0] & 0x0F, data[1] & 0x7F, 2
        assert data[1] & 0x80, "a client masks"
        if size > 125:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start], "big")
        mask, data = data[start : start + 4], data[start + 4 :]
        content, data = data[:size], data[size:]
        found.append((kind, bytes(byte ^ mask[index % 4] for index, byte in enumerate(content))))
    return found


def accept(request):
    key = next(line for line in request.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key")).split(b": ")[1]
    proof = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    return b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nsec-websocket-accept: " + proof + b"\r\n\r\n"


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    client = WebSocket(ours)
    client.flush()
    yield client, theirs
    client.close()
    theirs.close()


@pytest.fixture
def open_ends(ends):
    client, server = ends
    server.sendall(accept(server.recv(4096)))
    assert client.receive() == []
    return client, server


def test_nothing_is_sent_before_the_server_agrees(ends):
    client, server = ends
    client.send("early")
    request = server.recv(4096)
    assert request.startswith(b"GET / HTTP/1.1\r\n")
    assert b"Origin" not in request, "a server refuses a browser"
    server.sendall(accept(request) + frame(1, b"welcome"))
    assert client.receive() == ["welcome"]
    assert unmask(server.recv(4096)) == [(1, b"early")]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: another\r\n\r\n",
        b"garbage\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_a_server_that_does_not_agree_is_left(ends, answer):
    client, server = ends
    server.sendall(answer)
    with pytest.raises(WebSocketError):
        for _ in range(10):
            client.receive()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_messages_of_every_size_arrive(open_ends, size):
    client, server = open_ends
    text = "é" * (size // 2) + "x" * (size % 2)
    client.send(text)
    header = 2 + (size > 125) * 2 + (size > 65_535) * 6 + 4
    received = b""
    while len(received) < header + size:
        client.flush()
        received += server.recv(1 << 20)
    assert unmask(received) == [(1, text.encode())]
    server.sendall(frame(1, text.encode()))
    assert client.receive() == [text]


def test_a_message_in_pieces_with_a_ping_between_them(open_ends):
    client, server = open_ends
    whole = frame(1, b"one ", last=False) + frame(9, b"there?") + frame(0, b"two ", last=False) + frame(0, b"three")
    for byte in whole[:-1]:
        server.sendall(bytes([byte]))
        assert client.receive() == []
    server.sendall(whole[-1:] + frame(10, b"") + frame(1, b"next"))
    assert client.receive() == ["one two three", "next"]
    assert unmask(server.recv(4096)) == [(10, b"there?")]


@pytest.mark.parametrize(
    "data",
    [
        frame(8, b"\x03\xe8"),
        frame(2, b"binary"),
        frame(0, b"no beginning"),
        frame(1, b"a", last=False) + frame(1, b"b"),
        frame(1, b"masked", mask=True),
        b"\xf1\x01x",
        b"\x81\x7f" + (1 << 40).to_bytes(8, "big"),
        b"\x89\x7e" + (1000).to_bytes(2, "big") + b"x" * 1000,
    ],
    ids=["close", "binary", "continuation", "mixed", "masked", "reserved", "huge", "long ping"],
)
def test_a_frame_that_is_not_expected_ends_the_connection(open_ends, data):
    client, server = open_ends
    server.sendall(data)
    with pytest.raises(WebSocketError):
        client.receive()


@pytest.mark.parametrize("end", [frame(8, b"\x03\xe8"), frame(2, b"binary")])
def test_a_message_before_the_end_is_read(open_ends, end):
    """Its last message may be that the turn is over."""
    client, server = open_ends
    server.sendall(frame(1, b"the last") + end)
    assert client.receive() == ["the last"]
    with pytest.raises(WebSocketError):
        client.receive()


def test_a_server_that_pings_and_does_not_read_is_not_answered_without_end(open_ends, monkeypatch):
    client, server = open_ends
    monkeypatch.setattr("baton.channels.websocket._MAX_MESSAGE", 1000)
    monkeypatch.setattr(client, "flush", lambda: None)  # the server does not read
    server.sendall(frame(9, b"x" * 100) * 20)
    with pytest.raises(WebSocketError, match="takes no messages"):
        client.receive()


def test_a_message_that_grows_without_end_is_not_kept(open_ends, monkeypatch):
    client, server = open_ends
    monkeypatch.setattr("baton.channels.websocket._MAX_MESSAGE", 1000)
    server.sendall(frame(1, b"x" * 600, last=False) + frame(0, b"x" * 600, last=False))
    with pytest.raises(WebSocketError, match="too long"):
        client.receive()


def test_a_server_that_reads_nothing_does_not_hold_up_the_client(open_ends, monkeypatch):
    client, _ = open_ends
    monkeypatch.setattr("baton.channels.websocket._MAX_MESSAGE", 1 << 20)
    with pytest.raises(WebSocketError, match="takes no messages"):
        for _ in range(1000):
            client.send("x" * 10_000)
    assert client.waits


def test_what_came_before_the_end_is_read(open_ends):
    client, server = open_ends
    server.sendall(frame(1, b"last words"))
    server.close()
    assert client.receive() == ["last words"]
    with pytest.raises(WebSocketError):
        client.receive()
