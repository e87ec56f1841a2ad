"""A stand-in for the services that the agents' models are behind, on loopback. The test is the model: it says in advance
what each turn of the conversation answers.

Three protocols, just as much of them as the programs need: Anthropic's Messages (claude), OpenAI's Responses (codex)
and Gemini's streamGenerateContent (gemini).
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Run(NamedTuple):
    """The model uses its shell."""

    command: str
    background: bool = False  # claude alone


class Say(NamedTuple):
    """The model speaks, and with that its turn is over."""

    text: str


class Fail(NamedTuple):
    """The service answers with an error."""

    status: int
    message: str


class ModelService:
    """Answers from a queue; when that is empty, with a closing word. `asked` has every request that may use tools."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self._answers: deque[Run | Say | Fail] = deque()
        self._lock = threading.Lock()
        self._speaks = threading.Event()
        self._speaks.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.service = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def will(self, *answers: Run | Say | Fail) -> None:
        self._answers.extend(answers)

    def hold(self) -> None:
        """From now on it thinks, until it is let go."""
        self._speaks.clear()

    def let_go(self) -> None:
        self._speaks.set()

    @property
    def asked_last(self) -> str:
        """All that was said in the newest conversation, as text."""
        request = self.asked[-1]
        said = request.get("messages") or request.get("input") or request.get("contents")
        return json.dumps(said, ensure_ascii=False)

    def texts_asked(self):
        """Every piece of text that a user said in any conversation."""
        for request in self.asked:
            for message in request.get("messages") or request.get("input") or request.get("contents"):
                content = message.get("content") or message.get("parts") or ()
                yield from [content] if isinstance(content, str) else (each.get("text") or "" for each in content)

    def answer(self, request: dict) -> Run | Say | Fail:
        with self._lock:
            self.asked.append(request)
            answer = self._answers.popleft() if self._answers else Say("That is all.")
        self._speaks.wait(60)
        return answer

    def close(self) -> None:
        self.let_go()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._reply({})

    def do_GET(self) -> None:
        self._reply({"data": [], "models": []})

    def do_POST(self) -> None:
        request = json.loads(self._body() or b"{}")
        path = self.path.partition("?")[0]
        speak = next((speak for ending, speak in _PROTOCOLS.items() if path.endswith(ending)), None)
        if speak is None:
            self._reply({"input_tokens": 1, "totalTokens": 1})  # counting, telemetry: whatever
            return
        tools = list(_tool_names(request))
        # Without tools it is a request for a title and the like, not a turn of the conversation.
        answer = self.server.service.answer(request) if tools else Say("{}")
        if isinstance(answer, Fail):
            self._reply({"type": "error", "error": {"type": "api_error", "message": answer.message}}, answer.status)
            return
        events = speak(request, answer, tools)
        if isinstance(events, dict):
            self._reply(events)
        else:
            self._stream(events)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _reply(self, body: dict, status: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _stream(self, events) -> None:
        lines = (
            (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n"
            for event in events
        )
        content = "".join(lines).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _tool_names(request: dict):
    for tool in request.get("tools") or ():
        yield from (each["name"] for each in tool.get("functionDeclarations", ()))  # gemini
        yield tool.get("name") or tool.get("type")


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:16]}"


# -- the protocols -------------------------------------------------------------------------------------------


def _messages(request: dict, answer: Run | Say, tools: list[str]):
    if isinstance(answer, Run):
        given = {"command": answer.command, "description": "what the test wants"}
        given |= {"run_in_background": True} if answer.background else {}
        block = {"type": "tool_use", "id": _new_id("toolu"), "name": "Bash", "input": given}
        empty, reason = block | {"input": {}}, "tool_use"
        delta = {"type": "input_json_delta", "partial_json": json.dumps(given)}
    else:
        block = {"type": "text", "text": answer.text}
        empty, reason = block | {"text": ""}, "end_turn"
        delta = {"type": "text_delta", "text": answer.text}
    usage = {"input_tokens": 1, "output_tokens": 1}
    whole = {
        "id": _new_id("msg"), "type": "message", "role": "assistant", "model": request.get("model"), "content": [block],
        "stop_reason": reason, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    if not request.get("stream"):
        return whole
    return [
        {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


def _responses(request: dict, answer: Run | Say, tools: list[str]):
    if isinstance(answer, Say):
        content = [{"type": "output_text", "text": answer.text}]
        item = {"type": "message", "role": "assistant", "id": _new_id("msg"), "content": content}
    elif "exec_command" in tools:
        given = json.dumps({"cmd": answer.command})
        item = {"type": "function_call", "id": _new_id("fc"), "call_id": _new_id("call"),
                "name": "exec_command", "arguments": given}  # fmt: skip
    else:
        script = f"text(JSON.stringify(await tools.exec_command({{cmd: {json.dumps(answer.command)}}})));"
        item = {"type": "custom_tool_call", "id": _new_id("ctc"), "call_id": _new_id("call"),
                "name": "exec", "input": script}  # fmt: skip
    response = {"id": _new_id("resp")}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response | {"output": [item], "usage": usage}},
    ]


def _contents(request: dict, answer: Run | Say, tools: list[str]):
    if isinstance(answer, Say):
        part = {"text": answer.text}
    else:
        given = {"command": answer.command, "description": "what the test wants"}
        part = {"functionCall": {"name": "run_shell_command", "args": given}}
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    whole = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}
    return [whole]


_PROTOCOLS = {
    "/v1/messages": _messages,
    "/responses": _responses,
    ":streamGenerateContent": _contents,
    ":generateContent": lambda *given: _contents(*given)[0],
}
