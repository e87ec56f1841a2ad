"""Keep what the runner of a row heard, for `make test`: small, with neutral paths, without keys."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

from truth.judge import Phase

if TYPE_CHECKING:
    from truth.catalogue import Row
    from truth.stage import Stage

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "truth")
_LONGEST_TEXT = 400
_MARKS = re.compile(r"This is job \w+ of baton|<task-id>[^<]+</task-id>")
# What the channel reads of telemetry.
_TOLD = ("event.name", "session.id", "prompt.id", "model", "input_tokens", "output_tokens", "cache_read_tokens",
         "cache_creation_tokens", "cost_usd", "request_id", "query_source", "error", "status_code", "attempt",
         "total_attempts", "decision", "source", "tool_name", "tool_use_id", "success")  # fmt: skip
_EVENTS = ("tool_decision", "tool_result", "api_request", "api_error", "api_retries_exhausted", "subagent_completed")
# Lines of the stream that carry nothing that is read.
_DULL = ("stream_event", "system hook_started", "system hook_response", "system status", "system thinking_tokens")


def keep_recording(row: Row, stage: Stage, folder: str) -> None:
    """Write the messages of a row with what was expected of it. A row without a job has none."""
    if not stage.readers or not stage.phases or not os.path.exists(stage.tap_path):
        return
    with open(stage.tap_path, encoding="utf-8") as file:
        entries = [json.loads(_neutral(line, stage)) for line in file]
    reader = stage.readers[0]
    start = stage.phases[0].at
    kept = [entry for each in entries if (entry := _small(each)) is not None]
    for entry in kept:
        entry[0] = round(entry[0] - start, 3)
    record = reader.record
    kept_record = {
        "row": row.label,
        "title": row.title,
        "mode": row.mode,
        "agent": row.agent,
        "job": reader.job,
        "wall": round(time.time() - time.monotonic() + start),
        "limits": {name: record.get(name) for name in ("idle_timeout_sec", "tool_timeout_sec", "background_timeout_sec", "timeout_sec")},
        "has_conditions": bool(record.get("expected_artifacts") or record.get("validate")),
        "ended_by": record.get("ended_by"),
        "refused": reader.detail if record.get("ended_by") == "verification" else "",
        "phases": [[list(phase.states), round(phase.at - start, 3), phase.cause, phase.within, phase.early, list(phase.untold)] for phase in stage.phases],
        "ended": round(reader.samples[-1].at - start, 3),
        "usage": stage.usage,
        "messages": kept,
    }  # fmt: skip
    messages = kept_record.pop("messages")
    body = ",\n".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in messages)
    head = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in kept_record.items()
    )
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{row.label}.json"), "w", encoding="utf-8") as file:
        file.write(f'{{{head},\n"messages": [\n{body}\n]}}\n')


def load(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    found["phases"] = [
        Phase(*(tuple(each) if isinstance(each, list) else each for each in phase)) for phase in found["phases"]
    ]
    return found


def _small(entry: list) -> list | None:
    at, kind, *rest = entry
    if kind == "telemetry":
        events = _small_events(json.loads(rest[1]))
        return [at, kind, rest[0], events] if events else None
    if kind == "tail" and rest[0] == "errors":
        return [at, kind, "errors", rest[1]]
    if kind == "line" and not rest[-1].startswith("{"):
        return entry
    if kind in ("hook", "line", "tail", "event"):
        try:
            message = json.loads(rest[-1])
        except ValueError:
            return None
        what = message.get("type")
        if kind == "line" and (what in _DULL or f"{what} {message.get('subtype')}" in _DULL):
            return [at, kind, {"type": "stream_event"}] if what == "stream_event" else None
        return [at, kind, *rest[:-1], _short(message)]
    return entry if kind != "runner" else None


def _small_events(message: dict) -> dict | None:
    records = [
        {"attributes": [each for each in record.get("attributes", ()) if each["key"] in _TOLD]}
        for resource in message.get("resourceLogs", ())
        for scope in resource.get("scopeLogs", ())
        for record in scope.get("logRecords", ())
        if any(each["key"] == "event.name" and each["value"].get("stringValue") in _EVENTS
               for each in record.get("attributes", ()))
    ]  # fmt: skip
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]} if records else None


_UNREAD = frozenset({"tools", "mcp_servers", "slash_commands", "agents", "skills", "plugins", "permission_suggestions",
                     "modelUsage", "apiKeySource", "version", "gitBranch", "userType", "entrypoint", "memory_paths",
                     "structuredPatch", "originalFile", "signature",
                     "availableCommands", "configOptions", "models", "modes", "authMethods"})  # fmt: skip


def _short(value: Any) -> Any:
    """Return the message without what nothing reads, and with shorter texts."""
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items() if name not in _UNREAD}
    if isinstance(value, list):
        return [_short(each) for each in value]
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        marks = " ".join(dict.fromkeys(_MARKS.findall(value)))
        return f"{value[: _LONGEST_TEXT // 2]} […] {marks} […] {value[-_LONGEST_TEXT // 2 :]}"
    return value


def _neutral(text: str, stage: Stage) -> str:
    folder = str(stage.folder)
    for real, neutral in (
        (folder, "/home/me/row"),
        (folder.replace("/", "-"), "-home-me-row"),
        (stage.tmux.folder, "/run/tmux"),
    ):
        text = text.replace(json.dumps(real)[1:-1], neutral)
    text = re.sub(r"/tmp/claude-[\w./-]+", "/run/claude", text)
    text = re.sub(r"-tmp-truth-[\w-]+?-work", "-home-me-row-work", text)
    text = re.sub(r"(?:/[\w.-]+)+/bin/baton\b", "/usr/bin/baton", text)
    return re.sub(r"not-a-key[\w-]*|sk-ant-[\w-]+", "***", text)
