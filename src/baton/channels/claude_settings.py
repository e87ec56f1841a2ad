"""Write what makes Claude Code talk to the gateway: its settings file for one session, and variables for telemetry."""

from __future__ import annotations

import json
import os
import shlex

from baton.adapters.claude_code import claude_folder
from baton.channels.forward import HOOK_PATH
from baton.channels.gateway import HOST
from baton.core.fields import json_object
from baton.storage.files import read_given_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.core.value import Any

LOGS_PATH = "/v1/logs"
TOKEN = "BATON_GATEWAY_TOKEN"  # noqa: S105  # nosec B105: the name of a variable
_HOOKS = (
    "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure", "PostToolBatch", "Stop",
    "StopFailure", "SubagentStart", "SubagentStop", "PreCompact", "PostCompact", "SessionEnd", "Notification",
    "PermissionDenied",
)  # fmt: skip
_BY_PROGRAM = ("SessionStart",)  # Claude does not deliver it by http
_SEC = 5
# The runner answers Stop after the job's validation, and PermissionRequest after a person. Claude's timers take no more
# than 24 days.
_SEC_OF = {"Stop": 900, "PermissionRequest": 20 * 24 * 3600}
LOG_LEVEL = "CLAUDE_CODE_DEBUG_LOG_LEVEL"
_TELEMETRY = "CLAUDE_CODE_ENABLE_TELEMETRY"
_EXPORT_MS = 300
_MANAGED = "/etc/claude-code"
_MAX_SETTINGS_BYTES = 4 * 1024 * 1024


def settings_file(program: list[str], port: int | None) -> str:
    """Return the settings of the session. Hooks go to the gateway by http; without a port, by the hook program."""
    hooks = {event: _hook(program, None if event in _BY_PROGRAM else port, event) for event in (*_BY_PROGRAM, *_HOOKS)}
    return json.dumps({"hooks": {event: [{"matcher": "", "hooks": [each]}] for event, each in hooks.items()}}, indent=2)


def _hook(program: list[str], port: int | None, event: str) -> dict[str, Any]:
    limit = _SEC_OF.get(event, _SEC)
    if port is None:
        return {"type": "command", "command": shlex.join(program), "timeout": limit}
    return {
        "type": "http",
        "url": f"http://{HOST}:{port}{HOOK_PATH}",
        "timeout": limit,
        "headers": {"Authorization": f"Bearer ${TOKEN}"},
        "allowedEnvVars": [TOKEN],
    }


def gateway_variables(environment: Mapping[str, str], token: str) -> dict[str, str]:
    """Return variables with which Claude reaches the gateway, past any proxy."""
    found = {TOKEN: token}
    for name in ("NO_PROXY", "no_proxy"):
        others = [each.strip() for each in environment.get(name, "").split(",")]
        found[name] = ",".join(dict.fromkeys([*filter(None, others), HOST]))
    return found


def telemetry_variables(port: int, token: str) -> dict[str, str]:
    """Return variables that make Claude send its log events, and nothing else, to the gateway."""
    return {
        _TELEMETRY: "1",
        "OTEL_LOGS_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORT_INTERVAL": str(_EXPORT_MS),
        "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/json",
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"http://{HOST}:{port}{LOGS_PATH}",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS": f"Authorization=Bearer%20{token}",
    }


def configured_telemetry(environment: Mapping[str, str], workdir: str, managed: str = _MANAGED) -> str | None:
    """Return where the user has configured telemetry of Claude: baton leaves it alone then. None: nowhere."""
    for name in sorted(environment):
        if _is_telemetry(name):
            return f"the environment variable {name}"
    for path in _settings_files(environment, workdir, managed):
        if any(map(_is_telemetry, _variables_of(path))):
            return path
    return None


def _variables_of(path: str) -> dict[str, Any]:
    """Return the variables that a settings file sets. A file that cannot be read, Claude cannot read either."""
    try:
        settings = json_object(read_given_file(path, _MAX_SETTINGS_BYTES).decode(errors="replace"))
    except OSError:
        return {}
    variables = settings.get("env")
    return variables if isinstance(variables, dict) else {}


def _is_telemetry(name: str) -> bool:
    return name == _TELEMETRY or name.startswith("OTEL_")


def _settings_files(environment: Mapping[str, str], workdir: str, managed: str) -> Iterator[str]:
    yield os.path.join(claude_folder(environment), "settings.json")
    folder = os.path.realpath(workdir)
    while True:
        for name in ("settings.json", "settings.local.json"):
            yield os.path.join(folder, ".claude", name)
        if os.path.exists(os.path.join(folder, ".git")) or folder == os.path.dirname(folder):
            break
        folder = os.path.dirname(folder)
    yield os.path.join(managed, "managed-settings.json")
    more = os.path.join(managed, "managed-settings.d")
    for name in sorted(os.listdir(more)) if os.path.isdir(more) else ():
        yield os.path.join(more, name)
