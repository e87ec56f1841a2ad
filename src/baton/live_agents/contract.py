"""Define what a store of live agents does; `files` and `postgres` implement it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Self

from baton.live_agents.record import AgentRecord, Entry


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
    def find_named(self, canonical_name: str) -> list[Entry]:
        """Return every entry that may have that name, and the one under the derived id, without reading all."""

    @abstractmethod
    def all(self) -> Iterator[Entry]:
        """Yield every entry, whatever its state."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the canonical names that were published, perhaps past ones: for "did you mean"."""

    @abstractmethod
    def locked(self, agent_id: str) -> AbstractContextManager[Entry]:
        """Lock the entry of that id while the block runs, and return it: no other process writes it.

        Only such a block may call `put`, `remove` and `quarantine`, with the entry that it got."""

    @abstractmethod
    def put(self, entry: Entry, record: AgentRecord) -> None:
        """Replace the entry by this record, durably."""

    @abstractmethod
    def remove(self, entry: Entry) -> None:
        """Remove the entry."""

    @abstractmethod
    def quarantine(self, entry: Entry) -> str:
        """Move the entry aside; return its new place."""

    def close(self) -> None:  # noqa: B027  a store that keeps nothing open needs none
        """Close files and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
