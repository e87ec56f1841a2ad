"""What an agent's server answers is read within limits of size and time."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from baton.channels import http_client
from baton.channels.http_client import HttpFailed, Server

OK = b"HTTP/1.1 200 OK\r\n"


class StandIn:
    """Answers each connection with these pieces, one after the other, and closes it unless a piece is None."""

    def __init__(self, *pieces: bytes | None) -> None:
        self._pieces = pieces
        self.requests: list[bytes] = []
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.server = Server(self._listener.getsockname()[1], "me", "secret")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            connection, _ = self._listener.accept()
            with connection:
                self.requests.append(connection.recv(65536))
                for piece in self._pieces:
                    if piece is None:
                        self._over.wait(10)
                        return
                    connection.sendall(piece)
        except OSError:
            pass  # the test is over

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._listener.shutdown(socket.SHUT_RDWR)  # it may wait for a connection
        self._thread.join()
        self._listener.close()


@pytest.fixture
def answering():
    made = []

    def make(*pieces):
        made.append(StandIn(*pieces))
        return made[-1]

    yield make
    for each in made:
        each.close()


def call(stand_in, within_sec=5.0):
    return stand_in.server.call("POST", "/x", {"a": "é"}, within_sec=within_sec)


def test_a_request_has_the_password_and_its_whole_body(answering):
    stand_in = answering(OK + b"Content-Length: 2\r\n\r\n{}")
    assert call(stand_in) == {}
    (request,) = stand_in.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /x HTTP/1.1\r\n")
    assert b"Authorization: Basic bWU6c2VjcmV0" in head
    assert body == b'{"a": "\\u00e9"}'
    assert f"Content-Length: {len(body)}".encode() in head


@pytest.mark.parametrize(
    "pieces",
    [
        (OK + b"content-length: 10\r\n\r\n", b'{"b":', b' "c"}x'),
        (OK + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"b":\r', b'\n4;x=1\r\n "c"\r\n1\r\n}\r\n0\r\n\r\n'),
        (OK + b"\r\n", b'{"b":', b' "c"}'),
    ],
    ids=["length", "chunks", "end"],
)
def test_an_answer_comes_in_pieces(answering, pieces):
    assert call(answering(*pieces)) == {"b": "c"}


@pytest.mark.parametrize("status", [204, 200])
def test_an_empty_answer_is_none(answering, status):
    assert call(answering(f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n".encode())) is None


def test_an_error_has_its_status(answering):
    with pytest.raises(HttpFailed, match="404") as caught:
        call(answering(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}"))
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (b"SSH-2.0-x\r\n\r\n",),
        (b"HTTP/1.1 x\r\n\r\n",),
        (OK + b"content-length: 9\r\n\r\n{}",),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}",),
        (OK + b"transfer-encoding: chunked\r\n\r\n-5\r\nabcdefg", None),
        (OK + b"content-length: " + b"9" * 5000 + b"\r\n\r\n{}",),
        (b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n{}",),
    ],
)
def test_what_is_not_http_or_not_whole_fails(answering, pieces):
    with pytest.raises(HttpFailed) as caught:
        call(answering(*pieces))
    assert caught.value.status == 0


@pytest.mark.parametrize("body", [b"no", b"[" * 100_000])
def test_what_is_not_json_fails_with_the_status_that_it_has(answering, body):
    """A server that answers so speaks, but is another one than baton knows."""
    with pytest.raises(HttpFailed, match="something that is no JSON") as caught:
        call(answering(OK + b"\r\n" + body))
    assert caught.value.status == 200


@pytest.mark.parametrize("end", [(None,), (b"\r\n{}",)])
def test_a_header_that_is_too_long_fails(answering, end):
    with pytest.raises(HttpFailed, match="not http"):
        call(answering(OK, *[b"x: y\r\n" * 20_000] * 4, *end), within_sec=60)


def test_a_long_body_fails(answering, monkeypatch):
    monkeypatch.setattr(http_client, "MAX_BODY_BYTES", 1000)
    with pytest.raises(HttpFailed, match="too long"):
        call(answering(OK + b"\r\n", b" " * 2000, b"{}", None), within_sec=60)


@pytest.mark.parametrize("pieces", [(None,), (OK, None), (OK + b"\r\n", b" ", None)])
def test_a_slow_server_fails_in_time(answering, pieces):
    start = time.monotonic()
    with pytest.raises(HttpFailed):
        call(answering(*pieces), within_sec=0.2)
    assert time.monotonic() - start < 5


def test_a_slow_server_that_goes_on_sending_fails_in_time(answering):
    """Each piece comes in time, and the whole never ends."""
    stand_in = answering(OK + b"\r\n", *[b" "] * 10, None)
    with pytest.raises(HttpFailed, match="in time"):
        stand_in.server.call("GET", "/x", within_sec=0.0)


def test_a_server_that_is_not_there_fails(answering):
    stand_in = answering()
    stand_in.close()
    with pytest.raises(HttpFailed, match="cannot be reached"):
        call(stand_in)


# -- events --------------------------------------------------------------------------------------------------------------


def events(stand_in):
    stream = stand_in.server.open_events("/event", within_sec=5)
    found = []
    while (more := stream.read(5)) is not None:
        found += more
    stream.close()
    return found, stream


def chunk(content):
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def test_events_come_in_pieces_of_any_size(answering):
    content = chunk(b'event: x\ndata: {"a": 1}\n\n: note\n') + chunk(
        b'data: {"a":\ndata: 2}\r\n\r\ndata: no\n\ndata: 3\n\n'
    )
    head = OK + b"transfer-encoding: chunked\r\n\r\n"
    for size in (1, 3, 1000):
        pieces = [content[place : place + size] for place in range(0, len(content), size)]
        assert events(answering(head, *pieces))[0] == [{"a": 1}, {"a": 2}]


def test_a_long_event_is_dropped_and_the_next_one_is_read(answering, monkeypatch):
    monkeypatch.setattr(http_client, "MAX_EVENT_BYTES", 100)
    long = b'data: {"a": "' + b"x" * 200
    found, stream = events(answering(OK + b"\r\n", long, b"x" * 200, b'"}\n\n', b'data: {"b": 1}\n\n'))
    assert (found, stream.dropped > 0) == ([{"b": 1}], True)
    long_at_once = b'data: "' + b"x" * 90 + b'"\ndata: "' + b"x" * 90 + b'"\n\ndata: {"b": 1}\n\n'
    assert events(answering(OK + b"\r\n", long_at_once))[0] == [{"b": 1}]
    stream = answering(OK + b"\r\n" + long, None).server.open_events("/event", within_sec=5)
    stream.read(0.05)
    assert stream.dropped == 1, "it is not kept until its line ends"
    stream.close()


@pytest.mark.parametrize("with_head", [True, False])
def test_a_stream_that_is_not_http_is_over(answering, with_head):
    head, content = OK + b"transfer-encoding: chunked\r\n\r\n", b"zz\r\n"
    assert events(answering(head + content) if with_head else answering(head, content))[0] == []


def test_an_event_that_is_nested_too_deeply_is_dropped(answering):
    deep = b'data: {"a": ' + b"[" * 100_000 + b"\n\n"
    assert events(answering(OK + b"\r\n", deep, b'data: {"b": 1}\n\n'))[0] == [{"b": 1}]


def test_a_stream_that_is_refused_fails(answering):
    with pytest.raises(HttpFailed, match="401"):
        events(answering(b"HTTP/1.1 401 no\r\n\r\n"))


def test_silence_is_not_the_end(answering):
    stream = answering(OK + b"\r\n", None).server.open_events("/event", within_sec=5)
    assert stream.read(0.05) == []
    stream.close()


def test_a_server_that_ends_before_it_accepts_the_connection_is_not_waited_for():
    """The kernel may leave the connection open, without a word: it looks like a server that is busy."""
    lives = [True, True, False]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener.getsockname()[1], "me", "secret", is_alive=lambda: lives.pop(0))
        with pytest.raises(HttpFailed, match="cannot be found"):
            server.call("GET", "/x", within_sec=60)
    assert lives == []
