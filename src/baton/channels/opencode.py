"""Talk with opencode's server by http and its stream of events. The pane shows `opencode attach`; headless, lines.

The server belongs to the runner. Prompts and answers are requests to it, sent by a thread of their own; its events are
read by another. What is pending is state of the server: after a lost connection it is read again.
"""

from __future__ import annotations

import os
import time
from queue import SimpleQueue
from threading import Lock, Thread

from baton.adapters.contract import Mode
from baton.channels.choices import objects
from baton.channels.contract import Channel, Setup
from baton.channels.http_client import HttpFailed
from baton.channels.opencode_events import OpencodeEvents
from baton.channels.opencode_server import OpencodeProcess
from baton.channels.pipes import Writer
from baton.core.clock import Clock, SystemClock
from baton.core.request import Answer
from baton.core.signal import ALLOW, FAILED, Conversation, Heard, Settled, Stated, TurnEnded
from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from baton.adapters.contract import Task
    from baton.adapters.opencode import Opencode
    from baton.channels.contract import Hear
    from baton.channels.http_client import EventStream, Server
    from baton.core.signal import Signal

SOURCE = "server"
LOG = "opencode-server.log"
_BEGIN_SEC = 45.0  # on a busy machine, and with a second start
_CALL_SEC = 30.0
_LOOK_SEC = 0.25  # for the end of the server
_SILENCE_SEC = 35.0  # without a heartbeat, which comes every 10 s
_AGAIN_SEC = 0.5
_END_SEC = 0.2  # a server that ends closes its connections first: its end is the better reason
_MESSAGES = 100  # that are read again after a lost connection
_TRIES = 20
_JOIN_SEC = 5.0
_SCREEN_SEC = 20.0
_A_PROGRAM = "a program of the agent"


class OpencodeChannel(Channel):
    stays = True

    def __init__(self, agent: Opencode, task: Task, *, clock: Clock | None = None) -> None:
        self._agent = agent
        self._task = task
        self._clock = clock or SystemClock()
        self._is_shown = task.mode is Mode.INTERACTIVE  # a person can answer in the pane
        self._for_folder = agent.folder_variables(task)
        self._hear: Hear = lambda _heard: None
        self._process: OpencodeProcess | None = None
        self._events: OpencodeEvents | None = None
        self._stream: EventStream | None = None
        self._lock = Lock()  # of what is known of the session
        self._requests: SimpleQueue[tuple[str, Any, bool] | None] = SimpleQueue()
        self._threads = 0
        self._counting = Lock()
        self._text: list[str] = []
        self._input: Writer | None = None
        self._closing = False
        self._lost: str | None = None
        self._reconnected = 0
        self._failed = ""
        self._answered: str | None = None  # why the work ends: a program of the agent has answered a question

    # -- to the runner -----------------------------------------------------------------------------------------------

    def open(self, hear: Hear) -> Setup:
        self._hear = hear
        deadline = time.monotonic() + _BEGIN_SEC
        try:
            server = self._start(deadline)
            self._begin_session(server, deadline)
        except BaseException:
            self.close()
            raise
        assert self._process is not None
        assert self._events is not None
        for target in (self._read_events, self._send_requests):
            self._threads += 1
            Thread(target=self._run, args=(target,), daemon=True).start()
        if self._task.prompt is not None:
            self._prompt(self._task.prompt)
        argv = self._agent.attach_command(server.url, self._events.session, self._task)
        return Setup(argv=argv, environment=self._process.variables(self._task.environment) | self._for_folder)

    def attach(self, stdin: int | None, stdout: int | None) -> None:
        if stdin is not None:
            self._input = Writer(stdin)

    def say(self, text: str) -> bool:
        with self._lock:
            if self._events is None or self._lost is not None:
                return False
            self._events.sent_back = text
        self._prompt(text)
        return True

    def answer(self, key: str, answer: Answer) -> bool:
        with self._lock:
            question = (
                None
                if self._events is None or self._lost is not None
                else self._events.questions.take(key, answer.answer)
            )
        if question is None:
            return False
        self._requests.put((*question.reply(answer), True))
        return True

    def release(self, key: str) -> None:
        if self._is_shown:
            return
        self.answer(key, Answer(answer="deny", by="", via="agent"))  # no screen is there on which a person could answer

    def finish(self) -> None:
        if self._input is not None:
            self._input.end()

    @property
    def is_over(self) -> bool:
        return self._lost is not None

    def take_text(self) -> str:
        with self._lock:
            text, self._text = "".join(self._text), []
        return text

    def facts(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        if self._for_folder:
            found["the folder's own configuration of opencode"] = "not read"
        if self._reconnected:
            found["connections that were lost"] = self._reconnected
        if self._failed:
            found["last failed request"] = self._failed
        return found

    def close(self) -> None:
        self._closing = True
        self._requests.put(None)
        if self._process is not None:
            self._process.end()
        if self._input is not None:
            self._input.close()
        deadline = time.monotonic() + _JOIN_SEC
        while self._threads and time.monotonic() < deadline:
            time.sleep(0.01)

    # -- the beginning -----------------------------------------------------------------------------------------------

    def _start(self, deadline: float) -> Server:
        """Start the server. If the user has configured permissions otherwise than was guessed, start it again: those
        that baton adds never replace any of the user's."""
        asks = self._agent.adds_questions(self._task)
        server = self._start_once(deadline, asks=asks)
        configured = self._call(server, "GET", "/config", within_sec=deadline - time.monotonic())
        is_known = isinstance(configured, dict) and not self._task.yolo
        is_right = not is_known or self._agent.sets_permissions(configured, self._task) is not asks
        if is_right:  # guard: users-permissions
            return server
        assert self._process is not None
        self._process.end()
        return self._start_once(deadline, asks=not asks)

    def _start_once(self, deadline: float, *, asks: bool) -> Server:
        environment = {**self._task.environment, **self._for_folder, **self._agent.variables(asks=asks)}
        log = os.path.join(self._task.folder, LOG)
        try:
            self._process = OpencodeProcess(
                self._agent.serve_command(), workdir=self._task.workdir, environment=environment, log=log
            )
        except OSError as error:
            raise self._agent.unusable(f"could not be started: {error.strerror}") from None
        why = self._process.wait_until_it_listens(deadline)
        if why is not None or self._process.server is None:
            raise self._agent.unusable(f"did not begin: {why}")
        return self._process.server

    def _begin_session(self, server: Server, deadline: float) -> None:
        """Listen, then create the session or continue the known one."""
        try:
            self._stream = server.open_events("/event", within_sec=min(deadline - time.monotonic(), _CALL_SEC))
        except HttpFailed as error:
            raise self._agent.unusable(f"did not begin: {error}") from None
        known, before = self._task.conversation_id if self._task.resume else None, set()
        if known is not None:
            path = f"/session/{known}/message?limit={_MESSAGES}"
            found = self._call(server, "GET", path, within_sec=deadline - time.monotonic())
            before = {str(each["info"]["id"]) for each in objects(found) if isinstance(each.get("info"), dict)}
        else:
            made = self._call(server, "POST", "/session", {}, within_sec=deadline - time.monotonic())
            known = str(made.get("id")) if isinstance(made, dict) else ""
            release = made.get("version") if isinstance(made, dict) else None
            if isinstance(release, str):
                self._agent.check_release(release)
                self._say([Stated(release=release)])
        if not self._agent.is_conversation(known):
            raise self._agent.unusable("created no session")
        self._events = OpencodeEvents(known, self._clock, before=before, show=self._keep)
        self._say([Conversation(conversation_id=known)])

    def _call(self, server: Server, method: str, path: str, body: Any = None, *, within_sec: float) -> Any:
        try:
            return server.call(method, path, body, within_sec=min(within_sec, _CALL_SEC))
        except HttpFailed as error:
            if error.status == 404 and self._task.resume:
                known = self._task.conversation_id
                raise self._agent.unusable(
                    f"has no conversation {known} for this folder; create a new session"
                ) from None
            other = ", as other major versions than 1 answer" if error.status == 200 else ""
            raise self._agent.unusable(f"did not begin: {error}{other}") from None

    def _prompt(self, text: str) -> None:
        assert self._events is not None
        with self._lock:
            self._events.sent = text
        path = f"/session/{self._events.session}/prompt_async"
        self._requests.put((path, {"parts": [{"type": "text", "text": text}]}, False))

    # -- threads -----------------------------------------------------------------------------------------------------

    def _run(self, target: Any) -> None:
        try:
            target()
        finally:
            if not self._closing and self._lost is None:  # it failed: the other one alone would wait for ever
                self._lose("baton can no longer talk with opencode's server")
            with self._counting:
                self._threads -= 1

    def _say(self, signals: Iterable[Signal]) -> None:
        for signal in () if self._closing else signals:
            self._hear(Heard(signal=signal, source=SOURCE, at_ns=self._clock.monotonic_ns()))

    def _read_events(self) -> None:
        heard_at = time.monotonic()
        while not self._closing:
            events = None if self._stream is None else self._stream.read(_LOOK_SEC)
            now = time.monotonic()
            if events:
                heard_at = now
            if events is None or now - heard_at > _SILENCE_SEC:
                self._connect_again()
                heard_at = time.monotonic()
            for event in events or ():
                self._handle(event)
            assert self._events is not None
            with self._lock:
                self._say(self._events.tick())
            self._check_server()
            if self._lost is not None:
                return

    def _keep(self, text: str) -> None:
        """Keep what opencode does as output, unless its own screen shows it; the caller holds the lock."""
        if not self._is_shown:
            self._text.append(text)

    def _handle(self, event: Mapping[str, Any]) -> None:
        assert self._events is not None
        with self._lock:
            found = self._events.read(event)
            if self._task.yolo:
                found = self._approve(found)
            self._say(self._judge(found))
        self._end_if_answered()

    def _judge(self, signals: list[Signal]) -> list[Signal]:
        """Return the signals, with no good end among them if a question was allowed that no one could see. A program
        that a tool has started reaches the server with the agent's own password. The caller holds the lock."""
        assert self._events is not None
        tools = self._events.questions.allowed_by_others
        if self._is_shown or not tools:  # guard: opencode-answers-itself
            return signals  # a person may have answered at the screen, by the same server
        self._answered = (
            f"{_A_PROGRAM} has answered its question ({tools[0]}) itself; without a screen, only baton answers, so the "
            "work was ended"
        )
        return [_by_program(each, self._answered) for each in signals]

    def _end_if_answered(self) -> None:
        if self._answered is not None and self._lost is None:
            self._lose(self._answered)

    def _approve(self, signals: list[Signal]) -> list[Signal]:
        """Allow what opencode asks for, as its own `--auto` does: what its configuration denies stays denied."""
        assert self._events is not None
        left = []
        for signal in signals:
            question = self._events.questions.open.get(getattr(signal, "key", ""))
            if question is None or question.is_choice or question.asked != signal:
                left.append(signal)
                continue
            self._events.questions.take(question.asked.key, ALLOW)
            self._requests.put((*question.reply(Answer(answer=ALLOW, by="", via="agent")), True))
        return left

    def _check_server(self) -> None:
        if self._process is not None and not self._process.is_alive() and not self._closing:
            self._lose(self._process.why_ended())

    def _lose(self, why: str) -> None:
        assert self._events is not None
        with self._lock:
            self._say(self._events.lose(why))
            self._lost = why
        self.finish()

    def _connect_again(self) -> None:
        """Open the stream again, and read what has happened meanwhile."""
        assert self._process is not None
        assert self._events is not None
        server = self._process.server
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if server is None or self._closing or not self._process.is_alive():
            return
        try:
            self._stream = server.open_events("/event", within_sec=_CALL_SEC)
            session = self._events.session
            paths = (f"/session/{session}/message?limit={_MESSAGES}", "/session/status", "/permission", "/question")
            messages, status, permissions, choices = (server.call("GET", each, within_sec=_CALL_SEC) for each in paths)
        except HttpFailed as error:
            self._failed = str(error)
            time.sleep(_AGAIN_SEC)
            return
        self._reconnected += 1
        with self._lock:
            found = self._events.compare(
                objects(messages), status if isinstance(status, dict) else {}, objects(permissions), objects(choices)
            )
            self._say(self._judge(self._approve(found) if self._task.yolo else found))
        self._end_if_answered()

    def _wait_for_screen(self) -> None:
        """Wait until opencode's screen is connected to the server: it shows no question that was asked before."""
        assert self._process is not None
        deadline = time.monotonic() + _SCREEN_SEC
        while time.monotonic() < deadline and not self._closing and self._lost is None:
            clients = self._process.count_clients()
            if clients is None or clients > 1:  # one is the stream of events of this channel
                return
            time.sleep(_LOOK_SEC)

    def _send_requests(self) -> None:
        """Send prompts and answers, in order. An answer that did not arrive is sent again: opencode takes one alone."""
        if self._is_shown:
            self._wait_for_screen()
        while True:
            request = self._requests.get()
            if request is None:
                return
            path, body, may_repeat = request
            for _ in range(_TRIES if may_repeat else 1):
                try:
                    self._post(path, body)
                    break
                except HttpFailed as error:
                    self._failed = str(error)
                    if error.status == 404 or self._closing or self._lost is not None:
                        break
                    if not may_repeat:
                        if self._process is not None and self._process.wait(_END_SEC) is None:
                            self._refuse_prompt(str(error))
                        break
                    time.sleep(_AGAIN_SEC)

    def _post(self, path: str, body: Any) -> None:
        assert self._process is not None
        if self._process.server is None or not self._process.is_alive():
            raise HttpFailed("opencode's server has ended")
        self._process.server.call("POST", path, body, within_sec=_CALL_SEC)

    def _refuse_prompt(self, why: str) -> None:
        """Fail the turn of a prompt that the server did not take."""
        assert self._events is not None
        error = {"name": "Refused", "data": {"message": f"opencode did not take the prompt: {why}"}}
        about = {"sessionID": self._events.session, "error": error}
        self._handle({"type": "session.error", "properties": about})


def _by_program(signal: Signal, why: str) -> Signal:
    """Return what a signal means if a program of the agent has answered a question."""
    if isinstance(signal, Settled) and signal.decision == ALLOW:
        return signal.replace(by=_A_PROGRAM)
    return signal.replace(how=FAILED, why=why, message=None) if isinstance(signal, TurnEnded) else signal
