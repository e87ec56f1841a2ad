"""Does a broker do what baton needs? A message goes all the way round: an acknowledgement proves nothing, since
brokers acknowledge also what the sender has no right to send."""

from __future__ import annotations

import os
import queue
import threading

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from baton.broker.address import is_loopback
from baton.core.errors import BrokerUnavailable
from baton.core.job import new_job_id, topic_prefix
from baton.core.value import Value
from baton.transport.connection import Publisher
from baton.transport.tls import tls_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final

    from baton.broker.address import Address

_PATIENCE_SEC: Final = 5.0


class Step(Value):
    what: str
    ok: bool
    detail: str


def check_broker(writer: Address, reader: Address) -> Iterator[Step]:
    """One step after the other; the first that fails is the last. Nothing stays behind in the broker."""
    topic = _new_topic()
    client_id = f"baton-check-{os.urandom(8).hex()}"
    message = os.urandom(8).hex().encode()
    doing = "connect and login to publish"
    used = False
    try:
        with Publisher(writer):
            yield Step(what=doing, ok=True, detail=_how(writer))
        doing = "connect and login to subscribe"
        used = True
        first = _Listener(reader, client_id, topic)
        yield Step(what=doing, ok=True, detail=reader.username or "no user name")
        yield Step(what="subscribe", ok=True, detail="granted")
        doing = "round trip"
        _publish(writer, topic, message, retain=True)
        came_back = first.next_message() == message
        first.close()
        if not came_back:
            who = (
                f"{writer.username or 'the publisher'} may not write, or {reader.username or 'the subscriber'} not read"
            )
            detail = f"nothing came back: {who}, python/mqtt/jobs/+/events; check the rights in the broker"
            yield Step(what=doing, ok=False, detail=detail)
            return
        yield Step(what=doing, ok=True, detail="what was published came back")
        doing = "retained and queued messages"
        yield from _keeping(writer, reader, client_id, topic, message)
    except BrokerUnavailable as error:
        yield Step(what=doing, ok=False, detail=str(error))
    finally:
        if used:
            _clean_up(writer, reader, client_id, topic)


def check_role(role: str, address: Address) -> Iterator[Step]:
    """What one role can find out alone: an orchestrator writes nothing, a worker reads nothing."""
    client_id = f"baton-check-{os.urandom(8).hex()}"
    doing = "connect and login"
    try:
        with Publisher(address) as connection:
            yield Step(what=doing, ok=True, detail=_how(address))
            if role == "worker":
                doing = "publish"
                connection.publish(_new_topic(), os.urandom(8).hex().encode())
                detail = "acknowledged; whether it was let through, only who listens can tell"
                yield Step(what=doing, ok=True, detail=detail)
        if role == "orchestrator":
            doing = "subscribe"
            _Listener(address, client_id, _new_topic()).close()
            _forget(address, client_id)
            yield Step(what=doing, ok=True, detail="granted")
    except BrokerUnavailable as error:
        yield Step(what=doing, ok=False, detail=str(error))


def _new_topic() -> str:
    return f"{topic_prefix(new_job_id())}/events"


def _how(address: Address) -> str:
    here = ", on this machine" if is_loopback(address.host) else ""
    return f"{address.host}:{address.port}, {'TLS' if address.tls else f'no TLS{here}'}"


def _keeping(writer: Address, reader: Address, client_id: str, topic: str, message: bytes) -> Iterator[Step]:
    """Whether the broker keeps retained messages, and messages for a listener that is away."""
    late = _Listener(reader, f"{client_id}-late", topic)
    retained = late.next_message() == message
    late.close()
    yield Step(what="retained", ok=retained, detail="kept for who comes late" if retained else "was not kept")
    queued = os.urandom(8).hex().encode()
    _publish(writer, topic, queued, retain=False)
    back = _Listener(reader, client_id, topic)
    arrived = {back.next_message(), back.next_message()}
    kept = queued in arrived
    yield Step(what="persistent session", ok=kept, detail="kept for who was away" if kept else "was not kept")
    back.close()


def _clean_up(writer: Address, reader: Address, client_id: str, topic: str) -> None:
    try:
        _publish(writer, topic, b"", retain=True)  # takes the retained message away
        for name in (client_id, f"{client_id}-late"):
            _forget(reader, name)
    except BrokerUnavailable:
        pass  # what failed was told already


def _forget(reader: Address, client_id: str) -> None:
    """Connecting with a clean session ends the persistent one of that name."""
    with Publisher(reader, client_id=client_id):
        pass


def _publish(writer: Address, topic: str, message: bytes, *, retain: bool) -> None:
    with Publisher(writer) as connection:
        connection.publish(topic, message, retain=retain)


class _Listener:
    def __init__(self, address: Address, client_id: str, topic: str) -> None:
        self._messages: queue.Queue[bytes] = queue.Queue()
        self._topic = topic
        self._ready = threading.Event()
        self._refusal = ""
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
        if address.username is not None:
            self._client.username_pw_set(address.username, address.password)
        if address.tls:
            self._client.tls_set_context(tls_context(address))
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = lambda _client, _data, message: self._messages.put(bytes(message.payload))
        try:
            self._client.connect(address.host, address.port, keepalive=20)
        except OSError as error:
            raise BrokerUnavailable(
                f"the broker at {address.host}:{address.port} cannot be reached ({error})"
            ) from None
        self._client.loop_start()
        if not self._ready.wait(_PATIENCE_SEC) or self._refusal:
            self.close()
            raise BrokerUnavailable(
                f"the broker at {address.host}:{address.port} {self._refusal or 'does not answer a subscription'}"
            )

    def next_message(self) -> bytes | None:
        try:
            return self._messages.get(timeout=_PATIENCE_SEC)
        except queue.Empty:
            return None

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: paho.Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._refusal = f"refuses the subscriber's login ({reason})"
            self._ready.set()
        else:
            client.subscribe(self._topic, 1)

    def _on_subscribe(self, _client: paho.Client, _data: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self._refusal = "does not let the subscriber listen"
        self._ready.set()
