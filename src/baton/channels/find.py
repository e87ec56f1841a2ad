"""Find the channel that an adapter names."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from baton.adapters.contract import Agent, Task
    from baton.channels.contract import Channel

# name: (module, class). A class is called with the agent and the task.
CHANNELS: dict[str, tuple[str, str]] = {
    "acp": ("acp", "Acp"),
    "claude_hooks": ("claude_hooks", "ClaudeHooks"),
    "claude_stream": ("claude_stream", "ClaudeStream"),
    "codex_server": ("codex_server", "CodexServer"),
    "codex_stream": ("codex_stream", "CodexStream"),
    "copilot_acp": ("copilot_acp", "CopilotAcp"),
    "copilot_plugin": ("copilot_plugin", "CopilotPlugin"),
    "gemini_hooks": ("gemini_hooks", "GeminiHooks"),
    "lines": ("lines", "Lines"),
    "opencode": ("opencode", "OpencodeChannel"),
    "qwen_acp": ("qwen_acp", "QwenAcp"),
    "qwen_hooks": ("qwen_hooks", "QwenHooks"),
}


def find_channel(agent: Agent, task: Task) -> Channel | None:
    """Return the channel by which the agent talks to its runner for this task, not opened yet; None: it has none."""
    name = agent.channel(task)
    if name is None:
        return None
    from importlib import import_module

    module, made = CHANNELS[name]
    channel: Channel = getattr(import_module(f"baton.channels.{module}"), made)(agent, task)
    return channel
