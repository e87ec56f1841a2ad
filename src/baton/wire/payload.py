"""Build signed events: the bytes that go on the wire."""

from __future__ import annotations

from baton.core.clock import format_time
from baton.core.errors import InvalidValue, Rejected
from baton.core.event import EventName, StoredEvent
from baton.core.hashing import hmac_sha256
from baton.core.job import SCHEMA_VERSION, Job
from baton.wire.canonical import canonical, json_string

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_PAYLOAD_BYTES = 64 * 1024
MAX_DETAIL_BYTES = 4 * 1024
_SHORTEST_TOKEN = 16  # a shorter one, of an old record, may occur in the payload by chance
_RESERVED = ("attempt", "hmac_sig", "auth_token")


def signature(payload: Mapping[str, Any], token: str) -> str:
    """Return the lower-case hex HMAC-SHA256 of the canonical payload without `data.hmac_sig`."""
    data = {key: value for key, value in payload["data"].items() if key != "hmac_sig"}
    return hmac_sha256(token.encode(), canonical({**payload, "data": data})).hex()


def signed_event(job: Job, event: EventName, detail: str, data: Mapping[str, Any], now_ns: int) -> StoredEvent:
    """Return the next event of a running job, signed and unsent. Raise InvalidValue when it cannot be sent."""
    from baton.wire.parse import parse_event

    assert job.auth_token is not None
    for name in _RESERVED:
        if name in data:
            raise InvalidValue("data", f"must not contain {name}: baton sets it itself, or never sends it")
    seq = job.last_seq + 1
    payload: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "seq": seq,
        "job_id": job.job_id,
        "event": event.value,
        "timestamp": format_time(now_ns),
        "detail": _check_detail(detail),
        "data": {**data, "attempt": job.attempt},
    }
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
    return StoredEvent(job_id=job.job_id, seq=seq, attempt=job.attempt, event=event, payload=message, sent=False)


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
