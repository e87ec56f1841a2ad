"""Talk to Qwen on the terminal: its hooks, the events that it writes beside its screen, and its file of commands.

The hooks say when a turn or a tool begins and ends. A hook that answered a permission request would keep the dialog off
the screen. So the events say that a dialog opens and how it was answered, and the file of commands carries an answer.
"""

from __future__ import annotations

import json
import os
import re
import time

from baton.adapters.qwen import COMMANDS, system_defaults
from baton.channels.agent_settings import read_settings, with_hooks
from baton.channels.choices import read_questions
from baton.channels.contract import Setup
from baton.channels.hooked import HELD_SEC, HOOK_SEC, Hooked
from baton.channels.pipes import LineReader
from baton.channels.qwen_folder import folder_setup
from baton.channels.reset_time import reset_time
from baton.core.fields import UNEXPECTED_SHAPE, json_object
from baton.core.request import RequestKind
from baton.core.signal import ALLOW, DENY, Asked, Limited, Said, ToolEnded, ToolStarted, Usage
from baton.storage.files import append_line, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from baton.adapters.contract import Agent, Task
    from baton.channels.gateway import Exchange
    from baton.core.request import Answer
    from baton.core.signal import Signal
    from baton.core.value import Any

_EVENTS = {
    "SessionStart": HOOK_SEC, "SessionEnd": HOOK_SEC, "UserPromptSubmit": HOOK_SEC, "PreToolUse": HOOK_SEC,
    "PostToolUse": HOOK_SEC, "PostToolUseFailure": HOOK_SEC, "Stop": HELD_SEC, "StopFailure": HOOK_SEC,
    "SubagentStart": HOOK_SEC, "SubagentStop": HOOK_SEC, "PreCompact": HOOK_SEC, "Notification": HOOK_SEC,
}  # fmt: skip
_IDLE_SEC = 1.0  # after Qwen says that it is idle: a hook that comes a moment later says why
_WORK_SEC = 1.0  # between signs of work from pieces of a message
_KINDS = {"exit_plan_mode": RequestKind.PLAN, "ask_user_question": RequestKind.QUESTION}
_AT_SCREEN = "at its own screen"
_ERROR = re.compile(r"\[API Error")


class QwenHooks(Hooked):
    """Qwen on the terminal of its pane."""

    def __init__(self, agent: Agent, task: Task) -> None:
        super().__init__(agent, task)
        self._commands = os.path.join(task.folder, COMMANDS)
        self._events: LineReader | None = None
        self._pipe: int | None = None  # the end that the program opens
        self._answered: dict[str, str] = {}  # what was written for a question, until the program confirms it
        self._reason: str | None = None  # of our denial: Qwen gets it as its next prompt
        self._idle_at: float | None = None
        self._worked = 0.0
        self._handlers: dict[str, Callable[[Mapping[str, Any]], Iterator[Signal]]] = {
            "SessionStart": self._session_started,
            "SessionEnd": self._session_ended,
            "UserPromptSubmit": self._prompt,
            "PreToolUse": self._tool_began,
            "PostToolUse": self._tool_ended,
            "PostToolUseFailure": self._tool_ended,
            "StopFailure": self._stop_failure,
            "SubagentStart": self._works,
            "SubagentStop": self._works,
            "PreCompact": self._works,
        }

    # -- the runner's side ----------------------------------------------------------------------------------------

    def _prepare(self) -> Setup:
        path = system_defaults(self._environment)
        try:
            settings = read_settings(path)
        except ValueError as error:
            raise self._agent.unusable(f"cannot read its settings {path}: {error}; fix the file") from None
        read, self._pipe = os.pipe()
        self._events = LineReader(read)
        # Qwen starts itself a second time, without the descriptors that it inherits: so it opens the pipe by a path.
        events = f"/proc/{os.getpid()}/fd/{self._pipe}"
        replace_file(self._commands, b"")
        hooked = with_hooks(settings, self._task.hook, _EVENTS)
        argv = (*self._agent.launch(self._task).argv, "--json-file", events)
        return folder_setup(self._task, self._environment, hooked).replace(argv=argv)

    @property
    def outputs(self) -> list[int]:
        return [self._events.fd] if self._events is not None and self._events.fd is not None else []

    def read(self) -> None:
        for line in self._events.read() if self._events is not None else ():
            with self._lock:
                try:
                    self._say_all(self._of_event(json_object(line)), "stream")
                except UNEXPECTED_SHAPE:
                    self._count("of an unknown form")

    def answer(self, key: str, answer: Answer) -> bool:
        with self._lock:
            if key not in self._asks or key in self._answered:
                return False
            given = {"type": "confirmation_response", "request_id": key, "allowed": answer.answer == ALLOW}
            if not append_line(self._commands, json.dumps(given)):
                return False
            self._answered[key] = answer.answer
            if answer.answer != ALLOW:
                self._reason = answer.reason or "The user denied this."
            return True

    def say(self, text: str) -> bool:
        """Type a prompt. Qwen drops one that comes while it works."""
        with self._lock:
            return self._turn is None and self._submit(text)

    def _submit(self, text: str) -> bool:
        return bool(append_line(self._commands, json.dumps({"type": "submit", "text": text})))

    def close(self) -> None:
        super().close()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe)
        if self._events is not None:
            self._events.close()

    # -- hooks ----------------------------------------------------------------------------------------------------

    def _handle(self, event: str, message: Mapping[str, Any], exchange: Exchange) -> Iterator[Signal]:
        if event == "Notification":
            if message.get("notification_type") == "idle_prompt":
                self._idle_at = time.monotonic()
            return iter(())
        self._idle_at = None
        if event == "Stop":
            self._reason = None
            said = str(message.get("last_assistant_message") or "")
            # Qwen gives an error of its model service as an answer of the model.
            return self._fail_turn(said) if _ERROR.match(said) else self._hold_turn(said, exchange)
        handle = self._handlers.get(event)
        return iter(()) if handle is None else handle(message)

    def _prompt(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Begin a turn. After each round of tools, Qwen submits an empty prompt: its turn goes on."""
        prompt = str(message.get("prompt") or "")
        return self._begin_turn(prompt) if prompt else iter([Said(text="")])

    def _tool_began(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        tool_id, name, given = str(message["tool_use_id"]), str(message["tool_name"]), message.get("tool_input")
        self._tools[tool_id] = name, given
        yield ToolStarted(tool_id=tool_id, name=name, call=given, turn=self._turn or "")

    def _tool_ended(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        tool_id, ok = str(message["tool_use_id"]), message.get("hook_event_name") == "PostToolUse"
        self._tools.pop(tool_id, None)
        yield ToolEnded(tool_id=tool_id, ok=ok, why=str(message.get("error") or ""))

    def _works(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        yield Said(text="")

    def _stop_failure(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        texts = (message.get("last_assistant_message"), message.get("error_details"), message.get("error"))
        why = next((str(each) for each in texts if each), "the model service failed")
        if message.get("error") == "rate_limit":
            yield Limited(until_ns=reset_time(why, time.time_ns()), why=why)
        yield from self._fail_turn(why)

    def _look(self, now: float) -> None:
        """End a turn that was interrupted: Qwen is idle, and no hook has said that the turn is over."""
        if self._idle_at is None or now < self._idle_at + _IDLE_SEC:
            return
        self._idle_at = None
        if self._turn is None:
            return
        reason, self._reason = self._reason, None
        text = f"The user denied this: {reason}"
        if reason is not None and self._submit(text):
            self._sent_back = text  # the turn goes on with it
            self._say_all(self._end_calls("it was denied"), "hook")
            return
        self._say_all(self._interrupt(), "hook")

    # -- events -----------------------------------------------------------------------------------------------------

    def _of_event(self, event: Mapping[str, Any]) -> Iterator[Signal]:
        kind = event.get("type")
        if kind == "control_request" and event["request"].get("subtype") == "can_use_tool":
            yield from self._ask(str(event["request_id"]), event["request"])
        elif kind == "control_response":
            yield from self._decided(event["response"])
        elif kind == "assistant":
            message = event["message"]
            usage = message.get("usage") or {}
            given, made = int(usage.get("input_tokens") or 0), int(usage.get("output_tokens") or 0)
            if given or made:
                cached, model = int(usage.get("cache_read_input_tokens") or 0), str(message.get("model") or "")
                name = str(message["id"])
                yield Usage(message_id=name, input_tokens=given, cached_tokens=cached, output_tokens=made, model=model)
        elif kind == "stream_event" and time.monotonic() >= self._worked + _WORK_SEC:
            self._worked = time.monotonic()
            yield Said(text="")

    def _ask(self, key: str, request: Mapping[str, Any]) -> Iterator[Signal]:
        tool, call = str(request["tool_name"]), request.get("input")
        kind = _KINDS.get(tool, RequestKind.TOOL)
        is_question = kind is RequestKind.QUESTION
        self._asks[key] = None
        yield Asked(
            key=key,
            kind=kind.value,
            tool=tool,
            call=call,
            options=read_questions(call) if is_question else (),
            screen_only=is_question,  # an answer by a command is yes or no
        )

    def _decided(self, response: Mapping[str, Any]) -> Iterator[Signal]:
        key = str(response["request_id"])
        ours = self._answered.pop(key, None)
        if response.get("subtype") == "success":
            decision = ALLOW if response["response"].get("allowed") is True else DENY
            yield from self._settle(key, decision, "runner" if ours == decision else _AT_SCREEN)
        elif key in self._asks:
            yield from self._settle(key, None, str(response.get("error") or ""))
