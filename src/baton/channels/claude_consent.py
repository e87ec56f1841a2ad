"""Read what Claude Code says about a question: who must answer it, its default, and the rule that asked."""

from __future__ import annotations

from baton.core.fields import one_line
from baton.core.signal import Consent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.core.value import Any

_LONGEST = 300
_SOURCES = {
    "userSettings": "your settings of Claude Code",
    "projectSettings": "the project's settings of Claude Code",
    "localSettings": "the project's local settings of Claude Code",
    "flagSettings": "the settings with which this session was started",
    "policySettings": "the managed settings of Claude Code",
    "cliArg": "the options with which this session was started",
    "session": "this session",
}


def read_consent(request: Mapping[str, Any]) -> Consent:
    """Return what a question of Claude says. A field of another type counts as the careful value."""
    return Consent(
        person_only=_is_set(request, "requires_user_interaction"),
        default_no=_is_set(request, "default_to_no"),
        once=_is_set(request, "suppress_always_allow_rule"),
        rule=_rule(request),
        why=one_line(str(request.get("decision_reason") or ""), _LONGEST),
    )


def _is_set(request: Mapping[str, Any], name: str) -> bool:
    return request.get(name) not in (None, False)


def _rule(request: Mapping[str, Any]) -> str:
    """Return the rule of the user's own settings that asked; "" if none did."""
    matched = request.get("matched_ask_rule")
    if isinstance(matched, dict):
        tool, content = str(matched.get("tool_name") or ""), matched.get("rule_content")
        shown = f"{tool}({content})" if content is not None else tool
        return one_line(f"the rule {shown} of {_source(matched.get('source'))}", _LONGEST)
    if request.get("decision_reason_type") == "rule":
        return one_line(f"a rule of {_source(request.get('decision_reason_rule_source'))}", _LONGEST)
    return ""


def _source(name: object) -> str:
    return _SOURCES.get(str(name), f"its {name}" if name else "its settings")
