"""Read the questions with choices that an agent asks."""

from __future__ import annotations

from baton.core.value import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def read_questions(given: object, several: str = "multiSelect") -> tuple[dict[str, Any], ...]:
    """Return the options of a request (`Asked.options`): the questions in a tool call or in a message.
    `several` is the agent's key for: more than one choice may be taken. What has another shape is left out."""
    return tuple(
        {
            "question": str(each.get("question") or ""),
            "choices": [str(option["label"]) for option in objects(each.get("options")) if "label" in option],
            "several": bool(each.get(several)),
        }
        for each in objects(given.get("questions") if isinstance(given, dict) else None)
    )


def objects(value: object) -> list[Mapping[str, Any]]:
    """Return the objects in a list of another program; none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
