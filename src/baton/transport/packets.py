"""Encode and split the MQTT 3.1.1 packets that a publisher needs. No I/O."""

from __future__ import annotations

CONNACK = 0x20
PUBACK = 0x40
DISCONNECT = b"\xe0\x00"
_CONNECT = 0x10
_PUBLISH_QOS1 = 0x32
_RETAIN = 0x01

# Why a broker refuses a CONNECT, and the setting to check.
REFUSALS = {
    1: "does not speak MQTT 3.1.1",
    2: "does not accept our client id",
    3: "says it is not available",
    4: "refuses the login; check MQTT_USERNAME and MQTT_PASSWORD",
    5: "refuses the login; check MQTT_USERNAME and MQTT_PASSWORD",
}


def connect(client_id: str, username: str | None, password: str | None, keep_alive_sec: int) -> bytes:
    flags = 0x02  # clean session
    tail = _text(client_id)
    if username is not None:
        flags |= 0x80
        tail += _text(username)
        if password is not None:
            flags |= 0x40
            tail += _text(password)
    return _packet(_CONNECT, _text("MQTT") + bytes([4, flags]) + keep_alive_sec.to_bytes(2, "big") + tail)


def publish(topic: str, packet_id: int, payload: bytes, *, retain: bool) -> bytes:
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
