"""Read the messages of Codex's app-server as signals, and write requests and answers to it.

The server sends each message of a conversation, and each question, to every client: to the runner and to the program
on the pane. Messages of other conversations are ignored: Codex makes titles in hidden ones.
"""

from __future__ import annotations

import os
import re

from baton.adapters.codex import is_trusted, may_write
from baton.adapters.contract import Mode
from baton.channels import codex_calls as calls
from baton.channels.codex_questions import Questions
from baton.core.clock import SECOND_NS
from baton.core.fields import UNEXPECTED_SHAPE
from baton.core.signal import (
    DENY,
    FAILED,
    INTERRUPTED,
    WELL,
    BackgroundTask,
    BackgroundWork,
    Conversation,
    Retrying,
    Said,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    stated,
)
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from baton.adapters.contract import Agent, Task
    from baton.core.clock import Clock
    from baton.core.request import Answer
    from baton.core.signal import Signal

    Reader = Callable[[Mapping[str, Any]], Iterator[Signal]]

_ACCOUNT = "account"  # the id of a request
_CLIENT = {"name": "baton", "title": "baton", "version": "1"}
_RELEASE = re.compile(r"[^/ ]+/(\S+)")  # the name of the client, and Codex's release
_TRIES = re.compile(r"(\d+)/(\d+)")
_HOW = {"completed": WELL, "interrupted": INTERRUPTED}
_DELTA_EVERY_NS = SECOND_NS
_DEFAULT_POLICY = "on-request"  # Codex's own
_LISTED = 3  # turns that may have been missed
_MAX_ENDED = 100

# Which method reads which message.
_READERS = {
    "turn/started": "_turn_started",
    "turn/completed": "_turn_completed",
    "item/started": "_item_started",
    "item/completed": "_item_completed",
    "error": "_error",
    "thread/tokenUsage/updated": "_usage",
    "item/commandExecution/terminalInteraction": "_typed",
}


class _Turn:
    """A turn that is open. `name` is the one by which the runner knows it. `announced`: its prompt is known."""

    def __init__(self, turn_id: str, name: str) -> None:
        self.turn_id, self.name = turn_id, name
        self.announced = False
        self.error = ""
        self.message: str | None = None
        self.refused: set[str] = set()


class Protocol:
    """One conversation. `send` writes a message to the server and returns whether that was possible.

    `begin` introduces the client; with the answers to its requests it begins or continues the conversation and gives
    the first prompt. Then `is_ready`, unless `failure` says why not."""

    def __init__(self, agent: Agent, task: Task, send: Callable[[Mapping[str, Any]], bool], clock: Clock) -> None:
        self._agent, self._task, self._clock = agent, task, clock
        self._send = send
        self._is_shared = task.mode is Mode.INTERACTIVE  # a person may answer, too
        self.thread = task.conversation_id if task.resume else None
        self.is_ready = False
        self.failure: str | None = None
        self.unknown = 0  # messages of an unknown form
        self._is_subscribed = False
        self._began = False  # the conversation: a new connection continues it
        self._ids = 0
        self._awaited: dict[int | str, Reader] = {}  # by the id of our request
        self._turn: _Turn | None = None
        self._said: tuple[str, str] | None = None  # name and text of a prompt whose turn is not known yet
        self._items: dict[str, Mapping[str, Any]] = {}  # open tool calls
        self.questions = Questions(send, self._items, clock, is_shared=self._is_shared)
        self._shells: dict[str, str] = {}  # that go on after their turn
        self._subagents: dict[str, str] = {}
        self._known_subagents: dict[str, str] = {}
        self._limits: Mapping[str, Any] = {}
        self._models: dict[str, str] = {}  # by conversation
        self._delta_ns = 0
        self._ended: list[str] = []  # ids of turns
        self._since_ns = clock.wall_ns() - SECOND_NS  # turns before that are of earlier sessions

    # -- to Codex ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Introduce the client, on a new connection."""
        self._awaited.clear()
        self._is_subscribed = False
        about = {"clientInfo": _CLIENT, "capabilities": {"experimentalApi": True}}
        self._request("initialize", about, self._initialized)

    def _request(self, method: str, params: Mapping[str, Any], read: Reader) -> bool:
        self._ids += 1
        self._awaited[self._ids] = read
        return self._send({"id": self._ids, "method": method, "params": params})

    def _initialized(self, result: Mapping[str, Any]) -> Iterator[Signal]:
        release = _RELEASE.match(str(result.get("userAgent") if isinstance(result, dict) else ""))
        if release is not None:
            yield from stated(release=release[1])
        self._send({"method": "initialized"})
        if self.is_ready:
            yield from self._begin_thread()
            return
        self._awaited[_ACCOUNT] = self._account_read
        self._send({"id": _ACCOUNT, "method": "account/read", "params": {}})

    def _account_read(self, result: Mapping[str, Any]) -> Iterator[Signal]:
        """Begin the conversation, if Codex has the login that its model service needs: without one, it would try again
        and again."""
        if result.get("requiresOpenaiAuth") is True and result.get("account", result) is None:
            yield from self._refused(
                "Codex is not logged in; run `codex login`, or name your own provider in config.toml"
            )
        else:
            yield from self._begin_thread()

    def _begin_thread(self) -> Iterator[Signal]:
        if self.thread is not None and (self._began or self._task.yolo):
            self._subscribe({} if self._began else self._settings())
        elif self.thread is not None:
            self._request("config/read", {}, self._settings_read)
        elif self._task.prompt is not None or not self._is_shared:
            self._request("thread/start", self._settings(), self._thread_began)
        else:
            self.is_ready = True  # the program on the pane begins the conversation
        yield from ()

    def _settings(self) -> dict[str, Any]:
        """Return the settings of a new conversation: those of the user, if Codex knows that the folder is trusted.

        It never gets a folder: it works in the one of its server. With a folder, it would note in the user's settings
        that the folder is trusted."""
        if self._task.yolo:
            return {"approvalPolicy": "never", "sandbox": "danger-full-access"}
        if not may_write(self._task.workdir, self._task.environment):  # guard: codex-trust
            return {"approvalPolicy": "on-request", "sandbox": "read-only"}
        return {}

    def _settings_read(self, result: Mapping[str, Any]) -> Iterator[Signal]:
        """Continue an earlier conversation with the permissions of a new one: Codex would keep those that it had, such
        as all of them."""
        config = result.get("config")
        settings = self._settings() or {
            "approvalPolicy": _DEFAULT_POLICY,
            "sandbox": "workspace-write" if is_trusted(self._task.workdir, self._task.environment) else "read-only",
        }
        if isinstance(config, dict) and may_write(self._task.workdir, self._task.environment):
            settings["approvalPolicy"] = config.get("approval_policy") or settings["approvalPolicy"]
            settings["sandbox"] = config.get("sandbox_mode") or settings["sandbox"]
        self._subscribe(settings)
        yield from ()

    def _subscribe(self, settings: Mapping[str, Any]) -> None:
        self._is_subscribed = True
        about = {"threadId": self.thread, "excludeTurns": True, **settings}
        self._request("thread/resume", about, self._thread_began)

    def _thread_began(self, result: Mapping[str, Any]) -> Iterator[Signal]:
        thread = str(result["thread"]["id"])
        if not self._agent.is_conversation(thread):  # it becomes an argument
            yield from self._refused("it names a conversation that is none")
            return
        self.thread, self._is_subscribed = thread, True
        self._models[thread] = str(result.get("model") or result["thread"].get("model") or "")
        yield Conversation(conversation_id=thread)
        # The policy is an object where it is set for each kind of call.
        yield from stated(mode=result.get("approvalPolicy"), model=self._models[thread])
        if self._began:
            self.questions.expect_again()
            self._request("thread/turns/list", {"threadId": self.thread, "limit": _LISTED}, self._turns_listed)
            return
        self._began = True
        if self._task.prompt is not None:
            self._start_turn(os.urandom(4).hex(), self._task.prompt)
        else:
            self.is_ready = True

    def _start_turn(self, name: str, text: str) -> bool:
        """Give Codex a prompt, and call its turn by this name."""
        self._said = (name, text)
        about = {"threadId": self.thread, "input": [{"type": "text", "text": text}]}
        return self._request("turn/start", about, self._turn_accepted)

    def _turn_accepted(self, result: Mapping[str, Any]) -> Iterator[Signal]:
        self.is_ready = True
        turn_id = str(result["turn"]["id"])
        yield from self._open_turn(turn_id)
        yield from self._announce()
        if self._said is not None:  # the prompt of a person was faster: it went into that turn
            name, self._said = self._said[0], None
            yield TurnEnded(turn=name, how=INTERRUPTED, why="another turn was open")

    def facts(self) -> dict[str, Any]:
        found = {"messages of an unknown form": self.unknown, "requests that were not asked": self.questions.declined}
        return {name: value for name, value in found.items() if value}

    def say(self, text: str) -> bool:
        """Give Codex a further prompt, if it waits for one."""
        if self._turn is not None or self._said is not None or self.thread is None or not self._is_subscribed:
            return False
        return self._start_turn(os.urandom(4).hex(), text)

    def go_on(self, turn: str, text: str) -> bool:
        """Send the agent back to a turn that has ended: what it does then belongs to that turn."""
        if self._turn is not None or self._said is not None or not self._is_subscribed:
            return False
        return self._start_turn(turn, text)

    def answer(self, key: str, answer: Answer) -> bool:
        question = self.questions.find(key)
        if question is None:
            return False
        if answer.answer == DENY and answer.reason:
            # A refusal carries no reason: the model reads it as a word of the user, before it goes on.
            about = {"threadId": question.params.get("threadId"), "expectedTurnId": question.params.get("turnId")}
            text = f"This was not allowed: {answer.reason}"
            self._request("turn/steer", about | {"input": [{"type": "text", "text": text}]}, _ignore)
        return self.questions.answer(question, answer)

    def lose(self, why: str) -> Iterator[Signal]:
        """Note that the server is gone: the turn that was open is over."""
        if self._turn is not None or self._said is not None:
            name = self._turn.name if self._turn is not None else (self._said or ("", ""))[0]
            yield from self._announce()
            self._turn = self._said = None
            yield TurnEnded(turn=name, how=FAILED, why=why)

    # -- from Codex --------------------------------------------------------------------------------------------------

    def receive(self, message: Mapping[str, Any]) -> list[Signal]:
        """Return what a message means. Codex's messages change monthly: one of another form means nothing."""
        found: list[Signal] = []
        try:
            found.extend(self._read(message))
        except UNEXPECTED_SHAPE:
            self.unknown += 1
        return found

    def _read(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        method = message.get("method")
        if method is None:
            yield from self._response(message)
            return
        params = message.get("params") or {}
        if "id" in message:
            yield from self._question(message["id"], str(method), params)
        elif method == "serverRequest/resolved":
            yield from self.questions.resolved(params["requestId"])
        elif method == "account/rateLimits/updated":
            self._limits = params["rateLimits"]
        elif method == "thread/started":
            yield from self._thread_started(params["thread"])
        elif method == "thread/status/changed":
            yield from self._thread_status(str(params["threadId"]), params["status"])
        elif method == "thread/tokenUsage/updated" and params.get("threadId") in self._known_subagents:
            yield from self._usage_of_subagent(params)
        elif params.get("threadId") == self.thread and self.thread is not None:
            name = _READERS.get(str(method))
            yield from getattr(self, name)(params) if name is not None else self._sign_of_work(str(method))

    def _question(self, request_id: Any, method: str, params: Mapping[str, Any]) -> Iterator[Signal]:
        asked = self.questions.ask(request_id, method, params, self.thread)
        if asked is not None:
            yield from self._announce() if asked.agent_ref is None else ()
            yield asked

    def _response(self, message: Mapping[str, Any]) -> Iterator[Signal]:
        read = self._awaited.pop(message["id"], None)
        if read is None:
            return
        error = message.get("error")
        if error is None:
            yield from read(message["result"])
        elif read == self._account_read:  # this release does not know the request
            yield from self._begin_thread()
        elif read == self._turn_accepted or (read != _ignore and not self.is_ready):
            yield from self._refused(str(error.get("message") or error))
        elif read == self._thread_began:
            self._is_subscribed = False
            yield from self.lose(f"its conversation cannot be followed any more: {error.get('message')}")

    def _refused(self, why: str) -> Iterator[Signal]:
        """Note that the conversation, or a turn, did not begin."""
        said, self._said = self._said, None
        if not self.is_ready:
            self.failure = why
        if not self._is_shared or self.is_ready:
            name, text = said or ("refused", self._task.prompt or "")
            yield TurnStarted(turn=name, prompt=text)
            yield TurnEnded(turn=name, how=FAILED, why=why)

    def _thread_started(self, thread: Mapping[str, Any]) -> Iterator[Signal]:
        """Follow the person at the pane into a new conversation. Hidden ones, and those of subagents, are others."""
        thread_id = str(thread["id"])
        self._models[thread_id] = str(thread.get("model") or "")
        if thread.get("parentThreadId") is not None:
            if thread["parentThreadId"] == self.thread:
                self._known_subagents[thread_id] = str(thread.get("agentNickname") or "a subagent")
            return
        is_own = thread.get("threadSource") in (None, "user") and not thread.get("ephemeral")
        if thread_id == self.thread or not is_own or not self._is_shared or not self.is_ready:
            return
        if self.thread is not None:
            yield Conversation(conversation_id=self.thread, ended="clear")
        self.thread, self._is_subscribed = thread_id, False
        self._turn = self._said = None
        self._items.clear()

    def _thread_status(self, thread_id: str, status: Mapping[str, Any]) -> Iterator[Signal]:
        is_active = status["type"] == "active"
        if thread_id in self._known_subagents:
            before = dict(self._subagents)
            if is_active:
                self._subagents[thread_id] = self._known_subagents[thread_id]
            else:
                self._subagents.pop(thread_id, None)
            if before != self._subagents:
                yield self._background()
        elif thread_id == self.thread and is_active and not self._is_subscribed and self.is_ready:
            self._began = True
            self._subscribe({})  # before its first turn, a conversation of the pane cannot be followed

    def _turns_listed(self, result: Mapping[str, Any]) -> Iterator[Signal]:
        """Learn what happened while there was no connection."""
        self.is_ready = True
        for turn in reversed(list(self._missed(result["data"]))):
            yield from self._open_turn(str(turn["id"]))
            for item in turn.get("items") or ():
                if item.get("type") == "userMessage":
                    yield from self._announce(_prompt_of(item))
            if turn["status"] != "inProgress":
                yield from self._turn_completed({"turn": turn})

    def _missed(self, turns: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the turns whose end, at least, was missed; the newest is the first."""
        for turn in turns:
            started = turn.get("startedAt")
            if turn["id"] in self._ended or (isinstance(started, int) and started * SECOND_NS < self._since_ns):
                return
            yield turn
            if self._turn is not None and self._turn.turn_id == turn["id"]:
                return

    # -- turns -------------------------------------------------------------------------------------------------------

    def _turn_started(self, params: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self._open_turn(str(params["turn"]["id"]))

    def _open_turn(self, turn_id: str) -> Iterator[Signal]:
        """Begin a turn, unless it is open or over. It is announced with its prompt, which comes in the next message."""
        if turn_id in self._ended or (self._turn is not None and self._turn.turn_id == turn_id):
            return
        if self._turn is not None:
            yield from self._end_turn(self._turn, INTERRUPTED, "another turn began")
        self._turn = _Turn(turn_id, turn_id)

    def _announce(self, prompt: str | None = None) -> Iterator[Signal]:
        turn = self._turn
        if turn is None or turn.announced:
            return
        turn.announced = True
        said = self._said
        if said is not None and prompt in (None, said[1]):
            self._said = None
            turn.name, prompt = said
        yield TurnStarted(turn=turn.name, prompt=prompt or "")

    def _turn_completed(self, params: Mapping[str, Any]) -> Iterator[Signal]:
        about = params["turn"]
        turn = self._turn
        if turn is None or turn.turn_id != about["id"]:
            return
        messages = [each.get("text") for each in about.get("items") or () if each.get("type") == "agentMessage"]
        if messages:
            turn.message = str(messages[-1])
        error = about.get("error")
        how = _HOW.get(about["status"], FAILED)
        why = turn.error
        if error is not None:
            why = calls.error_text(error, why)
            yield from calls.limit_of(error, self._limits)
        if how == WELL and why:
            how = FAILED
        yield from self._end_turn(turn, how, why if how != WELL else "")

    def _end_turn(self, turn: _Turn, how: str, why: str) -> Iterator[Signal]:
        yield from self._announce()
        self._turn = None
        self._ended = [*self._ended, turn.turn_id][-_MAX_ENDED:]
        before = len(self._shells)
        for item_id, item in list(self._items.items()):
            if how == WELL and item.get("type") == "commandExecution":
                self._shells[item_id] = calls.command_line(item)  # it goes on in the background
            else:
                del self._items[item_id]
                yield ToolEnded(tool_id=item_id, ok=False, why="the turn ended before it")
        yield from self.questions.end_turn(turn.turn_id)
        if len(self._shells) != before:
            yield self._background()
        if how == FAILED:
            why = why or "the turn failed"
        refused = tuple(sorted(turn.refused))
        message = turn.message if how == WELL else None
        yield TurnEnded(turn=turn.name, how=how, why=why, message=message, held=how == WELL, refused_tools=refused)

    def _error(self, params: Mapping[str, Any]) -> Iterator[Signal]:
        error = params.get("error")
        text = calls.error_text(error)
        if params.get("willRetry"):
            tries = _TRIES.search(str(params["error"].get("message")))
            number, most = (int(tries[1]), int(tries[2])) if tries else (0, 0)
            yield Retrying(number=number, most=most, why=text)
        elif self._turn is not None and params.get("turnId") in (None, self._turn.turn_id):
            self._turn.error = text
            yield from calls.limit_of(error, self._limits)

    def _typed(self, params: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self.questions.note_typed(str(params["itemId"]), str(params["stdin"]))
        yield Said(text="")

    def _usage(self, params: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self.questions.note_answer_of_model(str(params.get("turnId")))
        if self._turn is None or params.get("turnId") != self._turn.turn_id:
            return  # of the time before
        used = params["tokenUsage"]
        name = f"{params['turnId']}-{used['total']['totalTokens']}"
        yield calls.usage(name, used["last"], self._models.get(self.thread or "", ""))

    def _usage_of_subagent(self, params: Mapping[str, Any]) -> Iterator[Signal]:
        thread, used = str(params["threadId"]), params["tokenUsage"]
        name = f"{thread}-{used['total']['totalTokens']}"
        yield calls.usage(name, used["last"], self._models.get(thread, "")).replace(of_turn=False)

    # -- tool calls --------------------------------------------------------------------------------------------------

    def _item_started(self, params: Mapping[str, Any]) -> Iterator[Signal]:
        item = params["item"]
        if item.get("type") == "userMessage":
            yield from self._announce(_prompt_of(item))
            return
        yield from self._announce()
        name = calls.tool_name(item)
        if name is None:
            return
        self._items[str(item["id"])] = item
        turn = self._turn.name if self._turn is not None else ""
        yield ToolStarted(tool_id=str(item["id"]), name=name, call=calls.tool_call(item), turn=turn)

    def _item_completed(self, params: Mapping[str, Any]) -> Iterator[Signal]:
        item = params["item"]
        item_id, kind = str(item["id"]), item.get("type")
        if kind == "userMessage":
            yield from self._announce(_prompt_of(item))
        elif kind in ("agentMessage", "plan") and item.get("text"):
            if self._turn is not None and kind == "agentMessage":
                self._turn.message = str(item["text"])
            yield Said(text=str(item["text"]))
        elif item_id in self._shells:
            del self._shells[item_id]
            self._items.pop(item_id, None)
            yield self._background()
        elif self._items.pop(item_id, None) is not None:
            yield from self._end_call(item_id, item)
        else:
            yield Said(text="")

    def _end_call(self, item_id: str, item: Mapping[str, Any]) -> Iterator[Signal]:
        yield from self.questions.end_item(item_id, item)
        if item.get("status") == "declined" and self._turn is not None:
            self._turn.refused.add(calls.tool_name(item) or "")
        ok = item.get("status") in (None, "completed") and item.get("exitCode") in (None, 0)
        yield ToolEnded(tool_id=item_id, ok=ok, why="" if ok else str(item.get("status")))

    def _background(self) -> BackgroundWork:
        shells = (BackgroundTask(task_id=key, kind="shell", what=what) for key, what in self._shells.items())
        agents = (BackgroundTask(task_id=key, kind="subagent", what=what) for key, what in self._subagents.items())
        return BackgroundWork(tasks=(*shells, *agents))

    def _sign_of_work(self, method: str) -> Iterator[Signal]:
        """Take pieces of a message for a sign of work: a long one may take minutes."""
        now_ns = self._clock.monotonic_ns()
        is_piece = "elta" in method or method in ("turn/plan/updated", "turn/diff/updated", "thread/compacted")
        if is_piece and now_ns - self._delta_ns >= _DELTA_EVERY_NS:
            self._delta_ns = now_ns
            yield Said(text="")


def _ignore(_result: Mapping[str, Any]) -> Iterator[Signal]:
    yield from ()


def _prompt_of(item: Mapping[str, Any]) -> str:
    return "\n".join(str(part["text"]) for part in item["content"] if part.get("type") == "text")
