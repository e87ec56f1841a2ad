"""Find the one fresh record for a name or an id. This is the first stage: the session itself is checked later."""

from enum import StrEnum

from baton.core.errors import AgentNotFound
from baton.core.value import Value
from baton.live_agents.contract import Directory
from baton.live_agents.names import Names, check_agent_id, derived_id, is_agent_id, is_derived, nearest
from baton.live_agents.record import AgentRecord, Entry, State, in_seconds


class Reason(StrEnum):
    """Why there is a record, or none, if it is not the state of one entry."""

    FOUND = "found"
    OTHER_NAME = "other name"
    AMBIGUOUS = "ambiguous"


class Resolution(Value):
    """The result of a look-up. `record` is set if the reason is FOUND; `text` explains it; `entries` were read."""

    record: AgentRecord | None = None
    reason: Reason | State
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
        entry = directory.get(check_agent_id(wanted))
        if not entry.absent:
            return _describe(entry, [entry])
        text = f"there is no live agent with id {wanted}; `baton agent list` shows the live agents"
        return Resolution(reason=State.MISSING, text=text, entries=[])
    canonical = names.canonical(wanted)
    entries = {entry.agent_id: entry for entry in directory.find_named(canonical)}
    if is_agent_id(wanted) and wanted not in entries:
        entries[wanted] = directory.get(wanted)
    looked_at = [entry for entry in entries.values() if not entry.absent]
    called = [entry for entry in looked_at if _may_be_called(entry, canonical)]
    meant = [entry for entry in looked_at if entry.agent_id == wanted or entry.is_called(canonical)]
    if called and not any(entry.state is State.FRESH for entry in called) and not is_derived(wanted):
        meant = called
    fresh = [entry.record for entry in meant if entry.record is not None and entry.state is State.FRESH]
    if len(fresh) > 1:
        listed = ", ".join(f"{record.agent_id} ({record.place()})" for record in fresh)
        text = f"{wanted} may be any of {len(fresh)}: {listed}; name one by its id, with --id"
        return Resolution(reason=Reason.AMBIGUOUS, text=text, entries=looked_at)
    others = [entry.record for entry in looked_at if entry.record is not None and entry not in meant]
    if others and not meant:
        text = f"the place of {canonical} (id {others[0].agent_id}) is taken by {others[0].agent_name}"
        return Resolution(reason=Reason.OTHER_NAME, text=text, entries=looked_at)
    if looked_at:
        best = min(meant or looked_at, key=lambda entry: _BEST.index(entry.state))
        return _describe(best, looked_at, wanted)
    near = nearest(canonical, directory.names())
    hint = f"did you mean {near}?" if near else "`baton agent list` shows the live agents"
    return Resolution(reason=State.MISSING, text=f"there is no live agent {canonical}; {hint}", entries=looked_at)


# The state that is closest to usable explains most.
_BEST = (
    State.FRESH, State.EXPIRED, State.NEWER, State.UNREADABLE, State.INVALID, State.MALFORMED, State.MISSING,
)  # fmt: skip


def _may_be_called(entry: Entry, canonical: str) -> bool:
    """Return whether the entry has that name, or is an unreadable record in the place of that name."""
    unknown = entry.record is None and entry.state is not State.MISSING
    return entry.is_called(canonical) or (unknown and entry.agent_id == derived_id(canonical))


def _describe(entry: Entry, looked_at: list[Entry], wanted: str | None = None) -> Resolution:
    """Return the result of a look-up that led to this entry."""
    record = entry.record
    if record is None:
        text = f"the record of {wanted or entry.agent_id} (id {entry.agent_id}) is {entry.state}: {entry.why}"
        return Resolution(reason=entry.state, text=text, entries=looked_at)
    until = in_seconds(record.lease_expires_at)
    if entry.state is State.FRESH:
        text = f"{record.agent_name} is {record.place()}, until {until}"
        return Resolution(record=record, reason=Reason.FOUND, text=text, entries=looked_at)
    text = f"the lease of {record.agent_name} (id {entry.agent_id}) expired at {until}"
    return Resolution(reason=entry.state, text=text, entries=looked_at)
