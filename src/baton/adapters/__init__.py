"""Describe the agent CLIs: how each is started, resumed and understood. One file for each agent.

An adapter starts nothing and calls no service: it turns a task into a command line, and output into statements."""

from __future__ import annotations

from baton.core.errors import InvalidValue, UnknownAgent
from baton.core.job import AGENT_ALIASES, LIVE_QUEUE, agent_name
from baton.origin import caller
from baton.storage.files import outside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from baton.adapters.contract import Agent
    from baton.config import Settings
    from baton.core.job import Job

# name: (module, class)
BUILT_IN = {
    "claude-code": ("claude_code", "ClaudeCode"),
    "codex": ("codex", "Codex"),
    "copilot": ("copilot", "Copilot"),
    "gemini": ("gemini", "Gemini"),
    "opencode": ("opencode", "Opencode"),
    "qwen": ("qwen", "Qwen"),
    "shell": ("shell", "Shell"),
}


def find_agent(settings: Settings, name: str) -> Agent:
    """Return the agent of that name: a built-in one, or one of the config file. AgentUnusable lists the known names."""
    custom = _custom(settings)
    found = BUILT_IN.get(agent_name(name))
    if found is None and name not in custom:
        known = ", ".join((*BUILT_IN, *custom))
        raise UnknownAgent(
            f"there is no agent {name[:40]!r}; there are {known}, or add [agents.NAME] to ~/.config/baton/baton.toml"
        )
    if found is None and "acp" in custom[name]:
        from baton.adapters.custom_acp import CustomAcp

        return CustomAcp(name, custom[name])
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


def check_work(settings: Settings, job: Job) -> None:
    """Refuse a job that cannot work: no such agent, or an expected file outside of the work folder. The agent of a
    running session may be defined on its host alone."""
    if not job.agent_session.startswith(LIVE_QUEUE):
        find_agent(settings, job.agent)
    check_place(job)
    for name in job.expected_artifacts:
        if outside(name, job.workdir or "."):
            raise InvalidValue("expect", f"{name!r} lies outside the work folder {job.workdir or ''}".rstrip())
    starter = None if job.budget_usd is not None else caller()
    if job.budget_usd is not None:
        _check_budget(settings, job, "budget")
    elif starter is not None and starter.has_budget and _has_a_cost(settings, job):  # guard: budget-of-a-job-above
        _check_budget(settings, job, "agent", "; a job above has a budget")


def check_place(job: Job) -> None:
    """Refuse a job whose work folder does not lie in the folder to which the job is bound: a part of its path may have
    become a link."""
    within, workdir = job.start_options.get("within"), job.workdir or "."
    if within is not None and outside(workdir, within):  # guard: bound-to-a-folder
        raise InvalidValue("workdir", f"{workdir} lies outside of {within}, to which the job is bound")


def _has_a_cost(settings: Settings, job: Job) -> bool:
    """Return whether the job has an agent that a model serves. That of a running session was checked when it began."""
    return not job.agent_session.startswith(LIVE_QUEUE) and not find_agent(settings, job.agent).exit_is_verdict


def _check_budget(settings: Settings, job: Job, name: str, note: str = "") -> None:
    """Refuse a budget that cannot be kept: the cost of the work would stay unknown."""
    kept = "cannot be kept:" if name == "budget" else "cannot be used:"
    agent = find_agent(settings, job.agent)
    from baton.adapters.contract import Mode

    mode = Mode.HEADLESS if job.start_options.get("headless") else Mode.INTERACTIVE
    about = agent.when_headless if agent.usable_mode(mode) is Mode.HEADLESS else agent.on_terminal
    known = about.usage if about is not None else "none"
    if "tokens" not in known:
        raise InvalidValue(name, f"{kept} {agent.name} does not say what it uses in this mode{note}")
    if "cost" not in known and not settings.prices:
        where = 'set [prices."MODEL"] in your baton.toml'
        raise InvalidValue(name, f"{kept} {agent.name} says tokens, not what they cost{note}; {where}")


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
