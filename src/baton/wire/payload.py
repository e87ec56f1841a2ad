"""Build, parse and verify payloads: an event as the bytes that go on the wire.

Parsing is strict, because the broker is open to other programs. The checks have a fixed order and stop at the first
that fails. Of a rejected payload only the length and the reason are ever shown.

The signature covers canonical JSON by RFC 8785 (JSON Canonicalization Scheme): one value, one sequence of bytes. It is
written by hand because it is small and runs at every publish; tests compare it with the RFC's vectors and with a second
implementation.
"""

from __future__ import annotations

import json
import math
from codecs import utf_16_be_encode
from collections.abc import Mapping

from baton.core.clock import format_micros, parse_time
from baton.core.errors import InvalidValue, Rejected
from baton.core.event import EventName, StoredEvent
from baton.core.fields import NestedTooDeeply, check_job_id, no_duplicates, parse_json
from baton.core.hashing import constant_time_equal, hmac_sha256
from baton.core.job import SCHEMA_VERSION, Job
from baton.core.value import Any, NoReturn, Value

MAX_INTEGER = 2**53 - 1
MAX_PAYLOAD_BYTES = 64 * 1024
MAX_DETAIL_BYTES = 4 * 1024
MAX_DEPTH = 16
_SHORTEST_TOKEN = 16  # a shorter one, of an old record, may occur in the payload by chance
_RESERVED = ("attempt", "hmac_sig", "auth_token")
_FIELDS = frozenset({"schema_version", "seq", "job_id", "event", "timestamp", "detail", "data"})


json_string = json.encoder.encode_basestring  # RFC 8785 escapes exactly what this one escapes


class Event(Value):
    """A well-formed event. `check_signature` verifies it. `data` is without the attempt and the signature."""

    seq: int
    job_id: str
    event: EventName
    timestamp: str
    detail: str
    data: dict[str, Any]
    attempt: int
    signature: str

    def __repr__(self) -> str:
        return f"<Event {self.job_id} seq={self.seq} {self.event} attempt={self.attempt}>"

    def payload(self) -> dict[str, Any]:
        """Return the object on the wire, with the signature."""
        return {
            "schema_version": SCHEMA_VERSION,
            "seq": self.seq,
            "job_id": self.job_id,
            "event": self.event.value,
            "timestamp": self.timestamp,
            "detail": self.detail,
            "data": {**self.data, "attempt": self.attempt, "hmac_sig": self.signature},
        }

    def public(self) -> dict[str, Any]:
        """Return the object on the wire without the signature, to be shown."""
        payload = self.payload()
        del payload["data"]["hmac_sig"]
        return payload


def signature(payload: Mapping[str, Any], token: str) -> str:
    """Return the lower-case hex HMAC-SHA256 of the canonical payload without `data.hmac_sig`."""
    data = {key: value for key, value in payload["data"].items() if key != "hmac_sig"}
    return hmac_sha256(token.encode(), canonical({**payload, "data": data})).hex()


def signed_event(job: Job, event: EventName, detail: str, data: Mapping[str, Any], now_ns: int) -> StoredEvent:
    """Return the next event of a running job, signed and unsent. Raise InvalidValue when it cannot be sent."""
    assert job.auth_token is not None
    for name in _RESERVED:
        if name in data:
            raise InvalidValue("data", f"must not contain {name}: baton sets it itself, or never sends it")
    unsigned = Event(
        seq=job.last_seq + 1,
        job_id=job.job_id,
        event=event,
        timestamp=format_micros(now_ns),
        detail=_check_detail(detail),
        data=dict(data),
        attempt=job.attempt,
        signature="",
    )
    payload = unsigned.payload()
    try:
        payload["data"]["hmac_sig"] = signature(payload, job.auth_token)
        message = canonical(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidValue("data", f"cannot be sent: {error}") from None
    if len(message) > MAX_PAYLOAD_BYTES:
        raise InvalidValue("event", f"is {len(message)} bytes long, at most {MAX_PAYLOAD_BYTES} are allowed")
    if len(job.auth_token) >= _SHORTEST_TOKEN and json_string(job.auth_token)[1:-1].encode() in message:
        raise InvalidValue("event", "contains the key of the job, which never goes on the wire; leave it out")
    try:
        parse_event(message)  # so that no receiver will reject it
    except Rejected as error:
        raise InvalidValue("data", f"cannot be sent: {error}") from None
    return StoredEvent(
        job_id=job.job_id, seq=unsigned.seq, attempt=job.attempt, event=event, payload=message, sent=False
    )


def _check_detail(detail: object) -> str:
    if not isinstance(detail, str) or "\0" in detail:
        raise InvalidValue("detail", "must be text without NUL characters")
    try:
        size = len(detail.encode())
    except UnicodeEncodeError:
        raise InvalidValue("detail", "is not valid UTF-8") from None
    if size > MAX_DETAIL_BYTES:
        raise InvalidValue("detail", f"is {size} bytes long, at most {MAX_DETAIL_BYTES} are allowed")
    return detail


def parse_event(raw: bytes) -> Event:
    """Return the event in a payload; raise Rejected unless it fits the protocol exactly."""
    if len(raw) > MAX_PAYLOAD_BYTES:  # guard: payload-size
        raise Rejected("size", f"longer than {MAX_PAYLOAD_BYTES} bytes")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Rejected("encoding", "not UTF-8") from None
    try:
        payload = parse_json(text, _decoder.decode, MAX_DEPTH)
    except NestedTooDeeply:
        raise Rejected("json", "nested too deeply") from None
    except ValueError as error:
        raise Rejected("json", "not strict JSON" if isinstance(error, json.JSONDecodeError) else str(error)) from None
    return _check_fields(payload)


def check_signature(event: Event, token: str) -> None:
    """Raise Rejected unless exactly this event was signed with that key."""
    try:
        expected = signature(event.payload(), token)
    except ValueError:  # a lone surrogate: JSON can carry what has no canonical form
        raise Rejected("signature", "HMAC verify failed") from None
    if not constant_time_equal(expected.encode(), event.signature.encode(errors="replace")):  # guard: event-signature
        raise Rejected("signature", "HMAC verify failed")


def _check_fields(payload: Any) -> Event:  # noqa: C901  one check a field
    if not isinstance(payload, dict) or payload.keys() != _FIELDS:
        raise Rejected("fields", "not exactly the seven fields")
    version, seq, data = payload["schema_version"], payload["seq"], payload["data"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise Rejected("fields", "another schema version")
    if type(seq) is not int or seq < 1:
        raise Rejected("fields", "seq is not a number from 1 on")
    detail = payload["detail"]
    if not isinstance(detail, str) or len(detail.encode(errors="replace")) > MAX_DETAIL_BYTES:
        raise Rejected("fields", "detail is not a short text")
    if not isinstance(data, dict) or "auth_token" in data:  # guard: no-key-in-payload
        raise Rejected("fields", "data is not an object, or carries a key")
    attempt = data.get("attempt")
    if type(attempt) is not int or attempt < 1:
        raise Rejected("fields", "data.attempt is not a number from 1 on")
    timestamp = payload["timestamp"]
    try:
        job_id = check_job_id(payload["job_id"])
        event = EventName(payload["event"])
        if not isinstance(timestamp, str) or not timestamp.endswith("Z"):
            raise ValueError
        parse_time(timestamp)
    except ValueError:
        raise Rejected("fields", "event or timestamp is unknown or malformed") from None
    except InvalidValue:
        raise Rejected("fields", "job_id is not an id") from None
    signed = data.get("hmac_sig")
    if not isinstance(signed, str):
        raise Rejected("signature", "HMAC verify failed")
    return Event(
        seq=seq,
        job_id=job_id,
        event=event,
        timestamp=timestamp,
        detail=detail,
        data={key: value for key, value in data.items() if key not in ("attempt", "hmac_sig")},
        attempt=attempt,
        signature=signed,
    )


def _no_constant(_name: str) -> NoReturn:
    raise ValueError("NaN and infinity are no JSON")


def _small_integer(text: str) -> int:
    if len(text) > 17 or not -MAX_INTEGER <= (number := int(text)) <= MAX_INTEGER:
        raise ValueError("a whole number is beyond 2^53")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    # The canonical form of such a number has neither point nor exponent.
    if number.is_integer() and MAX_INTEGER < abs(number) < 1e21:
        raise ValueError("a whole number is beyond 2^53")
    return number


_decoder = json.JSONDecoder(
    object_pairs_hook=no_duplicates,
    parse_constant=_no_constant,
    parse_int=_small_integer,
    parse_float=_finite,
)


def canonical(value: object) -> bytes:
    """Return the canonical bytes of a value; raise ValueError for a value that JSON cannot hold portably."""
    return _encode(value).encode()


def _encode(value: object) -> str:  # noqa: PLR0911  one return for each type of JSON
    if isinstance(value, str):
        return json_string(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise ValueError("a whole number is beyond 2^53")
        return str(int(value))
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join([_encode(item) for item in value]) + "]"
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("an object has a key that is not text")
        members = [f"{json_string(key)}:{_encode(value[key])}" for key in sorted(value, key=_utf16)]
        return "{" + ",".join(members) + "}"
    raise ValueError(f"{type(value).__name__} has no form in JSON")


def _utf16(key: str) -> bytes:
    # Not `key.encode("utf-16-be")`: that loads a module, which Python 3.13.0 cannot do in a removed folder.
    return utf_16_be_encode(key)[0]


def _number(value: float) -> str:
    """Format a double as ECMAScript does: shortest digits, exponent only below 1e-6 and from 1e21 on."""
    if not math.isfinite(value):
        raise ValueError("NaN and infinity have no form in JSON")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    digits, _, exponent_text = repr(abs(value)).partition("e")
    whole, _, fraction = digits.partition(".")
    if fraction == "0":
        fraction = ""
    significant = (whole + fraction).lstrip("0")
    # Where the decimal point stands, counted from the first significant digit.
    exponent = len(significant) - len(fraction) + int(exponent_text or 0)
    significant = significant.rstrip("0")
    count = len(significant)
    if 0 < exponent <= 21:
        if count <= exponent:
            return sign + significant + "0" * (exponent - count)
        return f"{sign}{significant[:exponent]}.{significant[exponent:]}"
    if -6 < exponent <= 0:
        return f"{sign}0.{'0' * -exponent}{significant}"
    power = exponent - 1
    mantissa = significant[0] + ("." + significant[1:] if count > 1 else "")
    return f"{sign}{mantissa}e{'+' if power > 0 else '-'}{abs(power)}"
