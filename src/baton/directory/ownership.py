"""Who owns an agent id: publish, refresh, remove. Compared and written under the one lock of that id.

A generation is one live session. It keeps the id while its lease lasts; another generation may have it when the lease
has run out, when nothing usable is stored, or by an explicit takeover. A generation that was replaced has lost: its
refresh is told so, and its removal removes nothing.
"""

from __future__ import annotations

from baton.clock import format_time, parse_time
from baton.directory.base import State
from baton.directory.record import checked
from baton.errors import AgentTaken, OwnershipLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from baton.directory.base import Directory, Entry
    from baton.directory.record import AgentRecord

DEFAULT_LEASE_SEC = 24 * 3600
_RUINS: Final = frozenset({State.MALFORMED, State.INVALID})


def publish(directory: Directory, record: AgentRecord, *, takeover: bool = False) -> AgentRecord:
    """Makes the record's generation the owner of its id, or raises AgentTaken saying who is. Returns what is stored: a
    generation that publishes again keeps the moment it first did."""
    checked(record)
    with directory.locked(record.agent_id) as slot:
        owner = slot.entry.record
        same = owner is not None and owner.generation_id == record.generation_id
        if not takeover and not same:
            _refuse_if_owned(slot.entry)
        if owner is not None and same and parse_time(owner.published_at) < record.expires_ns():
            record = record.replace(published_at=owner.published_at)
        if slot.entry.state in _RUINS:
            slot.quarantine()
        slot.put(record)
    return record


def refresh(
    directory: Directory, agent_id: str, generation_id: str, *, lease_ns: int, record: AgentRecord | None = None
) -> AgentRecord:
    """The owner lives: its lease ends `lease_ns` from now. OwnershipLost when another generation has the id. When the
    record is gone, whoever brings it along as `record` publishes it again."""
    with directory.locked(agent_id) as slot:
        stored = slot.entry.record
        if stored is None:
            _refuse_if_owned(slot.entry)
            stored = record
        if stored is None:
            raise OwnershipLost(f"nothing is published for {agent_id} ({_state(slot.entry)}); publish it again")
        if stored.generation_id != generation_id:
            raise OwnershipLost(
                f"{_described(stored)} owns {stored.agent_name} since {stored.published_at}, not generation "
                f"{generation_id}; stand down"
            )
        if slot.entry.state in _RUINS:
            slot.quarantine()
        renewed = checked(stored.replace(lease_expires_at=format_time(directory.now_ns() + lease_ns)))
        slot.put(renewed)
    return renewed


def remove(directory: Directory, agent_id: str, generation_id: str) -> AgentRecord | None:
    """Removes the record if it is still of that generation, and returns it; None when there is none. OwnershipLost, and
    nothing removed, when another generation has the id."""
    with directory.locked(agent_id) as slot:
        stored = slot.entry.record
        if stored is None:
            return None
        if stored.generation_id != generation_id:
            raise OwnershipLost(
                f"{_described(stored)} owns {stored.agent_name}, not generation {generation_id}; nothing was removed"
            )
        slot.remove()
    return stored


def _refuse_if_owned(entry: Entry) -> None:
    if entry.state is State.FRESH and entry.record is not None:
        owner = entry.record
        raise AgentTaken(
            f"{owner.agent_name} belongs to {_described(owner)} since {owner.published_at}, until "
            f"{owner.lease_expires_at}; use another name, or take it over with --takeover",
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
