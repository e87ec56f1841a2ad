"""Read the parts of ACP messages: reasons of errors, tool calls, options of a permission, usage. Nothing is kept here.

The values come from another program: a function raises one of the usual errors for a shape that it does not expect."""

from __future__ import annotations

import re

from baton.core.facts import describe_call
from baton.core.fields import json_object, one_line
from baton.core.spending import NONE, Tokens
from baton.core.value import Any, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN_METHOD, INVALID, REFUSED = -32601, -32602, -32000  # codes of JSON-RPC, for answers
_LOGIN = -32000  # in an answer of the agent
_LINE = 400  # characters of a reason
_STATUS = re.compile(r"\b(?:401|403|429|5\d\d)\b")
_LIMIT = re.compile(r"\b429\b|rate.?limit|too many requests|quota", re.IGNORECASE)
# Why a turn did not end well, by its `stopReason`.
STOPS = {
    "refusal": "the model refused to go on",
    "max_tokens": "the model reached its limit of tokens",
    "max_turn_requests": "the agent reached its limit of model requests in one turn",
}


class Option(Value):
    """An answer that the agent offers. `kind` is allow_once, allow_always, reject_once or reject_always."""

    option_id: str
    kind: str
    name: str


class Trouble(Value):
    """What an agent says about its model service. `number` of `most` is the try, 0 if unknown. `is_final`: it gave
    up."""

    why: str
    number: int = 0
    most: int = 0
    is_final: bool = False


def reason(error: object) -> str:
    """Return the reason in a JSON-RPC error, in the program's own words."""
    if not isinstance(error, dict):
        return one_line(f"it answered with an error: {error}", _LINE)
    words = str(error.get("message") or "").removeprefix("Internal error").removeprefix(": ")
    inner = json_object(words).get("error")  # Gemini passes on the body of an HTTP answer
    if isinstance(inner, dict) and isinstance(inner.get("message"), str):
        words = inner["message"]
    data = error.get("data")
    if isinstance(data, dict):
        data = next((data[key] for key in ("details", "message", "errorKind") if isinstance(data.get(key), str)), None)
    if isinstance(data, str) and data not in words:
        words = f"{words}: {data}" if words else data
    code = error.get("code")
    if isinstance(code, int) and 400 <= code < 600 and not _STATUS.search(words):
        words = f"{code} {words}"
    words = words or f"it answered with error {code}"
    return one_line(f"it wants a login: {words}" if code == _LOGIN else words, _LINE)


def is_limit(why: str) -> bool:
    """Return whether a reason is that of a usage limit."""
    return _LIMIT.search(why) is not None


def codex_trouble(update: Mapping[str, Any]) -> Trouble | None:
    """Return what codex-acp says about its model service, beside the protocol."""
    about = (update.get("_meta") or {}).get("codex") or {}
    if (about.get("threadStatus") or {}).get("type") == "systemError":
        return Trouble(why="", is_final=True)
    error = about.get("error")
    if not isinstance(error, dict):
        return None
    words = ": ".join(str(error[key]) for key in ("message", "additionalDetails") if error.get(key))
    tries = re.search(r"(\d+)/(\d+)", words)
    number, most = map(int, tries.groups()) if tries else (0, 0)
    is_final = error.get("willRetry") is False
    return Trouble(why=one_line(words, _LINE), number=number, most=most, is_final=is_final)


def options(given: object) -> list[Option]:
    """Return the options of a permission that have a kind and an id."""
    return [
        Option(option_id=each["optionId"], kind=str(each.get("kind")), name=str(each.get("name") or each["optionId"]))
        for each in (given if isinstance(given, list) else [])
        if isinstance(each, dict) and isinstance(each.get("optionId"), str)
    ]


def tool_name(call: Mapping[str, Any]) -> str | None:
    """Return the name of the tool, where the agent says it; else what kind of tool it is."""
    meta = call.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    inner = meta.get("claudeCode")
    found = (call.get("name"), meta.get("toolName"), inner.get("toolName") if isinstance(inner, dict) else None)
    name = next((each for each in (*found, call.get("kind")) if isinstance(each, str) and each.strip()), None)
    return None if name is None else one_line(name, 100)


def arguments(call: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the arguments of a tool call, and whether they are exact: without them, only a title says what it does."""
    given = call.get("rawInput")
    if isinstance(given, dict | list | str) and given:
        return given, True
    title = call.get("title")
    found: dict[str, Any] = {}
    if isinstance(title, str) and title:
        found["command" if call.get("kind") == "execute" else "description"] = title
    places = call.get("locations")
    paths = [each.get("path") for each in places if isinstance(each, dict)] if isinstance(places, list) else []
    named = [path for path in paths if isinstance(path, str)]
    if named:
        found["path"] = named[0]
    if len(named) > 1:
        found["paths"] = named
    if call.get("content"):
        found["content"] = call["content"]
    return found, False


def says_what(name: str, call: Any) -> bool:
    """Return whether the arguments say what the tool works on: some agents send them after the call."""
    return describe_call(name, call) != describe_call(name, None)


def text_of(content: object) -> str:
    """Return the text in the content of a message or of a tool call."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(text_of, content)))
    if not isinstance(content, dict):
        return ""
    if content.get("type") == "content":
        return text_of(content.get("content"))
    if content.get("type") == "diff":
        return f"{content.get('path')}: changed"
    return str(content.get("text") or "")


def tokens(usage: object) -> Tokens | None:
    """Return the tokens; None for anything else than an object with numbers. Whether an agent counts cached tokens, and
    those of thoughts, apart from the others, only its total shows."""
    if not isinstance(usage, dict):
        return None

    def find(*names: str) -> int | None:
        return next((usage[name] for name in names if _is_count(usage.get(name))), None)

    given, made = find("inputTokens", "input_tokens"), find("outputTokens", "output_tokens")
    if given is None and made is None:
        return None
    given, made = given or 0, made or 0
    cached, written = find("cachedReadTokens") or 0, find("cachedWriteTokens") or 0
    thoughts = find("thoughtTokens") or 0
    apart = (find("totalTokens") or 0) - given - made
    if apart in (cached + written, cached + written + thoughts):
        given += cached + written
    if apart in (thoughts, cached + written + thoughts):
        made += thoughts
    return Tokens(input=given, cached=cached, written=written, output=made)


def turn_usage(result: Mapping[str, Any]) -> dict[str, Tokens] | None:
    """Return the tokens in the answer to a prompt, by model; "" is that of the session."""
    meta = result.get("_meta")
    quota = meta.get("quota") if isinstance(meta, dict) else None
    quota = quota if isinstance(quota, dict) else {}
    found = tokens(result.get("usage")) or tokens(quota.get("token_count"))
    if found is None:
        return None
    by_model: dict[str, Tokens] = {}
    listed = quota.get("model_usage")
    for each in listed if isinstance(listed, list) else ():
        used = tokens(each.get("token_count")) if isinstance(each, dict) else None
        if used is not None:
            name = str(each.get("model"))
            by_model[name] = used.plus(by_model.get(name, NONE))
    counted = NONE
    for used in by_model.values():
        counted = counted.plus(used)
    return by_model if counted.total == found.total else {"": found}


def model_of(result: Mapping[str, Any]) -> str:
    """Return the model of a new session, as the agent names it; "" if it does not say so."""
    models, options = result.get("models"), result.get("configOptions")
    name = models.get("currentModelId") if isinstance(models, dict) else None
    for each in options if isinstance(options, list) else ():
        if isinstance(each, dict) and each.get("category") == "model":
            name = name or each.get("currentValue")
    # Qwen writes: $runtime|openai|MODEL(openai)
    return re.sub(r"\([^()]*\)$", "", name.rpartition("|")[2])[:200] if isinstance(name, str) else ""


def mode_of(about: Mapping[str, Any]) -> str:
    """Return the mode of a session, of a new one or as it has changed; "" if the agent does not say it."""
    modes = about.get("modes")
    name = modes.get("currentModeId") if isinstance(modes, dict) else about.get("currentModeId")
    return name if isinstance(name, str) else ""


def release_of(result: Mapping[str, Any]) -> str:
    """Return the release of the agent in its introduction; "" if it does not say it."""
    about = result.get("agentInfo")
    release = about.get("version") if isinstance(about, dict) else None
    return release if isinstance(release, str) else ""


def cost_usd(update: Mapping[str, Any]) -> float | None:
    """Return the cost of the conversation in a `usage_update`, in US dollars."""
    cost = update.get("cost")
    amount = cost.get("amount") if isinstance(cost, dict) and cost.get("currency") == "USD" else None
    return float(amount) if isinstance(amount, int | float) and not isinstance(amount, bool) else None


def plan_text(update: Mapping[str, Any]) -> str:
    entries = [each for each in update["entries"] if isinstance(each, dict)]
    marks = {"completed": "done", "in_progress": "now"}
    found = (f"{each.get('content')} ({marks.get(str(each.get('status')), 'to do')})" for each in entries)
    return "plan: " + "; ".join(found)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
