"""A server of tools whose one tool asks the person for a name."""

from __future__ import annotations

import json
import sys

ASKS = {"message": "Your name?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
TOOL = {"name": "ask", "description": "Ask for a name.", "inputSchema": {"type": "object", "properties": {}}}


def say(**message: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def main() -> None:
    called = None
    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message.get("method")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            about = {"name": "m", "version": "1"}
            say(id=number, result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about})
        elif method == "tools/list":
            say(id=number, result={"tools": [TOOL]})
        elif method == "tools/call":
            called = number
            say(id="asks", method="elicitation/create", params=ASKS)
        elif number == "asks":
            said = json.dumps(message.get("result") or message.get("error"))
            say(id=called, result={"content": [{"type": "text", "text": said}]})
        elif number is not None and method:
            say(id=number, result={})


if __name__ == "__main__":
    main()
