"""S10: what other sites, other programs and hostile jobs try with the web board. Nothing gets in, nothing runs."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import threading
import time

import pytest

from support.command import BATON
from support.ports import free_port
from support.waiting import wait_until
from support.web import User, WebBoard, ask, start


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    user = User(tmp_path_factory.mktemp("user"))
    with user.jobs("one") as jobs:
        job = start(jobs, "asking")
        user.request = ask(jobs, job, {"command": "make deploy"})
        user.job = job
        user.pending = jobs.register_job("pending")
    return user


@pytest.fixture(scope="module")
def board(user):
    board = WebBoard(user)
    board.sign_in()
    yield board
    assert "Traceback" not in board.stop()


@pytest.fixture(scope="module")
def key(board, user):
    cards = board.call("/api/board").json["cards"]
    return next(card["key"] for card in cards if card["job_id"] == user.job.job_id)


def is_open(user):
    with user.jobs("one") as jobs:
        return jobs.registry.get_request(user.request.request_id).state == "open"


READ = ["/api/board", "/api/events", "/api/jobs/KEY", "/api/jobs/KEY/view", "/api/jobs/KEY/history"]
WRITE = ["/api/login", "/api/logout", "/api/jobs/KEY/cancel", "/api/jobs/KEY/requests/REQUEST/approve"]


def places(paths, key, user):
    return [path.replace("KEY", key).replace("REQUEST", user.request.request_id) for path in paths]


# -- other names, other sites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:PORT", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:PORT", "", "127.0.0.1:PORT.evil",
     "0.0.0.0:PORT", "2130706433:PORT", "localhost:PORT, evil.example"],
)  # fmt: skip
def test_a_name_that_was_rebound_gets_nothing(board, key, user, host):
    host = host.replace("PORT", str(board.port))
    for path in ["/", "/page.js", *places(READ, key, user)]:
        assert board.call(path, Host=host).status == 421, path
    for path in places(WRITE, key, user):
        assert board.call(path, {"token": board.token}, Host=host).status == 421
    assert is_open(user)


def test_two_hosts_and_no_host_get_nothing(board):
    for hosts in ("", f"Host: 127.0.0.1:{board.port}\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", board.port)) as raw:
            raw.sendall(f"GET / HTTP/1.1\r\n{hosts}\r\n".encode())
            assert b" 421 " in raw.recv(1000)


def test_a_header_that_is_sent_twice_fits_no_rule(board):
    own, host = f"http://127.0.0.1:{board.port}", f"Host: 127.0.0.1:{board.port}\r\n"
    good = f"Cookie: {board.cookie}\r\n"
    for twice, status in (
        (f"{good}Origin: http://evil.example\r\nOrigin: {own}\r\n", b" 403 "),
        (f"{good}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Site: none\r\n", b" 403 "),
        (f"Cookie: x=y\r\n{good}", b" 401 "),
        (good, b" 200 "),
    ):
        with socket.create_connection(("127.0.0.1", board.port)) as raw:
            raw.sendall(f"GET {board.api('/api/board')} HTTP/1.1\r\n{host}{twice}\r\n".encode())
            assert status in raw.recv(1000)[:20], twice


ORIGINS = ["null", "https://evil.example", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:1", "",
           "http://localhost.evil.example", "https://127.0.0.1:PORT", "http://127.0.0.1:PORT/", "file://"]  # fmt: skip


@pytest.mark.parametrize("origin", ORIGINS)
def test_another_origin_gets_nothing_with_any_method(board, key, user, origin):
    origin = origin.replace("PORT", str(board.port))
    for path in ["/", *places(READ, key, user)]:
        assert board.call(path, Origin=origin).status == 403, path
    for path in places(WRITE, key, user):
        assert board.call(path, {"token": "x"}, Origin=origin).status == 403
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW"):
        answer = board.call("/api/board", {}, method=method, Origin=origin)
        assert answer.status in (403, 405, 501), method
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    assert is_open(user)


def test_a_change_needs_an_origin_a_header_and_json(board, key, user):
    body = {"text_sha256": "0" * 64}
    for path in places(WRITE[1:], key, user):
        assert board.call(path, body, Origin=None).status == 403
        assert board.call(path, body, X_Baton=None).status == 403
        assert board.call(path, body, X_Baton="2").status == 403
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None,
                     "application/json; charset=utf-8", "text/plain; application/json"):  # fmt: skip
            assert board.call(path, body, Content_Type=kind).status == 415, kind
        assert board.call(path, body, Sec_Fetch_Site="cross-site").status == 403
        assert board.call(path, body, Sec_Fetch_Site="same-site").status == 403  # another port of this host
        assert board.call(path, method="GET").status == 404
    for path in places(READ, key, user):
        assert board.call(path, Sec_Fetch_Site="cross-site").status == 403
    assert board.call("/api/board").status == 200
    assert is_open(user)


def test_no_answer_lets_other_sites_read_or_frame_it(board, key, user):
    for path in ["/", "/page.js", "/page.css", "/nothing", *places(READ[2:], key, user)]:
        answer = board.call(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == "no-store"
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


# -- tokens and logins -------------------------------------------------------------------------------------------------


def test_nothing_is_shown_without_a_login(board, key, user):
    for cookie in ("", f"baton-{board.port}=", f"baton-{board.port}={'A' * 43}", f"baton-{board.port}=../../x", "x=y",
                   board.cookie.replace(f"-{board.port}", "-1"), board.cookie + "; " + board.cookie):  # fmt: skip
        for path in places(READ, key, user):
            assert board.call(path, Cookie=cookie).status == 401, (path, cookie)
        for path in places(WRITE[1:], key, user):
            assert board.call(path, {}, Cookie=cookie).status == 401
    assert is_open(user)


def test_a_token_is_used_once_by_one_browser(board):
    token = board.new_token()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as many:
        found = sorted(many.map(lambda _: board.call("/api/login", {"token": token}).status, range(8)))
    assert found == [200] + [401] * 7
    for wrong in (None, 1, [], {}, "", "x", "../x", token[:-1], token + "x", "A" * 43, "\0", "é" * 43):
        assert board.call("/api/login", {"token": wrong}).status == 401, wrong


def test_the_cookie_is_only_for_this_board(board):
    answer = board.call("/api/login", {"token": board.new_token()})
    name, *flags = answer.headers["Set-Cookie"].split("; ")
    assert name.startswith(f"baton-{board.port}=")
    assert set(flags) == {f"Path=/api/{answer.json['place']}", "Max-Age=2592000", "HttpOnly", "SameSite=Strict"}


def test_a_login_is_valid_at_its_own_place_alone(board, key, user):
    """The browser sends the cookie to no other path, and so to no other port: a path that others know gives nothing."""
    other = board.call("/api/login", {"token": board.new_token()}).json["place"]
    assert other != board.place
    for place in (other, "none", "", "login", board.place[:-1], board.place.upper(), "%2e%2e"):
        for path in ("board", "events", f"jobs/{key}"):
            assert board.call(f"/api/{path}", place=place).status == 401, place
    assert board.call("/api/board").status == 200


def test_the_token_of_another_port_is_worth_nothing(board, user):
    done = subprocess.run(
        [BATON, "web", "token", "--port", "1234"], env=user.env, cwd=user.root, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.startswith("http://127.0.0.1:1234/#token=")
    assert board.call("/api/login", {"token": done.stdout.strip().partition("=")[2]}).status == 401


def test_signing_out_ends_the_login_everywhere(board):
    answer = board.call("/api/login", {"token": board.new_token()})
    cookie, place = answer.headers["Set-Cookie"].partition(";")[0], answer.json["place"]
    assert board.call("/api/board", place=place, Cookie=cookie).status == 200
    gone = board.call("/api/logout", {}, place=place, Cookie=cookie)
    assert f"=; Path=/api/{place}; Max-Age=0" in gone.headers["Set-Cookie"]
    assert board.call("/api/board", place=place, Cookie=cookie).status == 401


def test_secrets_are_kept_as_hashes_in_private_files(board, user):
    token, secret = board.new_token(), board.cookie.partition("=")[2]
    for folder, _, files in os.walk(os.path.join(user.root, "state", "web")):
        assert os.stat(folder).st_mode & 0o077 == 0
        for name in files:
            path = os.path.join(folder, name)
            assert os.stat(path).st_mode & 0o077 == 0
            with open(path) as file:
                content = file.read() + name
            assert token not in content
            assert secret not in content
    with open(f"/proc/{board.process.pid}/cmdline") as line:
        assert board.token not in line.read()


def test_an_expired_login_and_an_expired_token_are_refused(tmp_path, monkeypatch):
    from baton.board import web_access

    logins = web_access.Logins(str(tmp_path), 1)
    token, other = logins.new_token(), logins.new_token()
    secret = logins.exchange(other)
    assert logins.is_login(secret)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 601)
    with pytest.raises(web_access.Refused):
        logins.exchange(token)
    assert logins.is_login(secret)
    monkeypatch.setattr(time, "time", lambda: now + web_access.SESSION_SEC + 1)
    assert not logins.is_login(secret)


# -- rights ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "act", "answer"),
    [(["--read-only"], 403, 403), (["--rights", "view"], 403, 403), (["--rights", "act"], 200, 403),
     (["--rights", "view,answer"], 403, 409)],
)  # fmt: skip
def test_rights_are_held_by_the_server(user, key, options, act, answer):
    board = WebBoard(user, *options)
    try:
        board.sign_in()
        assert board.call("/api/board").status == 200
        assert board.call(f"/api/jobs/{key}/snooze", {}).status == act
        assert board.call(f"/api/jobs/{key}/wake", {}).status == act
        path = f"/api/jobs/{key}/requests/{user.request.request_id}/approve"
        assert board.call(path, {"text_sha256": "0" * 64}).status == answer  # 409: not what was shown
    finally:
        board.stop()
    assert is_open(user)


def test_the_board_listens_beyond_loopback_with_tls_alone(user, tmp_path):
    def web(*options, code):
        done = subprocess.run([BATON, "web", "--port", str(free_port()), *options], env=user.env, cwd=user.root,
                              capture_output=True, text=True, timeout=20, check=False)  # fmt: skip
        assert done.returncode == code, done
        return done.stderr

    assert "--cert" in web("--listen", "0.0.0.0", code=64)
    assert "--cert" in web("--listen", "192.0.2.1", code=64)
    assert "--home" in web("--home", os.path.join(user.root, "new"), code=64)
    assert "--listen" in web("--listen", "evil.example", code=64)
    assert "--rights" in web("--rights", "view,root", code=64)
    assert "--cert" in web("--listen", "0.0.0.0", "--cert", str(tmp_path / "none.pem"), code=1)
    inside = subprocess.run([BATON, "web", "token"], env=user.env | {"BATON_SESSION_ID": "0" * 16}, cwd=user.root,
                            capture_output=True, text=True, check=False)  # fmt: skip
    assert inside.returncode == 1
    assert "inside a session" in inside.stderr


def test_tls_serves_with_a_secure_cookie(user, tmp_path):
    cert, private = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-subj", "/CN=board.test", "-addext", "subjectAltName=DNS:board.test", "-days", "2",
                    "-keyout", private, "-out", cert], check=True, capture_output=True)  # fmt: skip
    board = WebBoard(user, "--listen", "0.0.0.0", "--cert", cert, "--key", private, "--name", "board.test")
    try:
        assert board.address.startswith(f"https://board.test:{board.port}/#token=")
        context = ssl.create_default_context(cafile=cert)

        def call(host, origin):
            body = json.dumps({"token": board.token}).encode()
            head = (f"POST /api/login HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nX-Baton: 1\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n")  # fmt: skip
            raw = socket.create_connection(("127.0.0.1", board.port))
            with context.wrap_socket(raw, server_hostname="board.test") as secure:
                secure.sendall(head.encode() + body)
                return secure.makefile("rb").read()

        place = f"board.test:{board.port}"
        assert b" 421 " in call(f"evil.example:{board.port}", f"https://{place}")
        assert b" 403 " in call(place, f"http://{place}")
        assert b"; Secure" in call(place, f"https://{place}")
        with socket.create_connection(("127.0.0.1", board.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                assert b"HTTP" not in plain.recv(1000)
            except ConnectionResetError:
                return  # closed without a word
    finally:
        board.stop()


def test_a_unix_socket_is_for_the_user_alone(user):
    path = os.path.join(user.root, "board.sock")
    board = WebBoard(user, "--listen", f"unix:{path}")
    try:
        assert os.stat(path).st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(path)
            raw.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{board.port}\r\n\r\n".encode())
            assert raw.recv(100).startswith(b"HTTP/1.1 200 ")
    finally:
        board.stop()
    assert not os.path.exists(path)


def test_a_socket_that_was_left_behind_is_replaced_and_nothing_else_is(user):
    path = os.path.join(user.root, "left.sock")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    WebBoard(user, "--listen", f"unix:{path}").stop()
    with open(path, "w") as file:
        file.write("precious")
    done = subprocess.run([BATON, "web", "--listen", f"unix:{path}", "--port", str(free_port())], env=user.env,
                          cwd=user.root, capture_output=True, text=True, timeout=20, check=False)  # fmt: skip
    assert done.returncode == 1
    assert "cannot listen" in done.stderr
    with open(path) as file:
        assert file.read() == "precious"


# -- oversized, malformed, slow ----------------------------------------------------------------------------------------


def test_oversized_and_malformed_requests_are_refused(board, key, user):
    big = b'{"text": "' + b"x" * (64 * 1024) + b'"}'
    assert board.call(f"/api/jobs/{key}/message", raw=big).status == 413
    assert board.call(f"/api/jobs/{key}/message", raw=b"{}", Content_Length=str(10**8)).status == 413
    for length in ("-1", "x", "1e3", "0x10", "9" * 30, ""):
        assert board.call("/api/logout", raw=b"", Content_Length=length).status == 400, length
    assert board.call("/api/logout", raw=b"", Content_Length=None).status == 411
    assert board.call("/api/logout", raw=b"", Content_Length=None, Transfer_Encoding="chunked").status == 411
    for content in (b"", b"[]", b"1", b"{", b"\xff", b"[" * 50_000, b'{"a":1}x'):
        assert board.call("/api/logout", raw=content).status == 400, content[:20]
    assert board.call("/" + "a" * 5000).status == 414
    assert board.call("/" + "a" * 70_000).status == 414
    for path in ("/api/jobs/../../etc/passwd", "/api/jobs/x", "/..", "//evil.example/", "/api/jobs/%2e%2e/view", "/api",
                 f"/api/jobs/{key}/nothing", "/page.html", "/api/jobs/" + "0" * 8 + "-" + "0" * 8):  # fmt: skip
        assert board.call(path).status == 404, path
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 100,
                 b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n"):  # fmt: skip
        with socket.create_connection(("127.0.0.1", board.port), timeout=15) as raw:
            raw.sendall(junk)
            raw.shutdown(socket.SHUT_WR)
            answer = raw.makefile("rb").read()
            assert b" 200 " not in answer[:20], junk[:20]
            assert junk[:7] not in answer or junk[:3] == b"GET"
    assert board.call("/api/board").status == 200
    assert is_open(user)


@pytest.fixture
def impatient(user, request, monkeypatch):
    """A board in this process that gives a request a second to arrive; at full size, as long as a real one does."""
    from baton.board import web_server
    from baton.board.web_access import Access, Logins
    from baton.board.web_routes import SharedBoard

    if not request.config.getoption("--full"):
        monkeypatch.setattr(web_server, "REQUEST_SEC", 1.0)
    port = free_port()
    access = Access(
        Logins(user.env["BATON_STATE_DIR"], port), port, frozenset({"view"}), tls=False, names=("127.0.0.1",)
    )
    shared = SharedBoard(user.settings("one"))
    server = web_server.open_server(access, shared, ("127.0.0.1", port))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server, port
    server.stopping.set()
    server.shutdown()
    server.server_close()
    thread.join()
    shared.close()


def test_slow_and_idle_connections_take_nothing_from_others(impatient):
    """Connections that send nothing, or one byte now and then, fill the room and are closed; then there is room."""
    from baton.board.web_server import MOST_CONNECTIONS

    server, port = impatient
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST_CONNECTIONS + 20)]
    try:
        began = time.monotonic()

        def is_served():
            for each in idle:
                try:
                    each.send(b"G")  # a byte now and then does not extend the time
                except OSError:
                    continue
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=2) as raw:
                    raw.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                    return raw.recv(15) == b"HTTP/1.1 200 OK"
            except OSError:
                return False

        assert not is_served()
        wait_until(is_served, "room for another browser", 25, interval_sec=0.2)
        assert time.monotonic() - began < 2 * server.request_sec + 3
    finally:
        for each in idle:
            each.close()


def test_viewers_are_limited_and_leave_when_they_go(board):
    from baton.board.web_server import MOST_VIEWERS

    def view():
        raw = socket.create_connection(("127.0.0.1", board.port))
        head = (
            f"GET {board.api('/api/events')} HTTP/1.1\r\nHost: 127.0.0.1:{board.port}\r\nCookie: {board.cookie}\r\n\r\n"
        )
        raw.sendall(head.encode())
        return raw, raw.recv(12)

    viewers = [view() for _ in range(MOST_VIEWERS)]
    try:
        assert {first for _, first in viewers} == {b"HTTP/1.1 200"}
        raw, refused = view()
        raw.close()
        assert refused == b"HTTP/1.1 503"
        assert board.call("/api/board").status == 200
    finally:
        for raw, _ in viewers:
            raw.close()

    def is_served():
        raw, first = view()
        raw.close()
        return first == b"HTTP/1.1 200"

    wait_until(is_served, "those that went away make room", 5, interval_sec=0.1)


@pytest.mark.parametrize("kind", ["folder", "pipe", "garbage"])
def test_a_file_that_cannot_be_read_is_named_and_the_job_is_shown(board, key, user, kind):
    path = os.path.join(user.settings("one").home, "delegate_job_logs", user.job.job_id, "events.ndjson")
    os.rename(path, f"{path}.kept")
    try:
        if kind == "folder":
            os.mkdir(path)
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            with open(path, "w") as file:
                file.write('{"ts": [], "event": {}, "payload": {"data": 7}}\n')
        page = board.call(f"/api/jobs/{key}")
        assert page.status == 200
        assert page.json["card"]["job_id"] == user.job.job_id
        history = board.call(f"/api/jobs/{key}/history")
        assert history.status == 409
        assert page.json["timeline"]["why"] == history.json["error"] != ""
    finally:
        (os.rmdir if kind == "folder" else os.unlink)(path)
        os.rename(f"{path}.kept", path)
    assert board.call(f"/api/jobs/{key}/history").status == 200


def test_an_answer_to_another_text_is_refused(board, key, user):
    path = f"/api/jobs/{key}/requests/{user.request.request_id}"
    (shown,) = board.call(f"/api/jobs/{key}/requests").json
    assert "make deploy" in shown["text"]
    for digest in ("", "0" * 64, shown["text_sha256"][:-1], None, 1):
        assert board.call(f"{path}/approve", {"text_sha256": digest}).status in (400, 409)
    assert board.call(f"/api/jobs/{key}/requests/../approve", {}).status == 404
    assert board.call(f"/api/jobs/{key}/requests/zzzzzzzz/approve", {"text_sha256": "x"}).status == 404
    assert is_open(user)


def test_no_key_and_no_password_is_in_an_answer(board, key, user):
    with user.jobs("one") as jobs:
        token = jobs.get_job(user.job.job_id).auth_token
    for path in places(["/api/board", "/api/jobs/KEY", "/api/jobs/KEY/history", "/api/jobs/KEY/explain"], key, user):
        assert token not in board.call(path).content.decode()
        assert "hmac_sig" not in board.call(path).content.decode()
