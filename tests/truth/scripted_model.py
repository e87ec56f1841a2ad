"""A stand-in for the Anthropic Messages API on loopback that plays scripts, and keeps a log with times.

A prompt chooses its script by a cue, `cue("name")`. A script is a list of steps; a step is what the model answers to one
request: text, tool calls, failures before them, or a pause. The step is the number of answers since the newest cue in
the conversation, so that subagents and later prompts play scripts of their own. After its last step, and in a
conversation without a cue, the model says that this is all. Requests without tools ask for a title and the like: they
are answered apart. So is the request for a summary, by which the program compacts its conversation.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

_OUTPUT_TOKENS = 50  # of every answer
_CUE = re.compile(r"\[play ([\w-]+)\]")
_SUMMARY = re.compile(r"create a detailed summary|detailed summary of the conversation", re.IGNORECASE)


def cue(name: str) -> str:
    """Return the text that makes the model play this script."""
    return f"[play {name}]"


class Say(NamedTuple):
    """Speak; over `sec` seconds, a dot each half second, if that is given."""

    text: str
    sec: float = 0


class Call(NamedTuple):
    """Use a tool."""

    tool: str
    given: dict


class Fail(NamedTuple):
    """Answer the first `times` requests for this step with an error."""

    status: int
    message: str
    kind: str = "api_error"
    times: int = 1_000_000
    headers: dict = {}  # noqa: RUF012  never changed


class Pause(NamedTuple):
    """Think for this long."""

    sec: float


class Tokens(NamedTuple):
    """Say that the conversation has this many tokens."""

    number: int


Step = list


def bash(command: str, *, background: bool = False) -> Call:
    given = {"command": command, "description": "what the row wants"}
    return Call("Bash", given | ({"run_in_background": True} if background else {}))


def subagent(prompt: str, *, background: bool = False) -> Call:
    given = {"description": "part of the work", "prompt": prompt, "subagent_type": "general-purpose"}
    return Call("Agent", given | {"run_in_background": background})


def read(path: str) -> Call:
    return Call("Read", {"file_path": path})


def question(text: str, *choices: str) -> Call:
    options = [{"label": choice, "description": f"take {choice}"} for choice in choices]
    return Call("AskUserQuestion", {"questions": [{"question": text, "header": "Choice", "options": options,
                                                   "multiSelect": False}]})  # fmt: skip


def plan(text: str) -> Call:
    return Call("ExitPlanMode", {"plan": text})


class Asked(NamedTuple):
    """A request of the log: when it came, and when its answer had been sent (None: not yet)."""

    script: str | None
    step: int
    at: float
    answered_at: float | None
    answer: str
    text: str  # all that was said since the model's last answer
    tokens: int  # that the answer says it has used


class ScriptedModel:
    """Serve the scripts. `log` has every request; times are those of `time.monotonic`."""

    def __init__(self, scripts: dict[str, list[Step]] | None = None) -> None:
        self.scripts = dict(scripts or {})
        self.log: list[Asked] = []
        self.summary: Step = [Say("<summary>Go on.</summary>")]
        self._failed: dict[tuple[str | None, int], int] = {}
        self._lock = threading.Lock()
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.model = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def find(self, script: str, step: int, *, answered: bool = False) -> Asked | None:
        """Return the newest request for this step; with `answered`, once the whole answer is sent."""
        with self._lock:
            for asked in reversed(self.log):
                if (asked.script, asked.step) == (script, step) and (asked.answered_at is not None or not answered):
                    return asked
        return None

    def next_answer(self, request: dict) -> tuple[int, list, Fail | None]:
        """Return the number of the log entry, the blocks of the answer, and the failure to answer with, if any."""
        messages = request.get("messages", [])
        name, step = _place(messages)
        last = _newest_text(messages)
        blocks: list = [Say("That is all.")]
        if not request.get("tools"):
            name, step, blocks = None, -1, [Say('{"title": "a row"}')]
        if _SUMMARY.search(last):
            name, step, blocks = "summary", 0, self.summary
        elif name is not None and step < len(self.scripts[name]):
            blocks = self.scripts[name][step]
        with self._lock:
            failure = None
            for block in blocks:
                if isinstance(block, Fail) and self._failed.get((name, step), 0) < block.times:
                    self._failed[name, step] = self._failed.get((name, step), 0) + 1
                    failure = block
                    break
            said = [each for each in blocks if not isinstance(each, Fail)]
            answer = f"error {failure.status}" if failure else ", ".join(map(_describe, said))
            tokens = 0 if failure else _tokens(said) + _OUTPUT_TOKENS
            self.log.append(Asked(name, step, time.monotonic(), None, answer, last, tokens))
            return len(self.log) - 1, said, failure

    def note_answered(self, number: int) -> None:
        with self._lock:
            self.log[number] = self.log[number]._replace(answered_at=time.monotonic())


def _tokens(blocks: list) -> int:
    return next((block.number for block in blocks if isinstance(block, Tokens)), 1000)


def _describe(block) -> str:
    return block.tool if isinstance(block, Call) else type(block).__name__.lower()


def _place(messages: list[dict]) -> tuple[str | None, int]:
    """Return the script of the newest cue, and how many answers were given since."""
    answers = 0
    for message in reversed(messages):
        if message.get("role") == "assistant":
            answers += 1
        elif found := _CUE.findall(_text(message)):
            return found[-1], answers
    return None, 0


def _newest_text(messages: list[dict]) -> str:
    """Return what was said since the model's last answer."""
    newest: list[str] = []
    for message in reversed(messages):
        if message.get("role") == "assistant":
            break
        newest.insert(0, _text(message))
    return "\n".join(newest)


def _text(message: dict) -> str:
    content = message.get("content") or ()
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block) for block in content)


def _block_text(block: dict) -> str:
    content = block.get("content")
    if block.get("type") == "tool_result" and isinstance(content, list):
        return "\n".join(each.get("text", "") for each in content)
    return block.get("text") or (content if isinstance(content, str) else "")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._reply({})

    def do_GET(self) -> None:
        self._reply({"data": []})

    def do_POST(self) -> None:
        request = json.loads(self._body() or b"{}")
        try:
            if self.path.partition("?")[0].endswith("/v1/messages"):
                self._answer(request)
            else:
                self._reply({"input_tokens": 1})
        except OSError:
            self.close_connection = True  # the program has gone, or was interrupted

    def _answer(self, request: dict) -> None:
        model = self.server.model
        number, blocks, failure = model.next_answer(request)
        if failure is not None:
            error = {"type": "error", "error": {"type": failure.kind, "message": failure.message}}
            self._reply(error, failure.status, failure.headers)
        else:
            for block in blocks:
                if isinstance(block, Pause):
                    model.closing.wait(block.sec)
            self._speak(request, blocks)
        model.note_answered(number)

    def _speak(self, request: dict, blocks: list) -> None:
        reason = "tool_use" if any(isinstance(block, Call) for block in blocks) else "end_turn"
        usage = {"input_tokens": _tokens(blocks), "output_tokens": _OUTPUT_TOKENS}
        blocks = [block for block in blocks if isinstance(block, Say | Call)]
        head = {"id": _new_id("msg"), "type": "message", "role": "assistant", "model": request.get("model"),
                "stop_sequence": None}  # fmt: skip
        if not request.get("stream"):
            content = [_whole(block) for block in blocks]
            self._reply(head | {"content": content, "stop_reason": reason, "usage": usage})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("request-id", _new_id("req"))
        self.end_headers()
        self._send("message_start", message=head | {"content": [], "stop_reason": None, "usage": usage})
        for index, block in enumerate(blocks):
            self._send_block(index, block)
        end = {"stop_reason": reason, "stop_sequence": None}
        self._send("message_delta", delta=end, usage=usage)
        self._send("message_stop")
        self.wfile.write(b"0\r\n\r\n")

    def _send_block(self, index: int, block: Say | Call) -> None:
        whole = _whole(block)
        if isinstance(block, Call):
            self._send("content_block_start", index=index, content_block=whole | {"input": {}})
            self._send_delta(index, {"type": "input_json_delta", "partial_json": json.dumps(block.given)})
        else:
            self._send("content_block_start", index=index, content_block=whole | {"text": ""})
            for _ in range(int(block.sec * 2)):
                self._send_delta(index, {"type": "text_delta", "text": ". "})
                self.server.model.closing.wait(0.5)
            self._send_delta(index, {"type": "text_delta", "text": block.text})
        self._send("content_block_stop", index=index)

    def _send_delta(self, index: int, delta: dict) -> None:
        self._send("content_block_delta", index=index, delta=delta)

    def _send(self, kind: str, **event: object) -> None:
        content = f"event: {kind}\ndata: {json.dumps({'type': kind} | event)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        self.wfile.flush()

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _reply(self, body: dict, status: int = 200, headers: dict | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"content-type": "application/json"} | (headers or {})).items():
            self.send_header(name, str(value))
        self.send_header("content-length", str(len(content)))
        self.send_header("request-id", _new_id("req"))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _whole(block: Say | Call) -> dict:
    if isinstance(block, Call):
        return {"type": "tool_use", "id": _new_id("toolu"), "name": block.tool, "input": block.given}
    return {"type": "text", "text": block.text}


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:16]}"
