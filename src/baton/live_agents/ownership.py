"""Who owns an agent id: publish, refresh, remove. Compared and written under the one lock of that id.

A generation is one live session. It keeps the id while its lease lasts; another generation may have it when the lease
has run out, when nothing usable is stored, or by an explicit takeover. A generation that was replaced has lost: its
refresh is told so, and its removal removes nothing.
"""

from __future__ import annotations

from baton.core.clock import format_time, parse_time
from baton.core.errors import AgentTaken, InvalidValue, OwnershipLost
from baton.live_agents.contract import State
from baton.live_agents.record import UNNAMED_HOST, checked, in_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from baton.live_agents.contract import Directory, Entry
    from baton.live_agents.record import AgentRecord

DEFAULT_LEASE_SEC = 24 * 3600
_MAX_LEASE_NS: Final = 10 * 366 * 24 * 3600 * 10**9
_RUINS: Final = frozenset({State.MALFORMED, State.INVALID})


def checked_lease(lease_ns: float) -> int:
    if 0 < lease_ns <= _MAX_LEASE_NS:  # which NaN is not, either
        return int(lease_ns)
    raise InvalidValue("lease", "must be more than 0 and at most 10 years")


def publish(
    directory: Directory,
    record: AgentRecord,
    *,
    takeover: bool = False,
    once_ours: Callable[[], None] | None = None,
) -> AgentRecord:
    """Makes the record's generation the owner of its id, or raises AgentTaken saying who is. Returns what is stored: a
    generation that publishes again keeps the moment it first did. `once_ours` runs when nobody can object any more and
    nobody can see the record yet."""
    checked(record)
    with directory.locked(record.agent_id) as slot:
        now_ns = directory.now_ns()
        if not record.is_fresh(now_ns):
            raise InvalidValue("lease_expires_at", f"is over since {in_seconds(record.lease_expires_at)}; renew it")
        owner = slot.entry.record
        same = owner is not None and owner.generation_id == record.generation_id
        if not takeover and not (owner is not None and same and _is_one_session(owner, record)):
            _refuse_if_owned(slot.entry, record.generation_id)
        if owner is not None and same:
            # A moment that has yet to come was written before the clock was set back.
            record = record.replace(published_at=format_time(min(parse_time(owner.published_at), now_ns)))
        if slot.entry.state in _RUINS:
            slot.quarantine()
        if once_ours is not None:
            once_ours()
        slot.put(record)
    return record


def refresh(
    directory: Directory, agent_id: str, generation_id: str, *, lease_ns: int, record: AgentRecord | None = None
) -> AgentRecord:
    """The owner lives: its lease ends `lease_ns` from now. OwnershipLost when another generation has the id. When the
    record is gone, whoever brings it along as `record` publishes it again."""
    checked_lease(lease_ns)
    with directory.locked(agent_id) as slot:
        stored = slot.entry.record
        if stored is None:
            _refuse_if_owned(slot.entry, generation_id)
            stored = record
        if stored is None:
            raise OwnershipLost(f"nothing is published for {agent_id} ({_state(slot.entry)}); publish it again")
        if stored.generation_id != generation_id:
            raise OwnershipLost(
                f"{_described(stored)} owns {stored.agent_name} since {in_seconds(stored.published_at)}, not "
                f"generation {generation_id}; stand down"
            )
        if slot.entry.state in _RUINS:
            slot.quarantine()
        now_ns = directory.now_ns()
        renewed = checked(
            stored.replace(
                # A moment that has yet to come was written before the clock was set back.
                published_at=format_time(min(parse_time(stored.published_at), now_ns)),
                lease_expires_at=format_time(now_ns + lease_ns),
            )
        )
        slot.put(renewed)
    return renewed


def remove(directory: Directory, agent_id: str, generation_id: str) -> AgentRecord | None:
    """Removes the record if it is still of that generation, and returns it; None when there is none. OwnershipLost, and
    nothing removed, when another generation has the id."""
    with directory.locked(agent_id) as slot:
        stored = slot.entry.record
        if stored is None:
            return None
        if stored.generation_id != generation_id:  # guard: removal-generation
            raise OwnershipLost(
                f"{_described(stored)} owns {stored.agent_name}, not generation {generation_id}; nothing was removed"
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
            f"{owner.agent_name} belongs to {_described(owner)} since {in_seconds(owner.published_at)}, until "
            f"{in_seconds(owner.lease_expires_at)};{another} use another name, or take it over with --takeover",
            owner,
        )
    if entry.state is State.NEWER:
        raise AgentTaken(
            f"the record of {entry.agent_id} {entry.why}; upgrade tmux-baton, or take the id over with --takeover"
        )
    if entry.state is State.UNREADABLE:
        raise AgentTaken(f"the record of {entry.agent_id} {entry.why}; who owns it cannot be told")


def _described(record: AgentRecord) -> str:
    host = f" on {record.host}" if record.host else ""
    return f"tmux session {record.session_name!r}{host} (generation {record.generation_id})"


def _state(entry: Entry) -> str:
    return f"{entry.state}: {entry.why}" if entry.why else str(entry.state)
