"""Define the record of a live agent: where to find the session that owns a name. Strict, and pointers only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from baton.core import fields
from baton.core.clock import format_micros, parse_time
from baton.core.errors import InvalidValue
from baton.core.value import Value
from baton.live_agents.names import check_agent_id, check_agent_name

SCHEMA_VERSION = 1
MAX_RECORD_BYTES = 64 * 1024
_DECODER = json.JSONDecoder(object_pairs_hook=fields.no_duplicates)
# In a directory of many machines, a record without a host is on an unknown one.
UNNAMED_HOST = "a host that is not named"


class State(StrEnum):
    """The state of an entry. Only a FRESH one can be used."""

    FRESH = "fresh"
    EXPIRED = "expired"
    MISSING = "missing"
    MALFORMED = "malformed"
    INVALID = "invalid"
    NEWER = "newer"  # written by a later version: this one cannot read it, but it is not corrupt
    UNREADABLE = "unreadable"


class Unfit(Exception):
    """The reason why a stored record cannot be used, and the state of its entry."""

    def __init__(self, why: str, state: State = State.INVALID) -> None:
        super().__init__(why)
        self.state = state


class AgentRecord(Value):
    """The owner of a name. Times are RFC 3339 text in UTC.

    `manifest_path` and `agent_def_dir` are not checked here: the caller checks them before use. `host` is the machine
    of the tmux session; a record without one was written on the machine where it is stored.
    """

    kind = "tmux"  # of the terminal: the only one

    agent_name: str
    agent_id: str
    generation_id: str
    published_at: str
    lease_expires_at: str
    backend: str = "tmux"
    tool: str
    manifest_path: str
    session_root: str | None = None
    agent_def_dir: str | None = None
    session_name: str
    socket: str | None = None
    host: str | None = None

    @classmethod
    def parse(cls, value: object) -> AgentRecord:
        """Return the record in a decoded JSON value; raise Unfit with the first field that is not valid."""
        values = _check_object("the record", value, _TOP)
        for part, checks in _PARTS.items():
            values |= _check_object(part, values.pop(part), checks, part + ".")
        if parse_time(values["lease_expires_at"]) <= parse_time(values["published_at"]):
            raise Unfit("lease_expires_at must be after published_at")
        return cls(**{name: values[name] for name in cls.fields()})

    @classmethod
    def parse_bytes(cls, content: bytes) -> AgentRecord:
        """Return the record in these bytes; raise Unfit for anything else."""
        if len(content) > MAX_RECORD_BYTES:
            raise Unfit(f"is longer than {MAX_RECORD_BYTES} bytes")
        try:
            value = fields.parse_json(content.decode(), _DECODER.decode)
        except ValueError:
            raise Unfit("is not JSON", State.MALFORMED) from None
        return cls.parse(value)

    def record(self) -> dict[str, Any]:
        """Return the record as it is stored, without the fields that are not set."""
        known = self.replace(host=None) if self.host == UNNAMED_HOST else self
        stored: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        stored |= {name: getattr(known, name) for name in _TOP if name in self.fields()}
        for part, names in _PARTS.items():
            stored[part] = {name: getattr(known, name) for name in names if getattr(known, name) is not None}
        return stored

    def content(self) -> bytes:
        return json.dumps(self.record(), indent=2).encode() + b"\n"

    def expires_ns(self) -> int:
        return parse_time(self.lease_expires_at)

    def is_fresh(self, now_ns: int) -> bool:
        return self.expires_ns() >= now_ns

    def place(self) -> str:
        """Return where the session is, for messages."""
        return f"tmux session {self.session_name!r}" + (f" on {self.host}" if self.host else "")

    def __repr__(self) -> str:
        return f"<AgentRecord {self.agent_name} id={self.agent_id} generation={self.generation_id}>"


def new_record(
    agent_name: str, agent_id: str, generation_id: str, *, now_ns: int, lease_ns: int, **others: Any
) -> AgentRecord:
    """Return a record that is ready to be published; raise InvalidValue with the argument that is not valid."""
    names = {"agent_name": agent_name, "agent_id": agent_id, "generation_id": generation_id}
    times = {"published_at": format_micros(now_ns), "lease_expires_at": format_micros(now_ns + lease_ns)}
    return check_record(AgentRecord(**names, **times, **others))


def check_record(record: AgentRecord) -> AgentRecord:
    """Return the record as a reader parses it; raise InvalidValue if it is not valid."""
    try:
        return AgentRecord.parse(record.record())
    except Unfit as error:
        field, _, why = str(error).partition(" ")
        raise InvalidValue(field, why) from None


def in_seconds(moment: str) -> str:
    """Return a stored time without fractions of a second, for messages."""
    return format_micros(parse_time(moment) // 10**9 * 10**9)


def new_generation_id() -> str:
    return os.urandom(16).hex()


class Entry(Value):
    """What is stored under one id. `record` is set if the state is FRESH or EXPIRED; else `why` is the reason.
    `touched_ns` is the time of the last write, 0 if unknown."""

    agent_id: str
    state: State
    record: AgentRecord | None = None
    why: str = ""
    touched_ns: int = 0

    @property
    def absent(self) -> bool:
        """Whether nothing is stored, not even a folder without its record."""
        return self.state is State.MISSING and not self.touched_ns

    def is_called(self, canonical_name: str) -> bool:
        return self.record is not None and self.record.agent_name == canonical_name

    def __repr__(self) -> str:
        return f"<Entry {self.agent_id} {self.state}>"


def parse_entry(agent_id: str, content: bytes, now_ns: int, touched_ns: int) -> Entry:
    """Return the entry for stored bytes, under the id that they are stored under."""
    try:
        record = AgentRecord.parse_bytes(content)
        if record.agent_id != agent_id:
            raise Unfit("agent_id names another agent")
    except Unfit as error:
        return Entry(agent_id=agent_id, state=error.state, why=str(error), touched_ns=touched_ns)
    state = State.FRESH if record.is_fresh(now_ns) else State.EXPIRED
    return Entry(agent_id=agent_id, state=state, record=record, touched_ns=touched_ns)


def _id(check: Callable[[str], str]) -> fields.Check:
    def checked_id(value: object) -> str:
        try:
            return check(fields.line(value))
        except InvalidValue as error:
            raise ValueError(error.why) from None

    return checked_id


def _kind(value: object) -> None:
    if value != AgentRecord.kind:
        raise ValueError(f"must be {AgentRecord.kind!r}")


_OPTIONAL = fields.optional(fields.line)
_PARTS: dict[str, dict[str, fields.Check]] = {
    "identity": {"backend": fields.line, "tool": fields.line},
    "runtime": {"manifest_path": fields.line, "session_root": _OPTIONAL, "agent_def_dir": _OPTIONAL},
    "terminal": {"kind": _kind, "session_name": fields.line, "socket": _OPTIONAL, "host": _OPTIONAL},
}
_TOP: dict[str, fields.Check] = {
    "schema_version": fields.exactly(SCHEMA_VERSION),
    "agent_name": _id(check_agent_name),
    "agent_id": _id(check_agent_id),
    "generation_id": _id(check_agent_id),
    "published_at": fields.time,
    "lease_expires_at": fields.time,
} | dict.fromkeys(_PARTS, lambda part: part)  # `parse` checks each part by itself


def _check_object(what: str, value: object, checks: Mapping[str, fields.Check], within: str = "") -> dict[str, Any]:
    """Return the checked fields of an object; refuse missing and unknown ones."""
    if not isinstance(value, dict):
        raise Unfit(f"{what} must be an object, not {fields.kind(value)}")
    version = value.get("schema_version")
    if checks is _TOP and type(version) is int and version > SCHEMA_VERSION:
        raise Unfit(f"was written by a newer baton (schema {str(version)[:20]})", State.NEWER)
    unknown = sorted(value.keys() - checks.keys())
    if unknown:
        raise Unfit(f"{within}{ascii(unknown[0][:40])[1:-1]} is not a field of this object")
    found: dict[str, Any] = {}
    for name, check in checks.items():
        if name not in value and check is not _OPTIONAL:
            raise Unfit(f"{within}{name} is missing")
        try:
            found[name] = check(value.get(name))
        except ValueError as error:
            raise Unfit(f"{within}{name} {error}") from None
    return found
