"""Describe the agent CLIs: how each is started, resumed and understood. One file for each agent.

An adapter starts nothing and calls no service: it turns a task into a command line, and output into statements."""

from __future__ import annotations

from baton.core.errors import AgentUnusable, InvalidValue
from baton.core.job import AGENT_ALIASES, agent_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from baton.adapters.contract import Agent
    from baton.config import Settings

# name: (module, class)
BUILT_IN = {
    "claude-code": ("claude_code", "ClaudeCode"),
    "codex": ("codex", "Codex"),
    "gemini": ("gemini", "Gemini"),
    "shell": ("shell", "Shell"),
}


def find_agent(settings: Settings, name: str) -> Agent:
    """Return the agent of that name: a built-in one, or one of the config file. AgentUnusable lists the known names."""
    custom = _custom(settings)
    found = BUILT_IN.get(agent_name(name))
    if found is None and name not in custom:
        known = ", ".join((*BUILT_IN, *custom))
        raise AgentUnusable(
            f"there is no agent {name[:40]!r}; there are {known}, or add [agents.NAME] to ~/.config/baton/baton.toml"
        )
    if found is None:
        from baton.adapters.custom import Custom

        return Custom(name, custom[name])
    from importlib import import_module

    agent: Agent = getattr(import_module(f"baton.adapters.{found[0]}"), found[1])()
    return agent


def allowed_silence(settings: Settings, name: str, timeout_sec: int) -> int:
    """Return the idle limit, in seconds, if the user chose none. A command may be silent: the runner sees its exit."""
    known = agent_name(name) in agent_names(settings)  # another machine may define others
    if settings.sources["idle_timeout_sec"] == "default" and known and find_agent(settings, name).exit_is_verdict:
        return timeout_sec
    return settings.idle_timeout_sec


def agent_names(settings: Settings) -> list[str]:
    return [*BUILT_IN, *_custom(settings)]


def _custom(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the agents of the config file."""
    found: dict[str, Any] = settings.tables.get("agents", {})
    for name, table in found.items():
        if name in BUILT_IN or name in AGENT_ALIASES:
            raise InvalidValue(f"agents.{name}", "in the config file has the name of a built-in agent; give it another")
        if not isinstance(table, dict):
            raise InvalidValue(f"agents.{name}", "in the config file must be a table")
    return found
