"""Check and normalise the names and ids of live agents.

`gpu` and `HOUMAO-gpu` are the same name; the second is the canonical one. Every caller that takes a name from outside
passes it through here once, before it builds a path or a query.
"""

import re
from collections.abc import Iterable

from baton.config import DEFAULT_AGENT_NAME_PREFIX
from baton.core.errors import InvalidValue
from baton.core.hashing import sha256

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_CANONICAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,95}", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)


class Names:
    """Normalise names under one prefix."""

    def __init__(self, prefix: str = DEFAULT_AGENT_NAME_PREFIX) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidValue("agent_name_prefix", "must be up to 32 of A-Z a-z 0-9 _ -, and begin with none of _ -")
        self.prefix = prefix

    def canonical(self, typed: str) -> str:
        """Return the name with its prefix; raise InvalidValue for what is not a name."""
        bare = self.bare(typed)
        if not _PLAIN.fullmatch(bare):  # guard: agent-name-in-path
            raise InvalidValue("agent name", f"{_WANTED}, not {_shown(typed)}")
        return self.prefix + bare

    def bare(self, typed: str) -> str:
        """Return the name without its prefix. Refuse a text that only looks like the prefix: a reader would take it for
        another name."""
        prefix = self.prefix.lower()
        if typed.lower() in (prefix, prefix.rstrip("-_")):
            raise InvalidValue("agent name", f"{typed!r} is the prefix of all names; add a name, such as gpu")
        bare = typed.removeprefix(self.prefix)
        if bare.lower().startswith(prefix):
            raise InvalidValue(
                "agent name", f"must not begin with {bare[: len(prefix)]!r}: it reads like {self.prefix!r}"
            )
        return bare

    def id_of(self, canonical_name: str, chosen: str | None) -> str:
        """Return the id that the user chose, or the one derived from the name."""
        return derived_id(canonical_name) if chosen is None else self.explicit_id(chosen)

    def explicit_id(self, value: str) -> str:
        """Return an id that the user chose. Refuse one that reads like a canonical name."""
        prefix = self.prefix.lower()
        reads_like_one = value.lower() == prefix.rstrip("-_") or value.lower().startswith(prefix)
        if reads_like_one and not is_derived(value):
            raise InvalidValue("agent id", f"must not be {_shown(value)}: it reads like a name under {self.prefix!r}")
        return check_agent_id(value)


_WANTED = "must be 1 to 64 of A-Z a-z 0-9 _ -, and begin with a letter or digit"


def check_agent_id(value: str, field: str = "agent id") -> str:
    if _PLAIN.fullmatch(value):
        return value
    raise InvalidValue(field, f"{_WANTED}, not {_shown(value)}")


def check_agent_name(value: str) -> str:
    """Accept a canonical name under any prefix, as a record may hold it."""
    if _CANONICAL.fullmatch(value):
        return value
    raise InvalidValue("agent name", f"must be 1 to 96 of A-Z a-z 0-9 _ -, not {_shown(value)}")


def is_agent_id(value: str) -> bool:
    return _PLAIN.fullmatch(value) is not None


def derived_id(canonical_name: str) -> str:
    """Return the id of an agent without an explicit one: the same for both spellings of its name, on every machine."""
    digest: str = sha256(canonical_name.encode()).hexdigest()
    return digest[:32]


def is_derived(value: str) -> bool:
    """Return whether the text has the form of a derived id. No agent is named like that."""
    return re.fullmatch(r"[0-9a-f]{32}", value, re.ASCII) is not None


def nearest(canonical_name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar; never the name itself."""
    from difflib import get_close_matches

    lower = {name.lower(): name for name in known if name != canonical_name}
    found = get_close_matches(canonical_name.lower(), lower, 1, 0.85)
    return lower[found[0]] if found else None


def _shown(text: str) -> str:
    return repr(text[:40]) + ("..." if len(text) > 40 else "")
