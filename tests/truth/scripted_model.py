"""A stand-in for model services on loopback that plays scripts, and keeps a log with times.

It speaks four protocols (`truth.protocols`); the same scripts play for all. A prompt chooses its script by a cue,
`cue("name")`. A script is a list of steps (`truth.steps`); a step is what the model answers to one request: text, tool
calls, failures before them, or a pause. The step is the number of answers since the newest cue in the conversation, so
that subagents and later prompts play scripts of their own. After its last step the model says that this is all. A
conversation without a cue is answered from a queue, `will`. Requests without tools ask for a title and the like: they
are answered apart. So is the request for a summary, by which Claude Code compacts its conversation. A function in
place of a block is called when its turn comes: for a tool call whose arguments are not known before.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

from truth.protocols.anthropic import Messages
from truth.protocols.chat import Chat
from truth.protocols.contract import OUTPUT_TOKENS, Event, Message, Protocol, new_id
from truth.protocols.gemini import GenerateContent
from truth.protocols.responses import Responses
from truth.steps import CUE, Call, Fail, Pause, Say, Shell, Step, Tokens, bash, cue, plan, question, read, subagent

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Call", "Fail", "Pause", "Say", "ScriptedModel", "Shell", "Step", "Tokens", "bash", "cue", "plan",
           "question", "read", "subagent"]  # fmt: skip

_PROTOCOLS: tuple[Protocol, ...] = (Messages(), Responses(), Chat(), GenerateContent())
_SUMMARY = re.compile(r"create a detailed summary|detailed summary of the conversation", re.IGNORECASE)
# For requests beside the work: a title, or Gemini's question who speaks next.
_APART = '{"title": "a row", "reasoning": "the model said all", "next_speaker": "user"}'
_HELD_SEC = 60


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
    """Serve the scripts. `log` has every request; times are those of `time.monotonic`. `asked` has the bodies of the
    requests that may use tools."""

    def __init__(self, scripts: dict[str, list[Step]] | None = None) -> None:
        self.scripts = dict(scripts or {})
        self.log: list[Asked] = []
        self.asked: list[dict] = []
        self.work_without_tools = False  # whether a program that gives its model no tools works so
        self.summary: Step = [Say("<summary>Go on.</summary>")]
        self._queue: deque[Say | Shell | Call | Fail] = deque()
        self._failed: dict[tuple[str | None, int], int] = {}
        self._lock = threading.Lock()
        self._speaks = threading.Event()
        self._speaks.set()
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.model = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self.let_go()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # -- what a test says --------------------------------------------------------------------------------------------------

    def will(self, *answers: Say | Shell | Call | Fail) -> None:
        """Answer the next requests of conversations without a cue so, one by one."""
        self._queue.extend(answers)

    def hold(self) -> None:
        """Think from now on, until it is let go."""
        self._speaks.clear()

    def let_go(self) -> None:
        self._speaks.set()

    # -- what it was asked -------------------------------------------------------------------------------------------------

    def find(self, script: str, step: int, *, answered: bool = False) -> Asked | None:
        """Return the newest request for this step; with `answered`, once the whole answer is sent."""
        with self._lock:
            for asked in reversed(self.log):
                if (asked.script, asked.step) == (script, step) and (asked.answered_at is not None or not answered):
                    return asked
        return None

    @property
    def asked_last(self) -> str:
        """Return all that was said in the newest conversation, as JSON."""
        request = self.asked[-1]
        said = request.get("messages") or request.get("input") or request.get("contents")
        return json.dumps(said, ensure_ascii=False)

    def texts_asked(self) -> Iterator[str]:
        """Return every piece of text that was said in any conversation."""
        for request in self.asked:
            for message in request.get("messages") or request.get("input") or request.get("contents"):
                content = message.get("content") or message.get("parts") or ()
                yield from [content] if isinstance(content, str) else (each.get("text") or "" for each in content)

    # -- what it answers ---------------------------------------------------------------------------------------------------

    def next_answer(self, protocol: Protocol, request: dict) -> tuple[int, list, Fail | None]:
        """Return the number of the log entry, the blocks of the answer, and the failure to answer with, if any."""
        messages = protocol.conversation(request)
        name, step = _place(messages)
        last = _newest_text(messages)
        with self._lock:
            name, step, blocks = self._choose(name, step, last, bool(protocol.tools(request)))
            if step >= 0:
                self.asked.append(request)
            blocks = [each() if callable(each) else each for each in blocks]
            failure = self._failure(name, step, blocks)
            said = [each for each in blocks if not isinstance(each, Fail)]
            answer = f"error {failure.status}" if failure else ", ".join(map(_describe, said))
            tokens = 0 if failure else tokens_of(said) + OUTPUT_TOKENS
            self.log.append(Asked(name, step, time.monotonic(), None, answer, last, tokens))
            number = len(self.log) - 1
        if step >= 0:
            self._speaks.wait(_HELD_SEC)
        return number, said, failure

    def _choose(self, name: str | None, step: int, last: str, has_tools: bool) -> tuple[str | None, int, list]:
        """Return the script, the step and its blocks. The step -1 is beside the work."""
        if _SUMMARY.search(last):
            return "summary", 0, self.summary
        if not has_tools and not self.work_without_tools:
            return None, -1, [Say(_APART)]
        if name is not None and step < len(self.scripts[name]):
            return name, step, self.scripts[name][step]
        if name is None and self._queue:
            return name, step, [self._queue.popleft()]
        return name, step, [Say("That is all.")]

    def _failure(self, name: str | None, step: int, blocks: list) -> Fail | None:
        for block in blocks:
            if isinstance(block, Fail) and (name is None or self._failed.get((name, step), 0) < block.times):
                self._failed[name, step] = self._failed.get((name, step), 0) + 1
                return block
        return None

    def note_answered(self, number: int) -> None:
        with self._lock:
            self.log[number] = self.log[number]._replace(answered_at=time.monotonic())


def tokens_of(blocks: list) -> int:
    return next((block.number for block in blocks if isinstance(block, Tokens)), 1000)


def _describe(block) -> str:
    return block.tool if isinstance(block, Call) else type(block).__name__.lower()


def _place(messages: list[Message]) -> tuple[str | None, int]:
    """Return the script of the newest cue, and how many answers were given since."""
    answers = 0
    for message in reversed(messages):
        if message.by_model:
            answers += 1
        elif found := CUE.findall(message.text):
            return found[-1], answers
    return None, 0


def _newest_text(messages: list[Message]) -> str:
    """Return what was said since the model's last answer."""
    newest: list[str] = []
    for message in reversed(messages):
        if message.by_model:
            break
        newest.insert(0, message.text)
    return "\n".join(newest)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._reply({})

    def do_GET(self) -> None:
        self._reply({"object": "list", "data": [{"id": "m", "object": "model"}], "models": []})

    def do_POST(self) -> None:
        request = json.loads(self._body() or b"{}")
        path = self.path.partition("?")[0]
        protocol = next((each for each in _PROTOCOLS if path.endswith(each.endings)), None)
        try:
            if protocol is None:
                self._reply({"input_tokens": 1, "totalTokens": 1})  # the count of tokens, telemetry
            else:
                self._answer(protocol, request, path)
        except OSError:
            self.close_connection = True  # the program has gone, or was interrupted

    def _answer(self, protocol: Protocol, request: dict, path: str) -> None:
        model = self.server.model
        number, blocks, failure = model.next_answer(protocol, request)
        if failure is not None and failure.status == 0:
            self.close_connection = True
        elif failure is not None:
            self._reply(protocol.error(failure), failure.status, failure.headers)
        else:
            for block in blocks:
                if isinstance(block, Pause):
                    model.closing.wait(block.sec)
            tokens = tokens_of(blocks)
            blocks = [block for block in blocks if isinstance(block, Say | Call | Shell)]
            if protocol.streams(request, path):
                self._stream(protocol.events(request, blocks, tokens))
            else:
                self._reply(protocol.whole(request, blocks, tokens))
        model.note_answered(number)

    def _stream(self, events: Iterator[Event | float]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("request-id", new_id("req"))
        self.end_headers()
        for event in events:
            if isinstance(event, Event):
                self._send(event)
            else:
                self.server.model.closing.wait(event)
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, event: Event) -> None:
        head = f"event: {event.kind}\n" if event.kind else ""
        data = event.data if isinstance(event.data, str) else json.dumps(event.data)
        content = f"{head}data: {data}\n\n".encode()
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
        self.send_header("request-id", new_id("req"))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
