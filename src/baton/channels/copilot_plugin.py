"""Talk to Copilot on the terminal: its log of the conversation, and hooks of a plugin that baton gives it for one run.

The log says what happens. The hooks wait for an answer: permissionRequest for a decision, agentStop until the results
are verified. Copilot runs permissionRequest before its own rules, and while that hook waits, its screen does not show
the question: `release` leaves both to Copilot. So does a command that only reads, which Copilot allows by itself.
"""

from __future__ import annotations

import json
import os
import shlex
import time

from baton.adapters.copilot import ALLOW_ALL, PLUGIN, log_file, state_folder
from baton.channels.contract import Setup
from baton.channels.copilot_log import CopilotLog
from baton.channels.gateway import Exchange
from baton.channels.gateway_channel import GatewayChannel
from baton.channels.tail import Tail
from baton.core.fields import UNEXPECTED_SHAPE, json_object
from baton.core.signal import ALLOW, Conversation
from baton.storage.files import make_private_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.adapters.contract import Agent, Task
    from baton.channels.contract import Hear
    from baton.core.request import Answer
    from baton.core.value import Any

_LOOK_SEC = 0.2  # at the log, while a turn is open
_LOOK_IDLE_SEC = 0.5
_LOOK_NOW_SEC = 0.02  # while a hook waits that the log has not announced
_ANNOUNCE_SEC = 1.0  # for that long
_OVER_SEC = 2.0  # after the conversation's end, until it counts as cleared: the program may end
_PERMISSION_SEC = 20 * 24 * 3600
_STOP_SEC = 900  # the runner answers after the job's validation
# Commands that Copilot allows without a question. The list grants nothing: Copilot decides.
_READERS = frozenset(("cat", "date", "df", "du", "file", "grep", "head", "id", "ls", "pwd", "rg", "stat", "tail", "wc"))
_GIT_READERS = frozenset(("diff", "log", "show", "status"))
_SHELL_SIGNS = frozenset(";|&<>$(){}*?[~\\#!`\n\r'\"")


class CopilotPlugin(GatewayChannel):
    """Copilot on the terminal of its pane."""

    hides_questions = True

    def __init__(self, agent: Agent, task: Task) -> None:
        super().__init__(agent, task, task.environment or None)
        self._conversation = task.conversation_id or ""
        self._log, self._tail = CopilotLog(), self._follow()
        self._waiting: list[tuple[Mapping[str, Any], Exchange, float]] = []  # hooks that the log has not announced
        self._announced: list[tuple[str, object]] = []  # hooks that have not come yet
        self._over_at: float | None = None
        self._looked = 0.0

    def _follow(self) -> Tail:
        return Tail(log_file(self._environment, self._conversation), state_folder(self._environment))

    # -- the runner's side ----------------------------------------------------------------------------------------

    def open(self, hear: Hear) -> Setup:
        self._hear = hear
        self._gateway.listen_in_folder(self._task.folder)
        make_private_dir(os.path.join(self._task.folder, PLUGIN))
        self._gateway.start()
        self._say_blockers()
        asks = not self._task.yolo and not self._environment.get(ALLOW_ALL)
        about = {"name": "baton", "version": "1.0.0", "description": "Lets baton answer.", "hooks": "hooks.json"}
        return Setup(
            files={
                os.path.join(PLUGIN, "plugin.json"): json.dumps(about),
                os.path.join(PLUGIN, "hooks.json"): hooks_file(self._task.hook, asks=asks),
            }
        )

    def answer(self, key: str, answer: Answer) -> bool:
        with self._lock:
            ask = self._log.asks.get(key)
            if ask is None or ask.exchange is None or ask.answered is not None:
                return False
            reply = {"behavior": answer.answer}
            if answer.answer != ALLOW:
                reply["message"] = answer.reason or "The user denied this. Do not do it another way."
            if not ask.exchange.reply(json.dumps(reply).encode()):
                return False
            ask.answered = answer.answer
            return True

    def release(self, key: str) -> None:
        with self._lock:
            ask = self._log.asks.get(key)
            if ask is not None and ask.exchange is not None:
                ask.exchange.reply(b"")  # Copilot asks on its screen now

    def end_turn(self, turn: str, send_back: str | None) -> bool:
        with self._lock:
            held = self._held.pop(turn, None)
            if held is None:
                return False
            if send_back is None:
                return held.reply(b"")
            self._log.send_back(turn, send_back)
            return held.reply(json.dumps({"decision": "block", "reason": send_back}).encode())

    # -- the gateway's side ---------------------------------------------------------------------------------------

    def _receive(self, exchange: Exchange) -> None:
        with self._lock:
            message = json_object(exchange.body.decode(errors="replace"))
            self._look()
            if not self._is_ours(message):  # guard: copilot-conversation
                self._count("of another conversation")
                exchange.reply(b"")
            elif _hook_of(message) in self._announced:
                self._announced.remove(_hook_of(message))
                self._handle(message, exchange)
            else:
                self._waiting.append((message, exchange, time.monotonic() + _ANNOUNCE_SEC))

    def _is_ours(self, message: Mapping[str, Any]) -> bool:
        """Return whether a hook is of the session's conversation: a subagent has an id of its own. After /clear, the
        next conversation is the session's."""
        found = message.get("sessionId")
        if found == self._conversation:
            return True
        if not self._log.is_over or not isinstance(found, str) or not self._agent.is_conversation(found):
            return False
        self._end_conversation()
        self._conversation = found
        self._log, self._tail = CopilotLog(), self._follow()
        self._say(Conversation(conversation_id=found), "hook")
        return True

    def _end_conversation(self) -> None:
        if self._over_at is not None:
            self._over_at = None
            self._say(Conversation(conversation_id=self._conversation, ended="clear"), "log")

    def _handle(self, message: Mapping[str, Any], exchange: Exchange) -> None:
        """Do what a hook is for, in the order of the log."""
        self._count("hooks")
        kind, _ = _hook_of(message)
        try:
            if kind == "permissionRequest" and not only_reads(message):
                self._say(self._log.ask(message, exchange), "hook")
                return
            if kind == "agentStop" and self._log.turn is not None and message.get("stopReason") == "end_turn":
                self._held[self._log.turn] = exchange
                self._say(self._log.end_turn(), "hook")
                return
        except UNEXPECTED_SHAPE:
            self._count("of an unknown form")
        exchange.reply(b"")

    def _lose(self, exchange: Exchange) -> None:
        """Note that a hook was ended: what it asked is on the screen now, or over, as the log will say."""
        super()._lose(exchange)
        with self._lock:
            self._waiting = [each for each in self._waiting if each[1] is not exchange]

    def _tick(self) -> float | None:
        with self._lock:
            now = time.monotonic()
            pause = _LOOK_NOW_SEC if self._waiting else _LOOK_IDLE_SEC if self._log.turn is None else _LOOK_SEC
            if now >= self._looked + pause:
                self._look()
                self._handle_late(now)
                if self._over_at is not None and now >= self._over_at:
                    self._end_conversation()
            return max(0.0, self._looked + pause - now)

    def _look(self) -> None:
        """Read what is new in the log."""
        self._looked = time.monotonic()
        was_over = self._log.is_over
        for line in self._tail.read():
            event = json_object(line.decode(errors="replace"))
            try:
                self._say_all(self._log.read(event), "log")
                if event.get("type") == "hook.start":
                    self._announce(event["data"]["hookType"], event["data"]["input"].get("timestamp"))
            except UNEXPECTED_SHAPE:
                self._count("of an unknown form")
        self._say_all(self._log.announce(), "log")
        if self._log.is_over and not was_over:
            self._over_at = self._looked + _OVER_SEC

    def _announce(self, kind: str, at: object) -> None:
        """Handle the hook that the log announces; if it has not come yet, it is handled when it comes."""
        found = next((each for each in self._waiting if _hook_of(each[0]) == (kind, at)), None)
        if found is not None:
            self._waiting.remove(found)
            self._handle(found[0], found[1])
        elif kind in ("permissionRequest", "agentStop"):
            self._announced = [*self._announced[-20:], (kind, at)]

    def _handle_late(self, now: float) -> None:
        """Handle hooks that the log does not announce in time."""
        late = [each for each in self._waiting if now >= each[2]]
        self._waiting = [each for each in self._waiting if now < each[2]]
        for message, exchange, _ in late:
            self._handle(message, exchange)


def _hook_of(message: Mapping[str, Any]) -> tuple[str, object]:
    """Return which hook a message is of, and its time: together they name it."""
    if message.get("hookName") == "permissionRequest":
        return "permissionRequest", message.get("timestamp")
    return ("agentStop" if "stopReason" in message else "sessionStart"), message.get("timestamp")


def only_reads(message: Mapping[str, Any]) -> bool:
    """Return whether the hook is about a plain command that changes nothing."""
    command = message["toolInput"].get("command")
    if message["toolName"] != "bash" or not isinstance(command, str) or _SHELL_SIGNS.intersection(command):
        return False
    words = command.split()
    return bool(words) and (words[0] in _READERS or (words[0] == "git" and not _GIT_READERS.isdisjoint(words[1:2])))


def hooks_file(program: list[str], *, asks: bool) -> str:
    """Return the hooks of the plugin. `asks`: permissions are asked for. What errorOccurred says is in the log, because
    there is a hook for it; sessionStart tells the id of a new conversation."""
    command = shlex.join(program)
    seconds = {"permissionRequest": _PERMISSION_SEC, "agentStop": _STOP_SEC, "sessionStart": 5, "errorOccurred": 5}
    if not asks:
        del seconds["permissionRequest"]
    commands = dict.fromkeys(seconds, command) | {"errorOccurred": "true"}
    hooks = {
        event: [{"type": "command", "bash": commands[event], "timeoutSec": limit}] for event, limit in seconds.items()
    }
    return json.dumps({"version": 1, "hooks": hooks}, indent=2)
