"""Follow Claude's transcript: it alone says that a person interrupted a turn."""

from __future__ import annotations

import json
import os

from baton.core.fields import json_object
from baton.core.value import Any, Value
from baton.storage.files import open_given_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_READ_BYTES = 1024 * 1024  # at one look
_LINE_BYTES = 4 * 1024 * 1024  # what is longer is skipped
_INTERRUPTED = ("[Request interrupted by user]", "[Request interrupted by user for tool use]")
# Lines without one of these are not parsed.
_WORDS = (b"[Request interrupted by user", b"User rejected tool use", b"isApiErrorMessage", b'"api_error"')


class Interrupted(Value):
    """A person interrupted the turn."""

    turn: str


class Rejected(Value):
    """A person refused a tool call."""

    tool_id: str


class ApiFailed(Value):
    """The model service failed. `number` of `most` tries; 0: it is not tried again."""

    number: int
    most: int
    why: str


Line = Interrupted | Rejected | ApiFailed


class Transcript:
    """The transcript of one conversation, from its end at the time of the first look. `folder` is Claude's own: a path
    outside it is ignored."""

    def __init__(self, path: str, folder: str) -> None:
        self.path = path
        real = os.path.realpath(path)
        self.is_readable = os.path.commonpath([real, os.path.realpath(folder)]) == os.path.realpath(folder)
        self._rest = b""
        self._skipping = False
        self._offset = self._size()

    def _size(self) -> int:
        try:
            return os.stat(self.path).st_size if self.is_readable else 0
        except OSError:
            return 0  # Claude writes it with the first message

    def read(self) -> list[Line]:
        """Return what is new in it."""
        size = self._size()
        if size < self._offset:
            self._offset, self._rest = 0, b""
        if size == self._offset:
            return []
        try:
            with open_given_file(self.path) as file:
                file.seek(self._offset)
                content = file.read(_READ_BYTES)
        except OSError:
            return []  # it is not a file, or gone
        self._offset += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        if self._skipping and lines:
            del lines[0]
            self._skipping = False
        if len(self._rest) > _LINE_BYTES:
            self._rest, self._skipping = b"", True
        return [found for line in lines if any(word in line for word in _WORDS) for found in _read_line(line)]


def _read_line(line: bytes) -> Iterator[Line]:
    message = json_object(line.decode(errors="replace"))
    if message.get("isSidechain"):
        return  # of a subagent
    try:
        if message.get("type") == "user":
            yield from _of_user(message)
        elif message.get("type") == "system" and message.get("subtype") == "api_error":
            number, most = int(message.get("retryAttempt") or 0), int(message.get("maxRetries") or 0)
            yield ApiFailed(number=number, most=most, why=_why(message))
        elif message.get("isApiErrorMessage"):
            yield ApiFailed(number=0, most=0, why=" ".join(str(part.get("text") or "") for part in _parts(message)))
    except (AttributeError, KeyError, TypeError, ValueError):
        return  # programs change the shape of their messages


def _of_user(message: Mapping[str, Any]) -> Iterator[Line]:
    for part in _parts(message):
        if part.get("type") == "text" and part.get("text") in _INTERRUPTED:
            yield Interrupted(turn=str(message.get("promptId") or ""))
        elif part.get("type") == "tool_result" and message.get("toolUseResult") == "User rejected tool use":
            yield Rejected(tool_id=str(part["tool_use_id"]))


def _parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = (message.get("message") or {}).get("content") or []
    return content if isinstance(content, list) else []


def _why(message: Mapping[str, Any]) -> str:
    error = message.get("error")
    if not isinstance(error, dict):
        return str(error or "the model service failed")
    inner = error.get("error") or {}
    inner = inner.get("error") or inner
    text = inner.get("message") or error.get("message") or json.dumps(error)[:200]
    return f"{error['status']} {text}" if error.get("status") else str(text)
