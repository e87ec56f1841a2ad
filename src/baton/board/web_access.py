"""Decide which requests the web board serves: by host, origin, login and rights.

A login begins with a one-time token, which `baton web` and `baton web token` put into the fragment of the address. The
browser exchanges it for a cookie. Both are in the user's state as hashes alone. Browsers send a cookie to all ports of
a host. This one is for a path that only the page of this board knows: a server at another port never gets it.

    <state>/web/<port>.address    where the board of a port was last reached
    <state>/web/tokens/<hash>     a token: one process removes the file, and that one has used it
    <state>/web/sessions/<hash>   a login of a browser; signing out removes it
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Mapping

from baton.core.errors import InvalidValue
from baton.core.fields import parse_json
from baton.core.hashing import sha256
from baton.storage.files import read_file, remove_file, replace_file
from baton.storage.homes import make_state

DEFAULT_PORT = 8642
RIGHTS = ("view", "act", "answer")
SESSION_SEC = 30 * 24 * 3600
HEADER = "X-Baton"  # a page of another origin cannot send it without asking first, and is never allowed to
_TOKEN_SEC = 600
_MOST_KEPT = 100
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


class Refused(Exception):
    """A request that is not served: the status of the answer, and one line."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Logins:
    """One-time tokens and logins of one port, in the user's state."""

    def __init__(self, state_dir: str, port: int) -> None:
        self._state_dir = state_dir
        self._folder = os.path.join(state_dir, "web")
        self._port = port
        self.cookie = f"baton-{port}"

    def new_token(self) -> str:
        """Return a token that is valid once, for ten minutes."""
        return self._add("tokens", _TOKEN_SEC)

    def note_address(self, address: str) -> None:
        """Note under which address browsers reach the board of this port."""
        make_state(self._state_dir, "web")
        replace_file(os.path.join(self._folder, f"{self._port}.address"), address.encode())

    def login_address(self) -> str:
        """Return an address that signs a browser in, once."""
        try:
            address = read_file(os.path.join(self._folder, f"{self._port}.address"), 1000).decode().strip()
        except FileNotFoundError:
            address = f"http://127.0.0.1:{self._port}/"
        return f"{address}#token={self.new_token()}"

    def exchange(self, token: object) -> str:
        """Return the secret of a new login for a token. Raise Refused if it was used before, or is not valid."""
        if not isinstance(token, str) or not self._is_valid("tokens", token):
            raise Refused(401, "this address was used already, or is too old; `baton web token` prints a new one")
        try:
            os.unlink(self._path("tokens", token))  # guard: web-token-once
        except FileNotFoundError:
            raise Refused(401, "this address was used already; `baton web token` prints a new one") from None
        return self._add("sessions", SESSION_SEC)

    def is_login(self, secret: str | None) -> bool:
        """Return whether a browser with this cookie is signed in."""
        return secret is not None and self._is_valid("sessions", secret)

    def sign_out(self, secret: str) -> None:
        """End a login, in every process."""
        if _SECRET.fullmatch(secret):
            remove_file(self._path("sessions", secret))

    def sign_out_all(self) -> int:
        """End all logins of this port, and unused tokens; return how many logins there were."""
        found = [
            (kind, path)
            for kind in ("tokens", "sessions")
            for path, port, _ in self._entries(kind)
            if port == self._port
        ]
        for _, path in found:
            remove_file(path)
        return sum(kind == "sessions" for kind, _ in found)

    def _add(self, kind: str, seconds: int) -> str:
        secret = secrets.token_urlsafe(32)
        make_state(self._state_dir, os.path.join("web", kind))
        self._tidy(kind)
        content = json.dumps({"port": self._port, "until": int(time.time()) + seconds}).encode()
        replace_file(self._path(kind, secret), content)
        return secret

    def _is_valid(self, kind: str, secret: str) -> bool:
        if not _SECRET.fullmatch(secret):
            return False
        port, until = _read(self._path(kind, secret))
        return port == self._port and time.time() < until  # guard: web-login-of-port

    def _path(self, kind: str, secret: str) -> str:
        return os.path.join(self._folder, kind, sha256(secret.encode()).hexdigest())

    def _entries(self, kind: str) -> list[tuple[str, int, float]]:
        folder = os.path.join(self._folder, kind)
        paths = [os.path.join(folder, name) for name in os.listdir(folder)] if os.path.isdir(folder) else []
        return [(path, *_read(path)) for path in paths]

    def _tidy(self, kind: str) -> None:
        """Remove what has expired, and the oldest if there are many."""
        entries = sorted(self._entries(kind), key=lambda entry: entry[2])
        expired = [path for path, _, until in entries if until < time.time()]
        for path in expired or [path for path, _, _ in entries[: max(len(entries) - _MOST_KEPT, 0)]]:
            remove_file(path)


def _read(path: str) -> tuple[int, float]:
    """Return the port and the end of a token or a login; of one that cannot be read, an end that is over."""
    try:
        found = parse_json(read_file(path, 1000))
        return int(found["port"]), float(found["until"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0, 0.0


class Access:
    """What one server accepts. `names` are the hosts by which browsers may call it, `rights` what they may do."""

    def __init__(self, logins: Logins, port: int, rights: frozenset[str], *, tls: bool, names: tuple[str, ...]) -> None:
        self.logins = logins
        self.rights = rights
        self.tls = tls
        scheme, usual = ("https", 443) if tls else ("http", 80)
        self._hosts = {f"{name}:{port}" for name in names} | ({*names} if port == usual else set())
        self._origins = {f"{scheme}://{host}" for host in self._hosts}

    def check_place(self, method: str, headers: Mapping[str, str], hosts: list[str]) -> None:
        """Raise Refused for a request that another site may have made: by its Host, its Origin, or by what the browser
        says about it."""
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:  # guard: web-host
            raise Refused(421, "this server does not answer under that name")
        origin = headers.get("Origin")
        if origin is None and method != "GET":  # guard: web-origin-missing
            raise Refused(403, "a request that changes something needs an Origin")
        if origin is not None and origin not in self._origins:  # guard: web-origin
            raise Refused(403, "this request comes from another site")
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):  # guard: web-fetch-site
            raise Refused(403, "another site led here; type or paste the address instead")

    def check_login(self, headers: Mapping[str, str], place: str) -> str:
        """Return the secret of the login; raise Refused if the browser is not signed in, or asks at another place."""
        secret = self._cookie(headers)
        if not self.logins.is_login(secret):  # guard: web-login
            raise Refused(401, "sign in first: `baton web token` prints an address")
        assert secret is not None
        if place != place_of(secret):  # guard: web-login-place
            raise Refused(401, "sign in again: `baton web token` prints an address")
        return secret

    def check_right(self, right: str) -> None:
        """Raise Refused for an action that this server does not offer."""
        if right not in self.rights:  # guard: web-rights
            raise Refused(403, f"this board was started without the right to {right}")

    @staticmethod
    def check_body(headers: Mapping[str, str], lengths: list[str], most: int) -> int:
        """Return the length of a JSON body; raise Refused for any other body, and for one that is too long."""
        if headers.get(HEADER) != "1":  # guard: web-custom-header
            raise Refused(403, f"the header {HEADER} is missing")
        if headers.get("Content-Type") != "application/json":  # guard: web-json-only
            raise Refused(415, "a body must be application/json")
        if headers.get("Transfer-Encoding") is not None or len(lengths) != 1 or not lengths[0].isascii():
            raise Refused(411, "a body needs one Content-Length")
        if not lengths[0].isdecimal() or len(lengths[0]) > 9:
            raise Refused(400, "Content-Length is not a number")
        if int(lengths[0]) > most:  # guard: web-body-size
            raise Refused(413, f"a body may have {most} bytes")
        return int(lengths[0])

    def set_cookie(self, secret: str, *, is_over: bool = False) -> str:
        """Return the Set-Cookie header of a login, or of its end."""
        value, age = ("", 0) if is_over else (secret, SESSION_SEC)
        secure = "; Secure" if self.tls else ""
        path = f"/api/{place_of(secret)}"
        return f"{self.logins.cookie}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"

    def _cookie(self, headers: Mapping[str, str]) -> str | None:
        found = [part.strip().partition("=") for part in headers.get("Cookie", "").split(";")]
        values = [value for name, _, value in found if name == self.logins.cookie]
        return values[0] if len(values) == 1 else None


def place_of(secret: str) -> str:
    """Return the part of the path below which a login is valid: /api/PLACE."""
    return str(sha256(f"place of {secret}".encode()).hexdigest()[:32])


def parse_rights(text: str) -> frozenset[str]:
    """Return the rights in a list such as `view,act`; `view` is always among them."""
    rights = {each.strip() for each in text.split(",")}
    if not rights <= set(RIGHTS):
        raise InvalidValue("--rights", f"must be some of {', '.join(RIGHTS)}, with commas")
    return frozenset({"view", *rights})
