"""Decide who owns an agent id: publish, refresh, remove. Each compares and writes under the lock of that id.

A generation is one live session. It owns the id while its lease lasts. Another generation may take the id after the
lease has expired, when no valid record is stored, or by an explicit takeover. A generation that was replaced can
neither refresh nor remove the record.
"""

from __future__ import annotations

from baton.core.clock import format_time, parse_time
from baton.core.errors import AgentTaken, InvalidValue, OwnershipLost
from baton.live_agents.contract import State
from baton.live_agents.record import UNNAMED_HOST, check_record, in_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.live_agents.contract import Directory, Entry
    from baton.live_agents.record import AgentRecord

DEFAULT_LEASE_SEC = 24 * 3600
_MAX_LEASE_NS = 10 * 366 * 24 * 3600 * 10**9
_CORRUPT = frozenset({State.MALFORMED, State.INVALID})


def check_lease(lease_ns: float) -> int:
    if 0 < lease_ns <= _MAX_LEASE_NS:  # false for NaN, too
        return int(lease_ns)
    raise InvalidValue("lease", "must be more than 0 and at most 10 years")


def publish(
    directory: Directory,
    record: AgentRecord,
    *,
    takeover: bool = False,
    before_put: Callable[[], None] | None = None,
) -> AgentRecord:
    """Make the record's generation the owner of its id; raise AgentTaken with the owner if it may not.

    Return the stored record: a generation that publishes again keeps its first `published_at`. `before_put` runs under
    the lock, after the check and before the record becomes visible."""
    check_record(record)
    with directory.locked(record.agent_id) as slot:
        now_ns = directory.now_ns()
        if not record.is_fresh(now_ns):
            raise InvalidValue("lease_expires_at", f"has passed ({in_seconds(record.lease_expires_at)}); renew it")
        owner = slot.entry.record
        same = owner is not None and owner.generation_id == record.generation_id
        if not takeover and not (owner is not None and same and _is_one_session(owner, record)):
            _refuse_if_owned(slot.entry, record.generation_id)
        if owner is not None and same:
            # A time in the future was written before the clock was set back.
            record = record.replace(published_at=format_time(min(parse_time(owner.published_at), now_ns)))
        if slot.entry.state in _CORRUPT:
            slot.quarantine()
        if before_put is not None:
            before_put()
        slot.put(record)
    return record


def refresh(
    directory: Directory, agent_id: str, generation_id: str, *, lease_ns: int, record: AgentRecord | None = None
) -> AgentRecord:
    """Extend the owner's lease to `lease_ns` from now; raise OwnershipLost if another generation owns the id.

    If no record is stored, publish `record` again, if it is given."""
    check_lease(lease_ns)
    with directory.locked(agent_id) as slot:
        stored = slot.entry.record
        if stored is None:
            _refuse_if_owned(slot.entry, generation_id)
            stored = record
        if stored is None:
            raise OwnershipLost(f"nothing is published for {agent_id} ({_state(slot.entry)}); publish it again")
        if stored.generation_id != generation_id:
            raise OwnershipLost(
                f"{_describe(stored)} owns {stored.agent_name} since {in_seconds(stored.published_at)}, not "
                f"generation {generation_id}; stop using the name"
            )
        if slot.entry.state in _CORRUPT:
            slot.quarantine()
        now_ns = directory.now_ns()
        renewed = check_record(
            stored.replace(
                # A time in the future was written before the clock was set back.
                published_at=format_time(min(parse_time(stored.published_at), now_ns)),
                lease_expires_at=format_time(now_ns + lease_ns),
            )
        )
        slot.put(renewed)
    return renewed


def remove(directory: Directory, agent_id: str, generation_id: str) -> AgentRecord | None:
    """Remove the record of that generation and return it; None if there is none. Raise OwnershipLost, and remove
    nothing, if another generation owns the id."""
    with directory.locked(agent_id) as slot:
        stored = slot.entry.record
        if stored is None:
            return None
        if stored.generation_id != generation_id:  # guard: removal-generation
            raise OwnershipLost(
                f"{_describe(stored)} owns {stored.agent_name}, not generation {generation_id}; nothing was removed"
            )
        slot.remove()
    return stored


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
    host = f" on {record.host}" if record.host else ""
    return f"tmux session {record.session_name!r}{host} (generation {record.generation_id})"


def _state(entry: Entry) -> str:
    return f"{entry.state}: {entry.why}" if entry.why else str(entry.state)
