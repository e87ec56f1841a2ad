"""Define what a store of live agents does; `files` and `postgres` implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

from baton.core.value import Value
from baton.live_agents.record import AgentRecord, Newer, NotJson, Unfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Protocol, Self

    class Slot(Protocol):
        """The entry of one id, while its lock is held."""

        entry: Entry

        def put(self, record: AgentRecord) -> None:
            """Replace the entry, durably."""

        def remove(self) -> None: ...

        def quarantine(self) -> str:
            """Move the entry aside; return its new place."""


class State(StrEnum):
    """The state of an entry. Only a FRESH one can be used."""

    FRESH = "fresh"
    EXPIRED = "expired"
    MISSING = "missing"
    MALFORMED = "malformed"
    INVALID = "invalid"
    NEWER = "newer"
    UNREADABLE = "unreadable"


class Entry(Value):
    """What is stored under one id. `record` is set if the state is FRESH or EXPIRED; else `why` is the reason.
    `touched_ns` is the time of the last write, 0 if unknown."""

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
        """Whether nothing is stored, not even a folder without its record."""
        return self.state is State.MISSING and not self.touched_ns

    def __repr__(self) -> str:
        return f"<Entry {self.agent_id} {self.state}>"


class Directory(ABC):
    """A store of live agents. Use it in a `with` block, or close it."""

    where: str
    multi_host: bool

    @abstractmethod
    def now_ns(self) -> int:
        """Return the time by which leases end."""

    @abstractmethod
    def get(self, agent_id: str) -> Entry:
        """Return what is stored under that id, in constant time."""

    @abstractmethod
    def named(self, canonical_name: str) -> list[Entry]:
        """Return every entry that may have that name, and the one under the derived id, without reading all."""

    @abstractmethod
    def all(self) -> Iterator[Entry]:
        """Yield every entry, whatever its state."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the canonical names that were published, perhaps past ones: for "did you mean"."""

    @abstractmethod
    def locked(self, agent_id: str) -> AbstractContextManager[Slot]:
        """Lock the entry of that id while the block runs: no other process writes it."""

    def close(self) -> None:  # noqa: B027  a store that keeps nothing open needs none
        """Close files and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_STATE_OF: dict[type[Unfit], State] = {NotJson: State.MALFORMED, Newer: State.NEWER}


def parse_entry(agent_id: str, content: bytes, now_ns: int, touched_ns: int) -> Entry:
    """Return the entry for stored bytes, under the id that they are stored under."""
    try:
        record = AgentRecord.parse_bytes(content)
    except Unfit as error:
        state = _STATE_OF.get(type(error), State.INVALID)
        return Entry.unfit(agent_id, state, str(error), touched_ns)
    if record.agent_id != agent_id:
        return Entry.unfit(agent_id, State.INVALID, "agent_id names another agent", touched_ns)
    return Entry.of(record, now_ns, touched_ns)
