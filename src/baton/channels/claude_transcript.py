"""Read two files of Claude Code: its transcript, which alone says that a person interrupted a turn, and its log of
errors, which alone says on a terminal that it tries again after the model service failed. Where baton may not have its
telemetry, the transcript says the tokens, too, without those of titles and without the cost."""

from __future__ import annotations

import re

from baton.channels.tail import Tail
from baton.core.fields import json_object
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INTERRUPTED = ("[Request interrupted by user]", "[Request interrupted by user for tool use]")
_REJECTED = "User rejected tool use"
# A line of a transcript without one of these is not parsed.
_WORDS = (b"[Request interrupted by user", _REJECTED.encode(), b'"isApiErrorMessage":true')
_USAGE = b'"usage":'
_SYNTHETIC = "<synthetic>"  # the program's own words, such as about an error
_TRY = re.compile(r"API error \(attempt (\d{1,4})/(\d{1,4})\): (.{0,4000})", re.DOTALL)
_STATUS = re.compile(r"[1-5]\d\d")


class Interrupted(Value):
    """A person interrupted the turn."""

    turn: str


class Rejected(Value):
    """A person refused a tool call."""

    tool_id: str


class ApiFailed(Value):
    """The model service failed. `number` and `most` count the tries that follow; 0: there is none."""

    number: int
    most: int
    why: str


class Used(Value):
    """What a message of the model used. There is a line for each part of it, each with the whole figures."""

    message_id: str
    model: str
    usage: Mapping[str, Any]


Line = Interrupted | Rejected | ApiFailed | Used


def read_transcript(tail: Tail, *, with_usage: bool = False) -> Iterator[Line]:
    """Yield what is new in the transcript of a conversation; `with_usage`: also what its messages used."""
    words = (*_WORDS, _USAGE) if with_usage else _WORDS
    for line in tail.read():
        if any(word in line for word in words):
            yield from _readable(json_object(line.decode(errors="replace")))


def read_usage(path: str, folder: str) -> list[Used]:
    """Return what the messages of a subagent used, from its whole transcript, which must be in this folder."""
    tail = Tail(path, folder, from_start=True)
    found: list[Used] = []
    while lines := tail.read():
        found += [
            each for line in lines if _USAGE in line for each in _used(json_object(line.decode(errors="replace")))
        ]
    return found


def _used(message: Mapping[str, Any]) -> Iterator[Used]:
    body = message.get("message")
    if message.get("type") != "assistant" or not isinstance(body, dict) or body.get("model") == _SYNTHETIC:
        return
    if isinstance(body.get("usage"), dict) and isinstance(body.get("id"), str):
        yield Used(message_id=body["id"], model=str(body.get("model") or ""), usage=body["usage"])


def _readable(message: Mapping[str, Any]) -> list[Line]:
    """Return what a line means; nothing if its shape is unknown: programs change the shape of their messages."""
    try:
        return list(_of_line(message))
    except (AttributeError, KeyError, TypeError):
        return []


def _of_line(message: Mapping[str, Any]) -> Iterator[Line]:
    yield from _used(message)
    content = (message.get("message") or {}).get("content")
    if message.get("isSidechain") or not isinstance(content, list):
        return  # of a subagent, or a prompt
    for part in content:
        if message.get("isApiErrorMessage"):
            yield ApiFailed(number=0, most=0, why=str(part.get("text") or ""))
        elif message.get("type") == "user" and part.get("text") in _INTERRUPTED:
            yield Interrupted(turn=str(message.get("promptId") or ""))
        elif part.get("type") == "tool_result" and message.get("toolUseResult") == _REJECTED:
            yield Rejected(tool_id=str(part["tool_use_id"]))


def read_errors(tail: Tail) -> Iterator[ApiFailed]:
    """Yield the failures of the model service that are new in the log of errors, and after which it is tried again."""
    for line in tail.read():
        found = _TRY.search(line.decode(errors="replace"))
        if found is not None and int(found[1]) < int(found[2]):
            yield ApiFailed(number=int(found[1]), most=int(found[2]) - 1, why=_why(found[3]))


def _why(text: str) -> str:
    """Return in words: 529 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"""
    status = _STATUS.match(text)
    given = json_object(text[text.find("{") :]).get("error")
    message = given.get("message") if isinstance(given, dict) else None
    if message is None:
        return text.removeprefix("undefined ").strip()[:200] or "no answer"
    return f"{status[0]} {message}"[:200] if status is not None else str(message)[:200]
