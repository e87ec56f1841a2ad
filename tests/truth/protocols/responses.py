"""OpenAI's Responses: Codex."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from truth.protocols.contract import OUTPUT_TOKENS, Event, Message, Protocol, join_answers, new_id, pieces, text_of
from truth.steps import Say, Shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from truth.protocols.contract import Block

_CALLS = ("function_call", "custom_tool_call", "reasoning")


class Responses(Protocol):
    endings = ("/responses",)

    def conversation(self, request: dict) -> list[Message]:
        items = request.get("input") or []
        if isinstance(items, str):
            return [Message(False, items)]
        return join_answers([
            Message(item.get("role") == "assistant" or item.get("type") in _CALLS, text_of(item))
            for item in items
        ])  # fmt: skip

    def tools(self, request: dict) -> list[str]:
        return [tool.get("name") or tool.get("type", "") for tool in request.get("tools") or ()]

    def whole(self, request: dict, blocks: list[Block], tokens: int) -> dict:
        return _response(new_id("resp"), [_item(block, self.tools(request)) for block in blocks], tokens)

    def events(self, request: dict, blocks: list[Block], tokens: int) -> Iterator[Event | float]:
        response_id = new_id("resp")
        items = [_item(block, self.tools(request)) for block in blocks]
        yield _event("response.created", response={"id": response_id})
        for index, (block, item) in enumerate(zip(blocks, items, strict=True)):
            yield _event("response.output_item.added", output_index=index, item=item)
            if isinstance(block, Say) and block.sec:
                for piece in pieces(block):
                    yield (
                        piece
                        if isinstance(piece, float)
                        else _event(
                            "response.output_text.delta",
                            output_index=index,
                            item_id=item["id"],
                            content_index=0,
                            delta=piece,
                        )
                    )
            yield _event("response.output_item.done", output_index=index, item=item)
        yield _event("response.completed", response=_response(response_id, items, tokens))


def _item(block: Block, tools: list[str]) -> dict:
    if isinstance(block, Say):
        content = [{"type": "output_text", "text": block.text}]
        return {"type": "message", "role": "assistant", "id": new_id("msg"), "content": content}
    if not isinstance(block, Shell):
        # The tools of a server are in a namespace.
        space = next((name for name in tools if block.tool.startswith(f"{name}__")), None)
        named = {} if space is None else {"name": block.tool.removeprefix(f"{space}__"), "namespace": space}
        return _function(block.tool, block.given) | named
    given = {"cmd": block.command}
    if block.ask:
        given |= {"sandbox_permissions": "require_escalated", "justification": "The row wants to be asked."}
    if "exec_command" in tools:
        return _function("exec_command", given)
    script = f"text(JSON.stringify(await tools.exec_command({json.dumps(given)})));"
    return {"type": "custom_tool_call", "id": new_id("ctc"), "call_id": new_id("call"), "name": "exec", "input": script}


def _function(name: str, given: dict) -> dict:
    return {"type": "function_call", "id": new_id("fc"), "call_id": new_id("call"), "name": name,
            "arguments": json.dumps(given)}  # fmt: skip


def _response(response_id: str, items: list[dict], tokens: int) -> dict:
    usage = {"input_tokens": tokens, "output_tokens": OUTPUT_TOKENS, "total_tokens": tokens + OUTPUT_TOKENS}
    return {"id": response_id, "output": items, "usage": usage}


def _event(kind: str, **data: object) -> Event:
    return Event(kind, {"type": kind} | data)
