"""Check the values of single fields of a job. `fields` has the checks that other records share."""

from __future__ import annotations

import re
from collections.abc import Mapping

from baton.core import fields
from baton.core.fields import Check
from baton.core.value import Any

MAX_PREDECESSORS = 1000
MAX_PROMPT_BYTES = 1024 * 1024
ON_LIMIT = ("wait", "fail")  # what a job does when the agent reaches a usage limit; the first is the default
# What ended a job: its agent, the checks of its results, one of its limits, a person, or what happened around it.
ENDED_BY = frozenset(
    {"agent", "verification", "timeout", "idle", "cancelled", "lost", "predecessor", "refused", "limit", "budget"}
)


def prompt(value: object) -> str:
    text = fields.text(value, MAX_PROMPT_BYTES)
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def lease_mark(value: object) -> str:
    text = fields.label(value)
    if not re.fullmatch(r"[^/]+/\d{1,19}", text, re.ASCII):
        raise ValueError("is not a boot id and a number of nanoseconds")
    return text


def ended_by(value: object) -> str:
    text = fields.label(value)
    if text not in ENDED_BY:
        raise ValueError(f"{text!r} is not one of {', '.join(sorted(ENDED_BY))}")
    return text


_DUE_CHECKS: dict[str, Check] = {
    "to": fields.label,
    "sender": fields.optional(fields.label),
    "tries": fields.optional(fields.whole(0)),
    "done": fields.optional(fields.texts),
}


def notify_due(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(entry, dict) for entry in value.values()):
        raise ValueError("must be an object of objects")
    for entry in value.values():
        fields.members(entry, _DUE_CHECKS)
    return fields.unknown_fields(value, ())  # refuses what could not be written as JSON again


def start_options(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    fields.members(value, _START_CHECKS)
    fields.unknown_fields(value, _START_CHECKS)
    return dict(value)


def on_limit(value: object) -> str:
    if value not in ON_LIMIT:
        raise ValueError(f"must be {' or '.join(ON_LIMIT)}")
    return str(value)


_PARKED_CHECKS: dict[str, Check] = {
    "attempt": fields.whole(1),
    "since": fields.time,
    "until": fields.time,
    "why": fields.text,
    "conversation_id": fields.optional(fields.label),
    "host": fields.label,
    "in_a_row": fields.whole(1),
}


def parked(value: Any) -> dict[str, Any]:
    return fields.members(value, _PARKED_CHECKS) | fields.unknown_fields(value, _PARKED_CHECKS)


_USAGE_CHECKS: dict[str, Check] = {
    "attempt": fields.whole(1),
    "input_tokens": fields.whole(0),
    "cached_tokens": fields.whole(0),
    "cache_write_tokens": fields.whole(0),
    "output_tokens": fields.whole(0),
    "cost_usd": fields.optional(fields.dollars(0)),
    "at": fields.time,
}


def usage(value: object) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of objects")
    return tuple(fields.members(each, _USAGE_CHECKS) | fields.unknown_fields(each, _USAGE_CHECKS) for each in value)


_RUN_CHECKS: dict[str, Check] = {
    "attempt": fields.whole(1),
    "agent_version": fields.optional(fields.line),
    "agent_mode": fields.optional(fields.line),
    "model": fields.optional(fields.line),
}


def agent_runs(value: object) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of objects")
    return tuple(fields.members(each, _RUN_CHECKS) | fields.unknown_fields(each, _RUN_CHECKS) for each in value)


_START_CHECKS: dict[str, Check] = {
    "headless": fields.optional(fields.boolean),
    "yolo": fields.optional(fields.boolean),
    "resume": fields.optional(fields.boolean),
    "conversation_id": fields.optional(fields.label),
    "within": fields.optional(fields.text),
}


def _object(checks: Mapping[str, Check]) -> Check:
    """Return a check that accepts null, and an object whose members these checks accept."""

    def check(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        return fields.members(value, checks) | fields.unknown_fields(value, checks)

    return check


activity = _object({"kind": fields.label, "since": fields.time, "cause": fields.text, "attempt": fields.whole(1)})
worktree = _object({"repository": fields.text, "base": fields.optional(fields.text)})
checkout = _object(
    {
        "base": fields.optional(fields.label),
        "job": fields.optional(fields.job_id),
        "attempt": fields.optional(fields.whole(1)),
        "path": fields.optional(fields.text),
        "branch": fields.optional(fields.text),
    }
)


def job_ids(value: object) -> tuple[str, ...]:
    checked = tuple(fields.job_id(each) for each in fields.texts(value))
    if len(checked) > MAX_PREDECESSORS or len(set(checked)) != len(checked):
        raise ValueError(f"must name each job once, and at most {MAX_PREDECESSORS}")
    return checked


def check_checkout(value: object) -> Any:
    return fields.check_named("checkout", checkout, value)


def check_usage(value: object) -> Any:
    return fields.check_named("usage", usage, value)


def check_agent_runs(value: object) -> Any:
    return fields.check_named("agent_runs", agent_runs, value)


def check_parked(value: object) -> Any:
    return fields.check_named("parked", parked, value)


def check_activity(value: object) -> Any:
    return fields.check_named("activity", activity, value)
