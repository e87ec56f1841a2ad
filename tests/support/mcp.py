"""A client of `baton mcp`: the real process, one JSON message a line; and a small check of its answers by a schema."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from typing import Any, Self

from support.command import BATON, interruptible

LEGACY, MODERN = "2025-06-18", "2026-07-28"
META = "io.modelcontextprotocol/"
_WAIT_SEC = 60
_TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
}  # fmt: skip


def problems(value: Any, schema: dict[str, Any], place: str = "result") -> list[str]:
    """Return what in a JSON value does not fit a schema of the few words that the tools use."""
    unknown = schema.keys() - {
        "type", "properties", "required", "items", "description", "enum", "minimum", "maximum", "minItems", "maxItems",
    }  # fmt: skip
    assert not unknown, f"this check does not know {unknown}"
    if not isinstance(value, _TYPES[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        return [f"{place} is {value!r}, not {schema['type']}"]
    found = [f"{place}.{name} is missing" for name in schema.get("required", ()) if name not in value]
    for name, inner in schema.get("properties", {}).items():
        if name in value:
            found += problems(value[name], inner, f"{place}.{name}")
    for number, each in enumerate(value if schema["type"] == "array" and "items" in schema else ()):
        found += problems(each, schema["items"], f"{place}[{number}]")
    return found


def of_version(version: str, **more: Any) -> dict[str, Any]:
    """The `_meta` of a request of the generation without `initialize`."""
    return {f"{META}protocolVersion": version, f"{META}clientCapabilities": {}, **more}


def allow(home: str, *words: str, more: str = "", folder: str | None = None) -> None:
    """Write the settings of the user with this home folder: [mcp] allow, after these lines. `folder`: theirs lie here."""
    folder = folder or os.path.join(home, ".config", "baton")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    text = f"{more}[mcp]\nallow = {json.dumps(list(words))}\n" if words else more
    with open(os.path.join(folder, "baton.toml"), "w", encoding="utf-8") as file:
        file.write(text)


class McpClient:
    """A running `baton mcp` in a folder. `modern`: without `initialize`."""

    def __init__(self, folder, env: dict[str, str], *options: str, modern: bool = False, prefix: tuple = ()) -> None:
        self.modern = modern
        self.process = subprocess.Popen(
            [*prefix, BATON, "mcp", *options], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, preexec_fn=interruptible, bufsize=0,
        )  # fmt: skip
        self._number = 0
        self._answers: dict[Any, queue.Queue] = {}
        self.progress: list[dict] = []
        self.unexpected: list[dict] = []
        self.errors = ""
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()
        self.schemas: dict[str, dict] = {}

    def start(self) -> Self:
        """Agree on a version and learn the tools."""
        if not self.modern:
            params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
            assert self.ask("initialize", **params)["result"]["protocolVersion"] == LEGACY
            self.notify("notifications/initialized")
        tools = self.ask("tools/list")["result"]["tools"]
        self.schemas = {tool["name"]: tool["outputSchema"] for tool in tools}
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- messages ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        for line in self.process.stdout:
            message = json.loads(line)  # anything else on standard output is an error of the server
            if message.get("method") == "notifications/progress":
                self.progress.append(message["params"])
                continue
            waiting = self._answers.get(message.get("id"))
            if waiting is None:
                self.unexpected.append(message)
            else:
                waiting.put(message)
        for waiting in list(self._answers.values()):
            waiting.put(None)

    def _read_errors(self) -> None:
        for line in self.process.stderr:
            self.errors += line.decode(errors="replace")

    def write(self, raw: bytes) -> None:
        self.process.stdin.write(raw)

    def send(self, message: dict) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def notify(self, method: str, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def begin(self, method: str, meta: dict | None = None, **params: Any) -> Any:
        """Send a request, and return its id."""
        with self._lock:
            self._number += 1
            number = self._number
        meta = (of_version(MODERN) if self.modern else {}) | (meta or {})
        self._answers[number] = queue.Queue()
        self.send(
            {"jsonrpc": "2.0", "id": number, "method": method, "params": params | ({"_meta": meta} if meta else {})}
        )
        return number

    def expect(self, request_id: Any) -> None:
        """Keep the answer to an id that the test has sent itself."""
        self._answers[request_id] = queue.Queue()

    def answer(self, request_id: Any, timeout: float = _WAIT_SEC) -> dict:
        found = self._answers[request_id].get(timeout=timeout)
        assert found is not None, f"the server has ended: {self.errors}"
        assert found["jsonrpc"] == "2.0"
        return found

    def has_answer(self, request_id: Any) -> bool:
        return not self._answers[request_id].empty()

    def ask(self, method: str, meta: dict | None = None, **params: Any) -> dict:
        return self.answer(self.begin(method, meta, **params))

    # -- tools ---------------------------------------------------------------------------------------------------------

    def begin_call(self, tool: str, meta: dict | None = None, **arguments: Any) -> Any:
        return self.begin("tools/call", meta, name=tool, arguments=arguments)

    def end_call(self, request_id: Any, tool: str) -> dict:
        """Return the structured content, after it was compared with its schema and with the text."""
        result = self.answer(request_id)["result"]
        assert not result.get("isError"), result
        content = result["structuredContent"]
        assert problems(content, self.schemas[tool]) == []
        assert json.loads(result["content"][0]["text"]) == content
        assert (result.get("resultType") == "complete") == self.modern
        return content

    def call(self, tool: str, meta: dict | None = None, **arguments: Any) -> dict:
        return self.end_call(self.begin_call(tool, meta, **arguments), tool)

    def refused(self, tool: str, **arguments: Any) -> str:
        """Return the one line of a tool error."""
        result = self.answer(self.begin_call(tool, **arguments))["result"]
        assert result["isError"] is True, result
        assert "structuredContent" not in result
        (text,) = [each["text"] for each in result["content"]]
        assert "\n" not in text, text
        return text

    def until_ended(self, *job_ids: str, **more: Any) -> dict:
        """Wait as an agent does: again with the cursor, until all jobs have ended."""
        cursor: dict[str, str] = {}
        for _ in range(20):
            found = self.call("wait", job_ids=list(job_ids), **more, **cursor)
            if found["done"]:
                return found
            cursor = {"cursor": found["cursor"]}
        raise AssertionError(found)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def close(self) -> str:
        """Close the server's input, as a client ends it. Return what it wrote to standard error."""
        if not self.process.stdin.closed:
            self.process.stdin.close()
        assert self.process.wait(timeout=20) == 0, self.errors
        return self._finish()

    def kill(self) -> None:
        """Let the client die: all its pipes are closed at once, and the server is not told otherwise."""
        self.process.stdin.close()
        self.process.wait(timeout=20)
        self._finish()

    def _finish(self) -> str:
        for thread in self._threads:
            thread.join(10)
        self.process.stdout.close()
        self.process.stderr.close()
        assert "Traceback" not in self.errors, self.errors
        return self.errors
