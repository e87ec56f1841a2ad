"""Read and write JSON-RPC messages, one a line, and check their form."""

from __future__ import annotations

import json
import os
import select

from baton.core.fields import parse_json
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_LINE = 1 << 20  # bytes; a longer line is dropped as it comes, so that no client fills the memory
_CHUNK = 1 << 16
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603


class ProtocolError(Exception):
    """A message that is refused: the client gets the code, the text and the data."""

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    def as_error(self) -> dict[str, Any]:
        return {"code": self.code, "message": str(self)} | ({} if self.data is None else {"data": self.data})


class Message:
    """A request, or a notification (`request_id` None)."""

    __slots__ = ("method", "params", "request_id")

    def __init__(self, method: str, params: dict[str, Any], request_id: str | int | None) -> None:
        self.method = method
        self.params = params
        self.request_id = request_id


def read_lines(fd: int, wake: int) -> Iterator[bytes | None]:
    """Yield each line as it comes; None in place of a line that is too long. End at the end of the input, also in the
    middle of a line, or when `wake` can be read."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(wake, select.POLLIN)
    kept, is_long = bytearray(), False
    while True:
        ready = [each for each, _ in poll.poll()]
        if wake in ready:
            return
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            return
        for number, part in enumerate(chunk.split(b"\n")):
            if number:  # the line before has ended
                yield None if is_long else bytes(kept)
                kept, is_long = bytearray(), False
            kept += part
            if len(kept) > LONGEST_LINE:  # guard: mcp-line-length
                kept, is_long = bytearray(), True


def parse(line: bytes) -> Any:
    """Return the JSON value of a line; ProtocolError if it is none."""
    try:
        return parse_json(line.decode(), _DECODER.decode)
    except ValueError:
        raise ProtocolError(PARSE_ERROR, "the line is not a JSON text in UTF-8") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def id_of(value: Any) -> str | int | None:
    """Return the id of a message, as far as it has one that can be answered."""
    found = value.get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def read_message(value: Any) -> Message | None:
    """Return the message; None for an answer, which this server never asks for. ProtocolError if it has no valid
    form."""
    if not isinstance(value, dict):
        what = "a batch: send each message on a line of its own" if isinstance(value, list) else "no object"
        raise ProtocolError(INVALID_REQUEST, f"the message is {what}")
    if value.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, 'the message has no "jsonrpc": "2.0"')
    if "method" not in value and ("result" in value or "error" in value):
        return None
    method, params, request_id = value.get("method"), value.get("params", {}), id_of(value)
    if not isinstance(method, str) or ("id" in value and request_id is None):
        wrong = "method must be a text" if not isinstance(method, str) else "id must be a text or a whole number"
        raise ProtocolError(INVALID_REQUEST, wrong)
    if not isinstance(params, dict) or not isinstance(params.get("_meta", {}), dict):
        raise ProtocolError(INVALID_PARAMS, "params, and _meta in it, must be objects")
    return Message(method, params, request_id)


class Output:
    """Writes messages, one a line, from any thread."""

    def __init__(self, fd: int, wake: int) -> None:
        """`wake`: a byte is written there when the client reads no more."""
        from threading import Lock

        self._fd = fd
        self._wake = wake
        self._lock = Lock()
        self.is_open = True

    def write(self, message: dict[str, Any]) -> None:
        """Write a message. Wait while the client does not read; drop it when the client has gone."""
        rest = memoryview(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")
        with self._lock:
            try:
                while rest and self.is_open:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                self.is_open = False
                os.write(self._wake, b".")
