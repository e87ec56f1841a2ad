"""A stand-in for Claude Code in a session: the test sends its hooks, to the socket of the session's runner."""

from __future__ import annotations

import json
import os
import threading

from baton.channels.forward import forward
from support.waiting import wait_until

_PROGRAM = "#!/bin/sh\nexec sleep 600\n"


def install_program(desk, folder, script=_PROGRAM, name="claude") -> None:
    """Puts a program of that name before all others."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(script)
    program.chmod(0o755)
    desk.env["PATH"] = f"{program.parent}:{desk.env['PATH']}"


class Claude:
    """Claude Code in the session of that name."""

    def __init__(self, desk, name: str) -> None:
        row = desk.row(name)
        self.folder = os.path.join(desk.home, "sessions", row["session_id"])
        self.conversation = row["conversation_id"]
        self._tools = 0

    def send(self, event: str, turn: str = "t1", **more):
        """The answer to a hook, when it comes; None for an empty one."""
        message = {"hook_event_name": event, "session_id": self.conversation, "prompt_id": turn, **more}
        answer = forward(self.folder, json.dumps(message).encode())
        return json.loads(answer) if answer else None

    def start(self, prompt: str, turn: str = "t1") -> None:
        self.send("SessionStart", turn, source="startup")
        self.send("UserPromptSubmit", turn, prompt=prompt)

    def tool(self, command: str, tool_id: str | None = None, turn: str = "t1", **more) -> dict:
        """A tool call that begins; the message of it, for what follows."""
        self._tools += 1
        tool_id = tool_id or f"tool{self._tools}"
        call = {"tool_name": "Bash", "tool_input": {"command": command}, **more}
        self.send("PreToolUse", turn, tool_use_id=tool_id, **call)
        return {"tool_use_id": tool_id, "turn": turn, **call}

    def end_tool(self, tool: dict) -> None:
        self.send("PostToolUse", **tool, tool_response={})

    def ask(self, tool: dict) -> Waiting:
        asked = {name: value for name, value in tool.items() if name != "tool_use_id"}
        return Waiting(lambda: self.send("PermissionRequest", **asked))

    def stop(self, message: str = "done", turn: str = "t1", background=()) -> Waiting:
        more = {"last_assistant_message": message, "background_tasks": list(background), "stop_hook_active": False}
        return Waiting(lambda: self.send("Stop", turn, **more))


class Waiting:
    """A hook that waits for its answer."""

    def __init__(self, send) -> None:
        self._answers = []
        self._thread = threading.Thread(target=lambda: self._answers.append(send()), daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return not self._answers

    def answer(self, timeout: float = 30):
        wait_until(lambda: self._answers, timeout)
        return self._answers[0]

    def decision(self):
        return self.answer()["hookSpecificOutput"]["decision"]
