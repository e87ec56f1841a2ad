"""The agent of the demonstration: a program without a model that speaks ACP, with the standard library alone.

It corrects one word in greet.sh, by a command that it asks a permission for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

NAME = "demo-agent"
COMMAND = "sed -i s/Helo/Hello/ greet.sh"
_CALL = {
    "toolCallId": "call-1", "title": COMMAND, "kind": "execute", "status": "pending", "rawInput": {"command": COMMAND},
}  # fmt: skip
_OPTIONS = [
    {"optionId": "yes", "kind": "allow_once", "name": "Allow"},
    {"optionId": "no", "kind": "reject_once", "name": "Reject"},
]


def serve() -> None:
    """Answer on standard output until standard input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            _write(id=number, result={"protocolVersion": 1, "agentCapabilities": {}})
        elif method == "session/new":
            _write(id=number, result={"sessionId": "demo"})
        elif method == "session/prompt":
            _work(number)


def _work(prompt: int) -> None:
    """Do the work of one turn."""
    _say("greet.sh says Helo.\n")
    _update("tool_call", _CALL)
    asked = {"sessionId": "demo", "toolCall": _CALL, "options": _OPTIONS}
    _write(id=1, method="session/request_permission", params=asked)
    is_done = _is_allowed() and subprocess.run(COMMAND.split(), check=False).returncode == 0
    _update("tool_call_update", {"toolCallId": "call-1", "status": "completed" if is_done else "failed"})
    _say("It says Hello now." if is_done else "I could not change it.")
    _write(id=prompt, result={"stopReason": "end_turn"})


def _is_allowed() -> bool:
    """Wait for the answer to the permission."""
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") == 1 and "method" not in message:
            outcome = message.get("result", {}).get("outcome", {})
            return bool(outcome.get("optionId") == "yes")
    return False


def _say(text: str) -> None:
    _update("agent_message_chunk", {"content": {"type": "text", "text": text}})


def _update(name: str, about: Mapping[str, Any]) -> None:
    _write(method="session/update", params={"sessionId": "demo", "update": {"sessionUpdate": name, **about}})


def _write(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
