"""Publish over one short connection: TCP or TLS, CONNECT, PUBLISH with QoS 1, PUBACK, DISCONNECT.

Written by hand, because paho takes 100 ms to import and an agent publishes hundreds of times. `ssl` is imported for TLS
alone, and sockets come without the modules that `socket` loads.
"""

from __future__ import annotations

import os
import time

from baton.broker.address import Address
from baton.core.cpython import socket
from baton.core.errors import BatonError, BrokerUnavailable, describe_shortage, describe_system_error
from baton.core.value import Any, Self

CONNACK_TIMEOUT_SEC = 10.0
PUBACK_TIMEOUT_SEC = 5.0
_KEEP_ALIVE_SEC = 60
CONNACK = 0x20
PUBACK = 0x40
DISCONNECT = b"\xe0\x00"
_CONNECT = 0x10
_PUBLISH_QOS1 = 0x32
_RETAIN = 0x01

# Why a broker refuses a CONNECT.
_REFUSALS = {
    1: "does not speak MQTT 3.1.1",
    2: "does not accept our client id",
    3: "says it is not available",
    4: "refuses the login",
    5: "refuses the login",
}
# What may prevent a connection: no broker, an unusable state folder, settings that make no sense, no thread to start.
FAILURES = (BatonError, OSError, ValueError, TypeError, OverflowError, RuntimeError)


class PublisherConnection:
    """A connection for a `with` block. It raises BrokerUnavailable, with the cause, for every failure."""

    def __init__(self, address: Address, client_id: str | None = None) -> None:
        self._address = address
        self._received = b""
        self._packet_id = 0
        self._accepted = False
        deadline = time.monotonic() + CONNACK_TIMEOUT_SEC
        self._socket: Any = self._connect(deadline)
        try:
            if address.own_process:
                self._refuse_stranger()
            if address.tls:
                self._socket = self._wrap_tls(self._socket, deadline)
            # Random: a broker closes the older of two connections with one client id.
            name = client_id or f"baton-pub-{os.urandom(8).hex()}"
            self._send(connect_packet(name, address.username, address.password, _KEEP_ALIVE_SEC), deadline)
            body = self._expect(CONNACK, deadline, "the answer to our connect")
            if len(body) != 2 or body[1] != 0:
                code = body[1] if len(body) == 2 else 0
                raise self._failure(describe_refusal(address, code), transient=code == 3)
            self._accepted = True
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._send(DISCONNECT, time.monotonic() + 1)
        except BrokerUnavailable:
            pass  # every message was acknowledged
        finally:
            self._socket.close()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send a message and wait for its acknowledgement."""
        deadline = time.monotonic() + PUBACK_TIMEOUT_SEC
        self._packet_id = self._packet_id % 0xFFFF + 1
        self._send(publish_packet(topic, self._packet_id, payload, retain=retain), deadline)
        while True:
            body = self._expect(PUBACK, deadline, "its acknowledgement")
            if int.from_bytes(body[:2], "big") == self._packet_id:
                return

    def _connect(self, deadline: float) -> Any:
        address = self._address
        try:
            # As bytes: for text, the lookup first loads the tables of international names.
            host = address.host.encode() if address.host.isascii() else address.host
            found = socket.getaddrinfo(host, address.port, 0, socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise self._failure("has a name that cannot be looked up; check MQTT_BROKER") from None
        failure: OSError | None = None
        for family, kind, protocol, _, place in found:
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                connection.connect(place)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                connection.close()
                failure = error
            else:
                return connection
        if isinstance(failure, TimeoutError):
            raise self._failure(
                f"does not answer within {CONNACK_TIMEOUT_SEC:g} s; {hint(address, 'MQTT_BROKER and MQTT_PORT')}"
            )
        raise self._failure(describe_unreachable(address, failure))

    def _refuse_stranger(self) -> None:
        from baton.transport.peer import refuse_stranger

        try:
            refuse_stranger(self._socket)
        except OSError as error:
            raise self._failure(f"is not used: {error}; {OWN_PROCESS_HINT}", transient=False) from None

    def _wrap_tls(self, raw: Any, deadline: float) -> Any:
        import socket

        from baton.transport.tls import tls_context, tls_failure

        context = tls_context(self._address)
        wrapped = socket.socket(fileno=raw.detach())
        try:
            wrapped.settimeout(max(deadline - time.monotonic(), 0.001))
            return context.wrap_socket(wrapped, server_hostname=self._address.host)
        except OSError as error:
            wrapped.close()
            raise tls_failure(self._address, error) from None

    def _send(self, content: bytes, deadline: float) -> None:
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self._socket.sendall(content)
        except TimeoutError:
            raise self._failure("does not take what we send") from None
        except OSError as error:
            raise self._failure(f"closed the connection ({error.strerror or error})") from None

    def _expect(self, kind: int, deadline: float, what: str) -> bytes:
        """Return the body of the next packet, which must be of this kind."""
        while True:
            # Also here: a broker that never stops sending must not hold the connection.
            if time.monotonic() > deadline:
                raise self._failure(f"does not send {what} in time")
            try:
                packet = split_packet(self._received, kind)
            except ValueError:
                settings = "MQTT_PORT" if self._address.tls else "MQTT_PORT and MQTT_TLS"
                raise self._failure(f"answers something that is not MQTT; {hint(self._address, settings)}") from None
            if packet is not None:
                body, self._received = packet
                return body
            try:
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                more = self._socket.recv(4096)
            except TimeoutError:
                raise self._failure(f"does not send {what} in time") from None
            except OSError as error:
                why = getattr(error, "reason", None) or error.strerror or error
                raise self._failure(f"closed the connection ({why}){self._closed_hint()}") from None
            if not more:
                raise self._failure(f"closed the connection instead of sending {what}{self._closed_hint()}")
            self._received += more

    def _closed_hint(self) -> str:
        return closed_hint(self._address, accepted=self._accepted)

    def _failure(self, words: str, *, transient: bool = True) -> BrokerUnavailable:
        where = f"{self._address.host}:{self._address.port}"
        return BrokerUnavailable(f"the broker at {where} {words}", transient=transient)


OWN_PROCESS_HINT = "if you know that process, use TLS or --allow-plaintext"


def hint(address: Address, settings: str) -> str:
    """Return what to look at: the log of the local broker, or these settings."""
    return "see `baton broker logs`" if address.is_local else f"check {settings}"


def describe_refusal(address: Address, code: int) -> str:
    """Return why the broker refuses us, by the code of its answer, and what to check if that can be said."""
    words = _REFUSALS.get(code, f"refuses us (code {code})")
    return f"{words}; {hint(address, 'MQTT_USERNAME and MQTT_PASSWORD')}" if code in (4, 5) else words


def describe_unreachable(address: Address, error: BaseException | None) -> str:
    """Return why no connection could be made, and what to check unless it is the fault of this machine."""
    if (shortage := describe_shortage(error)) is not None:
        return f"cannot be reached: {shortage}"
    why = getattr(error, "strerror", None) or error or "no reason given"
    return f"cannot be reached ({why}); is it running? {hint(address, 'MQTT_BROKER and MQTT_PORT')}"


def closed_hint(address: Address, *, accepted: bool) -> str:
    """Return what to check after the broker closed a connection; nothing if it had accepted us: then neither TLS nor
    the login is the reason."""
    if address.is_local or accepted:
        return "; see `baton broker logs`" if address.is_local else ""
    names = "MQTT_CERTFILE and the login" if address.tls else "MQTT_TLS, MQTT_PORT and the login"
    return f"; check {names}"


def describe_failure(error: Exception) -> str:
    """Return what prevented a connection, for a message."""
    if isinstance(error, BatonError):
        return str(error)
    if (what := describe_system_error(error)) is not None:
        return what
    return f"{type(error).__name__}: {error}; check the settings of the broker (baton config show)"


def connect_packet(client_id: str, username: str | None, password: str | None, keep_alive_sec: int) -> bytes:
    flags = 0x02  # clean session
    tail = _text(client_id)
    if username is not None:
        flags |= 0x80
        tail += _text(username)
        if password is not None:
            flags |= 0x40
            tail += _text(password)
    return _packet(_CONNECT, _text("MQTT") + bytes([4, flags]) + keep_alive_sec.to_bytes(2, "big") + tail)


def publish_packet(topic: str, packet_id: int, payload: bytes, *, retain: bool) -> bytes:
    first = _PUBLISH_QOS1 | (_RETAIN if retain else 0)
    return _packet(first, _text(topic) + packet_id.to_bytes(2, "big") + payload)


def split_packet(received: bytes, kind: int) -> tuple[bytes, bytes] | None:
    """Return the body of the first packet and the bytes behind it, or None when more bytes are needed. Raise ValueError
    when this is not MQTT, or not a packet of this kind."""
    if received and received[0] & 0xF0 != kind:
        raise ValueError("another packet than expected")
    length = shift = 0
    for index, byte in enumerate(received[1:5], start=1):
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if length > 1024:
                raise ValueError("too long for a packet to a publisher")
            start, end = index + 1, index + 1 + length
            return (received[start:end], received[end:]) if len(received) >= end else None
    if len(received) >= 5:
        raise ValueError("the length of a packet has at most four bytes")
    return None


def _packet(first: int, body: bytes) -> bytes:
    length = len(body)
    encoded = b""
    while True:
        length, byte = divmod(length, 128)
        encoded += bytes([byte | (0x80 if length else 0)])
        if not length:
            return bytes([first]) + encoded + body


def _text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw
