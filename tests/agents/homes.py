"""Homes of a user who has used each of the six agent programs before: with a key, past all first questions, without
telemetry and update checks. The programs talk to a model service on loopback and need nothing else."""

from __future__ import annotations

import json
from typing import NamedTuple

KEY = "not-a-key-of-anybody-0123456789"
AGENTS = ("claude-code", "codex", "opencode", "copilot", "qwen", "gemini")
# Claude Code begins in auto mode on the terminal, in which its service checks calls; the stand-in checks none.
NO_AUTO_MODE = {"disableAutoMode": "disable"}
# What the user's own settings say about the shell tool.
ALLOW, ASK, DENY = "allow", "ask", "deny"


class Home(NamedTuple):
    """What the homes of all programs depend on."""

    path: str
    work: str
    url: str  # of the model service
    shell: str = ALLOW
    trusted: bool = True  # whether the user trusts the work folder, for the programs that ask
    retries: int = 1  # of Codex, after a failure of the model service


# What a user without a login lacks.
LOGINS = {
    "claude-code": ("ANTHROPIC_API_KEY",),
    "codex": ("CODEX_KEY",),
    "copilot": ("COPILOT_OFFLINE", "COPILOT_PROVIDER_BASE_URL", "COPILOT_PROVIDER_API_KEY", "COPILOT_MODEL"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
    "qwen": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"),
}


def environment(home: Home) -> dict[str, str]:
    """Return the variables that depend on the home."""
    return {
        "HOME": home.path,
        "ANTHROPIC_BASE_URL": home.url,
        "CODEX_HOME": f"{home.path}/.codex",
        "GOOGLE_GEMINI_BASE_URL": home.url,
        "OPENAI_BASE_URL": f"{home.url}/v1",
        "COPILOT_PROVIDER_BASE_URL": f"{home.url}/v1",
        # Copilot has no setting that allows a tool. "1" allows its tools; only "true" would also trust every folder.
        "COPILOT_ALLOW_ALL": "1" if home.shell == ALLOW else "",
    }


CONSTANTS = {
    # Claude Code
    "ANTHROPIC_API_KEY": KEY,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": "1",
    "DISABLE_AUTOUPDATER": "1",
    # Codex takes all else from its configuration.
    "CODEX_KEY": KEY,
    # Gemini
    "GEMINI_API_KEY": KEY,
    "GEMINI_CLI_DISABLE_AUTO_UPDATE": "1",
    # Qwen
    "OPENAI_API_KEY": KEY,
    "OPENAI_MODEL": "m",
    # With a provider of the user's own, Copilot needs no account. Offline, it sends no telemetry and looks for no update.
    "COPILOT_OFFLINE": "true",
    "COPILOT_PROVIDER_API_KEY": KEY,
    "COPILOT_MODEL": "m",
    # opencode fetches a list of models, plugins and language servers at its start without these.
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}


def files(home: Home) -> dict[str, str]:
    """Return the files in the home, by name."""
    found = {
        ".claude.json": _claude_memory(home),
        ".claude/settings.json": {"permissions": _claude_permissions(home.shell)},
        ".codex/config.toml": _codex_config(home),
        ".config/opencode/opencode.json": _opencode_config(home),
        # A file that Copilot itself keeps: its settings are in settings.json.
        ".copilot/config.json": {"trustedFolders": [home.work] if home.trusted else [], "appTipShown": True},
        ".qwen/settings.json": _qwen_settings(home),
        ".gemini/settings.json": _gemini_settings(),
        ".gemini/trustedFolders.json": {home.work: "TRUST_FOLDER"} if home.trusted else {},
        ".gemini/policies/shell.toml": _gemini_policy(home.shell),
    }
    return {name: each if isinstance(each, str) else json.dumps(each) for name, each in found.items()}


def _claude_memory(home: Home) -> dict:
    return {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [KEY[-20:]]},
        "projects": {home.work: {"hasTrustDialogAccepted": True}} if home.trusted else {},
    }


def _claude_permissions(shell: str) -> dict:
    rules = {ALLOW: {"allow": ["Bash"], "deny": []}, ASK: {"allow": ["Read"]}, DENY: {"deny": ["Bash(touch *)"]}}[shell]
    return NO_AUTO_MODE | rules


def _codex_config(home: Home) -> str:
    """Codex has no setting that lets it ask for every command: it asks when the model wants to leave the sandbox."""
    trust = f'[projects."{home.work}"]\ntrust_level = "trusted"\n' if home.trusted else ""
    return f"""\
model = "m"
model_provider = "stand-in"
check_for_update_on_startup = false
[model_providers.stand-in]
name = "stand-in"
base_url = "{home.url}/v1"
env_key = "CODEX_KEY"
wire_api = "responses"
request_max_retries = {home.retries}
stream_max_retries = {home.retries}
[analytics]
enabled = false
{trust}"""


def _opencode_config(home: Home) -> dict:
    options = {"baseURL": f"{home.url}/v1", "apiKey": KEY}
    model = {"name": "m", "limit": {"context": 200_000, "output": 8000}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "stand-in", "options": options, "models": {"m": model}}
    return {
        "model": "stand-in/m",
        "small_model": "stand-in/m",
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["stand-in"],
        "provider": {"stand-in": provider},
        # A tool that is denied as a whole is not offered to the model.
        "permission": {"bash": {"*": "allow", "touch *": "deny"} if home.shell == DENY else home.shell},
    }


def _qwen_settings(home: Home) -> dict:
    permissions = {ALLOW: {"allow": ["Bash"]}, ASK: {}, DENY: {"deny": ["Bash(touch *)"]}}[home.shell]
    return {
        "security": {"auth": {"selectedType": "openai"}},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "permissions": permissions,
        "tools": {"approvalMode": "default"},  # its own default asks its model first
    }


def _gemini_settings() -> dict:
    return {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }


def _gemini_policy(shell: str) -> str:
    """Return a rule for its shell tool. Without `allowRedirection`, Gemini asks for each command with a ">"."""
    if shell == ASK:
        return ""
    more = "allowRedirection = true\n" if shell == ALLOW else 'commandPrefix = "touch"\n'
    return f'[[rule]]\ntoolName = "run_shell_command"\ndecision = "{shell}"\npriority = 100\n{more}'
