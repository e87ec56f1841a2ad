"""Find the one fresh record for a name or an id. This is the first stage: the session itself is checked later."""

from __future__ import annotations

from enum import StrEnum

from baton.core.errors import AgentNotFound
from baton.core.value import Value
from baton.live_agents.contract import State
from baton.live_agents.names import check_agent_id, derived_id, is_agent_id, is_derived, nearest
from baton.live_agents.record import in_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.live_agents.contract import Directory, Entry
    from baton.live_agents.names import Names
    from baton.live_agents.record import AgentRecord


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
    """The result of a look-up. `record` is set if the reason is FOUND; `text` explains it; `entries` were read."""

    record: AgentRecord | None
    reason: Reason
    text: str
    entries: list[Entry]

    def found(self) -> AgentRecord:
        """Return the record; raise AgentNotFound if there is none."""
        if self.record is None:
            raise AgentNotFound(self.text)
        return self.record


def resolve(directory: Directory, names: Names, wanted: str, *, by_id: bool = False) -> Resolution:
    """Look up a name, in either spelling, or an id. A text that is the name of one agent and the id of another is
    ambiguous. If agents have that name and none is fresh, an explicit id is not used in its place. `by_id`: look up an
    id only. Raise InvalidValue for what is neither."""
    if by_id:
        return _resolve_id(directory, check_agent_id(wanted))
    canonical = names.canonical(wanted)
    entries = {entry.agent_id: entry for entry in directory.named(canonical)}
    if is_agent_id(wanted) and wanted not in entries:
        entries[wanted] = directory.get(wanted)
    looked_at = [entry for entry in entries.values() if not entry.absent]
    called = [entry for entry in looked_at if _may_be_called(entry, canonical)]
    meant = [entry for entry in looked_at if entry.agent_id == wanted or _is_called(entry, canonical)]
    if called and not any(entry.state is State.FRESH for entry in called) and not is_derived(wanted):
        meant = called
    fresh = [entry for entry in meant if entry.state is State.FRESH]
    if len(fresh) > 1:
        listed = ", ".join(f"{entry.agent_id} ({_where(entry)})" for entry in fresh)
        text = f"{wanted} may be any of {len(fresh)}: {listed}; name one by its id, with --id"
        return _none(Reason.AMBIGUOUS, text, looked_at)
    if fresh:
        return _of(fresh[0], looked_at)
    others = [entry.record for entry in looked_at if entry.record is not None and entry not in meant]
    if others and not meant:
        text = f"the place of {canonical} (id {others[0].agent_id}) is taken by {others[0].agent_name}"
        return _none(Reason.OTHER_NAME, text, looked_at)
    if looked_at:
        return _stale(wanted, min(meant or looked_at, key=_rank), looked_at)
    near = nearest(canonical, directory.names())
    hint = f"did you mean {near}?" if near else "`baton agent list` shows the live agents"
    return _none(Reason.MISSING, f"there is no live agent {canonical}; {hint}", looked_at)


def _resolve_id(directory: Directory, agent_id: str) -> Resolution:
    entry = directory.get(agent_id)
    if entry.absent:
        text = f"there is no live agent with id {agent_id}; `baton agent list` shows the live agents"
        return _none(Reason.MISSING, text, [])
    return _of(entry, [entry]) if entry.state is State.FRESH else _stale(agent_id, entry, [entry])


def _may_be_called(entry: Entry, canonical: str) -> bool:
    """Return whether the entry has that name, or is an unreadable record in the place of that name."""
    unknown = entry.record is None and entry.state is not State.MISSING
    return _is_called(entry, canonical) or (unknown and entry.agent_id == derived_id(canonical))


def _is_called(entry: Entry, canonical: str) -> bool:
    return entry.record is not None and entry.record.agent_name == canonical


# The state that is closest to usable explains most.
_BEST = (State.EXPIRED, State.NEWER, State.UNREADABLE, State.INVALID, State.MALFORMED, State.MISSING)


def _rank(entry: Entry) -> int:
    return _BEST.index(entry.state)


def _stale(wanted: str, entry: Entry, looked_at: list[Entry]) -> Resolution:
    if entry.record is not None:
        ended = in_seconds(entry.record.lease_expires_at)
        text = f"the lease of {entry.record.agent_name} (id {entry.agent_id}) expired at {ended}"
    else:
        text = f"the record of {wanted} (id {entry.agent_id}) is {entry.state}: {entry.why}"
    return _none(Reason(entry.state.value), text, looked_at)


def _none(reason: Reason, text: str, entries: list[Entry]) -> Resolution:
    return Resolution(record=None, reason=reason, text=text, entries=entries)


def _of(entry: Entry, looked_at: list[Entry]) -> Resolution:
    assert entry.record is not None
    text = f"{entry.record.agent_name} is {_where(entry)}, until {in_seconds(entry.record.lease_expires_at)}"
    return Resolution(record=entry.record, reason=Reason.FOUND, text=text, entries=looked_at)


def _where(entry: Entry) -> str:
    record = entry.record
    assert record is not None
    return f"tmux session {record.session_name!r}" + (f" on {record.host}" if record.host else "")
