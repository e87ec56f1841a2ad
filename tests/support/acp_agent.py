"""An agent that speaks ACP by a script: a program of its own, with the standard library alone.

The file `acp.json` in its folder says what it does:

    {"turns": [[STEP, ...], ...], "load_fails": 1, "stubborn": true, "capabilities": {...}, "new_error": {...}}

Each prompt plays the next turn, and the last one again. What it hears is in `heard.jsonl`, one message a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

ONCE = [
    {"optionId": "all", "kind": "allow_always", "name": "Always"},
    {"optionId": "yes", "kind": "allow_once", "name": "Yes"},
    {"optionId": "no", "kind": "reject_once", "name": "No"},
]


class Agent:
    def __init__(self) -> None:
        with open("acp.json", encoding="utf-8") as file:
            self.script = json.load(file)
        self.turns = list(self.script["turns"])
        self.loads = 0
        self.answers = 0
        self.prompt_id = None

    def run(self) -> None:
        if self.script.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            self.handle(self.hear())

    def hear(self) -> dict:
        line = sys.stdin.readline()
        if not line:
            while self.script.get("stubborn"):
                time.sleep(60)  # it says nothing
            sys.exit(0)
        with open("heard.jsonl", "a", encoding="utf-8") as file:
            file.write(line)
        return json.loads(line)

    def write(self, **message) -> None:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def update(self, update: str, **more) -> None:
        self.write(method="session/update", params={"sessionId": "s-1", "update": {"sessionUpdate": update, **more}})

    def handle(self, message: dict) -> None:
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            able = self.script.get("capabilities", {"loadSession": True})
            self.write(id=number, result={"protocolVersion": 1, "agentCapabilities": able})
        elif method == "session/new" and "new_error" in self.script:
            self.write(id=number, error=self.script["new_error"])
        elif method == "session/new":
            self.write(id=number, result={"sessionId": "s-1"})
        elif method == "session/load":
            self.loads += 1
            if self.loads <= self.script.get("load_fails", 0):
                self.write(
                    id=number, error={"code": -32603, "message": "Internal error", "data": {"details": "no file"}}
                )
                return
            self.update("agent_message_chunk", content={"type": "text", "text": "an old message"})
            self.write(id=number, result=None)
        elif method == "session/set_mode":
            self.write(id=number, result={})
        elif method == "session/prompt":
            self.prompt_id = number
            for name, *arguments in self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]:
                getattr(self, f"do_{name}")(*arguments)
        elif method is None:
            self.answers += 1

    # -- steps -------------------------------------------------------------------------------------------------------

    def do_say(self, *pieces: str) -> None:
        for each in pieces:
            self.update("agent_message_chunk", content={"type": "text", "text": each})

    def do_update(self, update: str, more: dict) -> None:
        self.update(update, **more)

    def do_send(self, message: dict) -> None:
        self.write(**message)

    def do_print(self, line: str) -> None:
        print(line, flush=True)

    def do_tool(self, tool_id: str, command: str) -> None:
        raw = {"command": command}
        self.update("tool_call", toolCallId=tool_id, title=command, kind="execute", status="in_progress", rawInput=raw)

    def do_tool_over(self, tool_id: str, status: str = "completed", text: str = "") -> None:
        content = [{"type": "content", "content": {"type": "text", "text": text}}]
        self.update("tool_call_update", toolCallId=tool_id, status=status, content=content)

    def do_ask(self, number: int, tool_id: str, command: str, options: list | None = None, raw: bool = True) -> None:
        call = {"toolCallId": tool_id, "title": command, "kind": "execute", "status": "pending"}
        call |= {"rawInput": {"command": command}} if raw else {}
        params = {"sessionId": "s-1", "toolCall": call, "options": ONCE if options is None else options}
        self.write(id=number, method="session/request_permission", params=params)

    def do_answers(self, count: int) -> None:
        """Wait for so many answers, in all."""
        while self.answers < count:
            self.handle(self.hear())

    def do_file(self, name: str) -> None:
        """Wait for a file."""
        while not os.path.exists(name):
            time.sleep(0.02)  # it polls, as any program may

    def do_make(self, name: str) -> None:
        with open(name, "w", encoding="utf-8") as file:
            file.write("made")

    def do_child(self, name: str) -> None:
        """Start a program that survives, and write its id."""
        import subprocess

        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.do_make(name + ".part")
        with open(name + ".part", "w", encoding="utf-8") as file:
            file.write(str(child.pid))
        os.rename(name + ".part", name)

    def do_silence(self) -> None:
        while True:
            time.sleep(60)  # it says nothing

    def do_end(self, stop: str = "end_turn", more: dict | None = None) -> None:
        self.write(id=self.prompt_id, result={"stopReason": stop, **(more or {})})

    def do_error(self, error: dict) -> None:
        self.write(id=self.prompt_id, error=error)


if __name__ == "__main__":
    Agent().run()
