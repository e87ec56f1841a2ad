"""A connection that listens: paho, a persistent session under a stable name, reconnecting for ever."""

from __future__ import annotations

import fcntl
import hashlib
import os
import ssl
import sys
import threading
import time

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from baton.core.errors import BatonError, BrokerUnavailable
from baton.storage.files import make_private_dir, open_private, write_all
from baton.transport.tls import tls_context, tls_failure
from baton.wire.payload import MAX_PAYLOAD_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from baton.broker.address import Address

_MOST_LISTENERS: Final = 1000
_KEEP_ALIVE_SEC: Final = 20
_PATIENCE_SEC: Final = 5.0
_CLOSING_SEC: Final = 0.5
_FORGETTING_SEC: Final = 3.0
_MOST_BYTES: Final = 2 * 1024 * 1024  # of a packet; more than our own brokers let through
_SILENT: Final = "does not answer; check MQTT_BROKER, MQTT_PORT and MQTT_TLS"
_CLOSED: Final = "closed the connection; check MQTT_TLS, MQTT_PORT and the login"


class _Client(paho.Client):
    """A client that outlives a hostile broker. paho knows no limits of its own, so these are set inside it; a test with
    such a broker tells when another version of paho looks different there."""

    def __init__(self, client_id: str, refused: Callable[[str], None]) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False, protocol=paho.MQTTv311)
        self._refused = refused

    def _sock_recv(self, bufsize: int) -> bytes:
        """paho asks for the whole rest of a packet at once: here its length is known, and nothing is read of it yet."""
        if bufsize > _MOST_BYTES:
            self._refused(f"sent a packet of {bufsize} bytes")
            raise ConnectionError
        return super()._sock_recv(bufsize)

    def _packet_read(self) -> MQTTErrorCode:
        try:
            return super()._packet_read()
        except Exception as error:  # noqa: BLE001  whatever it stumbles over, its thread must go on
            self._refused(f"sent something that cannot be read ({type(error).__name__})")
            return MQTTErrorCode.MQTT_ERR_PROTOCOL

    def _handle_publish(self) -> MQTTErrorCode:
        """Nobody asked for QoS 2, whose messages paho would keep until they are released."""
        if self._in_packet["command"] & 0x06 == 0x04:
            self._refused("sent a message of QoS 2")
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        return super()._handle_publish()


class BrokerSession:
    """`deliver` is called from paho's thread with the topic and the payload of each message, again while it says
    False: there is no room yet. A payload beyond the limit comes cut off: it is refused for its size anyway."""

    def __init__(
        self,
        address: Address,
        topics: list[str],
        state_dir: str,
        deliver: Callable[[tuple[str, bytes]], bool],
        log: Callable[[str], None],
    ) -> None:
        self._address = address
        self._topics = topics
        self._deliver = deliver
        self._log = log
        self._closing = False
        self._began = time.monotonic()
        self._answered = False
        self._complaints: set[str] = set()
        self._reconnected = threading.Event()
        self.subscribed = threading.Event()
        context = tls_context(address) if address.tls else None
        self._lock_fd, self._client_id = _own_client_id(state_dir, address, topics)
        self._client = self._new_client(context)
        self._client.connect_async(address.host, address.port, keepalive=_KEEP_ALIVE_SEC)
        self._client.loop_start()

    def take_reconnected(self) -> bool:
        """Whether the connection was made anew since the last question."""
        was_set = self._reconnected.is_set()
        self._reconnected.clear()
        return was_set

    def complain_if_silent(self) -> None:
        """A broker that takes our connection and says nothing: paho alone would wait long for it."""
        if not self._answered and not self._complaints and time.monotonic() - self._began > _PATIENCE_SEC:
            self._complain(f"{self._broker} {_SILENT}")

    def close(self, *, forget: bool) -> None:
        """Ends the connection. `forget`: nobody will come back for it, so the broker need not keep messages. A broker
        that does not answer is not waited for: what is left to do is done behind our back, or not at all."""
        self._closing = True
        forget = forget and self.subscribed.is_set()
        self._client.disconnect()
        ending = threading.Thread(target=self._end, args=(forget,), daemon=True)
        ending.start()
        ending.join(_FORGETTING_SEC if forget else _CLOSING_SEC)

    def _end(self, forget: bool) -> None:
        self._client.loop_stop()
        if forget:
            self._erase()
        os.close(self._lock_fd)  # not before the client has ended that goes by this name

    def _new_client(self, context: ssl.SSLContext | None) -> paho.Client:
        client = _Client(self._client_id, lambda what: self._complain(f"{self._broker} {what}"))
        if self._address.username is not None:
            client.username_pw_set(self._address.username, self._address.password)
        if context is not None:
            client.tls_set_context(context)
        client.reconnect_delay_set(min_delay=1, max_delay=8)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_connect_fail = self._on_connect_fail
        client.on_message = self._on_message
        return client

    # -- called by paho, from its own thread ---------------------------------------------------------------------

    def _on_connect(self, client: paho.Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._answered = True
        if reason.is_failure:
            self._complain(f"{self._broker} refuses us ({reason}); check MQTT_USERNAME and MQTT_PASSWORD")
            return
        # Also when the broker kept the session: it may have lost it without knowing.
        client.subscribe([(topic, 1) for topic in self._topics])

    def _on_subscribe(self, _client: paho.Client, _data: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self._complain(f"{self._broker} does not let us listen; check the rights of MQTT_USERNAME")
            return
        if self._complaints:
            self._complaints.clear()
            self._log(f"{self._broker} is back")
        self.subscribed.set()
        self._reconnected.set()

    def _on_disconnect(self, _client: paho.Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if self._closing:
            return
        if self.subscribed.is_set():
            self.subscribed.clear()
            self._complaints.add("lost")
            self._log(f"lost {self._broker}; listening to the registry until it is back")
        elif not self._answered:
            silent = str(reason) == "Keep alive timeout"
            self._complain(f"{self._broker} {_SILENT if silent else _CLOSED}")
        self._answered = False

    def _on_connect_fail(self, _client: paho.Client, _data: Any) -> None:
        error = sys.exception()  # paho calls this while it handles what went wrong, and does not say what that is
        if isinstance(error, TimeoutError):
            self._complain(f"{self._broker} {_SILENT}")
        elif self._address.tls and isinstance(error, ssl.SSLError | ConnectionResetError):
            self._complain(str(tls_failure(self._address, error)))
        else:
            why = getattr(error, "strerror", None) or error or "no reason given"
            self._complain(f"{self._broker} cannot be reached ({why}); check MQTT_BROKER and MQTT_PORT")

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""  # of no job, so it is counted and refused
        received = (topic, bytes(message.payload[: MAX_PAYLOAD_BYTES + 1]))
        while not self._closing and not self._deliver(received):
            pass  # `close` waits for this thread: it must not wait for a reader who has left

    def _complain(self, message: str) -> None:
        """Once for each reason, until the broker is there."""
        if message not in self._complaints and not self._closing:
            self._complaints.add(message)
            self._log(f"{message}; listening to the registry alone")

    @property
    def _broker(self) -> str:
        return f"the broker at {self._address.host}:{self._address.port}"

    def _erase(self) -> None:
        """Connects once more under the same name with a clean session, which ends the persistent one."""
        from baton.transport.connection import Publisher

        try:
            with Publisher(self._address, client_id=self._client_id):
                pass
        except BatonError:
            pass  # the broker has gone; it would only have kept a few messages


def _own_client_id(state_dir: str, address: Address, topics: list[str]) -> tuple[int, str]:
    """A client id that a restarted listener gets again, and that two listeners at once never share: a broker
    closes the older of two connections with one id, and they would throw each other out for ever."""
    folder = os.path.join(state_dir, "listeners")
    make_private_dir(folder)
    about = f"{os.uname().nodename} {_own_id(folder)} {address!r} {' '.join(topics)}"
    name = hashlib.sha256(about.encode()).hexdigest()[:16]
    for number in range(_MOST_LISTENERS):
        fd = open_private(os.path.join(folder, f"{name}-{number}"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        return fd, f"baton-sub-{name}-{number}"
    raise BrokerUnavailable("a thousand listeners to the same jobs on one machine", transient=False)


def _own_id(folder: str) -> str:
    """Random, and the same for all listeners with this state folder: other users of the host have another one."""
    fd = open_private(os.path.join(folder, "id"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if not os.fstat(fd).st_size:
            write_all(fd, os.urandom(16).hex().encode())
        return os.pread(fd, 64, 0).decode(errors="replace")
    finally:
        os.close(fd)
