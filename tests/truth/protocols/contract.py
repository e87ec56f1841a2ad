"""Define what a protocol of a model service is."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from truth.steps import Call, Fail, Say, Shell

    Block = Say | Call | Shell

OUTPUT_TOKENS = 50  # of every answer


class Message(NamedTuple):
    """A part of a conversation: what the model said in one answer, or what it was told."""

    by_model: bool
    text: str


class Event(NamedTuple):
    """An event of a stream. `data` that is a string is sent as it is."""

    kind: str | None
    data: dict | str


class Protocol(ABC):
    """Read the requests of one protocol, and write its answers."""

    endings: tuple[str, ...]  # of the paths

    @abstractmethod
    def conversation(self, request: dict) -> list[Message]:
        """Return what was said, oldest first. Each answer of the model is one message."""

    @abstractmethod
    def tools(self, request: dict) -> list[str]:
        """Return the names of the tools that the model may use. Without any, the request is not a turn of the work."""

    @abstractmethod
    def whole(self, request: dict, blocks: list[Block], tokens: int) -> dict:
        """Return the answer in one piece."""

    @abstractmethod
    def events(self, request: dict, blocks: list[Block], tokens: int) -> Iterator[Event | float]:
        """Return the answer as a stream. A number is a pause of so many seconds."""

    def error(self, failure: Fail) -> dict:
        return {"error": {"message": failure.message, "type": failure.kind, "code": failure.kind}}

    def streams(self, request: dict, path: str) -> bool:
        return bool(request.get("stream"))


def pieces(say: Say) -> Iterator[str | float]:
    """Return the text in pieces; a number is a pause."""
    for _ in range(int(say.sec * 2)):
        yield ". "
        yield 0.5
    yield say.text


def text_of(content: object) -> str:
    """Return the text of what the protocols call content: a string, or a list of parts."""
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, dict):
        return text_of(content.get("text") or content.get("content") or content.get("output") or "")
    return content if isinstance(content, str) else ""


def join_answers(messages: list[Message]) -> list[Message]:
    """Return the messages with the parts of one answer as one: protocols that list each tool call apart."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].by_model and message.by_model:
            joined[-1] = Message(True, f"{joined[-1].text}\n{message.text}")
        else:
            joined.append(message)
    return joined


def new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:16]}"
