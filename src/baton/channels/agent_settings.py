"""Read the JSON settings of an agent, and add the hooks of a session to them."""

from __future__ import annotations

import re
import shlex

from baton.core.fields import parse_json
from baton.storage.files import read_given_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from baton.core.value import Any

_MAX_BYTES = 4 * 1024 * 1024
# A text, which is kept, or a comment, which is not.
_TEXT_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


def read_settings(path: str) -> dict[str, Any]:
    """Return the settings in a file, which may have comments; none if there is no file. Raise ValueError if it is no
    JSON object: the agent could not read it either."""
    try:
        text = read_given_file(path, _MAX_BYTES).decode(errors="replace")
    except OSError:
        return {}
    found = parse_json(_TEXT_OR_COMMENT.sub(lambda part: part[1] or " ", text).strip() or "{}")
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no JSON object")
    return found


def with_hooks(settings: Mapping[str, Any], program: list[str], events: Mapping[str, float]) -> dict[str, Any]:
    """Return the settings with hooks that run the program, after those of the user. `events` has the seconds that each
    may take."""
    known = settings.get("hooks")
    hooks = dict(known) if isinstance(known, dict) else {}
    for event, seconds in events.items():
        users = hooks.get(event)
        ours = {"type": "command", "command": shlex.join(program), "name": "baton", "timeout": int(seconds * 1000)}
        hooks[event] = [*_entries(users), {"matcher": "", "hooks": [ours]}]
    return {**settings, "hooks": hooks}


def _entries(users: object) -> Iterable[Any]:
    return users if isinstance(users, list) else ()
