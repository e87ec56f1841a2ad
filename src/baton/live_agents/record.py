"""Define the record of a live agent: where to find the session that owns a name. Strict, and pointers only."""

from __future__ import annotations

import json
import os

from baton.core import fields
from baton.core.clock import format_time, parse_time
from baton.core.errors import InvalidValue
from baton.core.value import Value
from baton.live_agents.names import check_agent_id, check_agent_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from baton.core.fields import Check

SCHEMA_VERSION = 1
MAX_RECORD_BYTES = 64 * 1024
# In a directory of many machines, a record without a host is on an unknown one.
UNNAMED_HOST = "a host that is not named"


class Unfit(Exception):
    """The reason why a stored record cannot be used."""


class NotJson(Unfit):
    pass


class Newer(Unfit):
    """A record of a later version: this version cannot read it, but it is not corrupt."""


class AgentRecord(Value):
    """The owner of a name. Times are RFC 3339 text in UTC.

    `manifest_path` and `agent_def_dir` are not checked here: the caller checks them before use. `host` is the machine
    of the tmux session; a record without one was written on the machine where it is stored.
    """

    agent_name: str
    agent_id: str
    generation_id: str
    published_at: str
    lease_expires_at: str
    backend: str
    tool: str
    manifest_path: str
    session_root: str | None
    agent_def_dir: str | None
    session_name: str
    socket: str | None
    host: str | None

    @classmethod
    def parse(cls, value: object) -> AgentRecord:
        """Return the record in a decoded JSON value; raise Unfit with the first field that is not valid."""
        top = _fields("the record", value, _TOP)
        identity = _fields("identity", top["identity"], _IDENTITY)
        runtime = _fields("runtime", top["runtime"], _RUNTIME)
        terminal = _fields("terminal", top["terminal"], _TERMINAL)
        if terminal["kind"] != "tmux":
            raise Unfit("terminal.kind must be 'tmux'")
        if parse_time(top["lease_expires_at"]) <= parse_time(top["published_at"]):
            raise Unfit("lease_expires_at must be after published_at")
        names = ("agent_name", "agent_id", "generation_id", "published_at", "lease_expires_at")
        return cls(
            **{name: top[name] for name in names},
            **identity,
            **runtime,
            session_name=terminal["session_name"],
            socket=terminal["socket"],
            host=terminal["host"],
        )

    @classmethod
    def parse_bytes(cls, content: bytes) -> AgentRecord:
        """Return the record in these bytes; raise Unfit for anything else."""
        if len(content) > MAX_RECORD_BYTES:
            raise Unfit(f"is longer than {MAX_RECORD_BYTES} bytes")
        try:
            value = json.loads(content.decode(), object_pairs_hook=fields.no_duplicates)
        except (ValueError, RecursionError):
            raise NotJson("is not JSON") from None
        return cls.parse(value)

    def record(self) -> dict[str, Any]:
        """Return the record as it is stored, without the fields that are not set."""
        runtime = {"manifest_path": self.manifest_path}
        terminal = {"kind": "tmux", "session_name": self.session_name}
        for part, names in ((runtime, ("session_root", "agent_def_dir")), (terminal, ("socket", "host"))):
            part.update({name: getattr(self, name) for name in names if getattr(self, name) is not None})
        if self.host == UNNAMED_HOST:
            del terminal["host"]
        return {
            "schema_version": SCHEMA_VERSION,
            "agent_name": self.agent_name,
            "agent_id": self.agent_id,
            "generation_id": self.generation_id,
            "published_at": self.published_at,
            "lease_expires_at": self.lease_expires_at,
            "identity": {"backend": self.backend, "tool": self.tool},
            "runtime": runtime,
            "terminal": terminal,
        }

    def content(self) -> bytes:
        return json.dumps(self.record(), indent=2).encode() + b"\n"

    def expires_ns(self) -> int:
        return parse_time(self.lease_expires_at)

    def is_fresh(self, now_ns: int) -> bool:
        return self.expires_ns() >= now_ns

    def __repr__(self) -> str:
        return f"<AgentRecord {self.agent_name} id={self.agent_id} generation={self.generation_id}>"


def new_record(
    agent_name: str,
    agent_id: str,
    generation_id: str,
    *,
    now_ns: int,
    lease_ns: int,
    tool: str,
    manifest_path: str,
    session_name: str,
    socket: str | None = None,
    host: str | None = None,
    backend: str = "tmux",
    session_root: str | None = None,
    agent_def_dir: str | None = None,
) -> AgentRecord:
    """Return a record that is ready to be published; raise InvalidValue with the argument that is not valid."""
    draft = AgentRecord(
        agent_name=agent_name, agent_id=agent_id, generation_id=generation_id, published_at=format_time(now_ns),
        lease_expires_at=format_time(now_ns + lease_ns), backend=backend, tool=tool, manifest_path=manifest_path,
        session_root=session_root, agent_def_dir=agent_def_dir, session_name=session_name, socket=socket, host=host,
    )  # fmt: skip
    return check_record(draft)


def check_record(record: AgentRecord) -> AgentRecord:
    """Return the record as a reader parses it; raise InvalidValue if it is not valid."""
    try:
        return AgentRecord.parse(record.record())
    except Unfit as error:
        field, _, why = str(error).partition(" ")
        raise InvalidValue(field, why) from None


def in_seconds(moment: str) -> str:
    """Return a stored time without fractions of a second, for messages."""
    return format_time(parse_time(moment) // 10**9 * 10**9)


def new_generation_id() -> str:
    return os.urandom(16).hex()


# -- what each field may hold -------------------------------------------------------------------------------


def _id(check: Callable[[str], str]) -> Callable[[object], str]:
    def checked_id(value: object) -> str:
        try:
            return check(fields.line(value))
        except InvalidValue as error:
            raise ValueError(error.why) from None

    return checked_id


def _any(value: object) -> object:
    return value


_TOP: dict[str, Check] = {
    "schema_version": fields.exactly(SCHEMA_VERSION),
    "agent_name": _id(check_agent_name),
    "agent_id": _id(check_agent_id),
    "generation_id": _id(check_agent_id),
    "published_at": fields.time,
    "lease_expires_at": fields.time,
    "identity": _any,
    "runtime": _any,
    "terminal": _any,
}
_IDENTITY = {"backend": fields.line, "tool": fields.line}
_RUNTIME = {"manifest_path": fields.line, "session_root": fields.line, "agent_def_dir": fields.line}
_TERMINAL = {"kind": fields.line, "session_name": fields.line, "socket": fields.line, "host": fields.line}
_OPTIONAL = frozenset({"session_root", "agent_def_dir", "socket", "host"})


def _fields(where: str, value: object, checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the checked fields of an object; refuse missing and unknown ones."""
    if not isinstance(value, dict):
        raise Unfit(f"{where} must be an object, not {fields.kind(value)}")
    within = "" if checks is _TOP else where + "."
    if checks is _TOP and type(value.get("schema_version")) is int and value["schema_version"] > SCHEMA_VERSION:
        raise Newer(f"was written by a newer baton (schema {str(value['schema_version'])[:20]})")
    unknown = sorted(value.keys() - checks.keys())
    if unknown:
        raise Unfit(f"{within}{ascii(unknown[0][:40])[1:-1]} is not a field of this object")
    found: dict[str, Any] = {}
    for name, check in checks.items():
        if name in _OPTIONAL and value.get(name) is None:
            found[name] = None
            continue
        if name not in value:
            raise Unfit(f"{within}{name} is missing")
        try:
            found[name] = check(value[name])
        except ValueError as error:
            raise Unfit(f"{within}{name} {error}") from None
    return found
