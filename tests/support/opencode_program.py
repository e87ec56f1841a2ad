"""A stand-in for the program opencode: `serve` answers as its server does, to the prompts of the tests.

"ask": run a command after a permission. "drop": the same, and the connection for events breaks before the question.
"die": end. "say": answer. "fail": the model service refuses. "slow": work until it is ended. Everything that is asked of
it is in the file requests.jsonl of its folder.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

SESSION = "ses_0123456789"
CALL = {"command": "ls", "description": "list"}
QUESTION = {
    "id": "per_1", "sessionID": SESSION, "permission": "bash", "patterns": ["ls"], "metadata": {"command": "ls"},
    "always": [], "tool": {"messageID": "msg_1a", "callID": "call_1"},
}  # fmt: skip


class State:
    """The session. Each listener has a queue; None ends its connection."""

    def __init__(self) -> None:
        self.listeners: list[SimpleQueue] = []
        self.messages: dict[str, dict] = {}
        self.status: dict = {}
        self.pending: list[dict] = []
        self.number = 0

    def tell(self, kind: str, **about: object) -> None:
        for listener in self.listeners:
            listener.put({"type": kind, "properties": {"sessionID": SESSION, **about}})

    def drop(self) -> None:
        for listener in self.listeners:
            listener.put(None)
        self.listeners.clear()

    def message(self, message: str, role: str, **about: object) -> None:
        info = {"id": message, "role": role, "sessionID": SESSION, **about}
        self.messages.setdefault(message, {"parts": []})["info"] = info
        self.tell("message.updated", info=info)

    def part(self, message: str, kind: str, **about: object) -> None:
        part = {"id": f"{message}-{kind}", "messageID": message, "sessionID": SESSION, "type": kind, **about}
        parts = self.messages[message]["parts"]
        parts[:] = [each for each in parts if each["id"] != part["id"]] + [part]
        self.tell("message.part.updated", part=part)

    def set_status(self, kind: str) -> None:
        self.status = {} if kind == "idle" else {SESSION: {"type": kind}}
        self.tell("session.status", status={"type": kind})
        if kind == "idle":
            self.tell("session.idle")

    def prompt(self, text: str) -> None:
        self.number += 1
        user, answer = f"msg_{self.number}u", f"msg_{self.number}a"
        self.message(user, "user")
        self.part(user, "text", text=text)
        self.set_status("busy")
        self.message(answer, "assistant", parentID=user)
        word = next((each for each in ("ask", "drop", "die", "fail", "slow") if each in text.split()), "say")
        if word == "die":
            print("out of memory", flush=True)
            os._exit(3)
        if word == "fail":
            error = {"name": "APIError", "data": {"message": "wrong key", "statusCode": 401}}
            self.tell("session.error", error=error)
            self.message(answer, "assistant", parentID=user, error=error)
            self.set_status("idle")
        elif word in ("ask", "drop", "slow"):
            self.part(answer, "tool", tool="bash", callID="call_1", state={"status": "running", "input": CALL})
            if word == "drop":
                self.drop()
            if word != "slow":
                self.pending = [QUESTION]
                self.tell("permission.asked", **QUESTION)
        else:
            self.answer(user, answer, "Done.")

    def answer(self, user: str, message: str, text: str) -> None:
        self.part(message, "text", text=text, time={"start": 1, "end": 2})
        self.part(message, "step-finish", tokens={"input": 10, "output": 5}, cost=0.25)
        self.message(message, "assistant", parentID=user, finish="stop")
        self.set_status("idle")

    def reply(self, given: dict) -> None:
        self.pending = []
        self.tell("permission.replied", requestID="per_1", reply=given["reply"])
        user, answer = f"msg_{self.number}u", f"msg_{self.number}a"
        state = {"status": "completed", "input": CALL, "output": "a\nb\n"}
        if given["reply"] == "reject":
            state = {"status": "error", "input": CALL, "error": f"The user rejected permission: {given.get('message')}"}
        self.part(answer, "tool", tool="bash", callID="call_1", state=state)
        self.answer(user, answer, "Listed." if given["reply"] == "once" else "Then not.")


STATE = State()
LOCK = threading.RLock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        given = json.loads(body) if body else None
        secret = f"opencode:{os.environ['OPENCODE_SERVER_PASSWORD']}".encode()
        if self.headers.get("authorization") != f"Basic {b64encode(secret).decode()}":
            self._answer(401, {})
            return
        with open("requests.jsonl", "a") as file:
            file.write(json.dumps([self.command, self.path, given]) + "\n")
        path = self.path.partition("?")[0]
        if path == "/event":
            self._listen()
            return
        with LOCK:
            status, answer = self._result(path, given)
        self._answer(status, answer)

    def _result(self, path: str, given: dict | None) -> tuple[int, object]:
        if self.command == "POST" and path == "/session":
            return 200, {"id": SESSION}
        if path == "/config" and "CONFIG" in os.environ:
            return 200, json.loads(os.environ["CONFIG"])
        if path == "/config":
            ours = json.loads(os.environ.get("OPENCODE_PERMISSION", "{}"))
            return 200, {"permission": json.loads(os.environ.get("USERS_PERMISSION", "{}")) | ours}
        if path == f"/session/{SESSION}/message":
            return 200, list(STATE.messages.values())
        lists = {"/session/status": STATE.status, "/permission": STATE.pending, "/question": []}
        if path in lists:
            return 200, lists[path]
        if path == f"/session/{SESSION}/prompt_async":
            threading.Thread(target=self._later, args=(given["parts"][0]["text"],)).start()
            return 204, None
        if path == "/permission/per_1/reply" and STATE.pending:
            STATE.reply(given)
            return 200, True
        return 404, {}

    def _later(self, text: str) -> None:
        with LOCK:
            STATE.prompt(text)

    def _answer(self, status: int, answer: object) -> None:
        content = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _listen(self) -> None:
        queue: SimpleQueue = SimpleQueue()
        queue.put({"type": "server.connected", "properties": {}})
        with LOCK:
            STATE.listeners.append(queue)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while (event := queue.get()) is not None:
            content = f"data: {json.dumps(event)}\n\n".encode()
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.close_connection = True


if __name__ == "__main__":
    if sys.argv[1:2] == ["attach"]:
        sys.exit(0)
    if os.environ.get("BROKEN"):
        print("no such option")
        sys.exit(2)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"opencode server listening on http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
