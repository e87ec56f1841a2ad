"""Check that a broker does what baton needs. A message must come back: brokers acknowledge even a message that its
sender has no right to send."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator

from baton.broker.address import Address, is_loopback
from baton.core.errors import BrokerUnavailable
from baton.core.job import new_job_id, topic_prefix
from baton.core.value import Value
from baton.transport.listener_connection import ListenerConnection, forget_session
from baton.transport.publisher_connection import PublisherConnection

_WAIT_SEC = 5.0


class Step(Value):
    what: str
    ok: bool
    detail: str


def check_broker(writer: Address | None, reader: Address | None) -> Iterator[Step]:
    """Check a broker with the logins of both roles, or what one role can check alone. The first step that fails is the
    last. Nothing stays behind in the broker."""
    topic = f"{topic_prefix(new_job_id())}/events"
    client_id = f"baton-check-{os.urandom(8).hex()}"
    doing, subscribed = "connect and login to publish", False
    try:
        if writer is not None:
            with PublisherConnection(writer) as connection:
                yield Step(what=doing, ok=True, detail=_describe(writer))
                if reader is None:
                    doing = "publish"
                    connection.publish(topic, os.urandom(8).hex().encode())
                    detail = "acknowledged; only a subscriber can find out whether it was let through"
                    yield Step(what=doing, ok=True, detail=detail)
        if reader is not None:
            doing = "connect and login to subscribe"
            forget_session(reader, client_id)
            yield Step(what=doing, ok=True, detail=reader.username or "no user name")
            doing, subscribed = "subscribe", True
            listener = _Listener(reader, client_id, topic)
            yield Step(what=doing, ok=True, detail="granted")
            if writer is None:
                listener.close()
            else:
                doing = "round trip, retained and queued messages"
                yield from _check_delivery(writer, reader, listener, client_id, topic)
    except BrokerUnavailable as error:
        yield Step(what=doing, ok=False, detail=str(error))
    finally:
        if subscribed:
            _clean_up(writer, reader, client_id, topic)


def _check_delivery(writer: Address, reader: Address, first: _Listener, client_id: str, topic: str) -> Iterator[Step]:
    """Check that messages arrive, and that the broker keeps them for a listener that comes late or returns."""
    message, queued = os.urandom(8).hex().encode(), os.urandom(8).hex().encode()
    _publish(writer, topic, message, retain=True)
    came_back = first.next_message() == message
    first.close()
    if not came_back:
        roles = f"{writer.username or 'the publisher'} may not write, or {reader.username or 'the subscriber'} not read"
        detail = f"nothing came back: {roles}, python/mqtt/jobs/+/events; check the rights in the broker"
        yield Step(what="round trip", ok=False, detail=detail)
        return
    yield Step(what="round trip", ok=True, detail="the published message came back")
    late = _Listener(reader, f"{client_id}-late", topic)
    kept = late.next_message() == message
    late.close()
    yield Step(what="retained", ok=kept, detail="kept for a late subscriber" if kept else "was not kept")
    _publish(writer, topic, queued, retain=False)
    back = _Listener(reader, client_id, topic)
    kept = queued in {back.next_message(), back.next_message()}
    yield Step(what="persistent session", ok=kept, detail="kept for an absent subscriber" if kept else "was not kept")
    back.close()


def _clean_up(writer: Address | None, reader: Address | None, client_id: str, topic: str) -> None:
    try:
        if writer is not None:
            _publish(writer, topic, b"", retain=True)  # removes the retained message
        if reader is not None:
            for name in (client_id, f"{client_id}-late"):
                forget_session(reader, name)
    except BrokerUnavailable:
        pass  # a step has reported that already


def _describe(address: Address) -> str:
    here = ", on this machine" if is_loopback(address.host) else ""
    return f"{address.host}:{address.port}, {'TLS' if address.tls else f'no TLS{here}'}"


def _publish(writer: Address, topic: str, message: bytes, *, retain: bool) -> None:
    with PublisherConnection(writer) as connection:
        connection.publish(topic, message, retain=retain)


class _Listener:
    """A subscriber that waits for single messages."""

    def __init__(self, address: Address, client_id: str, topic: str) -> None:
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._connection = ListenerConnection(address, [topic], self._deliver, client_id)
        deadline = time.monotonic() + _WAIT_SEC
        while not self._connection.subscribed.wait(0.02):
            if self._connection.problem or time.monotonic() > deadline:
                self.close()
                silent = f"the broker at {address.host}:{address.port} does not answer a subscription"
                raise BrokerUnavailable(self._connection.problem or silent)

    def next_message(self) -> bytes | None:
        try:
            return self._messages.get(timeout=_WAIT_SEC)
        except queue.Empty:
            return None

    def close(self) -> None:
        self._connection.close(forget=False)

    def _deliver(self, message: tuple[str, bytes]) -> bool:
        self._messages.put(message[1])
        return True
