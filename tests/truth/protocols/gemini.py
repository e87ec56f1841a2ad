"""Gemini's generateContent and streamGenerateContent: Gemini CLI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from truth.protocols.contract import OUTPUT_TOKENS, Event, Message, Protocol, join_answers, pieces
from truth.steps import Call, Say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from truth.protocols.contract import Block
    from truth.steps import Fail

# What Google's services call their errors.
_NAMES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED",
          500: "INTERNAL", 503: "UNAVAILABLE"}  # fmt: skip


class GenerateContent(Protocol):
    endings = (":generateContent", ":streamGenerateContent")

    def conversation(self, request: dict) -> list[Message]:
        return join_answers([
            Message(content.get("role") == "model", "\n".join(map(_part_text, content.get("parts") or ())))
            for content in request.get("contents") or ()
        ])  # fmt: skip

    def tools(self, request: dict) -> list[str]:
        return [
            each.get("name", "") for tool in request.get("tools") or () for each in tool.get("functionDeclarations", ())
        ]

    def streams(self, request: dict, path: str) -> bool:
        return path.endswith(":streamGenerateContent")

    def error(self, failure: Fail) -> dict:
        status = _NAMES.get(failure.status, "UNKNOWN")
        return {"error": {"code": failure.status, "message": failure.message, "status": status}}

    def whole(self, request: dict, blocks: list[Block], tokens: int) -> dict:
        return _chunk([_part(block) for block in blocks], tokens, "STOP")

    def events(self, request: dict, blocks: list[Block], tokens: int) -> Iterator[Event | float]:
        for block in blocks:
            if isinstance(block, Say) and block.sec:
                for piece in pieces(block):
                    yield piece if isinstance(piece, float) else Event(None, _chunk([{"text": piece}], tokens))
            else:
                yield Event(None, _chunk([_part(block)], tokens))
        yield Event(None, _chunk([{"text": ""}], tokens, "STOP"))


def _part(block: Block) -> dict:
    if isinstance(block, Say):
        return {"text": block.text}
    call = block if isinstance(block, Call) else Call(
        "run_shell_command", {"command": block.command, "description": "what the row wants"}
    )  # fmt: skip
    return {"functionCall": {"name": call.tool, "args": call.given}}


def _part_text(part: dict) -> str:
    told = (part.get("functionResponse") or {}).get("response") or {}
    return part.get("text") or str(told.get("output") or told.get("error") or "")


def _chunk(parts: list[dict], tokens: int, reason: str | None = None) -> dict:
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0} | (
        {"finishReason": reason} if reason else {}
    )
    usage = {
        "promptTokenCount": tokens,
        "candidatesTokenCount": OUTPUT_TOKENS,
        "totalTokenCount": tokens + OUTPUT_TOKENS,
    }
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m"}
