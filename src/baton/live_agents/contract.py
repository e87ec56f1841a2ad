"""What a store of live agents can do. Files and PostgreSQL do it; `ownership` decides what may be done."""

from __future__ import annotations

from enum import StrEnum

from baton.core.value import Value
from baton.live_agents.record import AgentRecord, Newer, NotJson, Unfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Final, Protocol

    class Directory(Protocol):
        where: str
        multi_host: bool

        def now_ns(self) -> int:
            """The clock that leases end by."""

        def get(self, agent_id: str) -> Entry:
            """What is filed under that id, in constant time."""

        def named(self, canonical_name: str) -> list[Entry]:
            """Every entry that may be of that name, the one under the derived id included, without opening all
            others."""

        def all(self) -> Iterator[Entry]:
            """Every entry there is, whatever its state."""

        def names(self) -> list[str]:
            """Canonical names that were published, perhaps some of the past: for did-you-mean."""

        def locked(self, agent_id: str) -> AbstractContextManager[Slot]:
            """The one place of that id, for as long as the block runs: nobody else writes there meanwhile."""

        def close(self) -> None: ...

    class Slot(Protocol):
        entry: Entry

        def put(self, record: AgentRecord) -> None:
            """Replaces what is there, durably."""

        def remove(self) -> None: ...

        def quarantine(self) -> str:
            """Moves what is there out of the way and returns where it is now."""


class State(StrEnum):
    """What an entry is worth. Everything but FRESH is as good as not found."""

    FRESH = "fresh"
    EXPIRED = "expired"
    MISSING = "missing"
    MALFORMED = "malformed"
    INVALID = "invalid"
    NEWER = "newer"
    UNREADABLE = "unreadable"


class Entry(Value):
    """What lies under one id. `record` is there when the state is FRESH or EXPIRED; `why` says what is wrong
    otherwise. `touched_ns` is when it was last written, as far as that is known."""

    agent_id: str
    state: State
    record: AgentRecord | None
    why: str
    touched_ns: int

    @classmethod
    def of(cls, record: AgentRecord, now_ns: int, touched_ns: int) -> Entry:
        state = State.FRESH if record.is_fresh(now_ns) else State.EXPIRED
        return cls(agent_id=record.agent_id, state=state, record=record, why="", touched_ns=touched_ns)

    @classmethod
    def unfit(cls, agent_id: str, state: State, why: str, touched_ns: int = 0) -> Entry:
        return cls(agent_id=agent_id, state=state, record=None, why=why, touched_ns=touched_ns)

    @property
    def absent(self) -> bool:
        """Whether there is nothing at all, as opposed to a folder without its record."""
        return self.state is State.MISSING and not self.touched_ns

    def __repr__(self) -> str:
        return f"<Entry {self.agent_id} {self.state}>"


_STATE_OF: Final[dict[type[Unfit], State]] = {NotJson: State.MALFORMED, Newer: State.NEWER}


def parsed_entry(agent_id: str, content: bytes, now_ns: int, touched_ns: int) -> Entry:
    """What stored bytes are worth, under the id they are filed under."""
    try:
        record = AgentRecord.parse_bytes(content)
    except Unfit as error:
        state = _STATE_OF.get(type(error), State.INVALID)
        return Entry.unfit(agent_id, state, str(error), touched_ns)
    if record.agent_id != agent_id:
        return Entry.unfit(agent_id, State.INVALID, "agent_id names another agent", touched_ns)
    return Entry.of(record, now_ns, touched_ns)
