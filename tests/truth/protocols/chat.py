"""OpenAI's chat completions: Qwen Code, opencode, and Copilot with a provider of the user's own."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from truth.protocols.contract import OUTPUT_TOKENS, Event, Message, Protocol, join_answers, new_id, pieces, text_of
from truth.steps import Call, Say, Shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from truth.protocols.contract import Block

_DESCRIPTION = "what the row wants"
# The shell tool of each program, by the name that it gives to it.
_SHELLS = {
    "run_shell_command": lambda shell: {"command": shell.command, "description": _DESCRIPTION, "is_background": False},  # qwen
    "bash": lambda shell: {"command": shell.command, "description": _DESCRIPTION},  # opencode, copilot
    "shell": lambda shell: {"command": shell.command},
}  # fmt: skip


class Chat(Protocol):
    endings = ("/chat/completions",)

    def conversation(self, request: dict) -> list[Message]:
        return join_answers([
            Message(message.get("role") == "assistant", text_of(message.get("content")))
            for message in request.get("messages", [])
            if message.get("role") not in ("system", "developer")
        ])  # fmt: skip

    def tools(self, request: dict) -> list[str]:
        return [tool.get("function", {}).get("name", "") for tool in request.get("tools") or ()]

    def whole(self, request: dict, blocks: list[Block], tokens: int) -> dict:
        text = "\n".join(block.text for block in blocks if isinstance(block, Say))
        message = {"role": "assistant", "content": text or None}
        if calls := self._calls(request, blocks):
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": _reason(blocks)}
        return _head(request, "chat.completion") | {"choices": [choice], "usage": _usage(tokens)}

    def events(self, request: dict, blocks: list[Block], tokens: int) -> Iterator[Event | float]:
        head = _head(request, "chat.completion.chunk")

        def chunk(delta: dict, finish: str | None = None) -> Event:
            return Event(None, head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

        yield chunk({"role": "assistant", "content": ""})
        for block in blocks:
            if isinstance(block, Say):
                for piece in pieces(block):
                    yield piece if isinstance(piece, float) else chunk({"content": piece})
        for index, call in enumerate(self._calls(request, blocks)):
            yield chunk({"tool_calls": [{"index": index} | call]})
        yield chunk({}, _reason(blocks))
        yield Event(None, head | {"choices": [], "usage": _usage(tokens)})
        yield Event(None, "[DONE]")

    def _calls(self, request: dict, blocks: list[Block]) -> list[dict]:
        calls = [_call_of(block, self.tools(request)) for block in blocks if not isinstance(block, Say)]
        return [
            {"id": new_id("call"), "type": "function", "function": {"name": call.tool, "arguments": json.dumps(call.given)}}
            for call in calls
        ]  # fmt: skip


def _call_of(block: Shell | Call, tools: list[str]) -> Call:
    if isinstance(block, Call):
        return block
    name = next((name for name in _SHELLS if name in tools), "bash")
    return Call(name, _SHELLS[name](block))


def _head(request: dict, kind: str) -> dict:
    return {"id": new_id("chatcmpl"), "object": kind, "created": int(time.time()), "model": request.get("model", "m")}


def _reason(blocks: list[Block]) -> str:
    return "stop" if all(isinstance(block, Say) for block in blocks) else "tool_calls"


def _usage(tokens: int) -> dict:
    return {"prompt_tokens": tokens, "completion_tokens": OUTPUT_TOKENS, "total_tokens": tokens + OUTPUT_TOKENS}
