"""Talk with Codex on the terminal: the runner owns its app-server, and the pane shows it (`codex --remote`)."""

from __future__ import annotations

import json
import os
import select
import time
from socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET, socket
from struct import unpack
from threading import Lock, Thread

from baton.adapters.codex import SERVER_LOG, Codex
from baton.channels.codex_protocol import Protocol
from baton.channels.contract import Channel, Setup
from baton.channels.forward import LONGEST_SOCKET_PATH
from baton.channels.server_process import ServerProcess
from baton.channels.shown_work import ShownWork
from baton.channels.websocket import WebSocket, WebSocketError
from baton.core.clock import Clock, SystemClock
from baton.core.errors import AgentUnusable
from baton.core.fields import json_object
from baton.core.signal import Heard
from baton.core.value import Any
from baton.storage.files import remove_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from baton.adapters.contract import Agent, Task
    from baton.channels.contract import Hear
    from baton.core.request import Answer
    from baton.core.signal import Signal

SOURCE = "server"
_SOCKET = "codex.sock"
_BEGIN_SEC = 30.0
_LOOK_SEC = 0.25
_CONNECT_SEC = 5.0  # for a new connection to a server that lives
_END_SEC = 0.2  # a server that ends closes its connections first


class CodexServer(Channel):
    """A thread of its own reads and writes the connection, from the end of `open` to `close`."""

    def __init__(self, agent: Agent, task: Task, *, clock: Clock | None = None) -> None:
        assert isinstance(agent, Codex)
        self._agent, self._task = agent, task
        self._clock = clock or SystemClock()
        self._protocol = Protocol(agent, task, self._send, self._clock)
        self._hear: Hear = lambda _heard: None
        self._lock = Lock()
        self._listener: Thread | None = None
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_closing = False
        self._server: ServerProcess | None = None
        self._connection: WebSocket | None = None
        self._folder: int | None = None  # a descriptor of the session's folder, for a short path to the socket
        self._path = ""
        self._connections = 0
        self._lost = ""
        self._work = ShownWork()

    # -- beginning ---------------------------------------------------------------------------------------------------

    def open(self, hear: Hear) -> Setup:
        self._hear = hear
        self._path = self._socket_path()
        address = f"unix://{self._path}"
        try:
            self._server = ServerProcess(
                "Codex's server",
                self._agent.server(self._task, address),
                workdir=self._task.workdir,
                environment=self._task.environment,
                log=os.path.join(self._task.folder, SERVER_LOG),
            )
        except OSError as error:
            raise self._agent.unusable(f"could not be started: {error.strerror}") from None
        deadline = time.monotonic() + _BEGIN_SEC
        self._connect(deadline)
        with self._lock:
            self._protocol.begin()
        while not self._protocol.is_ready:
            if self._protocol.failure is not None:
                raise self._agent.unusable(f"did not begin: {self._protocol.failure}")
            if time.monotonic() >= deadline:
                raise self._agent.unusable(f"did not begin within {_BEGIN_SEC:g} s")
            try:
                self._step(_LOOK_SEC)
            except OSError as error:
                why = error if self._server.wait(_END_SEC) is None else self._server.why_ended()
                raise self._agent.unusable(f"did not begin: {why}") from None
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()
        return Setup(argv=tuple(self._agent.screen(self._task, address, self._protocol.thread)))

    def _socket_path(self) -> str:
        """Return a path for the socket that is short enough for the kernel. Codex makes it a link to its own private
        folder."""
        path = os.path.join(self._task.folder, _SOCKET)
        remove_file(path)
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            return path
        self._folder = os.open(self._task.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/{os.getpid()}/fd/{self._folder}/{_SOCKET}"

    def _connect(self, deadline: float) -> None:
        """Connect to the server, which may not listen yet."""
        assert self._server is not None
        while True:
            connection = socket(AF_UNIX, SOCK_STREAM)
            try:
                connection.connect(self._path)
                _check_peer(connection)
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
            except OSError as error:
                connection.close()
                raise self._agent.unusable(f"cannot be reached by {self._path}: {error}") from None
            else:
                self._connections += 1
                with self._lock:
                    self._connection = WebSocket(connection)
                return
            if not self._server.is_alive():
                raise self._agent.unusable(f"did not begin: {self._server.why_ended()}")
            if self._is_closing or time.monotonic() >= deadline:
                raise self._agent.unusable("did not begin: its server opened no socket")
            time.sleep(0.01)

    def take_text(self) -> str:
        with self._lock:
            return self._work.take()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._step(_LOOK_SEC)
                except OSError:
                    if not self._connect_again():
                        return
        finally:
            if not self._is_closing and not self._lost:  # it failed: nothing else would say that the turn is over
                self._lose("baton can no longer talk with Codex's server")

    def _step(self, wait_sec: float) -> None:
        """Read and write what is there, or wait for it."""
        connection = self._connection
        assert connection is not None
        fd = connection.fileno()
        readable, _, _ = select.select([fd, self._woken], [fd] if connection.waits else [], [], wait_sec)
        if self._woken in readable:
            os.read(self._woken, 4096)
        with self._lock:
            connection.flush()
            if fd in readable:
                for text in connection.receive():
                    self._say(self._protocol.receive(json_object(text)))
            self._say(self._protocol.questions.tick())

    def _connect_again(self) -> bool:
        """Connect to a server that closed the connection, and learn what happened since. Return False if it is gone."""
        if self._is_closing:
            return False
        assert self._server is not None
        if self._connection is not None:
            self._connection.close()
        if self._server.wait(_END_SEC) is None:
            try:
                self._connect(time.monotonic() + _CONNECT_SEC)
            except AgentUnusable as error:
                why = str(error)
            else:
                with self._lock:
                    self._protocol.begin()
                return True
        if not self._server.is_alive():
            why = self._server.why_ended()
        self._lose(why)
        return False

    def _lose(self, why: str) -> None:
        with self._lock:
            self._say(self._protocol.lose(why))
        self._lost = why

    def _say(self, signals: Iterable[Signal]) -> None:
        for each in signals:
            self._work.add(each)
            self._hear(Heard(signal=each, source=SOURCE, at_ns=self._clock.monotonic_ns()))

    def _send(self, message: Mapping[str, Any]) -> bool:
        """Write a message; the caller holds the lock."""
        if self._connection is None or self._lost:
            return False
        try:
            self._connection.send(json.dumps(message))
        except OSError:
            return False
        if self._connection.waits:
            self._wake_up()
        return True

    def _wake_up(self) -> None:
        try:
            os.write(self._wake, b"\0")
        except BlockingIOError:
            return  # it is awake

    # -- for the runner ----------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return bool(self._lost)

    def say(self, text: str) -> bool:
        with self._lock:
            return self._protocol.say(text)

    def end_turn(self, turn: str, send_back: str | None) -> bool:
        if send_back is None:
            return True
        with self._lock:
            return self._protocol.go_on(turn, send_back)

    def answer(self, key: str, answer: Answer) -> bool:
        with self._lock:
            return self._protocol.answer(key, answer)

    def release(self, key: str) -> None:
        with self._lock:
            self._protocol.questions.release(key)

    def facts(self) -> Mapping[str, Any]:
        again = {"connections": self._connections} if self._connections > 1 else {}
        return {**again, **self._protocol.facts()}

    def close(self) -> None:
        self._is_closing = True
        self._wake_up()
        if self._listener is not None:
            self._listener.join()
        if self._connection is not None:
            self._connection.close()
        if self._server is not None:
            self._server.end()
        os.close(self._woken)
        os.close(self._wake)
        remove_file(self._path)
        if self._folder is not None:
            os.close(self._folder)


def _check_peer(connection: socket) -> None:
    """Raise WebSocketError if another user listens there."""
    _, user, _ = unpack("3i", connection.getsockopt(SOL_SOCKET, SO_PEERCRED, 12))
    if user != os.getuid():  # guard: codex-socket-owner
        raise WebSocketError("another user listens there")
