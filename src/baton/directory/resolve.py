"""The first stage of finding an agent: whether the directory holds one fresh record for what was asked."""

from __future__ import annotations

from enum import StrEnum

from baton.directory.base import State
from baton.directory.names import is_agent_id, nearest
from baton.errors import AgentNotFound
from baton.model import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from baton.directory.base import Directory, Entry
    from baton.directory.names import Names
    from baton.directory.record import AgentRecord


class Reason(StrEnum):
    """Why there is a record, or none."""

    FOUND = "found"
    MISSING = "missing"
    MALFORMED = "malformed"
    INVALID = "invalid"
    NEWER = "newer"
    UNREADABLE = "unreadable"
    EXPIRED = "expired"
    OTHER_NAME = "other name"
    AMBIGUOUS = "ambiguous"


class Resolution(Value):
    """`record` is there when the reason is FOUND. `entries` are all that were looked at, `text` says it to a person."""

    __slots__ = ("entries", "reason", "record", "text")

    record: AgentRecord | None
    reason: Reason
    text: str
    entries: list[Entry]

    def found(self) -> AgentRecord:
        """The record, or AgentNotFound."""
        if self.record is None:
            raise AgentNotFound(self.text)
        return self.record


def resolve(directory: Directory, names: Names, wanted: str) -> Resolution:
    """Looks for a name, in either spelling, and for an id; what is both, for two agents, is ambiguous. InvalidValue for
    what can be neither."""
    canonical = names.canonical(wanted)
    entries = {entry.agent_id: entry for entry in directory.named(canonical)}
    if is_agent_id(wanted) and wanted not in entries:
        entries[wanted] = directory.get(wanted)
    looked_at = [entry for entry in entries.values() if not entry.absent]
    meant = [entry for entry in looked_at if entry.agent_id == wanted or _is_called(entry, canonical)]
    fresh = [entry for entry in meant if entry.state is State.FRESH]
    if len(fresh) > 1:
        listed = ", ".join(f"{entry.agent_id} ({_where(entry)})" for entry in fresh)
        return _none(Reason.AMBIGUOUS, f"{wanted} may be any of {len(fresh)}: {listed}; name one by its id", looked_at)
    if fresh:
        return Resolution(record=fresh[0].record, reason=Reason.FOUND, text=_found(fresh[0]), entries=looked_at)
    others = [entry.record for entry in looked_at if entry.record is not None and entry not in meant]
    if others and not meant:
        text = f"the place of {canonical} (id {others[0].agent_id}) is taken by {others[0].agent_name}"
        return _none(Reason.OTHER_NAME, text, looked_at)
    if looked_at:
        return _stale(wanted, min(meant or looked_at, key=_worth), looked_at)
    near = nearest(canonical, directory.names())
    hint = f"did you mean {near}?" if near else "`baton agent list` shows who is there"
    return _none(Reason.MISSING, f"there is no live agent {canonical}; {hint}", looked_at)


def _is_called(entry: Entry, canonical: str) -> bool:
    return entry.record is not None and entry.record.agent_name == canonical


# The one that comes nearest to being usable says most about what happened.
_BEST: Final = (State.EXPIRED, State.NEWER, State.UNREADABLE, State.INVALID, State.MALFORMED, State.MISSING)


def _worth(entry: Entry) -> int:
    return _BEST.index(entry.state)


def _stale(wanted: str, entry: Entry, looked_at: list[Entry]) -> Resolution:
    if entry.record is not None:
        text = (
            f"the lease of {entry.record.agent_name} (id {entry.agent_id}) ran out at {entry.record.lease_expires_at}"
        )
    else:
        text = f"the record of {wanted} (id {entry.agent_id}) is {entry.state}: {entry.why}"
    return _none(Reason(entry.state.value), text, looked_at)


def _none(reason: Reason, text: str, entries: list[Entry]) -> Resolution:
    return Resolution(record=None, reason=reason, text=text, entries=entries)


def _found(entry: Entry) -> str:
    assert entry.record is not None
    return f"{entry.record.agent_name} is {_where(entry)}, until {entry.record.lease_expires_at}"


def _where(entry: Entry) -> str:
    record = entry.record
    assert record is not None
    return f"tmux session {record.session_name!r}" + (f" on {record.host}" if record.host else "")
