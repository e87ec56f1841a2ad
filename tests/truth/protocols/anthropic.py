"""Anthropic's Messages: Claude Code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from truth.protocols.contract import OUTPUT_TOKENS, Event, Message, Protocol, new_id, pieces, text_of
from truth.steps import Call, Say, Shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from truth.protocols.contract import Block
    from truth.steps import Fail


class Messages(Protocol):
    endings = ("/v1/messages",)

    def conversation(self, request: dict) -> list[Message]:
        return [
            Message(message.get("role") == "assistant", text_of(message.get("content")))
            for message in request.get("messages", [])
        ]

    def tools(self, request: dict) -> list[str]:
        return [tool.get("name", "") for tool in request.get("tools") or ()]

    def error(self, failure: Fail) -> dict:
        return {"type": "error", "error": {"type": failure.kind, "message": failure.message}}

    def whole(self, request: dict, blocks: list[Block], tokens: int) -> dict:
        content = [_whole(block) for block in blocks]
        return _head(request) | {"content": content, "stop_reason": _reason(blocks), "usage": _usage(tokens)}

    def events(self, request: dict, blocks: list[Block], tokens: int) -> Iterator[Event | float]:
        head = _head(request) | {"content": [], "stop_reason": None, "usage": _usage(tokens)}
        yield _event("message_start", message=head)
        wholes = [_whole(block) for block in blocks]
        for index, (block, whole) in enumerate(zip(blocks, wholes, strict=True)):
            yield from _block_events(index, block, whole)
        end = {"stop_reason": _reason(blocks), "stop_sequence": None} | _verdicts(blocks, wholes)
        yield _event("message_delta", delta=end, usage=_usage(tokens))
        yield _event("message_stop")


def _block_events(index: int, block: Block, whole: dict) -> Iterator[Event | float]:
    if isinstance(block, Say):
        yield _event("content_block_start", index=index, content_block=whole | {"text": ""})
        for piece in pieces(block):
            yield piece if isinstance(piece, float) else _delta(index, type="text_delta", text=piece)
    else:
        yield _event("content_block_start", index=index, content_block=whole | {"input": {}})
        yield _delta(index, type="input_json_delta", partial_json=json.dumps(whole["input"]))
    yield _event("content_block_stop", index=index)


def _whole(block: Block) -> dict:
    if isinstance(block, Say):
        return {"type": "text", "text": block.text}
    call = _call_of(block) if isinstance(block, Shell) else block
    return {"type": "tool_use", "id": new_id("toolu"), "name": call.tool, "input": call.given}


def _verdicts(blocks: list[Block], wholes: list[dict]) -> dict:
    """Return what the service says of tool calls where the client is in auto mode."""
    said = {
        whole["id"]: {"type": "evaluated", "outcome": block.verdict, "explanation": "the stand-in says so"}
        for block, whole in zip(blocks, wholes, strict=True)
        if isinstance(block, Shell) and block.verdict
    }
    if not said:
        return {}
    return {"safeguard_results": [{"type": "dangerous_tool_use", "status": {"type": "available", "tool_uses": said}}]}


def _call_of(shell: Shell) -> Call:
    given = {"command": shell.command, "description": "what the row wants"}
    return Call("Bash", given | ({"run_in_background": True} if shell.background else {}))


def _head(request: dict) -> dict:
    return {"id": new_id("msg"), "type": "message", "role": "assistant", "model": request.get("model"),
            "stop_sequence": None}  # fmt: skip


def _reason(blocks: list[Block]) -> str:
    return "end_turn" if all(isinstance(block, Say) for block in blocks) else "tool_use"


def _usage(tokens: int) -> dict:
    return {"input_tokens": tokens, "output_tokens": OUTPUT_TOKENS}


def _event(kind: str, **data: object) -> Event:
    return Event(kind, {"type": kind} | data)


def _delta(index: int, **delta: object) -> Event:
    return _event("content_block_delta", index=index, delta=delta)
