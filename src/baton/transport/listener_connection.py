"""Listen to a broker: with paho, in a persistent session under a stable client id, reconnecting without end."""

from __future__ import annotations

import os
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from baton.broker.address import Address, broker_address
from baton.config import Settings
from baton.core.errors import BatonError
from baton.core.job import Job, topic_prefix
from baton.transport.listener_ids import reserve_client_id
from baton.transport.peer import ForeignProcess, refuse_stranger
from baton.transport.publisher_connection import (
    FAILURES,
    OWN_PROCESS_HINT,
    PublisherConnection,
    closed_hint,
    describe_failure,
    describe_refusal,
    describe_unreachable,
    hint,
)
from baton.wire.payload import MAX_PAYLOAD_BYTES

_KEEP_ALIVE_SEC = 20
_SILENCE_SEC = 5.0
_CLOSE_SEC = 0.5
_FORGET_SEC = 3.0
_MAX_PACKET_BYTES = 2 * 1024 * 1024  # more than the brokers that baton configures let through
_UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, struct.error)  # paho on malformed packets
_REFUSALS = {132: 1, 133: 2, 136: 3, 134: 4, 135: 5}  # paho shows the codes of MQTT 3.1.1 as those of MQTT 5


def connect_listeners(
    settings: Settings,
    jobs: Sequence[Job],
    *,
    follow_all: bool,
    deliver: Callable[[tuple[str, bytes]], bool],
    log: Callable[[str], None],
) -> list[ListenerConnection]:
    """Connect to the broker of each job, once to each broker; log why a broker cannot be used."""
    topics: dict[str, tuple[Address, set[str]]] = {}
    connections = []

    def log_failure(error: Exception) -> None:
        log(f"{describe_failure(error)}; listening to the registry alone")

    for job in jobs or (None,):
        try:
            address = broker_address(settings, job, reading=True)
        except FAILURES as error:
            log_failure(error)
            continue
        topic = f"{topic_prefix('+')}/events" if follow_all or job is None else job.events_topic
        topics.setdefault(repr(address), (address, set()))[1].add(topic)
    for address, names in topics.values():
        lock_fd = None
        try:
            lock_fd, client_id = reserve_client_id(settings.state_dir, repr(address), sorted(names))
            connections.append(ListenerConnection(address, sorted(names), deliver, client_id, lock_fd, log))
        except FAILURES as error:
            if lock_fd is not None:
                os.close(lock_fd)
            log_failure(error)
    return connections


class _Client(paho.Client):
    """A client with limits against a hostile broker. paho has none, so they override its internals; a test with such a
    broker fails when a new version of paho works differently."""

    def __init__(self, client_id: str, report: Callable[[str], None], *, own_process: bool) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False, protocol=paho.MQTTv311)
        self._report = report
        self._own_process = own_process

    def _create_socket_connection(self) -> Any:
        """Refuse a broker of another user before the login is sent to it."""
        connection = super()._create_socket_connection()
        if self._own_process:
            try:
                refuse_stranger(connection)
            except OSError:
                connection.close()
                raise
        return connection

    def _sock_recv(self, bufsize: int) -> bytes:
        """Refuse a large packet before it is read: paho asks for the whole rest of a packet at once."""
        if bufsize > _MAX_PACKET_BYTES:
            self._report(f"sent a packet of {bufsize} bytes")
            raise ConnectionError
        return super()._sock_recv(bufsize)

    def _packet_read(self) -> MQTTErrorCode:
        """Drop the connection at a malformed packet, which would end paho's thread."""
        try:
            return super()._packet_read()
        except _UNREADABLE as error:
            self._report(f"sent something that cannot be read ({type(error).__name__})")
            return MQTTErrorCode.MQTT_ERR_PROTOCOL

    def _handle_publish(self) -> MQTTErrorCode:
        """Refuse QoS 2, which is never subscribed to: paho would keep such messages until they are released."""
        if self._in_packet["command"] & 0x06 == 0x04:
            self._report("sent a message of QoS 2")
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        return super()._handle_publish()


class ListenerConnection:
    """A subscription to topics of one broker.

    paho's thread calls `deliver` with (topic, payload), again while it returns False because there is no room. A
    payload over the size limit is cut off: it will be rejected for its size."""

    def __init__(
        self,
        address: Address,
        topics: list[str],
        deliver: Callable[[tuple[str, bytes]], bool],
        client_id: str,
        lock_fd: int | None = None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._address = address
        self._broker = f"the broker at {address.host}:{address.port}"
        self._topics = topics
        self._deliver = deliver
        self._log = log
        self._closing = False
        self._began = time.monotonic()
        self._answered = False
        self._reported: set[str] = set()
        self.problem: str | None = None
        self._reconnected = threading.Event()
        self._tried = threading.Event()
        self.subscribed = threading.Event()
        self._client_id = client_id
        self._lock_fd = lock_fd
        self._client = self._new_client()
        self._client.connect_async(address.host, address.port, keepalive=_KEEP_ALIVE_SEC)
        self._client.loop_start()

    def wait(self, seconds: float) -> bool:
        """Wait until the broker confirms the subscription or the first try to reach it has failed. Return whether it is
        confirmed; if not, further tries follow."""
        self._tried.wait(seconds)
        return self.subscribed.is_set()

    def take_reconnected(self) -> bool:
        """Return whether the broker confirmed a subscription since the last call."""
        was_set = self._reconnected.is_set()
        self._reconnected.clear()
        return was_set

    def report_silence(self) -> None:
        """Log that the broker does not answer, for which paho would wait long."""
        if not self._answered and not self._reported and time.monotonic() - self._began > _SILENCE_SEC:
            self._report_silent()

    def close(self, *, forget: bool) -> None:
        """End the connection, and with `forget` the session in which the broker keeps messages. A broker that does not
        answer is waited for briefly; the rest happens in a thread, or not at all."""
        self._closing = True
        forget = forget and self.subscribed.is_set()
        self._client.disconnect()
        ending = threading.Thread(target=self._end, args=(forget,), daemon=True)
        try:
            ending.start()
        except RuntimeError:
            return  # no thread can be started: the connection ends with the process
        ending.join(_FORGET_SEC if forget else _CLOSE_SEC)

    def _end(self, forget: bool) -> None:
        self._client.loop_stop()
        if forget:
            try:
                forget_session(self._address, self._client_id)
            except BatonError:
                pass  # the broker has gone; it keeps a few messages
        if self._lock_fd is not None:
            os.close(self._lock_fd)  # only now: the client with this id has ended

    def _new_client(self) -> paho.Client:
        client = _Client(self._client_id, self._report, own_process=self._address.own_process)
        if self._address.username is not None:
            client.username_pw_set(self._address.username, self._address.password)
        if self._address.tls:
            from baton.transport.tls import tls_context

            client.tls_set_context(tls_context(self._address))
        client.reconnect_delay_set(min_delay=1, max_delay=8)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_connect_fail = self._on_connect_fail
        client.on_message = self._on_message
        return client

    def _on_connect(self, client: paho.Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._answered = True
        if reason.is_failure:
            code = _REFUSALS.get(reason.value)
            refused = describe_refusal(self._address, code) if code is not None else f"refuses us ({reason})"
            self._report(refused)
            self._tried.set()
            return
        # Also when the broker says that it kept the session: it may have lost the subscription.
        client.subscribe([(topic, 1) for topic in self._topics])

    def _on_subscribe(self, _client: paho.Client, _data: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self._report(f"does not let us listen; {hint(self._address, 'the rights of MQTT_USERNAME')}")
            return
        if self._reported:
            self._reported.clear()
            self._log(f"{self._broker} is back")
        self.subscribed.set()
        self._tried.set()
        self._reconnected.set()

    def _on_disconnect(self, _client: paho.Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if self._closing:
            return
        if self.subscribed.is_set():
            self.subscribed.clear()
            self._reported.add("lost")
            self._log(f"lost {self._broker}; listening to the registry until it is back")
        elif not self._answered:
            if str(reason) == "Keep alive timeout":
                self._report_silent()
            else:
                self._report(f"closed the connection{closed_hint(self._address, accepted=False)}")
        self._answered = False

    def _on_connect_fail(self, _client: paho.Client, _data: Any) -> None:
        self._tried.set()
        error = sys.exception()  # paho calls this while it handles the error, which it does not pass on
        if isinstance(error, TimeoutError):
            self._report_silent()
        elif isinstance(error, ForeignProcess):
            self._report(f"is not used: {error}; {OWN_PROCESS_HINT}")
        elif self._address.tls and isinstance(error, ssl.SSLError | ConnectionResetError):
            from baton.transport.tls import tls_failure

            self._report(str(tls_failure(self._address, error)).removeprefix(f"{self._broker} "))
        else:
            self._report(describe_unreachable(self._address, error))

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""  # of no job: it is counted and rejected
        received = (topic, bytes(message.payload[: MAX_PAYLOAD_BYTES + 1]))
        while not self._closing and not self._deliver(received):
            pass  # not for ever: `close` waits for this thread

    def _report_silent(self) -> None:
        settings = "MQTT_BROKER and MQTT_PORT" if self._address.tls else "MQTT_BROKER, MQTT_PORT and MQTT_TLS"
        self._report(f"does not answer; {hint(self._address, settings)}")

    def _report(self, what: str) -> None:
        """Log what is wrong with the broker, once until it is back."""
        if what not in self._reported and not self._closing:
            self._reported.add(what)
            self.problem = f"{self._broker} {what}"
            self._log(f"{self.problem}; listening to the registry alone")


def forget_session(address: Address, client_id: str) -> None:
    """End the persistent session of a client: connect with its id and a clean session."""
    with PublisherConnection(address, client_id=client_id):
        pass
