"""Serve the web board: one page, its data as JSON, and changes as they come (server-sent events).

Each connection carries one request and has a thread and a deadline. The number of connections and of viewers is
limited: a slow or dead browser takes nothing from the others."""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from importlib import resources
from socketserver import TCPServer as _TCPServer
from socketserver import ThreadingMixIn, UnixStreamServer
from urllib.parse import parse_qs, urlsplit

from baton.board import web_routes
from baton.board.web_access import Access, Refused, place_of
from baton.board.web_routes import SharedBoard, readable
from baton.core.errors import BatonError
from baton.core.fields import one_line, parse_json
from baton.core.value import Any

MOST_CONNECTIONS = 64
MOST_VIEWERS = 24
MAX_BODY = 64 * 1024
REQUEST_SEC = 10.0  # in which a request must have arrived whole
_ANSWER_SEC = 60.0
_WRITE_SEC = 10.0  # a viewer that takes nothing for so long is dropped
_HEARTBEAT_SEC = 10.0
_LOOK_SEC = 0.5  # how soon a viewer that went away makes room for another
_REFRESH_SEC = 0.25
_TARGET_CHARS = 2048

_TYPES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class _Serving(ThreadingMixIn):
    """What the TCP and the unix server share."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128
    access: Access
    board: SharedBoard
    tls: ssl.SSLContext | None = None

    def prepare(self, access: Access, board: SharedBoard, tls: ssl.SSLContext | None) -> None:
        self.access, self.board, self.tls = access, board, tls
        self.request_sec = REQUEST_SEC
        self.watching = 0  # viewers
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._deadlines: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        for target in (self._watch_board, self._watch_deadlines):
            threading.Thread(target=target, daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):  # guard: web-connections
            self.shutdown_request(request)  # type: ignore[attr-defined]
            return
        self.set_deadline(request, self.request_sec)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads
            self._forget(request)
            self.shutdown_request(request)  # type: ignore[attr-defined]

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(self.request_sec)
            if self.tls is not None:
                request = self._with_tls(request)
            super().process_request_thread(request, client_address)
        except OSError:
            self.shutdown_request(request)  # type: ignore[attr-defined]
        finally:
            self._forget(request)

    def _with_tls(self, request: Any) -> Any:
        assert self.tls is not None
        wrapped = self.tls.wrap_socket(request, server_side=True)
        with self._lock:
            self._deadlines[wrapped] = self._deadlines.pop(request)
        return wrapped

    def set_deadline(self, connection: Any, seconds: float | None) -> None:
        """Close the connection after this long; None: not by time alone."""
        with self._lock:
            self._deadlines[connection] = float("inf") if seconds is None else time.monotonic() + seconds

    def add_viewer(self) -> bool:
        """Count a browser that follows the changes; return False if there are too many."""
        with self._lock:
            if self.watching >= MOST_VIEWERS:  # guard: web-viewers
                return False
            self.watching += 1
            return True

    def remove_viewer(self) -> None:
        with self._lock:
            self.watching -= 1

    def _forget(self, connection: Any) -> None:
        with self._lock:
            known = self._deadlines.pop(connection, None)
        if known is not None:
            self._room.release()

    def _watch_deadlines(self) -> None:
        while not self.stopping.wait(0.5):
            with self._lock:
                now = time.monotonic()
                late = [each for each, end in self._deadlines.items() if end < now]  # guard: web-slow-request
            for connection in late:
                _shut_down(connection)

    def _watch_board(self) -> None:
        while not self.stopping.wait(_REFRESH_SEC):
            self.board.will_look_in(_REFRESH_SEC)
            if self.watching:
                self.board.refresh()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # a browser that went away is no error
            print(f"baton: web: {type(error).__name__}: {one_line(str(error), 200)}", file=sys.stderr)


class TcpBoardServer(_Serving, _TCPServer):
    """The board at an address and a port."""


class UnixBoardServer(_Serving, UnixStreamServer):
    """The board at a unix socket of the user."""

    def server_bind(self) -> None:
        before = os.umask(0o177)
        try:
            super().server_bind()
        finally:
            os.umask(before)


BoardServer = TcpBoardServer | UnixBoardServer


class Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    server: BoardServer
    protocol_version = "HTTP/1.1"
    server_version = "baton"
    sys_version = ""

    def parse_request(self) -> bool:
        self.close_connection = True
        parsed = super().parse_request()
        self.close_connection = True  # one request for each connection
        return parsed

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        try:
            if len(self.path) > _TARGET_CHARS:
                raise Refused(414, "the address is too long")
            access, target = self.server.access, urlsplit(self.path)
            headers = _joined(self.headers.items())
            access.check_place(method, headers, self.headers.get_all("Host") or [])
            if method == "GET" and target.path in _TYPES:
                name, kind = _TYPES[target.path]
                self._send(200, _asset(name), kind)
            elif method == "GET":
                place, parts = _split(target.path)
                access.check_login(headers, place)
                query = {name: values[-1] for name, values in parse_qs(target.query, max_num_fields=5).items()}
                self.server.set_deadline(self.connection, _ANSWER_SEC)
                if parts == ["events"]:
                    self._stream(place, headers, headers.get("Last-Event-Id") or query.get("after", ""))
                else:
                    self._json(200, readable(lambda: self._get(parts, query)))
            else:
                length = access.check_body(headers, self.headers.get_all("Content-Length") or [], MAX_BODY)
                body = self._read_body(length)
                self.server.set_deadline(self.connection, _ANSWER_SEC)
                self._post(*_split(target.path), body, headers)
        except Refused as error:
            self._json(error.status, {"error": str(error)})
        except BatonError as error:
            self._json(409, {"error": one_line(str(error), 500)})
        except ValueError:
            self._json(400, {"error": "the request is not valid"})

    def _read_body(self, length: int) -> dict[str, Any]:
        content = self.rfile.read(length)
        if len(content) < length:
            raise Refused(400, "the body is incomplete")
        try:
            body = parse_json(content)
        except ValueError:
            raise Refused(400, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body must be an object")
        return body

    def _get(self, parts: list[str], query: dict[str, str]) -> Any:
        board = self.server.board
        match parts:
            case ["board"]:
                board.refresh()
                return board.whole() | {"rights": sorted(self.server.access.rights)}
            case ["jobs", key]:
                return web_routes.job_page(board, key)
            case ["jobs", key, "requests"]:
                board.refresh()
                return web_routes.requests_of(board, key)
            case ["jobs", key, "requests", request_id, "outcome"]:
                return web_routes.answer_outcome(board, key, request_id)
            case ["jobs", key, "view"]:
                return web_routes.live_view(board, key, query.get("known", ""))
            case ["jobs", key, what] if what in web_routes.READERS:
                card, settings = board.find(key)
                return {what: web_routes.READERS[what](settings, card.job_id)}
        raise Refused(404, "there is nothing here")

    def _post(self, place: str, parts: list[str], body: dict[str, Any], headers: dict[str, str]) -> None:
        access, board = self.server.access, self.server.board
        if place == "login" and not parts:
            secret = access.logins.exchange(body.get("token"))
            self._json(200, {"place": place_of(secret)}, {"Set-Cookie": access.set_cookie(secret)})
            return
        secret = access.check_login(headers, place)
        match parts:
            case ["logout"]:
                access.logins.sign_out(secret)
                self._json(200, {"done": "signed out"}, {"Set-Cookie": access.set_cookie(secret, is_over=True)})
            case ["jobs", key, "requests", request_id, verb]:
                access.check_right("answer")
                self._json(200, readable(lambda: web_routes.answer(board, key, request_id, verb, body), ()))
                board.refresh()
            case ["jobs", key, verb]:
                access.check_right("act")
                self._json(200, readable(lambda: web_routes.act(board, key, verb, body, access.check_right), ()))
                board.refresh()
            case _:
                raise Refused(404, "there is nothing here")

    def _stream(self, place: str, headers: dict[str, str], position: str) -> None:
        """Send changes until the browser goes away: first what changed since its position."""
        server = self.server
        if not server.add_viewer():
            raise Refused(503, "too many browsers watch this board; close some of them")
        try:
            server.board.refresh()
            server.set_deadline(self.connection, None)
            self.connection.settimeout(_WRITE_SEC)
            self._head(200, "text/event-stream; charset=utf-8", None, {})
            found = server.board.after(position) if position else server.board.whole()
            self._event(found, retry=True)
            spoke_at = time.monotonic()
            while not server.stopping.is_set() and not self._is_gone():
                version = server.board.wait(found["version"], _LOOK_SEC)
                server.access.check_login(headers, place)  # the user may have signed out since
                if version == found["version"]:
                    if time.monotonic() - spoke_at > _HEARTBEAT_SEC:
                        self.wfile.write(b": still here\n\n")
                        spoke_at = time.monotonic()
                    continue
                found = server.board.since(found["revision"])
                self._event(found)
        except (OSError, Refused):
            return  # the browser went away, or signed out
        finally:
            server.remove_viewer()

    def _is_gone(self) -> bool:
        """Return whether the browser has closed the connection: it sends nothing else on it."""
        return bool(select.select([self.connection], [], [], 0)[0])

    def _event(self, found: dict[str, Any], *, retry: bool = False) -> None:
        first = "retry: 1000\n" if retry else ""
        text = f"{first}id: {found['position']}\ndata: {json.dumps(found)}\n\n"
        self.wfile.write(text.encode())

    def _json(self, status: int, value: Any, more: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(value).encode(), "application/json", more or {})

    def _send(self, status: int, content: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self._head(status, kind, len(content), more or {})
        self.wfile.write(content)

    def _head(self, status: int, kind: str, length: int | None, more: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in (_HEADERS | more).items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is not even HTTP as the others, without repeating what it said."""
        self.close_connection = True
        self._json(code, {"error": "the request is not valid"})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: addresses may hold what a user would not want in a log."""


def _joined(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by their names; one that was sent twice with both values, which then fit no rule."""
    found: dict[str, str] = {}
    for name, value in items:
        before = found.get(name.title())
        found[name.title()] = value if before is None else f"{before}, {value}"  # guard: web-header-twice
    return found


def _split(path: str) -> tuple[str, list[str]]:
    """Return the place of a login, and the parts of the path below it; Refused for any other path."""
    match path.split("/")[1:]:
        case ["api", place, *parts]:
            return place, parts
    raise Refused(404, "there is nothing here")


def _shut_down(connection: socket.socket) -> None:
    """End a connection whose thread waits for it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already


def _asset(name: str) -> bytes:
    return resources.files("baton.board").joinpath("page", name).read_bytes()


def open_server(
    access: Access, board: SharedBoard, address: tuple[str, int] | str, tls: ssl.SSLContext | None = None
) -> BoardServer:
    """Return a server at an address and port, or at the path of a unix socket. BatonError if that is in use."""
    server: BoardServer
    try:
        if isinstance(address, str):
            _remove_stale_socket(address)
            server = UnixBoardServer(address, Handler)
        else:
            server = TcpBoardServer(address, Handler)
    except OSError as error:
        where = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
        hint = "another board may be open there: `baton web token` prints its address, --port chooses another port"
        raise BatonError(f"cannot listen at {where}: {error.strerror or error}; {hint}") from None
    server.prepare(access, board, tls)
    return server


def _remove_stale_socket(path: str) -> None:
    """Remove a unix socket that no process listens at any more; nothing else that is there."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):  # guard: web-socket-only
            return  # a connection to a file is refused, too
    except FileNotFoundError:
        return
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.connect(path)
    except ConnectionRefusedError:
        os.unlink(path)
    except OSError:
        return  # there is none
    finally:
        probe.close()
