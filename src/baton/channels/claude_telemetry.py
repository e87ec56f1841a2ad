"""Read Claude's telemetry: log events as OTLP in JSON. It alone says at once what a person decided at the keyboard."""

from __future__ import annotations

from baton.core.fields import parse_json
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_EVENTS = 10_000  # of one message


class Event(Value):
    """A log event: its name, such as tool_decision, and its attributes."""

    name: str
    about: Mapping[str, Any]

    @property
    def conversation_id(self) -> str:
        return str(self.about.get("session.id") or "")

    @property
    def turn(self) -> str:
        return str(self.about.get("prompt.id") or "")


def read_events(body: bytes) -> list[Event]:
    """Return the events of a message. ValueError, TypeError, AttributeError or KeyError: it has another form."""
    found = []
    for record in _records(parse_json(body)):
        about = {each["key"]: _value(each["value"]) for each in record.get("attributes") or ()}
        if isinstance(about.get("event.name"), str):
            found.append(Event(name=about["event.name"], about=about))
        if len(found) >= _MAX_EVENTS:
            break
    return found


def _records(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for resource in message.get("resourceLogs") or ():
        for scope in resource.get("scopeLogs") or ():
            yield from scope.get("logRecords") or ()


def _value(value: Mapping[str, Any]) -> Any:
    """Return a value of OTLP: {"intValue": "3"} is 3."""
    kind, given = next(iter(value.items()))
    return int(given) if kind == "intValue" else given


def number(value: object) -> int:
    """Return a count that may be given as text; 0 for anything else."""
    try:
        return max(0, int(value)) if isinstance(value, int | float | str) else 0
    except (ValueError, OverflowError):
        return 0


def cost(value: object) -> float | None:
    """Return a cost in dollars; None for anything else. Usage can only raise a cost."""
    try:
        found = float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None
    return found if found is not None and 0 <= found < float("inf") else None
