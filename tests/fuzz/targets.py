"""What reads bytes that anybody may have written: each target takes any bytes, and raises only what is a fault of ours."""

from __future__ import annotations

import json

from baton.core.errors import InvalidRecord, Rejected
from baton.core.job import Job
from baton.live_agents.record import AgentRecord, Unfit
from baton.transport import publisher_connection as packets
from baton.wire.payload import MAX_PAYLOAD_BYTES, canonical, check_signature, parse_event

_A_KEY_NOBODY_KNOWS = "Zm9yIHRoZSBmdXp6ZXIgYWxvbmUsIG5ldmVyIHVzZWQ"


def event(raw: bytes) -> None:
    """A payload from the broker: rejected, or an event that is read from its own canonical form again; and signed by
    nobody."""
    try:
        found = parse_event(raw)
    except Rejected:
        return
    try:
        again = canonical(found.payload())
    except ValueError:
        pass  # a lone surrogate: it has no canonical form, so nothing can have signed it
    else:
        if len(again) <= MAX_PAYLOAD_BYTES:
            assert parse_event(again) == found
    try:
        check_signature(found, _A_KEY_NOBODY_KNOWS)
    except Rejected:
        return
    raise AssertionError("a signature was guessed")


def agent_record(raw: bytes) -> None:
    """A file in the directory of live agents."""
    try:
        found = AgentRecord.parse_bytes(raw)
    except Unfit:
        return
    assert AgentRecord.parse(json.loads(json.dumps(found.record()))) == found


def job_record(raw: bytes) -> None:
    """A file in the registry, once it is known to be JSON."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return
    try:
        found = Job.parse(value)
    except InvalidRecord:
        return
    assert Job.parse(json.loads(json.dumps(found.record()))) == found
    json.dumps(found.public())


def broker_answer(raw: bytes) -> None:
    """What a broker says to a publisher: packets one after the other, until it is none, or the bytes end."""
    rest = raw
    while rest:
        try:
            packet = packets.split_packet(rest, packets.PUBACK if rest[0] & 0x40 else packets.CONNACK)
        except ValueError:
            return
        if packet is None:
            return
        body, after = packet
        assert len(body) + len(after) < len(rest)
        rest = after


TARGETS = {each.__name__: each for each in (event, agent_record, job_record, broker_answer)}
