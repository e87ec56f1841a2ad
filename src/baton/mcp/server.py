"""Speak the protocol: agree on a version, list the tools, run their calls side by side.

The generation of 2025-06-18 begins with `initialize`. In that of 2026-07-28 every request carries its version in
`_meta`, and nothing is remembered between requests. One process serves both.
"""

from __future__ import annotations

import os

from baton import __version__
from baton.core.errors import BatonError, describe_system_error
from baton.core.fields import one_line
from baton.core.value import Any
from baton.mcp.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Message,
    Output,
    ProtocolError,
    id_of,
    parse,
    read_lines,
    read_message,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import Event, Thread

MODERN, LEGACY = "2026-07-28", "2025-06-18"
UNSUPPORTED_VERSION = -32022
_META = "io.modelcontextprotocol/"
_MOST_CALLS = 32  # at once
_GRACE_SEC = 5.0  # for calls that change something, after the client has gone
_FRESH_MS = 3_600_000
_SERVER = {"name": "baton", "title": "baton", "version": __version__}
_INSTRUCTIONS = (
    "Hand work to other coding agents: submit returns a job id at once, wait tells when jobs end or need an answer, "
    "result gives what a job left. Jobs go on when this client ends: list finds them again. Give submit an "
    "idempotency_key, so that a call can be repeated without a second job."
)


class Call:
    """A tool call at work. `cancelled` is set when the client wants no answer any more, or has gone."""

    def __init__(self, message: Message, output: Output, *, modern: bool) -> None:
        from threading import Event

        self.message = message
        self.modern = modern
        self.cancelled: Event = Event()
        self.thread: Thread | None = None
        self._output = output
        token = message.params.get("_meta", {}).get("progressToken")
        self._token = token if isinstance(token, str | int) and not isinstance(token, bool) else None
        self._progress = -1.0

    def report(self, progress: float, total: float, message: str) -> None:
        """Tell the client how far the call is, if the client has asked for that. `progress` only rises."""
        if self._token is None or progress <= self._progress or self.cancelled.is_set():
            return
        self._progress = progress
        params = {"progressToken": self._token, "progress": progress, "total": total, "message": message}
        self._output.write({"method": "notifications/progress", "params": params})


class Server:
    """Serves one client on two file descriptors until the client closes one of them."""

    def __init__(self, where: Mapping[str, Any], folder: str, reading: int, writing: int) -> None:
        """`where`: the options of the command that say which home is used. `folder`: the present one."""
        self._where = where
        self._folder = folder
        self._reading = reading
        self._woken, wake = os.pipe()
        self._output = Output(writing, wake)
        self._initialized = False
        self._calls: dict[str | int, Call] = {}  # that the client expects an answer to
        self._at_work: set[Call] = set()

    def run(self) -> None:
        """Answer until the client closes its end. Calls that wait end then; others have a moment to finish."""
        for line in read_lines(self._reading, self._woken):
            if line is None:
                self._refuse(None, ProtocolError(INVALID_REQUEST, "the line is longer than 1 MiB"))
            elif line.strip():
                self._take(line)
        calls = list(self._at_work)
        for call in calls:
            call.cancelled.set()
        from time import monotonic

        until = monotonic() + _GRACE_SEC
        for call in calls:
            if call.thread is not None:
                call.thread.join(max(until - monotonic(), 0))

    def _take(self, line: bytes) -> None:
        """Answer one line."""
        value = None
        try:
            value = parse(line)
            message = read_message(value)
            if message is None:
                return
            if message.request_id is None:
                self._notice(message)
            else:
                self._answer(message)
        except ProtocolError as error:
            if not isinstance(value, dict) or "id" in value or "method" not in value:  # a notification has no answer
                self._refuse(id_of(value), error)

    def _refuse(self, request_id: str | int | None, error: ProtocolError) -> None:
        # Without an id, JSON-RPC wants null; the generation without `initialize` leaves it out.
        named = {"id": request_id} if request_id is not None or self._initialized else {}
        self._output.write({**named, "error": error.as_error()})

    def _notice(self, message: Message) -> None:
        """Take a notification. Those that mean nothing here are ignored, as the protocol wants it."""
        if message.method != "notifications/cancelled":
            return
        request_id = id_of({"id": message.params.get("requestId")})
        call = None if request_id is None else self._calls.pop(request_id, None)
        if call is not None:
            call.cancelled.set()

    def _answer(self, message: Message) -> None:
        """Answer a request, or start the call that answers it."""
        modern = self._is_modern(message)
        method, params = message.method, message.params
        if method == "tools/call":
            self._start(message, modern=modern)
        elif method == "tools/list":
            if params.get("cursor") is not None:
                raise ProtocolError(INVALID_PARAMS, "there is one page of tools: leave out cursor")
            from baton.mcp.schemas import TOOLS

            self._send(message, {"tools": TOOLS}, modern=modern, cacheable=True)
        elif method == "server/discover" and modern:
            found = {"supportedVersions": [MODERN, LEGACY], "capabilities": {"tools": {}}}
            self._send(message, found | {"instructions": _INSTRUCTIONS}, modern=True, cacheable=True)
        elif method == "initialize" and not modern:
            self._initialize(message)
        elif method == "ping" and not modern:
            self._send(message, {}, modern=False)
        else:
            raise ProtocolError(METHOD_NOT_FOUND, f"there is no method {method[:60]!r}")

    def _is_modern(self, message: Message) -> bool:
        """Return whether a request is of the generation that carries its version. ProtocolError if it is of none."""
        meta = message.params.get("_meta", {})
        if f"{_META}protocolVersion" not in meta:
            if self._initialized or message.method in ("initialize", "ping"):
                return False
            wanted = f"send initialize first, or {_META}protocolVersion and {_META}clientCapabilities in _meta"
            raise ProtocolError(INVALID_PARAMS, wanted)
        version = meta[f"{_META}protocolVersion"]
        if not isinstance(version, str):
            raise ProtocolError(INVALID_PARAMS, f"{_META}protocolVersion must be a text")
        if version not in (MODERN, LEGACY):
            data = {"supported": [MODERN, LEGACY], "requested": version}
            raise ProtocolError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        if version == MODERN and not isinstance(meta.get(f"{_META}clientCapabilities"), dict):
            raise ProtocolError(INVALID_PARAMS, f"{_META}clientCapabilities must be an object")
        return version == MODERN

    def _initialize(self, message: Message) -> None:
        if not isinstance(message.params.get("protocolVersion"), str):
            raise ProtocolError(INVALID_PARAMS, "protocolVersion must be a text")
        self._initialized = True
        # Of another version that the client asks for, this is the one to fall back to.
        found = {"protocolVersion": LEGACY, "capabilities": {"tools": {}}, "serverInfo": _SERVER}
        self._send(message, found | {"instructions": _INSTRUCTIONS}, modern=False)

    def _send(self, message: Message, result: dict[str, Any], *, modern: bool, cacheable: bool = False) -> None:
        if modern:
            result = {"resultType": "complete", **result, "_meta": {f"{_META}serverInfo": _SERVER}}
            result |= {"ttlMs": _FRESH_MS, "cacheScope": "public"} if cacheable else {}
        self._output.write({"id": message.request_id, "result": result})

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _start(self, message: Message, *, modern: bool) -> None:
        from threading import Thread

        from baton.mcp.schemas import NAMES

        request_id, name = message.request_id, message.params.get("name")
        assert request_id is not None
        if request_id in self._calls:
            raise ProtocolError(INVALID_REQUEST, "a call with this id is at work; give each request its own id")
        if not isinstance(name, str) or name not in NAMES:
            raise ProtocolError(INVALID_PARAMS, f"there is no tool {str(name)[:60]!r}; there are {', '.join(NAMES)}")
        if not isinstance(message.params.get("arguments", {}), dict):
            raise ProtocolError(INVALID_PARAMS, "arguments must be an object")
        call = Call(message, self._output, modern=modern)
        if len(self._at_work) >= _MOST_CALLS:  # guard: mcp-calls-at-once
            failed = _failure(f"{_MOST_CALLS} calls are at work; wait until one of them has ended")
            self._send(message, failed, modern=modern)
            return
        self._calls[request_id] = call
        self._at_work.add(call)
        call.thread = Thread(target=self._run, args=(call,), daemon=True)
        call.thread.start()

    def _run(self, call: Call) -> None:
        """Carry out a call in its thread, and send its answer. An error that is not foreseen ends this call alone: its
        traceback goes to standard error."""
        result = None
        try:
            from baton.mcp.tools import carry_out

            params = call.message.params
            result = _success(carry_out(params["name"], params.get("arguments", {}), self._where, self._folder, call))
        except BatonError as error:
            result = _failure(str(error))
        except OSError as error:
            result = _failure(describe_system_error(error) or str(error))
        finally:
            self._finish(call, result)

    def _finish(self, call: Call, result: dict[str, Any] | None) -> None:
        request_id = call.message.request_id
        assert request_id is not None
        is_expected = self._calls.get(request_id) is call  # otherwise the client has cancelled it
        if is_expected:
            del self._calls[request_id]  # from now on, the client may use the id again
        if is_expected and result is None:
            self._refuse(request_id, ProtocolError(INTERNAL_ERROR, "unexpected error; standard error has a traceback"))
        elif is_expected and result is not None:
            self._send(call.message, result, modern=call.modern)
        self._at_work.discard(call)


def _success(content: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a call: the content as a structure, and the same as text for clients that read text."""
    import json

    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="replace").decode()
    return {"content": [{"type": "text", "text": text}], "structuredContent": content}


def _failure(why: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": one_line(why)}], "isError": True}
