"""Talk to Claude Code on the terminal: its hooks, its telemetry, its transcript and its registry of sessions."""

from __future__ import annotations

import json
import os
import re
import time

from baton.adapters.claude_code import ERRORS, SETTINGS, claude_folder
from baton.channels import claude_settings as settings
from baton.channels.claude_calls import Calls
from baton.channels.claude_plan import CHANGED, Plans
from baton.channels.claude_registry import WAITING, Entry, OwnEntry, Start, signals_of, writes_entries
from baton.channels.claude_telemetry import Event, cost, number, read_events
from baton.channels.claude_transcript import Interrupted, Line, Rejected, Used, read_errors, read_transcript, read_usage
from baton.channels.claude_usage import MESSAGE_NAMES, claude_usage
from baton.channels.contract import AnswerRefused, Setup
from baton.channels.forward import HOOK_PATH
from baton.channels.gateway import Exchange
from baton.channels.gateway_channel import GatewayChannel
from baton.channels.reset_time import reset_time
from baton.channels.tail import Tail
from baton.core.facts import OUTSIDE, describe_call
from baton.core.fields import UNEXPECTED_SHAPE, json_object, one_line
from baton.core.signal import (
    ALLOW,
    BACKGROUND,
    CARRIED_ON,
    DENY,
    FAILED,
    INTERRUPTED,
    PROMPT,
    Attention,
    BackgroundTask,
    BackgroundWork,
    Blocked,
    Conversation,
    Limited,
    Noted,
    Retrying,
    Said,
    Signal,
    TurnEnded,
    TurnStarted,
    Usage,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from baton.adapters.contract import Agent, Task
    from baton.channels.contract import Hear
    from baton.core.request import Answer
    from baton.core.value import Any

_LOOK_SEC = 0.5  # at the transcript, while a turn or a request is open
_LOOK_ON_SEC = 2.0  # after that
_LOOK_NOW_SEC = 0.1  # for a second, after a sign that the turn was interrupted
_STOP_FAILURE_SEC = 1.0  # after the transcript says that the model service failed: the hook comes a moment later
_LOOK_AT_ENTRY_SEC = 0.2  # while the agent starts, works or waits
_LOOK_AT_ENTRY_IDLE_SEC = 1.0
_START_SEC = 60.0  # in which an entry is looked for often
_DIALOG_SEC = 0.7  # after the end of a turn
_FORGET_SEC = 60.0  # after a subagent ended: the notification of it starts a turn
_TOKENS = ("input", "cache_read", "cache_creation")
# Notifications that a dialog is open.
_CALLS = frozenset({"agent_needs_input", "elicitation_dialog", "permission_prompt"})
# After a usage limit, it prompts itself with this, and says so by a notification.
_CARRIES_ON, _CARRIES_ON_TEXT = "quota_auto_resume_fired", "Your claude.ai usage limit has reset."
_START_DIALOG = (
    "it shows a dialog at its start, such as about trust, login or a key: attach and answer it there; in some of them, "
    "the first row refuses"
)
_NEW_CONVERSATION = ("clear", "resume", "fork")
_FACT_CHARS = 300
_TASK = re.compile(r"<task-id>([^<]+)</task-id>")


class ClaudeHooks(GatewayChannel):
    """Claude Code on the terminal of its pane."""

    def __init__(self, agent: Agent, task: Task, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(agent, task, environment, (HOOK_PATH, settings.LOGS_PATH))
        self._folder = claude_folder(self._environment)
        self._calls = Calls(Plans(self._folder, lambda: None if self._transcript is None else self._transcript.path))
        self._conversation = task.conversation_id
        self._is_over = False  # the conversation; the next one that starts is taken
        self._turn: str | None = None  # the one that is open
        self._background: dict[str, BackgroundTask] = {}
        self._forget: dict[str, float] = {}  # when to forget background work
        self._transcript: Tail | None = None
        self._errors = Tail(os.path.join(task.folder, ERRORS), task.folder)
        self._failed: tuple[str, str, float] | None = None  # the turn, why, and when to end it
        self._look_until = 0.0
        self._looked = 0.0
        self._hurry_until = 0.0
        self._telemetry = "nothing was received"
        self._own: OwnEntry | None = None  # once the program has started
        self._entry: Entry | None = None
        self._start: Start | None = None  # until the entry is there
        self._started = self._looked_at_entry = 0.0
        self._has_blockers = False
        self._mode = ""
        self._ended = 0.0  # when a turn was let end
        self._is_limited = self._carries_on = False
        self._handlers: dict[str, Callable[[Mapping[str, Any]], Iterator[Signal]]] = {
            "UserPromptSubmit": self._prompt,
            "PreToolUse": self._calls.start,
            "PostToolUse": self._tool_ended,
            "PostToolUseFailure": self._tool_failed,
            "PostToolBatch": self._calls.end_batch,
            "StopFailure": self._stop_failure,
            "SubagentStart": self._subagent_started,
            "SubagentStop": self._subagent_stopped,
            "SessionStart": self._session_started,
            "SessionEnd": self._session_ended,
            "PreCompact": self._compacts,
            "PostCompact": self._compacts,
            "Notification": self._notification,
            "PermissionDenied": self._denied,
        }

    # -- the runner's side ----------------------------------------------------------------------------------------

    def open(self, hear: Hear) -> Setup:
        self._hear = hear
        self._gateway.listen_in_folder(self._task.folder)
        listener = self._gateway.listen_on_loopback()
        port = None if listener is None else int(listener.getsockname()[1])
        variables = {} if port is None else self._variables(port)
        self._gateway.start()
        self._has_blockers = self._say_blockers()
        return Setup(
            environment=variables,
            files={SETTINGS: settings.settings_file(self._task.hook, port)},
            descriptors=() if listener is None else (listener.fileno(),),
        )

    def _variables(self, port: int) -> dict[str, str]:
        token = self._gateway.token
        variables = settings.gateway_variables(self._environment, token)
        variables.setdefault(settings.LOG_LEVEL, self._environment.get(settings.LOG_LEVEL, "error"))
        configured = settings.configured_telemetry(self._environment, self._task.workdir)
        if configured is not None:
            self._telemetry = self.uncounted = f"not used: {configured} configures it"
            return variables
        return variables | settings.telemetry_variables(port, token)

    def begin(self, pid: int) -> None:
        with self._lock:
            folder = os.path.join(self._task.workdir, self._folder)
            self._own, self._start = OwnEntry(folder, pid), Start(pid)
            self._started = self._looked_at_entry = time.monotonic()
        self._gateway.wake()

    def takes_text(self) -> bool:
        """A dialog that Claude opens at the end of a turn comes a moment after it."""
        with self._lock:
            entry = self._look_at_entry()
            return entry is None or (entry.status != WAITING and time.monotonic() >= self._ended + _DIALOG_SEC)

    def answer(self, key: str, answer: Answer) -> bool:
        with self._lock:
            changed = list(self._calls.ask_changed(key))
            if changed:  # guard: plan-that-was-shown
                self._say_all(changed, "hook")
                raise AnswerRefused(CHANGED)
            given = self._calls.input_to_repeat(key)
            decision: dict[str, Any] = {"behavior": answer.answer}
            if answer.answer == ALLOW and given is not None:
                is_choice = answer.choices and isinstance(given, dict)
                decision["updatedInput"] = {**given, "answers": dict(answer.choices)} if is_choice else given
            elif answer.answer != ALLOW:
                decision["message"] = answer.reason or "The user denied this. Do not do it another way."
            reply = {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}
            return self._calls.answer(key, answer.answer, json.dumps(reply).encode())

    def release(self, key: str) -> None:
        with self._lock:
            self._calls.release(key)

    def end_turn(self, turn: str, send_back: str | None) -> bool:
        with self._lock:
            held = self._held.pop(turn or next(iter(self._held), ""), None)
            if held is None:
                return False
            if send_back is None:
                self._ended = time.monotonic()
                return held.reply()
            self._turn = turn
            return held.reply(json.dumps({"decision": "block", "reason": send_back}).encode())

    def facts(self) -> Mapping[str, Any]:
        own = "not looked for" if self._own is None else self._own.trouble or "followed"
        return {"telemetry": self._telemetry, "registry of sessions": own, **super().facts()}

    # -- the gateway's side ---------------------------------------------------------------------------------------

    def _receive(self, exchange: Exchange) -> None:
        with self._lock:
            try:
                if exchange.path == settings.LOGS_PATH:
                    self._receive_telemetry(exchange.body)
                    exchange.reply()
                else:
                    self._receive_hook(exchange)
            except UNEXPECTED_SHAPE:
                self._count("of an unknown form")
                exchange.reply()

    def _receive_hook(self, exchange: Exchange) -> None:
        message = json_object(exchange.body.decode(errors="replace"))
        event = str(message.get("hook_event_name"))
        if not self._is_ours(message):  # guard: conversation-of-session
            self._count("of another conversation")
            exchange.reply()
            return
        self._count("hooks")
        self._say_itself(message)
        self._failed = None  # it goes on, or this hook says how it ended
        if not message.get("agent_id"):  # a subagent may have a mode of its own
            self._note_mode(message.get("permission_mode"), "hook")
        self._follow(str(message.get("transcript_path") or ""))
        if event == "PermissionRequest":
            signals = self._calls.ask(message, exchange)
        elif event == "Stop":
            signals = self._stop(message, exchange)
        else:
            handle = self._handlers.get(event)
            signals = iter(()) if handle is None else handle(message)
        self._say_all(signals, "hook")
        if event not in ("PermissionRequest", "Stop"):
            exchange.reply()

    def _is_ours(self, message: Mapping[str, Any]) -> bool:
        """Return whether a message is of the session's conversation. A nested `claude` in a tool has another one. After
        /clear, the next one that starts is the session's, and so is one that the agent's own entry names."""
        found = message.get("session_id")
        if found == self._conversation:
            return True
        if not isinstance(found, str) or not self._agent.is_conversation(found):
            return False
        if message.get("hook_event_name") == "SessionStart":
            is_new = self._conversation is None or self._is_over or message.get("source") in _NEW_CONVERSATION
        else:
            entry = self._look_at_entry()
            is_new = entry is not None and entry.conversation_id == found
            if is_new:
                self._say(Conversation(conversation_id=found), "registry")
        if is_new:
            self._conversation, self._is_over = found, False
        return is_new

    def _follow(self, path: str) -> None:
        if path and (self._transcript is None or self._transcript.path != path):
            self._transcript = Tail(path, self._folder)

    def _lose(self, exchange: Exchange) -> None:
        super()._lose(exchange)
        with self._lock:
            self._calls.lose(exchange, time.monotonic())
            self._hurry_until = time.monotonic() + 1.0

    def _tick(self) -> float | None:
        with self._lock:
            now = time.monotonic()
            waits = (self._look_by_turns(now), self._look_at_entry_if_due(now))
            return min((each for each in waits if each is not None), default=None)

    def _look_by_turns(self, now: float) -> float | None:
        """Look at the transcript, and at requests whose connection was closed, if it is time to."""
        if self._turn is not None or self._calls.has_questions():
            self._look_until = now + _LOOK_ON_SEC
        if now >= self._look_until and not self._forget:
            return None
        pause = _LOOK_NOW_SEC if now < self._hurry_until else _LOOK_SEC
        if now >= self._looked + pause:
            self._looked = now
            self._look()
            self._say_all(self._calls.ask_changed(), "hook")
            self._settle_lost(now)
            self._end_failed(now)
            self._forget_ended(now)
        return max(0.0, self._looked + pause - now)

    def _look_at_entry_if_due(self, now: float) -> float | None:
        if self._own is None:
            return None
        is_soon = self._start is not None and now < self._started + _START_SEC
        is_waiting = self._entry is not None and self._entry.status == WAITING
        is_at_work = is_soon or is_waiting or self._turn is not None or self._calls.has_questions()
        is_at_work = is_at_work or now < self._ended + _LOOK_ON_SEC
        pause = _LOOK_AT_ENTRY_SEC if is_at_work else _LOOK_AT_ENTRY_IDLE_SEC
        passed = now - self._looked_at_entry
        if passed >= pause:
            self._looked_at_entry = now
            if self._look_at_entry() is None:
                self._check_start(min(passed, 2 * pause))  # longer, this process stood still, and the agent with it
        return max(0.0, self._looked_at_entry + pause - now)

    def _look_at_entry(self) -> Entry | None:
        """Report what is new in the agent's own entry, and return it."""
        if self._own is None:
            return None
        before, self._entry = self._entry, self._own.look(self._conversation)
        self._say_all(signals_of(before, self._entry), "registry")
        if self._entry is not None:
            self._start = None
        return self._entry

    def _check_start(self, passed: float) -> None:
        """Report a dialog before the work: a release that writes its entry at its start has written none, and no hook
        came either."""
        if self._start is None or self._own is None or self._counts.get("hooks"):
            return
        if self._start.is_held_up(passed):
            self._start = None
            if not self._has_blockers and writes_entries(self._own.pids):
                self._say(Blocked(by=self._agent.name, what_to_do=_START_DIALOG), "registry")

    def _look(self) -> None:
        for failed in read_errors(self._errors):
            if self._turn is not None:
                self._say(Retrying(number=failed.number, most=failed.most, why=failed.why), "log")
        by_transcript = bool(self.uncounted)
        for line in read_transcript(self._transcript, with_usage=by_transcript) if self._transcript is not None else ():
            self._say_all(self._of_transcript(line), "transcript")

    def _settle_lost(self, now: float) -> None:
        for settled, turn in self._calls.settle_lost(now):
            self._say(settled, "hook")
            if turn is not None and turn == self._turn:
                self._say_all(self._interrupt(turn), "hook")

    def _end_failed(self, now: float) -> None:
        """End a turn that failed without a hook: when the context is full and there is nothing to compact."""
        if self._failed is None or now < self._failed[2]:
            return
        (turn, why, _), self._failed = self._failed, None
        if turn == self._turn:
            self._turn = None
            self._say_all(self._calls.interrupt(turn, frozenset(self._background)), "transcript")
            self._say(TurnEnded(turn=turn, how=FAILED, why=why), "transcript")

    def _forget_ended(self, now: float) -> None:
        ended = [task for task, at in self._forget.items() if now >= at]
        for task in ended:
            del self._forget[task]
            if self._background.pop(task, None) is not None:
                self._say(self._background_work(), "hook")

    # -- hooks ----------------------------------------------------------------------------------------------------

    def _prompt(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        prompt = str(message.get("prompt") or "")
        self._turn = str(message["prompt_id"])
        carries_on = self._is_limited and (self._carries_on or prompt.startswith(_CARRIES_ON_TEXT))
        self._is_limited = self._carries_on = False
        if carries_on:
            yield TurnStarted(turn=self._turn, origin=CARRIED_ON, prompt=prompt)
            return
        if not prompt.startswith("<task-notification>"):
            yield TurnStarted(turn=self._turn, origin=PROMPT, prompt=prompt)
            return
        yield TurnStarted(turn=self._turn, origin=BACKGROUND, prompt=prompt)
        for task in _TASK.findall(prompt):
            self._background.pop(task, None)
            self._forget.pop(task, None)
        yield self._background_work()

    def _stop(self, message: Mapping[str, Any], exchange: Exchange) -> Iterator[Signal]:
        turn = str(message.get("prompt_id") or "")
        self._background = {each.task_id: each for each in map(_task, message.get("background_tasks") or ())}
        self._turn = None
        if turn in self._held:
            self._held[turn].reply()
        self._held[turn] = exchange
        yield self._background_work()
        yield TurnEnded(turn=turn, message=str(message.get("last_assistant_message") or ""), held=True)

    def _stop_failure(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        # `error` is a category, such as "unknown"; the last message is readable.
        why = str(message.get("last_assistant_message") or message.get("error") or "the model service failed")
        turn, self._turn = str(message.get("prompt_id") or ""), None
        until_ns = reset_time(why, time.time_ns())
        if until_ns is not None and message.get("error") in ("rate_limit", "unknown"):
            self._is_limited = True
            yield Limited(until_ns=until_ns, why=why)
        yield from self._calls.interrupt(turn, frozenset(self._background))
        yield TurnEnded(turn=turn, how=FAILED, why=why)

    def _tool_ended(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        started = _started_task(message)
        if started is not None:
            self._background[started.task_id] = started
            yield self._background_work()
        yield from self._calls.end(str(message["tool_use_id"]), ok=True)

    def _tool_failed(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self._calls.end(str(message["tool_use_id"]), ok=False, why=str(message.get("error") or ""))

    def _subagent_started(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        yield Said(text=f"a subagent started: {message.get('agent_type')}")

    def _subagent_stopped(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """A turn about its end follows for one in the background: until then it counts."""
        task = str(message.get("agent_id") or "")
        if self.uncounted:
            for used in read_usage(str(message.get("agent_transcript_path") or ""), self._folder):
                yield claude_usage(used.message_id, used.usage, MESSAGE_NAMES, model=used.model, of_turn=False)
        if task in self._background:
            self._forget[task] = time.monotonic() + _FORGET_SEC
        yield Said(text="a subagent ended" if message.get("agent_type") else "it compacts the conversation")

    def _session_started(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        yield Conversation(conversation_id=str(message["session_id"]))

    def _session_ended(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Note the end of the conversation. Other reasons than these mean that the program ends, which the runner sees
        by itself, a moment later."""
        reason = str(message.get("reason") or "")
        if reason not in ("clear", "resume"):
            yield Said(text=f"the program ends: {reason}", is_work=False)
            if reason == OUTSIDE:
                yield Conversation(conversation_id=str(message["session_id"]), ended=reason)
            return
        self._is_over, turn, self._turn = True, self._turn, None
        yield Conversation(conversation_id=str(message["session_id"]), ended=reason)
        if turn is not None:
            yield from self._calls.interrupt(turn, frozenset(self._background))

    def _compacts(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        done = message.get("hook_event_name") == "PostCompact"
        yield Said(text="it compacted the conversation" if done else "it compacts the conversation")

    def _notification(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Note that a dialog is open, unless the agent's own entry says otherwise: the notification comes 6 seconds
        later, and the dialog may be closed by then."""
        kind, text = message.get("notification_type"), str(message.get("message") or "")
        self._carries_on = self._carries_on or kind == _CARRIES_ON
        if kind in _CALLS:
            entry = self._look_at_entry()
            if entry is None or entry.status in ("", WAITING):
                yield Attention(what=text or str(kind))
        yield Said(text=text, is_work=False)

    def _denied(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        """Note that the agent's own check, of its auto mode, has denied a tool call. The agent goes on."""
        reason = str(message.get("reason") or "")
        what = describe_call(str(message.get("tool_name") or ""), message.get("tool_input"))
        yield Noted(fact="denied by its own check", value=one_line(f"{what}: {reason}", _FACT_CHARS))
        yield from self._calls.end(str(message["tool_use_id"]), ok=False, why=reason, ran=False)

    def _note_mode(self, mode: object, source: str) -> None:
        if isinstance(mode, str) and mode and mode != self._mode:
            self._mode = mode
            self._say(Noted(fact="permission mode", value=one_line(mode, _FACT_CHARS)), source)

    def _background_work(self) -> BackgroundWork:
        return BackgroundWork(tasks=tuple(self._background.values()))

    def _interrupt(self, turn: str) -> Iterator[Signal]:
        yield from self._calls.interrupt(turn, frozenset(self._background))
        if turn == self._turn:
            self._turn = None
        yield TurnEnded(turn=turn, how=INTERRUPTED, why="interrupted at the keyboard")

    # -- transcript and telemetry -----------------------------------------------------------------------------------

    def _of_transcript(self, line: Line) -> Iterator[Signal]:
        if isinstance(line, Used):
            if self.uncounted:
                yield claude_usage(line.message_id, line.usage, MESSAGE_NAMES, model=line.model)
        elif isinstance(line, Interrupted):
            yield from self._interrupt(line.turn or self._turn or "")
        elif isinstance(line, Rejected):
            yield from self._calls.end(line.tool_id, ok=False, why="refused at the keyboard", ran=False)
        else:
            if self._turn is not None:
                self._failed = self._turn, line.why, time.monotonic() + _STOP_FAILURE_SEC
            yield Said(text=line.why, is_work=False)

    def _receive_telemetry(self, body: bytes) -> None:
        for event in read_events(body):
            if event.conversation_id != self._conversation:  # guard: telemetry-of-session
                self._count("telemetry of another conversation")
                continue
            self._telemetry = "received"
            if event.about.get("decision") == "reject" or event.about.get("success") in ("false", False):
                self._hurry_until = time.monotonic() + 1.0
            self._count("telemetry events")
            try:
                self._say_all(self._of_event(event), "telemetry")
            except UNEXPECTED_SHAPE:
                self._count("of an unknown form")  # the other events of the message count

    def _of_event(self, event: Event) -> Iterator[Signal]:
        about = event.about
        if event.name == "tool_decision":
            decision = ALLOW if about.get("decision") == "accept" else DENY
            yield from self._calls.decide(str(about["tool_use_id"]), decision, str(about.get("source") or ""))
        elif event.name == "tool_result" and about.get("success") in ("false", False):
            why, ran = str(about.get("error_type") or ""), about.get("decision_type") != "reject"
            yield from self._calls.end(str(about["tool_use_id"]), ok=False, why=why, ran=ran)
        elif event.name == "permission_mode_changed":
            self._note_mode(about.get("to_mode"), "telemetry")
        elif event.name == "api_request":
            plain, cached, written = (number(about.get(f"{each}_tokens")) for each in _TOKENS)
            yield Usage(
                message_id=str(about.get("request_id") or f"{event.turn} {about['event.sequence']}"),
                input_tokens=plain + cached + written,
                cached_tokens=cached,
                cache_write_tokens=written,
                output_tokens=number(about.get("output_tokens")),
                cost_usd=cost(about.get("cost_usd")),
                model=str(about.get("model") or ""),
                of_turn=str(about.get("query_source") or "").startswith(("repl_main_thread", "agent:")),
            )
        elif event.name == "api_error" and event.turn == self._turn:  # after the last try, or one that is not repeated
            why = f"{about.get('status_code') or ''} {about.get('error') or ''}".strip()
            yield Retrying(number=number(about.get("attempt")), most=0, why=why or "no answer")


def _task(task: Mapping[str, Any]) -> BackgroundTask:
    what = str(task.get("command") or task.get("description") or "")
    return BackgroundTask(task_id=str(task["id"]), kind=str(task.get("type") or "shell"), what=what)


def _started_task(message: Mapping[str, Any]) -> BackgroundTask | None:
    """Return the background work that a tool call has started; None for any other call."""
    response, given = message.get("tool_response"), message.get("tool_input")
    if not isinstance(response, dict) or not isinstance(given, dict):
        return None
    what = str(given.get("command") or given.get("description") or "")
    if response.get("backgroundTaskId"):
        return BackgroundTask(task_id=str(response["backgroundTaskId"]), kind="shell", what=what)
    if response.get("agentId") and (response.get("isAsync") or response.get("status") == "async_launched"):
        return BackgroundTask(task_id=str(response["agentId"]), kind="subagent", what=what)
    return None
