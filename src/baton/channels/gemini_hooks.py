"""Talk to Gemini on the terminal: its hooks, its transcript, and the commands that it runs.

The hooks inform, and the person at the screen answers. No hook says that a dialog was answered: a command that runs was
allowed, and the transcript has a line when a request or a turn was cancelled.
"""

from __future__ import annotations

import json
import os
import time

from baton.channels.agent_settings import read_settings, with_hooks
from baton.channels.child_commands import runs_below, seconds_since_boot
from baton.channels.choices import read_questions
from baton.channels.contract import Setup
from baton.channels.gemini_home import SETTINGS, GeminiHome
from baton.channels.hooked import HELD_SEC, HOOK_SEC, Hooked
from baton.channels.tail import Tail
from baton.core.fields import UNEXPECTED_SHAPE, json_object
from baton.core.request import RequestKind
from baton.core.signal import ALLOW, Asked, Limited, Said, ToolEnded, ToolStarted, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from baton.adapters.contract import Agent, Task
    from baton.channels.gateway import Exchange
    from baton.core.signal import Signal
    from baton.core.value import Any

_EVENTS = {
    "SessionStart": HOOK_SEC, "SessionEnd": HOOK_SEC, "BeforeAgent": HOOK_SEC, "AfterAgent": HELD_SEC,
    "BeforeTool": HOOK_SEC, "AfterTool": HOOK_SEC, "PreCompress": HOOK_SEC, "Notification": HOOK_SEC,
}  # fmt: skip
_TRUST = "GEMINI_CLI_TRUSTED_FOLDERS_PATH"
_NO_RESPONSE = "[no response text]"
_CANCELLED = "Request cancelled."
_DECIDE_SEC = 0.6  # after AfterAgent: the transcript says how the turn ended, and comes a moment later
_ERROR_SEC = 2.0  # after an error in the transcript: AfterAgent follows, or the turn ends without it
_RETURN_SEC = 2.0
_KINDS = {"ask_user": RequestKind.QUESTION, "exit_plan_mode": RequestKind.PLAN}
_AT_SCREEN = "at its own screen"


class GeminiHooks(Hooked):
    """Gemini on the terminal of its pane."""

    def __init__(self, agent: Agent, task: Task) -> None:
        super().__init__(agent, task)
        self._home = GeminiHome(task.folder, self._environment)
        self._calls = 0
        self._commands: dict[str, tuple[str, float]] = {}  # open questions: the command, and since when, by key
        self._ended: tuple[Exchange, str, float] | None = None  # AfterAgent, its text, and when to decide
        self._error: tuple[str, float] | None = None  # of the open turn, and when it came
        self._returned = 0.0
        self._handlers: dict[str, Callable[[Mapping[str, Any]], Iterator[Signal]]] = {
            "SessionStart": self._session_started,
            "SessionEnd": self._session_ended,
            "BeforeAgent": self._prompt,
            "BeforeTool": self._tool_begins,
            "AfterTool": self._tool_ended,
            "PreCompress": self._asks_model,
            "Notification": self._ask,
        }

    def _prepare(self) -> Setup:
        path = os.path.join(self._home.users, SETTINGS)
        try:
            settings = read_settings(path)
        except ValueError as error:
            raise self._agent.unusable(f"cannot read its settings {path}: {error}; fix the file") from None
        if (settings.get("hooksConfig") or {}).get("enabled") is False:  # the user's own hooks stay off
            settings = {**settings, "hooks": {}, "hooksConfig": {**settings["hooksConfig"], "enabled": True}}
        self._home.make(json.dumps(with_hooks(settings, self._task.hook, _EVENTS), indent=2))
        trusted = self._environment.get(_TRUST) or os.path.join(self._home.users, "trustedFolders.json")
        return Setup(environment={"GEMINI_CLI_HOME": self._home.path, _TRUST: trusted})

    def close(self) -> None:
        super().close()
        self._home.return_files(everything=True)

    def _follow(self, path: str) -> None:
        if path and (self._transcript is None or self._transcript.path != path):
            self._transcript = Tail(path, os.path.join(self._home.users, "tmp"))

    def _waits(self, exchange: Exchange) -> bool:
        return self._ended is not None and self._ended[0] is exchange

    # -- hooks ----------------------------------------------------------------------------------------------------

    def _handle(self, event: str, message: Mapping[str, Any], exchange: Exchange) -> Iterator[Signal]:
        if event == "AfterAgent":
            if self._ended is not None:
                self._ended[0].reply(b"")  # the later one counts
            self._ended = exchange, str(message.get("prompt_response") or ""), time.monotonic() + _DECIDE_SEC
            return iter(())
        handle = self._handlers.get(event)
        return iter(()) if handle is None else handle(message)

    def _prompt(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        if self._ended is not None:
            self._decide()  # the end of the turn before this one
        self._error = None
        return self._begin_turn(str(message.get("prompt") or ""))

    def _asks_model(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Note that the tools are over: Gemini looks for something to compress before each call of the model."""
        yield from self._end_calls("it was not run")
        yield Said(text="")

    def _tool_begins(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        self._calls += 1
        tool_id, name, given = f"call {self._calls}", str(message["tool_name"]), message.get("tool_input")
        self._tools[tool_id] = name, given
        yield ToolStarted(tool_id=tool_id, name=name, call=given, turn=self._turn or "")

    def _tool_ended(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        same = str(message["tool_name"]), message.get("tool_input")
        tool_id = next((each for each, call in self._tools.items() if call == same), None)
        if tool_id is None:
            return
        for key in [key for key, of_tool in self._asks.items() if of_tool == tool_id]:
            yield from self._settle(key, ALLOW, _AT_SCREEN)
        del self._tools[tool_id]
        error = (message.get("tool_response") or {}).get("error")
        yield ToolEnded(tool_id=tool_id, ok=not error, why=str(error or ""))

    def _ask(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Note a dialog. It names no call: it is that of the newest one with the same command, or of the newest."""
        if message.get("notification_type") != "ToolPermission":
            return
        details = message.get("details") or {}
        command = details.get("command")
        free = [each for each in reversed(self._tools) if each not in self._asks.values()]
        same = [each for each in free if command and (_input(self._tools[each]).get("command") == command)]
        tool_id = next(iter([*same, *free]), None)
        name, call = self._tools[tool_id] if tool_id is not None else (str(details.get("title") or "a tool"), details)
        key = os.urandom(6).hex()
        self._asks[key] = tool_id
        if isinstance(command, str) and command:
            self._commands[key] = command, seconds_since_boot()
        yield Asked(
            key=key,
            kind=_KINDS.get(str(details.get("type")), RequestKind.TOOL).value,
            tool=name,
            call=call,
            tool_id=tool_id,
            options=read_questions(details) if details.get("type") == "ask_user" else (),
            screen_only=True,
        )

    # -- the transcript, and the processes --------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        for line in self._transcript.read() if self._transcript is not None else ():
            try:
                self._say_all(self._of_transcript(json_object(line.decode(errors="replace")), now), "transcript")
            except UNEXPECTED_SHAPE:
                self._count("of an unknown form")
        for key in [key for key in self._commands if key in self._asks]:
            if runs_below(os.getpid(), *self._commands[key]):
                self._say_all(self._settle(key, ALLOW, _AT_SCREEN), "process")
        self._commands = {key: each for key, each in self._commands.items() if key in self._asks}
        if self._ended is not None and now >= self._ended[2]:
            self._decide()
        elif self._error is not None and self._ended is None and now >= self._error[1] + _ERROR_SEC:
            why, self._error = self._error[0], None
            self._say_all(self._fail(why), "transcript")
        if now >= self._returned + _RETURN_SEC:
            self._returned = now
            self._home.return_files()

    def _of_transcript(self, line: Mapping[str, Any], now: float) -> Iterator[Signal]:
        kind, content = line.get("type"), line.get("content")
        if kind == "info" and content == _CANCELLED and self._turn is not None:
            if self._ended is not None:
                self._ended[0].reply(b"")
            self._ended = self._error = None
            yield from self._interrupt()
        elif kind == "error" and self._turn is not None and isinstance(content, str):
            self._error = content, now
        elif kind == "gemini" and isinstance(line.get("tokens"), dict):
            tokens = line["tokens"]
            found = {name: int(tokens.get(name) or 0) for name in ("input", "tool", "cached", "output", "thoughts")}
            yield Usage(
                message_id=str(line["id"]), input_tokens=found["input"] + found["tool"], cached_tokens=found["cached"],
                output_tokens=found["output"] + found["thoughts"], model=str(line.get("model") or ""),
            )  # fmt: skip

    def _decide(self) -> None:
        """End the turn for which AfterAgent came. That alone is no success: it comes after an error, too."""
        assert self._ended is not None
        (exchange, text, _), self._ended = self._ended, None
        error, self._error = self._error, None
        if error is not None:
            exchange.reply(b"")
            self._say_all(self._fail(error[0]), "transcript")
        elif not text or text == _NO_RESPONSE:
            exchange.reply(b"")
            self._say_all(self._interrupt("the turn ended without an answer of the model"), "hook")
        else:
            self._say_all(self._hold_turn(text, exchange), "hook")

    def _fail(self, why: str) -> Iterator[Signal]:
        if "429" in why or "RESOURCE_EXHAUSTED" in why:
            yield Limited(until_ns=None, why=why)
        yield from self._fail_turn(why)


def _input(call: tuple[str, Any]) -> Mapping[str, Any]:
    return call[1] if isinstance(call[1], dict) else {}
