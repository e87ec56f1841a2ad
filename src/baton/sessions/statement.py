"""Read signals as the one statement that the runner and the hook program act on, until both act on signals."""

from __future__ import annotations

from baton.core.facts import describe_call, one_line
from baton.core.signal import (
    WELL,
    Asked,
    Conversation,
    Retrying,
    Said,
    Signal,
    ToolStarted,
    TurnEnded,
    describe_retry,
)
from baton.core.value import Any, Value


class Statement(Value):
    """What signals mean. `finished` is the last message, whole. `trouble`: the agent tries again after a failure."""

    progress: str | None = None
    permission: str | None = None
    finished: str | None = None
    failed: str | None = None
    trouble: str | None = None
    conversation_id: str | None = None


def statement(signals: list[Signal]) -> Statement | None:
    """Return what the signals of one message mean; None for nothing."""
    found: dict[str, Any] = {}
    for signal in signals:
        match signal:
            case Conversation(conversation_id=conversation_id):
                found["conversation_id"] = conversation_id
            case Asked(tool=tool, call=call):
                found["permission"] = describe_call(tool, call)
            case ToolStarted(name=name, call=call):
                found["progress"] = describe_call(name, call)
            case Said(text=text) if text:
                found["progress"] = one_line(text, 300)
            case Retrying():
                found["trouble"] = one_line(describe_retry(signal), 300)
            case TurnEnded(how=how, why=why) if how != WELL:
                found["failed"] = why
            case TurnEnded(message=message, refused_tools=refused):
                more = f" (not allowed to use: {', '.join(refused)})" if refused else ""
                found["finished"] = f"{message or ''}{more}"
    return Statement(**found) if found else None
