"""The gateway hears the agent of its session and nothing else, answers in one packet, and leaves nothing behind."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from baton.channels import gateway as module
from baton.channels.forward import HOOK_SOCKET, forward
from baton.channels.gateway import MAX_BODY_BYTES, MAX_CONNECTIONS, MAX_HEADER_BYTES, Gateway
from support.waiting import poll


class Opened:
    """A gateway that answers each message with itself, unless it holds it."""

    def __init__(self, folder):
        self.heard, self.lost, self.held = [], [], []
        self.gateway = Gateway(("/hook",), self.receive, self.lost.append)
        self.port = self.gateway.listen_on_loopback().getsockname()[1]
        self.gateway.listen_in_folder(str(folder))
        self.gateway.start()

    def receive(self, exchange):
        self.heard.append(exchange.body)
        if b"hold" in exchange.body:
            self.held.append(exchange)
        else:
            exchange.reply(exchange.body)

    def post(self, body=b"{}", *, path="/hook", token=None, method="POST"):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        headers = {"Authorization": f"Bearer {self.gateway.token if token is None else token}"} if token != "" else {}
        client.request(method, path, body, headers)
        answer = client.getresponse()
        found = answer.status, answer.read()
        client.close()
        return found

    def raw(self, content=b""):
        client = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        client.sendall(content)
        return client

    def request(self, body=b"{}", length=None):
        head = f"POST /hook HTTP/1.1\r\nauthorization: bearer {self.gateway.token}\r\n"
        return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


@pytest.fixture
def opened(tmp_path):
    before = threads()
    opened = Opened(tmp_path)
    yield opened
    opened.gateway.close()
    assert poll(lambda: threads() <= before, 5)
    assert not (tmp_path / HOOK_SOCKET).exists()


def threads():
    return len(os.listdir("/proc/self/task"))


def read_all(client):
    content = b""
    while more := client.recv(65536):
        content += more
    client.close()
    return content


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        ({"token": ""}, 401, "no token"),
        ({"token": "0" * 48}, 401, "wrong token"),
        ({"path": "/other"}, 404, "unknown path"),
        ({"path": "/other", "token": "0" * 48}, 401, "wrong token"),
        ({"method": "GET"}, 405, "unknown method"),
        ({"body": b"x" * (MAX_BODY_BYTES + 1)}, 413, "too large"),
    ],
)
def test_a_request_that_is_not_the_agents_is_refused_and_counted(opened, request_, status, reason):
    try:
        assert opened.post(**request_)[0] == status
    except (BrokenPipeError, ConnectionResetError):
        assert status == 413  # the gateway does not read what it does not take
    assert opened.gateway.refused == {reason: 1}
    assert opened.heard == []
    assert opened.post() == (200, b"{}")


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (b"nonsense\r\n\r\n", 400, "not http"),
        (b"POST /hook HTTP/1.1\r\nx: " + b"x" * MAX_HEADER_BYTES, 413, "too long a header"),
        (b"POST /hook HTTP/1.1\r\nAuthorization: Bearer TOKEN\r\n\r\n", 411, "no length"),
        (b"POST /hook HTTP/1.1\r\nAuthorization: Bearer TOKEN\r\nContent-Length: -1\r\n\r\n", 400, "not http"),
        (
            b"POST /hook HTTP/1.1\r\nAuthorization: Bearer TOKEN\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            400,
            "not http",
        ),
        (
            b"POST /hook HTTP/1.1\r\nAuthorization: Bearer TOKEN\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
            413,
            "too large",
        ),
    ],
)
def test_what_is_not_http_is_refused_and_counted(opened, content, status, reason):
    answer = read_all(opened.raw(content.replace(b"TOKEN", opened.gateway.token.encode())))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert opened.gateway.refused == {reason: 1}
    assert opened.heard == []


def test_a_slow_request_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "REQUEST_SEC", 0.05)
    opened = Opened(tmp_path)
    assert read_all(opened.raw()) == b""
    slow = opened.raw(opened.request(b"{", length=2))
    assert read_all(slow).startswith(b"HTTP/1.1 408 ")
    assert opened.gateway.refused == {"too slow": 1}
    held = opened.raw(opened.request(b"hold"))
    assert poll(lambda: opened.held, 5)
    time.sleep(0.1)  # longer than a request may take
    opened.held[0].reply(b"now")
    assert held.recv(65536).endswith(b"now")
    held.close()
    opened.gateway.close()


def test_connections_are_limited(opened, monkeypatch):
    clients = [opened.raw() for _ in range(MAX_CONNECTIONS)]
    assert poll(lambda: len(opened.gateway._connections) == MAX_CONNECTIONS, 5)
    assert read_all(opened.raw()) == b""
    assert opened.gateway.refused == {"too many connections": 1}
    for client in clients:
        client.close()
    assert poll(lambda: not opened.gateway._connections, 5)
    assert opened.post() == (200, b"{}")


def test_another_process_of_the_user_needs_the_token(opened):
    code = (
        "import sys, urllib.request as u\n"
        "try: u.urlopen(u.Request(sys.argv[1], data=b'{}'))\n"
        "except u.HTTPError as error: print(error.code)"
    )
    url = f"http://127.0.0.1:{opened.port}/hook"
    done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=True)
    assert done.stdout == "401\n"


def test_a_thousand_quick_messages_are_answered_in_order_on_one_connection(opened):
    client = opened.raw()
    for number in range(1000):
        client.sendall(opened.request(b"%d" % number))
        assert client.recv(65536).endswith(b"\r\n\r\n%d" % number)
    client.sendall(b"".join(opened.request(b"%d;" % number) for number in range(10)))
    content = b""
    while not content.endswith(b"9;"):
        content += client.recv(65536)
    client.close()
    assert len(opened.heard) == 1010


def test_headers_and_body_come_in_one_packet_and_a_body_may_come_in_pieces(opened):
    client = opened.raw()
    body = b"{" + b" " * 2000 + b"}"
    for byte in range(0, len(request := opened.request(body)), 100):
        client.sendall(request[byte : byte + 100])
    assert client.recv(65536).endswith(b"\r\n\r\n" + body)
    head = f"POST /hook HTTP/1.1\r\nAuthorization: Bearer {opened.gateway.token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    client.sendall(head.encode() + b"2\r\n{}\r\n3\r\n   \r\n0\r\n\r\n")
    assert client.recv(65536).endswith(b"\r\n\r\n{}   ")
    client.close()


def test_a_connection_that_closes_while_it_waits_is_reported_once(opened):
    client = opened.raw(opened.request(b"hold"))
    assert poll(lambda: opened.held, 5)
    client.close()
    assert poll(lambda: opened.lost, 5) == opened.held
    assert opened.held[0].reply() is False
    half = opened.raw(opened.request(b"{}", length=5))
    half.close()
    assert opened.post(b"after") == (200, b"after")
    assert opened.lost == opened.held
    assert opened.heard == [b"hold", b"after"]


def test_a_client_that_talks_while_it_waits_is_closed(opened):
    client = opened.raw(opened.request(b"hold"))
    assert poll(lambda: opened.held, 5)
    client.sendall(b"x" * 2 * MAX_HEADER_BYTES)
    assert poll(lambda: opened.lost, 5)
    client.close()


def test_a_reply_that_no_one_reads_holds_up_no_one(opened):
    big = b"hold" + b"x" * 8 * 1024 * 1024
    client = opened.raw(opened.request(big))
    assert poll(lambda: opened.held, 5)
    opened.held[0].reply(big)
    assert opened.post(b"next") == (200, b"next")
    content = b""
    while len(content) < len(big):
        content += client.recv(1 << 20)
    client.close()


def test_threads_may_reply_at_once(opened):
    clients = [opened.raw(opened.request(b"hold %d" % number)) for number in range(50)]
    assert poll(lambda: len(opened.held) == 50, 5)
    replies = [threading.Thread(target=each.reply, args=(each.body,)) for each in opened.held]
    for thread in replies:
        thread.start()
    for number, client in enumerate(clients):
        assert client.recv(65536).endswith(b"hold %d" % number)
        client.close()
    for thread in replies:
        thread.join()


def test_the_hook_program_gets_the_answer_of_the_runner_without_a_token(opened, tmp_path):
    assert stat.S_IMODE(os.stat(tmp_path / HOOK_SOCKET).st_mode) == 0o600
    assert forward(str(tmp_path), b'{"a": 1}') == b'{"a": 1}'
    assert forward(str(tmp_path), b"x" * (MAX_BODY_BYTES + 1)) in (b"", None)


def test_without_a_runner_the_hook_program_has_no_answer(tmp_path):
    assert forward(str(tmp_path), b"{}") is None
    opened = Opened(tmp_path)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(forward(str(tmp_path), b"hold")))
    waiting.start()
    assert poll(lambda: opened.held, 5)
    opened.gateway.close()
    waiting.join()
    assert answers == [b""]
    assert forward(str(tmp_path), b"{}") is None


def test_a_session_folder_may_have_a_long_path(tmp_path):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    opened = Opened(folder)
    assert forward(str(folder), b"{}") == b"{}"
    opened.gateway.close()


def test_without_loopback_there_is_no_port(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HOST", "203.0.113.1")  # an address that this machine does not have
    gateway = Gateway(("/hook",), lambda exchange: exchange.reply(b"yes"), lambda _: None)
    assert gateway.listen_on_loopback() is None
    gateway.listen_in_folder(str(tmp_path))
    gateway.start()
    assert forward(str(tmp_path), b"{}") == b"yes"
    gateway.close()


def test_a_closed_gateway_can_be_closed_again_and_replies_to_nothing(tmp_path):
    opened = Opened(tmp_path)
    client = opened.raw(opened.request(json.dumps("hold").encode()))
    assert poll(lambda: opened.held, 5)
    opened.gateway.close()
    opened.gateway.close()
    assert opened.held[0].reply() is False
    assert read_all(client) == b""
