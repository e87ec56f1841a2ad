"""Decide who owns an agent id: publish, refresh, remove. Each compares and writes under the lock of that id.

A generation is one live session. It owns the id while its lease lasts. Another generation may take the id after the
lease has expired, when no valid record is stored, or by an explicit takeover. A generation that was replaced can
neither refresh nor remove the record.
"""

from collections.abc import Callable

from baton.core.clock import format_micros, parse_time
from baton.core.errors import AgentTaken, InvalidValue, OwnershipLost
from baton.live_agents.contract import Directory
from baton.live_agents.record import UNNAMED_HOST, AgentRecord, Entry, State, check_record, in_seconds

DEFAULT_LEASE_SEC = 24 * 3600
_MAX_LEASE_NS = 10 * 366 * 24 * 3600 * 10**9
_CORRUPT = frozenset({State.MALFORMED, State.INVALID})


def check_lease(lease_ns: float, field: str = "lease") -> int:
    if 0 < lease_ns <= _MAX_LEASE_NS:  # false for NaN, too
        return int(lease_ns)
    raise InvalidValue(field, "must be more than 0 and at most 10 years")


def publish(
    directory: Directory, record: AgentRecord, *, takeover: bool = False, before_put: Callable[[], None] | None = None
) -> AgentRecord:
    """Make the record's generation the owner of its id; raise AgentTaken with the owner if it may not.

    Return the stored record: a generation that publishes again keeps its first `published_at`. `before_put` runs under
    the lock, after the check and before the record becomes visible."""
    check_record(record)
    with directory.locked(record.agent_id) as entry:
        now_ns = directory.now_ns()
        if not record.is_fresh(now_ns):
            raise InvalidValue("lease_expires_at", f"has passed ({in_seconds(record.lease_expires_at)}); renew it")
        owner = entry.record if entry.record and entry.record.generation_id == record.generation_id else None
        if not takeover and (owner is None or not _is_one_session(owner, record)):
            _refuse_if_owned(entry, record.generation_id)
        if owner is not None:
            record = record.replace(published_at=_not_after(owner.published_at, now_ns))
        if entry.state in _CORRUPT:
            directory.quarantine(entry)
        if before_put is not None:
            before_put()
        directory.put(entry, record)
    return record


def refresh(
    directory: Directory, agent_id: str, generation_id: str, *, lease_ns: int, record: AgentRecord | None = None
) -> AgentRecord:
    """Extend the owner's lease to `lease_ns` from now; raise OwnershipLost if another generation owns the id.

    If no record is stored, publish `record` again, if it is given."""
    check_lease(lease_ns)
    with directory.locked(agent_id) as entry:
        stored = entry.record
        if stored is None:
            _refuse_if_owned(entry, generation_id)
            stored = record
        if stored is None:
            why = f"{entry.state}: {entry.why}"
            raise OwnershipLost(f"nothing is published for {agent_id} ({why}); publish it again")
        if stored.generation_id != generation_id:
            raise OwnershipLost(
                f"{_describe(stored)} owns {stored.agent_name} since {in_seconds(stored.published_at)}, not "
                f"generation {generation_id}; stop using the name"
            )
        if entry.state in _CORRUPT:
            directory.quarantine(entry)
        now_ns = directory.now_ns()
        published_at, expires_at = _not_after(stored.published_at, now_ns), format_micros(now_ns + lease_ns)
        renewed = check_record(stored.replace(published_at=published_at, lease_expires_at=expires_at))
        directory.put(entry, renewed)
    return renewed


def remove(directory: Directory, agent_id: str, generation_id: str) -> AgentRecord | None:
    """Remove the record of that generation and return it; None if there is none. Raise OwnershipLost, and remove
    nothing, if another generation owns the id."""
    with directory.locked(agent_id) as entry:
        stored = entry.record
        if stored is None:
            return None
        if stored.generation_id != generation_id:  # guard: removal-generation
            raise OwnershipLost(
                f"{_describe(stored)} owns {stored.agent_name}, not generation {generation_id}; nothing was removed"
            )
        directory.remove(entry)
    return stored


def _not_after(moment: str, now_ns: int) -> str:
    """Return the time, or now if it is in the future: it was written before the clock was set back."""
    return format_micros(min(parse_time(moment), now_ns))


def _is_one_session(owner: AgentRecord, record: AgentRecord) -> bool:
    hosts = {owner.host, record.host} - {None, UNNAMED_HOST}
    return (owner.session_name, owner.socket) == (record.session_name, record.socket) and len(hosts) < 2


def _refuse_if_owned(entry: Entry, generation_id: str) -> None:
    if entry.state is State.FRESH and entry.record is not None:  # guard: agent-name-owner
        owner = entry.record
        another = " a generation is one session, this is another;" if owner.generation_id == generation_id else ""
        raise AgentTaken(
            f"{owner.agent_name} belongs to {_describe(owner)} since {in_seconds(owner.published_at)}, until "
            f"{in_seconds(owner.lease_expires_at)};{another} use another name, or take it over with --takeover",
            owner,
        )
    if entry.state is State.NEWER:
        raise AgentTaken(
            f"the record of {entry.agent_id} {entry.why}; upgrade tmux-baton, or take the id over with --takeover"
        )
    if entry.state is State.UNREADABLE:
        raise AgentTaken(f"the record of {entry.agent_id} {entry.why}; its owner is unknown")


def _describe(record: AgentRecord) -> str:
    return f"{record.place()} (generation {record.generation_id})"
